"""The time that TensorFlow has spent on tracing."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from keras_tpu_ext._runtime.common.compiles import CompileWatch
from keras_tpu_ext._runtime.compat.tensorflow import graph_building_time

_MICROSECONDS = 1e-6
_of_data = [0.0]  # microseconds in `tracing_data`


class TracingWatch(CompileWatch):
    """Counts the seconds that the process spends on tracing functions, those of `tf.data` too, when a fit begins."""

    sees_compiler = False

    def __init__(self) -> None:
        super().__init__()
        self._before = _counter.value() - _of_data[0]

    def seconds(self) -> float:
        """Return the seconds since the watch was opened, of all threads."""
        return (_counter.value() - _of_data[0] - self._before) * _MICROSECONDS


_counter = graph_building_time.get_cell()


@contextlib.contextmanager
def tracing_data() -> Iterator[None]:
    """Within the block tracing is not counted: this package makes a pipeline of its own."""
    before = _counter.value()
    try:
        yield
    finally:
        _of_data[0] += _counter.value() - before
