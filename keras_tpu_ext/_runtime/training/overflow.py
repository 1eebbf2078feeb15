"""Records of non-finite gradients, which a step keeps while a callback asks for them."""

from __future__ import annotations

from keras_tpu_ext._runtime.common.types import Variable
from keras_tpu_ext._runtime.common.values import Overflow
from keras_tpu_ext._runtime.compat import new_variable, ops
from keras_tpu_ext._runtime.training.step_state import Unsaved


class OverflowWatch(Unsaved):
    """For every variable, and every replica if known, the last update whose gradient was not finite."""

    def __init__(self, steps: int) -> None:
        super().__init__(name="overflow_watch", dtype="float32")
        self.built = True
        # Number of updates since then, including those of skipped steps.
        self.num_updates: Variable = new_variable(0, "int32", "num_updates")
        self._seen = 0
        self._steps_before = steps

    def skipped(self, steps: int) -> int:
        """Return the number of skipped updates, given the number of steps that the optimizer has taken."""
        return int(ops.convert_to_numpy(self.num_updates)) - (steps - self._steps_before)

    def read(self) -> list[Overflow]:
        """Return the last overflow of each variable and replica since the last call; all processes must call it."""
        found = []
        for paths, replica, updates in self._notes():
            for update in sorted({int(number) for number in updates if number > self._seen}):
                those = tuple(path for path, number in zip(paths, updates, strict=True) if number == update)
                found.append(Overflow(update, replica, those, len(paths)))
        self._seen = int(ops.convert_to_numpy(self.num_updates))
        return sorted(found)

    def _notes(self) -> list[tuple[list[str], int | None, list[int]]]:
        """Return variables' paths, a replica or `None`, and for each path the number of its last overflow."""
        raise NotImplementedError
