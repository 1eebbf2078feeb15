"""What cannot run on JAX is named when it is reached, with the line to write."""

from __future__ import annotations

import functools
import importlib.abc
import importlib.machinery
import inspect
import re
import sys
import sysconfig
import types
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf
from keras import ops
from keras.src.utils import jax_utils

from keras_tpu_ext.dropin import imports, report
from keras_tpu_ext.dropin.errors import OutOfReachError, out_of_reach, variable_in_model
from keras_tpu_ext.dropin.patching import Function, add, wrap
from keras_tpu_ext.dropin.tensors import has_jax_value
from keras_tpu_ext.tools.migrate.tables import out_of_reach as tables
from keras_tpu_ext.tools.migrate.tables.out_of_reach import PACKAGES, STEPS, TF1_GONE

_STEPS = "docs/models.md"

# Packages that are not installed: what a program is to write that imports them.
_MISSING = {
    **PACKAGES,
    "tensorflow.contrib": TF1_GONE["contrib"],
    "transformers": str(tables.out_of_reach("transformers.TF")),
}

# Of packages that are installed, names that need Keras 2.
_NEEDS_KERAS_2 = {"transformers": re.compile("TF[A-Z]"), "tensorflow_hub": re.compile("KerasLayer$")}


class MissingModuleError(OutOfReachError, ModuleNotFoundError):
    """A package that is not installed; a `ModuleNotFoundError`, so that `except ImportError` works."""


def install() -> None:
    """Name what is out of reach when it is reached."""
    tape, lookup = "tensorflow.GradientTape", "tensorflow.python.ops.lookup_ops"
    gradients = ("gradient", "jacobian", "batch_jacobian")
    tables = ("InitializableLookupTableBase", "StaticVocabularyTable", "MutableHashTable", "DenseHashTable")
    draws = ("normal", "truncated_normal", "uniform", "binomial")
    wrap(
        {
            **{f"{tape}.{name}": functools.partial(_gradient, name) for name in gradients},
            f"{tape}.watch": _watch,
            "keras.src.trainers.trainer.Trainer._assert_compile_called": _checking_steps,
            **{f"{lookup}.{table}.lookup": _lookup for table in tables},
            **{f"tensorflow.random.Generator.{name}": functools.partial(_draw, name) for name in draws},
            "tensorflow.python.saved_model.function_deserialization.RestoredFunction.__call__": _restored,
        }
    )
    add(tf.Variable, "__jax_array__", _value)
    sys.meta_path.insert(0, _Installed())
    imports.provide(_missing, first=False)


def _of_tape(what: str) -> OutOfReachError:
    return out_of_reach(
        what=what,
        why="TensorFlow's tape does not see what Keras computes on JAX",
        write="model.compile(...) and model.fit(...); your own loss goes into compile, or compute_loss of a model",
        page=_STEPS,
    )


def _gradient(
    name: str, stock: Function, self: Any, target: Any, sources: Any = None, *args: Any, **kwargs: Any
) -> Any:
    sources = kwargs.pop("source", sources) if name != "gradient" else sources
    if has_jax_value((target, sources)):
        raise _of_tape(f"tape.{name} of a Keras model")
    found = stock(self, target, sources, *args, **kwargs)
    if any(one is None for one in tf.nest.flatten(found)):
        report.told(f"tape.{name}(...) is None", "TensorFlow's tape sees nothing of what Keras computes on JAX")
    return found


def _watch(stock: Function, self: Any, tensor: Any) -> None:
    if has_jax_value(tensor):
        raise _of_tape("tape.watch of a tensor or variable of Keras")
    stock(self, tensor)


def _checking_steps(stock: Function, self: Any, method_name: str | None = None) -> None:
    """When `fit` or `evaluate` begins, check that the model's own steps are written for JAX."""
    stock(self, method_name)
    step = "train_step" if method_name in ("fit", "train_on_batch") else "test_step"
    if _takes_only_data(getattr(self, step)):
        raise out_of_reach(
            what=f"{type(self).__name__}.{step}(self, data)",
            why="it is written for TensorFlow, with a tf.GradientTape or layers that change as they are called",
            write=f"{STEPS[step]}; or, on JAX, train_step(self, state, data)",
            page=_STEPS,
        )


def _takes_only_data(step: Function) -> bool:
    """Return whether a bound step takes the data and no state."""
    try:
        parameters = inspect.signature(step).parameters.values()
    except (TypeError, ValueError):
        return False
    needed = [one for one in parameters if one.default is one.empty]
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return len(needed) == 1 and needed[0].kind in positional


def _value(variable: Any) -> Any:
    """Return the value of a variable of TensorFlow to JAX, but not in a step, where it would stay the same."""
    if jax_utils.is_in_jax_tracing_scope():
        raise variable_in_model(variable)
    return ops.convert_to_tensor(variable.numpy())


def _lookup(stock: Function, self: Any, keys: Any, name: str | None = None) -> Any:
    if has_jax_value(keys):
        raise out_of_reach(
            what="A table of tf.lookup in a model",
            why="it is TensorFlow's, and may have strings",
            write="dataset.map(lambda x, y: (table.lookup(x), y)) before fit, or keras.layers.IntegerLookup",
        )
    return stock(self, keys, name)


def _draw(name: str, stock: Function, self: Any, *args: Any, **kwargs: Any) -> Any:
    if jax_utils.is_in_jax_tracing_scope() and tf.executing_eagerly():  # every step would have the same numbers
        raise out_of_reach(
            what=f"tf.random.Generator.{name} in a model",
            why="its state is TensorFlow's, and does not change in a compiled step",
            write="tf.random.normal(shape) and its like, or keras.random with a keras.random.SeedGenerator",
        )
    return stock(self, *args, **kwargs)


def _restored(stock: Function, self: Any, *args: Any, **kwargs: Any) -> Any:
    if has_jax_value((args, kwargs)):
        raise out_of_reach(
            what="A model of tf.saved_model.load in a model",
            why="it is a graph of TensorFlow",
            write="dataset.map(lambda x, y: (loaded(x), y)) before fit, or the model from its .keras or .h5 file",
        )
    return stock(self, *args, **kwargs)


def _missing(name: str) -> None:
    """Say what to write to a program that imports a package of the table which is not installed."""
    if name in _MISSING and _is_program(sys._getframe(2)):
        what = out_of_reach(what=f"The package {name}", why="it is not installed", write=_MISSING[name])
        error = MissingModuleError(str(what))
        error.name = name
        raise error


def _is_program(frame: types.FrameType | None) -> bool:
    """Return whether the import is one of the user's program, and not a package's that asks what is there."""
    while frame is not None and frame.f_code.co_filename.startswith("<frozen importlib._bootstrap"):
        frame = frame.f_back
    libraries = (sysconfig.get_paths()["stdlib"], "/site-packages/", "/dist-packages/", "<frozen importlib")
    return frame is not None and not any(part in frame.f_code.co_filename for part in libraries)


class _Installed(importlib.abc.MetaPathFinder):
    """Lets a package of the table be imported, and then guards the names in it that need Keras 2."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname not in _NEEDS_KERAS_2:
            return None
        spec = importlib.machinery.PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader.exec_module = _then_guard(fullname, spec.loader.exec_module)  # type: ignore[assignment, method-assign]
        return spec


def _then_guard(name: str, execute: Callable[[types.ModuleType], None]) -> Callable[[types.ModuleType], None]:
    def execute_and_guard(module: types.ModuleType) -> None:
        execute(module)
        module = sys.modules.get(name, module)  # a package may have put another one there
        module.__class__ = _guarded(name, type(module))

    return execute_and_guard


def _guarded(package: str, kind: type[types.ModuleType]) -> type[types.ModuleType]:
    """Return a class of modules like `kind`, without the names that need Keras 2."""
    why, write = "it is written for Keras 2 and TensorFlow", str(tables.out_of_reach(f"{package}.TF"))

    class Guarded(kind):  # type: ignore[valid-type, misc]
        def __getattribute__(self, name: str) -> Any:
            if _NEEDS_KERAS_2[package].match(name):
                raise out_of_reach(what=f"{package}.{name}", why=why, write=write)
            return super().__getattribute__(name)

    return Guarded
