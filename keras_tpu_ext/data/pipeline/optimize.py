"""`optimize`: the same elements in the same order, sooner."""

from __future__ import annotations

import dataclasses
import logging
import weakref
from typing import Any

from keras_tpu_ext.data._tensorflow import check_dataset
from keras_tpu_ext.errors import ArgumentError
from keras_tpu_ext.output.report import Report

_LOG = logging.getLogger("keras_tpu_ext")
_REPORTS: weakref.WeakKeyDictionary[Any, OptimizationReport] = weakref.WeakKeyDictionary()


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


def optimize(dataset: Any, *, allow_reorder: bool = False, allow_stateful: bool = False, cache_bytes: int = 0) -> Any:
    """Return a dataset that gives the elements of `dataset` in the same order, faster.

    Functions of `map` run in parallel, on 64 threads if they open files; `interleave` opens files ahead; batches are
    copied in parallel; the end is prefetched. Anything that could change an element or the order is left as it is,
    and the report says why, and what to write: functions that draw random numbers, read variables or run Python, a
    `flat_map` that opens files, a cache after a shuffle, and datasets before a `zip`. One line is logged.

    No function is traced again, and seeds are kept. A shuffle or cache after a change starts anew. A shuffle without
    a seed that keeps its order, and a cache of random elements, are left as they are, with everything before them,
    because another dataset may rely on them, such as the other part of a split.

    Call it last, on the dataset that goes to `fit`.

    Args:
        dataset: A `tf.data.Dataset`, of batches or not.
        allow_reorder: Whether elements may come in another order; `False` by default.
        allow_stateful: Whether functions that draw random numbers, read variables or run Python may run in parallel,
            which draws the numbers in another order; `False` by default.
        cache_bytes: Maximum memory of a new cache, in bytes; 0 (default) adds none. It goes where the elements are
            the same in every epoch, and only if their size is known beforehand.

    Returns:
        A `tf.data.Dataset` with the same `element_spec` and cardinality; `optimization_report` says what was done.

    Raises:
        ArgumentError: If `dataset` is not a `tf.data.Dataset`, or `cache_bytes` is not a number of at least 0.
        MissingExtraError: If TensorFlow is not installed.

    Example:
        ```python
        import tensorflow as tf
        import keras_tpu_ext as kte

        dataset = tf.data.Dataset.range(10_000).map(lambda x: x * x).batch(128)
        faster = kte.data.optimize(dataset)
        print(kte.data.optimization_report(faster))
        for before, after in zip(dataset, faster):  # the same elements in the same order
            tf.debugging.assert_equal(before, after)
        ```
    """
    check_dataset(dataset, "kte.data.optimize")
    if isinstance(cache_bytes, bool) or not isinstance(cache_bytes, int | float) or not cache_bytes >= 0:
        raise ArgumentError(
            f"cache_bytes must be a number of bytes of at least 0; got {cache_bytes!r}. Write cache_bytes=4 * 2**30 "
            "for 4 GiB."
        )
    from keras_tpu_ext.data.pipeline.rewriting import Rewriting  # it imports TensorFlow

    rewriting = Rewriting(
        dataset, allow_reorder=allow_reorder, allow_stateful=allow_stateful, cache_bytes=cache_bytes
    )
    made = rewriting.apply()
    report = OptimizationReport(tuple(rewriting.done), tuple(dict.fromkeys(rewriting.left)))
    _REPORTS[made] = report
    _LOG.info("optimize: %s (left: %d)", "; ".join(report.done) or "nothing to change", len(report.left))
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
        faster = kte.data.optimize(dataset.map(lambda x: x * x).batch(128))
        report = kte.data.optimization_report(faster)
        print(report.done)  # what was changed
        print(report.left)  # what was not, and why
        ```
    """
    try:
        return _REPORTS[dataset]
    except (KeyError, TypeError):
        raise ArgumentError(
            "optimization_report needs the very dataset that kte.data.optimize returned. Write dataset = "
            "kte.data.optimize(dataset), then kte.data.optimization_report(dataset)."
        ) from None
