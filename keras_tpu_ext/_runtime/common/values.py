"""The plain values that functions of the seam take and return."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

from keras_tpu_ext._runtime.common.types import Array, IteratorState, Layer, Model, Nest, RandomState, Tensor

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
