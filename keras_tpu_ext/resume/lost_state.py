"""Warnings, each given once in a `fit`, of what an interruption loses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from keras_tpu_ext.resume.opening import warn

_NOT_KEPT = (
    "{name} keeps {what}, which no checkpoint can hold: after an interruption it begins anew. Kept are attributes "
    "that are there when training begins and keep their type: numbers, arrays, lists and dicts of these, and no new "
    "text, which might be a path. Give it get_state(), which returns numbers, strings, arrays, lists or dicts, and "
    "set_state(state)"
)


class LostStateWarnings:
    """Warns, once of each, of what is lost."""

    def __init__(self) -> None:
        self._given: set[str] = set()

    def warn(self, data: str, model: str, callbacks: Mapping[str, Sequence[str]]) -> None:
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
            self._once(name, _NOT_KEPT.format(name=name, what=" and ".join(lost)))

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
