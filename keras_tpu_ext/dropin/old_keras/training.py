"""`compile`, `fit` and their like with the arguments of Keras 2, and the methods that are gone."""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Iterable, Iterator
from typing import Any

import keras
import numpy as np
from keras.src.backend import in_stateless_scope

from keras_tpu_ext.dropin.functions.random import give_generator
from keras_tpu_ext.dropin.old_keras import arguments, history, losses, metrics, optimizers
from keras_tpu_ext.dropin.patching import Function, add, replace, wrap
from keras_tpu_ext.dropin.report import mapped, means_old, told
from keras_tpu_ext.tools.migrate.tables.old_arguments import METHOD_ARGUMENTS, ORDERS

_RUNNING: list[Any] = []  # the models whose loops run, the innermost last
_STEPS = ("steps_per_epoch", "validation_steps", "steps")


def install() -> None:
    """Make old training work, of plain models and of those of the exact step."""
    # `keras.Model`'s own attributes are those that a scope patches: these stand behind them and before them.
    exact, stock = "keras_tpu_ext._runtime.training.model.ExactModel", "keras.src.backend.jax.trainer.JAXTrainer"
    wrap({f"{of}.compile": _compile for of in ("keras.src.trainers.trainer.Trainer", exact)})
    wrap({f"{of}.{name}": _loop for of in (stock, exact) for name in ("fit", "evaluate", "predict")})
    wrap({f"{stock}.{name}": _on_batch for name in ("train_on_batch", "test_on_batch")})
    replace({"keras.Variable.value": _attached})
    for name, method in {
        "fit_generator": _fit_generator,
        "evaluate_generator": functools.partialmethod(_generator, "evaluate"),
        "predict_generator": functools.partialmethod(_generator, "predict"),
        "predict_proba": _predict_proba,
        "predict_classes": _predict_classes,
        **dict.fromkeys(("_make_predict_function", "_make_train_function", "_make_test_function"), _nothing),
    }.items():
        add(keras.Model, name, method)


def _compile(
    stock: Function, self: Any, optimizer: Any = "rmsprop", loss: Any = None, *args: Any, **kwargs: Any
) -> None:
    args, kwargs = _third_by_its_kind(args, kwargs)
    arguments.rename(METHOD_ARGUMENTS["compile"], kwargs)
    for name in ("run_eagerly", "steps_per_execution", "jit_compile"):
        if name in kwargs and kwargs[name] is None:
            del kwargs[name]
    names = getattr(self, "output_names", None) or []
    for name in ("metrics", "weighted_metrics"):
        if name in kwargs:
            kwargs[name] = metrics.as_then(kwargs[name], names)
    loss = keras.tree.map_structure(losses.as_then, loss) if loss is not None else None
    if loss is not None and len(names) > 1 and not isinstance(getattr(self, "output", None), dict):
        loss = losses.of_each_output(names, loss, kwargs)
    has_none = not any(kwargs.get(name) is not None for name in ("metrics", "weighted_metrics"))
    what = "a second compile, without metrics"  # Keras 3 keeps those of the first
    if has_none and getattr(self, "_compile_metrics", None) and means_old(what, "no metrics, as in Keras 2"):
        self._compile_metrics = None
    stock(self, optimizers.of_tensorflow_1(optimizer), loss, *args, **kwargs)
    if any(not losses.is_of_keras(type(layer)) for layer in self._flatten_layers()):
        give_generator(self)  # to a layer that draws in training only, which building has not seen
    vars(self)["_kte_trainable"] = {id(layer): trains for layer, trains in _trainable(self)}


def _trainable(model: Any) -> list[tuple[Any, bool]]:
    return [(layer, layer.trainable) for layer in model._flatten_layers()]


@contextlib.contextmanager
def _as_compiled(model: Any) -> Iterator[None]:
    """Train what was trainable when the model was compiled, as the discriminator of a GAN that is frozen later."""
    now, compiled = _trainable(model), vars(model).get("_kte_trainable", {})
    then = [(layer, compiled.get(id(layer), trains)) for layer, trains in now]
    changed = any(a[1] != b[1] for a, b in zip(now, then, strict=True))
    if not changed or not means_old(
        f"{model.name}: trainable= after compile", "what trained when it was compiled, as in Keras 2"
    ):
        yield
        return
    try:
        _set_trainable(then)
        yield
    finally:
        _set_trainable(now)


def _set_trainable(states: Iterable[tuple[Any, bool]]) -> None:
    for layer, trains in states:  # a model comes before its layers
        layer.trainable = trains


def _third_by_its_kind(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Take a third positional argument that holds no numbers as metrics, which it was in Keras 2."""
    if not args or args[0] is None:
        return args, kwargs
    leaves = keras.tree.flatten(args[0])
    if all(isinstance(leaf, (int, float, np.number)) for leaf in leaves):
        return args, kwargs
    mapped("compile(optimizer, loss, metrics)", "compile(metrics=)")
    return (), {**kwargs, **dict(zip(ORDERS["compile"].split()[2:], args, strict=False))}


def _loop(stock: Function, self: Any, *args: Any, **kwargs: Any) -> Any:
    """Take the old arguments of `fit`, `evaluate` and `predict`."""
    _RUNNING.append(self)
    try:
        with _as_compiled(self) if stock.__name__ == "fit" else contextlib.nullcontext():
            found = stock(self, *args, **_of_loop(kwargs))
    finally:
        _RUNNING.pop()
    return history.with_both_rates(found) if stock.__name__ == "fit" else found


def _attached(stock: property) -> property:
    """Let a callback read a weight that it has kept; Keras 3 gives weights their values for `self.model` only."""

    def value(self: Any) -> Any:
        if self._value is None and not in_stateless_scope():
            for model in _RUNNING:
                model.jax_state_sync()
        return stock.__get__(self)

    return stock.getter(value)


def _of_loop(kwargs: dict[str, Any]) -> dict[str, Any]:
    arguments.rename(METHOD_ARGUMENTS["fit"], kwargs)
    for name in _STEPS:
        steps = kwargs.get(name)
        if isinstance(steps, (float, np.floating)):
            told(f"{name}={steps}", f"{math.ceil(steps)}: the steps that TensorFlow took")
            kwargs[name] = math.ceil(steps)
    for name in ("epochs", "initial_epoch", "batch_size", "validation_batch_size"):
        size = kwargs.get(name)
        if isinstance(size, (float, np.number)) and int(size) == size:
            kwargs[name] = int(size)
    return kwargs


def _on_batch(stock: Function, self: Any, *args: Any, reset_metrics: bool = True, **kwargs: Any) -> Any:
    """Take `reset_metrics=False`: the metrics of all batches since they were reset."""
    if not reset_metrics:
        mapped("reset_metrics=False", "the metrics of all batches")
        vars(self)["reset_metrics"] = lambda: None  # Keras 3 resets without being asked
    try:
        with _as_compiled(self) if stock.__name__ == "train_on_batch" else contextlib.nullcontext():
            return stock(self, *args, **kwargs)
    finally:
        vars(self).pop("reset_metrics", None)


def _fit_generator(self: Any, generator: Any, steps_per_epoch: Any = None, epochs: int = 1, **kwargs: Any) -> Any:
    """Train on a generator, as `fit` does."""
    mapped("fit_generator", "fit")
    verbose = kwargs.pop("verbose", 1)
    if hasattr(generator, "__getitem__"):
        kwargs.setdefault("shuffle", True)
    else:
        kwargs["shuffle"] = False  # nothing to shuffle, and Keras 3 would say so
    return self.fit(generator, steps_per_epoch=steps_per_epoch, epochs=epochs, verbose=verbose, **kwargs)


def _generator(self: Any, method: str, generator: Any, steps: Any = None, *args: Any, **kwargs: Any) -> Any:
    """Evaluate or predict with a generator."""
    mapped(f"{method}_generator", method)
    kwargs.update(zip(("callbacks",), args, strict=False))
    return getattr(self, method)(generator, steps=steps, **{"verbose": 0, **kwargs})


def _predict_proba(self: Any, x: Any, batch_size: Any = None, verbose: int = 0) -> Any:
    """Return what `predict` does."""
    mapped("predict_proba", "predict")
    return self.predict(x, batch_size=batch_size, verbose=verbose)


def _predict_classes(self: Any, x: Any, batch_size: Any = None, verbose: int = 0) -> Any:
    """Return the class of each example: the largest output, or whether the only one is above 0.5."""
    mapped("predict_classes", "predict, then argmax or > 0.5")
    scores = self.predict(x, batch_size=batch_size, verbose=verbose)
    return scores.argmax(axis=-1) if scores.shape[-1] > 1 else (scores > 0.5).astype("int32")


def _nothing(self: Any, *args: Any, **kwargs: Any) -> None:
    """Do nothing: functions are made when they are needed."""
    mapped("_make_predict_function", "nothing")
