"""What a model with an exact step holds: its loss scaler and accumulators, the running call, and how it runs."""

from __future__ import annotations

import contextlib
import os
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from keras_tpu_ext._runtime.common.missing_names import check_overrides
from keras_tpu_ext._runtime.common.patches import Patch
from keras_tpu_ext._runtime.common.types import Callback, Model, Nest, Optimizer, Tensor
from keras_tpu_ext._runtime.common.user_frame import warn
from keras_tpu_ext._runtime.compat import COMPILE_OPTIONS, keras, tree
from keras_tpu_ext._runtime.training import compile_options
from keras_tpu_ext._runtime.training.compile_options import probabilities_taken_for_logits
from keras_tpu_ext._runtime.training.compile_utils import is_overridden
from keras_tpu_ext._runtime.training.denominator import LossSum, common_denominator
from keras_tpu_ext._runtime.training.execution_schedule import ExecutionSchedule
from keras_tpu_ext._runtime.training.fit_call import FitCall
from keras_tpu_ext._runtime.training.out_of_memory import explained_out_of_memory
from keras_tpu_ext._runtime.training.process_group import ProcessGroup
from keras_tpu_ext._runtime.training.progress import running_fit
from keras_tpu_ext._runtime.training.protocols import BatchOfStep, Devices
from keras_tpu_ext._runtime.training.step_state import BaseGradientAccumulator, LossScaler, StepState, Unsaved
from keras_tpu_ext._runtime.training.watches import NotFiniteWatch, OverflowWatch
from keras_tpu_ext.checks.schema import shown
from keras_tpu_ext.errors import ArgumentError, FromLogitsWarning

_KEY = "keras_tpu_ext"


class _Blocks(threading.local):
    """The blocks of `strategy_scope` that this thread is in."""

    def __init__(self) -> None:
        self.open: list[bool] = []  # innermost last: whether its models compute with the operations for a TPU
        self.makes_plain = False  # whether this thread is creating a model that must stay plain

    @property
    def for_tpu(self) -> bool:
        """Whether models of the innermost block compute with the operations for a TPU."""
        return self.open[-1:] == [True]


BLOCKS = _Blocks()


class ExactProgram(Unsaved):
    """All that this package keeps in a model with an exact step; the model has it as `_kte`.

    It is a layer, without variables of its own, because Keras saves the state of layers with a model.

    Args:
        model: The model.
        default_augment: The `augment` of the model's class that users may override; `None` for a plain Keras model.
    """

    facts: BatchOfStep  # what losses and metrics ask about the batch
    devices: Devices
    can_shard = False  # whether a model may be sharded over them
    block_patches: Sequence[Patch] = ()  # what is patched in a block beside `keras.Model`
    # Makes a context in which Keras's operations cost a TPU less.
    tpu_operations: Callable[[BatchOfStep], contextlib.AbstractContextManager[None]] | None = None
    computes_for_tpu: bool  # whether the step computes in it
    loss_scaler: type[LossScaler]  # the framework's kinds
    accumulator: type[BaseGradientAccumulator]
    overflow_watch: type[OverflowWatch]
    not_finite_watch: type[NotFiniteWatch]

    def __init__(self, model: Model, default_augment: Callable[..., Any] | None = None) -> None:
        super().__init__(name="kte", dtype="float32")
        self.built = True
        # Whether the model is a plain Keras model: its own code is written for one device.
        self.is_plain = default_augment is None
        self.computes_for_tpu = BLOCKS.for_tpu
        self.scales_loss = False  # whether the step scales the loss, which is known before Keras compiles
        self.weights_by_tokens = False  # whether tokens weight the batches of a window, and not examples
        self.set_untracked(model=model, state=None, schedule=None, running=None)
        self.set_untracked(_flushes={}, _given=MappingProxyType({}), _default_augment=default_augment)

    model: Model
    state: StepState | None  # the loss scaler and the gradient accumulators; `None` before `compile`
    schedule: ExecutionSchedule | None  # finds `steps_per_execution` while training; `None` if that is not "auto"
    running: FitCall | None  # the innermost running `fit`, `evaluate` or `predict`; `None` outside
    _default_augment: Callable[..., Any] | None
    _flushes: dict[int, Callable[[], None]]
    _given: Mapping[str, Any]

    def set_untracked(self, **values: object) -> None:
        """Set attributes that Keras must not track: the model is no part of this layer, nor are its variables."""
        self.__dict__.update(values)

    def __dir__(self) -> list[str]:
        """Return what Keras looks at when it saves and loads: the model would lead it round in a circle."""
        return ["state"]

    def operations(self) -> contextlib.AbstractContextManager[None]:
        """Return the context in which the step computes."""
        if not self.computes_for_tpu or self.tpu_operations is None:
            return contextlib.nullcontext()
        return self.tpu_operations(self.facts)

    def own_scope(self) -> contextlib.AbstractContextManager[Any]:
        """Return the context in which the model was built, where its variables belong."""
        raise NotImplementedError

    def process_group(self) -> ProcessGroup:
        """Return the processes that train this model."""
        raise NotImplementedError

    def make_schedule(self) -> ExecutionSchedule:
        """Return the schedule of "auto"."""
        return ExecutionSchedule()

    def make_exact(self) -> None:
        """Replace the compiled loss and metrics of the model by exact ones."""
        raise NotImplementedError

    def build_optimizer(self) -> None:
        """Create the variables of the model's optimizer; its weights exist already."""
        raise NotImplementedError

    def backup_epoch(self, backup: Callback) -> int:
        """Return the number of epochs after which a `BackupAndRestore` resumes training."""
        raise NotImplementedError

    def write_patches(self, callback: Callback) -> list[Patch]:
        """Return patches with which one of Keras's callbacks takes part in saving but writes nothing.

        Those of Keras 2 know about other processes.
        """
        return []

    def make_flush(self, optimizer: Optimizer) -> Callable[[], None]:
        """Return a function that takes the step of an accumulation window left open at the end of an epoch."""
        raise NotImplementedError

    def build_accumulator(self) -> None:
        """Make the variables of the gradient accumulator, if there is one."""
        raise NotImplementedError

    def attach(self) -> None:
        """Move a plain model that was created elsewhere to the strategy of the open block."""
        raise NotImplementedError

    def check_compiled(self) -> None:
        """Reject objects that were created outside the model's own scope, where that matters."""

    def loop(self) -> contextlib.AbstractContextManager[Any]:
        """Return the context in which Keras's own loops run."""
        return contextlib.nullcontext()

    def prepare(self, call: FitCall) -> None:
        """Change the arguments of a loop into those that Keras gets."""

    def saves_together(self) -> bool:
        """Return whether processes hold shards of what is saved, so that all of them must take part."""
        return False

    def leaves_scaling_to_its_optimizer(self) -> bool:
        """Return whether the optimizer scales the loss under mixed_float16 where `loss_scale` is not given."""
        return False

    def compile(
        self,
        stock: Callable[..., None],
        own: dict[str, Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> None:
        """Configure the model for training with Keras's own `compile` and the arguments that it does not know."""
        model = self.model
        self.computes_for_tpu |= BLOCKS.for_tpu
        given = compile_options.compile_arguments(args, kwargs)
        options = compile_options.compile_options(model, own, given)
        self.scales_loss, self.weights_by_tokens = options.loss_scale is not None, options.weights_by_tokens
        check_overrides(type(model))
        with self.own_scope():
            by_keras = self.leaves_scaling_to_its_optimizer() and not self.scales_loss
            stock(**{**options.of_keras, **({} if by_keras else COMPILE_OPTIONS)})
            if self.is_plain:
                self.attach()
            self.check_compiled()
            self.make_exact()
            state = StepState(self.loss_scaler(options.loss_scale), self.accumulator, options.accumulation_steps)
        schedule = self.make_schedule() if options.auto_steps else None
        self.set_untracked(state=state, schedule=schedule, _given=options.given)
        self.reset_flushes()
        for message in probabilities_taken_for_logits(model):
            warn(message, FromLogitsWarning)

    def compile_config(self, config: dict[str, Any] | None) -> dict[str, Any]:
        """Return the serialized arguments of `compile`, ours with the optimizer's, where Keras ignores them."""
        serialize = keras.saving.serialize_keras_object
        config, own = dict(config or {}), serialize(dict(self._given))
        optimizer = self.model.optimizer if own else None
        if optimizer is None:
            return config
        if isinstance(optimizer, list):  # a list has no place for them
            return {**config, **own}
        config["steps_per_execution"] = self.model.steps_per_execution
        config["optimizer"] = {**serialize(optimizer), _KEY: own}  # Keras 2 may have kept a name
        return config

    def compile_from_config(self, stock: Callable[..., None], config: object) -> None:
        """Compile the model as when it was saved, and make the optimizer's variables."""
        model = self.model
        optimizer = config.get("optimizer") if isinstance(config, dict) else None
        own = optimizer.get(_KEY, {}) if isinstance(optimizer, dict) else {}
        if not (isinstance(config, dict) and isinstance(own, dict) and own.keys() <= compile_options.NAMES):
            raise ArgumentError(
                f"the file's arguments of compile must be an object, and ours {', '.join(compile_options.NAMES)}; "
                f"got {shown(config if optimizer is None else own)}. Load it with compile=False, and compile it anew."
            )
        if is_overridden(type(model), "compile"):
            stock({**config, **own})  # warns, as for every model whose compile() Keras does not know
            return
        model.compile(**keras.saving.deserialize_keras_object({**config, **own}))
        if model.optimizer is not None and model.built:
            with self.own_scope():
                self.build_optimizer()
                self.build_accumulator()

    def write(
        self, stock: Callable[..., None], filepath: object, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        """Run Keras's `save` or `save_weights` on every process, although only the chief writes."""
        group = self.process_group()
        together = self.saves_together()
        ending = group.end_with_peers() if together else contextlib.nullcontext()
        with group.explain_peer_failure(), ending, group.reading_shards():
            if group.is_chief():
                stock(filepath, *args, **kwargs)
            elif together:
                # Saving makes the same reads in the same order as on the chief; nothing else surely makes them all.
                with tempfile.TemporaryDirectory() as folder:
                    stock(os.path.join(folder, os.path.basename(str(filepath))), *args, **kwargs)

    @contextlib.contextmanager
    def running_call(self, method: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Iterator[FitCall]:
        """Yield a `fit`, `evaluate` or `predict` with the arguments for Keras, whose loop runs within the block."""
        call, group = FitCall(method, self.model, args, kwargs), self.process_group()
        outer = self.running
        self.set_untracked(running=call)
        try:
            with contextlib.ExitStack() as stack:
                if method == "fit":
                    stack.enter_context(running_fit(self.model))
                stack.enter_context(explained_out_of_memory(call, self.model, self.devices, can_shard=self.can_shard))
                stack.enter_context(group.take_part(call, self.backup_epoch, self.write_patches))
                for callback in call.callbacks:
                    if hasattr(callback, "_kte_around_fit"):
                        stack.enter_context(callback._kte_around_fit(call, self.model))
                if self.schedule is not None:
                    stack.enter_context(self.schedule.use(self.model, call, one_process=group.size() == 1))
                stack.enter_context(self.loop())
                self.prepare(call)
                yield call
        finally:
            self.set_untracked(running=outer)

    def weight_in_window(self, examples: Tensor | int, losses: Sequence[LossSum], *, of_layers: bool) -> Tensor | int:
        """Return the weight of a batch's gradient in a window of accumulated batches; see `common_denominator`."""
        return common_denominator(losses, of_layers=of_layers) if self.weights_by_tokens else examples

    def reset_flushes(self) -> None:
        """Drop the traced functions that end a window, as the train function is traced again."""
        self.set_untracked(_flushes={})

    def end_windows(self) -> None:
        """Take the steps of windows left open at the end of an epoch, before validation."""
        if self.running is None or self.running.method != "fit" or self.state is None:
            return
        for accumulator in self.state.accumulators():
            if accumulator.is_open():
                optimizer = accumulator.optimizer()
                if id(optimizer) not in self._flushes:
                    self._flushes[id(optimizer)] = self.make_flush(optimizer)
                self._flushes[id(optimizer)]()

    @property
    def augments(self) -> bool:
        """Whether the user overrides `augment`."""
        default = self._default_augment
        return default is not None and type(self.model).augment is not default

    @property
    def inner(self) -> Model:
        """The model whose `call` is this one's: another one for what `TPUModel.from_model` returns."""
        is_wrapper = type(self.model).call.__module__.startswith("keras_tpu_ext.")
        return self.model.model if is_wrapper else self.model

    def compiled_state(self) -> StepState:
        """Return `state` of a compiled model."""
        if self.state is None:
            raise ArgumentError(
                f"{self.model.name} was made in a strategy_scope() and compiled after it, by "
                "keras.Model.compile(self, ...). Write super().compile(...) instead, or compile it in the block."
            )
        return self.state

    def augment(self, x: Nest, y: Nest) -> tuple[Any, Any]:
        """Return a training batch as the user's `augment` returns it."""
        pair: Any = self.model.augment(x, y)
        if not isinstance(pair, (tuple, list)) or len(pair) != 2:
            came = f"{len(pair)} things" if isinstance(pair, (tuple, list)) else type(pair).__name__
            raise ArgumentError(f"augment must return inputs and targets; it returned {came}. Write: return x, y")
        got, returned = _numbers_of_rows((x, y)), _numbers_of_rows(pair)
        if got and returned - got:
            raise ArgumentError(
                f"augment must return as many rows as it got, {min(got)}; it returned {min(returned - got)}. Write: "
                "dataset.map(...) before dataset.batch(...) for what makes more or fewer examples"
            )
        return pair[0], pair[1]


def _numbers_of_rows(data: Nest) -> set[int]:
    """Return the known sizes of the first dimensions of the tensors in nested data."""
    shapes: list[Sequence[int | None]] = [getattr(leaf, "shape", ()) for leaf in tree.flatten(data)]
    return {int(shape[0]) for shape in shapes if len(shape) and shape[0] is not None}
