"""Losses and metrics that Keras 2 took besides those of `compile`: tensors, functions, values of a call."""

from __future__ import annotations

import functools
from contextvars import ContextVar
from typing import Any

import keras
from keras import ops, tree
from keras.src.models import functional
from keras.src.ops.function import map_graph
from keras.src.utils import tracking

from keras_tpu_ext.dropin.errors import out_of_reach
from keras_tpu_ext.dropin.functions.random import is_in_layer
from keras_tpu_ext.dropin.old_keras import masks
from keras_tpu_ext.dropin.patching import Function, replace, wrap
from keras_tpu_ext.dropin.report import mapped, means_old, told

_FUNCTIONS, _MEANS = "_kte_losses", "_kte_means"


# What the layers of a step that is being traced have added to metrics, whose variables their calls have not.
_VALUES: ContextVar[list[tuple[Any, Any]] | None] = ContextVar("_VALUES", default=None)


def install() -> None:
    """Take old losses and metrics."""
    wrap(
        {
            "keras.layers.Layer.add_loss": _add_loss,
            "keras.layers.Layer._get_regularization_losses": _with_functions,
            "keras.layers.Layer.add_metric": _add_metric,
            "keras.src.backend.jax.trainer.JAXTrainer.compute_loss_and_updates": _collecting,
            "keras.src.trainers.trainer.Trainer._compute_loss": _updating,
        }
    )
    replace({"keras.src.models.functional.Functional.add_loss": lambda _: keras.layers.Layer.add_loss})


@keras.saving.register_keras_serializable("keras_tpu_ext.dropin")
class Added(keras.layers.Layer):  # type: ignore[misc, unused-ignore]
    """The end of a functional model's graph that adds its input to the losses or, with a name, to a metric."""

    def __init__(self, metric: str | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.metric = metric

    def call(self, value: Any) -> Any:
        """Add the value, and return it."""
        self.add_loss(value) if self.metric is None else self.add_metric(value, name=self.metric)
        return value


def _add_loss(stock: Function, self: Any, losses: Any, *args: Any, **kwargs: Any) -> None:
    if kwargs:
        mapped("add_loss(inputs=)", "add_loss")
    for loss in tree.flatten(losses):
        if isinstance(loss, keras.KerasTensor) and not is_in_layer():
            _add_to_graph(self, "add_loss", loss, Added())
        elif callable(loss) and not is_in_layer():
            mapped("add_loss(a function)", "its value in each step")
            vars(self).setdefault(_FUNCTIONS, []).append(loss)
        else:
            stock(self, _mean_with_gradient_of_sum(loss() if callable(loss) else loss))


def _add_metric(_: Function, self: Any, value: Any, name: str | None = None, **kwargs: Any) -> None:
    """Let a metric of the layer have the mean of a value, with the loss of the step."""
    if isinstance(value, keras.KerasTensor) and not is_in_layer():
        _add_to_graph(self, "add_metric", value, Added(name))
        return
    means = vars(self).setdefault(_MEANS, {})
    if name is None or len(self._metrics) > len(means):
        raise out_of_reach(
            what=f"{type(self).__name__}.add_metric of a keras.metrics.Metric that is called in a layer",
            why="a call on JAX cannot change the variables of a metric",
            write="compile(metrics=[...]), or self.add_metric(value, name=...) of a tensor, which has its mean",
        )
    if name not in means:
        mapped("add_metric", "a keras.metrics.Mean")
        means[name] = keras.metrics.Mean(name=name)
        self._metrics.append(means[name])
    if (values := _VALUES.get()) is not None:
        values.append((means[name], value))


def _collecting(stock: Function, self: Any, *args: Any, training: bool = False, **kwargs: Any) -> Any:
    token = _VALUES.set([])
    try:
        loss, (unscaled, outputs, *variables) = stock(self, *args, training=training, **kwargs)
    finally:
        _VALUES.reset(token)
    return loss, (unscaled, masks.beside(outputs) if training else outputs, *variables)


def _updating(stock: Function, self: Any, *args: Any, **kwargs: Any) -> Any:
    for mean, value in _VALUES.get() or ():
        mean.update_state(value)
    return stock(self, *args, **kwargs)


def _add_to_graph(model: Any, method: str, tensor: Any, end: Added) -> None:
    """Let the model compute a tensor of its own in each call, beside its outputs."""
    if not isinstance(model, functional.Functional):
        raise out_of_reach(
            what=f"{type(model).__name__}.{method} of a tensor of a functional model",
            why="only such a model knows where the tensor comes from",
            write=f"model.{method}(...), or a layer through which the tensors go, and self.{method}(...) in its call",
        )
    told(f"model.{method}(tensor)", "a layer of the model that adds it in each call, and that its file does not have")
    ends = [*vars(model).get("_kte_ends", ()), end(tensor)]
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
    """Return the losses of weights: also those that were added, and of frozen ones, which Keras 3 leaves out."""
    added = [loss for layer in self._flatten_layers() for loss in vars(layer).get(_FUNCTIONS, ())]
    frozen = [one for one in self.non_trainable_weights if one.regularizer is not None]
    if frozen and means_old("the regularizer of a frozen weight", "in the loss, as in Keras 2"):
        added += [functools.partial(one.regularizer, one) for one in frozen]
    return [*stock(self), *(ops.convert_to_tensor(loss()) for loss in added)]
