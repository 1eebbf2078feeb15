"""The methods that Keras calls by name on a model with an exact step: `compile`, loops over batches, and saving."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Callable, Iterator
from typing import Any

from keras_tpu_ext._runtime.common.missing_names import check_overrides, explain_missing_names
from keras_tpu_ext._runtime.common.types import Model, Optimizer
from keras_tpu_ext._runtime.compat import keras
from keras_tpu_ext._runtime.training.adapter import KerasAdapter
from keras_tpu_ext._runtime.training.batch import Batch
from keras_tpu_ext._runtime.training.execution_schedule import ExecutionSchedule
from keras_tpu_ext._runtime.training.fit_call import FitCall
from keras_tpu_ext._runtime.training.overflow import OverflowWatch
from keras_tpu_ext._runtime.training.process_group import ProcessGroup
from keras_tpu_ext._runtime.training.step_state import StepState


class ExactModel:
    """A mixin before `keras.Model` that compiles, runs and saves a model through the objects it holds.

    It holds an adapter for its Keras, a `StepState` (loss scaler and gradient accumulators), an `ExecutionSchedule`
    where `steps_per_execution` is "auto", and the innermost running `FitCall`. The runtime's `TrainStep` inherits
    from it and implements the methods that raise `NotImplementedError` here.
    """

    _kte_adapter: KerasAdapter
    _batch_facts: Batch
    _step_state: StepState
    _kte_schedule: ExecutionSchedule | None = None
    _kte_call: FitCall | None = None
    _kte_flushes: dict[int, Callable[[], None]]
    _scales_by_rule = False  # while Keras compiles: whether the step scales the loss

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Register this package's classes for H5 files, which look up a class by its bare name."""
        super().__init_subclass__(**kwargs)
        if cls.__module__.startswith("keras_tpu_ext."):
            keras.saving.get_custom_objects().setdefault(cls.__name__, cls)

    def _own_scope(self) -> contextlib.AbstractContextManager[Any]:
        """Return the context in which the model was built, where its variables belong."""
        raise NotImplementedError

    def _kte_process_group(self) -> ProcessGroup:
        """Return the processes that train this model."""
        raise NotImplementedError

    def _make_step_state(self, loss_scale: Any, accumulation_steps: int) -> StepState:
        """Return the framework's kind of `StepState`."""
        raise NotImplementedError

    def _make_schedule(self) -> ExecutionSchedule:
        """Return the framework's kind of `ExecutionSchedule`."""
        raise NotImplementedError

    def _build_accumulator(self) -> None:
        """Make the variables of the gradient accumulator, if there is one."""
        raise NotImplementedError

    def _make_overflow_watch(self, steps: int) -> OverflowWatch:
        """Return the framework's kind of `OverflowWatch`, for an optimizer that has taken `steps` steps."""
        raise NotImplementedError

    def _make_flush(self, optimizer: Optimizer) -> Callable[[], None]:
        """Return a function that takes the step of an accumulation window left open at the end of an epoch."""
        raise NotImplementedError

    @classmethod
    def _kte_patch_keras(cls) -> None:
        """Patch Keras, once and for good, where the step needs it to; elsewhere Keras behaves as before."""

    def _check_compiled(self) -> None:
        """Reject objects that were created outside the model's own scope, where that matters."""

    def _kte_adopt(self) -> None:
        """Move a plain model that was created elsewhere to the strategy of the open block."""
        raise NotImplementedError

    def _kte_loop(self) -> contextlib.AbstractContextManager[Any]:
        """Return the context in which Keras's own loops run."""
        return contextlib.nullcontext()

    def _kte_prepare(self, call: FitCall) -> None:
        """Change the arguments of a loop into those that Keras gets."""

    def _kte_saving(self, *, is_keras_file: bool) -> contextlib.AbstractContextManager[None]:
        """Return the context in which the model is saved, as a `.keras` file or in another format."""
        return contextlib.nullcontext()

    def _leaves_scaling_to_its_optimizer(self) -> bool:
        """Return whether the optimizer scales the loss under mixed_float16 where `loss_scale` is not given."""
        return False

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
            *args: Positional arguments of `keras.Model.compile`.
            loss_scale: A `LossScale`, or `None` if the loss is not scaled.
            gradient_accumulation_steps: Number of batches that make one step.
            auto_steps: Whether to find `steps_per_execution` while training.
            **kwargs: Keyword arguments of `keras.Model.compile`.
        """
        model: Model = super()
        self.__dict__["_scales_by_rule"] = loss_scale is not None
        check_overrides(type(self))
        with explain_missing_names(), self._own_scope():
            model.compile(*args, **self._kte_adapter.compile_options(kwargs))
            self._check_compiled()
            self._kte_adapter.make_exact(self, self._batch_facts)
            state = self._make_step_state(loss_scale, gradient_accumulation_steps)
        self.__dict__["_kte_schedule"] = self._make_schedule() if auto_steps else None
        self.__dict__["_step_state"] = state  # not tracked by Keras: its variables are not weights of the model
        self._reset_flushes()

    def fit(self: Any, *args: Any, **kwargs: Any) -> Any:
        """Train as `keras.Model.fit` does; with several processes, only the chief prints and writes."""
        model: Model = super()
        with self._kte_running(FitCall("fit", self, args, kwargs)) as call:
            model.fit(*call.args, **call.kwargs)
        return self.history  # even if a callback has ended it between two steps

    def evaluate(self: Any, *args: Any, **kwargs: Any) -> Any:
        """Evaluate as `keras.Model.evaluate` does; with several processes, only the chief prints and writes."""
        model: Model = super()
        with self._kte_running(FitCall("evaluate", self, args, kwargs)) as call:
            return model.evaluate(*call.args, **call.kwargs)

    def predict(self: Any, *args: Any, **kwargs: Any) -> Any:
        """Predict as `keras.Model.predict` does, for all of the data on every process; only the chief prints."""
        model: Model = super()
        with self._kte_running(FitCall("predict", self, args, kwargs)) as call:
            return model.predict(*call.args, **call.kwargs)

    def save(self: Any, filepath: Any, *args: Any, **kwargs: Any) -> None:
        """Save as `keras.Model.save` does; call it on every process, although only the chief writes."""
        model: Model = super()
        is_keras_file = str(filepath).endswith(".keras") or kwargs.get("save_format") == "keras"
        with self._kte_saving(is_keras_file=is_keras_file):
            self._write(model.save, filepath, args, kwargs)

    def save_weights(self: Any, filepath: Any, *args: Any, **kwargs: Any) -> None:
        """Save as `keras.Model.save_weights` does; call it on every process, although only the chief writes."""
        model: Model = super()
        self._write(model.save_weights, filepath, args, kwargs)

    def get_compile_config(self: Any) -> dict[str, Any]:
        """Return the arguments of `compile`, serialized."""
        model: Model = super()
        return dict(model.get_compile_config() or {})

    def compile_from_config(self: Any, config: dict[str, Any]) -> None:
        """Compile as when the model was saved, and make the optimizer's variables."""
        if _has_custom_compile(type(self)):
            model: Model = super()
            model.compile_from_config(config)  # warns, as for every model whose compile() Keras does not know
            return
        self.compile(**keras.saving.deserialize_keras_object(config))
        if self.optimizer is not None and self.built:
            with self._own_scope():
                self._kte_adapter.build_optimizer(self)
                self._build_accumulator()

    @contextlib.contextmanager
    def _kte_running(self: Any, call: FitCall) -> Iterator[FitCall]:
        """Yield the call, with the arguments for Keras, whose loop runs within the block."""
        group = self._kte_process_group()
        outer, self.__dict__["_kte_call"] = self._kte_call, call
        try:
            with contextlib.ExitStack() as stack:
                stack.enter_context(explain_missing_names())
                stack.enter_context(group.take_part(call, self._kte_adapter, self.save_weights))
                for callback in call.callbacks:
                    if hasattr(callback, "_kte_around_fit"):
                        stack.enter_context(callback._kte_around_fit(call, self))
                if self._kte_schedule is not None:
                    stack.enter_context(self._kte_schedule.use(self, call, one_process=group.size() == 1))
                stack.enter_context(self._kte_loop())
                self._kte_prepare(call)
                yield call
        finally:
            self.__dict__["_kte_call"] = outer

    def _write(self: Any, save: Callable[..., None], filepath: Any, args: Any, kwargs: Any) -> None:
        group = self._kte_process_group()
        together = self._saves_together()
        ending = group.end_with_peers() if together else contextlib.nullcontext()
        with group.explain_peer_failure(), ending, group.reading_shards():
            if group.is_chief():
                save(filepath, *args, **kwargs)
            elif together:
                # Saving makes the same reads in the same order as on the chief; nothing else surely makes them all.
                with tempfile.TemporaryDirectory() as folder:
                    save(os.path.join(folder, os.path.basename(str(filepath))), *args, **kwargs)

    def _saves_together(self: Any) -> bool:
        """Return whether processes hold shards of what is saved, so that all of them must take part."""
        return False

    def _reset_flushes(self) -> None:
        """Drop the traced functions that end a window, as the train function is traced again."""
        self.__dict__["_kte_flushes"] = {}

    def _end_windows(self: Any) -> None:
        """Take the steps of windows left open at the end of an epoch, before validation."""
        if self._kte_call is None or self._kte_call.method != "fit":
            return
        for accumulator in self._step_state.accumulators():
            if accumulator.is_open():
                optimizer = accumulator.optimizer()
                if id(optimizer) not in self._kte_flushes:
                    self._kte_flushes[id(optimizer)] = self._make_flush(optimizer)
                self._kte_flushes[id(optimizer)]()


def _has_custom_compile(model_class: type) -> bool:
    """Return whether a user's class overrides `compile`, so that a saved model cannot be compiled as before."""
    owner = next(base for base in model_class.__mro__ if "compile" in vars(base))
    return not owner.__module__.startswith("keras_tpu_ext.")
