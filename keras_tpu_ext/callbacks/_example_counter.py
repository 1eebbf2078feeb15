"""How many examples the steps of an epoch had, from few readings and never from a guess."""

from __future__ import annotations


class ExampleCounter:
    """Examples per step while an epoch runs, and their exact number at its end.

    Args:
        batch_size: Examples per step over all replicas as the user gave it, or `None` to go by the readings.
        replicas: Number of replicas. A count of one per step and replica comes from a `train_step` that does
            not weigh the loss tracker by the batch size, so it says nothing about examples.

    Attributes:
        per_step: Examples per step, or `None` while they are not known.
        misfit: Examples in an epoch and its steps, where `batch_size` does not fit them; else `None`.
    """

    def __init__(self, batch_size: int | None, replicas: int = 1) -> None:
        self.per_step: float | None = batch_size
        self.misfit: tuple[float, int] | None = None
        self._given = batch_size
        self._replicas = replicas
        self.start_epoch()

    def start_epoch(self) -> None:
        """Start at nought, as Keras's own counter does."""
        self._steps = 0
        self._examples = 0.0
        self._lost = False
        self._sizes: list[float] = []  # examples per step, as the readings of this epoch show them

    @property
    def needs_readings(self) -> bool:
        """Whether examples per step have to be read from the model."""
        return self._given is None

    def read(self, steps: int, examples: float | None) -> None:
        """Take a reading: `examples` after `steps` whole steps of this epoch."""
        if steps <= self._steps or examples is None:
            return
        if examples <= steps * self._replicas:
            self.per_step = None
        elif examples < self._examples:
            self._lost = True  # something evaluated the model in the middle of the epoch, which resets the count
        elif not self._lost:
            self.per_step = (examples - self._examples) / (steps - self._steps)
            self._sizes.append(self.per_step)
            self._steps, self._examples = steps, examples

    def upto(self, steps: int) -> float | None:
        """Return the examples in the first `steps` steps of this epoch, going by the last readings."""
        if self.per_step is None or self._lost:
            return None
        return self._examples + self.per_step * (steps - self._steps)

    def total(self, steps: int, examples: float | None) -> float | None:
        """Return the examples in the epoch's `steps` steps, after which the model's count was `examples`.

        Where there is no such count, as in an epoch longer than its data type can hold, the last readings
        tell.
        """
        counted = examples if examples is not None and examples > steps * self._replicas else None
        if self._given is not None:
            return self._total_of_given(self._given, steps, counted)
        if examples is None:
            return self.upto(steps)
        self._lost = self._lost or (counted is not None and counted < self._least(steps))
        if counted is None or self._lost:
            return None
        if self.per_step is None and steps:
            self.per_step = counted / steps
        return counted

    def _least(self, steps: int) -> float:
        """Return the least that `steps` steps have had; a lower count was set back since the last reading.

        Where readings have shown one size again and again, only the last batch may be smaller.
        """
        if len(self._sizes) < 2 or min(self._sizes) < max(self._sizes):
            return self._examples
        return self._examples + self._sizes[-1] * max(steps - 1 - self._steps, 0)

    def _total_of_given(self, batch_size: int, steps: int, counted: float | None) -> float:
        if counted is None or not steps:
            return float(batch_size * steps)
        if batch_size * (steps - 1) < counted <= batch_size * steps:
            return counted
        self.misfit = (counted, steps)
        return float(batch_size * steps)
