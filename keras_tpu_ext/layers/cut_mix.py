"""CutMix in the compiled step."""

from __future__ import annotations

from typing import Any

import numpy as np

from keras_tpu_ext import _runtime
from keras_tpu_ext.layers._augmentation import range_mask
from keras_tpu_ext.layers._mixing import Mixing, Pairs
from keras_tpu_ext.layers._random import BETA_LEVELS, beta_quantiles, one_hot_lookup, randint

ops = _runtime.ops


@_runtime.keras.saving.register_keras_serializable(package="keras_tpu_ext")
class CutMix(Mixing):
    """Puts a rectangle of a neighbouring image into each image, and mixes their labels by the area.

    Every example draws its own rectangle: the part of the image that stays from Beta(alpha, alpha), of which 1024
    equally probable quantiles are used, and its centre from all pixels. The rectangle is clipped to the image, and
    the labels are mixed by the area that is left. Its neighbour is the next example if its index in the whole batch
    is even, and the previous one if it is odd, which a shuffled dataset makes as good as any other; so no
    communication and no gather are needed. It runs in the compiled step: every shape is static, there is no loop, and
    nothing is sliced.

    The random numbers of an example depend on the seed, on the number of earlier calls with `training=True`, and on
    its index in the whole batch. The result is the same at any number of replicas that have an even number of
    examples each, on every framework and device. **An example without a neighbour is not mixed**: the last one of an
    odd batch, one whose neighbour is a padding row, and on TensorFlow one whose neighbour is on another replica,
    which happens if replicas have an odd number of examples. The number of calls is a weight, so a saved model
    continues with new random numbers. Without `training=True` the layer returns its inputs.

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

    def _mix(self, images: Any, labels: Any, pairs: Pairs) -> tuple[Any, Any]:
        height, width = images.shape[1:3]
        bits, row_bits, column_bits = self._random_bits(ops.shape(images)[0], 3)
        level = randint(bits, BETA_LEVELS)
        top, bottom = self._edges(level, row_bits, height, pairs)
        left, right = self._edges(level, column_bits, width, pairs)
        inside = range_mask(top, bottom, height, axis=1) & range_mask(left, right, width, axis=2)
        area = ops.cast((bottom - top) * (right - left), "float32")
        mixed = ops.where(inside, pairs.swap(images), images)
        return mixed, pairs.mix(1 - area / np.float32(height * width), labels)

    def _edges(self, level: Any, bits: Any, size: int, pairs: Pairs) -> list[Any]:
        """Return start and end of the rectangle along an axis of `size`; it is empty without a partner."""
        own_part = beta_quantiles(self.alpha, (np.arange(BETA_LEVELS) + 0.5) / BETA_LEVELS)
        half = one_hot_lookup((size * np.sqrt(1 - own_part)).astype("int32") // 2, level)
        middle = randint(bits, size)
        return [pairs.where_exist(ops.clip(edge, 0, size), 0) for edge in (middle - half, middle + half)]
