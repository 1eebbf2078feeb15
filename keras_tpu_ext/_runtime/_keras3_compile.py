"""What `compile` and `fit` on Keras 3 check, whatever the backend is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from keras_tpu_ext._runtime.padding import GivesPaddedBatches, PaddedBatch
from keras_tpu_ext.errors import ArgumentError

_CLASS_WEIGHT = (
    "fit takes no class_weight with padded batches, which have sample weights already. Weigh the examples before "
    "they are padded: {cure}."
)
_CURES = {
    "tf.data": "pad_batches(dataset.map(lambda x, y: (x, y, tf.gather(weights, y))), batch_size)",
    "PyDataset": "let the PyDataset that is padded return (x, y, weights[y])",
}


def refuse_class_weight_with_padding(args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """Refuse the arguments of a `fit` that Keras would fail on, or believe too easily.

    Raises:
        ArgumentError: If padded batches come with `class_weight`.
    """
    data = args[0] if args else kwargs.get("x")
    if kwargs.get("class_weight") is None:
        return
    if isinstance(getattr(data, "element_spec", None), PaddedBatch):
        raise ArgumentError(_CLASS_WEIGHT.format(cure=_CURES["tf.data"]))
    if isinstance(data, GivesPaddedBatches):
        raise ArgumentError(_CLASS_WEIGHT.format(cure=_CURES["PyDataset"]))


def has_a_compile_of_its_own(model_class: type) -> bool:
    """Return whether a user's class overrides `compile`, so that a saved model cannot be compiled as before."""
    owner = next(base for base in model_class.__mro__ if "compile" in vars(base))
    return not owner.__module__.startswith("keras_tpu_ext.")
