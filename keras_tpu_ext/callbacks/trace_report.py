"""What a trace of training steps shows."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from keras_tpu_ext.output.display import counted, three_digits
from keras_tpu_ext.output.report import Report

CATEGORIES = ("compute", "collectives", "host", "idle")
_ROWS = 10
_NAME, _LAYER = 30, 24  # columns


@dataclasses.dataclass(frozen=True)
class TraceOperation:
    """One operation of the compiled step, or of TensorFlow's graph."""

    name: str  # as xprof shows it, such as `"fusion.3"` or `"MatMul"`
    layer: str  # path of the layer, such as `"block/conv1"`; or `"(loss)"`, `"(optimizer)"`, `"(other)"`
    backward: bool  # whether it is in the backward pass
    count: int  # how often it ran on a device
    seconds: float  # its part of the traced time; where several run at once, each has an equal part of that time
    fraction: float  # the same as a fraction of the traced time


@dataclasses.dataclass(frozen=True, repr=False)
class TraceReport(Report):
    """What a trace of training steps shows.

    Attributes:
        steps: The first traced step and the one after the last, counted from 0 at the start of `fit`.
        step_seconds: Seconds of a traced step, from the start of the first to the end of the last.
        seconds: The traced time by category, as a mean over the devices. `compute`: operations run. `collectives`:
            only operations between devices run. `idle`: a program runs, and none of its operations, as where it waits
            for another device or for a thread. `host`: no program runs, so the device waits for the host: for data,
            for callbacks, or for the next step to be dispatched.
        operations: The operations, the costliest first.
        directory: The folder of the trace, for xprof, TensorBoard or Perfetto.

    Example:
        ```python
        import keras_tpu_ext as kte

        # As Trace().report() may be after a training, but for its operations.
        report = kte.callbacks.TraceReport(
            steps=(10, 20),
            step_seconds=0.01,
            seconds={"compute": 0.06, "collectives": 0.0, "host": 0.03, "idle": 0.01},
            operations=(),
            directory="logs",
        )
        print(report)
        ```
    """

    steps: tuple[int, int]
    step_seconds: float
    seconds: dict[str, float]
    operations: tuple[TraceOperation, ...]
    directory: str

    @property
    def ok(self) -> bool:
        """Whether the profiler recorded any operation."""
        return bool(self.operations)

    def __str__(self) -> str:
        return "\n".join(self._lines())

    __repr__ = __str__

    def _lines(self) -> Iterator[str]:
        first, after = self.steps
        total = sum(self.seconds.values()) or 1.0
        yield f"{counted(after - first, 'step')} from step {first}, {_milliseconds(self.step_seconds)} each"
        yield "  " + ", ".join(f"{name} {100 * part / total:.1f} %" for name, part in self.seconds.items())
        if not self.ok:
            yield "  the profiler recorded no operation"
        else:
            yield f"  {'costliest operations':<{_NAME}}{'layer':<{_LAYER}}{'count':>6}{'per step':>10}{'part':>7}"
        for row in self.operations[:_ROWS]:
            layer = f"{row.layer}, backward" if row.backward else row.layer
            took, part = _milliseconds(row.seconds / (after - first)), 100 * row.fraction
            yield f"  {_fit(row.name, _NAME)}{_fit(layer, _LAYER)}{row.count:>6}{took:>10}{part:>5.1f} %"
        rest = self.operations[_ROWS:]
        if rest:
            took = _milliseconds(sum(row.seconds for row in rest) / (after - first))
            part = 100 * sum(row.fraction for row in rest)
            yield f"  {f'({len(rest)} more)':<{_NAME + _LAYER + 6}}{took:>10}{part:>5.1f} %"
        yield f"  for xprof or TensorBoard: --logdir {self.directory}"


def _milliseconds(seconds: float) -> str:
    return f"{three_digits(1e3 * seconds) if seconds >= 1e-3 else format(1e3 * seconds, '.3f')} ms"


def _fit(text: str, columns: int) -> str:
    """Return text in a column, cut at its start where it is too long."""
    return f"{text if len(text) < columns else '…' + text[2 - columns :]:<{columns}}"
