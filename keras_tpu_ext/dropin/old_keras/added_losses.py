"""Losses that Keras 2 took besides those of a call: tensors of a functional model, and functions of weights."""

from __future__ import annotations

from typing import Any

import keras
from keras import ops, tree
from keras.src.models import functional
from keras.src.ops.function import map_graph
from keras.src.utils import tracking

from keras_tpu_ext.dropin.errors import out_of_reach
from keras_tpu_ext.dropin.functions.random import is_in_layer
from keras_tpu_ext.dropin.patching import Function, replace, wrap
from keras_tpu_ext.dropin.report import mapped, means_old, told

_FUNCTIONS = "_kte_losses"


def install() -> None:
    """Take old losses."""
    wrap(
        {
            "keras.layers.Layer.add_loss": _add_loss,
            "keras.layers.Layer._get_regularization_losses": _with_functions,
        }
    )
    replace({"keras.src.models.functional.Functional.add_loss": lambda _: keras.layers.Layer.add_loss})


@keras.saving.register_keras_serializable("keras_tpu_ext.dropin")
class AddedLoss(keras.layers.Layer):  # type: ignore[misc, unused-ignore]
    """The end of a functional model's graph that adds its input to the losses."""

    def call(self, loss: Any) -> Any:
        """Add the loss, and return it."""
        self.add_loss(loss)
        return loss


def _add_loss(stock: Function, self: Any, losses: Any, *args: Any, **kwargs: Any) -> None:
    if kwargs:
        mapped("add_loss(inputs=)", "add_loss")
    for loss in tree.flatten(losses):
        if isinstance(loss, keras.KerasTensor) and not is_in_layer():
            _add_to_graph(self, loss)
        elif callable(loss) and not is_in_layer():
            mapped("add_loss(a function)", "its value in each step")
            vars(self).setdefault(_FUNCTIONS, []).append(loss)
        else:
            stock(self, _mean_with_gradient_of_sum(loss() if callable(loss) else loss))


def _add_to_graph(model: Any, loss: Any) -> None:
    """Let the model compute a tensor of its own in each call, beside its outputs."""
    if not isinstance(model, functional.Functional):
        raise out_of_reach(
            what=f"{type(model).__name__}.add_loss of a tensor of a functional model",
            why="only such a model knows where the tensor comes from",
            write="model.add_loss(...), or a layer through which the tensors go, and self.add_loss(...) in its call",
        )
    told("model.add_loss(tensor)", "a layer of the model that adds it in each call, and that its file does not have")
    ends = [*vars(model).get("_kte_ends", ()), AddedLoss()(loss)]
    vars(model)["_kte_ends"] = ends
    graph = map_graph(model._inputs, [*model._outputs, *ends])
    with tracking.DotNotTrackScope():
        model._nodes, model._nodes_by_depth, model._operations, model._operations_by_depth = graph
    for layer in model.layers:
        model._tracker.track(layer)


def _mean_with_gradient_of_sum(loss: Any) -> Any:
    """Return a loss of each example as Keras 2 took it: it showed the mean, and trained on the sum."""
    loss = loss if ops.is_tensor(loss) else ops.convert_to_tensor(loss)
    what, then = "add_loss(a loss of each example)", "its mean in history, the gradient of its sum, as in Keras 2"
    if not loss.shape or isinstance(loss, keras.KerasTensor) or not means_old(what, then):
        return loss
    total = ops.sum(loss)
    return total + ops.stop_gradient(ops.mean(loss) - total)


def _with_functions(stock: Function, self: Any) -> list[Any]:
    added = [loss for layer in self._flatten_layers() for loss in vars(layer).get(_FUNCTIONS, ())]
    return [*stock(self), *(ops.convert_to_tensor(loss()) for loss in added)]
