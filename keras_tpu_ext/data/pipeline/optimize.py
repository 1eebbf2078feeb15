"""`optimize`: the same elements in the same order, sooner."""

from __future__ import annotations

import dataclasses
import logging
from typing import Any

from keras_tpu_ext.data._tensorflow import FILE_THREADS, check_dataset, tf
from keras_tpu_ext.data.pipeline.findings import SLOW, find, has_too_few_threads
from keras_tpu_ext.errors import ArgumentError
from keras_tpu_ext.output.report import Report

_LOG = logging.getLogger("keras_tpu_ext")
_REPORT = "_kte_optimization_report"  # the attribute of a dataset


@dataclasses.dataclass(frozen=True)
class OptimizationReport(Report):
    """The changes that `optimize` made to a dataset, and those it did not make; print it, or show it in a notebook.

    Attributes:
        done: A sentence for each change.
        left: A sentence for each change that was not made, with the reason.
    """

    done: tuple[str, ...]
    left: tuple[str, ...]

    @property
    def ok(self) -> bool:
        """Whether every change was made."""
        return not self.left

    def __str__(self) -> str:
        lines = ["Changed:" if self.done else "Nothing was changed.", *(f"- {one}" for one in self.done)]
        return "\n".join(lines + (["Left as it was:", *(f"- {one}" for one in self.left)] if self.left else []))


def optimize(dataset: Any, *, allow_reorder: bool = False) -> Any:
    """Return a dataset that gives the elements of `dataset` in the same order, faster.

    If a `map` opens files, it gets 64 threads: most of them wait for storage. TensorFlow itself makes maps without
    state, and batches, parallel, and prefetches the end. What else makes it slow cannot be changed without another
    order or other elements: the report says what, and what to write. One line is logged.

    Call it last, on the dataset that goes to `fit`.

    Args:
        dataset: A `tf.data.Dataset`, of batches or not.
        allow_reorder: Whether elements may come in another order; `False` by default.

    Returns:
        A `tf.data.Dataset` with the same `element_spec` and cardinality; `optimization_report` says what was done.

    Raises:
        ArgumentError: If `dataset` is not a `tf.data.Dataset`.
        MissingExtraError: If TensorFlow is not installed.

    Example:
        ```python
        import tensorflow as tf
        import keras_tpu_ext as kte

        for number in range(8):
            tf.io.write_file(f"texts/{number}.txt", f"text {number}")
        dataset = tf.data.Dataset.list_files("texts/*.txt", shuffle=False).map(tf.io.read_file).batch(4)
        faster = kte.data.optimize(dataset)
        print(kte.data.optimization_report(faster))
        for before, after in zip(dataset, faster):  # the same elements in the same order
            tf.debugging.assert_equal(before, after)
        ```
    """
    check_dataset(dataset, "kte.data.optimize")
    options, done = tf.data.Options(), []
    if has_too_few_threads(dataset):
        options.threading.private_threadpool_size = FILE_THREADS
        done.append(f"{FILE_THREADS} threads open files, since most of them wait for storage")
    if allow_reorder:
        options.deterministic = False
        done.append("elements come in the order in which they are ready")
    made = dataset.with_options(options)
    vars(made).update({name: value for name, value in vars(dataset).items() if not name.startswith("_")})
    left = [f"{one.what} Write {one.write}" for one in find(made, 1, "") if one.kind in SLOW]
    setattr(made, _REPORT, OptimizationReport(tuple(done), tuple(left)))
    _LOG.info("optimize: %s (left: %d)", "; ".join(done) or "nothing to change", len(left))
    return made


def optimization_report(dataset: Any) -> OptimizationReport:
    """Return the report on a dataset that `optimize` returned.

    Raises:
        ArgumentError: If `dataset` is not what `optimize` returned.

    Example:
        ```python
        import tensorflow as tf
        import keras_tpu_ext as kte

        dataset = tf.data.Dataset.range(1000).map(lambda x: x + tf.random.uniform([], maxval=9, dtype=tf.int64))
        faster = kte.data.optimize(dataset.batch(128))
        report = kte.data.optimization_report(faster)
        print(report.done)  # what was changed
        print(report.left)  # what was not, and why
        ```
    """
    report: OptimizationReport | None = getattr(dataset, _REPORT, None)
    if report is None:
        raise ArgumentError(
            "optimization_report needs the very dataset that kte.data.optimize returned. Write dataset = "
            "kte.data.optimize(dataset), then kte.data.optimization_report(dataset)."
        )
    return report
