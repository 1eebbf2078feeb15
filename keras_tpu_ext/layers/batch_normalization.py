"""Batch normalisation that is the same at any number of replicas, in fewer passes over memory."""

from __future__ import annotations

from typing import Any

from keras_tpu_ext import _runtime
from keras_tpu_ext.checks import arguments as check
from keras_tpu_ext.errors import ArgumentError
from keras_tpu_ext.layers._moments import compute_moments, normalize, split_batch

ops = _runtime.ops

_NOT_SUPPORTED = ("synchronized", "renorm", "renorm_clipping", "renorm_momentum")


@_runtime.keras.saving.register_keras_serializable(package="keras_tpu_ext")
class BatchNormalization(_runtime.keras.layers.BatchNormalization):
    """Normalises with the mean and variance of all examples of a batch, on any number of replicas.

    It is a `keras.layers.BatchNormalization`, with the same weights and the same outputs in inference, so one can
    replace the other in a model. The differences are in training:

    - The moments are those of the **whole batch** on every runtime. On TensorFlow Keras takes those of a replica's
      part, unless `synchronized=True`, which it does not offer on JAX.
    - With `ghost_batch_size` they are those of that many consecutive examples of the whole batch, a ghost batch. The
      result depends on the batch and on this number, never on the number of replicas. A ghost batch that lies on one
      replica needs no communication: with the batch size of one core as `ghost_batch_size`, no normalisation waits
      for other cores. Source: Hoffer et al., Train longer, generalize better, 2017, section 4,
      https://arxiv.org/abs/1705.08741 ("Ghost Batch Normalization"). If the batch is not a multiple of it, the last
      ghost batch is smaller.
    - Padding rows (from `data.pad_batches`, and from `TPUModel` for uneven batches) do not count as examples.
    - Sums are float32 also for bfloat16 inputs. They give mean and variance in one pass; the gradient takes two
      passes and reads the inputs in their own dtype. The mean of squares is taken around `moving_mean`, since float32
      would lose the variance of inputs that are far from zero; in the first steps, before `moving_mean` has adapted,
      the variance of inputs whose mean is 1000 times their standard deviation is off by some per cent, and further
      out it is lost. Normalise such inputs first. Source of the gradient: Ioffe and Szegedy, Batch Normalization,
      2015, section 3, https://arxiv.org/abs/1502.03167.

    `moving_mean` and `moving_variance` follow the average over the ghost batches, weighted by their numbers of
    examples, without Bessel's correction (Keras 3 makes none; Keras 2 does in its fused kernel). A batch in which
    nothing counts leaves them as they are.

    In training the gradient cannot be differentiated again; a gradient penalty that needs this gets an error.

    Args:
        axis: The axis of the channels. Defaults to -1.
        momentum: Fraction of the moving averages that is kept at each step. Defaults to 0.99.
        epsilon: Added to the variance. Defaults to 1e-3.
        ghost_batch_size: Number of consecutive examples whose moments are taken together, or `None` (default) for
            the whole batch.
        **kwargs: All other arguments of `keras.layers.BatchNormalization`, except `renorm`, and on Keras 2
            `virtual_batch_size`. `synchronized` is accepted and makes no difference.

    Call arguments:
        inputs: Tensor of shape `(batch, ..., channels)`, or with the channels on `axis`.
        training: Whether to use the moments of the batch. As in Keras, a layer with `trainable=False` never does.
        mask: Boolean tensor of the shape of `inputs` without `axis`: values at `False` do not count in the moments.

    Raises:
        ArgumentError: If `ghost_batch_size` is not an integer of at least 1, or `renorm` or `virtual_batch_size` is
            given; when it is built, if `axis` is several axes, or that of the batch; when it is called, if `mask` has
            another rank.

    Example:
        ```python
        import keras
        import numpy as np
        import keras_tpu_ext as kte

        inputs = keras.Input((32, 32, 3))
        x = keras.layers.Conv2D(16, 3, use_bias=False)(inputs)
        x = kte.layers.BatchNormalization(ghost_batch_size=32)(x)  # moments of 32 images, on any number of replicas
        x = keras.layers.GlobalAveragePooling2D()(keras.layers.ReLU()(x))
        model = keras.Model(inputs, keras.layers.Dense(1)(x))
        model.compile("adam", "mse")
        images = np.random.default_rng(0).random((128, 32, 32, 3), "float32")
        model.fit(images, images.mean(axis=(1, 2, 3)), batch_size=64)
        ```
    """

    is_exact_over_replicas = True

    def __init__(
        self,
        axis: Any = -1,
        momentum: float = 0.99,
        epsilon: float = 1e-3,
        *,
        ghost_batch_size: int | None = None,
        **kwargs: Any,
    ) -> None:
        kwargs.pop("synchronized", None)
        if kwargs.get("renorm"):
            raise ArgumentError(
                "renorm=True is not offered: it corrects for small batches on each replica, and here the moments are "
                "those of the whole batch. Write: BatchNormalization() without it, or "
                "keras.layers.BatchNormalization(renorm=True)"
            )
        if isinstance(axis, (list, tuple)) and len(axis) == 1:  # as in the config of a built layer in Keras 2
            axis = axis[0]
        virtual = kwargs.pop("virtual_batch_size", None)  # Keras 2
        if virtual is not None:
            raise ArgumentError(
                f"virtual_batch_size={virtual!r} is not offered: Keras 2 takes it of each replica's part. Write: "
                f"{type(self).__name__}(ghost_batch_size={virtual!r}), which counts in the whole batch"
            )
        super().__init__(axis=axis, momentum=momentum, epsilon=epsilon, **kwargs)
        self.ghost_batch_size = check.optional(
            check.integer, type(self).__name__, "ghost_batch_size", ghost_batch_size, example=128
        )

    def build(self, input_shape: Any) -> None:
        """Make the weights of a `keras.layers.BatchNormalization`."""
        axes = self.axis if isinstance(self.axis, (list, tuple)) else [self.axis]
        rank = len(input_shape)
        if len(axes) != 1 or not -rank < axes[0] < rank or not axes[0]:
            came = list(axes) if len(axes) > 1 else axes[0]
            shape = tuple(input_shape)
            needed = f"the one axis of the channels, from 1 to {rank - 1} or -1 for inputs of shape {shape}"
            raise check.argument_error(type(self).__name__, "axis", needed, repr(came), "axis=-1")
        self._axis = int(axes[0]) % rank
        super().build(input_shape)

    def call(self, inputs: Any, training: Any = None, mask: Any = None) -> Any:
        """Return the inputs normalised."""
        if mask is not None and len(mask.shape) != len(inputs.shape) - 1:
            needed = f"of the shape of the inputs without axis {self._axis}"
            got = f"shape {tuple(mask.shape)} for inputs of shape {tuple(inputs.shape)}"
            write = "layer(x, mask=keep) with one value for every place of x, such as (batch, height, width)"
            raise check.argument_error(type(self).__name__, "mask", needed, got, write)
        if not (training and self.trainable):
            return super().call(inputs, training=False)
        if "float" not in str(inputs.dtype):
            inputs = ops.cast(inputs, "float32")  # Keras passes integers through unchanged
        shift = _wide_value(self.moving_mean)
        gamma = ops.ones_like(shift) if self.gamma is None else _wide_value(self.gamma)
        beta = ops.zeros_like(shift) if self.beta is None else _wide_value(self.beta)
        normalized = _runtime.batch.respects_padding(self._normalized)
        outputs, moments = normalized(inputs, self._weights(inputs, mask), gamma, beta, shift)
        self._update_moving_moments(*moments)
        return ops.cast(outputs, self.compute_dtype)

    def _normalized(self, inputs: Any, weights: Any, *channels: Any) -> tuple[Any, list[Any]]:
        """Return the inputs normalised by the moments of the batch, and these, averaged over ghost batches."""
        batch = split_batch(inputs, self._axis, self.ghost_batch_size)
        gamma, beta, shift = (batch.broadcast_channels(values) for values in channels)
        values = batch.view(inputs)
        moments = compute_moments(batch, values, weights, shift)
        outputs = batch.unview(normalize(batch, values, moments, gamma, beta, self.epsilon))
        return outputs, batch.average_moments(moments)

    def get_config(self) -> dict[str, Any]:
        """Return the arguments of the constructor."""
        config = {**super().get_config(), "ghost_batch_size": self.ghost_batch_size}
        return {name: value for name, value in config.items() if name not in _NOT_SUPPORTED}

    def _weights(self, inputs: Any, mask: Any) -> Any:
        """Return weights that broadcast to the inputs, 0 for values that do not count; `None` if all do."""
        weights = _runtime.batch.row_weights(inputs)
        if mask is None:
            return weights
        counted = ops.expand_dims(ops.cast(mask, "float32"), self._axis)
        return counted if weights is None else counted * weights

    def _update_moving_moments(self, mean: Any, variance: Any, count: Any) -> None:
        """Update the moving averages by the moments of this batch, except where `count` is 0."""
        for average, value in ((self.moving_mean, mean), (self.moving_variance, variance)):
            before = ops.convert_to_tensor(average)
            value = ops.cast(value, before.dtype)
            after = before * self.momentum + value * (1 - self.momentum)
            average.assign(after if isinstance(count, float) else ops.where(ops.equal(count, 0.0), before, after))


def _wide_value(weight: Any) -> Any:
    """Return the value of a weight, in at least float32."""
    value = ops.convert_to_tensor(weight)
    return value if "float64" in str(value.dtype) else ops.cast(value, "float32")
