"""Training of old Keras: arguments and methods, what history and evaluate give."""

import importlib
import warnings

import keras
import numpy as np
import pytest
import tensorflow as tf

from dropin.old_keras_cases import EXPECTED, assert_same, cases
from keras_tpu_ext import strategy_scope
from keras_tpu_ext.dropin import report

pytestmark = pytest.mark.runtimes("keras3_jax")

X, Y = cases.values(8, 4), cases.values(8, 1)


def compiled(*args, **kwargs):
    model = cases.small_model()
    model.compile("sgd", "mse", *args, **kwargs)
    return model


@pytest.mark.parametrize("name", cases.METRICS)
def test_metrics_have_the_names_of_then(name):
    assert_same(cases.metrics_case(name), EXPECTED[f"metrics {name}"])


@pytest.mark.parametrize("name", cases.TWO_OUTPUTS)
def test_outputs_have_the_names_of_then(name):
    assert_same(cases.two_outputs_case(name), EXPECTED[f"outputs {name}"])


@pytest.mark.parametrize("name", ["dict", "one flat list of two"])
def test_outputs_in_the_exact_step(name):
    with strategy_scope(require="cpu"):
        assert_same(cases.two_outputs_case(name), EXPECTED[f"outputs {name}"])


@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.filterwarnings("ignore:`shuffle=True` was passed:UserWarning")  # Keras's default
def test_old_arguments_of_fit(exact):
    with strategy_scope(require="cpu", exact=exact):
        model = compiled()
        data = tf.data.Dataset.from_tensor_slices((X, Y)).batch(2).repeat()
        history = model.fit(
            data,
            nb_epoch=2,
            steps_per_epoch=8 / 3,
            validation_data=data,
            validation_steps=np.float64(1.5),
            workers=4,
            use_multiprocessing=True,
            max_queue_size=10,
            verbose=0,
        )
        assert history.params["steps"] == 3
        assert history.params["epochs"] == 2
        assert len(history.history["val_loss"]) == 2
        assert np.shape(model.predict(data, steps=1.5, workers=2)) == (4, 1)
        assert isinstance(model.evaluate(data, steps=2.0, verbose=0, max_queue_size=3), float)
    assert "steps_per_epoch=2.66" in report.summary()


def test_old_arguments_of_compile():
    model = compiled(
        metrics=["mae"],
        experimental_run_tf_function=False,
        sample_weight_mode="temporal",
        target_tensors=None,
        run_eagerly=None,
        steps_per_execution=None,
    )
    model.fit(X, Y, verbose=0)
    assert compiled(["mae"]).evaluate(X, Y, verbose=0)[1] > 0
    assert compiled(experimental_steps_per_execution=2).steps_per_execution == 2
    with pytest.raises(TypeError, match="nothing"):
        compiled(nothing=1)


@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize("train", ["fit", "train_on_batch"])
def test_what_trained_when_it_was_compiled_trains(train, exact):
    with strategy_scope(require="cpu", exact=exact):
        discriminator = compiled()
        discriminator.trainable = False  # as in a GAN: from here on in the model of both
        inputs = keras.Input((4,))
        both = keras.Model(inputs, discriminator(keras.layers.Dense(4)(inputs)))
        both.compile("sgd", "mse")
    frozen = [w.copy() for w in discriminator.get_weights()]
    getattr(both, train)(X, Y)
    for weight, before in zip(discriminator.get_weights(), frozen, strict=True):
        np.testing.assert_array_equal(weight, before)
    getattr(discriminator, train)(X, Y)
    assert np.abs(discriminator.get_weights()[0] - frozen[0]).max() > 1e-6
    assert not discriminator.trainable
    assert not discriminator.trainable_weights


@pytest.mark.parametrize("exact", [False, True])
def test_metrics_are_those_of_the_last_compile(exact):
    with strategy_scope(require="cpu", exact=exact):
        model = compiled(metrics=["mae"])
        model.fit(X, Y, verbose=0)
        model.compile("sgd", "mse")
    assert set(model.fit(X, Y, verbose=0).history) == {"loss"}
    assert isinstance(model.evaluate(X, Y, verbose=0), float)


class Batch(keras.metrics.Metric):
    """Counts batches; its result is its variable, as in guides of Keras 2."""

    def __init__(self, name="batch"):
        super().__init__(name=name)
        self.count = self.add_weight("count", initializer="zeros")

    def update_state(self, y_true, y_pred, sample_weight=None):
        """Count one."""
        self.count.assign_add(1.0)

    def result(self):
        """Return the count."""
        return self.count


def Error(y_true, y_pred):  # noqa: N802, its name is seen
    """Return the absolute error."""
    return keras.ops.abs(y_true - y_pred)


class Own(keras.Model):
    """A model that gets a metric when it was compiled."""

    def compile(self, *args, **kwargs):
        """Make the metric."""
        super().compile(*args, **kwargs)
        self.own = keras.metrics.Mean(name="own")


@pytest.mark.parametrize("exact", [False, True])
def test_one_loss_for_two_outputs_and_metrics_of_the_programs_own(exact):
    with strategy_scope(require="cpu", exact=exact):
        inputs = keras.Input((4,))
        model = Own(inputs, [keras.layers.Dense(1, name=name)(inputs) for name in "ab"])
        model.compile("sgd", ["mse", None], metrics=[[Batch(), Error], []])
    history = model.fit(X, [Y, Y], batch_size=4, verbose=0).history
    assert [*history] == ["loss", "a_loss", "a_batch", "a_Error", "own"]
    assert history["a_loss"] == pytest.approx(history["loss"])
    assert history["a_batch"] == [2.0]


def test_third_argument_that_holds_numbers_is_of_keras_3():
    model = compiled([0.5])
    whole = compiled()
    np.testing.assert_allclose(model.evaluate(X, Y, verbose=0) * 2, whole.evaluate(X, Y, verbose=0), rtol=1e-5)


def generator():
    while True:
        for i in range(0, 8, 2):
            yield X[i : i + 2], Y[i : i + 2]


def test_generators():
    model, other = compiled(), compiled()
    model.fit_generator(generator(), steps_per_epoch=4.0, epochs=2, verbose=0, workers=1)
    other.fit(X, Y, batch_size=2, epochs=2, shuffle=False, verbose=0)
    np.testing.assert_allclose(model.get_weights()[0], other.get_weights()[0], rtol=1e-5)
    np.testing.assert_allclose(
        model.evaluate_generator(generator(), steps=4), other.evaluate(X, Y, verbose=0), rtol=1e-4
    )
    np.testing.assert_allclose(
        model.predict_generator(generator(), 4, workers=1), other.predict(X, verbose=0), rtol=1e-4
    )


def test_numbers_of_examples_are_not_taken_for_numbers_of_steps():
    with pytest.raises(TypeError, match="samples_per_epoch"):
        compiled().fit_generator(generator(), samples_per_epoch=8, nb_epoch=1)


class Batches(tf.keras.utils.Sequence):
    """A sequence as kernels wrote it."""

    def __len__(self):
        return 4

    def __getitem__(self, index):
        return X[index * 2 : index * 2 + 2], Y[index * 2 : index * 2 + 2]


@pytest.mark.filterwarnings("ignore:Your `PyDataset` class should call:UserWarning")
def test_sequences():
    model, other = compiled(), compiled()
    model.fit_generator(Batches(), epochs=1, shuffle=False, verbose=0, use_multiprocessing=False)
    other.fit(X, Y, batch_size=2, shuffle=False, verbose=0)
    np.testing.assert_allclose(model.get_weights()[0], other.get_weights()[0], rtol=1e-5)


def test_batches_have_their_own_metrics():
    model, other = compiled(), compiled()
    for i in range(0, 8, 2):
        loss = model.train_on_batch(X[i : i + 2], Y[i : i + 2])
    other.fit(X[:6], Y[:6], batch_size=2, shuffle=False, verbose=0)
    np.testing.assert_allclose(loss, other.evaluate(X[6:], Y[6:], verbose=0), rtol=1e-5)
    first = model.test_on_batch(X[:2], Y[:2])
    both = model.test_on_batch(X[2:4], Y[2:4], reset_metrics=False)
    np.testing.assert_allclose(both, model.evaluate(X[:4], Y[:4], verbose=0), rtol=1e-5)
    assert first != both


def test_methods_that_are_gone():
    model = cases.small_model("sigmoid")
    model._make_predict_function()
    scores = model.predict(X, verbose=0)
    np.testing.assert_array_equal(model.predict_proba(X), scores)
    np.testing.assert_array_equal(model.predict_classes(X), scores > 0.5)
    np.testing.assert_array_equal(cases.small_model(units=3).predict_classes(X).shape, (8,))
    model.reset_states()
    assert model.metrics_names == []


def test_ordinary_training_is_as_before():
    model = cases.small_model()
    model.compile(keras.optimizers.Adam(0.1), loss=keras.losses.MeanSquaredError(), metrics=["mean_absolute_error"])
    history = model.fit(X, Y, 4, 2, 0).history
    assert list(history) == ["loss", "mean_absolute_error"]
    assert set(model.evaluate(X, Y, verbose=0, return_dict=True)) == {"loss", "mean_absolute_error"}


def normalized():
    layer = keras.layers.BatchNormalization(momentum=0.0)
    layer(np.reshape([0.0, 1.0], (1, 2, 1, 1)).astype("float32"), training=True)
    return float(layer.moving_variance[0])


def merged(layer, *values):
    masked = [keras.layers.Masking()(np.reshape(one, (1, 2, 1)).astype("float32")) for one in values]
    mask = layer.compute_mask(masked, [one._keras_mask for one in masked])
    return [*np.ravel(layer(masked)), *np.ravel(mask)]


def loss_of_each():
    layer = keras.layers.Layer()
    layer.add_loss(keras.ops.convert_to_tensor([1.0, 3.0]))
    return float(keras.ops.sum(layer.losses[0]))


def crossentropy():
    probabilities = keras.ops.softmax(np.array([[0.0, 50.0]], "float32"))
    return keras.ops.categorical_crossentropy(np.array([[1.0, 0.0]], "float32"), probabilities)


def labels():
    seen = {}

    def see(name, y_true, y_pred):
        seen[name] = str(y_true.dtype)[:3], len(y_true.shape)
        return keras.ops.mean(y_pred)

    model = cases.small_model(units=2)
    model.compile("sgd", lambda *given: see("loss", *given), metrics=[lambda *given: see("metric", *given)])
    model.evaluate(X, np.arange(8), verbose=0)
    return [seen["loss"], seen["metric"][1]]


def with_two_outputs(metrics):
    inputs = keras.Input((4,))
    model = keras.Model(inputs, [keras.layers.Dense(1, name=name)(inputs) for name in "ab"])
    model.compile("sgd", ["mse", "mse"], metrics=metrics)
    history = model.fit(X, [Y, Y + 1], verbose=0).history
    logs = model.evaluate(X, [Y, Y + 1], verbose=0, return_dict=True)
    values = model.evaluate(X, [Y, Y + 1], verbose=0)
    return [list(history), [name for value in values for name in logs if logs[name] == value]]


def stateful():
    ones = {"kernel_initializer": "ones", "recurrent_initializer": "ones", "activation": "linear"}
    layer = keras.layers.SimpleRNN(1, stateful=True, **ones)
    model = keras.Sequential([keras.Input(batch_shape=(1, 1, 1)), layer])
    return [model.predict(np.ones((1, 1, 1)), verbose=0).item() for _ in range(2)]


def own_relu():
    with keras.saving.custom_object_scope({"relu": lambda x: x + 7.0}):
        return keras.activations.get("relu")(-1.0)


def names(metric, *, again=False):
    model = compiled(metrics=[metric])
    if again:
        model.compile("sgd", "mse")
    return [list(model.fit(X, Y > 0, verbose=0).history), model.metrics_names]


def trains_when_frozen_later():
    model = compiled()
    before = model.get_weights()[0]
    model.trainable = False
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of Keras 3
        model.train_on_batch(X, Y)
    return bool(np.any(model.get_weights()[0] != before))


def thawed_below_a_frozen_model():
    below = keras.Sequential([keras.layers.Dense(1)])
    below.trainable = False
    model = cases.small_model()
    model.add(below)
    below.layers[0].trainable = True
    names = [f"{which}trainable_{of}" for which in ("", "non_") for of in ("variables", "weights")]
    return [*(len(getattr(model, name)) for name in names), len(below.layers[0].trainable_weights)]


def tensors_of_a_called_sequential():
    model, inputs = cases.small_model(), keras.Input((4,))
    outputs = model(inputs)
    return [model.input is inputs, model.output is outputs, model.output is model.outputs[0]]


def crossentropy_of_what_no_sigmoid_made():
    return float(keras.losses.binary_crossentropy(np.ones((1, 1), "float32"), np.zeros((1, 1), "float32"))[0])


def loss_of_frozen_weight():
    layer = keras.layers.Dense(1, kernel_initializer="ones", kernel_regularizer=keras.regularizers.L2(1.0))
    layer.build((None, 4))
    layer.trainable = False
    return float(sum(layer.losses))


def masked_error():
    model = keras.Sequential([keras.layers.Embedding(3, 1, mask_zero=True, embeddings_initializer="ones")])
    model.compile("sgd", "mse", metrics=["mae"])
    return model.fit(np.array([[1, 0]] * 3), np.array([[[2.0], [5.0]]] * 3), verbose=0).history["mae"][0]


class OwnWeight(keras.Model):
    def __init__(self):
        super().__init__()
        self.own = self.add_weight(shape=(9,))
        self.inner = keras.Sequential([keras.layers.Dense(2), keras.layers.TimeDistributed(TwoParts())])


class TwoParts(keras.Layer):
    def __init__(self):
        super().__init__()
        self.parts = [keras.layers.BatchNormalization(scale=False), keras.layers.Dense(3)]

    def build(self, shape):
        for part in self.parts:
            part.build(shape)

    def call(self, x):
        return self.parts[1](self.parts[0](x))


def sizes_of_weights():
    model = OwnWeight()
    model.inner.build((None, 5, 4))
    return [weight.size for weight in model.get_weights()]


def test_a_metric_of_a_whole_batch_has_the_weight_of_the_batch():
    def largest(y_true, y_pred):
        return keras.ops.max(y_true)

    model = cases.small_model()
    model.compile("sgd", "mse", weighted_metrics=[largest])
    y, weights = np.array([1.0, 2.0, 5.0]), np.array([1.0, 1.0, 8.0])
    found = model.fit(X[:3], y, sample_weight=weights, batch_size=2, shuffle=False, verbose=0).history["largest"]
    np.testing.assert_allclose(found, (2 * 2 + 8 * 5) / 10, rtol=1e-5)


LOSSES = ("a_loss", "b_loss")
# What both have, what it gives in Keras 3, and what it gave in old Keras.
MEANINGS = {
    "hard_sigmoid": (lambda: keras.activations.get("hard_sigmoid")(np.float32(1.0)), 2 / 3, 0.7),
    "l1_l2": (lambda: keras.regularizers.l1_l2(0.5).l2, 0.0, 0.01),
    "ConvLSTM": (
        lambda: keras.layers.ConvLSTM1D(1, 1).get_config()["recurrent_activation"],
        "sigmoid",
        "hard_sigmoid",
    ),
    "BatchNormalization": (normalized, 0.25, 0.5),
    "Maximum": (lambda: merged(keras.layers.Maximum(), [-1, 0], [0, -3]), [-1, -3, True, True], [0, 0, False, False]),
    "Multiply": (lambda: merged(keras.layers.Multiply(), [2, 0], [0, 3]), [2, 3, True, True], [0, 0, False, False]),
    "add_loss": (loss_of_each, 4.0, 2.0),
    "crossentropy": (crossentropy, -np.log(1e-7), 50.0),
    "clipped crossentropy": (crossentropy_of_what_no_sigmoid_made, -np.log(1e-7), -np.log(2e-7)),
    "labels": (labels, [("flo", 1), 1], [("int", 2), 2]),
    "two outputs": (
        lambda: with_two_outputs([["mae", "cosine_similarity"], ["mae"]]),
        [
            ["a_cosine_similarity", "a_loss", "a_mae", "b_loss", "b_mae", "loss"],
            ["loss", *LOSSES, "a_cosine_similarity", "a_mae", "b_mae"],
        ],
        [["loss", *LOSSES, "a_mae", "a_cosine_similarity", "b_mae"]] * 2,
    ),
    "a list of two": (lambda: len(with_two_outputs(["mae", "msle"])[0]), 5, 7),
    "stateful": (stateful, [1.0, 1.0], [1.0, 2.0]),
    "custom object": (own_relu, 0.0, 6.0),
    "a class of metrics": (
        lambda: names("MeanAbsoluteError"),
        [["MeanAbsoluteError", "loss"], ["loss", "compile_metrics"]],
        [["loss", "mean_absolute_error"]] * 2,
    ),
    "second compile": (lambda: names("mae", again=True)[0], ["loss", "mae"], ["loss"]),
    "trainable": (trains_when_frozen_later, False, True),
    "thawed below a frozen model": (thawed_below_a_frozen_model, [4, 4, 0, 0, 2], [2, 2, 2, 2, 2]),
    "regularizer of a frozen weight": (loss_of_frozen_weight, 0.0, 4.0),
    "metric of masked outputs": (masked_error, 2.5, 1.0),
    "order of weights": (sizes_of_weights, [9, 8, 2, 2, 2, 2, 6, 3], [8, 2, 2, 6, 3, 2, 2, 9]),
    "Sequential.output": (tensors_of_a_called_sequential, [True, True, False], [False, False, True]),
}


@pytest.mark.parametrize("name", MEANINGS)
def test_without_an_old_name_keras_3_is_meant(name, no_old_name_yet):
    find, today, then = MEANINGS[name]
    for expected in (today, then):
        found = find()
        if isinstance(expected, float):
            np.testing.assert_allclose(found, expected, rtol=1e-5)
        else:
            assert found == expected
        assert report.is_old_program() is (expected is then)
        report.mapped("lr=", "learning_rate=")


@pytest.mark.parametrize("exact", [False, True])
def test_what_is_below_a_frozen_model_stays_as_it_is(exact):
    report.mapped("lr=", "learning_rate=")
    with strategy_scope(require="cpu", exact=exact):
        below = cases.small_model()
        below.trainable = False
        below.layers[-1].trainable = True
        model = keras.Sequential([below, keras.layers.Dense(1)])
        model.compile("sgd", "mse")
    before = below.get_weights()
    model.fit(X, Y, verbose=0)
    np.testing.assert_array_equal(below.get_weights()[0], before[0])


def test_a_sequential_has_tensors_before_it_is_called():
    model = tf.keras.Sequential([tf.keras.layers.Dense(3, input_shape=(4,))])
    longer = keras.Model(model.input, keras.layers.Dense(2)(model.output))
    assert longer.output_shape == (None, 2)
    assert longer.input_names == [model.inputs[0].name]


@pytest.mark.parametrize(
    ("loss", "weights", "total"),
    [
        ("mse", {"b": 10.0, "a": 1.0}, (10, 1)),
        ("mse", {"a": 3.0}, (1, 3)),
        ("mse", [10.0, 1.0], (10, 1)),
        (["mse", "mse"], {"b": 10.0, "a": 1.0}, (10, 1)),
        ({"a": "mse", "b": "mse"}, {"b": 2.0}, (2, 1)),
        ({"a": "mse"}, None, (0, 1)),
        ({"b": "mse"}, {"b": 2.0}, (2, 0)),
    ],
    ids=str,
)
@pytest.mark.parametrize("exact", [False, True])
def test_losses_and_weights_of_outputs(exact, loss, weights, total):
    report.mapped("lr=", "learning_rate=")
    with strategy_scope(require="cpu", exact=exact):
        inputs = keras.Input((4,))
        outputs = [keras.layers.Dense(1, kernel_initializer="ones", name=name)(inputs) for name in ("b", "a")]
        model = keras.Model(inputs, outputs)
        model.compile("sgd", loss, loss_weights=weights)
    targets = {"b": Y, "a": 0 * Y}
    summed = X.sum(-1, keepdims=True)
    of_each = [np.mean((summed - targets[name]) ** 2) for name in ("b", "a")]
    found = model.fit(X, targets, batch_size=8, verbose=0).history
    np.testing.assert_allclose(found["loss"][0], np.dot(total, of_each), rtol=1e-5)


class Counted(Batches):
    """A sequence that counts the ends of epochs, on which kernels shuffle it."""

    ends = 0

    def on_epoch_end(self):
        self.ends += 1


@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.filterwarnings("ignore:Your `PyDataset` class should call:UserWarning")
def test_a_sequence_hears_of_each_end_of_an_epoch_once(exact):
    with strategy_scope(require="cpu", exact=exact):
        model, data, checks = compiled(), Counted(), Counted()
        seen = []
        watch = keras.callbacks.LambdaCallback(on_epoch_begin=lambda *_: seen.append((data.ends, checks.ends)))
        model.fit(data, validation_data=checks, epochs=3, shuffle=False, verbose=0, callbacks=[watch])
        assert seen == [(0, 0), (1, 1), (2, 2)]
        model.predict(checks, verbose=0)
    assert (data.ends, checks.ends) == (3, 4)


@pytest.mark.parametrize("names", [("a", "b"), ("b",)])
@pytest.mark.parametrize("exact", [False, True])
def test_weights_of_outputs_by_name(exact, names):
    def trained(weights):
        inputs = keras.Input((4,))
        outputs = [keras.layers.Dense(1, kernel_initializer="ones", name=name)(inputs) for name in ("a", "b")]
        model = keras.Model(inputs, outputs)
        model.compile("sgd", {"a": "mse", "b": "mae"}, weighted_metrics={"b": ["mse"]})
        targets = {"a": Y, "b": 2 * Y}
        data = tf.data.Dataset.from_tensor_slices((X, targets, weights)).batch(3)
        return [*model.fit(data, shuffle=False, verbose=0).history.values(), *model.get_weights()]

    weights = {name: np.arange(8, dtype="float32") for name in names}
    with strategy_scope(require="cpu", exact=exact):
        found = trained(weights)
        expected = trained({name: weights.get(name, np.ones(8, "float32")) for name in ("a", "b")})
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("exact", [False, True])
def test_the_target_of_one_output_by_name(exact):
    def trained(targets):
        inputs = keras.Input((4,))
        model = keras.Model(inputs, keras.layers.Dense(1, kernel_initializer="ones", name="a")(inputs))
        model.compile("sgd", {"a": "mse"}, metrics={"a": ["mae"]})
        history = model.fit(X, targets, batch_size=4, shuffle=False, verbose=0).history
        return [*history.values(), model.evaluate(X, targets, verbose=0), *model.get_weights()]

    with strategy_scope(require="cpu", exact=exact):
        for one, other in zip(trained({"a": Y}), trained(Y), strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)


def test_generators_of_inputs_alone_and_of_lists():
    with strategy_scope(require="cpu"):
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
    model.fit(([X[i : i + 4], Y[i : i + 4]] for i in (0, 4)), steps_per_epoch=2, shuffle=False, verbose=0)
    found = model.predict((X[i : i + 4] for i in (0, 4)), steps=2, verbose=0)
    np.testing.assert_allclose(found, model.predict(X, verbose=0), rtol=1e-6)


@pytest.mark.parametrize("exact", [False, True])
def test_weights_of_some_outputs_beside_targets_by_name(exact):
    def trained(weights):
        inputs = keras.Input((4,))
        outputs = {name: keras.layers.Dense(1, kernel_initializer="ones", name=name)(inputs) for name in ("a", "b")}
        model = keras.Model(inputs, outputs)
        model.compile("sgd", "mse")
        model.fit(X, {"a": Y, "b": 2 * Y}, sample_weight=weights, batch_size=4, shuffle=False, verbose=0)
        return model.get_weights()

    weights = np.arange(8, dtype="float32")
    with strategy_scope(require="cpu", exact=exact):
        for one, other in zip(trained({"b": weights}), trained({"a": np.ones(8), "b": weights}), strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-6)


class KeptWeights(keras.callbacks.Callback):
    """Reads weights that it has kept, and not `self.model`, in the middle of an epoch."""

    def __init__(self, weights):
        super().__init__()
        self.weights, self.seen = weights, []

    def on_train_batch_end(self, batch, logs=None):
        self.seen.append([tf.keras.backend.get_value(weight) for weight in self.weights])


@pytest.mark.parametrize("exact", [False, True])
def test_a_callback_reads_weights_that_it_has_kept(exact):
    with strategy_scope(require="cpu", exact=exact):
        model = compiled()
    kept = KeptWeights(model.trainable_weights)
    model.fit(X, Y, batch_size=2, shuffle=False, verbose=0, callbacks=[kept])
    assert len(kept.seen) == 4
    for seen, after in zip(kept.seen[-1], model.trainable_weights, strict=True):
        np.testing.assert_array_equal(seen, after.numpy())
    assert not np.array_equal(kept.seen[0][0], kept.seen[-1][0])


def test_an_old_program_can_say_so(no_old_name_yet):
    assert not report.is_old_program()
    importlib.reload(importlib.import_module("keras_tpu_ext.dropin.old_program"))
    assert report.is_old_program()
