"""The interface of a runtime: functions in namespaces, never flags or versions. A module implements each protocol.

What all runtimes have in common needs no protocol: `models`, `progress` and `watches` are modules here.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from types import ModuleType
from typing import Any, Protocol, TypeVar

from keras_tpu_ext._runtime.common.event_file import EventFileClass
from keras_tpu_ext._runtime.common.executions import CompileWatch, Execution, Interception, Step
from keras_tpu_ext._runtime.common.flops import FlopsCount
from keras_tpu_ext._runtime.common.layouts import ModelLayout
from keras_tpu_ext._runtime.common.lowering import LoweredStep
from keras_tpu_ext._runtime.common.types import (
    Array,
    Layer,
    Metric,
    Model,
    Nest,
    SameNest,
    Strategy,
    Tensor,
    Variable,
)
from keras_tpu_ext._runtime.common.values import (
    ArrayGroup,
    ChooseMesh,
    DeviceUse,
    MessageTerms,
    OpenedStrategy,
    SavedVariable,
)
from keras_tpu_ext._runtime.training.fit_call import FitCall
from keras_tpu_ext._runtime.training.resumable_data import ResumablePasses

_T = TypeVar("_T")
_Rows = TypeVar("_Rows", bound="Tensor | None")
_Function = TypeVar("_Function", bound=Callable[..., Any])


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


class BatchOfStep(Batch, Protocol):
    """The batch of the running step, for losses and metrics: what they need to know about it and the replicas."""

    def num_replicas(self) -> int:
        """Return the number of replicas that the current data is split over."""

    def needs_gather(self) -> bool:
        """Return whether this replica's data are not exactly the examples of the batch."""

    def is_padded(self) -> bool:
        """Return whether some rows may not be examples."""

    def gather_examples(self, data: SameNest) -> SameNest:
        """Return `data` and the masks on it with the examples of all replicas joined, without padded rows."""

    def whole_batch_view(self) -> AbstractContextManager[None]:
        """Return a context manager within which this replica holds what `gather_examples` returns."""

    def whole_state(self, metrics: Callable[[], Iterable[Metric]]) -> AbstractContextManager[None]:
        """Return a context manager within which the variables of `metrics` hold the values kept on all replicas."""

    def on_some_row(self, function: Callable[..., Tensor]) -> Callable[..., Tensor]:
        """Return `function`, called with a row where this replica has none; the values of that row are cut off."""

    def is_row_by_row(self, function: Callable[..., Nest], specs: Sequence[Nest]) -> bool:
        """Return whether results of `function` for a row, on tensors like `specs`, depend on that row alone."""

    def keeps_sums(self, update: Callable[..., Nest], specs: Sequence[Nest], variables: Iterable[Variable]) -> bool:
        """Return whether an update of a metric's `variables` adds to each a sum over the rows, and nothing else."""

    def valid_rows_of(self, values: Tensor) -> Tensor | None:
        """Return for each row of `values` whether it counts; `None` if every row does."""

    def zero_invalid_rows(self, values: Tensor) -> Tensor:
        """Return `values` with zeros in padded rows."""

    def select_valid_rows(self, values: _Rows) -> _Rows:
        """Return `values`, a tensor or `None`, without padded rows."""

    def valid_fraction(self) -> Tensor | float:
        """Return the fraction of this replica's rows that are examples."""

    def static_examples(self, rows: int | None) -> int | None:
        """Return the number of rows here that Keras would know to be examples, given the static number of rows."""


class Ops(Protocol):
    """Operations for layers: those of `keras.ops` that `compat/keras2_ops.py` lists, and some that it lacks."""

    def __getattr__(self, name: str) -> Callable[..., Any]:
        """Return a function of `keras.ops`; on Keras 2 it comes from TensorFlow."""

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
        self, call: FitCall, first_epoch: int | None, seed: int | None
    ) -> AbstractContextManager[ResumablePasses]:
        """Return a context in which `fit` can start in `first_epoch`, in the middle of the data.

        Args:
            call: The call.
            first_epoch: The epoch to start with; `None` for the call's own.
            seed: `ResumablePasses.seed` in another process, or `None`.

        Raises:
            NotForThisKerasError: If this is impossible with the model's Keras or with several processes.
        """


class Probes(Protocol):
    """Probes of a train step: its FLOPs, its program, its calls."""

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

    def start_profiler(self, directory: str) -> None:
        """Start the framework's profiler, which will write into a local folder; Python's own calls are not recorded.

        Raises:
            RuntimeError: If a profiler is running in this process.
        """

    def stop_profiler(self) -> None:
        """Stop the profiler, and write what it recorded to `plugins/profile/<time>/<host>.xplane.pb`."""

    def profiled_step(self, name: str, step: int) -> AbstractContextManager[object]:
        """Return a context whose span a running profiler records under a name, with the number of a step."""


@dataclasses.dataclass(frozen=True)
class Runtime:
    """What a package of `_runtime` gives the rest of this package; mypy checks its modules (PEP 544)."""

    batch: Batch
    devices: Devices
    ops: Ops
    probes: Probes
    training_state: TrainingState
    TrainStep: Any  # the mixin for `keras.Model` with an exact step
    import_addons: Callable[[], ModuleType]
    # Returns the class of event files for TensorBoard, or raises `MissingExtraError` if nothing can write one.
    event_file_class: Callable[[], EventFileClass]
    # A context in which Keras's operations cost a TPU less, with the same results; `None` on Keras 2.
    tpu_operations: Callable[[], AbstractContextManager[None]] | None
    # Computes a call of a layer again in the backward pass; see `jax/remat.py`. `None` but on JAX.
    remat: Callable[..., Nest] | None
    # Programs that were compiled before, `jax/saved_programs.py`; `None` but on JAX.
    saved_programs: ModuleType | None
    message_terms: MessageTerms
