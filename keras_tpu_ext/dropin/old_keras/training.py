"""`compile`, `fit` and their like with the arguments of Keras 2, and the methods that are gone."""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import keras
import numpy as np
from keras.src.backend.jax.trainer import JAXTrainer
from keras.src.trainers.trainer import Trainer

from keras_tpu_ext._runtime.training.model import ExactModel
from keras_tpu_ext.dropin import patching
from keras_tpu_ext.dropin.functions.random import give_generator
from keras_tpu_ext.dropin.old_keras import losses, metrics, optimizers, spellings
from keras_tpu_ext.dropin.report import mapped, told

Method = Callable[..., Any]

# Arguments that change no number on one backend, and what stands for them
_LOADING = ("workers", "use_multiprocessing", "max_queue_size", "max_q_size", "pickle_safe", "nb_worker")
_OF_COMPILE = {
    "experimental_run_tf_function": "nothing",
    "target_tensors": "nothing",
    "options": "nothing",
    "run_metadata": "nothing",
    "distribute": "nothing: the scope distributes",
    "pss_evaluation_shards": "nothing",
    "sample_weight_mode": "sample_weight of the shape of the losses",
}
_STEPS = ("steps_per_epoch", "validation_steps", "steps")
_RENAMED = {"nb_epoch": "epochs", "nb_val_samples": "validation_steps", "val_samples": "steps"}
_EXACT = "keras_tpu_ext._runtime.training.model.ExactModel"
_JAX = "keras.src.backend.jax.trainer.JAXTrainer"


def install() -> None:
    """Make old training work, of plain models and of those of the exact step."""
    # `keras.Model`'s own attributes are those that a scope patches: these stand behind them and before them.
    spellings.replace(Trainer, "keras.src.trainers.trainer.Trainer.compile", _compile)
    spellings.replace(ExactModel, f"{_EXACT}.compile", _compile)
    for name in ("fit", "evaluate", "predict"):
        spellings.replace(JAXTrainer, f"{_JAX}.{name}", _loop)
        spellings.replace(ExactModel, f"{_EXACT}.{name}", _loop)
    for name in ("train_on_batch", "test_on_batch"):
        spellings.replace(JAXTrainer, f"{_JAX}.{name}", _on_batch)
    for name, method in {
        "fit_generator": _fit_generator,
        "evaluate_generator": functools.partialmethod(_generator, "evaluate"),
        "predict_generator": functools.partialmethod(_generator, "predict"),
        "predict_proba": _predict_proba,
        "predict_classes": _predict_classes,
        "_make_predict_function": _nothing,
        "_make_train_function": _nothing,
        "_make_test_function": _nothing,
    }.items():
        patching.add(keras.Model, name, method)


def _compile(stock: Method) -> Method:
    @functools.wraps(stock)
    def compile(self: Any, optimizer: Any = "rmsprop", loss: Any = None, *args: Any, **kwargs: Any) -> None:
        args, kwargs = _third_by_its_kind(args, kwargs)
        _drop_old_options(kwargs)
        names = getattr(self, "output_names", None)
        for name in ("metrics", "weighted_metrics"):
            if kwargs.get(name) is not None:
                kwargs[name] = metrics.as_then(kwargs[name], names)
        loss = keras.tree.map_structure(losses.as_then, loss) if loss is not None else None
        self._compile_metrics = None  # with which Keras 3 goes on where there are no new metrics
        stock(self, optimizers.of_tensorflow_1(optimizer), loss, *args, **kwargs)
        if any(not losses.is_of_keras(type(layer)) for layer in self._flatten_layers()):
            give_generator(self)  # to a layer that draws in training only, which building has not seen
        vars(self)["_kte_trainable"] = {id(layer): trains for layer, trains in _trainable(self)}

    return compile


def _trainable(model: Any) -> list[tuple[Any, bool]]:
    return [(layer, layer.trainable) for layer in model._flatten_layers()]


@contextlib.contextmanager
def _as_compiled(model: Any) -> Iterator[None]:
    """Train what was trainable when the model was compiled, as the discriminator of a GAN that is frozen later."""
    now, compiled = _trainable(model), vars(model).get("_kte_trainable", {})
    then = [(layer, compiled.get(id(layer), trains)) for layer, trains in now]
    if all(a[1] == b[1] for a, b in zip(now, then, strict=True)):
        yield
        return
    told(f"{model.name}: trainable= after compile", "what trained when it was compiled, as in Keras 2")
    try:
        _set_trainable(then)
        yield
    finally:
        _set_trainable(now)


def _set_trainable(states: Iterable[tuple[Any, bool]]) -> None:
    for layer, trains in states:  # a model comes before its layers
        layer.trainable = trains


def _drop_old_options(kwargs: dict[str, Any]) -> None:
    for name, new in _OF_COMPILE.items():
        if kwargs.pop(name, None):
            mapped(f"compile({name}=)", new)
    if "experimental_steps_per_execution" in kwargs:
        mapped("experimental_steps_per_execution=", "steps_per_execution=")
        kwargs["steps_per_execution"] = kwargs.pop("experimental_steps_per_execution")
    for name in ("run_eagerly", "steps_per_execution", "jit_compile"):
        if name in kwargs and kwargs[name] is None:
            del kwargs[name]


def _third_by_its_kind(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Take a third positional argument that holds no numbers as metrics, which it was in Keras 2."""
    if not args or args[0] is None:
        return args, kwargs
    leaves = keras.tree.flatten(args[0])
    if all(isinstance(leaf, (int, float, np.number)) for leaf in leaves):
        return args, kwargs
    mapped("compile(optimizer, loss, metrics)", "compile(metrics=)")
    names = ("metrics", "loss_weights", "weighted_metrics", "run_eagerly", "steps_per_execution", "jit_compile")
    return (), {**kwargs, **dict(zip(names, args, strict=False))}


def _loop(stock: Method) -> Method:
    """Take the old arguments of `fit`, `evaluate` and `predict`."""

    @functools.wraps(stock)
    def loop(self: Any, *args: Any, **kwargs: Any) -> Any:
        with _as_compiled(self) if stock.__name__ == "fit" else contextlib.nullcontext():
            return stock(self, *args, **_of_loop(kwargs))

    return loop


def _of_loop(kwargs: dict[str, Any]) -> dict[str, Any]:
    for old in _RENAMED.keys() & kwargs.keys():
        mapped(f"{old}=", f"{_RENAMED[old]}=")
        kwargs[_RENAMED[old]] = kwargs.pop(old)
    for name in _LOADING:
        if name in kwargs:
            mapped(f"{name}=", "nothing: tf.data and PyDataset load")
            del kwargs[name]
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


def _on_batch(stock: Method) -> Method:
    """Take `reset_metrics=False`: the metrics of all batches since they were reset."""

    @functools.wraps(stock)
    def on_batch(self: Any, *args: Any, reset_metrics: bool = True, **kwargs: Any) -> Any:
        if reset_metrics:
            with _as_compiled(self) if stock.__name__ == "train_on_batch" else contextlib.nullcontext():
                return stock(self, *args, **kwargs)
        mapped("reset_metrics=False", "the metrics of all batches")
        vars(self)["reset_metrics"] = lambda: None  # Keras 3 resets without being asked
        try:
            return on_batch(self, *args, **kwargs)
        finally:
            del vars(self)["reset_metrics"]

    return on_batch


def _fit_generator(self: Any, generator: Any, steps_per_epoch: Any = None, epochs: int = 1, **kwargs: Any) -> Any:
    """Train on a generator, as `fit` does."""
    mapped("fit_generator", "fit")
    for name in ("samples_per_epoch", "nb_epoch"):
        if name in kwargs:
            value = kwargs.pop(name)
            steps_per_epoch, epochs = (value, epochs) if name == "samples_per_epoch" else (steps_per_epoch, value)
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
