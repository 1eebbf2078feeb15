"""Real data for the examples: from scikit-learn, from files in a folder, or through `keras.datasets`."""

from __future__ import annotations

import contextlib
import dataclasses
import gzip
import hashlib
import importlib
import math
import socket
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

import keras
import numpy as np

SPRITE = "fashion-mnist-sprite.png"
MNIST_IMAGES = "mnist-t10k-images-idx3-ubyte.gz"
MNIST_LABELS = "mnist-t10k-labels-idx1-ubyte.gz"
REUTERS = "reuters.npz"

# What keras.datasets.reuters checks too. The file holds pickled lists, and unpickling runs code.
REUTERS_SHA256 = "d6586e694ee56d7a4e65172e12b3e987c03096cb01eab99753921ef915959916"

CLOTHES = ("T-shirt", "Trousers", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Boot")
DIGITS = tuple("0123456789")

_SPLIT_SEED = 0
_PAD, _START, _UNKNOWN, _FIRST_WORD = 0, 1, 2, 3  # how keras.datasets.reuters numbers words
_SECONDS_WITHOUT_ANSWER = 20


@dataclasses.dataclass(frozen=True)
class Data:
    """A data set in memory, split in two.

    Attributes:
        name: What it is, for people to read.
        train: Inputs and labels to train on.
        test: Inputs and labels that are never trained on.
        labels: Name of each class.
        epochs: How often a small network has to see it.
    """

    name: str
    train: tuple[np.ndarray, np.ndarray]
    test: tuple[np.ndarray, np.ndarray]
    labels: tuple[str, ...]
    epochs: int

    def __str__(self) -> str:
        return f"{self.name}; {len(self.train[1]):,} to train, {len(self.test[1]):,} to test"


def load_images(dataset: str, folder: Path | None) -> Data:
    """Return small grey images, float32 from 0 to 1 of shape (examples, height, width, 1).

    Args:
        dataset: `"digits"`, `"fashion_mnist"` or `"mnist"`. `"auto"` is what `folder` holds, Fashion-MNIST
            before MNIST, and the digits without a folder.
        folder: Where the files are; without one, all but the digits come through `keras.datasets`.

    Raises:
        SystemExit: If the data cannot be had; the text says what to write.
    """
    if folder is not None:
        _check_folder(folder)
    if dataset == "auto":
        dataset = "digits" if folder is None else _found_in(folder)
    if dataset == "digits":
        return _digits()
    if folder is None:
        return _downloaded_images(dataset)
    return {"fashion_mnist": _fashion_tiles, "mnist": _mnist_files}[dataset](folder)


def load_reuters(folder: Path | None, *, words: int, length: int) -> Data:
    """Return the Reuters newswires as `keras.datasets.reuters.load_data(num_words=words)` splits them.

    Args:
        folder: Where `reuters.npz` is; without one it comes through `keras.datasets`.
        words: Word numbers from here on become "unknown".
        length: Each text becomes its last `length` words; shorter ones are padded in front.

    Raises:
        SystemExit: If the data cannot be had; the text says what to write.
    """
    if folder is None:
        with _downloading("Reuters", f"the folder that holds {REUTERS}"):
            train, test = keras.datasets.reuters.load_data(num_words=words)
    else:
        train, test = _reuters_file(folder, words)
    labels = tuple(keras.datasets.reuters.get_label_names())
    return Data(
        "Reuters newswires, 46 topics",
        (keras.utils.pad_sequences(train[0], maxlen=length, value=_PAD), np.asarray(train[1])),
        (keras.utils.pad_sequences(test[0], maxlen=length, value=_PAD), np.asarray(test[1])),
        labels,
        epochs=10,
    )


def with_shifted_copies(images: np.ndarray, labels: np.ndarray, *, copies: int, seed: int) -> Any:
    """Return the images followed by `copies` of each, moved by up to two pixels and some of them mirrored."""
    random = np.random.default_rng(seed)
    height, width = images.shape[1:3]
    padded = np.pad(images, ((0, 0), (2, 2), (2, 2), (0, 0)))
    parts = [images]
    for _ in range(copies):
        corners = random.integers(0, 5, (len(images), 2))
        moved = [image[y : y + height, x : x + width] for image, (y, x) in zip(padded, corners, strict=True)]
        heads = random.random(len(images)) < 0.5
        mirrored = [image[:, ::-1] if flip else image for image, flip in zip(moved, heads, strict=True)]
        parts.append(np.stack(mirrored))
    return np.concatenate(parts), np.tile(labels, copies + 1)


def _digits() -> Data:
    digits = _needed("sklearn.datasets", "scikit-learn").load_digits()
    images, labels = digits.images / 16.0, digits.target
    return Data("handwritten digits from scikit-learn, 8x8", *_split(images, labels, 0.2), DIGITS, epochs=40)


def _fashion_tiles(folder: Path) -> Data:
    """Cut the sheet that the authors of Fashion-MNIST published: 30 by 30 tiles, three rows for each class."""
    image = _needed("PIL.Image", "pillow")
    path = _existing(folder / SPRITE)
    try:
        sheet = np.asarray(image.open(path).convert("L"))
    except (OSError, ValueError) as error:
        _stop(f"{path} is no picture that can be read ({error}). Fetch it again.")
    if sheet.shape != (840, 840):
        _stop(f"{path} must be 840 by 840 pixels (30 by 30 tiles of 28); it is {sheet.shape[1]} by {sheet.shape[0]}.")
    tiles = sheet.reshape(30, 28, 30, 28).swapaxes(1, 2).reshape(900, 28, 28) / 255.0
    labels = np.repeat(np.arange(10), 90)
    return Data("900 tiles of Fashion-MNIST, 28x28", *_split(tiles, labels, 0.2), CLOTHES, epochs=24)


def _mnist_files(folder: Path) -> Data:
    images, labels = _read_idx(folder / MNIST_IMAGES) / 255.0, _read_idx(folder / MNIST_LABELS)
    if images.ndim != 3 or len(images) != len(labels) or len(labels) < 10:
        _stop(f"{folder} must hold as many MNIST images as labels; it has {images.shape} and {labels.shape}.")
    first = len(labels) * 4 // 5
    return Data(
        "MNIST from files, 28x28",
        (_as_input(images[:first]), labels[:first].astype("int64")),
        (_as_input(images[first:]), labels[first:].astype("int64")),
        DIGITS,
        epochs=10,
    )


def _read_idx(path: Path) -> np.ndarray:
    """Read a gzipped IDX file of bytes: two zeros, type 8, number of dimensions, sizes, then the data."""
    try:
        raw = gzip.decompress(_existing(path).read_bytes())
        if raw[:3] != b"\0\0\x08":
            raise ValueError("its first bytes are not those of an IDX file of bytes")
        shape = np.frombuffer(raw, ">u4", count=raw[3], offset=4)
        return np.frombuffer(raw, np.uint8, offset=4 + 4 * raw[3]).reshape(shape)
    except (OSError, EOFError, IndexError, ValueError) as error:
        _stop(f"{path} is no MNIST file that can be read ({error}). Fetch it again.")


def _downloaded_images(dataset: str) -> Data:
    files = {"fashion_mnist": SPRITE, "mnist": f"{MNIST_IMAGES} and {MNIST_LABELS}"}[dataset]
    with _downloading(dataset, f"a folder that holds {files}, or leave --dataset out to train on digits"):
        train, test = getattr(keras.datasets, dataset).load_data()
    return Data(
        f"{dataset} through keras.datasets, 28x28",
        (_as_input(train[0] / 255.0), train[1].astype("int64")),
        (_as_input(test[0] / 255.0), test[1].astype("int64")),
        CLOTHES if dataset == "fashion_mnist" else DIGITS,
        epochs=5,
    )


def _reuters_file(folder: Path, words: int) -> Any:
    """Do what `keras.datasets.reuters.load_data` does, for a file that is already there."""
    _check_folder(folder)
    path = _existing(folder / REUTERS)
    found = hashlib.sha256(path.read_bytes()).hexdigest()
    if found != REUTERS_SHA256:
        _stop(
            f"{path} must be the file that Keras publishes, sha256 {REUTERS_SHA256[:8]}...; this one has "
            f"{found[:8]}..., and opening a stranger's could run code. Fetch it again."
        )
    with np.load(path, allow_pickle=True) as arrays:
        texts, topics = arrays["x"], arrays["y"]
    order = np.arange(len(texts))
    np.random.RandomState(113).shuffle(order)
    numbered = [
        [_START, *(word + _FIRST_WORD if word + _FIRST_WORD < words else _UNKNOWN for word in texts[i])]
        for i in order
    ]
    first = int(len(order) * 0.8)
    return (numbered[:first], topics[order[:first]]), (numbered[first:], topics[order[first:]])


def _split(images: np.ndarray, labels: np.ndarray, share: float) -> Any:
    """Hold out `share` of every class, drawn with a fixed seed."""
    random = np.random.default_rng(_SPLIT_SEED)
    of_class = [random.permutation(np.flatnonzero(labels == label)) for label in np.unique(labels)]
    test = np.concatenate([some[: math.ceil(len(some) * share)] for some in of_class])
    train = random.permutation(np.setdiff1d(np.arange(len(labels)), test))
    return (_as_input(images[train]), labels[train]), (_as_input(images[test]), labels[test])


def _as_input(images: np.ndarray) -> np.ndarray:
    return images.astype("float32")[..., np.newaxis]


def _found_in(folder: Path) -> str:
    if (folder / SPRITE).exists():
        return "fashion_mnist"
    if (folder / MNIST_IMAGES).exists():
        return "mnist"
    return _stop(
        f"--data {folder} must hold {SPRITE}, or {MNIST_IMAGES} and {MNIST_LABELS}; it holds neither. "
        "Leave --data out to train on scikit-learn's digits."
    )


def _check_folder(folder: Path) -> None:
    if not folder.is_dir():
        _stop(f"--data must name a folder; {folder} is not one. Write: --data DIR, with DIR a folder of data files.")


def _existing(path: Path) -> Path:
    if not path.is_file():
        _stop(
            f"--data {path.parent} must hold {path.name}, which is not there. Write: --data DIR, with DIR its folder."
        )
    return path


def _needed(module: str, package: str) -> ModuleType:
    try:
        return importlib.import_module(module)
    except ImportError:
        _stop(f"This data set needs {package}, and this Python has none. Write: pip install {package}")


@contextlib.contextmanager
def _downloading(what: str, where: str) -> Iterator[None]:
    """Turn whatever a download raises into one line, and a server that does not answer into an error."""
    before = socket.getdefaulttimeout()
    socket.setdefaulttimeout(_SECONDS_WITHOUT_ANSWER)
    try:
        yield
    except Exception as error:  # Keras raises a bare Exception when a download fails
        cause = " ".join(str(error).split())[:200]
        _stop(f"{what} could not be downloaded ({cause}). Without a network, write: --data DIR, with DIR {where}.")
    finally:
        socket.setdefaulttimeout(before)


def _stop(text: str) -> NoReturn:
    raise SystemExit(text)
