"""The data sets of the examples: what they hold, and what is said when they cannot be had."""

from __future__ import annotations

import gzip
import struct
import sys
from pathlib import Path

import keras
import numpy as np
import pytest

pytestmark = pytest.mark.gate_on("keras3_jax")

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


@pytest.fixture
def data(monkeypatch):
    """The module as the examples import it, from beside them."""
    monkeypatch.syspath_prepend(EXAMPLES)
    monkeypatch.delitem(sys.modules, "_data", raising=False)
    import _data

    yield _data
    sys.modules.pop("_data")


def test_digits_need_no_file(data):
    digits = data.load_images("auto", None)

    assert digits.train[0].shape[1:] == (8, 8, 1)
    assert len(digits.train[1]) + len(digits.test[1]) == 1797
    assert digits.train[0].dtype == np.float32
    assert (digits.train[0].min(), digits.train[0].max()) == (0, 1)
    assert set(np.unique(digits.test[1])) == set(range(10))


def test_tiles_are_cut_in_label_order_and_split_evenly(data, shared_data):
    tiles = data.load_images("auto", shared_data)

    assert tiles.train[0].shape == (720, 28, 28, 1)
    assert np.bincount(tiles.train[1]).tolist() == [72] * 10
    assert np.bincount(tiles.test[1]).tolist() == [18] * 10
    # Trousers are a narrow shape in the middle; bags fill the picture. Mixed-up rows would not tell them apart.
    ink = {label: tiles.train[0][tiles.train[1] == label].mean() for label in (1, 8)}
    assert ink[1] < 0.8 * ink[8]


def test_no_test_tile_is_trained_on(data, shared_data):
    tiles = data.load_images("fashion_mnist", shared_data)

    trained_on = {image.tobytes() for image in tiles.train[0]}

    assert not any(image.tobytes() in trained_on for image in tiles.test[0])


def test_mnist_files_are_split_as_they_come(data, shared_data):
    mnist = data.load_images("mnist", shared_data)

    assert mnist.train[0].shape == (8000, 28, 28, 1)
    assert mnist.test[0].shape == (2000, 28, 28, 1)
    assert mnist.train[1][:10].tolist() == [7, 2, 1, 0, 4, 1, 4, 9, 5, 9]  # how the t10k file is known to begin


@pytest.mark.runtimes("keras3_tf", "keras3_jax", reason="it reads what Keras 3 reads")
def test_reuters_file_gives_what_keras_gives(data, shared_data, monkeypatch):
    ours = data.load_reuters(shared_data, words=10_000, length=300)
    # The file that Keras would download, in the place it would come from.
    monkeypatch.setattr("keras.src.datasets.reuters.get_file", lambda **_: str(shared_data / "reuters.npz"))

    keras_own = data.load_reuters(None, words=10_000, length=300)

    for ours_part, keras_part in zip(ours.train + ours.test, keras_own.train + keras_own.test, strict=True):
        np.testing.assert_array_equal(ours_part, keras_part)


def test_copies_keep_the_originals_and_their_labels(data):
    images = np.zeros((3, 8, 8, 1), "float32")
    images[:, 3:5, 3:5] = np.arange(1, 4).reshape(3, 1, 1, 1)

    more, labels = data.with_shifted_copies(images, np.array([5, 6, 7]), copies=4, seed=0)

    np.testing.assert_array_equal(more[:3], images)
    assert labels.tolist() == [5, 6, 7] * 5
    np.testing.assert_array_equal(more.max(axis=(1, 2, 3)), np.tile([1, 2, 3], 5))
    np.testing.assert_array_equal(more.sum(axis=(1, 2, 3)), np.tile([4, 8, 12], 5))  # nothing left the picture


@pytest.mark.parametrize(
    ("files", "text"),
    [
        ({}, r"must hold mnist-t10k-images-idx3-ubyte.gz, which is not there. Write: --data DIR"),
        ({"images": b"no gzip"}, r"images-idx3-ubyte.gz is no MNIST file that can be read \(Not a gzipped file"),
        ({"images": gzip.compress(b"\0\0\x0d\x03")}, r"its first bytes are not those of an IDX file of bytes"),
        ({"images": gzip.compress(b"\0\0\x08\x03\0\0")}, r"images-idx3-ubyte.gz is no MNIST file"),
        (
            {
                "images": gzip.compress(b"\0\0\x08\x03" + struct.pack(">3I", 2, 1, 1) + b"ab"),
                "labels": gzip.compress(b"\0\0\x08\x01" + struct.pack(">I", 3) + b"abc"),
            },
            r"must hold as many MNIST images as labels; it has \(2, 1, 1\) and \(3,\)",
        ),
    ],
)
def test_bad_mnist_files_are_told(data, tmp_path, files, text):
    for kind, content in files.items():
        name = {"images": data.MNIST_IMAGES, "labels": data.MNIST_LABELS}[kind]
        (tmp_path / name).write_bytes(content)

    with pytest.raises(SystemExit, match=text):
        data.load_images("mnist", tmp_path)


def test_a_bad_sheet_of_tiles_is_told(data, tmp_path):
    image = pytest.importorskip("PIL.Image")
    (tmp_path / data.SPRITE).write_bytes(b"no picture")
    with pytest.raises(SystemExit, match="is no picture that can be read"):
        data.load_images("auto", tmp_path)

    image.new("L", (28, 56)).save(tmp_path / data.SPRITE)
    with pytest.raises(SystemExit, match=r"must be 840 by 840 pixels .* it is 28 by 56"):
        data.load_images("auto", tmp_path)


def test_a_strange_reuters_file_is_never_unpickled(data, tmp_path):
    (tmp_path / "reuters.npz").write_bytes(b"not what Keras publishes")

    with pytest.raises(SystemExit, match=r"must be the file that Keras publishes, sha256 d6586e69\.\.\."):
        data.load_reuters(tmp_path, words=100, length=10)


def test_data_that_is_no_folder_is_told(data, tmp_path):
    with pytest.raises(SystemExit, match=r"--data must name a folder; .*nowhere is not one. Write: --data DIR"):
        data.load_images("auto", tmp_path / "nowhere")
    with pytest.raises(SystemExit, match=r"must hold reuters.npz, which is not there"):
        data.load_reuters(tmp_path, words=100, length=10)


def test_a_failed_download_is_told_with_its_cause(data, monkeypatch):
    def fail() -> None:
        raise Exception("URL fetch failure on https://example.org: None -- no route\nto host")

    monkeypatch.setattr(keras.datasets.mnist, "load_data", fail)

    with pytest.raises(
        SystemExit, match=r"mnist could not be downloaded \(URL fetch .* no route to host\)\. Without"
    ):
        data.load_images("mnist", None)
