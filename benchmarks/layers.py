"""What each layer costs a TPU beside what Keras has for the same, by the compiler's estimate.

    make .envs/keras3-compiler/.ready
    JAX_PLATFORMS=cpu KERAS_BACKEND=jax .envs/keras3-compiler/bin/python benchmarks/layers.py [--only NAME ...]

Each row is the train step, forward and backward, of a small `TPUModel` with the layer in it and of the same model
with Keras's, under mixed_bfloat16, 128 examples on each core or chip, SGD. What was tried and is not shipped has rows
too. No TPU runs anything: times are the compiler's cycles at the nominal clock, and where it gives none, bytes by the
bandwidth. The last line is JSON.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import harness
import keras
from _space_to_depth import SpaceToDepthConv2D
from keras import layers

import keras_tpu_ext as kte
from keras_tpu_ext.errors import PreflightError

PER_REPLICA = 128
CLASSES = 10


class Case(NamedTuple):
    """One layer at one shape.

    Attributes:
        name: What is compared.
        shape: At what shape, in words.
        inputs: Shape and dtype of what the model gets for an example, with the layer and with Keras's.
        ours: Makes the part of the model that is compared, from its inputs.
        stock: The same of Keras.
    """

    name: str
    shape: str
    inputs: tuple[tuple[tuple[int, ...], str], tuple[tuple[int, ...], str]]
    ours: Callable[[Any], Any]
    stock: Callable[[Any], Any]


def same(shape: tuple[int, ...], dtype: str = "float32") -> Any:
    """Return the same inputs for both."""
    return ((shape, dtype), (shape, dtype))


def normalisations() -> Iterator[Case]:
    """Yield `BatchNormalization` between two 1 x 1 convolutions, at the shapes of ResNet-50."""

    def between(kind: Any, channels: int, **options: Any) -> Callable[[Any], Any]:
        def part(x: Any) -> Any:
            x = layers.Conv2D(channels, 1, use_bias=False)(x)
            x = layers.ReLU()(kind(**options)(x))
            return layers.GlobalAveragePooling2D()(layers.Conv2D(64, 1, use_bias=False)(x))

        return part

    for side, channels in ((112, 64), (56, 256), (28, 512), (14, 1024), (7, 2048)):
        shape, stock = f"{side} x {side} x {channels}", between(layers.BatchNormalization, channels)
        inputs = same((side, side, 64))
        ours = between(kte.layers.BatchNormalization, channels)
        yield Case("BatchNormalization", shape, inputs, ours, stock)
        ghosts = between(kte.layers.BatchNormalization, channels, ghost_batch_size=PER_REPLICA)
        yield Case("BatchNormalization, ghost batches of 128", shape, inputs, ghosts, stock)

    def dense(kind: Any) -> Callable[[Any], Any]:
        return lambda x: layers.ReLU()(kind()(layers.Dense(4096, use_bias=False)(x)))

    ours, stock = dense(kte.layers.BatchNormalization), dense(layers.BatchNormalization)
    yield Case("BatchNormalization", "4096", same((1024,)), ours, stock)


def biases() -> Iterator[Case]:
    """Yield a convolution before a normalisation, without and with the bias."""

    def part(channels: int, use_bias: bool) -> Callable[[Any], Any]:
        def build(x: Any) -> Any:
            x = layers.Conv2D(channels, 1, use_bias=use_bias)(x)
            x = layers.ReLU()(kte.layers.BatchNormalization()(x))
            return layers.GlobalAveragePooling2D()(layers.Conv2D(64, 1, use_bias=False)(x))

        return build

    for side, channels in ((56, 256), (14, 1024)):
        shape, ours, stock = f"{side} x {side} x {channels}", part(channels, False), part(channels, True)
        yield Case("no bias before it", shape, same((side, side, 64)), ours, stock)


def pooled(*augmented: Callable[[], Any]) -> Callable[[Any], Any]:
    """Return a part that augments images of bytes and takes their mean."""

    def part(x: Any) -> Any:
        for make in augmented:
            x = make()(x)
        return layers.GlobalAveragePooling2D()(layers.Rescaling(1 / 255)(x))

    return part


def augmentation() -> Iterator[Case]:
    """Yield augmentation of bytes; Keras's RandomCrop cannot be part of a step on JAX, its RandomTranslation can."""
    move = partial(layers.RandomTranslation, 0.125, 0.125, fill_mode="constant")
    for side, padding in ((224, 28), (32, 4)):
        shape = f"{side} x {side}, moved by up to {padding}, against RandomFlip and RandomTranslation"
        ours = pooled(partial(kte.layers.RandomFlipCrop, padding=padding))
        stock = pooled(partial(layers.RandomFlip, "horizontal"), move)
        yield Case("RandomFlipCrop", shape, same((side, side, 3), "uint8"), ours, stock)
    ours, stock = pooled(kte.layers.RandomErasing), pooled(layers.RandomErasing)
    yield Case("RandomErasing", "224 x 224", same((224, 224, 3), "uint8"), ours, stock)


def rotation() -> Iterator[Case]:
    """Yield rotation, alone and with what `RandomAffine` does with it."""
    affine = partial(kte.layers.RandomAffine, rotation=0.05, zoom=0.1, translation=0.1)
    stock = pooled(
        partial(layers.RandomFlip, "horizontal"),
        partial(layers.RandomRotation, 0.05, fill_mode="constant"),
        partial(layers.RandomZoom, 0.1, fill_mode="constant"),
        partial(layers.RandomTranslation, 0.1, 0.1, fill_mode="constant"),
    )
    for side in (224, 32):
        shape = f"{side} x {side}, against RandomFlip, RandomRotation, RandomZoom and RandomTranslation"
        yield Case("RandomAffine", shape, same((side, side, 3), "uint8"), pooled(affine), stock)
    rotate = partial(kte.layers.RandomAffine, zoom=0.0, translation=0.0, horizontal=False)
    for most, dtype, words in (
        (0.05, "uint8", ""),
        (0.05, "float32", " of float32"),
        (0.5, "uint8", " to any angle"),
    ):
        shape = f"224 x 224, rotation alone{words}, against RandomRotation"
        ours = pooled(partial(rotate, rotation=most))
        stock = pooled(partial(layers.RandomRotation, most, fill_mode="constant"))
        yield Case("RandomAffine", shape, same((224, 224, 3), dtype), ours, stock)


def mixing() -> Iterator[Case]:
    """Yield layers that mix images and labels, here the mean colours."""

    def mixed(mix: Callable[[Any, Any], tuple[Any, Any]]) -> Callable[[Any], Any]:
        def part(x: Any) -> Any:
            labels = layers.GlobalAveragePooling2D(dtype="float32")(layers.Rescaling(1 / 255, dtype="float32")(x))
            x, labels = mix(x, labels)
            return layers.Concatenate()([layers.GlobalAveragePooling2D()(layers.Rescaling(1 / 255)(x)), labels])

        return part

    def of_keras(kind: Any, x: Any, labels: Any) -> tuple[Any, Any]:
        both = kind()({"images": x, "labels": labels})
        return both["images"], both["labels"]

    for name in ("MixUp", "CutMix"):
        kind = getattr(kte.layers, name)
        ours = mixed(lambda x, labels, kind=kind: kind()((x, labels)))
        stock = mixed(partial(of_keras, getattr(layers, name)))
        for side in (224, 32):
            yield Case(name, f"{side} x {side}", same((side, side, 3), "uint8"), ours, stock)


def stems() -> Iterator[Case]:
    """Yield strided convolutions of images as convolutions of blocks: not shipped."""
    for name, side, filters, kernel, strides in (
        ("ResNet's stem", 224, 64, 7, 2),
        ("EfficientNet's stem", 224, 32, 3, 2),
        ("ViT's patches", 224, 768, 16, 16),
        ("ConvNeXt's stem", 224, 96, 4, 4),
    ):
        shape = f"{name}, {kernel} x {kernel} / {strides}, {filters} of {side} x {side} x 3"

        def after(first: Any, *arguments: Any, **options: Any) -> Callable[[Any], Any]:
            return lambda x: layers.GlobalAveragePooling2D()(layers.ReLU()(first(*arguments, **options)(x)))

        stock = after(layers.Conv2D, filters, kernel, strides, padding="same")
        ours = after(SpaceToDepthConv2D, filters, kernel, strides, 3)
        yield Case("SpaceToDepthConv2D", shape, same((side, side, 3)), ours, stock)
        border = -(-kernel // strides) * strides - strides
        blocks = (side + border) // strides
        there = (((blocks, blocks, 3 * strides**2), "float32"), ((side, side, 3), "float32"))
        on_host = after(SpaceToDepthConv2D, filters, kernel, strides, 3, on_host=True)
        yield Case("SpaceToDepthConv2D, blocks made on the host", shape, there, on_host, stock)


def patches() -> Iterator[Case]:
    """Yield whole models whose patches come as blocks made on the host, where the first layer is a product."""

    def transformer(size: int) -> Callable[[Any], Any]:
        def part(x: Any) -> Any:
            x = layers.Reshape((196, 768))(layers.Conv2D(768, size, size)(x))
            for _ in range(12):
                y = layers.LayerNormalization()(x)
                x = layers.Add()([x, layers.MultiHeadAttention(12, 64)(y, y)])
                y = layers.Dense(3072, activation="gelu")(layers.LayerNormalization()(x))
                x = layers.Add()([x, layers.Dense(768)(y)])
            return layers.GlobalAveragePooling1D()(layers.LayerNormalization()(x))

        return part

    def convnext(is_stock: bool) -> Callable[[Any], Any]:
        def part(x: Any) -> Any:
            model = keras.applications.ConvNeXtTiny(
                include_top=False, weights=None, pooling="avg", include_preprocessing=False, input_shape=(224, 224, 3)
            )
            if is_stock:
                return model(x)
            stem = model.layers[1]
            return keras.Model(stem.output, model.output)(stem.layers[1](layers.Conv2D(96, 1)(x)))

        return part

    name, image = "SpaceToDepthConv2D, blocks made on the host", ((224, 224, 3), "float32")
    ours, stock = transformer(1), transformer(16)
    yield Case(name, "all of ViT-B/16", (((14, 14, 768), "float32"), image), ours, stock)
    ours, stock = convnext(False), convnext(True)
    yield Case(name, "all of ConvNeXt-T", (((56, 56, 48), "float32"), image), ours, stock)


def outputs() -> Iterator[Case]:
    """Yield a classifier's last layer in float32, as Keras does it with `dtype`: not shipped."""

    def head(units: int, dtype: str | None) -> Callable[[Any], Any]:
        return lambda x: layers.Dense(units, activation="softmax", dtype=dtype)(layers.Dense(2048, "relu")(x))

    for units in (1000, 30000):
        ours, stock = head(units, "float32"), head(units, None)
        yield Case('Dense(..., "softmax", dtype="float32")', f"2048 to {units}", same((2048,)), ours, stock)


def widths() -> Iterator[Case]:
    """Yield layers with a width that fills tiles of 128, against one that does not: not shipped."""

    def perceptron(width: int) -> Callable[[Any], Any]:
        return lambda x: layers.Dense(width, "relu")(layers.Dense(width, "relu")(x))

    def network(width: int) -> Callable[[Any], Any]:
        def part(x: Any) -> Any:
            for _ in range(2):
                x = layers.Conv2D(width, 3, padding="same", activation="relu")(x)
            return layers.GlobalAveragePooling2D()(x)

        return part

    for width, padded in ((1000, 1024), (4000, 4096)):
        ours, stock = perceptron(padded), perceptron(width)
        yield Case("widths of 128", f"Dense {width} as {padded}", same((1024,)), ours, stock)
    for width, padded in ((96, 128), (200, 256)):
        shape = f"Conv2D {width} as {padded}, 28 x 28"
        yield Case("widths of 128", shape, same((28, 28, 64)), network(padded), network(width))


def embeddings() -> Iterator[Case]:
    """Yield lookups of 128 tokens an example; Keras's scatter, for which there is no estimate, counts as nothing."""
    for vocabulary in (100, 1000, 10_000, 30_000):

        def mean(kind: Any, vocabulary: int = vocabulary) -> Callable[[Any], Any]:
            return lambda ids: layers.GlobalAveragePooling1D()(kind(vocabulary, 512)(ids))

        ours, stock = mean(kte.layers.OneHotEmbedding), mean(layers.Embedding)
        yield Case("OneHotEmbedding", f"{vocabulary:,} words, 512 wide", same((128,), "int32"), ours, stock)


def images() -> Iterator[Case]:
    """Yield a first convolution behind a normalisation of images."""

    def first(kind: Any) -> Callable[[Any], Any]:
        def part(x: Any) -> Any:
            x = kind(mean=[123.675, 116.28, 103.53], variance=[3409.976, 3262.694, 3291.891])(x)
            return layers.GlobalAveragePooling2D()(layers.ReLU()(layers.Conv2D(64, 7, 2)(x)))

        return part

    ours, stock = first(kte.layers.DeviceNormalization), first(layers.Normalization)
    of_bytes, of_floats = ((224, 224, 3), "uint8"), ((224, 224, 3), "float32")
    yield Case("DeviceNormalization", "224 x 224 x 3, both uint8", (of_bytes, of_bytes), ours, stock)
    yield Case("DeviceNormalization", "224 x 224 x 3, uint8 against float32", (of_bytes, of_floats), ours, stock)


KINDS = (normalisations, biases, embeddings, images, augmentation, rotation, mixing, stems, patches, outputs, widths)


def measured(part: Callable[[Any], Any], inputs: tuple[tuple[int, ...], str], target: str) -> dict[str, Any]:
    """Return what the compiler says of the train step of a model with a part."""
    shape, dtype = inputs
    keras.utils.clear_session()  # which forgets the policy too
    keras.mixed_precision.set_dtype_policy("mixed_bfloat16")
    x = keras.Input(shape, dtype=dtype)
    model = kte.TPUModel(x, layers.Dense(CLASSES, dtype="float32")(part(x)))
    assert model.dtype_policy.name == "mixed_bfloat16"
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(0.1), loss)
    batch = keras.KerasTensor((1, *shape), dtype), keras.KerasTensor((1,), "int32")
    return harness.estimate(harness.preflight(model, batch, target, PER_REPLICA))


def line_of(row: dict[str, Any]) -> str:
    """Return a row in words."""
    ours, stock = row["ours"], row["stock"]
    text = f"{row['layer']}, {row['shape']}, {row['target']}: {1e3 * ours['seconds']:.3f} ms"
    if stock is None:
        return f"{text}; no estimate of Keras's"
    time, memory = (ours[key] / stock[key] for key in ("seconds", "hbm_bytes"))
    return f"{text} against {1e3 * stock['seconds']:.3f} ms, time {time:.3f}, HBM {memory:.3f}"


def main() -> None:
    """Print a line for each layer, shape and target, then JSON."""
    parser = harness.parser(__doc__)
    parser.add_argument("--targets", nargs="+", default=["v3-8", "v5e-8", "v6e-8"], help="default: v3-8 v5e-8 v6e-8")
    names = [kind.__name__ for kind in KINDS]
    parser.add_argument("--only", nargs="+", choices=names, default=names, help="default: all")
    options = parser.parse_args()
    rows = []
    for kind in KINDS:
        for case in kind() if kind.__name__ in options.only else ():
            for target in options.targets:
                row: dict[str, Any] = {"layer": case.name, "shape": case.shape, "target": target}
                row["ours"] = measured(case.ours, case.inputs[0], target)
                try:
                    row["stock"] = measured(case.stock, case.inputs[1], target)
                except PreflightError as error:  # such as a program that jaxlib cannot read
                    row.update(stock=None, why=str(error).splitlines()[-1].strip())
                rows.append(row)
                print(line_of(row), flush=True)
    harness.report("layers", rows=rows)


if __name__ == "__main__":
    main()
