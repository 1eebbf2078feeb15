"""Layers that mix pairs of examples, and their labels, in the compiled step."""

from __future__ import annotations

from typing import Any

import numpy as np

from keras_tpu_ext import _runtime
from keras_tpu_ext.checks import arguments as check
from keras_tpu_ext.layers._augmentation import Augmentation, dtype_name, interpolate, range_mask
from keras_tpu_ext.layers._random import BETA_LEVELS, beta, beta_quantiles, one_hot_lookup, randint

ops = _runtime.ops


class _Mixing(Augmentation):
    """A layer that mixes each example with its neighbour: number 0 of the batch with 1, 2 with 3, and so on."""

    _options = ("alpha",)

    def __init__(self, *, alpha: float, seed: int | None = None, **kwargs: Any) -> None:
        super().__init__(seed=seed, **kwargs)
        self.alpha = check.number(type(self).__name__, "alpha", alpha, above=0, example=0.2)

    def call(self, inputs: Any, training: Any = None) -> Any:
        images, labels = self._unpack(inputs)
        images = self._with_static_shape(images)
        self._check_labels(labels.shape, labels.dtype)
        return self._mix(images, labels, _Pairs(images)) if training else (images, labels)

    def _mix(self, images: Any, labels: Any, pairs: _Pairs) -> tuple[Any, Any]:
        raise NotImplementedError

    def compute_output_shape(self, input_shape: Any) -> tuple[Any, Any]:
        images, labels = self._unpack(input_shape)
        self._check_images(images)
        self._check_labels(labels)
        return tuple(images), tuple(labels)

    def _unpack(self, inputs: Any) -> Any:
        if not isinstance(inputs, (list, tuple)) or len(inputs) != 2:
            caller = type(self).__name__
            needed, got = "a pair of images and labels", "one tensor, or more than two"
            write = f"images, labels = {caller}()((images, labels), training=True)"
            raise check.argument_error(caller, "inputs", needed, got, write)
        return inputs

    def _check_labels(self, shape: Any, dtype: Any = "float32") -> None:
        name = dtype_name(dtype)
        if len(shape) != 2 or "float" not in name:
            needed, got = "floats of shape (batch, classes), which it mixes", f"{name} of shape {tuple(shape)}"
            write = "for class indices keras.ops.one_hot(labels, classes), or on Keras 2 tf.one_hot(labels, classes)"
            raise check.argument_error(type(self).__name__, "labels", needed, got, write)


@_runtime.keras.saving.register_keras_serializable(package="keras_tpu_ext")
class MixUp(_Mixing):
    """Mixes each image, and its label, with those of its neighbour: `x = part * x + (1 - part) * neighbour`.

    Every example draws its own part from Beta(alpha, alpha). Its neighbour is the next example if its index in the
    whole batch is even, and the previous one if it is odd, which a shuffled dataset makes as good as any other; so no
    communication and no gather are needed. It runs in the compiled step: every shape is static, and there is no loop.
    The distribution function of the parts is off by at most 1/1024, and by the rounding of float32 near 1.

    The random numbers of an example depend on the seed, on the number of earlier calls with `training=True`, and on
    its index in the whole batch. The result is the same at any number of replicas that have an even number of
    examples each, on every framework and device. **An example without a neighbour is not mixed**: the last one of an
    odd batch, one whose neighbour is a padding row, and on TensorFlow one whose neighbour is on another replica,
    which happens if replicas have an odd number of examples. The number of calls is a weight, so a saved model
    continues with new random numbers. Without `training=True` the layer returns its inputs.

    Source: Zhang et al., mixup: Beyond Empirical Risk Minimization, 2017, section 2, https://arxiv.org/abs/1710.09412.

    Args:
        alpha: Parameter of the Beta distribution; the smaller, the less is mixed. Defaults to 0.2.
        seed: Integer from 0 to 2**32 - 1, or `None` (default) to draw one when the layer is made; it is saved with
            the layer.
        **kwargs: Arguments of `keras.layers.Layer`.

    Call arguments:
        inputs: Pair of images of shape `(batch, height, width, channels)`, floats or `uint8`, and float labels of
            shape `(batch, classes)`. Both keep their dtype, also under a mixed precision policy; `uint8` is
            rounded.
        training: Whether to mix.

    Raises:
        ArgumentError: If an option is invalid, or `seed` is `None` and several processes train together; when it is
            called, if the inputs are not such a pair.

    Example:
        ```python
        import numpy as np
        import keras_tpu_ext as kte

        images = np.random.default_rng(0).random((4, 32, 32, 3), "float32")
        labels = np.eye(4, dtype="float32")  # one-hot
        mix_up = kte.layers.MixUp(alpha=0.2, seed=0)
        images, labels = mix_up((images, labels), training=True)
        print(np.round(labels, 2))  # the labels of neighbours, by the parts of their images
        ```
    """

    _first_draw = 2 << 16

    def __init__(self, *, alpha: float = 0.2, seed: int | None = None, **kwargs: Any) -> None:
        super().__init__(alpha=alpha, seed=seed, **kwargs)

    def _mix(self, images: Any, labels: Any, pairs: _Pairs) -> tuple[Any, Any]:
        (bits,) = self._random_bits(ops.shape(images)[0], 1)
        weights = pairs.where_exist(beta(bits, self.alpha), 1.0)
        return pairs.mix(weights, images), pairs.mix(weights, labels)


@_runtime.keras.saving.register_keras_serializable(package="keras_tpu_ext")
class CutMix(_Mixing):
    """Puts a rectangle of a neighbouring image into each image, and mixes their labels by the area.

    Every example draws its own rectangle: the part of the image that stays from Beta(alpha, alpha), of which 1024
    equally probable quantiles are used, and its centre from all pixels. The rectangle is clipped to the image, and
    the labels are mixed by the area that is left. It runs in the compiled step: every shape is static, there is no
    loop, and nothing is sliced. Neighbours and random numbers are those of `MixUp`: **an example without a neighbour
    is not mixed**, and the result is the same at any number of replicas with an even number of examples each.

    Source: Yun et al., CutMix, 2019, section 3.1 and appendix A, https://arxiv.org/abs/1905.04899.

    Args:
        alpha: Parameter of the Beta distribution. Defaults to 1.0, with which all parts are equally probable.
        seed: Integer from 0 to 2**32 - 1, or `None` (default) to draw one when the layer is made; it is saved with
            the layer.
        **kwargs: Arguments of `keras.layers.Layer`.

    Call arguments:
        inputs: Pair of images of shape `(batch, height, width, channels)`, floats or `uint8`, and float labels of
            shape `(batch, classes)`. Both keep their dtype, also under a mixed precision policy.
        training: Whether to mix.

    Raises:
        ArgumentError: If an option is invalid, or `seed` is `None` and several processes train together; when it is
            called, if the inputs are not such a pair.

    Example:
        ```python
        import numpy as np
        import keras_tpu_ext as kte

        images = np.random.default_rng(0).random((4, 32, 32, 3), "float32")
        labels = np.eye(4, dtype="float32")  # one-hot
        cut_mix = kte.layers.CutMix(seed=0)
        images, labels = cut_mix((images, labels), training=True)
        print(np.round(labels, 2))  # the labels of neighbours, by the area that each image keeps
        ```
    """

    _first_draw = 3 << 16

    def __init__(self, *, alpha: float = 1.0, seed: int | None = None, **kwargs: Any) -> None:
        super().__init__(alpha=alpha, seed=seed, **kwargs)

    def _mix(self, images: Any, labels: Any, pairs: _Pairs) -> tuple[Any, Any]:
        height, width = images.shape[1:3]
        bits, row_bits, column_bits = self._random_bits(ops.shape(images)[0], 3)
        level = randint(bits, BETA_LEVELS)
        top, bottom = self._edges(level, row_bits, height, pairs)
        left, right = self._edges(level, column_bits, width, pairs)
        inside = range_mask(top, bottom, height, axis=1) & range_mask(left, right, width, axis=2)
        area = ops.cast((bottom - top) * (right - left), "float32")
        mixed = ops.where(inside, pairs.swap(images), images)
        return mixed, pairs.mix(1 - area / np.float32(height * width), labels)

    def _edges(self, level: Any, bits: Any, size: int, pairs: _Pairs) -> list[Any]:
        """Return start and end of the rectangle along an axis of `size`; it is empty without a partner."""
        own_part = beta_quantiles(self.alpha, (np.arange(BETA_LEVELS) + 0.5) / BETA_LEVELS)
        half = one_hot_lookup((size * np.sqrt(1 - own_part)).astype("int32") // 2, level)
        middle = randint(bits, size)
        return [pairs.where_exist(ops.clip(edge, 0, size), 0) for edge in (middle - half, middle + half)]


class _Pairs:
    """The pairs of examples among the rows of this replica: even and odd neighbours in the whole batch."""

    def __init__(self, images: Any) -> None:
        self._rows = ops.shape(images)[0]
        self._first, total = _runtime.batch.position_in_batch(self._rows)
        # In this case every replica has the same number of rows, so each begins with an even index.
        self._is_aligned = isinstance(total, int) and isinstance(self._rows, int) and self._rows % 2 == 0
        # Whether each row's partner is an example on this replica; `None` if all are.
        self._exist: Any = _runtime.batch.respects_padding(self._existing)(_runtime.batch.row_weights(images))

    def swap(self, values: Any) -> Any:
        """Return the value of each row's partner; that of another row if there is none."""
        return _runtime.batch.respects_padding(self._swapped)(values)

    def mix(self, weights: Any, values: Any) -> Any:
        """Return the sum of each row, times its weight, and its partner's, times the rest."""
        return interpolate(_broadcast_rows(weights, values), values, self.swap(values))

    def where_exist(self, values: Any, otherwise: Any) -> Any:
        """Return `values` for rows with a partner, and `otherwise` for others."""
        return values if self._exist is None else ops.where(self._exist, values, otherwise)

    def _existing(self, weights: Any) -> Any:
        exist = None
        if not self._is_aligned:
            rows = ops.arange(self._rows, dtype="int32")
            exist = ops.where(self._is_even(), rows + 1 < self._rows, rows > 0)
        if weights is not None:
            real = ops.reshape(weights, (-1,)) * ops.ones((self._rows,), "float32")
            real = self._swapped(real) > 0
            exist = real if exist is None else real & exist
        return exist

    def _swapped(self, values: Any) -> Any:
        if self._is_aligned:
            pairs = ops.reshape(values, (-1, 2, *values.shape[1:]))
            return ops.reshape(ops.flip(pairs, axis=1), (-1, *values.shape[1:]))
        after = ops.concatenate([values[1:], values[:1]], axis=0)
        before = ops.concatenate([values[-1:], values[:-1]], axis=0)
        return ops.where(_broadcast_rows(self._is_even(), values), after, before)

    def _is_even(self) -> Any:
        return ops.equal((self._first + ops.arange(self._rows, dtype="int32")) % 2, 0)


def _broadcast_rows(numbers: Any, values: Any) -> Any:
    """Return one number for each row in a shape that broadcasts to `values`."""
    return ops.reshape(numbers, (-1, *[1] * (len(values.shape) - 1)))
