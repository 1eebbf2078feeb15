"""The time that TensorFlow has spent on tracing."""

from __future__ import annotations

from keras_tpu_ext._runtime.common.compiles import CompileWatch
from keras_tpu_ext._runtime.compat.tensorflow import graph_building_time

_MICROSECONDS = 1e-6


class TracingWatch(CompileWatch):
    """Counts the seconds that the process spends on tracing functions, those of `tf.data` too, when a fit begins."""

    sees_compiler = False

    def __init__(self) -> None:
        super().__init__()
        self._counter = graph_building_time.get_cell()
        self._before = self._counter.value()

    def seconds(self) -> float:
        """Return the seconds since the watch was opened, of all threads; what is traced in a pause counts, too."""
        return float((self._counter.value() - self._before) * _MICROSECONDS)


def watch_compiles() -> CompileWatch:
    """Return a `CompileWatch` that begins now."""
    return TracingWatch()
