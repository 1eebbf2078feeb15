"""What `compile`, `fit` and saving have in common on every Keras and framework."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from keras_tpu_ext._runtime.common.padding import GivesPaddedBatches, PaddedBatch
from keras_tpu_ext._runtime.compat import keras
from keras_tpu_ext._runtime.training.batch import Batch
from keras_tpu_ext.errors import ArgumentError

_CLASS_WEIGHT = (
    "fit takes no class_weight with padded batches, which have sample weights already. Weigh the examples before "
    "they are padded: {cure}."
)
_CURES = {
    "tf.data": "pad_batches(dataset.map(lambda x, y: (x, y, tf.gather(weights, y))), batch_size)",
    "PyDataset": "let the PyDataset that is padded return (x, y, weights[y])",
}


class ExactCompile:
    """Compiles a model so that its loss, metrics and steps are exact, and does so again from a saved file.

    The runtime's `TrainStep` inherits from this and says what is its own: `_batch_facts`, `_own_scope`,
    `_make_exact`, `_make_step_state`, `_build_window`, `_build_optimizer` and `_make_flush`, and where it needs to
    `_compile_options`, `_check_compiled` and `_running`. It calls `_end_windows` when an epoch's batches are over.
    """

    _is_fitting = False
    _scales_by_rule = False  # while Keras compiles: whether the step scales the loss
    _batch_facts: Batch

    def _own_scope(self) -> contextlib.AbstractContextManager[Any]:
        """Return the context in which the model was built, where its variables belong."""
        raise NotImplementedError

    def _make_exact(self) -> None:
        """Let the loss and the metrics that Keras has compiled be exact."""
        raise NotImplementedError

    def _build_optimizer(self) -> None:
        """Make the optimizer's variables, now that there are weights."""
        raise NotImplementedError

    def _compile_options(self, options: dict[str, Any]) -> dict[str, Any]:
        """Return the options for Keras's own `compile`."""
        return options

    def _make_step_state(self, loss_scale: Any, accumulation_steps: int) -> Any:
        """Return what a step remembers."""
        raise NotImplementedError

    def _build_window(self) -> None:
        """Make the variables of the accumulation window, if there is one."""
        raise NotImplementedError

    def _make_flush(self, optimizer: Any) -> Callable[[], None]:
        """Return what takes the step of a window that the end of an epoch has left incomplete."""
        raise NotImplementedError

    def _leaves_scaling_to_its_optimizer(self) -> bool:
        """Return whether it is not the step that scales the loss where nobody said how to, under mixed_float16."""
        return False

    def _check_compiled(self) -> None:
        """Refuse what was made outside the model's own scope, where that matters."""

    def _running(self) -> contextlib.AbstractContextManager[Any]:
        """Return the context in which Keras's own loops run."""
        return contextlib.nullcontext()

    def compile(
        self: Any,
        *args: Any,
        loss_scale: Any = None,
        gradient_accumulation_steps: int = 1,
        auto_steps: bool = False,
        **kwargs: Any,
    ) -> None:
        """Configure the model as `keras.Model.compile` does, inside the model's own scope.

        Args:
            *args: What `keras.Model.compile` takes.
            loss_scale: A `LossScale`, or `None` where the loss is not scaled.
            gradient_accumulation_steps: Number of batches that make one step.
            auto_steps: Whether to find `steps_per_execution` while training.
            **kwargs: What `keras.Model.compile` takes.
        """
        model: Any = super()
        self.__dict__["_scales_by_rule"] = loss_scale is not None
        with self._own_scope():
            model.compile(*args, **self._compile_options(kwargs))
            self._check_compiled()
            self._make_exact()
            state = self._make_step_state(loss_scale, gradient_accumulation_steps)
        self._choose_schedule(auto_steps)
        self.__dict__["_step_state"] = state  # past Keras's tracking: its variables are no weights of the model
        self._forget_flushes()

    def fit(self: Any, *args: Any, **kwargs: Any) -> Any:
        """Train as `keras.Model.fit` does."""
        model: Any = super()
        refuse_class_weight_with_padding(args, kwargs)
        self.__dict__["_is_fitting"] = True
        try:
            with self._running():
                return model.fit(*args, **kwargs)
        finally:
            self.__dict__["_is_fitting"] = False

    def get_compile_config(self: Any) -> dict[str, Any]:
        """Return what `compile` was given, serialized."""
        model: Any = super()
        return dict(model.get_compile_config() or {})

    def compile_from_config(self: Any, config: dict[str, Any]) -> None:
        """Compile as when the model was saved, and make the optimizer's variables."""
        if _has_a_compile_of_its_own(type(self)):
            model: Any = super()
            model.compile_from_config(config)  # warns, as for every model whose compile() Keras does not know
            return
        self.compile(**keras.saving.deserialize_keras_object(config))
        if self.optimizer is not None and self.built:
            with self._own_scope():
                self._build_optimizer()
                self._build_window()

    def _forget_flushes(self) -> None:
        """Compile anew what takes the step of an incomplete window, as the train function is compiled anew."""
        self.__dict__["_flushes"] = {}

    def _flush(self: Any, optimizer: Any) -> None:
        if id(optimizer) not in self._flushes:
            self._flushes[id(optimizer)] = self._make_flush(optimizer)
        self._flushes[id(optimizer)]()

    def _end_windows(self: Any) -> None:
        """Take the steps of windows that the end of an epoch has left incomplete, before anything is validated."""
        for optimizer in self._step_state.optimizers_with_open_windows() if self._is_fitting else ():
            self._flush(optimizer)


def refuse_class_weight_with_padding(args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """Refuse the arguments of a `fit` that Keras would fail on, or believe too easily.

    Raises:
        ArgumentError: If padded batches come with `class_weight`.
    """
    data = args[0] if args else kwargs.get("x")
    if kwargs.get("class_weight") is None:
        return
    if isinstance(getattr(data, "element_spec", None), PaddedBatch):
        raise ArgumentError(_CLASS_WEIGHT.format(cure=_CURES["tf.data"]))
    if isinstance(data, GivesPaddedBatches):
        raise ArgumentError(_CLASS_WEIGHT.format(cure=_CURES["PyDataset"]))


def _has_a_compile_of_its_own(model_class: type) -> bool:
    """Return whether a user's class overrides `compile`, so that a saved model cannot be compiled as before."""
    owner = next(base for base in model_class.__mro__ if "compile" in vars(base))
    return not owner.__module__.startswith("keras_tpu_ext.")
