"""References to user functions that another process can load: by name, by file, or pickled."""

from __future__ import annotations

import dataclasses
import difflib
import importlib
import importlib.util
import os
import pathlib
import sys
import traceback
from collections.abc import Callable
from contextvars import ContextVar
from types import FunctionType, ModuleType
from typing import Any

from keras_tpu_ext import _runtime
from keras_tpu_ext.checks import arguments as check
from keras_tpu_ext.errors import ArgumentError, MissingExtraError, ParityCheckError

_SCRIPT = "keras_tpu_ext_parity_script"
_IMPORTED: ContextVar[str] = ContextVar("_IMPORTED", default="")  # the module that the command is importing
_WRITE = "Write module:function, my_models:build_model say."
_IN_A_FILE = "Write `%%writefile my_models.py` above the cell with the function, and my_models:function here."


@dataclasses.dataclass(frozen=True)
class FunctionReference:
    """A function that another process can load."""

    label: str  # its name in messages
    module: str = ""  # name of its module; empty if it is loaded from a file or a pickle
    name: str = ""  # its qualified name in the module
    file: str = ""  # the file of the module; empty if there is none
    pickled: bytes = b""  # the function itself, pickled by cloudpickle; empty if it is loaded by name

    @classmethod
    def of(cls, build_model: Any) -> FunctionReference:
        """Return a reference to `build_model`, which may be one already."""
        if isinstance(build_model, cls):
            return build_model
        if not callable(build_model) or isinstance(build_model, _runtime.keras.Model):
            got = repr(build_model)
            if isinstance(build_model, _runtime.keras.Model):
                got = f"a model, {build_model.name!r}"
            write = (
                "check_parity(build_model, batch), without brackets after the function's name: each of the two "
                "processes makes a model of its own"
            )
            needed = "a function that returns a compiled Keras model"
            raise check.argument_error("check_parity", "build_model", needed, got, write)
        label = getattr(build_model, "__qualname__", type(build_model).__name__)
        module = sys.modules.get(getattr(build_model, "__module__", None) or "")
        if isinstance(build_model, FunctionType) and module is not None and _lookup(module, label) is build_model:
            name, file = _importable_name(module), _file_of(module)
            if name or file:
                return cls(label, name, label, file)
        return cls(label, pickled=_pickled(build_model, label))

    def __call__(self) -> Any:
        """Load and call the function."""
        try:
            return self.load()()
        except Exception as error:
            raise ParityCheckError(f"{self.label} failed: {error_line(error)}") from error

    def load(self) -> Callable[[], Any]:
        """Return the function, in this process."""
        if self.pickled:
            import pickle

            loaded: Callable[[], Any] = pickle.loads(self.pickled)
            return loaded
        function = _lookup(self._module(), self.name)
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


def parse_reference(reference: str) -> FunctionReference:
    """Return the reference for `"module:function"` or `"file.py:function"`, after importing the module."""
    named, _, function = reference.partition(":")
    folder, file = os.path.split(named)
    if file.endswith(".ipynb"):
        raise ArgumentError(f"A notebook cannot be imported; got {reference!r}. {_IN_A_FILE}")
    module = named
    if file.endswith(".py"):
        module = file.removesuffix(".py")
        sys.path.insert(0, os.path.abspath(folder))  # as `python file.py` does
    if not (module and function):
        raise ArgumentError(f"A function is named by its module and its name; got {reference!r}. {_WRITE}")
    _runtime.progress.watch_fits(_refuse_during_import)
    token = _IMPORTED.set(named)
    try:
        imported = importlib.import_module(module)
    except Exception as error:  # a user's file may raise anything
        missing = error.name if isinstance(error, ModuleNotFoundError) else None
        if missing is None or not f"{module}.".startswith(f"{missing}."):
            raise ParityCheckError(f"{named} cannot be imported: {error_line(error)}") from error
        near = difflib.get_close_matches(module, [path.stem for path in pathlib.Path().glob("*.py")], n=1)
        write = f"Write {near[0]}:{function}, or another module:function." if near else _WRITE
        raise ArgumentError(
            f"There is no module {named!r} in this folder or installed. {write} The command looks in the folder "
            "that it is called in."
        ) from error
    finally:
        _IMPORTED.reset(token)
    if not callable(getattr(imported, function, None)):
        public = [name for name, value in vars(imported).items() if callable(value) and not name.startswith("_")]
        known = f" It has {', '.join(sorted(public)[:8])}." if public else ""
        raise ArgumentError(f"The module {named!r} has no function {function!r}.{known} {_WRITE}")
    return FunctionReference(reference, module, function)


def _refuse_during_import(model: Any, callbacks: list[Any], *_: object) -> list[Any]:
    if named := _IMPORTED.get():
        raise ArgumentError(
            f'Importing {named} trains {model.name!r}. Write `if __name__ == "__main__":` above what calls fit.'
        )
    return callbacks


def unpack_model(result: Any) -> tuple[Any, Any]:
    """Return a model and its batch, `None` without one, of a model, (model, batch) or (build_model, batch)."""
    model, batch = result if isinstance(result, tuple) and len(result) == 2 else (result, None)
    return model() if callable(model) and not isinstance(model, _runtime.keras.Model) else model, batch


def check_compiled_model(label: str, model: Any, needed: str = "a compiled Keras model") -> None:
    """Check the return value of the function `label`."""
    if not isinstance(model, _runtime.keras.Model):
        raise ArgumentError(
            f"{label} must return {needed}; it returned {type(model).__name__}. Write `return model` at its end."
        )
    if not _runtime.models.is_compiled(model):
        raise ArgumentError(
            f"{label} must return a compiled model; {model.name!r} is not compiled. "
            'Write model.compile("adam", loss, metrics=[...]) before `return model`.'
        )


def error_line(error: BaseException) -> str:
    """Return an error in one line, with the last line of the current folder that it passed."""
    text = " ".join(str(error).split())
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if frame.filename.startswith(os.getcwd() + os.sep) and "site-packages" not in frame.filename
    ]
    where = f" ({os.path.relpath(frames[-1].filename)}, line {frames[-1].lineno})" if frames else ""
    return f"{type(error).__name__}{': ' if text else ''}{text}{where}"


def _importable_name(module: ModuleType) -> str:
    """Return the name under which another process imports `module`; empty for a script or a notebook."""
    spec = getattr(module, "__spec__", None)
    if module.__name__ == "__main__":
        return spec.name if spec is not None else ""
    return module.__name__


def _file_of(module: ModuleType) -> str:
    file = getattr(module, "__file__", None) or ""
    return os.path.realpath(file) if os.path.isfile(file) else ""


def _lookup(module: ModuleType, qualified_name: str) -> Any:
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
    except Exception as error:  # the type depends on what the function refers to
        raise ArgumentError(
            f"{why} It cannot be pickled either ({type(error).__name__}: {error}). {write}, and make everything it "
            "needs inside it."
        ) from error
