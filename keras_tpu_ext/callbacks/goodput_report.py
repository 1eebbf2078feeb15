"""Where the time of a `fit` went."""

from __future__ import annotations

import dataclasses

from keras_tpu_ext.callbacks._buckets import CHECKPOINT, COMPILE, IDLE, INPUT, LOST, OF_CALLBACKS, STARTUP, TRAINING
from keras_tpu_ext.callbacks._buckets import VALIDATION as VALIDATION
from keras_tpu_ext.output.display import duration
from keras_tpu_ext.output.report import Report

_MEANINGS = {
    TRAINING: "steps",
    COMPILE: "tracing and compiling",
    INPUT: "waiting for data",
    VALIDATION: "validation",
    CHECKPOINT: "saving and restoring",
    STARTUP: "before the first epoch",
    IDLE: "Keras's own Python, and what has no other name",
    LOST: "training that was done again after an interruption",
}
_CURES = {
    COMPILE: "Keep programs (JAX): strategy_scope(compile_cache=...). Keep shapes equal: kte.data.pad_batches.",
    INPUT: "Make batches faster: keras-tpu-ext advise says how, and HostBottleneck for what part it counts.",
    VALIDATION: "Validate less often, fit(validation_freq=5), or on less data, fit(validation_steps=50).",
    CHECKPOINT: "Save less often: AutoResume(every_s=1800), or ModelCheckpoint(save_best_only=True).",
    IDLE: 'Run more steps in one call: compile(steps_per_execution="auto").',
    LOST: "Save more often: AutoResume(every_s=300).",
}
_OF_CALLBACK = "Let {name} do its work at the end of an epoch, or every hundredth batch."
_WORTH_TELLING = 0.1


@dataclasses.dataclass(frozen=True)
class GoodputReport(Report):
    """Where the time of a `fit` went: every second of it in one bucket.

    Attributes:
        seconds: Seconds by bucket, as `Goodput` names them, and after an interruption `lost`.
        wall_seconds: Seconds of the whole `fit`, and of earlier ones that were interrupted.
        starts: Number of starts: 1, or more if it was resumed.
        input_is_known: Whether waiting for data could be told from training; if not, it counts as `training`.
    """

    seconds: dict[str, float]
    wall_seconds: float
    starts: int = 1
    input_is_known: bool = True

    _derived = ("fraction", "advice")

    @property
    def fraction(self) -> float:
        """The goodput: `training` as a fraction of all seconds."""
        return self.seconds.get(TRAINING, 0.0) / self.wall_seconds if self.wall_seconds else 0.0

    @property
    def ok(self) -> bool:
        """Whether every second is accounted for, to 1 %."""
        return abs(sum(self.seconds.values()) - self.wall_seconds) <= 0.01 * self.wall_seconds

    @property
    def advice(self) -> str:
        """What to write about the largest bucket that is not training; empty if all are below a tenth."""
        others = {bucket: seconds for bucket, seconds in self.seconds.items() if bucket not in (TRAINING, STARTUP)}
        bucket = max(others, key=lambda bucket: others[bucket], default="")
        if not bucket or others[bucket] < _WORTH_TELLING * self.wall_seconds:
            return ""
        return _CURES.get(bucket) or _OF_CALLBACK.format(name=bucket.removeprefix(OF_CALLBACKS))

    def __str__(self) -> str:
        of = f", of {self.starts} starts" if self.starts > 1 else ""
        lines = [f"Goodput {self.fraction:.0%}: {duration(self.wall_seconds)} of fit{of}"]
        width = max(map(len, self.seconds), default=0)
        for bucket, seconds in sorted(self.seconds.items(), key=lambda item: -item[1]):
            part = seconds / self.wall_seconds if self.wall_seconds else 0.0
            meaning = _MEANINGS.get(bucket, "hooks of the callback")
            lines.append(f"  {bucket:<{width}}  {duration(seconds):>10}  {part:>6.1%}  {meaning}")
        if not self.input_is_known:
            lines.append("Waiting for data is part of training here: epochs were too short to tell the two apart.")
        return "\n".join([*lines, self.advice] if self.advice else lines)
