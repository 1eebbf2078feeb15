"""The parts of a parity check, which both processes run, each with a freshly built model."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, Literal

import numpy as np

from keras_tpu_ext import _runtime
from keras_tpu_ext._runtime.common.error_messages import summary_of
from keras_tpu_ext.tools.parity import batches

Key = tuple[str, str]  # the scenario, and the quantity that is compared

_ONE_STEP, _TAIL, _INFINITY = "one step", "uneven tail, fit", "an inf in one replica"
_EVALUATE, _PREDICT = "uneven tail, evaluate", "uneven tail, predict"


@dataclasses.dataclass(frozen=True)
class Quantity:
    """A quantity to compare."""

    # `"series"`, numbers that are compared one by one; `"arrays"`, compared as one long vector; or `"exact"`, which
    # must be equal.
    kind: Literal["series", "arrays", "exact"]
    values: list[Any]  # one array for a series, else one for each array of the quantity
    names: tuple[str, ...] = ()  # the name of each array, if it has one
    note: str = ""  # a remark for the report


@dataclasses.dataclass(frozen=True)
class Part:
    """The result of one part of the check."""

    # The quantities to compare, in the order of the report.
    quantities: dict[Key, Quantity] = dataclasses.field(default_factory=dict)
    error: str = ""  # the error, in one line; empty if there was none
    unchecked: str = ""  # why there is nothing to compare; empty if there is something


Quantities = dict[Key, Quantity]


class NotCheckedError(Exception):
    """A part cannot be run with this model; the message says why."""


@dataclasses.dataclass(frozen=True)
class Setup:
    """The inputs of each part."""

    make_model: Callable[[], Any]  # returns a fresh model with the weights to start from
    batch: batches.Batch
    replicas: int  # number of replicas of the check, even if this process has one device
    steps: int  # number of training steps with the batch
    names: tuple[str, ...]  # a name for each of the model's weights
    reverse: bool = False  # whether the examples of a batch come in reverse order, which changes only rounding

    @property
    def ordered(self) -> batches.Batch:
        """The batch in the order in which training sees it."""
        indices = np.arange(batches.num_examples(self.batch))
        return batches.take(self.batch, indices[::-1]) if self.reverse else self.batch

    def uneven_epoch(self, *, in_order: bool = False) -> tuple[batches.Batch, int]:
        """Return the examples of an epoch of two batches, and the size of the first."""
        examples = batches.num_examples(self.batch)
        indices, first = batches.uneven_epoch(examples, self.replicas, reverse=self.reverse and not in_order)
        return batches.take(self.batch, indices), first

    def names_of(self, model: Any, variables: Any) -> tuple[str, ...]:
        """Return the names of `variables` of `model`, by their positions among its weights."""
        names = {id(variable): name for variable, name in zip(model.weights, self.names, strict=True)}
        return tuple(names[id(variable)] for variable in variables)


def _steps(setup: Setup) -> Quantities:
    """One step with the whole batch, repeated until there are enough steps: an epoch is one step."""
    model = setup.make_model()
    start, after_one = model.get_weights(), []

    def copy_weights(epoch: int, logs: object) -> None:
        if epoch == 0:
            after_one.extend(model.get_weights())

    callback = _runtime.keras.callbacks.LambdaCallback(on_epoch_end=copy_weights)
    examples = batches.num_examples(setup.batch)
    history = _fit(model, setup.ordered, examples, epochs=setup.steps, callbacks=[callback])
    found = {(_ONE_STEP, name): Quantity("series", [values[:1]]) for name, values in history.items()}
    found |= _updates(setup, _ONE_STEP, model, start, after_one)
    if setup.steps > 1:
        label = f"{setup.steps} steps"
        found |= {(label, name): Quantity("series", [values]) for name, values in history.items()}
        found |= _updates(setup, label, model, start, model.get_weights())
    return found


def _gradients(setup: Setup) -> Quantities:
    """The gradients of one step as they reach the optimizer's update, and those of the last batch of the tail."""
    model = setup.make_model()
    if model.optimizer is None:
        raise NotCheckedError("the model was compiled without an optimizer")
    recorded = _runtime.models.record_gradients(model)
    names = setup.names_of(model, model.trainable_variables)
    whole = setup.ordered, batches.num_examples(setup.batch)
    found = {}
    for label, (batch, size) in ((_ONE_STEP, whole), (_TAIL, setup.uneven_epoch())):
        _fit(model, batch, size)
        gradients = recorded()
        if gradients is None:
            why = "the step was skipped, or uses another optimizer"
            raise NotCheckedError(f"no gradient reached model.optimizer: {why}")
        found[label, "gradients"] = Quantity("arrays", gradients, names)
    return found


def _tail(setup: Setup) -> Quantities:
    """An epoch of two batches, the last of which is not divisible by the replicas."""
    model = setup.make_model()
    start = model.get_weights()
    history = _fit(model, *setup.uneven_epoch())
    found = {(_TAIL, name): Quantity("series", [values]) for name, values in history.items()}
    return found | _updates(setup, _TAIL, model, start, model.get_weights())


def _evaluate(setup: Setup) -> Quantities:
    """`evaluate` on the same two batches."""
    (x, y, sample_weight), first = setup.uneven_epoch()
    model = setup.make_model()
    logs = model.evaluate(x, y, sample_weight=sample_weight, batch_size=first, verbose=0, return_dict=True)
    found = {name: np.asarray(value, "float64").ravel() for name, value in logs.items()}
    return {(_EVALUATE, name): Quantity("series", [value]) for name, value in _loss_first(found).items()}


def _predict(setup: Setup) -> Quantities:
    """`predict` on the same two batches, always in order, because the order of predictions matters."""
    (x, _, _), first = setup.uneven_epoch(in_order=True)
    outputs = setup.make_model().predict(x, batch_size=first, verbose=0)
    values = [np.asarray(output) for output in _runtime.tree.flatten(outputs)]
    return {(_PREDICT, "predictions"): Quantity("arrays", values)}


def _infinity(setup: Setup) -> Quantities:
    """A good step, then one in which the weight of one example, on the second replica, is infinite."""
    model = setup.make_model()
    good, bad = batches.with_infinity(setup.batch, setup.replicas)
    try:
        _fit(model, good, batches.num_examples(good))
    except Exception as error:
        raise NotCheckedError(f"the model does not train with sample weights ({summary_of(error)})") from error
    before = [variable.numpy() for variable in model.trainable_variables]
    _fit(model, bad, batches.num_examples(bad))
    after = [variable.numpy() for variable in model.trainable_variables]
    unchanged = all(np.array_equal(old, new, equal_nan=True) for old, new in zip(before, after, strict=True))
    finite = [np.isfinite(values) for values in after]
    if not unchanged and all(values.all() for values in finite):
        raise NotCheckedError("the model's step does not use sample weights, which bring the inf in")
    note = "the step is skipped" if unchanged else "inf or NaN reaches the weights"
    names = setup.names_of(model, model.trainable_variables)
    found = {
        (_INFINITY, "skipped step"): Quantity("exact", [np.array(unchanged)], note=note),
        (_INFINITY, "finite weights"): Quantity("exact", finite, names),
    }
    scale = _runtime.progress.loss_scale(model)
    if scale is not None:
        found[_INFINITY, "loss scale"] = Quantity("exact", [np.array(scale)], note=f"{scale:g} after it")
    return found


def _fit(model: Any, batch: batches.Batch, batch_size: int, **kwargs: Any) -> dict[str, Any]:
    x, y, sample_weight = batch
    history = model.fit(
        x, y, sample_weight=sample_weight, batch_size=batch_size, shuffle=False, verbose=0, **kwargs
    ).history
    found = {name: np.asarray(values, "float64") for name, values in history.items() if _are_numbers(values)}
    return _loss_first(found)


def _are_numbers(values: Any) -> bool:
    return all(np.ndim(value) == 0 for value in values)


def _loss_first(logs: dict[str, Any]) -> dict[str, Any]:
    return dict(sorted(logs.items(), key=lambda item: item[0] != "loss"))


def _updates(setup: Setup, label: str, model: Any, start: list[Any], end: list[Any]) -> Quantities:
    """Return the changes of the weights since `start`, trainable and other weights separately."""
    trained = {id(variable) for variable in model.trainable_variables}
    found = {}
    for quantity, wanted in (("weights", True), ("non-trainable weights", False)):
        changes = [
            (np.subtract(new, old, dtype="float64"), name)
            for variable, name, old, new in zip(model.weights, setup.names, start, end, strict=True)
            if (id(variable) in trained) is wanted and variable.dtype != "string"
        ]
        if changes and (wanted or any(update.any() for update, _ in changes)):
            updates, names = zip(*changes, strict=True)
            found[label, quantity] = Quantity("arrays", list(updates), names)
    return found


# The scenario of each part, for parts that could not be run, and what runs it.
PARTS: dict[str, tuple[str, Callable[[Setup], Quantities]]] = {
    "steps": (_ONE_STEP, _steps),
    "gradients": (_ONE_STEP, _gradients),
    "evaluate": (_EVALUATE, _evaluate),
    "predict": (_PREDICT, _predict),
    "tail": (_TAIL, _tail),
    "inf": (_INFINITY, _infinity),
}


def run_part(name: str, setup: Setup) -> Part:
    """Run a part and return its result."""
    try:
        return Part(PARTS[name][1](setup))
    except NotCheckedError as reason:
        return Part(unchecked=str(reason))
    except Exception as error:  # a user's model may fail in any way, and the report says how
        return Part(error=summary_of(error))
