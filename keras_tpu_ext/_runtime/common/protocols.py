"""What every runtime module behind the seam provides: deeds, never flags or versions."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from types import ModuleType
from typing import Any, NamedTuple, Protocol

from keras_tpu_ext._runtime.common.event_file import OpenScalarFile
from keras_tpu_ext._runtime.common.executions import Execution, Interception
from keras_tpu_ext._runtime.common.flops import FlopsCount
from keras_tpu_ext._runtime.common.lowering import LoweredStep


@dataclasses.dataclass(frozen=True)
class OpenedStrategy:
    """A distribution strategy that is ready to use.

    Attributes:
        strategy: The framework's own object (`tf.distribute.Strategy`, `keras.distribution.DataParallel`).
        num_replicas: Number of replicas that train in step.
        device_name: What the framework calls the device, such as `"TPU v3"` or `"NVIDIA A100"`; may be empty.
        told_by: What told of several processes that train together, such as `"TF_CONFIG"`; empty for one.
        supports_bfloat16: Whether the devices have bfloat16 matrix units, as far as the framework can tell;
            `None` where it cannot.
    """

    strategy: Any
    num_replicas: int
    device_name: str = ""
    supports_bfloat16: bool | None = None
    told_by: str = ""


@dataclasses.dataclass(frozen=True)
class Words:
    """What messages say of a runtime.

    Attributes:
        framework: What the framework is called, such as `"TensorFlow"`.
        no_gpu: What to do where it should see a GPU and sees none.
        plain_model: What is not that of one device where it trains a plain `keras.Model` on replicas.
        keras: What its Keras is called, such as `"Keras 3"`.
    """

    framework: str
    no_gpu: str
    plain_model: str
    keras: str = "Keras 3"


class Overflow(NamedTuple):
    """Gradients of one replica that were not all finite.

    Attributes:
        update: Number of the update since the watch began, from 1: one for each batch and optimizer.
        replica: Number of the replica, from 0; `None` where gradients are seen for all replicas together, on JAX.
        variables: Paths of the variables whose gradients had an inf or a NaN.
        of: Number of variables that were updated together.
    """

    update: int
    replica: int | None
    variables: tuple[str, ...]
    of: int


class Call(NamedTuple):
    """One call of a layer, or of an operation between layers, in a model of inputs and outputs.

    Attributes:
        layer: What is called.
        inputs: The symbolic tensors that it gets.
        outputs: Those that it returns.
        training: The argument of that name; `None` where it is not set for good.
    """

    layer: Any
    inputs: list[Any]
    outputs: list[Any]
    training: Any = None


class Runtime(Protocol):
    """The names that `keras_tpu_ext._runtime` re-exports from the runtime in use."""

    keras: ModuleType
    ops: Any  # functions as in `keras.ops`; on Keras 2 those that layers here need
    PyDataset: type
    TrainStep: type
    tree: Any  # `flatten`, `map_structure`, `pack_sequence_as` as in `keras.tree`
    words: Words

    def count_gpus(self) -> int:
        """Return how many GPUs the framework sees, without starting one."""

    def open_tpu(self, address: str) -> OpenedStrategy:
        """Return the strategy for the TPU at `address`, initialising it once per process.

        Raises:
            TpuUnusableError: With the cause and the cure, when the TPU cannot be used.
        """

    def num_workers(self) -> int:
        """Return how many processes train together, as the framework's own settings say."""

    def is_chief(self) -> bool:
        """Return whether this process writes files and prints: of several that train together one does."""

    def open_workers(self) -> OpenedStrategy:
        """Return the strategy over the devices of all these processes.

        Raises:
            ClusterError: When they do not come together in bounded time; the text names who is missing.
        """

    def open_gpus(self, count: int) -> OpenedStrategy:
        """Return the strategy over the first `count` GPUs."""

    def open_cpu(self, replicas: int) -> OpenedStrategy:
        """Return the strategy over `replicas` CPU devices, virtual ones where there is more than one.

        Raises:
            ScopeError: When the framework's devices were started before virtual ones could be made.
        """

    def scope(self, strategy: Any) -> AbstractContextManager[Any]:
        """Return the context manager in which models belong to `strategy`."""

    def distribute(self, strategy: Any, dataset: Any) -> Any:
        """Return `dataset` split over the replicas of `strategy`."""

    def examples_seen(self, model: Any) -> float | None:
        """Return how many examples `model` has trained on in this epoch, or `None`; waits for the device."""

    def import_addons(self) -> ModuleType:
        """Return TensorFlow Addons.

        Raises:
            NotForThisKerasError: Where the Keras of this process cannot have it.
            MissingExtraError: Where it is not installed.
        """

    def flatten_layers(self, model: Any) -> list[Any]:
        """Return all layers of `model` at any depth, without the model itself."""

    def calls(self, model: Any) -> list[Call]:
        """Return what is called in a model of inputs and outputs, without what models in it call."""

    def clone(self, model: Any, copy_of: Callable[[Any], Any]) -> Any:
        """Return a model of inputs and outputs like `model`, not compiled, with `copy_of(layer)` for each layer."""

    def expects_logits(self, loss: Any) -> bool:
        """Return whether a Keras loss applies softmax or sigmoid itself."""

    def is_compiled(self, model: Any) -> bool:
        """Return whether `compile` of `model` was called."""

    def draws_random_numbers(self, layer: Any) -> bool:
        """Return whether `layer` has a generator of random numbers of its own."""

    def path_of(self, variable: Any) -> str:
        """Return the name of `variable` with those of the layers around it."""

    def show_as_they_are(self, names: Iterable[str]) -> None:
        """Let progress bars show the last value of the log keys `names` and not their average; for good."""

    def add_count(self, layer: Any, name: str) -> Any:
        """Return a new weight of `layer`, a whole number, 0 at first; replicas assign it once for all of them."""

    def pick(self, values: Any, *choices: tuple[str, Any]) -> Any:
        """Return `values` after one einsum with a choice after the other, in their own dtype.

        Args:
            values: Finite numbers.
            *choices: Each an equation, as for `einsum`, and its first tensor. The second is `values`, or what the
                choice before has made of them. The first is of booleans, of which at most one of those that are
                summed over is true, and then every bit is kept; or of float32 weights of at most 8 significant bits,
                and then the result is rounded to the dtype of `values`.
        """

    def with_shape(self, values: Any, shape: Sequence[int | None]) -> Any:
        """Return `values`, of which it is known that they have `shape`; `None` is for any size.

        A step on Keras 2 knows no size of what a `Sequence` or a generator gives.
        """

    def place_in_batch(self, rows: Any) -> tuple[Any, Any]:
        """Return, while a layer is called, which row of the whole batch is this replica's first, and how many it has.

        Args:
            rows: How many rows this replica has; an int where that is static. Then so is the second result.
        """

    def row_weights(self, inputs: Any) -> Any:
        """Return weights of one or zero, in float32, that broadcast to `inputs`; `None` where every row counts.

        A row does not count if it fills a batch up, or stands in for none on a replica without examples.
        """

    def sum_over_replicas(self, values: Sequence[Any]) -> list[Any]:
        """Return each tensor, or Python number, summed over all replicas; no gradient may go through it."""

    def exact_product(self, ones: Any, values: Any, *, transposed: bool = False) -> Any:
        """Return the product of a matrix of ones and zeros with another one; no factor is rounded, sums are float32.

        Args:
            ones: Matrix of ones and zeros, in the dtype of `values`.
            values: Matrix of floats; for float64 the sums are float64.
            transposed: Whether `ones` is to be transposed first.
        """

    def own_dtypes(self) -> AbstractContextManager[Any]:
        """Return a context in which variables are read in their own dtype, not in the compute dtype of the layer."""

    def asks_for_shapes(self) -> bool:
        """Return whether Keras calls layers for the shapes of their outputs only."""

    def value_of(self, variable: Any) -> Any:
        """Return what `variable` holds as an array, also while a step is traced; `None` where it cannot be seen."""

    def sees_its_replica_only(self, normalisation: Any) -> bool:
        """Return whether a `BatchNormalization` takes mean and variance of a part of the batch."""

    def record_gradients(self, model: Any) -> Callable[[], list[Any] | None]:
        """Put an optimizer that only records in the place of a compiled model's own; return how to read it."""

    def loss_scale(self, model: Any) -> float | None:
        """Return what the loss of the next step is multiplied by; `None` where nothing scales it by rule."""

    def num_replicas(self, model: Any) -> int:
        """Return the number of replicas that train `model` in step."""

    def train_steps(self, model: Any) -> int | None:
        """Return how many train steps the optimizer of `model` has seen, or `None`; waits for the device."""

    def skipped_steps(self, model: Any) -> int | None:
        """Return how many steps loss scaling has skipped, or `None` where nothing counts them."""

    def watch_overflow(self, model: Any) -> Callable[[], list[Overflow]] | None:
        """Let the step note gradients that are not finite; return how to read the notes, `None` where it cannot."""

    def unwatch_overflow(self, model: Any) -> None:
        """Let the step note nothing any more."""

    def device_name(self, model: Any) -> str:
        """Return what the framework calls one device that trains `model`, such as `"TPU v3"`.

        It is `"TPU"` for a TPU whose generation it does not tell.
        """

    def count_flops(self, model: Any, batch: Any, batch_size: int) -> FlopsCount:
        """Return the FLOPs of a train step of `model`, which has run; nothing is run, and no batch is taken.

        Args:
            model: A compiled model, in `fit`.
            batch: What `Execution.run_and_describe` has said of its batches.
            batch_size: Number of examples in a batch over all replicas.

        Raises:
            UncountableError: With the reason, where they cannot be counted.
        """

    def lower_step(self, model: Any, batch: Any, replicas: int) -> LoweredStep:
        """Return the train step that `fit` would run as a program for TPUs; a model that is not built is built.

        Args:
            model: A compiled model.
            batch: `x`, `y` and `sample_weight`, structures of what has `shape` and `dtype`, or `None`.
            replicas: Number of devices that share the batch evenly.

        Raises:
            LoweringError: Where it cannot be one, with layer, line and cure as far as they are known.
        """

    def scalar_files(self) -> OpenScalarFile:
        """Return what opens a file for TensorBoard.

        Raises:
            MissingExtraError: Where nothing is installed that could write one.
        """

    def intercept_executions(self, model: Any, around: Callable[[Execution], Any]) -> Interception:
        """Let `around` make the calls of the train function of `model`, which is in `fit`."""
