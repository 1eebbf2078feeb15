"""A padded row does not exist: `TPUModel` on padded batches does what plain Keras does without padding."""

import contextlib
import itertools

import keras
import numpy as np
import pytest
from keras import ops

import keras_tpu_ext as kte
import sources
from kind_of_keras import IS_KERAS2

pytestmark = pytest.mark.gate_on("keras3_tf", "keras3_jax")

ON_JAX = keras.backend.backend() == "jax"  # there every layer sees the whole batch, and Keras refuses `synchronized`
SIZE = 32  # of 103 examples the last batch has 7: on three replicas one has them all, on eight one has 4 and one 3


def dense(model_class, **options):
    inputs = keras.Input((6,))
    hidden = keras.layers.Dense(5, activation="tanh", **options)(inputs)
    return model_class(inputs, keras.layers.Dense(1)(hidden))


def normalised(model_class):
    inputs = keras.Input((6,))
    hidden = keras.layers.Dense(5, activity_regularizer="l2")(inputs)
    hidden = keras.layers.BatchNormalization(momentum=0.5, synchronized=not ON_JAX)(hidden)
    return model_class(inputs, keras.layers.Dense(1)(keras.layers.Activation("tanh")(hidden)))


class Square(keras.layers.Layer):
    """Adds a loss with a value for each example."""

    def call(self, x):
        self.add_loss(ops.sum(ops.square(x), axis=-1) / 100)
        return x


def with_own_losses(model_class):
    inputs = keras.Input((6,))
    return model_class(inputs, keras.layers.Dense(1)(Square()(keras.layers.Dense(5)(inputs))))


def masked(model_class):
    inputs = keras.Input((6,), dtype="int32")
    embedded = keras.layers.Embedding(9, 4, mask_zero=True)(inputs)
    return model_class(inputs, keras.layers.Dense(1)(embedded))


def two_outputs(model_class):
    inputs = keras.Input((6,))
    hidden = keras.layers.Dense(5, activation="tanh")(inputs)
    outputs = {name: keras.layers.Dense(1, name=name)(hidden) for name in ("a", "b")}
    return model_class(inputs, outputs)


def with_own_loss(model_class):
    class Own(model_class):
        def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
            assert sample_weight is None  # the dataset has none
            error = ops.mean(ops.square(y - y_pred))
            return error * ops.mean(ops.abs(y_pred))  # no mean over examples at all

    return dense(Own)


def regularised(model_class):
    inputs = keras.Input((6,))
    hidden = keras.layers.Dense(5, activity_regularizer=keras.regularizers.L2(0.5))(inputs)
    return model_class(inputs, keras.layers.Dense(1)(hidden))


def rms(y, y_pred):
    return ops.sqrt(ops.mean(ops.square(y - y_pred)))  # one number for a whole batch


def sgd(rate=0.1):
    return keras.optimizers.SGD(rate)


def loss(reduction, rate=0.002):
    return lambda: {"loss": keras.losses.MeanSquaredError(reduction=reduction), "optimizer": sgd(rate)}


CASES = {
    "dense": (dense, dict),
    "batch normalisation and activity regulariser": (normalised, dict),
    "activity regulariser": (regularised, dict),
    # Keras 2 adds no term by example to the loss.
    **({} if IS_KERAS2 else {"add_loss by example": (with_own_losses, lambda: {"optimizer": sgd(0.01)})}),
    "mask": (masked, dict),
    **({} if IS_KERAS2 else {"mask, weighted mean": (masked, loss("mean_with_sample_weight", 0.1))}),
    "two outputs": (two_outputs, lambda: {"metrics": {"a": ["mae"]}, "weighted_metrics": {"b": ["mae"]}}),
    "own compute_loss": (with_own_loss, dict),
    "loss of one number": (dense, lambda: {"loss": rms}),
    "sum": (dense, loss("sum")),
    # Plain Keras on JAX trains on no loss that is not reduced.
    **({} if ON_JAX else {"none": (dense, loss("none"))}),
    **({} if IS_KERAS2 else {"weighted mean": (dense, loss("mean_with_sample_weight"))}),
    "auc": (
        dense,
        lambda: {"metrics": [keras.metrics.AUC(from_logits=True, name="auc"), keras.metrics.R2Score(), "mse"]},
    ),
    "scaled and clipped": (dense, lambda: {"optimizer": keras.optimizers.Adam(0.01, global_clipnorm=0.1)}),
}
WEIGHTED = {"dense", "mask, weighted mean", "two outputs"}
# What tests/parity does not combine with padding.
ON_ALL = ("keras3_tf", "keras3_jax", "keras2_tf215")
IN_GATE = {
    ("batch normalisation and activity regulariser", False): ("keras3_jax", "keras2_tf221"),
    ("activity regulariser", False): ("keras2_tf215",),
    ("own compute_loss", False): ("keras2_tf215",),
    ("two outputs", False): ("keras3_jax",),
    ("dense", True): (*ON_ALL, "keras2_tf221"),
    ("mask", False): ("keras2_tf215", "keras2_tf221"),
    ("mask, weighted mean", False): ("keras3_tf", "keras3_jax"),
}


def parts_for(data, name, weighted):
    x, y = data.x, (data.labels > 0).astype("float32")[:, None]
    if name.startswith("mask"):
        x, y = data.labels[:, None] * np.arange(6)[None] % 4, np.repeat(y[:, :, None], 6, axis=1)
    if name == "two outputs":
        y = {"a": y, "b": data.y}
    weights = data.weights
    if name.startswith("mask"):  # Keras wants the shape of the mask
        weights = np.outer(weights, np.linspace(0.5, 1.5, 6)).astype("float32")
    return (x, y, weights) if weighted else (x, y)


def pair(data, name, replicas, scope3, weighted):
    """Return a plain model and our twin, with the data they train on."""
    build, options = CASES[name]
    models = []
    for model_class, scope in ((keras.Model, None), (kte.TPUModel, scope3 if replicas == 3 else None)):
        keras.utils.set_random_seed(3)
        with scope or contextlib.nullcontext():
            model = build(model_class)
            metrics = {} if name == "two outputs" else {"metrics": ["mae"], "weighted_metrics": ["mse"]}
            model.compile(**{"optimizer": sgd(), "loss": "mse"} | metrics | options())
        models.append(model)
    plain = sources.batched(parts_for(data, name, weighted), SIZE)
    return models, (plain, kte.data.pad_batches(plain, SIZE))


def assert_close(got, expected):
    keras.tree.map_structure(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5), got, expected)


@pytest.mark.parametrize(
    ("name", "weighted", "replicas"),
    [
        pytest.param(
            *(name, weighted, replicas),
            id=f"{name}, {'weighted' if weighted else 'unweighted'}-{replicas}",
            marks=pytest.mark.gate_on(*IN_GATE[name, weighted])
            if (name, weighted) in IN_GATE
            else pytest.mark.exhaustive,
        )
        for name in CASES
        for weighted, replicas in ((False, 3), (True, 1))
        if not weighted or name in WEIGHTED
    ],
)
def test_padding_changes_nothing(data, scope3, name, replicas, weighted):
    (plain, ours), datasets = pair(data, name, replicas, scope3, weighted)
    start = plain.get_weights()
    histories = [
        model.fit(data, epochs=2, shuffle=False, verbose=0).history
        for model, data in zip((plain, ours), datasets, strict=True)
    ]
    assert_close(histories[1], histories[0])
    moved = [a - b for a, b in zip(plain.get_weights(), start, strict=True)]
    off = [a - b for a, b in zip(ours.get_weights(), plain.get_weights(), strict=True)]
    norm = lambda arrays: np.sqrt(sum(float(np.sum(np.square(a))) for a in arrays))  # noqa: E731
    assert norm(off) <= 1e-5 * norm(moved)
    if replicas == 3:
        evaluated = [
            model.evaluate(data, verbose=0, return_dict=True)
            for model, data in zip((plain, ours), datasets, strict=True)
        ]
        assert_close(evaluated[1], evaluated[0])
        predicted = [model.predict(data, verbose=0) for model, data in zip((plain, ours), datasets, strict=True)]
        assert_close(predicted[1], predicted[0])


@pytest.mark.gate_on("keras3_jax", "keras2_tf215")
@pytest.mark.parametrize("replicas", [pytest.param(1, marks=pytest.mark.exhaustive), 8])
@pytest.mark.parametrize(
    "synchronized", [False] if ON_JAX else [False, pytest.param(True, marks=pytest.mark.exhaustive)]
)
def test_moving_statistics_are_those_of_the_examples(data, scope8, replicas, synchronized):
    with scope8 if replicas == 8 else contextlib.nullcontext():
        inputs = keras.Input((6,))
        layer = keras.layers.BatchNormalization(momentum=0.0, synchronized=synchronized)
        model = kte.TPUModel(inputs, keras.layers.Dense(1)(layer(inputs)))
        model.compile(sgd(0.0), "mse")
    rows = data.x[:3]  # on eight replicas the first has three and one that is padded, and the others none
    batch = kte.data.pad_batches(sources.batched((rows, data.y[:3]), SIZE), SIZE)
    model.fit(batch, verbose=0, shuffle=False)
    expected = [rows.mean(axis=0), rows.var(axis=0)]
    if IS_KERAS2 and not synchronized and replicas == 8:  # it keeps the mean of what the replicas have
        expected = [(expected[0] + 7 * 0.0) / 8, (expected[1] + 7 * 1.0) / 8]
    np.testing.assert_allclose(layer.moving_mean.numpy(), expected[0], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(layer.moving_variance.numpy(), expected[1], rtol=1e-5, atol=1e-6)


@pytest.mark.runtimes("keras2_tf")
@pytest.mark.gate_on("keras2_tf")
def test_the_moving_variance_of_images_is_that_of_the_fused_kernel(data):
    """Of images Keras 2 keeps the variance of a sample, with Bessel's correction."""
    images, kept = data.x[:7].reshape(7, 1, 2, 3), []
    for model_class in (keras.Model, kte.TPUModel):
        inputs = keras.Input((1, 2, 3))
        layer = keras.layers.BatchNormalization(momentum=0.0)
        model = model_class(inputs, keras.layers.Dense(1)(keras.layers.Flatten()(layer(inputs))))
        model.compile(sgd(0.0), "mse")
        batches = sources.batched((images, data.y[:7]), SIZE)
        model.fit(batches if model_class is keras.Model else kte.data.pad_batches(batches, SIZE), verbose=0)
        kept.append(layer.moving_variance.numpy())
    np.testing.assert_allclose(kept[1], kept[0], rtol=1e-5)


@pytest.mark.exhaustive
def test_terms_of_add_loss_before_a_synchronised_layer(twins, data):
    """Replicas take turns in the middle of the forward pass there, and share the layers that hold the terms."""
    pair = twins(normalised, lambda: {"optimizer": sgd()})
    pair.agree(lambda model: model.fit(data.x, data.y, batch_size=40, shuffle=False, verbose=0).history["loss"])


@pytest.mark.gate_on("keras3_jax")
def test_scaled_steps_and_windows(data, scope3):
    """An inf in a real row skips the step, and windows weigh padded batches by their examples."""
    histories = []
    for padded in (False, True):
        keras.utils.set_random_seed(3)
        with scope3:
            model = dense(kte.TPUModel)
            model.compile("adam", "mse", loss_scale="dynamic", gradient_accumulation_steps=3)
        batches = sources.batched((data.x, data.y), SIZE)
        batches = kte.data.pad_batches(batches, SIZE) if padded else batches
        history = model.fit(batches, epochs=3, shuffle=False, verbose=0).history
        histories.append((history, model.get_weights(), int(keras.ops.convert_to_numpy(model.optimizer.iterations))))
    assert histories[1][2] == histories[0][2] == 6
    assert_close(histories[1][:2], histories[0][:2])


def test_predictions_without_targets(data):
    model = dense(kte.TPUModel)
    batches = sources.batched((data.x,), SIZE)
    padded = kte.data.pad_batches(batches, SIZE)
    assert_close(model.predict(padded, verbose=0), model.predict(batches, verbose=0))
    assert model.predict(padded, verbose=0).shape == (103, 1)
    single = kte.data.pad_batches(sources.batched((data.x[96:],), SIZE), SIZE)
    assert model.predict(single, verbose=0).shape == (7, 1)


@pytest.mark.gate_on("keras3_tf", "keras3_jax", "keras2_tf215")
def test_a_row_that_the_user_gave_the_weight_zero_is_an_example(data):
    weights = np.where(np.arange(len(data.x)) % 3 == 0, 0.0, data.weights).astype("float32")
    model = dense(kte.TPUModel)
    model.compile("sgd", "mse", metrics=["mae"])
    batches = kte.data.pad_batches(sources.Batches(sources.cut((data.x, data.y, weights), SIZE)), SIZE)
    evaluated = model.evaluate(batches, verbose=0, return_dict=True)
    assert len(model.predict(batches, verbose=0)) == len(data.x)
    expected = np.abs(model.predict(data.x, verbose=0) - data.y).mean()
    np.testing.assert_allclose(evaluated["mae"], expected, rtol=1e-5)


def test_plain_keras_sees_rows_of_weight_zero(data):
    """What the docstring says of other models: the update is that of a sum over the padded batch's size."""
    models = [dense(keras.Model) for _ in range(2)]
    models[1].set_weights(models[0].get_weights())
    rows = sources.batched((data.x[:16], data.y[:16]), SIZE)
    for model, rate, batches in zip(models, (0.1, 0.2), (rows, kte.data.pad_batches(rows, SIZE)), strict=True):
        model.compile(sgd(rate), "mse")
        model.fit(batches, shuffle=False, verbose=0)
    assert_close(models[1].get_weights(), models[0].get_weights())


@pytest.mark.gate_on("keras2_tf215")
@pytest.mark.parametrize(
    ("replicas", "order"),
    [
        pytest.param(replicas, order, marks=() if (replicas, order) == (3, (1, 0, 2)) else pytest.mark.exhaustive)
        for replicas in (1, 3)
        for order in itertools.permutations(range(3))
    ],
    ids=str,
)
def test_one_model_takes_batches_of_one_shape_with_weights_and_padding_in_turn(data, scope3, order, replicas):
    """TensorFlow takes iterators of a tuple and of a named tuple for the same type, and traces once for both."""
    with scope3 if replicas == 3 else contextlib.nullcontext():
        model = dense(kte.TPUModel)
        model.compile(sgd(), "mse", weighted_metrics=["mae"])
    x, y, weights = data.x[:96], data.y[:96], data.weights[:96].astype("float32")
    weights[::2] = 0.0
    cases = [
        (sources.batched((x, y, weights), SIZE, drop_remainder=True), x, weights),
        (kte.data.pad_batches(sources.batched((data.x[:71], data.y[:71]), SIZE), SIZE), x[:71], np.ones(71)),
        (kte.data.pad_batches(sources.batched((x[:71], y[:71], weights[:71]), SIZE), SIZE), x[:71], weights[:71]),
    ]
    for batches, rows, weight in [cases[i] for i in order]:
        predicted = model.predict(batches, verbose=0)
        assert len(predicted) == len(rows)
        off = np.abs(model.predict(rows, verbose=0) - y[: len(rows)])[:, 0]
        evaluated = model.evaluate(batches, verbose=0, return_dict=True)
        np.testing.assert_allclose(evaluated["loss"], np.sum(weight * off**2) / len(rows), rtol=1e-5)
        np.testing.assert_allclose(evaluated["mae"], np.sum(weight * off) / np.sum(weight), rtol=1e-5)
        before = model.get_weights()
        fitted = model.fit(batches, shuffle=False, verbose=0).history
        model.set_weights(before)
        alone = fresh_fit(before, batches)
        np.testing.assert_allclose(fitted["mae"], alone["mae"], rtol=1e-5)
        np.testing.assert_allclose(fitted["loss"], alone["loss"], rtol=1e-5)


def fresh_fit(weights, batches):
    model = dense(kte.TPUModel)
    model.set_weights(weights)
    model.compile(sgd(), "mse", weighted_metrics=["mae"])
    return model.fit(batches, shuffle=False, verbose=0).history


@pytest.mark.parametrize("steps_per_execution", [1, 4])
def test_predictions_of_a_single_execution(data, steps_per_execution):
    """Keras then joins nothing, and takes the one result for a tensor."""
    model = dense(kte.TPUModel)
    model.compile(steps_per_execution=steps_per_execution)
    x = data.x[: SIZE * steps_per_execution - 25]  # 7 or 103 examples
    padded = kte.data.pad_batches(sources.batched((x,), SIZE), SIZE)
    assert_close(model.predict(padded, verbose=0), model(x))


class Table(keras.layers.Layer):
    """Returns several rows for each example, and a table whose rows are no examples."""

    def build(self, shape):
        self.table = self.add_weight(shape=(10, 6), name="table")
        self.normalise = keras.layers.BatchNormalization(momentum=0.0)
        self.normalise.build((10, 6))

    def call(self, x, training=False):
        return ops.reshape(x, (-1, 3)), self.normalise(self.table, training=training)


def test_outputs_with_other_rows(data):
    inputs = keras.Input((6,))
    model = kte.TPUModel(inputs, list(Table()(inputs)))
    padded = kte.data.pad_batches(sources.batched((data.x,), SIZE), SIZE)
    rows, table = model.predict(padded, verbose=0)
    assert_close(rows, data.x.reshape(-1, 3))
    assert table.shape == (4 * 10, 6)  # as Keras does it: a batch's after another's


def test_a_normalised_table_has_its_own_rows(data):
    inputs, layer = keras.Input((6,)), Table()
    _, table = layer(inputs)
    model = kte.TPUModel(inputs, ops.matmul(inputs, ops.transpose(table)))
    model.compile(sgd(0.0), "mse")
    batches = kte.data.pad_batches(sources.batched((data.x, data.y), SIZE), SIZE)
    model.fit(batches, shuffle=False, verbose=0)
    assert_close(layer.normalise.moving_mean.numpy(), layer.table.numpy().mean(axis=0))


@pytest.mark.gate_on("keras3_tf", "keras3_jax")
def test_fewer_rows_than_replicas(data, scope3):
    keras.utils.set_random_seed(3)
    plain = normalised(keras.Model)
    plain.compile(sgd(), "mse")
    with scope3:
        ours = normalised(kte.TPUModel)
        ours.compile(sgd(), "mse")
    ours.set_weights(plain.get_weights())
    batches = sources.batched((data.x[:13], data.y[:13]), 5)
    plain.fit(batches, shuffle=False, verbose=0)
    ours.fit(kte.data.pad_batches(batches, 5), shuffle=False, verbose=0)
    assert_close(ours.get_weights(), plain.get_weights())


@pytest.mark.exhaustive
def test_xla_compiles_the_step(data):
    """A variable that waits for data, a metric's say, cannot be made outside the step, and XLA makes none inside."""
    models = []
    for jit_compile in (False, True):
        keras.utils.set_random_seed(3)
        model = normalised(kte.TPUModel)
        model.compile(sgd(), "mse", metrics=["mae", keras.metrics.R2Score()], jit_compile=jit_compile)
        batches = kte.data.pad_batches(sources.batched((data.x, data.y), SIZE), SIZE)
        models.append((model.fit(batches, shuffle=False, verbose=0).history, model.get_weights()))
    assert_close(models[1], models[0])


def rmse_of_batch(y, y_pred):
    return ops.sqrt(ops.mean(ops.square(y - y_pred)))


class Plain(keras.metrics.Metric):
    """A metric that takes weights and pays no attention to them."""

    def __init__(self, name="plain"):
        super().__init__(name=name)
        self.total, self.rows = (self.add_weight(name=name, initializer="zeros") for name in ("total", "rows"))

    def update_state(self, y_true, y_pred, sample_weight=None):
        self.total.assign_add(ops.sum(ops.abs(y_true - y_pred)))
        self.rows.assign_add(ops.cast(ops.shape(y_true)[0], "float32"))

    def result(self):
        return ops.divide_no_nan(self.total, self.rows)


def picture(model_class):
    inputs = keras.Input((2, 3, 1))
    return model_class(inputs, keras.layers.Conv2D(1, 1, activation="sigmoid")(inputs))


@pytest.mark.exhaustive
@pytest.mark.filterwarnings("ignore:Explicitly requested dtype int64:UserWarning")  # Keras's IoU on JAX
@pytest.mark.parametrize("replicas", [pytest.param(1, marks=pytest.mark.exhaustive), 3])
def test_metrics_of_pictures_and_of_the_users_own(data, scope3, replicas):
    """Some take no weight for each picture, some heed no weights, and some hide the examples behind one number."""
    results = []
    x = data.x.reshape(-1, 2, 3, 1)
    batches = sources.batched((x, (x > 0.3).astype("float32")), SIZE)
    for model_class, scope in ((keras.Model, None), (kte.TPUModel, scope3 if replicas == 3 else None)):
        keras.utils.set_random_seed(3)
        with scope or contextlib.nullcontext():
            model = picture(model_class)
            keras_metrics = [keras.metrics.BinaryIoU(name="iou"), keras.metrics.AUC(name="auc"), "mae"]
            model.compile(
                sgd(), "mse", metrics=[*keras_metrics, Plain(), rmse_of_batch], weighted_metrics=[Plain("w")]
            )
        given = batches if model_class is keras.Model else kte.data.pad_batches(batches, SIZE)
        results.append(model.evaluate(given, verbose=0, return_dict=True))
    assert_close(results[1], results[0])


# On JAX a step of the user's own is given a state, and updates no metric by itself.
@pytest.mark.gate_on("keras3_tf")
@pytest.mark.parametrize("where", ["compute_metrics", *([] if ON_JAX else ["train_step"])])
def test_metrics_that_the_users_code_updates(data, where):
    def build(model_class):
        class Own(model_class):
            def train_step(self, data):
                logs = super().train_step(data)
                x, y, _ = keras.utils.unpack_x_y_sample_weight(data)
                self.own.update_state(y, self(x))
                return {**logs, "own": self.own.result()}

            def compute_metrics(self, x, y, y_pred, sample_weight=None):
                logs = super().compute_metrics(x, y, y_pred, sample_weight)
                self.own.update_state(y, y_pred)
                return {**logs, "own": self.own.result()}

        delattr(Own, "compute_metrics" if where == "train_step" else "train_step")
        model = dense(Own)
        model.own = keras.metrics.MeanAbsoluteError(name="own")
        return model

    batches = sources.batched((data.x, data.y), SIZE)
    histories = []
    for model_class, given in ((keras.Model, batches), (kte.TPUModel, kte.data.pad_batches(batches, SIZE))):
        keras.utils.set_random_seed(3)
        model = build(model_class)
        model.compile(sgd(0.0), "mse", metrics=["mae"])
        histories.append(model.fit(given, shuffle=False, verbose=0).history)
    assert_close(histories[1], histories[0])
    assert_close(histories[1]["own"], histories[1]["mae"])


@pytest.mark.parametrize("kind", ["PyDataset", *(["tf.data"] if sources.HAS_TF_DATA else [])])
def test_class_weights_are_refused(data, kind):
    """Keras would read the weights of a padded batch as those of the user's, and says nothing that helps."""
    model = dense(kte.TPUModel)
    model.compile("sgd", "mse")
    arrays = (data.x, data.labels)
    batches = sources.batched(arrays, SIZE) if kind == "tf.data" else sources.Batches(sources.cut(arrays, SIZE))
    with pytest.raises(kte.errors.ArgumentError) as error:
        model.fit(kte.data.pad_batches(batches, SIZE), class_weight={0: 1.0, 1: 2.0, 2: 1.0}, shuffle=False)
    cure = {
        "tf.data": "pad_batches(dataset.map(lambda x, y: (x, y, tf.gather(weights, y))), batch_size)",
        "PyDataset": "let the PyDataset that is padded return (x, y, weights[y])",
    }
    assert str(error.value) == (
        "fit takes no class_weight with padded batches, which have sample weights already. Weigh the examples before "
        f"they are padded: {cure[kind]}."
    )
