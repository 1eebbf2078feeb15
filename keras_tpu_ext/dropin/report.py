"""What the drop-in has mapped: counted, told once where it matters, and summed up at the end."""

from __future__ import annotations

import atexit
import os
from collections import Counter

from keras.src.backend import in_symbolic_scope

_USES: Counter[tuple[str, str]] = Counter()
_AS_TODAY: set[str] = set()  # what was told to mean what it does in Keras 3
_read: list[str] = []  # the summary that the program has asked for


def mapped(old: str, new: str) -> None:
    """Count one use of an old name.

    Args:
        old: What stands in the program.
        new: What ran instead.
    """
    _USES[old, new] += 1


def told(old: str, new: str) -> None:
    """Count one use of an old name, and print it the first time."""
    if (old, new) not in _USES:
        print(f"keras_tpu_ext.dropin: {old} -> {new}", flush=True)
    mapped(old, new)


def is_old_program() -> bool:
    """Return whether the program has used an old name until now; one that has not is a program for Keras 3."""
    return bool(_USES)


def means_old(what: str, then: str) -> bool:
    """Return whether a thing that both Keras versions have means what it meant in old Keras; print which, once.

    Args:
        what: What stands in the program, which no old name distinguishes from one for Keras 3.
        then: What it means in an old program.
    """
    if is_old_program():
        told(what, then)
        return True
    if what not in _AS_TODAY and not in_symbolic_scope():  # where only shapes are asked for, nothing is decided
        _AS_TODAY.add(what)
        print(f"keras_tpu_ext.dropin: {what} -> as in Keras 3: no old name was used before it", flush=True)
    return False


def summary() -> str:
    """Return what was mapped until now and how often, one line for each name."""
    if not _USES:
        return "keras_tpu_ext.dropin: nothing was mapped."
    width = min(max(len(old) for old, _ in _USES), 50)
    lines = [f"  {old:<{width}}  {times:>6} x  {new}" for (old, new), times in sorted(_USES.items())]
    _read[:] = ["\n".join([f"keras_tpu_ext.dropin: {len(_USES)} old names were mapped.", *lines])]
    return _read[0]


def print_at_exit() -> None:
    """Print the summary of what is mapped from now on when this process ends."""
    _USES.clear()
    process = os.getpid()

    def print_summary() -> None:
        read = list(_read)
        if _USES and os.getpid() == process and read != [summary()]:  # a forked worker has nothing to say
            print(summary(), flush=True)

    atexit.register(print_summary)
