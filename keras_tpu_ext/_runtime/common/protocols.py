"""The interface of a runtime: verbs in namespaces, never flags or versions.

A runtime is a package whose `__init__` has one module for each of these protocols (PEP 544: a module may implement
one), so that the type checker holds every runtime to every verb.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, NamedTuple, Protocol, TypeAlias, TypeVar

from keras_tpu_ext._runtime.common.event_file import EventFileClass
from keras_tpu_ext._runtime.common.executions import Execution, Interception
from keras_tpu_ext._runtime.common.flops import FlopsCount
from keras_tpu_ext._runtime.common.layouts import VariableLayout
from keras_tpu_ext._runtime.common.lowering import LoweredStep
from keras_tpu_ext._runtime.common.types import (
    Array,
    Callback,
    IteratorState,
    Layer,
    Loss,
    Model,
    Nest,
    Policy,
    RandomState,
    Strategy,
    Tensor,
    Variable,
)

_T = TypeVar("_T")
ChooseMesh: TypeAlias = "Callable[[Model, Nest], dict[str, int] | None]"


@dataclasses.dataclass(frozen=True)
class OpenedStrategy:
    """A distribution strategy that is ready to use.

    Attributes:
        strategy: The framework's own object (`tf.distribute.Strategy`, `keras.distribution.DataParallel`).
        num_replicas: Number of replicas that train in step.
        device_name: The framework's name for the device, such as `"TPU v3"` or `"NVIDIA A100"`; may be empty.
        supports_bfloat16: True if the devices have bfloat16 matrix units; `None` if the framework does not tell.
        told_by: The setting that joined several processes, such as `"TF_CONFIG"`; empty for one process.
    """

    strategy: Strategy
    num_replicas: int
    device_name: str = ""
    supports_bfloat16: bool | None = None
    told_by: str = ""


@dataclasses.dataclass(frozen=True)
class MessageTerms:
    """The terms in which messages speak of a runtime.

    Attributes:
        framework: Name of the framework, such as `"TensorFlow"`.
        no_gpu: What to do if it sees no GPU and should.
        plain_model: How a plain `keras.Model` on replicas differs from one on one device.
        keras: Name of its Keras, such as `"Keras 3"`.
    """

    framework: str
    no_gpu: str
    plain_model: str
    keras: str = "Keras 3"


class Overflow(NamedTuple):
    """Non-finite gradients of one replica.

    Attributes:
        update: Number of the update since the watch began, from 1: one for each batch and optimizer.
        replica: Number of the replica, from 0; `None` on JAX, which sees the gradients of all replicas together.
        variables: Paths of the variables whose gradients had an inf or a NaN.
        of: Number of variables that were updated together.
    """

    update: int
    replica: int | None
    variables: tuple[str, ...]
    of: int


class SavedVariable(NamedTuple):
    """The value of a variable that training changes.

    Attributes:
        role: `"weight"`, `"optimizer"`, `"metric"`, `"step"` for loss scale and accumulated gradients, or `"random"`.
        path: The path of the variable.
        value: Its value; with `per_replica`, those of the replicas along a first dimension.
        per_replica: Whether each replica has a value of its own, of which others see the sum.
    """

    role: str
    path: str
    value: Array
    per_replica: bool = False


class Place(NamedTuple):
    """A place in a pass over the data, and a state of the iterator of this pass or of an earlier one to begin from.

    Attributes:
        batch: Number of batches of the pass that the model has trained on.
        read: Number of batches that had been read when what follows was taken.
        iterator: The state of the iterator then; `None` if it does not tell, or for the begin.
        random: The states of the random generators then; `None` if they come by themselves, by reading it all again.
        random_at_start: The same before the pass that the state is of.
        rows: The most rows that a batch of the pass has had, to which shorter ones may have to be filled up.
        passes: How many passes before this one the state is of: they are read to their end.
        unread: Number of iterators that were made between the end of those and this pass, and not read.
        draws: Whether reading a batch draws from Python's or NumPy's own random generators.
    """

    batch: int
    read: int
    iterator: IteratorState
    random: RandomState
    random_at_start: RandomState
    rows: int = 0
    passes: int = 0
    unread: int = 0
    draws: bool = False


class Call(NamedTuple):
    """One call of a layer, or of an operation between layers, in a functional model.

    Attributes:
        layer: The layer or operation.
        inputs: Its symbolic inputs.
        outputs: Its symbolic outputs.
        training: The argument of that name if it is fixed, else `None`.
    """

    layer: Layer
    inputs: list[Tensor]
    outputs: list[Tensor]
    training: bool | None = None


class Devices(Protocol):
    """Devices, the strategies over them, and the processes that train together."""

    def as_on_tpu(self) -> AbstractContextManager[None]:
        """Return a context in which Keras is traced for a TPU that is not there, and its kernels are interpreted.

        Raises:
            RuntimeNotSupportedError: If the runtime knows no such thing.
        """

    def count_gpus(self) -> int:
        """Return the number of GPUs that the framework sees, without starting one."""

    def open_cpu(self, replicas: int) -> OpenedStrategy:
        """Return the strategy over `replicas` CPU devices, virtual ones if there is more than one.

        Raises:
            ScopeError: If the framework's devices were started before virtual ones could be made.
        """

    def open_gpus(self, count: int) -> OpenedStrategy:
        """Return the strategy over the first `count` GPUs."""

    def open_tpu(self, address: str) -> OpenedStrategy:
        """Return the strategy for the TPU at `address`, initialising it once per process.

        Raises:
            TpuUnusableError: If the TPU cannot be used, with the cause and the cure.
        """

    def open_workers(self) -> OpenedStrategy:
        """Return the strategy over the devices of all processes that train together.

        Raises:
            ClusterError: If they do not join in bounded time; the text names who is missing.
        """

    def num_workers(self) -> int:
        """Return the number of processes that train together, from the framework's own settings."""

    def is_chief(self) -> bool:
        """Return True in the one process, of those that train together, that writes files and prints."""

    def abstract_strategy(self, devices: int) -> OpenedStrategy:
        """Return the strategy of a number of devices that need not be there, to lower steps for."""

    def shard(
        self,
        opened: OpenedStrategy,
        shard: Any,
        mesh: Sequence[tuple[str, int]] | None,
        choose: ChooseMesh | None = None,
    ) -> OpenedStrategy:
        """Return the strategy that shards models over the devices of another.

        Args:
            opened: The other one.
            shard: `"fsdp"`, a `keras.distribution.LayoutMap`, or specs by patterns.
            mesh: Name and size of each axis; `None` for a single one, `"data"`.
            choose: Returns the size of each axis of a better mesh, given a model and its first batch, `None` for this
                one; on it the model is laid out anew. `None` for none.

        Raises:
            RuntimeNotSupportedError: If the runtime shards no models.
        """

    def layouts(self, model: Model) -> list[VariableLayout]:
        """Return where each variable of a model is, weights first."""

    def layout_complaints(self, model: Model) -> list[str]:
        """Return what of the layouts of a model is surely not meant, in words."""

    def scope(self, strategy: Strategy) -> AbstractContextManager[object]:
        """Return the context in which variables and models are made on `strategy`."""

    def distribute(self, strategy: Strategy, dataset: Iterable[Nest]) -> Iterable[Nest]:
        """Return `dataset` with each batch split over the replicas of `strategy`."""

    def num_replicas(self, model: Model) -> int:
        """Return the number of replicas that train `model` in step: parts that a batch is split into."""

    def num_devices(self, model: Model) -> int:
        """Return the number of devices that train `model`; a replica may have several of them."""

    def device_name(self, model: Model) -> str:
        """Return the framework's name for a device that trains `model`, such as `"TPU v3"`.

        It is `"TPU"` if the framework does not tell the generation.
        """


class Models(Protocol):
    """Inspection of Keras models."""

    def exact_models(self, trainer: type) -> AbstractContextManager[object]:
        """Return a context in which each plain model that is made or used takes the exact step, that of `trainer`."""

    def reopened_by_clear_session(
        self, make_context: Callable[[], AbstractContextManager[object]]
    ) -> AbstractContextManager[object]:
        """Return a context that enters what `make_context()` returns, and again after each `clear_session()`."""

    def calls(self, model: Model) -> list[Call]:
        """Return the calls of layers and operations in a functional model, without those inside of its layers."""

    def clone(self, model: Model, copy_of: Callable[[Layer], Layer]) -> Model:
        """Clone a functional model, with `copy_of(layer)` for each layer; the clone is not compiled."""

    def compile_arguments(self, args: Sequence[object], kwargs: Mapping[str, object]) -> dict[str, Any]:
        """Return the arguments of a call of `keras.Model.compile` by name, with `auto_scale_loss` if it has one."""

    def draws_random_numbers(self, layer: Layer) -> bool:
        """Return True if `layer` has a random seed generator of its own."""

    def expects_logits(self, loss: Loss) -> bool:
        """Return True if a Keras loss applies softmax or sigmoid itself."""

    def flatten_layers(self, model: Model) -> list[Layer]:
        """Return all layers of `model` at any depth, in order of creation, without the model itself."""

    def inputs_and_outputs(self, model: Model) -> tuple[Nest, Nest] | None:
        """Return the structures of symbolic inputs and outputs; `None` if `model` has none."""

    def is_compiled(self, model: Model) -> bool:
        """Return True if `model` was compiled."""

    def repeated_blocks(self, model: Model) -> list[str]:
        """Return the names of layers with layers inside of which a model has several, as a decoder has blocks."""

    def losses(self, model: Model) -> list[tuple[str, str, str, str]]:
        """Return `(layer name, its dtype, loss class name, loss dtype)` of each output that a compiled loss reads."""

    def metrics(self, model: Model) -> list[tuple[str, str, str]]:
        """Return `(metric name, class name, dtype)` of each metric of the model."""

    def named_as_builtin(self, model: Model) -> AbstractContextManager[None]:
        """Return a context in which a functional model is saved under the name of Keras's own class."""

    def output_activations(self, model: Model) -> list[tuple[str, str, str]]:
        """Return `(output name, layer name, activation name)` for each output; `[]` for a subclassed model."""

    def path_of(self, variable: Variable) -> str:
        """Return the path of `variable`: its name after those of the layers around it."""

    def plain_model(self, inputs: Nest, outputs: Nest, name: str) -> Model:
        """Return Keras's own model of `inputs` and `outputs`, also where a plain model takes the exact step."""

    def softmaxes(self, model: Model) -> list[tuple[str, str, str]]:
        """Return `(layer name, class name, dtype)` of each softmax in `model`, at any depth."""


class Policies(Protocol):
    """Keras's dtype policies."""

    def get_dtype_policy(self) -> Policy:
        """Return the global dtype policy."""

    def set_dtype_policy(self, policy: Policy) -> None:
        """Set the global dtype policy to a name, or to what `get_dtype_policy` returned."""

    def parse_dtype_policy(self, name: str) -> Policy:
        """Return the floating-point policy called `name`.

        Raises:
            TypeError: If `name` is no string.
            ValueError: If there is no such policy, or no model can train in it, as in "bool" or "int8".
        """


class Batch(Protocol):
    """The batch of the running step, for layers."""

    def place_in_batch(self, rows: int | Tensor) -> tuple[int | Tensor, int | Tensor]:
        """Return the index in the whole batch of this replica's first row, and the number of rows of that batch.

        Args:
            rows: Number of rows of this replica; an int if that is static, and then so is the second result.
        """

    def row_weights(self, inputs: Tensor) -> Tensor | None:
        """Return float32 weights of one or zero that broadcast to `inputs`; `None` if every row counts.

        Padded rows do not count, nor does the row that stands in for a batch on a replica without examples.
        """

    def sum_over_replicas(self, values: Sequence[Tensor]) -> list[Tensor]:
        """Return the sum of each tensor, or Python number, over all replicas; it has no gradient."""

    def has_local_statistics(self, normalization: Layer) -> bool:
        """Return True if a `BatchNormalization` takes its moments from the replica's part of the batch only."""


class KerasOps(Protocol):
    """The functions of `keras.ops` that this package uses; on Keras 2 TensorFlow has them."""

    arange: Callable[..., Tensor]
    bitwise_and: Callable[..., Tensor]
    bitwise_left_shift: Callable[..., Tensor]
    bitwise_or: Callable[..., Tensor]
    bitwise_right_shift: Callable[..., Tensor]
    bitwise_xor: Callable[..., Tensor]
    cast: Callable[..., Tensor]
    clip: Callable[..., Tensor]
    concatenate: Callable[..., Tensor]
    convert_to_numpy: Callable[..., Array]
    convert_to_tensor: Callable[..., Tensor]
    custom_gradient: Callable[..., Callable[..., Tensor]]
    divide_no_nan: Callable[..., Tensor]
    equal: Callable[..., Tensor]
    expand_dims: Callable[..., Tensor]
    flip: Callable[..., Tensor]
    logical_and: Callable[..., Tensor]
    logical_not: Callable[..., Tensor]
    maximum: Callable[..., Tensor]
    ones: Callable[..., Tensor]
    ones_like: Callable[..., Tensor]
    pad: Callable[..., Tensor]
    reshape: Callable[..., Tensor]
    round: Callable[..., Tensor]
    rsqrt: Callable[..., Tensor]
    segment_sum: Callable[..., Tensor]
    shape: Callable[..., tuple[int | Tensor, ...]]
    sqrt: Callable[..., Tensor]
    square: Callable[..., Tensor]
    stop_gradient: Callable[..., Tensor]
    sum: Callable[..., Tensor]
    take: Callable[..., Tensor]
    transpose: Callable[..., Tensor]
    where: Callable[..., Tensor]
    zeros_like: Callable[..., Tensor]


class Ops(KerasOps, Protocol):
    """Operations for layers: `keras.ops`, and some that it lacks."""

    def add_counter(self, layer: Layer, name: str) -> Variable:
        """Add an int32 weight to `layer`, initially 0, that the first replica updates for all of them."""

    def ensure_shape(self, values: Tensor, shape: Sequence[int | None]) -> Tensor:
        """Set the static shape of `values`; `None` is for any size.

        A step on Keras 2 has no static shape for the arrays of a `Sequence` or a generator.
        """

    def in_symbolic_call(self) -> bool:
        """Return True while Keras calls layers only to infer the shapes of their outputs."""

    def no_autocast(self) -> AbstractContextManager[object]:
        """Return a context in which variables are read in their own dtype, not in the layer's compute dtype."""

    def one_hot_einsum(self, values: Tensor, *choices: tuple[str, Tensor]) -> Tensor:
        """Gather from `values` by one einsum for each of `choices`: on TPUs a product is much faster than a gather.

        Args:
            values: Finite numbers.
            *choices: Pairs of an equation, as for `einsum`, and its first operand. The second operand is `values`, or
                the result of the pair before. The first is boolean with at most one true value along the summed
                dimensions, and then the result is exact; or it is float32 weights of at most 8 significant bits, and
                then the result is rounded.

        Returns:
            The result, in the dtype of `values`.
        """

    def one_hot_matmul(self, one_hot: Tensor, values: Tensor, *, transposed: bool = False) -> Tensor:
        """Multiply a matrix of ones and zeros with `values`; no factor is rounded, and sums are float32.

        Args:
            one_hot: Matrix of ones and zeros, in the dtype of `values`.
            values: Matrix of floats; for float64 the sums are float64.
            transposed: True to transpose `one_hot` first.
        """

    def value_of(self, variable: Variable) -> Array | None:
        """Return the value of `variable` as an array, also while a step is traced; `None` if it cannot be read."""


class Progress(Protocol):
    """Counters of a model, and where they are shown."""

    def counts_examples(self, model: Model) -> bool:
        """Return whether `examples_seen` surely counts examples, and not steps and replicas."""

    def examples_seen(self, model: Model) -> float | None:
        """Return the number of examples seen in this epoch, or `None`; waits for the device."""

    def end_names_last_batch(self) -> bool:
        """Return whether `on_train_batch_end` names the last batch of an execution, and not the first."""

    def loss_scale(self, model: Model) -> float | None:
        """Return the loss scale of the next step; `None` without loss scaling."""

    def show_in_progress_bar(self, names: Mapping[str, str | None]) -> None:
        """Let progress bars show log keys by these names, as they are and not averaged; `None` hides one."""

    def event_file_class(self) -> EventFileClass:
        """Return the class of event files for TensorBoard.

        Raises:
            MissingExtraError: If nothing is installed that can write one.
        """

    def skipped_steps(self, model: Model) -> int | None:
        """Return the number of steps that loss scaling has skipped; `None` if nothing counts them."""

    def train_steps(self, model: Model) -> int | None:
        """Return the number of train steps that the optimizer has taken, or `None`; waits for the device."""


class RunningFit(Protocol):
    """A call of `fit`, before Keras has its arguments.

    Attributes:
        method: `"fit"`, or `"evaluate"` or `"predict"`.
        arguments: The arguments by name, which may be changed.
        data: What reads the batches, where `fit` may begin in the middle of them.
    """

    method: str
    arguments: dict[str, Any]
    data: Any

    @property
    def callbacks(self) -> list[Callback]:
        """The callbacks, in one list."""


class ResumableData(Protocol):
    """The batches of a `fit` that may begin in the middle of them.

    Attributes:
        seed: The seed that was set for shuffles without one of their own; `None` if there was one, or none is needed.
        not_exact: Why the data may go on with other random numbers or in another order; empty where they do not.
        read_again: Number of batches that were read again to come to the place where the data was.
        seconds: How long that took.
    """

    seed: int | None
    not_exact: str
    read_again: int
    seconds: float

    def resume(self, place: Place, batch: int, restore: Callable[[], object] = lambda: None) -> None:
        """Let the first epoch begin where another process was; call it before that.

        Args:
            place: The place in the data.
            batch: The number of batches of the epoch that are trained on.
            restore: Gives a `PyDataset` the attributes that it had; it is called before the pass begins, and after
                the hook at the begin of an epoch where that had been called.
        """

    def begin_epoch(self, trained: int) -> None:
        """Note that an epoch begins, or goes on, after so many batches in all."""

    def end_epochs(self, trained: int) -> None:
        """Note that the last epoch has ended after so many batches in all; one after it begins with a new pass."""

    def note_trained(self, batches: int) -> None:
        """Note how many batches in all the model has trained on, just before it goes on."""

    def place(self, *, at_once: bool) -> Place | None:
        """Return the place in the data after the batches that were trained on.

        Args:
            at_once: Whether to return one from which much has to be read again, rather than none.

        Returns:
            The place; `None` if it takes another step until it is known, or if there is no other batch.
        """


class TrainingState(Protocol):
    """What a training has come to, so that another process can go on with it."""

    def all_variables(self, model: Model) -> list[tuple[str, Variable]]:
        """Return each variable of `model` that training changes and its role, those that are there already."""

    def read(self, model: Model, *, on_host: bool) -> list[SavedVariable]:
        """Return the value of each variable of `model` that training changes, as arrays that nothing changes.

        Of several processes all must call it, in a hook of the main thread.

        Args:
            model: The model.
            on_host: Whether they are to be arrays of NumPy, so that they are certainly there. Else they may be arrays
                of the framework on the device, which are still to be computed.
        """

    def assign(self, model: Model, saved: Sequence[SavedVariable]) -> None:
        """Give the variables of `model` values that `read` has returned, here or in another process.

        Raises:
            CheckpointError: If they are of another model; then nothing is changed.
        """

    def not_kept(self, model: Model) -> str:
        """Return what of the state of `model` no checkpoint can hold, and what to write instead; empty if all can."""

    def all_gather_int(self, model: Model, number: int) -> list[int]:
        """Return the numbers that all processes which train `model` call this with, in the same order on each."""

    def reading_batches(
        self, call: RunningFit, first_epoch: int | None, seed: int | None
    ) -> AbstractContextManager[ResumableData]:
        """Return a context in which `fit` reads its batches so that it can begin in the middle of them.

        Args:
            call: The call.
            first_epoch: The epoch to begin with; `None` for that of the call.
            seed: That of `ResumableData` in another process, or `None`.

        Raises:
            NotForThisKerasError: If it cannot, with the model's Keras or with several processes.
        """


class Probes(Protocol):
    """Probes of a train step: its FLOPs, its program, its gradients, its calls."""

    def count_flops(self, model: Model, batch: Nest, batch_size: int) -> FlopsCount:
        """Count the FLOPs of a train step of `model`, which has run; nothing is run, and no batch is taken.

        Args:
            model: A compiled model, in `fit`.
            batch: The specs of a batch that `Execution.run_and_describe` returned.
            batch_size: Number of examples in a batch over all replicas.

        Raises:
            UncountableError: If they cannot be counted, with the reason.
        """

    def intercept_executions(self, model: Model, around: Callable[[Execution], Nest]) -> Interception:
        """Hand each call of the train function of `model`, which is in `fit`, to `around`."""

    def watch_end_of_data(self, model: Model, call: Callable[[], None]) -> Callable[[], None]:
        """Call `call` when the data of an epoch of `fit` has ended; return a function that stops that.

        It is called in the middle of a step too, where that is traced: heed it after the last one alone. A runtime
        whose Keras ends the data after the callbacks' `on_epoch_end` never calls it.
        """

    def call_abstractly(self, function: Callable[[], _T]) -> _T:
        """Call a function that makes models; where the runtime can, their variables have shapes and no values."""

    def lower_step(self, model: Model, batch: Nest, opened: OpenedStrategy, device_kind: str) -> LoweredStep:
        """Lower the train step that `fit` would run to a program for TPUs; a model that is not built is built.

        Args:
            model: A compiled model.
            batch: `x`, `y` and `sample_weight`, structures of what has `shape` and `dtype`, or `None`.
            opened: The strategy to lower it for, as `Devices.abstract_strategy` and `Devices.shard` return it; its
                replicas share the batch evenly.
            device_kind: What JAX calls such a device, `"TPU v3"` say.

        Raises:
            LoweringError: If it cannot be lowered, with layer, line and cure as far as they are known.
        """

    def record_gradients(self, model: Model) -> Callable[[], list[Array] | None]:
        """Replace the optimizer of a compiled model by one with the same clipping that records gradients only.

        Call it inside the model's scope and before the model has taken a step.

        Returns:
            A function that returns the last gradients, reduced over replicas, unscaled and clipped, as arrays in the
            order of the trainable variables; `None` if no gradient has reached the optimizer.
        """

    def unwatch_overflow(self, model: Model) -> None:
        """Stop recording non-finite gradients."""

    def watch_overflow(self, model: Model) -> Callable[[], list[Overflow]] | None:
        """Let the step record non-finite gradients; return a function that reads them, `None` if it cannot."""


class TrainStep(Protocol):
    """What `TPUModel` inherits before `keras.Model`: the exact step, and what `compile` takes for it."""

    def compile(
        self,
        *args: Any,
        loss_scale: Any = None,
        gradient_accumulation_steps: int = 1,
        auto_steps: bool = False,
        **kwargs: Any,
    ) -> None:
        """Configure the model as `keras.Model.compile` does; `ExactModel.compile` says what the others are."""

    def get_compile_config(self) -> dict[str, Any]:
        """Return the arguments of `compile`, serialized."""

    def global_mean(self, per_example: Tensor, sample_weight: Any = None) -> Any:
        """Return a replica's share of the mean over the examples of the whole batch."""

    def _leaves_scaling_to_its_optimizer(self) -> bool:
        """Return whether the optimizer scales the loss under mixed_float16 where `loss_scale` is not given."""
