"""Give plain Keras models the exact step within a block, without changing the user's code.

Such a model keeps its class, its name and its file: it becomes an instance of a class of the same name, which
inherits from the user's class, then the exact step, then Keras's own class. A model that was created before the block
moves to the block's strategy when it is compiled, trained, evaluated or used for prediction inside.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from keras_tpu_ext._runtime.common.patches import patched, temporarily
from keras_tpu_ext._runtime.common.types import Model, Nest
from keras_tpu_ext._runtime.compat import Functional, compiled_with, keras, save_as
from keras_tpu_ext._runtime.training.model import ExactModel, call_exact, comes_from_exact
from keras_tpu_ext._runtime.training.program import BLOCKS

_BUILTIN = (keras.Model, keras.Sequential, Functional)
_LOOPS = ("fit", "evaluate", "predict", "train_on_batch", "test_on_batch", "predict_on_batch")


class exact_models(patched):  # noqa: N801, a context manager like those of contextlib
    """A context in which each plain model that this thread creates or uses takes the exact step of `trainer`.

    Models that are made or compiled in it with `for_tpu` compute with `tpu_operations`.
    """

    def __init__(self, trainer: Any, *, for_tpu: bool = False) -> None:
        self._for_tpu = for_tpu
        super().__init__(
            [
                *trainer._kte.func.block_patches,
                (keras.Model, "keras.Model.__new__", functools.partial(_making, trainer=trainer)),
                (keras.Model, "keras.Model.compile", functools.partial(_compiling, trainer=trainer)),
                *[
                    (keras.Model, f"keras.Model.{name}", functools.partial(_running, name=name, trainer=trainer))
                    for name in _LOOPS
                ],
                (keras.Sequential, "keras.Sequential.build", _building),
            ]
        )

    def __enter__(self) -> None:
        super().__enter__()
        BLOCKS.open.append(self._for_tpu)

    def __exit__(self, *error: object) -> None:
        BLOCKS.open.pop()
        super().__exit__(*error)


def named_as_builtin(model: Model) -> contextlib.AbstractContextManager[None]:
    """Return a context in which a functional model is saved under the module and name of Keras's own class.

    The file also has its registered name, which Keras prefers if it knows it.
    """
    return temporarily(model, __class__=_named_as_builtin(type(model)))


def plain_model(inputs: Nest, outputs: Nest, name: str) -> Model:
    """Return Keras's own model of `inputs` and `outputs`, even inside a block."""
    with temporarily(BLOCKS, makes_plain=True):
        model: Model = keras.Model(inputs, outputs, name=name)
    return model


def _making(stock: Callable[..., Model], trainer: type) -> Callable[..., Model]:
    @functools.wraps(stock)
    def new(cls: type, *args: Any, **kwargs: Any) -> Model:
        model = stock(cls, *args, **kwargs)
        _make_exact(model, trainer)
        return model

    return new


def _building(stock: Callable[..., None]) -> Callable[..., None]:
    """Wrap the `build` of `Sequential`: the functional model that it creates internally is never trained."""

    @functools.wraps(stock)
    def build(model: Model, *args: Any, **kwargs: Any) -> None:
        with temporarily(BLOCKS, makes_plain=True):
            stock(model, *args, **kwargs)

    return build


def _compiling(stock: Callable[..., None], trainer: type) -> Callable[..., None]:
    @functools.wraps(stock)
    def compile(model: Model, *args: Any, **kwargs: Any) -> None:
        if _make_exact(model, trainer):
            model._kte.attach()
        if _passes_by(model, "compile"):
            # Not the user's own `compile`, which has called this.
            call_exact(trainer, "compile", stock, model, *args, **kwargs)
        else:
            stock(model, *args, **kwargs)

    return compile


def _running(stock: Callable[..., Nest], name: str, trainer: Any) -> Callable[..., Nest]:
    @functools.wraps(stock)
    def run(model: Model, *args: Any, **kwargs: Any) -> Nest:
        options = compiled_with(model)
        if _make_exact(model, trainer):
            model._kte.attach()
            if options is not None:
                trainer.compile(model, **options)
        if not _passes_by(model, name):
            return stock(model, *args, **kwargs)
        return call_exact(trainer, name, stock, model, *args, **kwargs)

    return run


def _passes_by(model: Model, name: str) -> bool:
    """Return whether `keras.Model`'s method of an exact model was called past ours, by name for instance."""
    return isinstance(model, ExactModel) and not comes_from_exact(model, name)


def _make_exact(model: Model, trainer: type) -> bool:
    """Let `model` take the exact step, if this thread is in a block; return whether this changed it."""
    if isinstance(model, ExactModel) or not BLOCKS.open or BLOCKS.makes_plain:
        return False
    object.__setattr__(model, "__class__", exact_class(type(model), trainer))
    return True


@functools.cache
def exact_class(cls: Any, trainer: type) -> type:
    """Return a subclass of `cls` with the exact step, and with the name of `cls` in code and in saved files."""
    builtin = next(base for base in cls.__mro__ if base in _BUILTIN)
    if cls is not builtin:
        return _subclass(cls, (cls, exact_class(builtin, trainer)))
    # Keras inspects the signature to interpret a config. That of `Model` accepts anything.
    members = {} if cls is keras.Model else {"__init__": cls.__init__}
    return _subclass(cls, (trainer, cls), members)


@functools.cache
def _named_as_builtin(cls: type) -> type:
    variant = type(Functional.__name__, (cls,), {"__module__": Functional.__module__})
    save_as(variant, cls)
    return variant


def _subclass(cls: type, bases: tuple[type, ...], members: Mapping[str, object] = MappingProxyType({})) -> type:
    names = {name: getattr(cls, name) for name in ("__module__", "__qualname__", "__doc__")}
    variant = type(cls.__name__, bases, {**names, **members})
    save_as(variant, cls)
    return variant
