"""How a fresh process gets the user's function: by name, by file, or pickled."""

from __future__ import annotations

import dataclasses
import importlib
import importlib.util
import os
import sys
from collections.abc import Callable
from types import FunctionType, ModuleType
from typing import Any

from keras_tpu_ext import _runtime
from keras_tpu_ext.errors import ArgumentError, MissingExtraError

_SCRIPT = "keras_tpu_ext_parity_script"


@dataclasses.dataclass(frozen=True)
class BuilderSource:
    """Where a function is.

    Attributes:
        label: What to call it in messages.
        module: Name of its module; empty where only the file or the pickle leads to it.
        name: Its qualified name in the module.
        file: The file of the module; empty where there is none.
        pickled: The function itself, pickled by cloudpickle; empty where a name leads to it.
    """

    label: str
    module: str = ""
    name: str = ""
    file: str = ""
    pickled: bytes = b""

    @classmethod
    def of(cls, build_model: Any) -> BuilderSource:
        """Return how a fresh process gets `build_model`.

        Raises:
            ArgumentError: If it is no function, or cannot be brought into another process.
            MissingExtraError: If that needs cloudpickle, which is not installed.
        """
        if not callable(build_model) or isinstance(build_model, _runtime.keras.Model):
            raise ArgumentError(
                f"`build_model` must be a function that returns a compiled Keras model; got {_what(build_model)}. "
                "Write check_parity(build_model, batch), without brackets after the function's name: each of the "
                "two processes makes a model of its own."
            )
        label = getattr(build_model, "__qualname__", type(build_model).__name__)
        module = sys.modules.get(getattr(build_model, "__module__", None) or "")
        if isinstance(build_model, FunctionType) and module is not None and _find(module, label) is build_model:
            name, file = _importable_name(module), _file_of(module)
            if name or file:
                return cls(label, name, label, file)
        return cls(label, pickled=_pickled(build_model, label))

    def load(self) -> Callable[[], Any]:
        """Return the function, in this process."""
        if self.pickled:
            import pickle

            loaded: Callable[[], Any] = pickle.loads(self.pickled)
            return loaded
        function = _find(self._module(), self.name)
        if not callable(function):
            raise ArgumentError(f"{self.module or self.file} has no function {self.name!r}.")
        return function

    def _module(self) -> ModuleType:
        if self.module:
            try:
                module = importlib.import_module(self.module)
            except ModuleNotFoundError:
                if not self.file:
                    raise
            else:
                if not self.file or _file_of(module) == self.file:
                    return module
        spec = importlib.util.spec_from_file_location(_SCRIPT, self.file)
        if spec is None or spec.loader is None:
            raise ArgumentError(f"{self.file} is no Python file. Write check_parity in a file that ends in .py.")
        module = importlib.util.module_from_spec(spec)
        sys.modules[_SCRIPT] = module  # dataclasses and pickle look a class's module up there
        spec.loader.exec_module(module)
        return module


def _importable_name(module: ModuleType) -> str:
    """Return the name under which another process imports `module`; empty for a script or a notebook."""
    spec = getattr(module, "__spec__", None)
    if module.__name__ == "__main__":
        return spec.name if spec is not None else ""
    return module.__name__


def _file_of(module: ModuleType) -> str:
    file = getattr(module, "__file__", None) or ""
    return os.path.realpath(file) if os.path.isfile(file) else ""


def _find(module: ModuleType, qualified_name: str) -> Any:
    thing: Any = module
    for name in qualified_name.split("."):
        thing = getattr(thing, name, None)
    return thing


def _pickled(build_model: Any, label: str) -> bytes:
    why = (
        f"check_parity runs {label!r} in fresh processes, and it is no function that they can import "
        "(a lambda, a function inside another one, or one typed into a notebook)."
    )
    write = "Write it as `def build_model(): ...` at the top level of a file and import it from there"
    try:
        import cloudpickle
    except ModuleNotFoundError as error:
        raise MissingExtraError(f"{why} {write}, or install what can send it: pip install cloudpickle") from error
    try:
        return bytes(cloudpickle.dumps(build_model))
    except Exception as error:  # whatever the function holds on to decides what this is
        raise ArgumentError(
            f"{why} It cannot be pickled either ({type(error).__name__}: {error}). {write}, and make everything it "
            "needs inside it."
        ) from error


def _what(value: Any) -> str:
    if isinstance(value, _runtime.keras.Model):
        return f"a model, {value.name!r}"
    return repr(value)
