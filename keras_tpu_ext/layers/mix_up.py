"""MixUp in the compiled step."""

from __future__ import annotations

from typing import Any

from keras_tpu_ext import _runtime
from keras_tpu_ext.layers._mixing import Mixing, Pairs
from keras_tpu_ext.layers._random import beta


@_runtime.keras.saving.register_keras_serializable(package="keras_tpu_ext")
class MixUp(Mixing):
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

    def _mix(self, images: Any, labels: Any, pairs: Pairs) -> tuple[Any, Any]:
        (bits,) = self._random_bits(_runtime.ops.shape(images)[0], 1)
        weights = pairs.where_exist(beta(bits, self.alpha), 1.0)
        return pairs.mix(weights, images), pairs.mix(weights, labels)
