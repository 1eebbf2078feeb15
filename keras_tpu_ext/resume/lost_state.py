"""Warnings, each given once in a `fit`, of what an interruption loses."""

from __future__ import annotations

from collections.abc import Mapping

from keras_tpu_ext.resume.callback_state import NotKept
from keras_tpu_ext.resume.opening import warn

_CURE = "Give it get_state(), which returns numbers, strings, arrays, lists or dicts, and set_state(state)"


class LostStateWarnings:
    """Warns, once of each, of what is lost."""

    def __init__(self) -> None:
        self._given: set[str] = set()

    def warn(self, data: str, model: str, callbacks: Mapping[str, NotKept]) -> None:
        """Warn of what cannot be saved, or is not restored.

        Args:
            data: Why the position in the data cannot be saved; empty if it can.
            model: A part of the model that cannot be saved; empty if all can.
            callbacks: By the class of a callback, its attributes that are lost.
        """
        if data:
            self._once(
                "data",
                "after an interruption this training may go on in another order or with other random numbers, for "
                f"the state of its data cannot be saved: {data}",
            )
        if model:
            self._once("model", f"after an interruption this training goes on with others than {model}")
        for name, lost in callbacks.items():
            if lost.unwritable:
                self._once(
                    f"{name}, unwritable",
                    f"{name} keeps {' and '.join(lost.unwritable)}, which no checkpoint can hold: after an "
                    f"interruption it begins anew. {_CURE}",
                )
            if lost.unlike:
                self._once(
                    f"{name}, unlike",
                    f"{name} keeps {' and '.join(lost.unlike)}, which no checkpoint restores: attributes that it has "
                    "not when training begins, that are then of another type, or that hold a new text, which might "
                    f"be a path. {_CURE}",
                )

    def warn_of_divergence(self, kept: str | None) -> None:
        """Warn of a loss that is no finite number; `kept` is the last checkpoint before it."""
        cure = f"{kept} is the last checkpoint with a finite one, and is kept: to go on from it, remove the later"
        self._once(
            "divergence",
            f"the loss is no finite number any more; {cure if kept else 'no checkpoint has a finite one'}",
        )

    def _once(self, what: str, text: str) -> None:
        if what not in self._given:
            self._given.add(what)
            warn(text)
