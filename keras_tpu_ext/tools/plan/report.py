"""How long a training will take: its parts, and all of it."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from keras_tpu_ext.output.display import counted, duration, wrap
from keras_tpu_ext.output.report import Report

# The buckets of `callbacks.Goodput` that can be planned.
BUCKETS = ("training", "compile", "input", "validation", "checkpoint", "startup", "idle")


@dataclasses.dataclass(frozen=True)
class Seconds:
    """An estimate in seconds, from the lowest to the highest.

    Attributes:
        middle: The estimate.
        low: The lowest that is likely.
        high: The highest that is likely.
    """

    middle: float
    low: float
    high: float

    @classmethod
    def exactly(cls, seconds: float) -> Seconds:
        """Return an estimate without an error."""
        return cls(seconds, seconds, seconds)

    @classmethod
    def of(cls, measured: Sequence[float]) -> Seconds:
        """Return the mean of measurements, from the shortest to the longest."""
        return cls(sum(measured) / len(measured), min(measured), max(measured))

    def __add__(self, other: Seconds) -> Seconds:
        return Seconds(self.middle + other.middle, self.low + other.low, self.high + other.high)

    def __mul__(self, times: float) -> Seconds:
        return Seconds(self.middle * times, self.low * times, self.high * times)

    def beyond(self, other: Seconds) -> Seconds:
        """Return by how much this is longer than `other`; 0 where it is shorter."""
        pairs = (self.middle, other.middle), (self.low, other.high), (self.high, other.low)
        return Seconds(*(max(a - b, 0.0) for a, b in pairs))

    def widened(self, fraction: float) -> Seconds:
        """Return it with bounds that are wider by a fraction of the middle."""
        return Seconds(self.middle, max(self.low - fraction * self.middle, 0.0), self.high + fraction * self.middle)


@dataclasses.dataclass(frozen=True)
class Cost:
    """What one part of a training costs.

    Attributes:
        bucket: Its name: `"training"`, `"compile"`, `"input"`, `"validation"`, `"checkpoint"`, `"startup"` or
            `"idle"`.
        seconds: How long it takes in all.
        how: How that was found.
        write: The line to write to make it cheaper; empty if there is none.
    """

    bucket: str
    seconds: Seconds
    how: str
    write: str = ""


@dataclasses.dataclass(frozen=True)
class PlanReport(Report):
    """The result of `plan`; print it, or show it in a notebook.

    Attributes:
        model: Name of the model.
        target: What it was planned for: a TPU slice, or `"cpu"`.
        epochs: Number of epochs.
        steps_per_epoch: Number of steps of an epoch.
        batch_size: Examples in a batch.
        costs: A `Cost` for each bucket, the largest first; empty if the step does not compile.
        hours: The quota in hours; `None` if there is none.
        price_per_hour: Dollars for an hour; `None` if not given.
        problem: Why it cannot be trained on the target; empty if it can.
        delivered: What the host delivers, as a fraction of what the chips can eat; at most 1, `None` if not known.
        notes: Sentences: what is not counted.
    """

    model: str
    target: str
    epochs: int
    steps_per_epoch: int
    batch_size: int
    costs: tuple[Cost, ...] = ()
    hours: float | None = None
    price_per_hour: float | None = None
    problem: str = ""
    delivered: float | None = None
    notes: tuple[str, ...] = ()

    _derived = ("seconds", "seconds_range", "buckets", "share", "dollars")

    @property
    def ok(self) -> bool:
        """Whether it compiles, fits into memory, and ends within `hours` by the middle estimate."""
        if self.problem or self.seconds is None:
            return False
        return self.hours is None or self.seconds <= self.hours * 3600

    @property
    def seconds(self) -> float | None:
        """How long it takes in all; `None` if nothing could be estimated."""
        return sum(cost.seconds.middle for cost in self.costs) if self.costs else None

    @property
    def seconds_range(self) -> tuple[float, float] | None:
        """The lowest and the highest time: the sums of those of the buckets, which may all err to the same side."""
        if not self.costs:
            return None
        return sum(cost.seconds.low for cost in self.costs), sum(cost.seconds.high for cost in self.costs)

    @property
    def buckets(self) -> dict[str, float]:
        """The seconds of each bucket."""
        found = dict.fromkeys(BUCKETS, 0.0) if self.costs else {}
        return found | {cost.bucket: cost.seconds.middle for cost in self.costs}

    @property
    def share(self) -> float | None:
        """The fraction of the quota that it takes; `None` without a quota."""
        return None if self.hours is None or self.seconds is None else self.seconds / (self.hours * 3600)

    @property
    def dollars(self) -> float | None:
        """What it costs; `None` without a price."""
        return (
            None if self.price_per_hour is None or self.seconds is None else self.seconds / 3600 * self.price_per_hour
        )

    def __str__(self) -> str:
        lines = [*wrap(self._headline()), ""]
        total = self.seconds or 1.0
        for cost in self.costs:
            took = cost.seconds
            span = f"{duration(took.low)} to {duration(took.high)}"
            lines.append(f"  {cost.bucket:<11}{duration(took.middle):>11}{took.middle / total:>6.0%}  ({span})")
            words = f"{cost.how}. Write: {cost.write}" if cost.write and took.middle >= 0.05 * total else cost.how
            lines += [f"      {line}" for line in wrap(words, width=74)]
        return "\n".join([*lines, "", *(line for note in self.notes for line in wrap(f"- {note}", 2))]).rstrip()

    def _headline(self) -> str:
        what = f"{counted(self.epochs, 'epoch')} of {counted(self.steps_per_epoch, 'step')}"
        if self.seconds is None or self.seconds_range is None:
            return f"{self.model}, {what}, cannot be planned for {self.target}: {self.problem}"
        low, high = map(duration, self.seconds_range)
        quota = f" of your {duration((self.hours or 0) * 3600)} ({self.share:.0%})" if self.share is not None else ""
        text = f"{self.model} on {self.target}, {what}: {duration(self.seconds)} ({low} to {high}){quota}"
        text += f", ${self.dollars:.2f}" if self.dollars is not None else ""
        text += f"; {duration(self.buckets['compile'])} of it compiling"
        if self.delivered is not None and self.delivered < 1:
            text += f"; the host delivers {self.delivered:.1g} of what the chips eat"
        return f"{text}. {self.problem}".rstrip()
