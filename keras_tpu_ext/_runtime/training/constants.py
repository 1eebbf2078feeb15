"""The Python values that a step is traced with."""

from __future__ import annotations

from keras_tpu_ext._runtime.common.types import Model

_PLAIN = (bool, int, float, str, type(None))


def constants_of(model: Model) -> dict[str, object]:
    """Return the numbers, strings and tuples that the layers of `model` have as attributes, as `layer.attribute`."""
    owners = {layer.name: layer for layer in model._flatten_layers()}
    return {
        f"{owner}.{name}": value
        for owner, layer in owners.items()
        for name, value in {**vars(layer), "trainable": layer.trainable}.items()
        if not name.startswith(("_", "stop_")) and name != "built" and _is_plain(value)
    }


def _is_plain(value: object) -> bool:
    return all(map(_is_plain, value)) if isinstance(value, tuple) else isinstance(value, _PLAIN)
