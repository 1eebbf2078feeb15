"""The verdict on the input of a `fit`."""

from __future__ import annotations

import dataclasses
import math

from keras_tpu_ext.output.display import HtmlSentence

# The words and the bands of xprof's input pipeline analyzer.
_MODERATE, _HIGH = 0.05, 0.20


@dataclasses.dataclass(frozen=True)
class InputVerdict(HtmlSentence):
    """The part of a `fit` that waits for data, and the times from which it is computed.

    Attributes:
        wait_fraction: Fraction of the training time in which the devices wait for data, from 0 to 1.
        step_seconds: Seconds for one batch in `fit`, waiting included.
        compute_seconds: Seconds for one batch that is ready.
        pipeline_seconds: Seconds that the pipeline takes to make one batch on its own; `None` if all that is known is
            that it is faster than the step.
        costliest_stage: Name of the stage of a `tf.data` pipeline that works longest for a batch; empty if unknown.
        costliest_seconds: Seconds it works for a batch, divided by the number of its parallel calls.
        left_out_seconds: Seconds of the epoch that do not count, at its start, in a probe and in the longest pause; 0
            if they are less than a twentieth of it.
        shares_cores: Whether the devices are the CPU cores that also make the batches.

    Example:
        ```python
        import keras_tpu_ext as kte

        # As HostBottleneck().verdict may be after a training: steps of 10 ms that could take 4 ms.
        verdict = kte.callbacks.InputVerdict(
            wait_fraction=0.6, step_seconds=0.010, compute_seconds=0.004, pipeline_seconds=0.0096
        )
        print(verdict.verdict)  # highly input-bound
        print(verdict.most_speedup)  # 2.5
        print(verdict)
        ```
    """

    wait_fraction: float
    step_seconds: float
    compute_seconds: float
    pipeline_seconds: float | None
    costliest_stage: str = ""
    costliest_seconds: float = 0.0
    left_out_seconds: float = 0.0
    shares_cores: bool = False

    @property
    def verdict(self) -> str:
        """The verdict in xprof's words: below 5 % not, below 20 % moderately, otherwise highly input-bound."""
        if self.wait_fraction < _MODERATE:
            return "not input-bound"
        return "moderately input-bound" if self.wait_fraction < _HIGH else "highly input-bound"

    @property
    def most_speedup(self) -> float:
        """The largest factor by which better input alone can speed up `fit`."""
        return 1 / (1 - self.wait_fraction) if self.wait_fraction < 1 else math.inf

    @property
    def gain(self) -> str:
        """What better input can gain, in words."""
        if self.wait_fraction < _MODERATE:
            return "Better input would not help"
        return f"Better input makes this at most {self.most_speedup:.3g} times as fast"

    def __str__(self) -> str:
        own = f"{1 / self.pipeline_seconds:.4g} batches/s" if self.pipeline_seconds else "more than the step takes"
        text = (
            f"{self.verdict}: {self.wait_fraction:.0%} of the time waits for data. On its own the pipeline gives "
            f"{own}; the step could do {1 / self.compute_seconds:.4g} batches/s, and does "
            f"{1 / self.step_seconds:.4g}. {self.gain}."
        )
        if self.costliest_stage and self.wait_fraction >= _MODERATE:
            took = f"{1e3 * self.costliest_seconds:.3g} ms for a batch"
            text += f" Its costliest stage is {self.costliest_stage}, {took}."
        if self.left_out_seconds:
            text += f" {self.left_out_seconds:.3g} s at the epoch's start, in a probe and in a pause are left out."
        if self.shares_cores:
            text += " Devices and pipeline share this machine's CPU cores, so each slows the other down."
        return text
