"""The interface of a runtime: functions in namespaces, never flags or versions. A module implements each protocol."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from types import ModuleType
from typing import Any, NamedTuple, Protocol, TypeAlias, TypeVar

from keras_tpu_ext._runtime.common.compiles import CompileWatch
from keras_tpu_ext._runtime.common.event_file import EventFileClass
from keras_tpu_ext._runtime.common.executions import Execution, Interception, Step
from keras_tpu_ext._runtime.common.flops import FlopsCount
from keras_tpu_ext._runtime.common.layouts import ModelLayout
from keras_tpu_ext._runtime.common.lowering import LoweredStep
from keras_tpu_ext._runtime.common.saved_programs import SavedProgram
from keras_tpu_ext._runtime.common.types import (
    Array,
    Callback,
    IteratorState,
    Layer,
    Model,
    Nest,
    Policy,
    RandomState,
    Strategy,
    Tensor,
    Variable,
)
from keras_tpu_ext.errors import CheckpointError

_T = TypeVar("_T")
_Function = TypeVar("_Function", bound=Callable[..., Any])
ChooseMesh: TypeAlias = "Callable[[Model, Nest], dict[str, int] | None]"


@dataclasses.dataclass(frozen=True)
class OpenedStrategy:
    """A distribution strategy that is ready to use."""

    strategy: Any  # the framework's own object (`tf.distribute.Strategy`, `keras.distribution.DataParallel`)
    num_replicas: int  # number of replicas that train synchronously
    device_name: str = ""  # the framework's name for the device, such as `"TPU v3"` or `"NVIDIA A100"`; may be empty
    # True if the devices have bfloat16 matrix units; `None` if the framework does not say.
    supports_bfloat16: bool | None = None
    configured_by: str = ""  # the setting that joined several processes, such as `"TF_CONFIG"`; empty for one process


@dataclasses.dataclass(frozen=True)
class MessageTerms:
    """The wording that messages use for a runtime."""

    framework: str  # name of the framework, such as `"TensorFlow"`
    no_gpu: str  # what to do if the framework should see a GPU but does not
    plain_model: str  # how a plain `keras.Model` on replicas differs from one on one device
    why_compiled: str  # how to find out why a step was compiled again
    keras: str = "Keras 3"  # name of the runtime's Keras, such as `"Keras 3"`


class Overflow(NamedTuple):
    """Non-finite gradients of one replica."""

    update: int  # number of the update since the watch began, from 1; each optimizer makes one update per batch
    # Number of the replica, from 0; `None` on JAX, which sees the gradients of all replicas together.
    replica: int | None
    variables: tuple[str, ...]  # paths of the variables whose gradients had an inf or a NaN
    of: int  # number of variables that were updated together


class FirstCall(NamedTuple):
    """The first call of a layer in a step whose output had an inf or a NaN."""

    layer: str  # path of the layer, or of the operation between layers
    kind: str  # its class
    policy: str  # name of its dtype policy
    dtype: str  # the dtype of its output
    peak: float  # the largest magnitude in its output, but for NaN: inf if it has one
    largest: float  # the largest among the finite numbers of its output
    largest_input: float  # that of its inputs


class NotFinite(NamedTuple):
    """What a watched step has recorded of the first loss that was not finite."""

    steps: int  # number of steps since the watch began
    step: int | None = None  # the number of that step, from 0; `None` if there is none
    of: int = 0  # number of trainable variables
    weights: tuple[str, ...] = ()  # paths of those that were not finite when the step began
    updated: tuple[str, ...] = ()  # paths of the small ones that the update before had left not finite
    looked: bool = False  # whether the outputs of layers were looked at, for the next field
    call: FirstCall | None = None  # the first layer whose output was not finite; `None` if all were
    batch_finite: bool = True  # whether inputs, targets and sample weights were finite
    rate_finite: bool = True  # whether the optimizer's learning rate is finite now, as far as known


class SavedVariable(NamedTuple):
    """The value of a variable that training changes."""

    # `"weight"`, `"optimizer"`, `"metric"`, `"step"` for loss scale and accumulated gradients, or `"random"`.
    role: str
    path: str  # the path of the variable
    value: Array  # its value; with `per_replica`, the values of all replicas stacked along a first dimension
    # Whether each replica has its own value, and reading the variable elsewhere returns their sum.
    per_replica: bool = False


class DeviceUse(NamedTuple):
    """The memory of one device, in bytes."""

    device: str  # the framework's name for it, such as `"TPU_0"`
    in_use: int
    peak: int | None  # the most that was in use since the process began; `None` if nothing tells
    limit: int | None  # `None` if nothing tells
    counted: str  # what `in_use` counts, in words


class ArrayGroup(NamedTuple):
    """Live arrays of one shape, dtype and role."""

    role: str  # that of `SavedVariable` for the model's own, else `"other"`
    shape: tuple[int, ...]
    dtype: str
    number: int
    bytes: int  # of all of them


class Place(NamedTuple):
    """A position in a pass over the data, with an iterator state, from this or an earlier pass, to start from."""

    batch: int  # number of batches of the pass that the model has trained on
    read: int  # number of batches that had been read when the states below were taken
    # The iterator's state at that time; `None` if it cannot be saved, or at the start of a pass.
    iterator: IteratorState
    # The random generators' states at that time; `None` if reading all batches again reproduces them.
    random: RandomState
    random_at_start: RandomState  # their states before the pass that `iterator` belongs to
    # The largest number of rows in a batch of the pass so far; shorter batches may have to be padded to it.
    rows: int = 0
    passes: int = 0  # how many passes before this one the state was taken; those passes are read to their end
    unread: int = 0  # number of iterators created, but not read, between the end of those passes and this pass
    draws: bool = False  # whether reading a batch draws from Python's or NumPy's global random generators
    size: int | None = None  # number of batches of a whole pass, if Keras has learnt it by reading one; else `None`


class Call(NamedTuple):
    """One call of a layer, or of an operation between layers, in a functional model."""

    layer: Layer  # the layer or operation
    inputs: list[Tensor]  # its symbolic inputs
    outputs: list[Tensor]  # its symbolic outputs
    training: bool | None = None  # the argument of that name if it is fixed, else `None`


class Devices(Protocol):
    """Devices, the strategies over them, and the processes that train together."""

    def as_on_tpu(self) -> AbstractContextManager[None]:
        """Return a context in which Keras is traced as for a TPU, without one, and TPU kernels are interpreted.

        Raises:
            RuntimeNotSupportedError: If the runtime does not support this.
        """

    def count_gpus(self) -> int:
        """Return the number of GPUs that the framework sees, without initialising them if it can."""

    def live_arrays(self, model: Model) -> list[ArrayGroup]:
        """Return the arrays that this process holds on devices, those of `model` by their roles.

        TensorFlow's are found among all objects of Python, which may take some tenths of a second.
        """

    def memory_reader(self, model: Model) -> Callable[[], list[DeviceUse]]:
        """Return a function that reads the memory of this process's devices that train `model`.

        It does not wait for a device, and returns an empty list if nothing can be read.
        """

    def open_cpu(self, replicas: int) -> OpenedStrategy:
        """Return the strategy over `replicas` CPU devices, which are virtual if there are several.

        Raises:
            ScopeError: If the framework's devices were started before virtual ones could be made.
        """

    def open_gpus(self, count: int) -> OpenedStrategy:
        """Return the strategy over the first `count` GPUs."""

    def open_tpu(self, address: str) -> OpenedStrategy:
        """Return the strategy for the TPU at `address`, initialising it once per process.

        Raises:
            TpuUnusableError: If the TPU cannot be used; the message has the cause and a fix.
        """

    def open_workers(self) -> OpenedStrategy:
        """Return the strategy over the devices of all processes that train together.

        Raises:
            ClusterError: If they do not all join within a time limit; the message names the missing ones.
        """

    def num_workers(self) -> int:
        """Return the number of processes that train together, from the framework's own settings."""

    def is_chief(self) -> bool:
        """Return True in the one process, among those that train together, that writes files and prints."""

    def abstract_strategy(self, devices: int) -> OpenedStrategy:
        """Return a strategy for lowering steps, over `devices` devices that need not exist."""

    def compile_cache_dir(self) -> str | None:
        """Return the folder of the framework's cache of compiled programs, if it has one.

        Raises:
            RuntimeNotSupportedError: If the framework keeps no compiled programs.
        """

    def use_compile_cache(self, path: str, cache: Any) -> None:
        """Ask `cache`, by `get(key)` and `put(key, program)`, for the compiled programs in the folder `path`."""

    def shard(
        self,
        opened: OpenedStrategy,
        shard: Any,
        mesh: Sequence[tuple[str, int]] | None,
        choose: ChooseMesh | None = None,
    ) -> OpenedStrategy:
        """Return a strategy that shards models over the devices of `opened`.

        Args:
            opened: The strategy whose devices are used.
            shard: `"fsdp"`, a `keras.distribution.LayoutMap`, or a mapping from patterns to specs.
            mesh: Name and size of each axis; `None` for a single axis, `"data"`.
            choose: Returns a better mesh for a model and its first batch, or `None` to keep this one.

        Raises:
            RuntimeNotSupportedError: If the runtime cannot shard models.
        """

    def layout(self, model: Model) -> ModelLayout:
        """Return the layout of a built model."""

    def scope(self, strategy: Strategy) -> AbstractContextManager[object]:
        """Return the context in which variables and models are made on `strategy`."""

    def distribute(self, strategy: Strategy, dataset: Iterable[Nest]) -> Iterable[Nest]:
        """Return `dataset` with each batch split over the replicas of `strategy`."""

    def num_replicas(self, model: Model) -> int:
        """Return the number of replicas that train `model` synchronously: the number of parts of a batch."""

    def num_devices(self, model: Model) -> int:
        """Return the number of devices that train `model`; a replica may have several of them."""

    def device_name(self, model: Model) -> str:
        """Return the framework's name for a device that trains `model`, such as `"TPU v3"`, or `"TPU"` at least."""


class Models(Protocol):
    """Inspection of Keras models."""

    def exact_models(self, trainer: type, *, for_tpu: bool = False) -> AbstractContextManager[object]:
        """Return a context in which each plain model that is created or used takes the exact step of `trainer`.

        Models that are made or compiled in it with `for_tpu` compute with `tpu_operations`.
        """

    def reopened_by_clear_session(
        self, make_context: Callable[[], AbstractContextManager[object]]
    ) -> AbstractContextManager[object]:
        """Return a context that enters `make_context()`, and enters a new one after each `clear_session()`."""

    def calls(self, model: Model) -> list[Call]:
        """Return the calls of layers and operations in a functional model, without those inside its layers."""

    def clone(self, model: Model, copy_of: Callable[[Layer], Layer]) -> Model:
        """Clone a functional model, with `copy_of(layer)` for each layer; the clone is not compiled."""

    def draws_random_numbers(self, layer: Layer) -> bool:
        """Return True if `layer` has a random seed generator of its own."""

    def flatten_layers(self, model: Model) -> list[Layer]:
        """Return all layers of `model` at any depth, in order of creation, without the model itself."""

    def inputs_and_outputs(self, model: Model) -> tuple[Nest, Nest] | None:
        """Return the structures of symbolic inputs and outputs; `None` if `model` has none."""

    def is_compiled(self, model: Model) -> bool:
        """Return True if `model` was compiled."""

    def repeated_blocks(self, model: Model) -> list[str]:
        """Return the names of composite layers whose class occurs several times, such as the blocks of a decoder."""

    def losses(self, model: Model) -> list[tuple[str, str, str, str]]:
        """Return `(layer name, its dtype, loss class name, loss dtype)` of each output that a compiled loss reads."""

    def metrics(self, model: Model) -> list[tuple[str, str, str]]:
        """Return `(metric name, class name, dtype)` of each metric of the model."""

    def named_as_builtin(self, model: Model) -> AbstractContextManager[None]:
        """Return a context in which a functional model is saved under the name of Keras's own class."""

    def path_of(self, variable: Variable) -> str:
        """Return the path of `variable`: its name, prefixed with those of the layers that contain it."""

    def plain_model(self, inputs: Nest, outputs: Nest, name: str) -> Model:
        """Return Keras's own model of `inputs` and `outputs`, even where plain models take the exact step."""

    def save_as(self, variant: type, cls: type) -> None:
        """Let objects of the class `variant` be saved as those of `cls`."""

    def softmaxes(self, model: Model) -> list[tuple[str, str, str]]:
        """Return `(layer name, class name, dtype)` of each softmax in `model`, at any depth."""


class Policies(Protocol):
    """Keras's dtype policies."""

    def get_dtype_policy(self) -> Policy:
        """Return the global dtype policy."""

    def set_dtype_policy(self, policy: Policy | str) -> None:
        """Set the global dtype policy to a name, or to what `get_dtype_policy` returned."""

    def parse_dtype_policy(self, name: str) -> Policy:
        """Return the floating-point policy called `name`.

        Raises:
            TypeError: If `name` is not a string.
            ValueError: If no model can train in it, or there is no such policy.
        """


class Batch(Protocol):
    """The batch of the running step, for layers."""

    def position_in_batch(self, rows: int | Tensor) -> tuple[int | Tensor, int | Tensor]:
        """Return the index of this replica's first row in the whole batch, and the number of rows of that batch."""

    def row_weights(self, inputs: Tensor) -> Tensor | None:
        """Return float32 weights that broadcast to `inputs`, zero for rows that are no examples, or `None`."""

    def sum_over_replicas(self, values: Sequence[Tensor | float]) -> list[Tensor]:
        """Return the sum of each tensor, or Python number, over all replicas; it has no gradient."""

    def respects_padding(self, function: _Function) -> _Function:
        """Return `function`, marked: what it returns for examples does not depend on padded rows.

        Without the mark, a batch is not padded for code that looks from row to row.
        """

    def batch_sum(self, values: Tensor) -> Tensor:
        """Return the sum over the first axis, over the examples of all replicas and over no padded row."""

    def batch_mean(self, values: Tensor) -> Tensor:
        """Return the mean over the first axis, over the examples of all replicas and over no padded row."""

    def has_local_statistics(self, normalization: Layer) -> bool:
        """Return True if a `BatchNormalization` takes its moments from the replica's part of the batch only."""


class KerasOps(Protocol):
    """The functions of `keras.ops` that this package uses; on Keras 2 they come from TensorFlow."""

    abs: Callable[..., Tensor]
    all: Callable[..., Tensor]
    arange: Callable[..., Tensor]
    bitwise_and: Callable[..., Tensor]
    bitwise_left_shift: Callable[..., Tensor]
    bitwise_or: Callable[..., Tensor]
    bitwise_right_shift: Callable[..., Tensor]
    bitwise_xor: Callable[..., Tensor]
    cast: Callable[..., Tensor]
    clip: Callable[..., Tensor]
    concatenate: Callable[..., Tensor]
    cond: Callable[..., Nest]
    convert_to_numpy: Callable[..., Array]
    convert_to_tensor: Callable[..., Tensor]
    custom_gradient: Callable[..., Callable[..., Any]]
    divide_no_nan: Callable[..., Tensor]
    equal: Callable[..., Tensor]
    expand_dims: Callable[..., Tensor]
    flip: Callable[..., Tensor]
    isfinite: Callable[..., Tensor]
    logical_and: Callable[..., Tensor]
    logical_not: Callable[..., Tensor]
    max: Callable[..., Tensor]
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
    stack: Callable[..., Tensor]
    stop_gradient: Callable[..., Tensor]
    sum: Callable[..., Tensor]
    take: Callable[..., Tensor]
    transpose: Callable[..., Tensor]
    where: Callable[..., Tensor]
    zeros: Callable[..., Tensor]
    zeros_like: Callable[..., Tensor]


class Ops(KerasOps, Protocol):
    """Operations for layers: `keras.ops`, and some that it lacks."""

    def add_counter(self, layer: Layer, name: str) -> Variable:
        """Add an int32 weight to `layer`, initially 0, that the first replica updates for all replicas."""

    def ensure_shape(self, values: Tensor, shape: Sequence[int | None]) -> Tensor:
        """Set the static shape of `values`, which the arrays of a `Sequence` of Keras 2 do not have in a step."""

    def in_symbolic_call(self) -> bool:
        """Return True while Keras calls layers only to infer the shapes of their outputs."""

    def no_autocast(self) -> AbstractContextManager[object]:
        """Return a context in which variables are read in their own dtype, not in the layer's compute dtype."""

    def one_hot_einsum(self, values: Tensor, *choices: tuple[str, Tensor]) -> Tensor:
        """Gather from `values` by one einsum for each of `choices`: much faster on TPUs than a gather.

        Args:
            values: Finite numbers, whose dtype the result has.
            *choices: Pairs of an equation, as for `einsum`, and its first operand. The second operand is `values`, or
                the previous pair's result. The first is either boolean, with at most one true value along the summed
                dimensions, and the result is exact, or float32 weights of at most 8 significant bits, and it is
                rounded.
        """

    def one_hot_matmul(self, one_hot: Tensor, values: Tensor, *, transposed: bool = False) -> Tensor:
        """Multiply `one_hot`, or its transpose, a matrix of ones and zeros in the dtype of `values`, with `values`.

        No factor is rounded, and sums are float32, or float64 for float64 values.
        """

    def value_of(self, variable: Variable) -> Array | None:
        """Return the value of `variable` as an array, even while a step is traced; `None` if it cannot be read."""


class Progress(Protocol):
    """Counters of a model, and where they are shown."""

    def counts_examples(self, model: Model) -> bool:
        """Return whether `examples_seen` is known to count examples rather than steps and replicas."""

    def examples_seen(self, model: Model) -> float | None:
        """Return the number of examples seen in this epoch, or `None`; waits for the device."""

    def end_names_last_batch(self) -> bool:
        """Return whether `on_train_batch_end` gets the index of the last batch of an execution, not of the first."""

    def loss_scale(self, model: Model) -> float | None:
        """Return the loss scale of the next step; `None` without loss scaling."""

    def show_in_progress_bar(self, names: Mapping[str, str | None]) -> None:
        """Let progress bars show log keys under these names, not averaged; `None` hides a key."""

    def event_file_class(self) -> EventFileClass:
        """Return the class of event files for TensorBoard.

        Raises:
            MissingExtraError: If nothing is installed that can write one.
        """

    def skipped_steps(self, model: Model) -> int | None:
        """Return the number of steps that loss scaling has skipped; `None` if nothing counts them."""

    def train_steps(self, model: Model) -> int | None:
        """Return the number of train steps that the optimizer has taken, or `None`; waits for the device."""

    def watch_fits(self, watch: Callable[[Model, list[Callback], float, ExitStack], list[Any]]) -> None:
        """From now on, call `watch` when the callbacks of a `fit` are about to be called for the first time.

        It gets the model, its callbacks, the `time.perf_counter` of the first line of `fit`, and a stack that is
        closed at its end, also after an error; it returns what Keras is to call in place of the callbacks.
        """


class RunningFit(Protocol):
    """A call of `fit` whose arguments Keras has not received yet."""

    method: str  # `"fit"`, `"evaluate"` or `"predict"`
    arguments: dict[str, Any]  # the arguments by name, which may be changed
    data: Any  # the object that reads the batches, if `fit` may start in the middle of the data

    @property
    def callbacks(self) -> list[Callback]:
        """The callbacks, in one list."""


class ResumableData(Protocol):
    """The batches of a `fit` that may start in the middle of the data."""

    seed: int | None  # the seed that was set for shuffles without their own; `None` if they have one, or need none
    # Why the data may continue with other random numbers or in a different order; empty if it does not.
    not_exact: str
    read_again: int  # number of batches that were read again to return to the saved position
    seconds: float  # how long that took
    refusal: CheckpointError | None  # why `fit` cannot go on, after an error in the thread that reads; else `None`

    def refuse(self, error: CheckpointError) -> None:
        """Raise an error that ends `fit`, from whichever thread reads the batches."""

    def resume(self, place: Place, batch: int, restore: Callable[[], object] = lambda: None) -> None:
        """Let the first epoch, which is about to begin, start where another process stopped.

        Args:
            place: The position in the data.
            batch: The number of batches of the epoch that have been trained on.
            restore: Restores the attributes of a `PyDataset`, before the pass begins and, if they were saved after
                the hook at the start of an epoch, again after that hook.
        """

    def begin_epoch(self, trained: int) -> None:
        """Note that an epoch begins, or continues, after `trained` batches in total."""

    def end_epochs(self, trained: int) -> None:
        """Note that the last epoch has ended after `trained` batches in total; a later one begins with a new pass."""

    def note_trained(self, batches: int) -> None:
        """Note how many batches in total the model has trained on, just before it continues."""

    def place(self, *, at_once: bool) -> Place | None:
        """Return the position after the batches that were trained on; `None` if it is not known yet, or at the end.

        Args:
            at_once: Whether to return a position from which many batches must be read again, rather than `None`.
        """


class TrainingState(Protocol):
    """The state of a training run, so that another process can continue it."""

    def all_variables(self, model: Model) -> list[tuple[str, Variable]]:
        """Return each variable of `model` that training changes and that already exists, with its role."""

    def read(self, model: Model, *, on_host: bool) -> list[SavedVariable]:
        """Return the value of each variable of `model` that training changes, as arrays that later steps leave alone.

        All processes must call this, in a callback hook of the main thread. Without `on_host` the arrays may be on
        the device, and still have to be computed; else they are NumPy's.
        """

    def assign(self, model: Model, saved: Sequence[SavedVariable]) -> None:
        """Assign values that `read` returned, here or in another process, to the variables of `model`.

        Raises:
            CheckpointError: If they belong to another model; then nothing is changed.
        """

    def not_kept(self, model: Model) -> str:
        """Return which state of `model` no checkpoint can hold and what to write instead; empty if there is none."""

    def all_gather_int(self, model: Model, number: int) -> list[int]:
        """Return the numbers that all processes training `model` pass to this call, in the same order on each."""

    def reading_batches(
        self, call: RunningFit, first_epoch: int | None, seed: int | None
    ) -> AbstractContextManager[ResumableData]:
        """Return a context in which `fit` can start in `first_epoch`, in the middle of the data.

        Args:
            call: The call.
            first_epoch: The epoch to start with; `None` for the call's own.
            seed: `ResumableData.seed` in another process, or `None`.

        Raises:
            NotForThisKerasError: If this is impossible with the model's Keras or with several processes.
        """


class Probes(Protocol):
    """Probes of a train step: its FLOPs, its program, its gradients, its calls."""

    def count_flops(self, model: Model, batch: Nest, batch_size: int) -> FlopsCount:
        """Count the FLOPs of a train step of `model`, in `fit`, that has run before; this runs nothing.

        Args:
            model: The model.
            batch: The specs of a batch, of `Execution.batches`.
            batch_size: Number of examples in a batch over all replicas.

        Raises:
            UncountableError: If they cannot be counted, with the reason.
        """

    def watch_compiles(self) -> CompileWatch:
        """Return a watch that counts the seconds spent on tracing and compiling from now on; see `sees_compiler`."""

    def constants_of(self, model: Model) -> dict[str, object]:
        """Return the numbers, strings and tuples that the layers of `model` have as attributes.

        A step is traced with their values of that moment.
        """

    def intercept_executions(
        self, model: Model, around: Callable[[Execution], Nest], step: Step = "train"
    ) -> Interception:
        """Return what passes each call of the train or test function of `model`, in `fit`, to `around`."""

    def call_abstractly(self, function: Callable[[], _T]) -> _T:
        """Call a function that creates models, whose variables have shapes but no values where the runtime can."""

    def lower_step(self, model: Model, batch: Nest, opened: OpenedStrategy, device_kind: str) -> LoweredStep:
        """Lower the train step of a compiled model, which `fit` runs, building the model if necessary.

        Args:
            model: The model.
            batch: What `fit` gives to a step, as `keras.utils.pack_x_y_sample_weight` returns it, of objects with
                `shape` and `dtype`.
            opened: The strategy to lower it for, of `Devices.abstract_strategy` or `Devices.shard`.
            device_kind: JAX's name for its devices, such as `"TPU v3"`; on JAX also `"cpu"`.

        Raises:
            LoweringError: If it cannot be lowered; it has the layer, the line and a fix, as far as they are known.
        """

    def lower_programs(
        self,
        model: Model,
        batch: Nest,
        opened: OpenedStrategy,
        device_kind: str,
        *,
        step_seconds: float | None = None,
    ) -> list[LoweredStep]:
        """Lower every program that a `fit` with validation, `evaluate` and `predict` would compile for such a batch.

        With a short last batch these are others than without one, and both are among them. If a model's batches
        cannot be padded, a short one is a batch of another size, for which to ask again. Under
        `steps_per_execution="auto"` they are those of one step, and of as many as take about half a second.

        Args:
            model: As for `lower_step`.
            batch: As for `lower_step`.
            opened: As for `lower_step`.
            device_kind: As for `lower_step`.
            step_seconds: About how long a train step takes, if known; "auto" is 8 steps if not.

        Raises:
            LoweringError: As of `lower_step`; always on TensorFlow.
        """

    def record_gradients(self, model: Model) -> Callable[[], list[Array] | None]:
        """Replace the optimizer of a compiled model, before its first step, by one that only records gradients.

        The result is a function that returns the last ones, reduced, unscaled and clipped as before, as arrays in
        the order of the trainable variables; `None` if there are none yet.
        """

    def start_profiler(self, directory: str) -> None:
        """Start the framework's profiler, which will write into a local folder; Python's own calls are not recorded.

        Raises:
            RuntimeError: If a profiler is running in this process.
        """

    def stop_profiler(self) -> None:
        """Stop the profiler, and write what it recorded to `plugins/profile/<time>/<host>.xplane.pb`."""

    def profiled_step(self, name: str, step: int) -> AbstractContextManager[object]:
        """Return a context whose span a running profiler records under a name, with the number of a step."""

    def not_finite_weights(self, model: Model) -> list[str]:
        """Return the paths of the weights of `model` that have an inf or a NaN; waits for the device."""

    def unwatch_not_finite(self, model: Model) -> None:
        """Stop recording losses that are not finite."""

    def unwatch_overflow(self, model: Model) -> None:
        """Stop recording non-finite gradients."""

    def watch_not_finite(self, model: Model) -> Callable[[], NotFinite] | None:
        """Let the step record the first loss that is not finite; return what reads it, or `None` if it cannot."""

    def watch_overflow(self, model: Model) -> Callable[[], list[Overflow]] | None:
        """Let the step record non-finite gradients; return a function that reads them, or `None` if it cannot."""


class SavedPrograms(Protocol):
    """Programs that were compiled before, perhaps elsewhere."""

    def facts_of(self, strategy: Strategy, *, are_here: bool = True) -> dict[str, str]:
        """Return what programs for a strategy are compiled for: its mesh and, if they are here, its devices."""

    def offer(self, programs: Sequence[SavedProgram], facts: Mapping[str, str]) -> None:
        """Use these programs, on devices with these facts, in place of compiling, for good."""


@dataclasses.dataclass(frozen=True)
class Runtime:
    """What a package of `_runtime` gives the rest of this package; mypy checks its modules (PEP 544)."""

    batch: Batch
    devices: Devices
    models: Models
    ops: Ops
    policies: Policies
    probes: Probes
    progress: Progress
    training_state: TrainingState
    TrainStep: Any  # the mixin for `keras.Model` with an exact step
    import_addons: Callable[[], ModuleType]
    # A context in which Keras's operations cost a TPU less, with the same results; `None` on Keras 2.
    tpu_operations: Callable[[], AbstractContextManager[None]] | None
    # Computes a call of a layer again in the backward pass; see `jax/remat.py`. `None` but on JAX.
    remat: Callable[..., Nest] | None
    saved_programs: SavedPrograms | None  # `None` but on JAX
    message_terms: MessageTerms
