"""The arguments of a call of `fit`, `evaluate` or `predict`, bound once."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Iterator
from typing import Any

from keras_tpu_ext._runtime.common.padding import GivesPaddedBatches, PaddedBatch
from keras_tpu_ext._runtime.common.patches import temporarily
from keras_tpu_ext._runtime.common.types import Callback, Model
from keras_tpu_ext._runtime.compat import PyDataset, keras, tree
from keras_tpu_ext.errors import ArgumentError

_CLASS_WEIGHT = (
    "fit takes no class_weight with padded batches, which have sample weights already. Weigh the examples before "
    "they are padded: {cure}."
)
_CURES = {
    "tf.data": "pad_batches(dataset.map(lambda x, y: (x, y, tf.gather(weights, y))), batch_size)",
    "PyDataset": "let the PyDataset that is padded return (x, y, weights[y])",
}


class FitCall:
    """One call of a method of `keras.Model` that loops over batches."""

    def __init__(self, method: str, model: Model, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.method = method
        self._bound = inspect.signature(getattr(keras.Model, method)).bind(model, *args, **kwargs)
        self.arguments = self._bound.arguments  # the arguments by name; `args` and `kwargs` reflect changes to it
        self.data: Any = None  # the object that reads the batches, if `fit` may start in the middle of the data
        self._refuse_class_weight_with_padding()

    @property
    def args(self) -> tuple[Any, ...]:
        """The positional arguments, without the model."""
        return self._bound.args[1:]

    @property
    def kwargs(self) -> dict[str, Any]:
        """The keyword arguments."""
        return self._bound.kwargs

    @property
    def callbacks(self) -> list[Callback]:
        """The callbacks, in one list."""
        given = self.arguments.get("callbacks")
        if isinstance(given, keras.callbacks.CallbackList):
            return list(given.callbacks)
        return [callback for callback in tree.flatten(given) if callback is not None]

    @property
    def py_dataset(self) -> Any:
        """The `PyDataset` of the user whose batches are read, also if they are padded; `None` for other data."""
        data = self.arguments.get("x")
        data = data.dataset if isinstance(data, GivesPaddedBatches) else data
        return data if isinstance(data, PyDataset) else None

    @contextlib.contextmanager
    def calling(self, callbacks: list[Callback]) -> Iterator[None]:
        """Within the block, Keras calls these callbacks in place of those that were given."""
        given = self.arguments.get("callbacks")
        if isinstance(given, keras.callbacks.CallbackList):
            with temporarily(given, callbacks=callbacks):
                yield
        else:
            self.arguments["callbacks"] = callbacks
            yield

    def _refuse_class_weight_with_padding(self) -> None:
        if self.arguments.get("class_weight") is None:
            return
        data = self.arguments.get("x")
        if isinstance(getattr(data, "element_spec", None), PaddedBatch):
            raise ArgumentError(_CLASS_WEIGHT.format(cure=_CURES["tf.data"]))
        if isinstance(data, GivesPaddedBatches):
            raise ArgumentError(_CLASS_WEIGHT.format(cure=_CURES["PyDataset"]))
