"""`skipped`: the records that a dataset left out because they could not be read."""

from __future__ import annotations

import dataclasses
import sys

from keras_tpu_ext.data._tensorflow import tf
from keras_tpu_ext.errors import ArgumentError
from keras_tpu_ext.output.display import counted
from keras_tpu_ext.output.report import Report

_SHOWN = 5  # names in a line
_CAME, _FAILED = "came", "failed"
_LOG = "_kte_skip_log"


@dataclasses.dataclass(frozen=True)
class SkippedRecords(Report):
    """The records that a dataset of `images` or `tfrecords` has left out.

    Attributes:
        places: File, and number of the record in it, of each record that was ever left out, sorted.
        failed: Number of records that the last complete pass left out; `None` before the first one. More may be lost
            if the end of a file without a manifest is lost.
        came: Number of records that it gave; `None` before the first one.
        at_least: Whether more records may be lost than `failed`.
    """

    places: tuple[str, ...]
    failed: int | None
    came: int | None
    at_least: bool = False

    @property
    def ok(self) -> bool:
        """Whether nothing was left out so far."""
        return not self.places and not self.failed

    def __str__(self) -> str:
        if self.failed is None and not self.places:
            return "No pass over the data has ended, and nothing was left out so far."
        if self.ok:
            return f"Nothing was left out of {self.came} records."
        if self.failed is None:
            verb = "was" if len(self.places) == 1 else "were"
            head = f"{counted(len(self.places), 'record')} {verb} left out so far; no pass has ended"
        else:
            least = "at least " if self.at_least else ""
            head = f"The last pass left out {least}{counted(self.failed, 'record')} and gave {self.came}"
        more = f" and {len(self.places) - _SHOWN} more" if len(self.places) > _SHOWN else ""
        return f"{head}: {', '.join(self.places[:_SHOWN])}{more}."


class SkipLog:
    """The names and numbers of skipped records: a running dataset writes them, Python reads them at any time."""

    def __init__(self) -> None:
        # Tables, because `tf.distribute` mirrors variables.
        with tf.init_scope(), tf.device("CPU:0"):
            # The number of records lost at each place, -1 if it is unknown; and the totals of the last pass.
            self._places = tf.lookup.experimental.MutableHashTable(tf.string, tf.int64, -1)
            self._totals = tf.lookup.experimental.MutableHashTable(tf.string, tf.int64, -1)

    def add(self, places: tf.Tensor, lost: tf.Tensor) -> tf.Operation:
        """Add places, and the number of records lost at each; in a graph."""
        return self._places.insert(places, lost)

    def first_positions(self) -> tf.Tensor:
        """Return the first places as one text; in a graph."""
        return tf.strings.reduce_join(self._places.export()[0][:_SHOWN], separator=", ")

    def end_pass(self, function: str, came: tf.Tensor, failed: tf.Tensor) -> tf.Tensor:
        """Write the totals of a pass, and print them on the standard error if records were lost; in a graph."""

        def print_totals() -> tf.Tensor:
            head = f"keras_tpu_ext.data.{function}: this pass gave"
            line = (
                head,
                came,
                "records and left out",
                failed,
                "that cannot be read, such as",
                self.first_positions(),
            )
            with tf.control_dependencies([tf.print(*line, output_stream=sys.stderr)]):
                return tf.constant(True)

        with tf.control_dependencies([self._totals.insert([_CAME, _FAILED], tf.stack([came, failed]))]):
            return tf.cond(failed > 0, print_totals, lambda: tf.constant(True))

    def read(self) -> SkippedRecords:
        """Return the report so far."""
        places, lost = (table.numpy() for table in self._places.export())
        names, values = (table.numpy() for table in self._totals.export())
        totals = {name.decode(): int(value) for name, value in zip(names, values, strict=True)}
        return SkippedRecords(
            tuple(sorted(place.decode(errors="replace") for place in places)),
            totals.get(_FAILED),
            totals.get(_CAME),
            bool((lost < 0).any()),
        )


def with_log(dataset: tf.data.Dataset, log: SkipLog | None) -> tf.data.Dataset:
    """Attach the log that `skipped` reads, or `None` if the dataset raises, and return `dataset`."""
    setattr(dataset, _LOG, log)
    return dataset


def is_reader(dataset: object) -> bool:
    """Return whether `images` or `tfrecords` returned `dataset`."""
    return hasattr(dataset, _LOG)


def skipped(dataset: object) -> SkippedRecords:
    """Report the records that a dataset has left out because they could not be read.

    Call it at any time, in a callback or after `fit`: it counts wherever the dataset was iterated over.

    Args:
        dataset: The dataset that `images` or `tfrecords` returned, with `on_error="skip"`.

    Returns:
        A `SkippedRecords`: print it, or look at `.failed` and `.places`.

    Raises:
        ArgumentError: If it is another dataset, including one derived from it, such as by `map`.

    Example:
        ```python
        import numpy as np
        import tensorflow as tf
        import keras_tpu_ext as kte

        for number in range(8):
            pixels = np.full((64, 64, 3), 20 * number, "uint8")
            tf.io.write_file(f"photos/cat/{number}.jpg", tf.io.encode_jpeg(pixels))
        tf.io.write_file("photos/cat/8.jpg", "no JPEG at all")
        train = kte.data.images("photos", batch_size=4, size=64, on_error="skip")
        for images, labels in train:  # or model.fit(train)
            pass
        report = kte.data.skipped(train)
        print(report.failed, report.came)  # 1 8
        print(report)
        ```
    """
    if not is_reader(dataset):
        raise ArgumentError(
            f"skipped needs the dataset that images or tfrecords returned; got {type(dataset).__name__} without a "
            'record of what it left out. Write train = kte.data.images(..., on_error="skip"), give fit '
            "train.map(...), and ask skipped(train)."
        )
    log: SkipLog | None = getattr(dataset, _LOG)
    return SkippedRecords((), None, None) if log is None else log.read()
