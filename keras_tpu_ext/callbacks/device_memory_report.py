"""The memory of devices during a `fit`, and what grew in it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from keras_tpu_ext._runtime.common.values import ArrayGroup, DeviceUse
from keras_tpu_ext.output.display import memory_size, wrap
from keras_tpu_ext.output.report import Report

_MOST_ROWS = 8


@dataclass(frozen=True)
class DeviceMemoryReport(Report):
    """The memory of the devices at the last reading of a `fit`; what `DeviceMemory.report()` returns.

    Args:
        devices: The memory of each device of this process, in bytes: `device`, `in_use`, `peak`, `limit`, `counted`.
        arrays: The live arrays by `role`, `shape` and `dtype`, largest first: `number` and `bytes`.
        leaks: A sentence for each group of arrays that grew without end.

    Example:
        ```python
        import keras
        import numpy as np
        import keras_tpu_ext as kte

        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
        model.compile("adam", "mse")
        memory = kte.callbacks.DeviceMemory()
        model.fit(np.zeros((64, 4)), np.zeros((64, 1)), verbose=0, callbacks=[memory])
        report = memory.report()
        print(report, report.devices[0].in_use, report.ok)
        ```
    """

    devices: tuple[DeviceUse, ...]
    arrays: tuple[ArrayGroup, ...]
    leaks: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether nothing grew without end."""
        return not self.leaks

    def __str__(self) -> str:
        lines = [line for use in self.devices for line in wrap(_of_device(use), 2)]
        lines += [f"{group_text(one)}: {memory_size(one.bytes)}" for one in self.arrays[:_MOST_ROWS]]
        rest = self.arrays[_MOST_ROWS:]
        if rest:
            lines += [f"{len(rest)} smaller groups: {memory_size(sum(one.bytes for one in rest))}"]
        return "\n".join([*lines, *(line for leak in self.leaks for line in wrap(leak, 2))])


def group_text(group: ArrayGroup) -> str:
    """Return the arrays of a group in words, such as `"2 of optimizer, float32 (64, 10)"`."""
    return f"{group.number} of {group.role}, {group.dtype} {group.shape}"


def _of_device(use: DeviceUse) -> str:
    parts = [f"{memory_size(use.in_use)} in use"]
    parts += [] if use.peak is None else [f"{memory_size(use.peak)} at most"]
    parts += ["its limit is not known"] if use.limit is None else [f"of {memory_size(use.limit)}"]
    return f"{use.device}: {', '.join(parts)} ({use.counted})"


class Growth:
    """Finds groups of arrays that grew in each of the last two epochs."""

    def __init__(self) -> None:
        self._seen: list[tuple[int, dict[tuple[object, ...], ArrayGroup]]] = []

    def add(self, executions: int, groups: Sequence[ArrayGroup]) -> None:
        """Add what there is after this many executions of the `fit`, in place of an earlier reading after as many."""
        before = [one for one in self._seen if one[0] != executions]
        self._seen = [*before[1 - READINGS :], (executions, {one[:3]: one for one in groups})]

    def leaks(self) -> list[tuple[ArrayGroup, int, int]]:
        """Return each group that grows, by how many arrays it grew, and in how many executions.

        It grows by an array in every other execution, as a list that gets one of each does, or by a MiB an epoch.
        A few small ones more after each epoch, such as a history of its own, are none.
        """
        if len(self._seen) < READINGS:
            return []
        (first, before), (_, between), (last, now) = self._seen
        found = []
        for key, group in now.items():
            counts = [one[key].number if key in one else 0 for one in (before, between)]
            grown = group.number - counts[0]
            is_growing = counts[0] < counts[1] < group.number
            is_large = grown * group.bytes / group.number >= 2 * _LARGE
            if is_growing and (is_large or grown >= max(_FEW, (last - first) / 2)):
                found.append((group, grown, last - first))
        return sorted(found, key=lambda one: -one[0].bytes)


READINGS = 3  # that show a growth
_LARGE = 2**20  # bytes in an epoch
_FEW = 16  # arrays in two epochs
