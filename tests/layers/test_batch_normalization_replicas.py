"""`layers.BatchNormalization` in a `TPUModel` on 1, 2 and 8 replicas: one history, one set of weights.

The reference is a plain `keras.Model` on one device, whose layer test_batch_normalization.py compares with formulas.
"""

from __future__ import annotations

import contextlib

import keras
import numpy as np
import pytest
from sklearn.datasets import load_digits

import keras_tpu_ext as kte
import sources

# A layer computes the same everywhere, and TensorFlow is the fastest here; test_layers.py and some below run on all.
pytestmark = pytest.mark.gate_on("keras3_tf")

# Float32 adds in another order on several replicas: sums are off by 1e-7 of their size, variances and gradients are
# differences of such sums, and some ten steps follow each other. A wrong number of examples is never below 1e-3.
TOLERANCE = 1e-4
EXAMPLES, SIZE = 103, 32  # of the last batch, with 7, one of eight replicas has 4 or 1, and some have none

# In parts of 32 examples, 4 on each of eight replicas and 16 on each of two.
GHOSTS = {
    "the whole batch": None,
    "within a replica": 4,
    "of two replicas": 8,
    "straddling replicas": 6,
    "each by itself": 1,
    "no divisor": 20,
    "more than there are": 100,
}


@pytest.fixture(scope="module")
def digits():
    images, labels = load_digits(return_X_y=True)
    return (images[:EXAMPLES] / 16).reshape(-1, 8, 8, 1).astype("float32"), labels[:EXAMPLES]


def on_images(model_class, ghost_batch_size):
    inputs = keras.Input((8, 8, 1))
    x = keras.layers.Conv2D(4, 3, use_bias=False)(inputs)
    x = kte.layers.BatchNormalization(momentum=0.8, ghost_batch_size=ghost_batch_size)(x)
    # TensorFlow 2.15 fails where a tanh follows the normalisation of a convolution, on CPUs.
    x = keras.layers.Flatten()(keras.layers.Activation("softplus")(x))
    if ghost_batch_size == 1:  # of one value nothing is left but rounding, which would decide on the accuracy
        ghost_batch_size = None
    x = kte.layers.BatchNormalization(momentum=0.8, center=False, ghost_batch_size=ghost_batch_size)(x)
    return model_class(inputs, keras.layers.Dense(10)(x))


def on_masked_rows(model_class, ghost_batch_size):
    """Take the rows of a digit as steps, of which those without ink are masked."""
    inputs = keras.Input((8, 8, 1))
    x = keras.layers.Masking()(keras.layers.Reshape((8, 8))(inputs))
    x = kte.layers.BatchNormalization(momentum=0.8, ghost_batch_size=ghost_batch_size)(x)
    return model_class(inputs, keras.layers.Dense(10)(keras.layers.GlobalAveragePooling1D()(x)))


def blanked(images):
    """Return images with empty rows: other ones in each, and not all of any."""
    images = images.copy()
    images[np.arange(8)[None] < (np.arange(len(images)) % 7)[:, None]] = 0
    images[:, 6] += 0.1  # a mean of no row at all is none
    return images


def compiled(build, model_class, ghost_batch_size, **options):
    model = build(model_class, ghost_batch_size)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(**{"optimizer": keras.optimizers.SGD(0.1), "loss": loss, "metrics": ["accuracy"]} | options)
    return model


def replicas_of(number):
    return contextlib.nullcontext() if number == 1 else kte.strategy_scope(require="cpu", replicas=number)


def outcome(model, batches, x):
    history = model.fit(batches, epochs=2, shuffle=False, verbose=0).history
    weights = model.get_weights()
    evaluated = model.evaluate(batches, verbose=0, return_dict=True)
    return {"history": history, "weights": weights, "evaluated": evaluated, "predicted": model.predict(x, verbose=0)}


def assert_alike(got, expected, tolerance=TOLERANCE):
    keras.tree.map_structure(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance), got, expected
    )


def check(digits, replicas, ghost_batch_size, *, build=on_images, padded=False, size=SIZE):
    """Train a plain model and a `TPUModel` from the same weights, and compare all that comes out."""
    plain = compiled(build, keras.Model, ghost_batch_size)
    with replicas_of(replicas):
        ours = compiled(build, kte.TPUModel, ghost_batch_size)
    start = plain.get_weights()
    ours.set_weights(start)
    batches = sources.batched(digits, size)
    expected = outcome(plain, batches, digits[0])
    got = outcome(ours, kte.data.pad_batches(batches, size) if padded else batches, digits[0])
    assert_alike(got, expected)
    assert max(np.abs(a - b).max() for a, b in zip(expected["weights"], start, strict=True)) > 0.05
    return expected


# Eight replicas take four times as long as two, so these have all of them and others the ones that differ most.
IN_GATE = {
    (3, "straddling replicas", False): ("keras3_jax",),
    (3, "the whole batch", True): ("keras3_tf", "keras2_tf221"),
}
CASES = [
    *IN_GATE,
    *((8, ghosts, False) for ghosts in GHOSTS),
    *((8, ghosts, True) for ghosts in ("the whole batch", "within a replica", "straddling replicas")),
    *(
        (2, ghosts, False)
        for ghosts in ("the whole batch", "within a replica", "straddling replicas", "each by itself")
    ),
    (1, "no divisor", False),
    (1, "no divisor", True),
]


@pytest.mark.parametrize(
    ("replicas", "ghosts", "padded"),
    [
        pytest.param(
            *case,
            id=f"{case[0]}, {case[1]}{', padded' * case[2]}",
            marks=pytest.mark.gate_on(*IN_GATE[case]) if case in IN_GATE else pytest.mark.exhaustive,
        )
        for case in CASES
    ],
)
def test_replicas_are_one_device(digits, replicas, ghosts, padded):
    check(digits, replicas, GHOSTS[ghosts], padded=padded)


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("size", "ghost_batch_size"),
    [
        pytest.param(103, None, marks=pytest.mark.exhaustive),
        pytest.param(103, 6, marks=pytest.mark.exhaustive),
        pytest.param(5, None, marks=pytest.mark.exhaustive),
        (5, 4),
    ],
)
def test_last_batches_of_which_replicas_get_little_or_nothing(digits, size, ghost_batch_size):
    """Of 13 a batch of 5 leaves 3; 103 is one uneven batch."""
    examples = 13 if size == 5 else EXAMPLES  # short batches are many
    check(tuple(part[:examples] for part in digits), 8, ghost_batch_size, size=size)


@pytest.mark.parametrize(
    ("replicas", "ghost_batch_size", "padded"),
    [
        pytest.param(8, None, False, marks=pytest.mark.exhaustive),
        pytest.param(8, 6, False, marks=pytest.mark.exhaustive),
        pytest.param(8, 4, True, marks=pytest.mark.exhaustive),
        pytest.param(2, 4, False, marks=pytest.mark.exhaustive),
        pytest.param(2, None, True, marks=pytest.mark.exhaustive),
        pytest.param(2, 6, True, marks=pytest.mark.exhaustive),
        pytest.param(3, None, False, marks=pytest.mark.exhaustive),
    ],
)
def test_masked_steps_do_not_count_on_any_replica(digits, replicas, ghost_batch_size, padded):
    images, labels = digits
    check((blanked(images), labels), replicas, ghost_batch_size, build=on_masked_rows, padded=padded)


@pytest.mark.exhaustive
def test_ghosts_make_a_difference(digits):
    """Else all of the above would say nothing of them."""
    losses = [check(digits, 1, ghost_batch_size)["history"]["loss"][-1] for ghost_batch_size in (None, 4)]
    assert abs(losses[0] - losses[1]) > 0.01


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("ghost_batch_size", "padded"),
    [
        pytest.param(None, False, marks=pytest.mark.exhaustive),
        (6, False),
        pytest.param(4, True, marks=pytest.mark.exhaustive),
    ],
)
def test_windows_of_several_batches(digits, ghost_batch_size, padded):
    """The moments are those of each batch, and the gradients come together; the last window is incomplete."""
    results = []
    for replicas in (1, 3):
        keras.utils.set_random_seed(1)
        with replicas_of(replicas):
            model = compiled(on_images, kte.TPUModel, ghost_batch_size, gradient_accumulation_steps=3)
        batches = sources.batched(digits, SIZE)
        pad = padded and replicas == 3
        results.append(outcome(model, kte.data.pad_batches(batches, SIZE) if pad else batches, digits[0]))
        assert int(np.asarray(keras.ops.convert_to_numpy(model.optimizer.iterations))) == 4
    assert_alike(results[1], results[0])


@pytest.mark.exhaustive
@pytest.mark.parametrize("ghost_batch_size", [None, pytest.param(6, marks=pytest.mark.exhaustive)])
@pytest.mark.parametrize(
    ("policy", "options", "tolerance"),
    [
        # An output of float16 has 11 bits and one of bfloat16 has 8; the order of adding decides the last of them, in
        # each of eight steps.
        ("mixed_float16", {"loss_scale": "dynamic"}, 2.0**-6),
        pytest.param("mixed_bfloat16", {}, 2.0**-5, marks=pytest.mark.exhaustive),
    ],
)
def test_mixed_precision(digits, policy, options, tolerance, ghost_batch_size):
    results = []
    with kte.precision.policy_scope(policy):
        for replicas in (1, 3):
            keras.utils.set_random_seed(1)
            with replicas_of(replicas):
                model = compiled(on_images, kte.TPUModel, ghost_batch_size, **options)
            results.append(outcome(model, sources.batched(digits, SIZE), digits[0]))
            assert {str(getattr(w.dtype, "name", w.dtype)) for w in model.weights} == {"float32"}
    accuracy = [result["history"].pop("accuracy") for result in results]
    np.testing.assert_allclose(accuracy[1], accuracy[0], atol=0.03)  # of 103, three
    for result in results:
        result["evaluated"].pop("accuracy")
        result["predicted"] = result["predicted"].astype("float32")
    assert_alike(results[1], results[0], tolerance)


@pytest.mark.exhaustive
@pytest.mark.parametrize("ghost_batch_size", [pytest.param(None, marks=pytest.mark.exhaustive), 6])
def test_a_step_without_a_graph(digits, ghost_batch_size):
    plain = compiled(on_images, keras.Model, ghost_batch_size)
    with replicas_of(2):
        ours = compiled(on_images, kte.TPUModel, ghost_batch_size, run_eagerly=True)
    ours.set_weights(plain.get_weights())
    short = tuple(part[:41] for part in digits)  # 32 and then 9
    batches = sources.batched(short, SIZE)
    assert_alike(outcome(ours, batches, short[0]), outcome(plain, batches, short[0]))


@pytest.mark.exhaustive
def test_several_steps_in_one_execution(digits):
    plain = compiled(on_images, keras.Model, 6)
    with replicas_of(3):
        ours = compiled(on_images, kte.TPUModel, 6, steps_per_execution=3)
    ours.set_weights(plain.get_weights())
    batches = sources.batched(digits, SIZE)
    assert_alike(outcome(ours, batches, digits[0]), outcome(plain, batches, digits[0]))


@pytest.mark.exhaustive
def test_a_frozen_layer_stays_as_it_is_on_all_replicas(digits):
    with replicas_of(3):
        model = on_images(kte.TPUModel, 6)
        frozen = next(layer for layer in model.layers if isinstance(layer, kte.layers.BatchNormalization))
        frozen.trainable = False
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile("sgd", loss)
    before = frozen.get_weights()
    model.fit(sources.batched(digits, SIZE), shuffle=False, verbose=0)
    for got, expected in zip(frozen.get_weights(), before, strict=True):
        np.testing.assert_array_equal(got, expected)
