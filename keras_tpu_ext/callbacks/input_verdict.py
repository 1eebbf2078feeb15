"""The verdict on the input of a `fit`."""

from __future__ import annotations

import dataclasses
import math

from keras_tpu_ext.output.display import HtmlSentence
from keras_tpu_ext.output.report import Report

# The words and the bands of xprof's input pipeline analyzer.
_MODERATE, _HIGH = 0.05, 0.20


_WORTH_TELLING = 0.05  # of a step


@dataclasses.dataclass(frozen=True)
class InputVerdict(Report, HtmlSentence):
    """What a step of a `fit` takes: waiting for data, computing, callbacks and other Python of the host.

    Attributes:
        wait_fraction: Fraction of the training time in which the devices wait for data, from 0 to 1.
        step_seconds: Seconds for one batch in `fit`, waiting included.
        compute_seconds: Seconds of it in which the devices compute.
        pipeline_seconds: Seconds that the pipeline takes to make one batch on its own; `None` if all that is known is
            that it is faster than the step.
        costliest_stage: Name of the stage of a `tf.data` pipeline that works longest for a batch; empty if unknown.
        costliest_seconds: Seconds it works for a batch, divided by the number of its parallel calls.
        left_out_seconds: Seconds of the epoch that do not count, at its start, in a probe and in the longest pause; 0
            if they are less than a twentieth of it.
        shares_cores: Whether the devices are the CPU cores that also make the batches.
        callbacks_seconds: Seconds for one batch in the hooks of callbacks, while no device computes.
        costliest_callback: Name of the class of the callback that takes most of them; empty if there are none.

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
    callbacks_seconds: float = 0.0
    costliest_callback: str = ""

    _derived = ("verdict", "gain", "shares")

    @property
    def shares(self) -> dict[str, float]:
        """The fractions of a step: `input`, `device`, `callbacks` and `python`, which is the rest."""
        shares = {
            "input": self.wait_fraction,
            "device": self.compute_seconds / self.step_seconds,
            "callbacks": self.callbacks_seconds / self.step_seconds,
        }
        return {**shares, "python": max(1 - sum(shares.values()), 0.0)}

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
        """What better input can gain, in words, and what fewer callbacks and less Python can."""
        if self.wait_fraction < _MODERATE:
            gains = ["Better input would not help"]
        else:
            gains = [f"Better input makes this at most {self.most_speedup:.3g} times as fast"]
        shares = self.shares
        if shares["callbacks"] >= _WORTH_TELLING:
            faster = self.step_seconds / (self.step_seconds - self.callbacks_seconds)
            gains.append(
                f"Let {self.costliest_callback} do its work at the end of an epoch, or every hundredth batch: at "
                f"most {faster:.3g} times as fast"
            )
        if shares["python"] >= _HIGH:
            gains.append('Run more steps in one call: compile(steps_per_execution="auto")')
        return ". ".join(gains)

    @property
    def ok(self) -> bool:
        """Whether the devices hardly wait for data."""
        return self.wait_fraction < _MODERATE

    def __str__(self) -> str:
        lines = [f"{self.verdict}: {self.wait_fraction:.0%} of the time waits for data{self._other_shares()}"]
        without = self.step_seconds * (1 - self.wait_fraction)
        rates = f"It does {1 / self.step_seconds:.4g} batches/s"
        rates += f", and {1 / without:.4g} if it never waited" if without > 0 else ""
        if self.pipeline_seconds:
            rates += f"; the pipeline alone gives {1 / self.pipeline_seconds:.4g}"
        elif self.wait_fraction < _MODERATE:
            rates += "; the pipeline alone gives more"
        lines += [rates, *self.gain.split(". ")]
        if self.costliest_stage and self.wait_fraction >= _MODERATE:
            took = f"{1e3 * self.costliest_seconds:.3g} ms for a batch"
            lines.append(f"Its costliest stage is {self.costliest_stage}, {took}")
        if self.left_out_seconds:
            left_out = f"{self.left_out_seconds:.3g} s"
            lines.append(f"{left_out} at the epoch's start, in a probe and in a pause are left out")
        if self.shares_cores:
            lines.append("Devices and pipeline share this machine's CPU cores, so each slows the other down")
        return "\n  ".join(f"{line}." for line in lines)

    def _other_shares(self) -> str:
        """Return the other shares, if they are not only computing."""
        shares = self.shares
        if max(shares["callbacks"], shares["python"]) < _WORTH_TELLING:
            return ""
        names = {"device": "computes", "callbacks": "is spent in callbacks", "python": "in other Python"}
        told = [f"{shares[name]:.0%} {words}" for name, words in names.items() if shares[name] >= 0.005]
        return f", {', '.join(told)}"
