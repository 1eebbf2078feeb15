"""Whether a batch of a model may be padded: the padded step is traced, and the batch axis followed through it.

A program on JAX sees the whole batch, so code may combine rows in any way, unless some of them are no examples.
"""

from __future__ import annotations

import functools
import logging
import warnings
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import keras

from keras_tpu_ext._runtime.common.batch_axis import Value
from keras_tpu_ext._runtime.common.types import Model, Nest, Variable
from keras_tpu_ext._runtime.compat.keras3 import mask_of, path_of
from keras_tpu_ext._runtime.jax.data_adapter import Method
from keras_tpu_ext._runtime.jax.jaxpr_axis import Argument, follow
from keras_tpu_ext._runtime.jax.loop import stateless
from keras_tpu_ext._runtime.jax.traced_devices import TracedDevices, tracing_devices
from keras_tpu_ext._runtime.jax.update import own_variables, state_variables
from keras_tpu_ext._runtime.keras3.per_example import is_of_keras, own_layers

_LOG = logging.getLogger("keras_tpu_ext")

# Steps of the user's own, which are not looked into.
_OWN_STEPS = {
    "fit": ("train_step", "compute_metrics"),
    "evaluate": ("test_step", "compute_metrics"),
    "predict": (),
}


class Answer(NamedTuple):
    """Whether a batch may be padded, and for `False` the reason."""

    may_pad: bool
    reason: str = ""


class _Traced(NamedTuple):
    """What a step returns, as structures of values."""

    outputs: Nest  # the model's outputs, with the masks on them
    loss: Nest  # the loss; `None` for predictions
    state: Nest  # the next values of the variables, in the order of `_variables`


class Separability:
    """The answers for a model, each asked once for data of one shape.

    Args:
        model: The model.
        forward: `forward(method, state, data)` returns the loss, the outputs and the next state of a step.
    """

    def __init__(self, model: Model, forward: Callable[[Method, Nest, Nest], tuple[Nest, Nest, Nest]]) -> None:
        self._model = model
        self._forward = forward
        self._answers: dict[object, Answer] = {}

    def forget(self) -> None:
        """Forget the answers, as the functions of the steps are traced again."""
        self._answers.clear()

    def answer(self, method: Method, data: Nest) -> Answer:
        """Return whether batches like `data`, one on the host, may be padded for the step of `method`."""
        leaves, structure = jax.tree.flatten(data)
        key = (method, structure, *((leaf.shape[1:], leaf.dtype) for leaf in leaves))
        if key not in self._answers:
            self._answers[key] = answer = self._ask(method, data)
            if not answer.may_pad:
                _LOG.info("Batches of %s are not padded in %s: %s.", self._model.name, method, answer.reason)
        return self._answers[key]

    def _ask(self, method: Method, data: Nest) -> Answer:
        model = self._model
        for name in _OWN_STEPS[method]:
            if not is_of_keras(getattr(type(model), name)):
                return Answer(False, f"`{name}` is your own")
        for layer in model._flatten_layers():
            if getattr(layer, "stateful", False):
                return Answer(False, f"`{layer.name}` is stateful, and keeps a row for each example")
        try:
            traced, effect = self._follow(method, data)
        except Exception as error:  # anything may go wrong in the user's code
            model._losses_override.clear()  # Keras sets it for a step, and leaves it after an error
            return Answer(False, f"the step cannot be traced for another number of rows ({_short(error)})")
        paths = [path_of(variable) for group in self._variables(method) for variable in group]
        reasons = [*_reasons(traced, paths), *([(effect, True)] if effect else [])]
        if not reasons or (not any(is_certain for _, is_certain in reasons) and _is_known(model)):
            return Answer(True)
        return Answer(False, next((reason for reason, is_certain in reasons if is_certain), reasons[0][0]))

    def _follow(self, method: Method, data: Nest) -> tuple[_Traced, str]:
        def step(state: Nest, data: Nest) -> tuple[tuple[Nest, Nest], Nest]:
            loss, outputs, state = self._forward(method, state, data)
            return ([outputs, [mask_of(leaf) for leaf in jax.tree.leaves(outputs)]], loss), state

        def is_variable(leaf: object) -> bool:
            return isinstance(leaf, keras.Variable)

        variables = self._variables(method)
        arguments = jax.tree.map(_argument_of_variable, (variables, own_variables(self._model)), is_leaf=is_variable)
        batch = jax.tree.map(
            lambda leaf: Argument((None, *leaf.shape[1:]), jax.dtypes.canonicalize_dtype(leaf.dtype)), data
        )
        with warnings.catch_warnings(), tracing_devices(TracedDevices(is_abstract=True)):
            warnings.simplefilter("ignore")  # the step will warn, too
            run = functools.partial(stateless, self._model, step, None)
            (found, state, own), effect = follow(run, *arguments, batch, Argument((), jnp.int32))
        return _Traced(found[0], found[1], [state, own]), effect

    def _variables(self, method: Method) -> list[list[Variable]]:
        trainable, non_trainable, optimizer, metrics = state_variables(self._model)
        return {
            "fit": [trainable, non_trainable, optimizer, metrics],
            "evaluate": [trainable, non_trainable, metrics],
            "predict": [trainable, non_trainable],
        }[method]


def _reasons(traced: _Traced, paths: list[str]) -> list[tuple[str, bool]]:
    """Return why padded rows would change something, and for each reason whether it is certain."""
    found = []
    for value in jax.tree.leaves(traced.outputs):
        if value.kind != "rows" or value.axis:
            found.append(("an output", value))
    found += [("the loss", value) for value in jax.tree.leaves(traced.loss) if value.kind != "constant"]
    for i, value in enumerate(jax.tree.leaves(traced.state)):
        if value.kind != "constant":
            found.append((f"`{paths[i]}`" if i < len(paths) else "a variable", value))
    return [(_text(where, value), value.is_certain) for where, value in found]


def _text(where: str, value: Value) -> str:
    if value.kind in ("constant", "rows"):
        return f"{where} has not one row for each example" if where == "an output" else f"{where} depends on rows"
    return f"{where} depends on rows together, by {value.reason}"


def _is_known(model: Model) -> bool:
    """Return whether all code of a model is that of Keras or of this package."""
    losses = getattr(getattr(model, "_compile_loss", None), "_flat_losses", None) or []
    known = [flat.loss.loss for flat in losses if flat is not None]
    return not own_layers(model) and all(
        is_of_keras(type(one)) and is_of_keras(getattr(one, "fn", one)) for one in known
    )


def _argument_of_variable(variable: Variable) -> Argument:
    return Argument(tuple(variable.shape), jnp.dtype(variable.dtype))


def _short(error: Exception) -> str:
    text = str(error).strip() or type(error).__name__
    return text.splitlines()[0][:200]
