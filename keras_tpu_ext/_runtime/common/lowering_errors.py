"""Saying which layer and which line keep a train step from becoming a program."""

from __future__ import annotations

import contextlib
import inspect
import os
import re
import traceback
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from keras_tpu_ext._runtime.common.lowering import LoweringError
from keras_tpu_ext.errors import KteError

_IN_CALL = re.compile(r"calling (?:layer ['\"](?P<quoted>[^'\"]+)['\"]|(?P<kind>\w+)\.call\(\))")
_FRAME = re.compile(r'File "(?P<file>[^"]+)", line (?P<line>\d+)')
_NUMBER = re.compile(r"_\d+$")
_LIBRARIES = ("site-packages", "dist-packages", os.path.join("lib", "python"), "keras_tpu_ext" + os.sep, "<")

STATIC_SHAPES = (
    "a TPU needs shapes and branches that do not depend on values: mask with keras.ops.where instead of picking rows "
    "with a boolean, and use keras.ops.cond or while_loop instead of `if` and `while` on a tensor"
)
IN_PIPELINE = (
    "a TPU has no strings: turn them into numbers in the input pipeline, dataset.map(lambda x, y: (lookup(x), y)), "
    "and let the model take the numbers"
)
NO_PYTHON = (
    "no Python runs on a TPU: write the layer with keras.ops, or do this part in the input pipeline, dataset.map(...)"
)

# What to write instead, by what the framework's words have in them.
_CURES = (
    (("EagerPyFunc", "PyFunc", "pure_callback", "io_callback", "TracerArrayConversion", "numpy()"), NO_PYTHON),
    (("String", "LookupTable", "DT_STRING", "string"), IN_PIPELINE),
    (
        ("Concretization", "NonConcrete", "TracerBoolConversion", "TracerIntegerConversion", "dynamic shape"),
        STATIC_SHAPES,
    ),
)


@contextlib.contextmanager
def told(model: Any) -> Iterator[None]:
    """Turn what the framework raises while it looks at a step into a `LoweringError` with layer, line and cure."""
    try:
        yield
    except (LoweringError, KteError):
        raise
    except Exception as error:  # a layer of the user's may raise anything
        raise fault_of(error, model) from error


def check_dtypes(leaves: Iterable[Any], model: Any) -> None:
    """Check that no array of a batch holds strings.

    Raises:
        LoweringError: With the layer that looks them up, where there is one.
    """
    if not any(str(leaf.dtype) in ("string", "object") or str(leaf.dtype).startswith("str") for leaf in leaves):
        return
    raise lookup_fault("the batch holds strings", model)


def lookup_fault(cause: str, model: Any) -> LoweringError:
    """Return a fault of strings, with the first layer that looks something up, where there is one."""
    kinds = ("StringLookup", "IntegerLookup", "TextVectorization", "Hashing", "HashedCrossing")
    layer = next((one for one in layers_of(model) if type(one).__name__ in kinds), None)
    return LoweringError(cause, layer=_name(layer), line=_line_of_layer(layer), cure=IN_PIPELINE)


def fault_of(error: BaseException, model: Any) -> LoweringError:
    """Return the fault that an exception tells of, or one of those that it came of: Keras wraps and hides them."""
    chain = [error]
    while (deeper := chain[-1].__cause__ or chain[-1].__context__) is not None:
        chain.append(deeper)
    chain.reverse()
    told = next((one for one in chain if cure_of(_in_words(one))), error)
    layers = (_layer_of_frames(one, model) or _layer_of_words(str(one), model) for one in chain)
    layer = next((layer for layer in layers if layer is not None), None)
    line = next((line for one in chain if (line := _users_line(_frames_of(one)))), "") or _line_of_layer(layer)
    return LoweringError(_short(_in_words(told)), layer=_name(layer), line=line, cure=cure_of(_in_words(told)))


def fault_at(names: Iterable[str], cause: str, model: Any, frames: Sequence[tuple[str, int]] = ()) -> LoweringError:
    """Return a fault at an operation, of which one of `names` may tell the layer, and files and lines the line."""
    layer = next((found for name in names if (found := layer_at(name, model)) is not None), None)
    line = _users_line(list(frames))
    return LoweringError(cause, layer=_name(layer), line=line or _line_of_layer(layer), cure=cure_of(cause))


def layer_at(name: str, model: Any) -> Any:
    """Return the innermost layer in the name of an operation, such as `model/block/dense_1/MatMul`, or `None`."""
    layers = {layer.name: layer for layer in layers_of(model)}
    for part in reversed(name.split("/")):
        found = layers.get(part) or layers.get(_NUMBER.sub("", part))
        if found is not None:
            return found
    return None


def layers_of(model: Any) -> list[Any]:
    """Return all layers of a model at any depth."""
    return list(model._flatten_layers(include_self=False))


def cure_of(text: str) -> str:
    """Return what to write instead; empty where nobody knows."""
    return next((cure for signs, cure in _CURES if any(sign in text for sign in signs)), "")


def _layer_of_frames(error: BaseException, model: Any) -> Any:
    """Return the innermost layer in whose method it happened."""
    layers = {id(layer): layer for layer in layers_of(model)}
    owners = [layers.get(id(frame.f_locals.get("self"))) for frame, _ in traceback.walk_tb(error.__traceback__)]
    return next((layer for layer in reversed(owners) if layer is not None), None)


def _layer_of_words(text: str, model: Any) -> Any:
    named = [layer_at(name, model) for name in re.findall(r"\{\{node ([^}]+)\}\}", text)]
    found = next((layer for layer in named if layer is not None), None)
    told = _IN_CALL.search(text) if found is None else None
    if told is None:
        return found
    layers = layers_of(model)
    return next((one for one in layers if told["quoted"] == one.name or told["kind"] == type(one).__name__), None)


def _frames_of(error: BaseException) -> list[tuple[str, int]]:
    """Return files and lines of where it was raised, and of where TensorFlow says that an operation was made."""
    frames = [(frame.filename, frame.lineno or 0) for frame in traceback.extract_tb(error.__traceback__)]
    return [*frames, *((os.sep + found["file"], int(found["line"])) for found in _FRAME.finditer(str(error)))]


def _users_line(frames: list[tuple[str, int]]) -> str:
    """Return file and line of the innermost frame that is in no library, and inside of what this package calls."""
    places = [i for i, (file, _) in enumerate(frames) if "keras_tpu_ext" + os.sep in file]
    below = frames[places[-1] :] if places else frames
    own = [frame for frame in below if not any(library in frame[0] for library in _LIBRARIES)]
    return f"{os.path.basename(own[-1][0])}:{own[-1][1]}" if own else ""


def _line_of_layer(layer: Any) -> str:
    """Return where a layer of the user's own has its `call`."""
    if layer is None or type(layer).__module__.split(".")[0] in ("keras", "tf_keras"):
        return ""
    try:
        call = inspect.unwrap(type(layer).call)
        return f"{os.path.basename(inspect.getsourcefile(call) or '')}:{inspect.getsourcelines(call)[1]}"
    except (OSError, TypeError):  # typed into an interpreter
        return ""


def _name(layer: Any) -> str:
    return "" if layer is None else str(layer.name)


def _in_words(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"


def _short(text: str, most: int = 300) -> str:
    line = " ".join(text.split("\n\n")[0].split("The op is created at")[0].split())
    return line if len(line) <= most else f"{line[: most - 1]}…"
