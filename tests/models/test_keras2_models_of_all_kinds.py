"""What Keras 2 takes and Keras 3 does not, or takes in another way: plain Keras on one device against `TPUModel`."""

from __future__ import annotations

import contextlib

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_tpu_ext as kte
from keras_tpu_ext._runtime.tensorflow import empty_replicas as _tf_empty
from keras_tpu_ext.errors import ArgumentError

pytestmark = [pytest.mark.runtimes("keras2_tf"), pytest.mark.gate_on("keras2_tf215")]


def dense(model_class):
    inputs = keras.Input((6,))
    return model_class(inputs, keras.layers.Dense(1)(keras.layers.Dense(5, activation="tanh")(inputs)))


def fit(data, size=96, padded=False):
    """Return what `fit` does, in batches of which the last has fewer examples than there are replicas or none."""

    def act(model):
        batches = tf.data.Dataset.from_tensor_slices((data.x[:99], data.y[:99])).batch(size)
        batches = kte.data.pad_batches(batches, size) if padded and isinstance(model, kte.TPUModel) else batches
        return model.fit(batches, epochs=2, verbose=0).history

    return act


class AddsMetric(keras.layers.Layer):
    def call(self, inputs):
        self.add_metric(tf.reduce_sum(inputs, axis=-1), name="sums")
        return inputs


@pytest.mark.parametrize("padded", [pytest.param(False, marks=pytest.mark.exhaustive), True])
def test_a_metric_of_a_layer_counts_the_examples_alone(twins, data, padded):
    def build(model_class):
        inputs = keras.Input((6,))
        return model_class(inputs, keras.layers.Dense(1)(AddsMetric()(inputs)))

    twins(build).agree(fit(data, padded=padded))


class TakesNoMore(keras.optimizers.SGD):
    """An optimizer as users write them, which passes nothing on."""

    def apply_gradients(self, grads_and_vars, name=None):
        return super().apply_gradients(grads_and_vars, name=name)


def test_an_optimizer_whose_apply_gradients_takes_no_more_than_it_must(twins, data):
    twins(compile_options=lambda: {"optimizer": TakesNoMore(0.1, clipnorm=1.0)}).agree(fit(data))


class Centralised(keras.optimizers.SGD):
    def compute_gradients(self, loss, var_list, tape=None):
        pairs = super().compute_gradients(loss, var_list, tape)
        return [(gradient - tf.reduce_mean(gradient), variable) for gradient, variable in pairs]


def test_an_optimizer_that_computes_its_gradients_is_refused():
    with pytest.raises(ArgumentError) as caught:
        dense(kte.TPUModel).compile(Centralised(0.1), "mse")
    assert str(caught.value) == (
        "TPUModel takes the gradients itself, so that they are those of all replicas; Centralised overrides "
        "compute_gradients(), which would not be called. Write in its place: def apply_gradients(self, "
        "grads_and_vars, **kwargs), which gets the gradients of the whole batch."
    )


def by_the_guide(model_class):
    """Return a class with the step of Keras 2's guide to mixed precision, for one optimizer or more."""

    class Guided(model_class):
        def train_step(self, data):
            x, y = data
            first, *others = tf.nest.flatten(self.optimizer)
            with tf.GradientTape() as tape:
                loss = self.compute_loss(x, y, self(x, training=True))
                scaled = first.get_scaled_loss(loss) if hasattr(first, "get_scaled_loss") else loss
            gradients = tape.gradient(scaled, self.trainable_variables)
            if hasattr(first, "get_scaled_loss"):
                gradients = first.get_unscaled_gradients(gradients)
            kernels = list(zip(gradients, self.trainable_variables, strict=True))
            first.apply_gradients(kernels[:2] if others else kernels)
            for optimizer in others:
                optimizer.apply_gradients(kernels[2:])
            return {"loss": loss}

    return Guided


def test_the_step_of_the_guide_to_mixed_precision(data, scope4):
    """Its loss scale is that of the optimizer that Keras makes; rounding to float16 hides what is below 1e-3."""
    trained = []
    with kte.precision.policy_scope("mixed_float16"):
        for model_class, scope in ((keras.Model, contextlib.nullcontext()), (kte.TPUModel, scope4)):
            keras.utils.set_random_seed(0)
            with scope:
                model = dense(by_the_guide(model_class))
                model.compile(keras.optimizers.SGD(0.05), "mse")
            model.fit(data.x[:96], data.y[:96], batch_size=32, shuffle=False, verbose=0)
            trained.append(np.concatenate([weights.ravel() for weights in model.get_weights()]))
    np.testing.assert_allclose(trained[1], trained[0], atol=2e-3)
    assert float(model.optimizer.loss_scale) == 2.0**15


def test_a_list_of_optimizers(twins, data):
    def optimizers():
        return {"optimizer": [keras.optimizers.SGD(0.1), keras.optimizers.Adam(0.01)]}

    classes = [by_the_guide(base) for base in (keras.Model, kte.TPUModel)]
    pair = twins(compile_options=optimizers, classes=classes)
    pair.agree(
        lambda model: model.fit(data.x[:96], data.y[:96], batch_size=32, shuffle=False, verbose=0).history["loss"]
    )


class OnlyAddsLoss(keras.layers.Layer):
    def __init__(self, axis):
        super().__init__()
        self.axis = axis

    def call(self, inputs):
        self.add_loss(tf.reduce_mean(tf.square(inputs - 1.0), axis=self.axis))
        return inputs


@pytest.mark.parametrize("axis", [None, -1], ids=["of a batch", "of an example"])
def test_a_model_whose_layers_make_the_loss(twins, data, axis):
    """Keras 2 counts each batch as one then, also the short one at the end; of terms by example it shows the mean."""

    def build(model_class):
        inputs = keras.Input((6,))
        return model_class(inputs, OnlyAddsLoss(axis)(keras.layers.Dense(2)(inputs)))

    def act(model):
        return model.fit(tf.data.Dataset.from_tensor_slices(data.x[:100]).batch(96), verbose=0).history

    twins(build, lambda: {"loss": None, "optimizer": keras.optimizers.SGD(0.001)}).agree(act)


def test_evaluating_without_a_loss(twins, data):
    pair = twins(compile_options=lambda: {"loss": None, "metrics": ["mae"]})
    pair.agree(lambda model: model.evaluate(data.x[:99], data.y[:99], batch_size=96, verbose=0))


@contextlib.contextmanager
def floatx(name):
    keras.config.set_floatx(name)
    try:
        yield
    finally:
        keras.config.set_floatx("float32")


@pytest.mark.parametrize("kind", ["floatx", pytest.param("policy", marks=pytest.mark.exhaustive)])
@pytest.mark.parametrize("outputs", [pytest.param(1, marks=pytest.mark.exhaustive), 2])
def test_float64(twins, data, kind, outputs):
    def build(model_class):
        inputs = keras.Input((6,))
        made = [keras.layers.Dense(1, name=f"out{i}")(inputs) for i in range(outputs)]
        return model_class(inputs, made if outputs > 1 else made[0])

    y = [data.y[:99]] * outputs if outputs > 1 else data.y[:99]
    with floatx("float64") if kind == "floatx" else kte.precision.policy_scope("float64"):
        twins(build).agree(lambda model: model.fit(data.x[:99], y, batch_size=96, shuffle=False, verbose=0).history)


class Pairs(keras.utils.Sequence):
    """A `Sequence` that gives its two inputs in a list, as many do."""

    def __init__(self, data):
        super().__init__()
        self.data = data

    def __len__(self):
        return 4

    def __getitem__(self, i):
        rows = slice(32 * i, 32 * (i + 1))
        return [self.data.x[rows, :3], self.data.x[rows, 3:]], self.data.y[rows]


def test_padded_batches_of_a_sequence_with_two_inputs(twins, data):
    def build(model_class):
        inputs = [keras.Input((3,)), keras.Input((3,))]
        return model_class(inputs, keras.layers.Dense(1)(keras.layers.concatenate(inputs)))

    def act(model):
        batches = Pairs(data)
        batches = kte.data.pad_batches(batches, 32) if isinstance(model, kte.TPUModel) else batches
        return model.fit(batches, shuffle=False, verbose=0).history

    twins(build).agree(act)


def subclassed(call):
    """Return what builds a subclassed model whose `call` is `call(dense, inputs)`."""

    def build(model_class):
        class Subclassed(model_class):
            def __init__(self):
                super().__init__()
                self.dense = keras.layers.Dense(1)

            def call(self, inputs):
                return call(self.dense, inputs)

        model = Subclassed()
        model(np.zeros((1, 6), "float32"))
        return model

    return build


@pytest.mark.filterwarnings("ignore:.* may look at the examples of a batch together:UserWarning")
def test_batches_whose_shape_tensorflow_does_not_know(twins, data):
    def batches():
        dataset = tf.data.Dataset.from_generator(
            lambda: iter(zip(data.x[:99], data.y[:99], strict=True)), (tf.float32, tf.float32)
        )
        return dataset.batch(96)

    build = subclassed(lambda dense, inputs: dense(tf.ensure_shape(inputs, (None, 6))))
    twins(build, lambda: {"loss": one_number}).agree(lambda model: model.fit(batches(), verbose=0).history)


def one_number(y_true, y_pred):
    return tf.sqrt(tf.reduce_mean(tf.square(tf.ensure_shape(y_true, (None, 1)) - y_pred)))


def as_numpy(y_true, y_pred):
    return tf.py_function(lambda a, b: tf.reduce_max(tf.abs(a - b)), (y_true, y_pred), tf.float32)


def test_a_metric_in_numpy_whose_shape_tensorflow_does_not_know(twins, data):
    twins(compile_options=lambda: {"metrics": [as_numpy]}).agree(fit(data))


def test_a_number_beside_the_outputs(twins, data):
    build = subclassed(lambda dense, inputs: (dense(inputs), tf.reduce_sum(dense.kernel)))
    pair = twins(build, lambda: {"loss": ["mse", None]})
    pair.agree(lambda model: model.fit(data.x[:99], data.y[:99], batch_size=96, shuffle=False, verbose=0).history)


class OwnLoss(kte.TPUModel):
    """A model with a loss of its own, which sees the whole batch on every replica."""

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        return tf.reduce_mean(tf.square(y_pred - y)) + 1e-3 * tf.cast(tf.shape(x)[0], tf.float32)


class PlainOwnLoss(keras.Model):
    compute_loss = OwnLoss.compute_loss


CLASSES = {"compiled loss": (keras.Model, kte.TPUModel), "own loss": (PlainOwnLoss, OwnLoss)}


@pytest.mark.filterwarnings("ignore:.* may look at the examples of a batch together:UserWarning")
@pytest.mark.parametrize(
    "loss",
    [kind if kind == "compiled loss" else pytest.param(kind, marks=pytest.mark.exhaustive) for kind in CLASSES],
)
def test_ragged_batches(twins, data, loss):
    def build(model_class):
        inputs = keras.Input((None,), ragged=True, dtype="int64")
        words = keras.layers.Embedding(7, 4)(inputs)
        mean = keras.layers.Lambda(lambda words: tf.reduce_mean(words, axis=1))(words)
        return model_class(inputs, keras.layers.Dense(1)(mean))

    words = tf.ragged.constant([[i % 7] * (1 + i % 4) for i in range(99)], dtype=tf.int64)
    batches = tf.data.Dataset.from_tensor_slices((words, data.y[:99])).batch(96)
    pair = twins(build, lambda: {"metrics": ["mae"]}, CLASSES[loss])
    pair.agree(lambda model: model.fit(batches, verbose=0).history)


@pytest.mark.filterwarnings("ignore:.* may look at the examples of a batch together:UserWarning")
@pytest.mark.parametrize(
    "loss", [kind if kind == "own loss" else pytest.param(kind, marks=pytest.mark.exhaustive) for kind in CLASSES]
)
def test_sparse_batches(twins, data, loss):
    def build(model_class):
        inputs = keras.Input((6,), sparse=True)
        return model_class(inputs, keras.layers.Dense(1)(inputs))

    # TensorFlow itself cannot give a replica no row of a sparse batch: here the last one has a row for each.
    x = tf.sparse.from_dense(np.where(data.x[:99] > 0.5, data.x[:99], 0))
    batches = tf.data.Dataset.from_tensor_slices((x, data.y[:99])).batch(96)
    pair = twins(build, lambda: {"metrics": ["mae"]}, CLASSES[loss])
    pair.agree(lambda model: model.fit(batches, verbose=0).history)


@pytest.mark.parametrize("leaf", ["sparse", "ragged"])
def test_a_replica_without_rows_of_a_composite_tensor_gets_one_of_ones(leaf):
    dense = tf.zeros([0, 6])
    empty = tf.sparse.from_dense(dense) if leaf == "sparse" else tf.RaggedTensor.from_tensor(dense)
    row = _tf_empty.one_row_if_empty(empty, tf.constant(False))
    values = tf.sparse.to_dense(row) if leaf == "sparse" else row.to_tensor()
    assert values.shape == ([1, 6] if leaf == "sparse" else [1, 1])
    assert values[0, 0] == 1
    assert _tf_empty.no_row_if_empty(row, tf.constant(False)).shape[0] == 0


class Sentences(keras.utils.Sequence):
    """Batches of sentences, each batch as long as its longest one."""

    def __init__(self, lengths):
        self.lengths = lengths

    def __len__(self):
        return len(self.lengths)

    def __getitem__(self, index):
        rows = 8 if index < len(self) - 1 else 3
        random = np.random.default_rng(index)
        return random.normal(size=(rows, self.lengths[index], 2)).astype("float32"), np.arange(rows, dtype="float32")


def sentence_model(model_class):
    inputs = keras.Input((None, 2))
    return model_class(inputs, keras.layers.Dense(1)(keras.layers.GlobalAveragePooling1D()(inputs)))


def test_padded_batches_of_a_sequence_may_vary_in_length(twins):
    def act(model):
        batches = Sentences([5, 7, 4])
        padded = kte.data.pad_batches(batches, 8) if isinstance(model, kte.TPUModel) else batches
        return model.fit(padded, shuffle=False, verbose=0).history

    twins(sentence_model).agree(act)


def test_a_length_that_the_first_batches_of_a_padded_sequence_do_not_tell_is_told():
    model = sentence_model(kte.TPUModel)
    model.compile("sgd", "mse")
    with pytest.raises(tf.errors.OpError) as raised:
        model.fit(kte.data.pad_batches(Sentences([5, 5, 4]), 8), shuffle=False, verbose=0)
    assert (
        "pad_batches got a Sequence whose batch number 2 has the shape (8, 4, 2), and its first two say (8, 5, 2). "
        "On a TPU every other shape is another compilation. Bring all batches to one length in __getitem__: "
        "keras.utils.pad_sequences(x, maxlen=128)"
    ) in str(raised.value)


def test_a_vocabulary_with_weights_is_no_variable(scope3):
    texts, y = tf.constant(["a b", "c", "d d a", "b"]), np.arange(4.0)[:, None]
    histories = []
    for scope in (contextlib.nullcontext(), scope3):
        with scope:
            words = keras.layers.TextVectorization(output_mode="tf_idf", max_tokens=8)
            words.adapt(["a b c", "a d", "b b"])
            inputs = keras.Input((), dtype=tf.string)
            model = keras.Model(inputs, keras.layers.Dense(1, kernel_initializer="ones")(words(inputs)))
            model.compile("sgd", "mse")
        histories.append(model.fit(texts, y, batch_size=3, epochs=2, shuffle=False, verbose=0).history["loss"])
    np.testing.assert_allclose(histories[1], histories[0], rtol=1e-5)
