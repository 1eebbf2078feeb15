"""What every runtime provides behind the seam: verbs in namespaces, never flags or versions.

A runtime is a package whose `__init__` has one module for each of these protocols (PEP 544: a module may implement
one), so that the type checker holds every runtime to every verb.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, NamedTuple, Protocol

from keras_tpu_ext._runtime.common.event_file import EventFileClass
from keras_tpu_ext._runtime.common.executions import Execution, Interception
from keras_tpu_ext._runtime.common.flops import FlopsCount
from keras_tpu_ext._runtime.common.lowering import LoweredStep
from keras_tpu_ext._runtime.common.types import Array, Layer, Loss, Model, Nest, Policy, Strategy, Tensor, Variable


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

    strategy: Strategy
    num_replicas: int
    device_name: str = ""
    supports_bfloat16: bool | None = None
    told_by: str = ""


@dataclasses.dataclass(frozen=True)
class MessageTerms:
    """What messages call a runtime and its parts.

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
    """One call of a layer, or of an operation between layers, in a functional model.

    Attributes:
        layer: What is called.
        inputs: The symbolic tensors that it gets.
        outputs: Those that it returns.
        training: The argument of that name; `None` where it is not set for good.
    """

    layer: Layer
    inputs: list[Tensor]
    outputs: list[Tensor]
    training: bool | None = None


class Devices(Protocol):
    """Devices, the strategies over them, and the processes that train together."""

    def count_gpus(self) -> int:
        """Return how many GPUs the framework sees, without starting one."""

    def open_cpu(self, replicas: int) -> OpenedStrategy:
        """Return the strategy over `replicas` CPU devices, virtual ones where there is more than one.

        Raises:
            ScopeError: When the framework's devices were started before virtual ones could be made.
        """

    def open_gpus(self, count: int) -> OpenedStrategy:
        """Return the strategy over the first `count` GPUs."""

    def open_tpu(self, address: str) -> OpenedStrategy:
        """Return the strategy for the TPU at `address`, initialising it once per process.

        Raises:
            TpuUnusableError: With the cause and the cure, when the TPU cannot be used.
        """

    def open_workers(self) -> OpenedStrategy:
        """Return the strategy over the devices of all processes that train together.

        Raises:
            ClusterError: When they do not come together in bounded time; the text names who is missing.
        """

    def num_workers(self) -> int:
        """Return how many processes train together, as the framework's own settings say."""

    def is_chief(self) -> bool:
        """Return whether this process writes files and prints: of several that train together one does."""

    def scope(self, strategy: Strategy) -> AbstractContextManager[Any]:
        """Return the context manager in which models belong to `strategy`."""

    def distribute(self, strategy: Strategy, dataset: Any) -> Any:
        """Return `dataset` split over the replicas of `strategy`."""

    def num_replicas(self, model: Model) -> int:
        """Return the number of replicas that train `model` in step."""

    def device_name(self, model: Model) -> str:
        """Return what the framework calls one device that trains `model`, such as `"TPU v3"`.

        It is `"TPU"` for a TPU whose generation it does not tell.
        """


class Models(Protocol):
    """What a Keras model tells about itself."""

    def calls(self, model: Model) -> list[Call]:
        """Return what is called in a functional model, without what models in it call."""

    def clone(self, model: Model, copy_of: Callable[[Layer], Layer]) -> Model:
        """Return a functional model like `model`, not compiled, with `copy_of(layer)` for each layer."""

    def compile_arguments(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """Return the arguments of a call of `keras.Model.compile` by name, with `auto_scale_loss` if it has one."""

    def draws_random_numbers(self, layer: Layer) -> bool:
        """Return whether `layer` has a generator of random numbers of its own."""

    def expects_logits(self, loss: Loss) -> bool:
        """Return whether a Keras loss applies softmax or sigmoid itself."""

    def flatten_layers(self, model: Model) -> list[Layer]:
        """Return all layers of `model` at any depth, without the model itself, in order of creation."""

    def inputs_and_outputs(self, model: Model) -> tuple[Nest, Nest] | None:
        """Return the structures of symbolic inputs and outputs; `None` where `model` has none."""

    def is_compiled(self, model: Model) -> bool:
        """Return whether `compile` of `model` was called."""

    def losses(self, model: Model) -> list[tuple[str, str, str, str]]:
        """Return `(layer name, its dtype, loss class name, loss dtype)` of each output that a compiled loss reads."""

    def metrics(self, model: Model) -> list[tuple[str, str, str]]:
        """Return `(metric name, class name, dtype)` of each metric that the model keeps."""

    def output_activations(self, model: Model) -> list[tuple[str, str, str]]:
        """Return `(output name, layer name, activation name)` for each output; `[]` where it cannot be told."""

    def path_of(self, variable: Variable) -> str:
        """Return the name of `variable` with those of the layers around it."""

    def softmaxes(self, model: Model) -> list[tuple[str, str, str]]:
        """Return `(layer name, class name, dtype)` of each softmax in `model`, at any depth."""


class Policies(Protocol):
    """Keras's dtype policies."""

    def get_dtype_policy(self) -> Policy:
        """Return the global dtype policy."""

    def set_dtype_policy(self, policy: Policy) -> None:
        """Set the global dtype policy, given by name or as `get_dtype_policy` returned it."""

    def parse_dtype_policy(self, name: str) -> Policy:
        """Return the floating-point policy of that name.

        Raises:
            TypeError: If `name` is no string.
            ValueError: If there is none, or one that a model cannot train in, such as "bool" or "int8".
        """


class Batch(Protocol):
    """The batch of the step that runs, for layers."""

    def place_in_batch(self, rows: Any) -> tuple[Any, Any]:
        """Return which row of the whole batch is this replica's first, and how many rows that has.

        Args:
            rows: How many rows this replica has; an int where that is static. Then so is the second result.
        """

    def row_weights(self, inputs: Tensor) -> Tensor | None:
        """Return weights of one or zero, in float32, that broadcast to `inputs`; `None` where every row counts.

        A row does not count if it fills a batch up, or stands in for none on a replica without examples.
        """

    def sum_over_replicas(self, values: Sequence[Tensor]) -> list[Tensor]:
        """Return each tensor, or Python number, summed over all replicas; no gradient may go through it."""

    def has_local_statistics(self, normalization: Layer) -> bool:
        """Return whether a `BatchNormalization` takes mean and variance of its replica's part of the batch only."""


class KerasOps(Protocol):
    """The functions of `keras.ops` that this package computes with; on Keras 2 the same by TensorFlow's."""

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
    shape: Callable[..., tuple[Any, ...]]
    sqrt: Callable[..., Tensor]
    square: Callable[..., Tensor]
    stop_gradient: Callable[..., Tensor]
    sum: Callable[..., Tensor]
    take: Callable[..., Tensor]
    transpose: Callable[..., Tensor]
    where: Callable[..., Tensor]
    zeros_like: Callable[..., Tensor]


class Ops(KerasOps, Protocol):
    """What layers compute with: `keras.ops`, and what it has not."""

    def add_counter(self, layer: Layer, name: str) -> Variable:
        """Return a new weight of `layer`, a whole number, 0 at first; replicas assign it once for all of them."""

    def ensure_shape(self, values: Tensor, shape: Sequence[int | None]) -> Tensor:
        """Return `values`, of which it is known that they have `shape`; `None` is for any size.

        A step on Keras 2 knows no size of what a `Sequence` or a generator gives.
        """

    def in_symbolic_call(self) -> bool:
        """Return whether Keras calls layers for the shapes of their outputs only."""

    def no_autocast(self) -> AbstractContextManager[Any]:
        """Return a context in which variables are read in their own dtype, not in the compute dtype of the layer."""

    def one_hot_einsum(self, values: Tensor, *choices: tuple[str, Tensor]) -> Tensor:
        """Return `values` after one einsum with a choice after the other, in their own dtype.

        A product is what TPUs do many times faster than they gather.

        Args:
            values: Finite numbers.
            *choices: Each an equation, as for `einsum`, and its first tensor. The second is `values`, or what the
                choice before has made of them. The first is of booleans, of which at most one of those that are
                summed over is true, and then every bit is kept; or of float32 weights of at most 8 significant bits,
                and then the result is rounded to the dtype of `values`.
        """

    def one_hot_matmul(self, one_hot: Tensor, values: Tensor, *, transposed: bool = False) -> Tensor:
        """Return the product of a matrix of ones and zeros with another one; no factor is rounded, sums are float32.

        Args:
            one_hot: Matrix of ones and zeros, in the dtype of `values`.
            values: Matrix of floats; for float64 the sums are float64.
            transposed: Whether `one_hot` is to be transposed first.
        """

    def value_of(self, variable: Variable) -> Array | None:
        """Return what `variable` holds as an array, also while a step is traced; `None` where it cannot be seen."""


class Progress(Protocol):
    """How far a model has come, and where that is shown."""

    def examples_seen(self, model: Model) -> float | None:
        """Return how many examples `model` has trained on in this epoch, or `None`; waits for the device."""

    def loss_scale(self, model: Model) -> float | None:
        """Return what the loss of the next step is multiplied by; `None` where nothing scales it by rule."""

    def mark_stateful_metrics(self, names: Iterable[str]) -> None:
        """Let progress bars show the last value of the log keys `names` and not their average; for good."""

    def event_file_class(self) -> EventFileClass:
        """Return the class of TensorBoard's event files, made from the path of a folder.

        Raises:
            MissingExtraError: Where nothing is installed that could write one.
        """

    def skipped_steps(self, model: Model) -> int | None:
        """Return how many steps loss scaling has skipped, or `None` where nothing counts them."""

    def train_steps(self, model: Model) -> int | None:
        """Return how many train steps the optimizer of `model` has taken, or `None`; waits for the device."""


class Probes(Protocol):
    """Looks into a step: its program, its gradients, its calls."""

    def count_flops(self, model: Model, batch: Nest, batch_size: int) -> FlopsCount:
        """Return the FLOPs of a train step of `model`, which has run; nothing is run, and no batch is taken.

        Args:
            model: A compiled model, in `fit`.
            batch: What `Execution.run_and_describe` has said of its batches.
            batch_size: Number of examples in a batch over all replicas.

        Raises:
            UncountableError: With the reason, where they cannot be counted.
        """

    def intercept_executions(self, model: Model, around: Callable[[Execution], Any]) -> Interception:
        """Let `around` make the calls of the train function of `model`, which is in `fit`."""

    def lower_step(self, model: Model, batch: Nest, replicas: int) -> LoweredStep:
        """Return the train step that `fit` would run as a program for TPUs; a model that is not built is built.

        Args:
            model: A compiled model.
            batch: `x`, `y` and `sample_weight`, structures of what has `shape` and `dtype`, or `None`.
            replicas: Number of devices that share the batch evenly.

        Raises:
            LoweringError: Where it cannot be one, with layer, line and cure as far as they are known.
        """

    def record_gradients(self, model: Model) -> Callable[[], list[Array] | None]:
        """Replace the optimizer of a compiled model by one that only records, with the same clipping.

        Call it inside the model's scope and before the model has taken a step.

        Returns:
            A function that returns the last gradients, reduced over replicas, unscaled and clipped, as arrays in the
            order of the trainable variables; `None` where no gradient has reached the optimizer.
        """

    def unwatch_overflow(self, model: Model) -> None:
        """Let the step note nothing any more."""

    def watch_overflow(self, model: Model) -> Callable[[], list[Overflow]] | None:
        """Let the step note gradients that are not finite; return how to read the notes, `None` where it cannot."""
