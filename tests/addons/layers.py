"""How each layer of TensorFlow Addons is tried: between two dense layers, in a model that learns two numbers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from addons.tensorflow_addons_here import tfa
from addons.trial import Trial

keras = tf.keras
of = tfa.layers

NUMBERS, SEQUENCE, IMAGE, VOLUME = (32,), (8, 4), (4, 4, 2), (4, 2, 2, 2)
IS_COMPILED_FOR = tf.__version__.startswith("2.15.")
NO_KERNEL = "Its compiled op, which no TPU has, cannot be loaded: " + (
    "it needs a TensorFlow with CUDA." if IS_COMPILED_FOR else "it is for TensorFlow 2.15."
)


def between(layer: Callable[[], Any], shape: tuple[int, ...] = NUMBERS) -> Callable[[Any], Any]:
    """Return a body in which what `layer` makes gets tensors of `shape`."""

    def body(x: Any) -> Any:
        hidden = keras.layers.Reshape(shape)(keras.layers.Dense(32)(x))
        return keras.layers.Dense(2)(keras.layers.Flatten()(layer()(hidden)))

    return body


def two(layer: Callable[[], Any], shape: tuple[int, ...] = NUMBERS) -> Callable[[Any], Any]:
    """Return a body in which what `layer` makes gets a list of two tensors of `shape`."""

    def body(x: Any) -> Any:
        pair = [keras.layers.Reshape(shape)(keras.layers.Dense(32)(x)) for _ in range(2)]
        return keras.layers.Dense(2)(keras.layers.Flatten()(layer()(pair)))

    return body


def crf(x: Any) -> Any:
    """Return the potentials of a CRF; its decoded sequence has no gradient."""
    hidden = keras.layers.Reshape(SEQUENCE)(keras.layers.Dense(32)(x))
    _, potentials, _, _ = of.CRF(3)(hidden)
    return keras.layers.Dense(2)(keras.layers.Flatten()(potentials))


def unpooling(unpool: Callable[[], Any]) -> Callable[[Any], Any]:
    """Return a body that pools the maxima of an image and puts them back."""

    def body(x: Any) -> Any:
        image = keras.layers.Reshape(IMAGE)(keras.layers.Dense(32)(x))
        pooled, where = keras.layers.Lambda(lambda image: tf.nn.max_pool_with_argmax(image, 2, 2, "SAME"))(image)
        return keras.layers.Dense(2)(keras.layers.Flatten()(keras.layers.Reshape(IMAGE)(unpool()(pooled, where))))

    return body


def bag(x: Any) -> Any:
    """Return what an embedding bag makes of the signs of the features."""
    words = keras.layers.Lambda(lambda x: tf.cast(x > 0, tf.int32))(x)
    return keras.layers.Dense(2)(of.EmbeddingBag(2, 3)(words))


def poincare(x: Any) -> Any:
    """Return vectors of which some are outside the ball."""
    return keras.layers.Dense(2)(of.PoincareNormalize()(keras.layers.Dense(4)(x)))


LAYERS: dict[str, list[Trial]] = {
    "AdaptiveAveragePooling1D": [Trial(between(lambda: of.AdaptiveAveragePooling1D(4), SEQUENCE))],
    "AdaptiveAveragePooling2D": [Trial(between(lambda: of.AdaptiveAveragePooling2D((2, 2)), IMAGE))],
    "AdaptiveAveragePooling3D": [Trial(between(lambda: of.AdaptiveAveragePooling3D((2, 1, 2)), VOLUME))],
    "AdaptiveMaxPooling1D": [Trial(between(lambda: of.AdaptiveMaxPooling1D(4), SEQUENCE))],
    "AdaptiveMaxPooling2D": [Trial(between(lambda: of.AdaptiveMaxPooling2D((2, 2)), IMAGE))],
    "AdaptiveMaxPooling3D": [Trial(between(lambda: of.AdaptiveMaxPooling3D((2, 1, 2)), VOLUME))],
    "CRF": [Trial(crf)],
    "CorrelationCost": [
        Trial(
            two(lambda: of.CorrelationCost(1, 1, 1, 1, 1, "channels_last"), IMAGE),
            otherwise=NO_KERNEL,
        )
    ],
    "EmbeddingBag": [Trial(bag, otherwise=NO_KERNEL)],
    "ESN": [Trial(between(lambda: of.ESN(5), SEQUENCE))],
    "FilterResponseNormalization": [Trial(between(of.FilterResponseNormalization, IMAGE))],
    "GELU": [Trial(between(of.GELU))],
    "GroupNormalization": [Trial(between(lambda: of.GroupNormalization(4)))],
    "InstanceNormalization": [Trial(between(of.InstanceNormalization, IMAGE))],
    "MaxUnpooling2D": [Trial(unpooling(of.MaxUnpooling2D))],
    "MaxUnpooling2DV2": [
        Trial(
            unpooling(lambda: of.MaxUnpooling2DV2((10, 4, 4, 2))),
            otherwise="Its `output_size` names the size of the batch, which no replica has.",
        )
    ],
    "Maxout": [Trial(between(lambda: of.Maxout(4)))],
    "MultiHeadAttention": [Trial(two(lambda: of.MultiHeadAttention(3, 2), SEQUENCE))],
    "NoisyDense": [Trial(between(lambda: of.NoisyDense(4)))],
    "PoincareNormalize": [Trial(poincare)],
    "PolynomialCrossing": [Trial(two(of.PolynomialCrossing))],
    "Snake": [Trial(between(of.Snake))],
    "Sparsemax": [Trial(between(of.Sparsemax))],
    "SpatialPyramidPooling2D": [Trial(between(lambda: of.SpatialPyramidPooling2D([1, 2]), IMAGE))],
    "SpectralNormalization": [Trial(between(lambda: of.SpectralNormalization(keras.layers.Dense(4))))],
    "StochasticDepth": [
        Trial(two(lambda: of.StochasticDepth(1.0))),
        Trial(
            two(lambda: of.StochasticDepth(0.5)),
            otherwise="Each replica draws for itself whether the branch is kept, as for dropout.",
        ),
    ],
    "TLU": [Trial(between(of.TLU))],
    "WeightNormalization": [
        Trial(between(lambda: of.WeightNormalization(keras.layers.Dense(4), data_init=False))),
        Trial(
            between(lambda: of.WeightNormalization(keras.layers.Dense(4))),
            otherwise="With `data_init=True` every replica would start from its own part of the first batch.",
        ),
    ],
}
