"""The one promise: replicas take the steps that plain Keras takes on one device.

Every test trains a plain `keras.Model` and a `TPUModel` with the same weights on the same batches.
"""

import functools
import itertools
import random

import keras
import numpy as np
import pytest
from keras import ops

import keras_tpu_ext as kte
import sources
from kind_of_keras import IS_KERAS2

pytestmark = pytest.mark.gate_on("keras3_tf", "keras3_jax")

SEED = 20
ON_JAX = keras.backend.backend() == "jax"


def dense(model_class, outputs=1, activation=None, **options):
    inputs = keras.Input((6,))
    hidden = keras.layers.Dense(5, activation="tanh", **options)(inputs)
    return model_class(inputs, keras.layers.Dense(outputs, activation=activation)(hidden))


def sgd(rate=0.3):
    return keras.optimizers.SGD(rate)


def last(history):
    return {name: values[-1] for name, values in history.history.items()}


def fit(*arrays, batch_size=100, **options):
    x, *y_and_weights = arrays
    names = ("y", "sample_weight")

    def act(model):
        given = dict(zip(names, y_and_weights, strict=False))
        return last(model.fit(x, batch_size=batch_size, shuffle=False, verbose=0, **given, **options))

    return act


# -- the batches ----------------------------------------------------------------------------------------------

# What is asked of the loss in all combinations, tests/parity asks; here it is how the batches come.
SCHEDULES = {"100": (100, 100), "96+4": (100, 96), "3": (3, 3)}
KINDS = ["numpy", "tf.data", "tf.data, unknown length", "generator", "PyDataset"]
WEIGHTS = {
    "unweighted": None,
    "zero on two replicas": lambda w: np.where(np.arange(len(w)) < len(w) // 4, w, 0).astype("float32"),
}


NEEDS_LENGTH = "Keras 2: several steps per execution need the number of batches"


def as_data(kind, arrays, batch_size):
    """Return the arguments for `fit` that make the same batches, as data of one kind."""
    if kind == "numpy":
        return dict(zip(("x", "y", "sample_weight"), arrays, strict=False)) | {"batch_size": batch_size}
    if kind == "generator":
        return {"x": (batch for batch in sources.cut(arrays, batch_size))}
    if kind == "PyDataset":
        return {"x": sources.Batches(sources.cut(arrays, batch_size))}
    return {"x": sources.batched(arrays, batch_size, known=kind == "tf.data")}


# Those in which every value is met: on TensorFlow, which traces a step for each replica, they take longest.
ON_TENSORFLOW = {
    "96+4, unweighted, numpy, 3",
    "100, zero on two replicas, generator, 3",
    "3, zero on two replicas, tf.data, unknown length, 1",
    "100, unweighted, PyDataset, 1",
    "96+4, zero on two replicas, tf.data, 1",
}


def pairwise(**axes):
    """Return cases in which every two values of two axes meet, drawn with a fixed seed."""
    names, draw = list(axes), random.Random(SEED)
    pairs = {
        ((a, u), (b, v)) for a, b in itertools.combinations(names, 2) for u, v in itertools.product(axes[a], axes[b])
    }
    everything = [dict(zip(names, values, strict=True)) for values in itertools.product(*axes.values())]
    draw.shuffle(everything)
    cases = []
    while pairs:
        tried = draw.sample(everything, min(len(everything), 150))
        best = max(tried, key=lambda case: len(pairs & set(itertools.combinations(case.items(), 2))))
        pairs -= set(itertools.combinations(best.items(), 2))
        cases.append(best)
    ids = [", ".join(map(str, case.values())) for case in cases]
    few = pytest.mark.gate_on("keras3_jax", "keras2_tf215")
    return [
        pytest.param(*case.values(), id=name, marks=() if ON_JAX or name in ON_TENSORFLOW else few)
        for case, name in zip(cases, ids, strict=True)
    ]


@pytest.fixture(scope="module")
def pairs():
    """Pairs by their steps per execution: of the batches no model needs to be made anew."""
    return {}


@pytest.mark.gate_on("keras3_tf", "keras3_jax", "keras2_tf215")
@pytest.mark.parametrize(
    ("schedule", "weights", "kind", "steps_per_execution"),
    pairwise(
        schedule=list(SCHEDULES),
        weights=list(WEIGHTS),
        kind=[kind for kind in KINDS if sources.HAS_TF_DATA or not kind.startswith("tf.data")],
        steps_per_execution=[1, 3],
    ),
)
@pytest.mark.filterwarnings(
    # Keras says so at the end of every dataset whose length it does not know.
    "ignore:Your input ran out of data; interrupting training.:UserWarning"
)
def test_every_split_of_a_batch(pairs, twins, data, schedule, weights, kind, steps_per_execution):
    print("seed", SEED)
    if IS_KERAS2 and steps_per_execution > 1 and kind in ("tf.data, unknown length", "generator"):
        pytest.skip(NEEDS_LENGTH)
    size, batch_size = SCHEDULES[schedule]
    arrays = [data.x[:size], data.y[:size]]
    if WEIGHTS[weights] is not None:
        arrays.append(WEIGHTS[weights](data.weights[:size]))

    def options():
        return {"optimizer": sgd(), "steps_per_execution": steps_per_execution}

    def train(model):
        given = as_data(kind, tuple(arrays), batch_size)
        return last(model.fit(**given, shuffle=False, verbose=0))

    if steps_per_execution not in pairs:
        pairs[steps_per_execution] = twins(dense, options)
    pair = pairs[steps_per_execution]
    pair.restart()
    pair.agree(train)
    assert int(keras.ops.convert_to_numpy(pair.ours.optimizer.iterations)) == -(-size // batch_size)


@pytest.mark.filterwarnings("ignore:Your input ran out of data; interrupting training.:UserWarning")
@pytest.mark.parametrize("replicas", [pytest.param(1, marks=pytest.mark.exhaustive), 3])
@pytest.mark.parametrize(
    "steps_per_execution",
    [
        pytest.param(1, marks=pytest.mark.gate_on("keras2_tf215")),
        pytest.param(5, marks=pytest.mark.gate_on("keras3_jax")),
    ],
)
def test_no_step_is_counted_where_a_dataset_of_unknown_length_ends(scope3, data, replicas, steps_per_execution):
    if IS_KERAS2 and steps_per_execution > 1:
        pytest.skip(NEEDS_LENGTH)
    with scope3 if replicas == 3 else kte.strategy_scope(require="cpu", replicas=1):
        model = dense(kte.TPUModel)
        model.compile("sgd", "mse", steps_per_execution=steps_per_execution)
    for _ in range(2):
        model.fit(sources.batched((data.x[:80], data.y[:80]), 16, known=False), verbose=0, shuffle=False)
    assert int(keras.ops.convert_to_numpy(model.optimizer.iterations)) == 10


def on_batch(method, model, **arguments):
    return getattr(model, method)(**arguments)


@pytest.mark.parametrize(
    ("sizes", "weighted", "eagerly"),
    [
        pytest.param((3, 96, 100), False, False, marks=pytest.mark.gate_on("keras3_jax")),
        pytest.param((3, 100), False, False, marks=pytest.mark.exhaustive),
        pytest.param((100,), True, False, marks=pytest.mark.exhaustive),
        pytest.param((100,), True, True, marks=pytest.mark.gate_on("keras3_tf", "keras2_tf215")),
    ],
)
def test_single_batches(twins, data, sizes, weighted, eagerly):
    pair = twins(dense, lambda: {"optimizer": sgd(), "metrics": ["mae"], "run_eagerly": eagerly})
    for size in sizes:
        x, y = data.x[:size], data.y[:size]
        given = {"x": x, "y": y, "sample_weight": data.weights[:size] if weighted else None}
        pair.agree(functools.partial(on_batch, "train_on_batch", return_dict=True, **given))
        pair.agree(functools.partial(on_batch, "train_on_batch", return_dict=True, x=x[:2], y=y[:2]))
        pair.agree(functools.partial(on_batch, "test_on_batch", **given))
        pair.agree(functools.partial(on_batch, "predict_on_batch", x=x))


@pytest.mark.exhaustive
def test_run_eagerly(twins, data):
    pair = twins(dense, lambda: {"optimizer": sgd(), "run_eagerly": True, "metrics": ["mae"]})
    pair.agree(fit(data.x[:100], data.y[:100], data.weights[:100]))
    pair.agree(lambda model: model.evaluate(data.x, data.y, batch_size=96, verbose=0, return_dict=True))


# -- the losses -----------------------------------------------------------------------------------------------


def recurrent(model_class):
    words = keras.Input((5,), dtype="int32")
    hidden = keras.layers.Embedding(7, 4, mask_zero=True)(words)
    return model_class(words, keras.layers.Dense(3)(hidden))


@pytest.fixture(scope="module")
def sentences():
    """Sentences of 0 to 5 words: 0 is padding, and the last third has no words at all."""
    rng = np.random.default_rng(8)
    words = rng.integers(1, 7, size=(100, 5))
    words[np.arange(5) >= rng.integers(0, 6, size=100)[:, None]] = 0
    words[66:] = 0
    if IS_KERAS2:  # which makes NaN of a batch without any word
        words[[66, 96, 99], 0] = 1
    return words, rng.normal(size=(100, 5, 3)).astype("float32"), rng.uniform(size=(100, 5)).astype("float32")


@pytest.mark.parametrize(
    ("reduction", "weighted"),
    [
        pytest.param("sum_over_batch_size", True, marks=pytest.mark.gate_on("keras2_tf215")),
        pytest.param(
            "mean_with_sample_weight",
            False,
            marks=[
                pytest.mark.runtimes("keras3_tf", "keras3_jax", reason="Keras 2: has one mean"),
                pytest.mark.exhaustive,  # tests/parity has it
            ],
        ),
    ],
)
def test_masks_and_a_weight_for_each_timestep(twins, sentences, reduction, weighted):
    words, y, weights = sentences

    def options():
        loss = keras.losses.MeanSquaredError(reduction=reduction)
        return {"optimizer": sgd(0.01), "loss": loss, "metrics": ["mae"], "weighted_metrics": ["mse"]}

    arrays = (words, y, weights) if weighted else (words, y)
    twins(recurrent, options).agree(fit(*arrays, batch_size=96))


@pytest.mark.exhaustive  # as tests/parity does
def test_ignored_classes(twins, data):
    labels = np.where(np.arange(100) < 70, -1, data.labels[:100])

    def options():
        return {"optimizer": sgd(), "loss": keras.losses.SparseCategoricalCrossentropy(True, ignore_class=-1)}

    twins(lambda cls: dense(cls, 3), options).agree(fit(data.x[:100], labels))


@keras.saving.register_keras_serializable("tests")
def mean_squared(y_true, y_pred):
    return ops.mean(ops.square(y_true - y_pred), axis=-1)


@keras.saving.register_keras_serializable("tests")
def one_number(y_true, y_pred):
    return ops.mean(ops.square(y_true - y_pred))


class WithoutConfig(keras.losses.Loss):
    def __init__(self, factor):
        super().__init__()
        self.factor = factor

    def call(self, y_true, y_pred):
        return self.factor * mean_squared(y_true, y_pred)


LOSSES = {
    "a lambda": lambda: lambda y_true, y_pred: mean_squared(y_true, y_pred),
    "one number for a batch": lambda: one_number,
    "a class without get_config": lambda: WithoutConfig(2.0),
}


@pytest.mark.parametrize(
    ("loss", "eagerly"),
    [
        pytest.param("a lambda", False, marks=pytest.mark.exhaustive),
        pytest.param("one number for a batch", False, marks=pytest.mark.exhaustive),
        pytest.param("a class without get_config", False, marks=pytest.mark.exhaustive),
        pytest.param("one number for a batch", True, marks=pytest.mark.gate_on("keras2_tf215")),
    ],
)
def test_losses_of_the_users_own(twins, data, loss, eagerly):
    pair = twins(dense, lambda: {"optimizer": sgd(), "loss": LOSSES[loss](), "run_eagerly": eagerly})
    pair.agree(fit(data.x, data.y, batch_size=97))


def two_outputs(model_class, as_dict=False):
    inputs = keras.Input((6,), name="in")
    a, b = keras.layers.Dense(1, name="a")(inputs), keras.layers.Dense(3, name="b")(inputs)
    return model_class(inputs, {"a": a, "b": b} if as_dict else [a, b])


def crossentropy(**options):
    return keras.losses.SparseCategoricalCrossentropy(from_logits=True, **options)


OUTPUTS = {
    "list": (False, lambda: {"loss": ["mse", crossentropy()], "loss_weights": [0.7, 0.2]}),
    "dict": (True, lambda: {"loss": {"a": "mse", "b": crossentropy()}, "metrics": {"b": ["accuracy"]}}),
    "dict by name": (
        False,
        lambda: {"loss": {"a": "mse", "b": crossentropy()}, "loss_weights": {"a": 2.0, "b": 3.0}},
    ),
    "sums": (False, lambda: {"loss": [keras.losses.MeanSquaredError(reduction="sum"), crossentropy()]}),
}
NONE = "none" if IS_KERAS2 else None
if not ON_JAX:  # where plain Keras trains on no loss that is not reduced; test_jax_exactness.py looks at ours
    OUTPUTS["unreduced"] = (
        False,
        lambda: {"loss": [keras.losses.MeanSquaredError(reduction=NONE), crossentropy(reduction=NONE)]},
    )


@pytest.mark.parametrize(
    ("kind", "how"),
    [
        # tests/parity has lists, dicts, sums and unreduced losses too.
        *(pytest.param(kind, "fit", marks=pytest.mark.exhaustive) for kind in OUTPUTS if kind != "dict by name"),
        pytest.param("dict by name", "fit", marks=pytest.mark.gate_on("keras3_jax", "keras2_tf215")),
        pytest.param("list", "train_on_batch", marks=pytest.mark.exhaustive),
        pytest.param(
            *("unreduced", "fit eagerly"),
            marks=[pytest.mark.runtimes("keras3_tf", "keras2_tf"), pytest.mark.gate_on("keras3_tf")],
        ),
        pytest.param("list", "fit eagerly", marks=pytest.mark.exhaustive),
    ],
)
def test_several_outputs(twins, data, kind, how):
    as_dict, options = OUTPUTS[kind]
    y = {"a": data.y[:100], "b": data.labels[:100]}
    y = y if as_dict else list(y.values())
    pair = twins(
        lambda cls: two_outputs(cls, as_dict),
        lambda: {"optimizer": sgd(0.005), "run_eagerly": how == "fit eagerly"} | options(),
    )
    if how == "train_on_batch":
        logs = pair.agree(lambda model: model.train_on_batch(data.x[:100], y, return_dict=True))
    else:
        logs = pair.agree(fit(data.x[:100], y, batch_size=96))
    assert {"loss", "a_loss", "b_loss"} <= set(logs)
    pair.agree(lambda model: model.predict(data.x, batch_size=48, verbose=0))


@pytest.mark.gate_on("keras3_jax")
@pytest.mark.filterwarnings(
    # The layer of the output without a loss has no gradient, as the test wants it.
    r"ignore:Gradients do not exist for variables \['b/kernel', 'b/bias'\]:UserWarning"
)
def test_an_output_without_a_loss(twins, data):
    pair = twins(two_outputs, lambda: {"optimizer": sgd(), "loss": ["mse", None]})
    pair.agree(fit(data.x[:100], [data.y[:100], data.labels[:100]]))


@pytest.mark.gate_on("keras2_tf221")
def test_regularizers_of_weights(twins, data):
    pair = twins(lambda cls: dense(cls, kernel_regularizer="l2", bias_regularizer="l1"), lambda: {"optimizer": sgd()})
    pair.agree(fit(data.x, data.y, batch_size=96))


@pytest.mark.exhaustive  # as tests/parity does
def test_class_weights(twins, data):
    pair = twins(lambda cls: dense(cls, 3), lambda: {"optimizer": sgd(), "loss": crossentropy()})
    pair.agree(fit(data.x[:100], data.labels[:100], class_weight={0: 0.2, 1: 3.0, 2: 1.0}))


# -- metrics, evaluate, predict --------------------------------------------------------------------------------


def with_many_metrics(twins):
    """Return a pair that classifies, with metrics of all kinds."""

    def options():
        return {
            "optimizer": sgd(),
            "loss": "binary_crossentropy",
            "metrics": [
                "accuracy",
                keras.metrics.AUC(num_thresholds=20, name="auc"),
                keras.metrics.Precision(name="precision"),
            ],
            "weighted_metrics": ["mse", keras.metrics.MeanAbsoluteError(name="mae")],
        }

    return twins(lambda cls: dense(cls, 1, "sigmoid"), options)


@pytest.mark.gate_on("keras3_tf")
def test_metrics_validation_evaluate_and_predict(twins, data):
    labels = (data.labels > 0).astype("float32")[:, None]
    pair = with_many_metrics(twins)
    validation = (data.x[:13], labels[:13], data.weights[:13])
    logs = pair.agree(fit(data.x, labels, data.weights, batch_size=50, epochs=2, validation_data=validation))
    assert {"loss", "accuracy", "auc", "mse", "val_loss", "val_auc"} <= set(logs)
    pair.agree(lambda model: model.evaluate(data.x, labels, 33, sample_weight=data.weights, verbose=0))


@pytest.mark.gate_on("keras3_jax")
def test_a_part_for_validation(twins, data):
    labels = (data.labels > 0).astype("float32")[:, None]
    with_many_metrics(twins).agree(fit(data.x, labels, batch_size=50, validation_split=0.3))


@pytest.mark.gate_on("keras3_jax", "keras2_tf215")
@pytest.mark.parametrize("steps_per_execution", [pytest.param(1, marks=pytest.mark.exhaustive), 3])
@pytest.mark.parametrize("sizes", [(96, 20), pytest.param((103, 3), marks=pytest.mark.exhaustive)])
def test_predict(twins, data, steps_per_execution, sizes):
    pair = twins(two_outputs, lambda: {"loss": ["mse", None], "steps_per_execution": steps_per_execution})
    for batch_size in sizes:
        a, b = pair.agree(lambda model, size=batch_size: model.predict(data.x, batch_size=size, verbose=0))
        assert a.shape == (103, 1)
        assert b.shape == (103, 3)
    batches = sources.batched((data.x,), 33)
    pair.agree(lambda model: model.predict(batches, verbose=0))


# -- optimizers, precision ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "optimizer",
    [
        pytest.param("SGD", marks=pytest.mark.gate_on("keras3_jax")),
        pytest.param("Adam", marks=pytest.mark.exhaustive),
        pytest.param(
            "Nadam",
            marks=[
                pytest.mark.exhaustive,
                pytest.mark.runtimes("keras3_tf", "keras3_jax", reason="Keras 2: has a Nadam that counts in Python"),
            ],
        ),
    ],
)
def test_optimizers_with_sparse_gradients(twins, sentences, optimizer):
    words, y, weights = sentences
    pair = twins(recurrent, lambda: {"optimizer": getattr(keras.optimizers, optimizer)(0.01)})
    # Adam divides by the root of a squared gradient: where that is tiny, rounding shows ten times as large.
    pair.agree(lambda model: fit(words, y, weights, batch_size=33, epochs=2)(model), tolerance=1e-4)


@pytest.mark.gate_on("keras3_jax")
def test_mixed_bfloat16(scope3, data):
    def train(model_class):
        model = dense(model_class)
        model.compile(sgd(0.1), "mse")
        return model

    with kte.precision.policy_scope("mixed_bfloat16"):
        plain = train(keras.Model)
        with scope3:
            ours = train(kte.TPUModel)
    ours.set_weights(plain.get_weights())
    expected, got = (fit(data.x, data.y, batch_size=96, epochs=3)(model)["loss"] for model in (plain, ours))
    assert got == pytest.approx(expected, rel=2**-6)  # bfloat16 keeps 8 bits; a few roundings add up


@pytest.mark.gate_on("keras3_tf")
def test_loss_scaling_under_mixed_float16(scope3, data):
    models = []
    with kte.precision.policy_scope("mixed_float16"):
        for cls, scope in ((keras.Model, kte.strategy_scope(require="cpu", replicas=1)), (kte.TPUModel, scope3)):
            with scope:
                models.append(dense(cls))
                inner = sgd(0.1)
                models[-1].compile(keras.optimizers.LossScaleOptimizer(inner, initial_scale=64.0), "mse")
    models[1].set_weights(models[0].get_weights())
    histories = [
        model.fit(data.x, data.y, batch_size=96, epochs=4, shuffle=False, verbose=0).history["loss"]
        for model in models
    ]
    assert np.isfinite(histories).all()
    assert histories[1][-1] < histories[1][0]
    for expected, got in zip(models[0].get_weights(), models[1].get_weights(), strict=True):
        np.testing.assert_allclose(got, expected, atol=2**-8)  # float16 keeps 11 bits; a few roundings add up
    assert int(keras.ops.convert_to_numpy(models[1].optimizer.iterations)) == 8


# -- what else may happen to a model ------------------------------------------------------------------------------


@pytest.mark.gate_on("keras3_jax")
@pytest.mark.filterwarnings("ignore:The model does not have any trainable weights.:UserWarning")
def test_no_trainable_weights(twins, data):
    def build(cls):
        model = dense(cls)
        model.trainable = False
        return model

    pair = twins(build, lambda: {"optimizer": sgd(), "metrics": ["mae"]})
    pair.agree(fit(data.x, data.y, batch_size=96))


@pytest.mark.gate_on("keras3_jax")
def test_frozen_layers_and_recompiling(twins, data):
    pair = twins(dense)
    for frozen in (True, False):
        for model in (pair.plain, pair.ours):
            model.layers[1].trainable = not frozen
            model.compile("sgd", "mse")
        pair.agree(fit(data.x[:100], data.y[:100]))


@pytest.mark.runtimes("keras3_tf", "keras3_jax", reason="Keras 2: trains on no loss only where a layer adds one")
@pytest.mark.gate_on("keras3_jax")
def test_recompiling_without_a_loss_keeps_the_loss_exact(twins, data):
    pair = twins(dense)
    for model in (pair.plain, pair.ours):
        model.compile("sgd")
    pair.agree(fit(data.x[:100], data.y[:100]))


@pytest.mark.gate_on("keras3_jax")
def test_steps_per_execution_may_change_between_fits(twins, data):
    pair = twins(dense)
    for steps in (1, 3, 2, 1):
        pair.plain.steps_per_execution = pair.ours.steps_per_execution = steps
        pair.plain.make_train_function(force=True)  # plain Keras has traced the number into its function
        pair.agree(fit(data.x, data.y, batch_size=20))


@pytest.mark.gate_on("keras3_jax")
def test_two_models_in_turn(twins, data):
    pairs = [twins(dense), twins(dense, lambda: {"optimizer": keras.optimizers.SGD(0.1), "loss": "mae"})]
    for pair in pairs * 2:
        pair.agree(fit(data.x[:100], data.y[:100]))


@pytest.mark.gate_on("keras3_jax", "keras2_tf215")
def test_normalization_over_all_replicas(twins, data):
    """On JAX a layer sees the whole batch anyway, and plain Keras refuses `synchronized`."""

    def build(cls):
        inputs = keras.Input((6,))
        hidden = keras.layers.BatchNormalization(synchronized=not ON_JAX)(keras.layers.Dense(5)(inputs))
        return cls(inputs, keras.layers.Dense(1)(hidden))

    twins(build).agree(fit(data.x, data.y, batch_size=97), tolerance=1e-4)  # its variance is a difference of squares


@pytest.mark.gate_on("keras3_tf")
def test_normalization_of_masked_rows_over_all_replicas(twins, data):
    """Keras 3 on TensorFlow itself looks at one replica where there is a mask, `synchronized` or not."""

    def build(cls):
        inputs = keras.Input((6,))
        words = keras.layers.Masking()(keras.layers.Reshape((3, 2))(keras.layers.ReLU()(inputs)))  # some are masked
        hidden = keras.layers.BatchNormalization(synchronized=not ON_JAX, momentum=0.5)(words)
        return cls(inputs, keras.layers.Dense(1)(keras.layers.GlobalAveragePooling1D()(hidden)))

    x = np.concatenate([np.abs(data.x[:, :1]), data.x[:, 1:]], axis=1)  # no average is of no word
    pair = twins(build)
    for size in (97, 103, 102):  # the last batch has 6, 103 and 1
        pair.restart()
        pair.agree(fit(x, data.y, batch_size=size), tolerance=1e-4)


def extra(layer, shape=(6, 6, 2)):
    def build(cls):
        inputs = keras.Input(shape)
        return cls(inputs, keras.layers.Dense(1)(keras.layers.Flatten()(layer()(inputs))))

    return build


@pytest.mark.gate_on("keras3_jax")
@pytest.mark.parametrize("padded", [pytest.param(False, marks=pytest.mark.exhaustive), True])
def test_losses_as_metrics(twins, data, padded):
    """They reduce by themselves: a sum, or a mean that nobody weighs again."""

    def options():
        metrics = [keras.losses.MeanAbsoluteError(reduction="sum", name="sum"), keras.losses.Huber(name="mean")]
        return {"metrics": metrics, "weighted_metrics": [keras.losses.MeanSquaredError(name="weighted")]}

    def act(model):
        batches = sources.batched((data.x[:99], data.y[:99]), 96)
        batches = kte.data.pad_batches(batches, 96) if padded and isinstance(model, kte.TPUModel) else batches
        return model.fit(batches, epochs=2, shuffle=False, verbose=0).history

    twins(compile_options=options).agree(act)


class CountsItsInputs(keras.layers.Layer):
    """A layer that keeps a metric of what it gets."""

    def __init__(self):
        super().__init__()
        self.mean = keras.metrics.Mean(name="sums")

    def call(self, inputs):
        self.mean.update_state(ops.sum(inputs, axis=-1))
        return inputs


@pytest.mark.skipif(ON_JAX, reason="plain Keras on JAX fails on such a layer")
@pytest.mark.skipif(IS_KERAS2, reason="a layer of Keras 2 has add_metric: test_keras2_models_of_all_kinds.py")
@pytest.mark.parametrize("padded", [pytest.param(False, marks=pytest.mark.exhaustive), True])
def test_a_metric_of_a_layer_counts_the_examples_alone(twins, data, padded):
    def build(model_class):
        inputs = keras.Input((6,))
        return model_class(inputs, keras.layers.Dense(1)(CountsItsInputs()(inputs)))

    def act(model):
        batches = sources.batched((data.x[:99], data.y[:99]), 96)
        batches = kte.data.pad_batches(batches, 96) if padded and isinstance(model, kte.TPUModel) else batches
        return model.fit(batches, shuffle=False, verbose=0).history["sums"]

    twins(build).agree(act)


@pytest.mark.gate_on("keras2_tf215")
def test_normalization_survives_empty_replicas(twins, data):
    pair = twins(extra(keras.layers.BatchNormalization, (6,)))
    fit(data.x, data.y, batch_size=96)(pair.ours)
    assert all(np.isfinite(weights).all() for weights in pair.ours.get_weights())


@pytest.mark.exhaustive  # as tests/parity does
def test_activity_regularizers(twins, data):
    pair = twins(lambda cls: dense(cls, activity_regularizer="l2"), lambda: {"optimizer": sgd(0.01)})
    pair.agree(fit(data.x, data.y, batch_size=96))
