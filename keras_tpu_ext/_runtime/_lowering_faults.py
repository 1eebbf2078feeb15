"""Saying which layer and which line keep a train step from becoming a program."""

from __future__ import annotations

import contextlib
import os
import re
import traceback
from collections.abc import Iterator
from typing import Any

from keras_tpu_ext._runtime.lowering import LoweringError
from keras_tpu_ext.errors import KteError

_IN_CALL = re.compile(
    r"Exception encountered when calling (?:layer ['\"](?P<quoted>[^'\"]+)['\"]|(?P<kind>\w+)\.call\(\))"
)
_PACKAGES = ("site-packages", "dist-packages", os.path.join("keras_tpu_ext", ""), os.path.join("lib", "python"))

# What to write instead, by what the framework's words have in them.
_CURES = (
    (
        (
            "ConcretizationTypeError",
            "NonConcreteBooleanIndexError",
            "TracerBoolConversionError",
            "TracerIntegerConversion",
        ),
        "A TPU needs shapes and branches that do not depend on values: mask with ops.where instead of indexing with "
        "a boolean, and use ops.cond or ops.while_loop instead of `if` and `while` on a tensor",
    ),
    (
        ("TracerArrayConversionError", "numpy()", "__array__"),
        "NumPy cannot run on a TPU: write the layer with keras.ops, or do this part in the input pipeline",
    ),
)


@contextlib.contextmanager
def told(model: Any) -> Iterator[None]:
    """Turn what the framework raises while it looks at a step into a `LoweringError` with layer, line and cure."""
    try:
        yield
    except (LoweringError, KteError, KeyboardInterrupt):
        raise
    except Exception as error:  # a layer of the user's may raise anything
        raise fault_of(error, model) from error


def fault_of(error: BaseException, model: Any) -> LoweringError:
    """Return the fault that an exception tells of."""
    text = f"{type(error).__name__}: {error}"
    line = _users_line(error)
    cure = next((cure for signs, cure in _CURES if any(sign in text for sign in signs)), "")
    return LoweringError(_first_sentence(text), layer=_layer(error, model), line=line, cure=cure)


def _layer(error: BaseException, model: Any) -> str:
    """Return the innermost layer in whose call it happened."""
    frames = traceback.walk_tb(error.__traceback__)
    layers = {id(layer): layer.name for layer in model._flatten_layers(include_self=False)}
    found = ""
    for frame, _ in frames:
        owner = frame.f_locals.get("self")
        found = layers.get(id(owner), found)
    if found:
        return found
    told = _IN_CALL.search(str(error))
    return (told["quoted"] or told["kind"] or "") if told else ""


def _users_line(error: BaseException) -> str:
    """Return file and line of the innermost frame that is in no library."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if not any(package in frame.filename for package in _PACKAGES)]
    own = [frame for frame in own if not frame.filename.startswith("<")]
    return f"{os.path.basename(own[-1].filename)}:{own[-1].lineno}" if own else ""


def _first_sentence(text: str, most: int = 300) -> str:
    line = " ".join(text.split("\n\n")[0].split())
    return line if len(line) <= most else f"{line[: most - 1]}…"
