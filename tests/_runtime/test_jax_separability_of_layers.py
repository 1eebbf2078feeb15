"""Every layer of Keras and of this package, in training and not: rows stay rows, state is that of the examples."""

import jax
import jax.numpy as jnp
import keras
import pytest

import keras_tpu_ext as kte
from keras_tpu_ext._runtime.jax.batch import batch_context, exclude_padding
from keras_tpu_ext._runtime.jax.jaxpr_axis import Argument, follow
from layers.catalogue import LAYERS

pytestmark = pytest.mark.runtimes("keras3_jax")
L = keras.layers

VECTOR, SERIES, IMAGE, VIDEO = (6,), (5, 6), (8, 8, 3), (4, 8, 8, 3)
OF = {"1D": (8, 3), "2D": IMAGE, "3D": (4, 8, 8, 3)}


def by_rank(name, *arguments, **options):
    return [(f"{name}{rank}", arguments, options, [shape]) for rank, shape in OF.items()]


CASES = [
    ("Activation", ("relu",), {}, [VECTOR]),
    ("ActivityRegularization", (0.1,), {}, [VECTOR]),
    ("Add", (), {}, [VECTOR, VECTOR]),
    ("Average", (), {}, [VECTOR, VECTOR]),
    ("Maximum", (), {}, [VECTOR, VECTOR]),
    ("Minimum", (), {}, [VECTOR, VECTOR]),
    ("Multiply", (), {}, [VECTOR, VECTOR]),
    ("Subtract", (), {}, [VECTOR, VECTOR]),
    ("Concatenate", (), {}, [VECTOR, VECTOR]),
    ("Dot", (1,), {}, [VECTOR, VECTOR]),
    ("Dot", ((2, 1),), {}, [(5, 6), (6, 4)]),
    ("AdditiveAttention", (), {}, [SERIES, SERIES]),
    ("Attention", (), {}, [SERIES, SERIES]),
    ("AlphaDropout", (0.3,), {}, [VECTOR]),
    ("BatchNormalization", (), {}, [VECTOR]),
    ("BatchNormalization", (), {}, [IMAGE]),
    ("Bidirectional", (L.LSTM(4),), {}, [SERIES]),
    ("CenterCrop", (4, 4), {}, [IMAGE]),
    ("Cropping1D", (1,), {}, [SERIES]),
    ("Cropping2D", (1,), {}, [IMAGE]),
    ("Cropping3D", (1,), {}, [VIDEO]),
    ("Dense", (4,), {"activation": "softmax"}, [VECTOR]),
    ("Dense", (4,), {"activity_regularizer": "l2"}, [SERIES]),
    ("DepthwiseConv1D", (3,), {}, [(8, 3)]),
    ("DepthwiseConv2D", (3,), {}, [IMAGE]),
    ("Discretization", ([0.0, 1.0],), {}, [VECTOR]),
    ("Dropout", (0.3,), {}, [VECTOR]),
    ("ELU", (), {}, [VECTOR]),
    ("EinsumDense", ("abc,cd->abd",), {"output_shape": (None, 4)}, [SERIES]),
    ("Embedding", (10, 4), {}, [(5,)]),
    ("Flatten", (), {}, [IMAGE]),
    ("GRU", (4,), {"return_sequences": True}, [SERIES]),
    ("LSTM", (4,), {}, [SERIES]),
    ("SimpleRNN", (4,), {"go_backwards": True}, [SERIES]),
    ("RNN", ([L.GRUCell(4), L.LSTMCell(4)],), {}, [SERIES]),
    ("ConvLSTM1D", (4, 3), {}, [(4, 8, 3)]),
    ("ConvLSTM2D", (4, 3), {}, [VIDEO]),
    ("GaussianDropout", (0.3,), {}, [VECTOR]),
    ("GaussianNoise", (0.3,), {}, [VECTOR]),
    ("GroupNormalization", (3,), {}, [IMAGE]),
    ("GroupQueryAttention", (4, 4, 2), {}, [SERIES, SERIES]),
    ("MultiHeadAttention", (2, 4), {"dropout": 0.1}, [SERIES, SERIES]),
    ("MultiHeadAttention", (2, 4), {}, [SERIES, SERIES]),
    ("Identity", (), {}, [VECTOR]),
    ("LayerNormalization", (), {}, [VECTOR]),
    ("LeakyReLU", (), {}, [VECTOR]),
    ("Masking", (), {}, [SERIES]),
    ("Normalization", (), {"mean": 1.0, "variance": 2.0}, [VECTOR]),
    ("PReLU", (), {}, [VECTOR]),
    ("Permute", ((2, 1),), {}, [SERIES]),
    ("ReLU", (), {}, [VECTOR]),
    ("RepeatVector", (3,), {}, [VECTOR]),
    ("Rescaling", (2.0,), {}, [VECTOR]),
    ("Reshape", ((3, 2),), {}, [VECTOR]),
    ("Resizing", (4, 4), {}, [IMAGE]),
    ("SeparableConv1D", (4, 3), {}, [(8, 3)]),
    ("SeparableConv2D", (4, 3), {}, [IMAGE]),
    ("Softmax", (), {}, [VECTOR]),
    ("Softmax", ((1, 2),), {}, [SERIES]),
    ("SpatialDropout1D", (0.3,), {}, [SERIES]),
    ("SpatialDropout2D", (0.3,), {}, [IMAGE]),
    ("SpatialDropout3D", (0.3,), {}, [VIDEO]),
    ("SpectralNormalization", (L.Dense(4),), {}, [VECTOR]),
    ("TimeDistributed", (L.Conv2D(2, 3),), {}, [VIDEO]),
    ("UnitNormalization", (), {}, [VECTOR]),
    ("UpSampling1D", (2,), {}, [SERIES]),
    ("UpSampling2D", (2,), {"interpolation": "bilinear"}, [IMAGE]),
    ("UpSampling3D", (2,), {}, [VIDEO]),
    ("ZeroPadding1D", (1,), {}, [SERIES]),
    ("ZeroPadding2D", (1,), {}, [IMAGE]),
    ("ZeroPadding3D", (1,), {}, [VIDEO]),
    *by_rank("AveragePooling", 2),
    *by_rank("MaxPooling", 2),
    *by_rank("GlobalAveragePooling"),
    *by_rank("GlobalMaxPooling"),
    *by_rank("Conv", 4, 3),
    *[(f"Conv{rank}Transpose", (4, 3), {"strides": 2}, [shape]) for rank, shape in OF.items()],
]
# From one version of Keras on.
NEWER = [
    ("RMSNormalization", (), {}, [VECTOR]),
    ("ReversibleEmbedding", (10, 4), {}, [(5,)]),
    *[(f"AdaptiveAveragePooling{rank}", (2,), {}, [shape]) for rank, shape in OF.items()],
    *[(f"AdaptiveMaxPooling{rank}", (2,), {}, [shape]) for rank, shape in OF.items()],
    ("STFTSpectrogram", (), {"frame_length": 8, "frame_step": 4, "fft_length": 8}, [(32, 1)]),
    ("MelSpectrogram", (), {"fft_length": 16, "sequence_stride": 4}, [(32,)]),
]
AUGMENTING = [
    ("RandomBrightness", (0.2,), {}),
    ("RandomContrast", (0.2,), {}),
    ("RandomCrop", (4, 4), {}),
    ("RandomFlip", (), {}),
    ("RandomRotation", (0.2,), {}),
    ("RandomTranslation", (0.2, 0.2), {}),
    ("RandomZoom", (0.2,), {}),
    ("RandomColorDegeneration", (0.2,), {}),
    ("RandomColorJitter", (), {"brightness_factor": 0.2}),
    ("RandomErasing", (), {}),
    ("RandomGrayscale", (), {}),
    ("RandomHue", (0.2,), {}),
    ("RandomInvert", (0.2,), {}),
    ("RandomPerspective", (), {}),
    ("RandomPosterization", (4,), {}),
    ("RandomSaturation", (0.2,), {}),
    ("RandomSharpness", (0.2,), {}),
    ("RandomShear", (), {"x_factor": 0.2}),
    ("RandomGaussianBlur", (), {}),
    ("RandomElasticTransform", (), {}),
    ("AutoContrast", (), {}),
    ("Equalization", (), {}),
    ("Solarization", (), {}),
    ("AugMix", (), {}),
    ("RandAugment", (), {}),
    ("CutMix", (), {}),
    ("MixUp", (), {}),
]
# Batches with these are not padded.
NOT_ROWS = {
    "AugMix": "draws the strength in Python, another one for each trace",
    "CutMix": "mixes images",
    "Equalization": "takes one histogram of all images",
    "MelSpectrogram": "cuts off below the loudest of all series",
    "MixUp": "mixes images",
    "RandAugment": "may equalize",
}
# Keras cannot run these in a compiled step on JAX.
NOT_TRACED = ("RandomCrop", "RandomElasticTransform")


def outcome(layer, inputs, training, takes_training=True):
    """Return the values of the outputs, and of the variables after a call, in a step with padded rows."""
    layer_variables = [layer.trainable_variables, layer.non_trainable_variables]
    options = {"training": training} if takes_training else {}

    def call(variables, inputs, examples):
        with batch_context(inputs, examples), exclude_padding(layer._flatten_layers()):
            outputs, after, losses = layer.stateless_call(*variables, *inputs, return_losses=True, **options)
        return outputs, [after, losses]

    arguments = jax.tree.map(
        lambda one: Argument(tuple(one.shape), jnp.dtype(one.dtype)),
        layer_variables,
        is_leaf=lambda leaf: isinstance(leaf, keras.Variable),
    )
    (outputs, after), effect = follow(call, arguments, inputs, Argument((), jnp.int32))
    assert not effect
    return jax.tree.leaves(outputs), jax.tree.leaves(after)


def assert_rows(outputs, after):
    assert {value.kind for value in outputs} == {"rows"}, outputs
    assert {value.axis for value in outputs} == {0}
    assert {value.kind for value in after} <= {"constant"}, after


def symbol_of(argument):
    return keras.KerasTensor(argument.shape, dtype=str(argument.dtype))


def called(layer, shapes, dtype="float32"):
    """Return the inputs of a built layer."""
    inputs = [Argument((None, *shape), jnp.dtype(dtype)) for shape in shapes]
    symbols = [symbol_of(one) for one in inputs]
    takes_list = len(shapes) > 1 and not isinstance(layer, (L.MultiHeadAttention, L.GroupQueryAttention))
    if takes_list:
        layer(symbols)
        return [inputs]
    layer(*symbols)
    return inputs


@pytest.mark.exhaustive
@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("case", [*CASES, *NEWER], ids=lambda case: f"{case[0]}{case[1] or ''}")
def test_a_layer_of_keras(case, training):
    name, arguments, options, shapes = case
    if not hasattr(L, name):
        pytest.skip("not in this Keras")
    layer = getattr(L, name)(*arguments, **options)
    dtype = "int32" if "Embedding" in name else "float32"
    inputs = called(layer, shapes, dtype)
    check(name, *outcome(layer, inputs, training, layer._call_has_training_arg))


def check(name, outputs, after):
    if name in NOT_ROWS:
        assert {value.kind for value in outputs} == {"mixed"}
    else:
        assert_rows(outputs, after)


@pytest.mark.filterwarnings("ignore:Explicitly requested dtype int64:UserWarning")  # Keras's MixUp on JAX
@pytest.mark.exhaustive
@pytest.mark.parametrize("case", AUGMENTING, ids=lambda case: case[0])
def test_an_augmentation_of_keras(case):
    name, arguments, options = case
    if not hasattr(L, name):
        pytest.skip("not in this Keras")
    layer = getattr(L, name)(*arguments, **options)
    images, labels = (Argument((None, *shape), jnp.dtype("float32")) for shape in (IMAGE, (4,)))
    inputs = {"images": images, "labels": labels} if name in ("MixUp", "CutMix") else images
    layer(jax.tree.map(symbol_of, inputs))
    if name in NOT_TRACED:
        with pytest.raises((IndexError, jax.errors.ConcretizationTypeError)):
            outcome(layer, [inputs], True)
    else:
        check(name, *outcome(layer, [inputs], True))


@pytest.mark.exhaustive
@pytest.mark.parametrize("row", LAYERS, ids=str)
def test_a_layer_of_this_package(row):
    layer = row.layer(**row.options)
    shapes = row.shape if isinstance(row.shape[0], tuple) else (row.shape,)
    inputs = called(layer, [shape[1:] for shape in shapes], row.dtype)
    assert_rows(*outcome(layer, inputs, row.call.get("training", False), layer._call_has_training_arg))


@pytest.mark.parametrize("layer", [kte.layers.MixUp, kte.layers.CutMix])
def test_pairs_are_those_of_examples(layer):
    layer, inputs = layer(seed=1), [Argument((None, *shape), jnp.dtype("float32")) for shape in (IMAGE, (4,))]
    layer([symbol_of(one) for one in inputs])
    assert_rows(*outcome(layer, [inputs], True))
