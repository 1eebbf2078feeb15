"""Lists files and their classes, on a disk or on `gs://`."""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from keras_tpu_ext.checks import arguments as check
from keras_tpu_ext.data._tensorflow import tf
from keras_tpu_ext.errors import ArgumentError

_T = TypeVar("_T")
_R = TypeVar("_R")

IMAGES = (".jpg", ".jpeg", ".png", ".bmp", ".gif")
_SHARD = re.compile(r"\.(tfrecords?|tfrec)(-\d+-of-\d+)?(\.gz)?$", re.IGNORECASE)
_MAX_WORKERS = 32  # threads, which wait for storage most of the time


@dataclasses.dataclass(frozen=True)
class Files:
    """Files and their labels, in the order of their paths."""

    paths: tuple[str, ...]  # paths
    labels: tuple[int, ...] | None  # a label for each, or `None`
    class_names: tuple[str, ...] = ()  # the names of the labels, if known
    root: str = ""  # the folder that was listed; empty if none was

    def shard(self, index: int, count: int) -> Files:
        """Return every `count`-th file, starting at number `index`."""
        labels = None if self.labels is None else self.labels[index::count]
        return dataclasses.replace(self, paths=self.paths[index::count], labels=labels)


def parallel_map(function: Callable[[_T], _R], values: Iterable[_T]) -> list[_R]:
    """Return `function` of each of `values`, computed in 32 threads."""
    with ThreadPoolExecutor(_MAX_WORKERS) as pool:
        return list(pool.map(function, values))


def list_images(function: str, source: Any, labels: Any) -> Files:
    """Return the images of a folder of class folders, of a glob or of a list of paths."""
    paths, root = _image_paths(function, source, flat=labels is None)
    if labels is None:
        return Files(paths, None, (), root)
    if isinstance(labels, str):
        return _labelled_by_folder(function, paths, labels, root)
    return Files(paths, _given_labels(function, labels, paths), (), root)


def list_shards(function: str, source: object) -> tuple[str, ...]:
    """Return the TFRecord files of a folder, of a glob or of a list of paths."""
    if not isinstance(source, (str, os.PathLike)):
        return _given_paths(function, source)
    path = check.path(source)
    if not tf.io.gfile.isdir(path):
        return _matching(function, path)
    found = sorted(name for name in tf.io.gfile.listdir(path) if is_shard(name))
    if not found:
        raise ArgumentError(
            f"{function} looked in the folder {path!r} for files named *.tfrecord, *.tfrecords or *.tfrec, and it "
            f'has none. Write {function}("{path}/*", ...) where they have other names.'
        )
    return tuple(os.path.join(path, name) for name in found)


def is_shard(name: str) -> bool:
    """Return whether a file has the name of a TFRecord file."""
    return _SHARD.search(name) is not None


def _image_paths(function: str, source: object, *, flat: bool) -> tuple[tuple[str, ...], str]:
    if not isinstance(source, (str, os.PathLike)):
        return _given_paths(function, source), ""
    path = check.path(source)
    if not tf.io.gfile.isdir(path):
        return _matching(function, path), ""
    names = [name.rstrip("/") for name in tf.io.gfile.listdir(path) if not name.startswith(".")]
    images_here = [os.path.join(path, name) for name in names if _is_image(name)]
    folders = [os.path.join(path, name) for name in names if not _is_image(name)]
    in_folders = [found for group in parallel_map(lambda folder: _images_in(folder), folders) for found in group]
    paths = tuple(sorted([*in_folders, *images_here] if flat else in_folders))
    if paths:
        return paths, path
    cure = (
        f"There are {len(images_here)} in the folder itself: write labels=None for images without labels"
        if images_here
        else ""
    )
    raise ArgumentError(
        f"{function} looked in the folder {path!r} for images ({', '.join(IMAGES)}) in class folders, such as "
        f"{os.path.join(path, 'cat', '1.jpg')!r}, and found none. "
        f"{cure or f'Write the folder that holds one folder for each class, or a pattern such as {path}/**.jpg'}."
    )


def _images_in(folder: str) -> list[str]:
    if not tf.io.gfile.isdir(folder):
        return []
    return [os.path.join(folder, name.rstrip("/")) for name in tf.io.gfile.listdir(folder) if _is_image(name)]


def _is_image(name: str) -> bool:
    return name.rstrip("/").lower().endswith(IMAGES) and not name.startswith(".")


def _given_paths(function: str, source: object) -> tuple[str, ...]:
    paths = tuple(map(check.path, source)) if isinstance(source, Iterable) else ()
    if not paths:
        raise ArgumentError(
            f"{function} needs a folder, a pattern or a list of paths; got {source!r}. "
            f'Write {function}("folder", batch_size=128).'
        )
    return paths


def _matching(function: str, pattern: str) -> tuple[str, ...]:
    paths = tuple(sorted(tf.io.gfile.glob(pattern)))
    if not paths:
        what = "pattern" if set("*?[") & set(pattern) else "folder or file"
        raise ArgumentError(
            f"{function} found nothing that matches the {what} {pattern!r}, seen from {os.getcwd()}. "
            "Write a folder that is there, or a pattern that matches its files."
        )
    return paths


def _labelled_by_folder(function: str, paths: tuple[str, ...], labels: str, root: str) -> Files:
    if labels != "folder":
        raise ArgumentError(
            f"{function} needs labels to be 'folder', None or one whole number for each file; got {labels!r}. "
            'Write labels="folder".'
        )
    classes = [os.path.basename(os.path.dirname(path)) for path in paths]
    names = tuple(sorted(set(classes)))
    numbers = {name: number for number, name in enumerate(names)}
    return Files(paths, tuple(numbers[name] for name in classes), names, root)


def _given_labels(function: str, labels: Sequence[Any], paths: tuple[str, ...]) -> tuple[int, ...]:
    given = tuple(int(label) for label in labels)
    if len(given) != len(paths):
        raise ArgumentError(
            f"{function} needs one label for each file; there are {len(paths)} files, from {paths[0]!r} to "
            f"{paths[-1]!r} in the order of their names, and {len(given)} labels. Write labels=[...] with "
            f"{len(paths)} numbers, or give the paths as a list in the order of the labels."
        )
    return given
