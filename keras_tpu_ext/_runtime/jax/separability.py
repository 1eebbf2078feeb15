"""Whether a batch of a model may be padded: the padded step is traced, and the batch axis followed through it.

A program on JAX sees the whole batch, so code may combine rows in any way, unless some of them are no examples.
"""

from __future__ import annotations

import functools
import logging
import warnings
from collections.abc import Callable

import jax
import jax.numpy as jnp

from keras_tpu_ext._runtime.common.batch_axis import Value
from keras_tpu_ext._runtime.common.types import Model, Nest, Variable
from keras_tpu_ext._runtime.compat.keras3 import mask_of, path_of
from keras_tpu_ext._runtime.jax.data_adapter import Method
from keras_tpu_ext._runtime.jax.jaxpr_axis import Argument, follow
from keras_tpu_ext._runtime.jax.loop import stateless
from keras_tpu_ext._runtime.jax.traced_devices import TracedDevices, tracing_devices
from keras_tpu_ext._runtime.jax.update import State, own_variables, state_variables
from keras_tpu_ext._runtime.keras3.models import own_layers
from keras_tpu_ext._runtime.training.compile_utils import is_known

_LOG = logging.getLogger("keras_tpu_ext")

# Steps of the user's own, which are not looked into.
_OWN_STEPS = {
    "fit": ("train_step", "compute_metrics"),
    "evaluate": ("test_step", "compute_metrics"),
    "predict": (),
}


class Separability:
    """Whether batches of a model may be padded, asked once for data of one shape.

    `forward(method, state, data)` returns the loss, the outputs and the next state of a step.
    """

    def __init__(self, model: Model, forward: Callable[[Method, State, Nest], tuple[Nest, Nest, State]]) -> None:
        self._model = model
        self._forward = forward
        self._reasons: dict[object, str] = {}  # why not; empty if they may

    def forget(self) -> None:
        """Forget the answers, as the functions of the steps are traced again."""
        self._reasons.clear()

    def may_pad(self, method: Method, data: Nest) -> bool:
        """Return whether batches like `data`, one on the host, may be padded for the step of `method`."""
        leaves, structure = jax.tree.flatten(data)
        key = (method, structure, *((leaf.shape[1:], leaf.dtype) for leaf in leaves))
        if key not in self._reasons:
            self._reasons[key] = reason = self._reason(method, data)
            if reason:
                _LOG.info("Batches of %s are not padded in %s: %s.", self._model.name, method, reason)
        return not self._reasons[key]

    def _reason(self, method: Method, data: Nest) -> str:
        model = self._model
        for name in _OWN_STEPS[method]:
            if not is_known(getattr(type(model), name)):
                return f"`{name}` is your own"
        for layer in model._flatten_layers():
            if getattr(layer, "stateful", False):
                return f"`{layer.name}` is stateful, and keeps a row for each example"
        try:
            changes = self._changes(method, data)
        except Exception as error:  # anything may go wrong in the user's code
            model._losses_override.clear()  # Keras sets it for a step, and leaves it after an error
            return f"the step cannot be traced for another number of rows ({_short(error)})"
        certain = [reason for reason, is_certain in changes if is_certain]
        if not changes or (not certain and _is_known(model)):
            return ""
        return certain[0] if certain else changes[0][0]

    def _changes(self, method: Method, data: Nest) -> list[tuple[str, bool]]:
        """Return what padded rows would change, and for each whether it is certain."""

        def step(state: State, data: Nest) -> tuple[tuple[Nest, Nest, Nest], State]:
            loss, outputs, state = self._forward(method, state, data)
            return (outputs, [mask_of(leaf) for leaf in jax.tree.leaves(outputs)], loss), state

        trainable, non_trainable, optimizer, metrics = state_variables(self._model)
        variables = {
            "fit": [trainable, non_trainable, optimizer, metrics],
            "evaluate": [trainable, non_trainable, metrics],
            "predict": [trainable, non_trainable],
        }[method]
        state = [[_argument(variable) for variable in group] for group in variables]
        own = [_argument(variable) for variable in own_variables(self._model)]
        batch = jax.tree.map(
            lambda leaf: Argument((None, *leaf.shape[1:]), jax.dtypes.canonicalize_dtype(leaf.dtype)), data
        )
        run = functools.partial(stateless, self._model, step, None)
        with warnings.catch_warnings(), tracing_devices(TracedDevices(is_abstract=True)):
            warnings.simplefilter("ignore")  # the step will warn, too
            ((outputs, masks, loss), *after), effect = follow(run, state, own, batch, Argument((), jnp.int32))
        paths = [path_of(variable) for group in variables for variable in group]
        found = []
        for value in jax.tree.leaves([outputs, masks]):
            if value.kind != "rows" or value.axis:
                found.append(("an output", value))
        found += [("the loss", value) for value in jax.tree.leaves(loss) if value.kind != "constant"]
        for i, value in enumerate(jax.tree.leaves(after)):
            if value.kind != "constant":
                found.append((f"`{paths[i]}`" if i < len(paths) else "a variable", value))
        changes = [(_text(where, value), value.is_certain) for where, value in found]
        return [*changes, (effect, True)] if effect else changes


def _text(where: str, value: Value) -> str:
    if value.kind in ("constant", "rows"):
        return f"{where} has not one row for each example" if where == "an output" else f"{where} depends on rows"
    return f"{where} depends on rows together, by {value.reason}"


def _is_known(model: Model) -> bool:
    """Return whether all code of a model is that of Keras or of this package."""
    losses = getattr(getattr(model, "_compile_loss", None), "_flat_losses", None) or []
    known = [flat.loss.loss for flat in losses if flat is not None]
    return not own_layers(model) and all(is_known(type(one)) and is_known(getattr(one, "fn", one)) for one in known)


def _argument(variable: Variable) -> Argument:
    return Argument(tuple(variable.shape), jnp.dtype(variable.dtype))


def _short(error: Exception) -> str:
    text = str(error).strip() or type(error).__name__
    return text.splitlines()[0][:200]
