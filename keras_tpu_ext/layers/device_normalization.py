"""Normalisation of images on the device, so that the host sends bytes."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from typing import Any

import numpy as np

from keras_tpu_ext import _runtime
from keras_tpu_ext._runtime.common.padding import PaddedBatch
from keras_tpu_ext.checks import arguments as check

ops = _runtime.ops

_NAME = "DeviceNormalization"
_CHUNK = 2**22  # values held as float64 at the same time: 32 MiB


@_runtime.keras.saving.register_keras_serializable(package="keras_tpu_ext")
class DeviceNormalization(_runtime.keras.layers.Layer):
    """Turns uint8 images into floats around zero on the device, so that only bytes are transferred.

    A uint8 batch is a quarter of a float32 batch, in the host's memory and on the way to the device; the cast and
    `(x - mean) / sqrt(variance)` become part of the first operation that reads them.

    It takes the arguments of `keras.layers.Normalization`, and has the same weights. The differences:

    - The arithmetic is float32 (float64 for float64) whatever the dtype policy, and its result is rounded once, to
      the compute dtype. Keras rounds inputs, mean and variance first: under `mixed_bfloat16` 123.675 becomes 123.5.
    - `mean` and `variance` are read when the layer is called, also in a compiled step: after `set_weights` or a
      second `adapt` the new ones are used. Keras keeps the old ones.
    - `adapt` sums in float64 on the host, needs no TensorFlow, and gives the mean and variance of all values
      together. Padding rows (`data.pad_batches`) do not count.
    - A layer without a mean raises an error, instead of being the identity.

    The mean is subtracted before scaling: folded into one `x * scale + offset`, the result would lose digits if the
    mean is large compared with the deviation, and a TPU would take the same time. In float32 the result is off by at
    most 4e-7 of itself and 1e-7 of `mean / sqrt(variance)`.

    Args:
        axis: The axis, or axes, whose positions have a mean each; `None` for a single mean. Defaults to -1.
        mean: Mean of each position: a number, or values that broadcast to `axis`. `None` (default) waits for `adapt`.
        variance: Variance of each position, likewise; required with `mean`. Zero counts as 1e-14, as in Keras.
        invert: Whether to turn normalised inputs back. Defaults to `False`.
        **kwargs: Arguments of `keras.layers.Layer`.

    Call arguments:
        inputs: Tensor of any numeric dtype, such as uint8 of shape `(batch, height, width, channels)`.

    Raises:
        ArgumentError: If only one of `mean` and `variance` is given, or a variance is negative; when it is built, if
            they do not fit the inputs; when it is called, if it was never adapted.

    Example:
        ```python
        import keras
        import numpy as np
        import keras_tpu_ext as kte

        images = np.random.default_rng(0).integers(0, 256, (64, 32, 32, 3), "uint8")
        # For ImageNet: mean=[123.675, 116.28, 103.53], variance=[3410.0, 3262.7, 3291.9], and no adapt().
        normalization = kte.layers.DeviceNormalization()
        normalization.adapt(images)
        inputs = keras.Input((32, 32, 3), dtype="uint8")
        x = keras.layers.Conv2D(8, 3, strides=2)(normalization(inputs))
        model = keras.Model(inputs, keras.layers.Dense(1)(keras.layers.Flatten()(x)))
        model.compile("adam", "mse")
        model.fit(images, images.mean(axis=(1, 2, 3)) / 255)
        ```
    """

    def __init__(
        self, *, axis: Any = -1, mean: Any = None, variance: Any = None, invert: bool = False, **kwargs: Any
    ) -> None:
        # Autocast would round an input to bfloat16 before the mean is subtracted.
        super().__init__(**{"autocast": False, **kwargs})
        self.supports_masking = True
        self.axis = () if axis is None else (axis,) if np.ndim(axis) == 0 else tuple(axis)
        if (mean is None) != (variance is None):
            missing, there = ("variance", "mean") if variance is None else ("mean", "variance")
            write = f"mean=... and variance=..., with {missing} too, or leave out both and call adapt(data)"
            raise check.argument_error(_NAME, missing, f"given with `{there}`", "None", write)
        if variance is not None and not np.all(np.asarray(variance, "float64") >= 0):
            raise check.argument_error(_NAME, "variance", "0 or more", repr(variance), "variance=deviation**2")
        self.mean = mean
        self.variance = variance
        self.invert = invert
        self._is_adapted = None if mean is None else True  # `None` until the weights are checked

    def build(self, input_shape: Any) -> None:
        """Make the weights of a `keras.layers.Normalization`, if there is no `mean`."""
        shape, rank = tuple(input_shape), len(input_shape)
        if not all(-rank <= axis < rank and shape[axis] is not None for axis in self.axis):
            needed = f"dimensions of known size of the inputs, whose shape is {shape}"
            write = "axis=-1, or axis=None for one mean in all"
            raise check.argument_error(_NAME, "axis", needed, repr(self.axis), write)
        self._axes = tuple(sorted(axis % rank for axis in self.axis))
        self._sizes = tuple(int(shape[axis]) for axis in self._axes)
        self._broadcast = tuple(int(shape[axis]) if axis in self._axes else 1 for axis in range(rank))
        if self.mean is not None:
            self._constants = [self._constant(name) for name in ("mean", "variance")]
        else:
            options = {"dtype": self._moments_dtype, "trainable": False}
            self.adapt_mean = self.add_weight(name="mean", shape=self._sizes, initializer="zeros", **options)
            self.adapt_variance = self.add_weight(name="variance", shape=self._sizes, initializer="ones", **options)
            self.count = self.add_weight(name="count", shape=(), initializer="zeros", dtype="int32", trainable=False)
        super().build(input_shape)

    def adapt(self, data: Any, *, steps: int | None = None) -> None:
        """Compute mean and variance of data, on the host.

        Args:
            data: An array, a `tf.data.Dataset`, a `PyDataset`, or an iterable of batches; a batch may be `(x, y)`.
            steps: Number of batches to take, or `None` (default) for all. An array is one batch.

        Raises:
            ArgumentError: If the layer was given a `mean`, or the data are empty, have no end, are not numbers, or do
                not fit the layer.
        """
        if self.mean is not None:
            needed, got = "left out for a layer that adapts", f"a layer with mean={self.mean!r}"
            raise check.argument_error(
                "adapt", "mean", needed, got, "DeviceNormalization() without mean and variance"
            )
        moments = StreamingMoments()
        for batch in _batches(data, steps):
            inputs = _inputs(batch)
            self._check_batch_shape(inputs.shape)
            moments.add(inputs, self._axes)
        if not moments.count:
            raise check.argument_error("adapt", "data", "one example or more", "none", "layer.adapt(images)")
        self.adapt_mean.assign(moments.mean.astype(self._moments_dtype))
        self.adapt_variance.assign(moments.variance.astype(self._moments_dtype))
        self.count.assign(min(moments.count, 2**31 - 1))
        self._is_adapted = True

    def call(self, inputs: Any) -> Any:
        """Return the inputs normalised, in the compute dtype."""
        mean, variance = self._moments()
        values = ops.cast(inputs, self._moments_dtype)
        deviation = ops.maximum(ops.sqrt(variance), _runtime.keras.backend.epsilon())
        result = values * deviation + mean if self.invert else (values - mean) * (1.0 / deviation)
        return ops.cast(result, self.compute_dtype)

    def compute_output_shape(self, input_shape: Any) -> Any:
        """Return the shape of the inputs."""
        return input_shape

    @property
    def variables(self) -> list[Any]:
        """The variables; Keras on JAX reads them before `fit` takes away the values that `call` checks."""
        self._check_adapted()
        return super().variables

    def get_config(self) -> dict[str, Any]:
        """Return the arguments of the constructor."""
        config = {**super().get_config(), "axis": list(self.axis) or None, "invert": self.invert}
        for name, values in (("mean", self.mean), ("variance", self.variance)):
            config[name] = None if values is None else np.asarray(values).tolist()
        return config

    @property
    def _moments_dtype(self) -> str:
        """The dtype of the arithmetic."""
        return "float64" if self.variable_dtype == "float64" else "float32"

    def _constant(self, name: str) -> np.ndarray:
        """Return `mean` or `variance`, broadcast to the inputs."""
        values = np.asarray(getattr(self, name), "float64")
        try:
            return np.broadcast_to(values, self._sizes).reshape(self._broadcast).astype(self._moments_dtype)
        except ValueError:
            needed = f"a number or fit {self._sizes}, the size of the inputs on axis {self.axis or None}"
            got, write = f"shape {values.shape}", f"{name}=[...], one for each channel"
            raise check.argument_error(_NAME, name, needed, got, write) from None

    def _check_batch_shape(self, shape: tuple[int, ...]) -> None:
        """Check the shape of a batch, and build the layer for it if it is not built."""
        if not self.built:
            self.build(shape)
        fits = len(shape) == len(self._broadcast)
        if not fits or tuple(shape[axis] for axis in self._axes) != self._sizes:
            dimensions, axis = len(self._broadcast), self.axis or None
            needed = f"of {dimensions} dimensions, size {self._sizes} on axis {axis} as when the layer was built"
            raise check.argument_error("adapt", "data", needed, f"a batch of shape {shape}", "layer.adapt(images)")

    def _moments(self) -> list[Any]:
        """Return mean and variance as tensors that broadcast to the inputs."""
        if self.mean is not None:
            return [ops.convert_to_tensor(values) for values in self._constants]
        self._check_adapted()
        if self._is_adapted is False and not ops.in_symbolic_call():
            needed, got = "set before the layer is called", "none"
            write = "layer.adapt(images) first, or DeviceNormalization(mean=..., variance=...)"
            raise check.argument_error(self.name, "mean", needed, got, write)
        with ops.no_autocast():
            return [ops.reshape(weight, self._broadcast) for weight in (self.adapt_mean, self.adapt_variance)]

    def _check_adapted(self) -> None:
        """Update whether the layer is adapted: whether its weights, such as from a file, are not the initial ones."""
        if self._is_adapted or not self.built:
            return
        values = [ops.value_of(weight) for weight in (self.adapt_mean, self.adapt_variance, self.count)]
        if not any(value is None for value in values):
            mean, variance, count = values
            self._is_adapted = bool(count or np.any(mean) or np.any(variance != 1))


class StreamingMoments:
    """Mean and variance of all values so far, in float64.

    Source: Chan, Golub and LeVeque, Updating formulae and a pairwise algorithm for computing sample variances, 1979.
    """

    def __init__(self) -> None:
        self.count = 0
        self.mean: Any = 0.0
        self._squares: Any = 0.0

    @property
    def variance(self) -> Any:
        """The variance, without Bessel's correction."""
        return self._squares / self.count

    def add(self, batch: np.ndarray, axes: tuple[int, ...]) -> None:
        """Add the values of one batch, whose positions on `axes` have moments of their own."""
        batch = np.atleast_1d(batch)
        rows = max(1, len(batch) if 0 in axes else _CHUNK // max(1, batch[:1].size))
        for start in range(0, len(batch), rows):
            self._add(batch[start : start + rows].astype("float64"), axes)

    def _add(self, values: np.ndarray, axes: tuple[int, ...]) -> None:
        others = tuple(axis for axis in range(values.ndim) if axis not in axes)
        new = int(np.prod([values.shape[axis] for axis in others]))
        if not new:
            return
        mean = values.mean(others, keepdims=True)
        squares = np.square(values - mean).sum(others)
        apart = mean.reshape(squares.shape) - self.mean
        self.count += new
        self.mean = self.mean + apart * (new / self.count)
        self._squares = self._squares + squares + np.square(apart) * (new * (self.count - new) / self.count)


def _batches(data: Any, steps: int | None) -> Iterable[Any]:
    """Return the batches of one epoch, or the first `steps` of them."""
    is_infinite = False
    if hasattr(data, "shape"):
        data = [data]
    elif hasattr(data, "as_numpy_iterator"):
        is_infinite = int(data.cardinality()) == -1
        data = data.as_numpy_iterator()
    elif isinstance(data, _runtime.PyDataset):
        number = data.num_batches if hasattr(data, "num_batches") else len(data)  # Keras 2
        is_infinite = number is None
        data = map(data.__getitem__, itertools.count() if is_infinite else range(number))
    elif isinstance(data, (str, bytes, dict)) or not hasattr(data, "__iter__"):
        needed = "an array, a tf.data.Dataset, a PyDataset or an iterable of batches"
        raise check.argument_error("adapt", "data", needed, f"a {type(data).__name__}", "layer.adapt(images)")
    if is_infinite and steps is None:
        raise check.argument_error("adapt", "data", "finite", "infinite data", "layer.adapt(data, steps=100)")
    return itertools.islice(data, steps)


def _inputs(batch: Any) -> np.ndarray:
    """Return the inputs of a batch, which may be `(x, y)` or `(x, y, sample_weight)`, without padding rows."""
    inputs = np.asarray(batch[0] if isinstance(batch, tuple) else batch)
    if inputs.dtype == object or (inputs.dtype.kind in "USV" and "float" not in inputs.dtype.name):
        needed = "batches of numbers: arrays, or tuples with one first"
        got = f"a {type(batch).__name__} with dtype {inputs.dtype}"
        write = "layer.adapt(dataset.map(lambda batch: batch['image']))"
        raise check.argument_error("adapt", "data", needed, got, write)
    if isinstance(batch, PaddedBatch):
        weight = np.asarray(_runtime.tree.flatten(batch.sample_weight)[0])
        is_padding = (weight == 0) & np.signbit(weight)
        inputs = inputs[~is_padding.reshape(len(weight), -1).all(1)]
    return inputs
