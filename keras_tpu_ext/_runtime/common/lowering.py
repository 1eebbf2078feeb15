"""A step lowered for a compiler, and the layer and line that keep one from being lowered."""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
import os
import re
import traceback
from collections.abc import Iterable, Iterator, Mapping, Sequence

from keras_tpu_ext._runtime.common.error_messages import message_of, shorten
from keras_tpu_ext._runtime.common.layouts import VariableLayout
from keras_tpu_ext._runtime.common.saved_programs import Signature
from keras_tpu_ext._runtime.common.types import Layer, Model, Tensor
from keras_tpu_ext.errors import KteError

_IN_CALL = re.compile(r"calling (?:layer ['\"](?P<quoted>[^'\"]+)['\"]|(?P<kind>\w+)\.call\(\))")
_FRAME = re.compile(r'File "(?P<file>[^"]+)", line (?P<line>\d+)')
_NODE = re.compile(r"\{\{node ([^}]+)\}\}")
_NUMBER = re.compile(r"_\d+$")
_LIBRARIES = ("site-packages", "dist-packages", os.path.join("lib", "python"), "keras_tpu_ext" + os.sep, "<")
_LOOKUPS = ("StringLookup", "IntegerLookup", "TextVectorization", "Hashing", "HashedCrossing")

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

IN_SCOPE = (
    "make and compile the model in kte.strategy_scope(), or as a kte.TPUModel: each chip then runs the kernel for "
    "its part of the batch"
)

# The fix for a message in which a pattern is found.
_CURES = (
    (r"PyFunc|(pure_|io_|Pure |IO )callback|calls Python|TracerArrayConversion|numpy\(\)", NO_PYTHON),
    ("[Ss]tring|LookupTable|DT_STRING", IN_PIPELINE),
    ("Concretization|NonConcrete|Tracer(Bool|Integer)Conversion|dynamic shape", STATIC_SHAPES),
    ("Mosaic kernels cannot be automatically partitioned", IN_SCOPE),
)

_Frame = tuple[str, int]  # file and line


@dataclasses.dataclass(frozen=True)
class LoweredStep:
    """A train step, or another program of `fit`, `evaluate` or `predict`, in StableHLO."""

    program: bytes  # the module, as MLIR bytecode or text
    # True if it is the program of all devices, which the compiler partitions; False for that of one replica.
    partitions: bool
    examples: int  # examples in the batch of all replicas
    batch_bytes: int  # bytes of that batch as the host sends it to the devices
    layers: tuple[str, ...]  # the names of the model's layers, at any depth
    roles: Mapping[str, str]  # what other parts of operation names stand for, such as `{"sgd": "(optimizer)"}`
    arguments: Mapping[str, str]  # the variables, such as `"conv1/kernel"`, by the program's names for its arguments
    # Number of leading results that are not variables; all others alias the variables that they update. `None` if the
    # program says itself which arguments it donates.
    results: int | None = None
    digest: str = ""  # the SHA-256 of the program without names and lines of code; empty on TensorFlow
    layouts: tuple[VariableLayout, ...] = ()  # the layout of each variable of the model
    complaints: tuple[str, ...] = ()  # likely mistakes in these layouts
    name: str = "train"  # what it does, as in `"evaluate, 8 steps, short batches"`
    steps: int = 1  # the most that it runs
    signature: Signature | None = None  # what JAX would ask its compiler for
    compile_options: bytes = b""  # the options for the compiler, as JAX serialises them

    @property
    def identity(self) -> bytes:
        """Everything that the compiler's result depends on, as a cache key."""
        if not self.digest:
            return self.program
        # Without locations there are no names of operations, and so no names of layers.
        return repr((self.digest, self.layers, sorted(self.roles.items()))).encode()


class LoweringError(Exception):
    """A train step cannot be lowered for a TPU; layer, line and cure are empty if unknown."""

    def __init__(self, cause: str, *, layer: str = "", line: str = "", cure: str = "") -> None:
        super().__init__(cause)
        self.layer, self.line, self.cause, self.cure = layer, line, cause, cure


def layer_names(model: Model) -> tuple[str, ...]:
    """Return the names of the model's layers, at any depth."""
    return tuple(dict.fromkeys(layer.name for layer in _layers_of(model)))


def roles_of(model: Model) -> dict[str, str]:
    """Map the names of operations that are not layers to what they stand for."""
    roles = {"compile_loss": "(loss)", "compile_metrics": "(metrics)"}
    optimizer = model.optimizer
    while optimizer is not None:
        roles[getattr(optimizer, "name", "") or type(optimizer).__name__] = "(optimizer)"
        optimizer = getattr(optimizer, "inner_optimizer", None)
    return roles


def _layers_of(model: Model) -> list[Layer]:
    return list(model._flatten_layers(include_self=False))


@contextlib.contextmanager
def wrap_lowering_errors(model: Model) -> Iterator[None]:
    """Raise a `LoweringError` with layer, line and fix for anything that is raised while the step is lowered."""
    try:
        yield
    except (LoweringError, KteError):
        raise
    except Exception as error:  # a user's layer may raise anything
        raise _error_of_exception(error, model) from error


def check_dtypes(leaves: Iterable[Tensor], model: Model) -> None:
    """Raise a `LoweringError` if an array holds strings; it names the layer that looks them up, if there is one."""
    if any(str(leaf.dtype) in ("string", "object") or str(leaf.dtype).startswith("str") for leaf in leaves):
        raise error_of_lookup("the batch holds strings", model)


def error_of_lookup(cause: str, model: Model) -> LoweringError:
    """Return the error about strings or tables; it names the first lookup layer of the model, if there is one."""
    layer = next((layer for layer in _layers_of(model) if type(layer).__name__ in _LOOKUPS), None)
    return LoweringError(cause, layer=_name(layer), line=_line_of_layer(layer), cure=IN_PIPELINE)


def error_of_operation(
    names: Iterable[str], cause: str, model: Model, frames: Sequence[_Frame] = ()
) -> LoweringError:
    """Return the error about one operation."""
    layer = next((layer for name in names if (layer := _layer_in(name, model)) is not None), None)
    line = _users_line(frames) or _line_of_layer(layer)
    return LoweringError(cause, layer=_name(layer), line=line, cure=_cure_for(cause))


def _error_of_exception(error: BaseException, model: Model) -> LoweringError:
    chain = [error]  # the first cause last: Keras wraps exceptions
    while (deeper := chain[-1].__cause__ or chain[-1].__context__) is not None:
        chain.append(deeper)
    chain.reverse()
    message = _message(next((one for one in chain if _cure_for(_message(one))), error))
    layers = (_layer_of_traceback(one, model) or _layer_of_message(str(one), model) for one in chain)
    layer = next((layer for layer in layers if layer is not None), None)
    line = next((line for one in chain if (line := _users_line(_frames_of(one)))), "") or _line_of_layer(layer)
    cause = shorten(" ".join(message.split("\n\n")[0].split("The op is created at")[0].split()))
    return LoweringError(cause, layer=_name(layer), line=line, cure=_cure_for(message))


def _layer_in(name: str, model: Model) -> Layer | None:
    """Return the innermost layer in the name of an operation."""
    layers = {layer.name: layer for layer in _layers_of(model)}
    for part in reversed(name.split("/")):
        layer = layers.get(part) or layers.get(_NUMBER.sub("", part))
        if layer is not None:
            return layer
    return None


def _layer_of_traceback(error: BaseException, model: Model) -> Layer | None:
    """Return the innermost layer that has a method in the traceback."""
    layers = {id(layer): layer for layer in _layers_of(model)}
    owners = [layers.get(id(frame.f_locals.get("self"))) for frame, _ in traceback.walk_tb(error.__traceback__)]
    return next((layer for layer in reversed(owners) if layer is not None), None)


def _layer_of_message(text: str, model: Model) -> Layer | None:
    """Return the layer of the first node that TensorFlow names, else the one that Keras says it was calling."""
    of_nodes = [_layer_in(name, model) for name in _NODE.findall(text)]
    layer = next((layer for layer in of_nodes if layer is not None), None)
    called = _IN_CALL.search(text)
    if layer is not None or called is None:
        return layer
    layers = _layers_of(model)
    return next((one for one in layers if called["quoted"] == one.name or called["kind"] == type(one).__name__), None)


def _frames_of(error: BaseException) -> list[_Frame]:
    """Return the frames of the traceback, and those that created the operation according to TensorFlow's message."""
    frames = [(frame.filename, frame.lineno or 0) for frame in traceback.extract_tb(error.__traceback__)]
    return [*frames, *((os.sep + found["file"], int(found["line"])) for found in _FRAME.finditer(str(error)))]


def _users_line(frames: Sequence[_Frame]) -> str:
    """Return file and line of the innermost frame of user code below the last frame of this package."""
    ours = [i for i, (file, _) in enumerate(frames) if "keras_tpu_ext" + os.sep in file]
    below = frames[ours[-1] :] if ours else frames
    users = [frame for frame in below if not any(library in frame[0] for library in _LIBRARIES)]
    return f"{os.path.basename(users[-1][0])}:{users[-1][1]}" if users else ""


def _line_of_layer(layer: Layer | None) -> str:
    """Return file and line of the `call` of a user's layer; empty for Keras's own layers."""
    if layer is None or type(layer).__module__.split(".")[0] in ("keras", "tf_keras"):
        return ""
    try:
        call = inspect.unwrap(type(layer).call)
        return f"{os.path.basename(inspect.getsourcefile(call) or '')}:{inspect.getsourcelines(call)[1]}"
    except (OSError, TypeError):  # typed into an interpreter
        return ""


def _name(layer: Layer | None) -> str:
    return "" if layer is None else str(layer.name)


def _message(error: BaseException) -> str:
    return f"{type(error).__name__}: {message_of(error)}"


def _cure_for(text: str) -> str:
    return next((cure for pattern, cure in _CURES if re.search(pattern, text)), "")
