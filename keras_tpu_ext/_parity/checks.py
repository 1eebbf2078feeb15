"""The scenes that both processes of a parity check act out, each with a freshly built model."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np

from keras_tpu_ext import _runtime
from keras_tpu_ext._parity import arrays
from keras_tpu_ext._parity.job import PARTS, Key, Part, Quantity

Quantities = dict[Key, Quantity]


class NotCheckedError(Exception):
    """A scene cannot be acted out with this model; the text says why."""


@dataclasses.dataclass(frozen=True)
class Stage:
    """What a scene has to work with.

    Attributes:
        make: Returns a fresh model with the weights to start from.
        batch: The batch.
        replicas: Number of replicas of the check, also on one device.
        steps: Number of training steps with the batch.
        names: A name for each of the model's weights.
        reverse: Whether batches are trained on in reverse order, which changes nothing but rounding.
    """

    make: Callable[[], Any]
    batch: arrays.Batch
    replicas: int
    steps: int
    names: tuple[str, ...]
    reverse: bool = False

    def names_of(self, model: Any, variables: Any) -> tuple[str, ...]:
        """Return the names of `variables` of `model`, a later model than the one that gave the names."""
        names = {id(variable): name for variable, name in zip(model.weights, self.names, strict=True)}
        return tuple(names[id(variable)] for variable in variables)


def act(stage: Stage, names: list[str]) -> dict[str, Part]:
    """Act out the parts of a check called `names` and return what came of each."""
    scenes = {
        "steps": _steps,
        "gradients": _gradients,
        "evaluate": _evaluate,
        "predict": _predict,
        "tail": _tail,
        "inf": _infinity,
    }
    return {name: _part(scenes[name], stage) for name in names}


def _part(scene: Callable[[Stage], Quantities], stage: Stage) -> Part:
    try:
        return Part(scene(stage))
    except NotCheckedError as reason:
        return Part(unchecked=str(reason))
    except Exception as error:  # a model of the user's own may fail in any way, and the report says how
        return Part(error=in_one_line(error))


def in_one_line(error: BaseException) -> str:
    """Return the type and the most telling line of an error, without a compiler's stack of nodes."""
    lines = [line.strip() for line in str(error).splitlines()]
    told = [
        line for line in lines if line and not line.startswith(("Graph execution error", "Detected at node", "File"))
    ]
    told = [line for line in told if not line.startswith(("<stack", "The stack trace"))]
    text = told[-1] if isinstance(error, RuntimeError) and told else (told or [""])[0]
    return f"{type(error).__name__}: {text[:300]}".rstrip(": ")


def _steps(stage: Stage) -> Quantities:
    """One batch whole, and then again until there are enough steps: an epoch is one step."""
    model = stage.make()
    start, after_one = model.get_weights(), []

    def keep(epoch: int, logs: Any) -> None:
        if epoch == 0:
            after_one.extend(model.get_weights())

    callback = _runtime.keras.callbacks.LambdaCallback(on_epoch_end=keep)
    examples = arrays.size(stage.batch)
    history = _fit(model, _in_order(stage), examples, epochs=stage.steps, callbacks=[callback])
    found = {("one step", name): Quantity("series", [values[:1]]) for name, values in history.items()}
    found |= _updates(stage, "one step", model, start, after_one)
    if stage.steps > 1:
        label = f"{stage.steps} steps"
        found |= {(label, name): Quantity("series", [values]) for name, values in history.items()}
        found |= _updates(stage, label, model, start, model.get_weights())
    return found


def _gradients(stage: Stage) -> Quantities:
    """The gradients of one step as they reach the optimizer's update, and those of the last batch of the tail."""
    model = stage.make()
    if model.optimizer is None:
        raise NotCheckedError("the model was compiled without an optimizer")
    recorded = _runtime.probes.record_gradients(model)
    names = stage.names_of(model, model.trainable_variables)
    places, first = arrays.tail_places(arrays.size(stage.batch), stage.replicas, reverse=stage.reverse)
    whole = (_in_order(stage), arrays.size(stage.batch))
    found = {}
    for label, (batch, size) in (("one step", whole), (PARTS["tail"], (arrays.take(stage.batch, places), first))):
        _fit(model, batch, size)
        gradients = recorded()
        if gradients is None:
            why = "the step was skipped, or uses another optimizer"
            raise NotCheckedError(f"no gradient reached model.optimizer: {why}")
        found[label, "gradients"] = Quantity("arrays", gradients, names)
    return found


def _tail(stage: Stage) -> Quantities:
    """An epoch of two batches, of which the last does not divide by the replicas."""
    model = stage.make()
    start = model.get_weights()
    places, first = arrays.tail_places(arrays.size(stage.batch), stage.replicas, reverse=stage.reverse)
    history = _fit(model, arrays.take(stage.batch, places), first)
    label = PARTS["tail"]
    found = {(label, name): Quantity("series", [values]) for name, values in history.items()}
    return found | _updates(stage, label, model, start, model.get_weights())


def _evaluate(stage: Stage) -> Quantities:
    """`evaluate` on the same two batches."""
    places, first = arrays.tail_places(arrays.size(stage.batch), stage.replicas, reverse=stage.reverse)
    x, y, sample_weight = arrays.take(stage.batch, places)
    model = stage.make()
    logs = model.evaluate(x, y, sample_weight=sample_weight, batch_size=first, verbose=0, return_dict=True)
    found = {name: np.asarray(value, "float64").ravel() for name, value in logs.items()}
    return {(PARTS["evaluate"], name): Quantity("series", [value]) for name, value in _loss_first(found).items()}


def _predict(stage: Stage) -> Quantities:
    """`predict` on the same two batches, always in order: predictions have one."""
    places, first = arrays.tail_places(arrays.size(stage.batch), stage.replicas)
    x, _, _ = arrays.take(stage.batch, places)
    outputs = stage.make().predict(x, batch_size=first, verbose=0)
    values = [np.asarray(output) for output in _runtime.tree.flatten(outputs)]
    return {(PARTS["predict"], "predictions"): Quantity("arrays", values)}


def _infinity(stage: Stage) -> Quantities:
    """A good step, then one in which the weight of one example, on the second replica, is infinite."""
    model = stage.make()
    good, bad = arrays.with_infinity(stage.batch, stage.replicas)
    try:
        _fit(model, good, arrays.size(good))
    except Exception as error:
        raise NotCheckedError(f"the model does not train with sample weights ({in_one_line(error)})") from error
    before = _trainable(model)
    _fit(model, bad, arrays.size(bad))
    after = _trainable(model)
    unchanged = all(np.array_equal(old, new, equal_nan=True) for old, new in zip(before, after, strict=True))
    finite = [np.isfinite(values) for values in after]
    if not unchanged and all(places.all() for places in finite):
        raise NotCheckedError("the model's step does not use sample weights, which bring the inf in")
    note = "the step is skipped" if unchanged else "inf or NaN reaches the weights"
    label = PARTS["inf"]
    names = stage.names_of(model, model.trainable_variables)
    found = {
        (label, "skipped step"): Quantity("exact", [np.array(unchanged)], note=note),
        (label, "finite weights"): Quantity("exact", finite, names),
    }
    scale = _runtime.progress.loss_scale(model)
    if scale is not None:
        found[label, "loss scale"] = Quantity("exact", [np.array(scale)], note=f"{scale:g} after it")
    return found


def _in_order(stage: Stage) -> arrays.Batch:
    places = np.arange(arrays.size(stage.batch))
    return arrays.take(stage.batch, places[::-1]) if stage.reverse else stage.batch


def _fit(model: Any, batch: arrays.Batch, batch_size: int, **kwargs: Any) -> dict[str, Any]:
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


def _trainable(model: Any) -> list[Any]:
    return [variable.numpy() for variable in model.trainable_variables]


def _updates(stage: Stage, label: str, model: Any, start: list[Any], end: list[Any]) -> Quantities:
    """Return what training has added to the weights, trainable ones and others apart."""
    trained = {id(variable) for variable in model.trainable_variables}
    found = {}
    for quantity, wanted in (("weights", True), ("non-trainable weights", False)):
        changes = [
            (np.subtract(new, old, dtype="float64"), name)
            for variable, name, old, new in zip(model.weights, stage.names, start, end, strict=True)
            if (id(variable) in trained) is wanted and variable.dtype != "string"
        ]
        if changes and (wanted or any(update.any() for update, _ in changes)):
            updates, names = zip(*changes, strict=True)
            found[label, quantity] = Quantity("arrays", list(updates), names)
    return found
