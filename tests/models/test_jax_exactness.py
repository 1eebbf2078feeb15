"""What a `TPUModel` trains on JAX beyond what plain Keras can there; and steps of the user's own."""

import jax
import keras
import numpy as np
import pytest
from keras import ops

import keras_tpu_ext as kte
import sources

pytestmark = pytest.mark.runtimes("keras3_jax")


def dense(model_class):
    inputs = keras.Input((6,))
    hidden = keras.layers.Dense(5, activation="tanh")(inputs)
    return model_class(inputs, keras.layers.Dense(1)(hidden))


def fit(model, x, y, batch_size, **options):
    return model.fit(x, y, batch_size=batch_size, shuffle=False, verbose=0, **options).history


@pytest.mark.parametrize(
    ("weighted", "eagerly"),
    [
        (True, False),
        (True, True),
        pytest.param(False, False, marks=pytest.mark.exhaustive),
        pytest.param(False, True, marks=pytest.mark.exhaustive),
    ],
)
def test_a_loss_that_is_not_reduced_has_the_gradient_of_its_sum_and_shows_its_mean(scope3, data, weighted, eagerly):
    models = []
    for model_class, reduction in ((keras.Model, "sum"), (kte.TPUModel, None)):
        keras.utils.set_random_seed(3)
        with scope3:
            model = dense(model_class)
            loss = keras.losses.MeanSquaredError(reduction=reduction)
            model.compile(keras.optimizers.SGD(0.01), loss, run_eagerly=eagerly and reduction is None)
        models.append(model)
    weights = {"sample_weight": data.weights[:96]} if weighted else {}
    expected, got = (fit(model, data.x[:96], data.y[:96], 48, epochs=2, **weights)["loss"] for model in models)
    np.testing.assert_allclose(got, np.divide(expected, 48), rtol=1e-5)
    for want, have in zip(models[0].get_weights(), models[1].get_weights(), strict=True):
        np.testing.assert_allclose(have, want, rtol=1e-5, atol=1e-6)


def test_a_loss_that_is_not_reduced_counts_a_short_batch_by_its_rows(scope3, data):
    with scope3:
        model = dense(kte.TPUModel)
        model.compile(keras.optimizers.SGD(0.0), keras.losses.MeanSquaredError(reduction=None))
    expected = np.mean(np.square(model.predict(data.x, verbose=0) - data.y))
    assert fit(model, data.x, data.y, 96)["loss"] == [pytest.approx(expected, rel=1e-5)]


def test_a_loss_that_is_not_reduced_counts_no_padded_row(data):
    histories = []
    for padded in (False, True):
        keras.utils.set_random_seed(3)
        model = dense(kte.TPUModel)
        model.compile(keras.optimizers.SGD(0.01), keras.losses.MeanSquaredError(reduction=None))
        batches = sources.Batches(sources.cut((data.x, data.y), 32))
        batches = kte.data.pad_batches(batches, 32) if padded else batches
        history = model.fit(batches, epochs=2, shuffle=False, verbose=0).history["loss"]
        histories.append((history, *model.get_weights()))
    for want, have in zip(*histories, strict=True):
        np.testing.assert_allclose(have, want, rtol=1e-5, atol=1e-6)


def adds_a_key(base):
    class AddsAKey(base):
        def train_step(self, state, data):
            logs, state = super().train_step(state, data)
            return logs | {"mine": ops.convert_to_tensor(7.0)}, state

    return AddsAKey


def test_a_train_step_that_adds_to_ours(twins, data):
    classes = [adds_a_key(base) for base in (keras.Model, kte.TPUModel)]
    logs = twins(dense, lambda: {"metrics": ["mae"]}, classes).agree(
        # Where the keys are not those of the metrics, Keras's history is the last execution's: one of them here.
        lambda model: fit(model, data.x[:100], data.y[:100], 100)
    )
    assert logs["mine"] == [7.0]


def computes_its_loss(base, mean_of):
    """Return a class whose step is one of the user's own, with a mean over the batch that `mean_of` computes."""

    class ComputesItsLoss(base):
        def train_step(self, state, data):
            trainable, non_trainable, optimizer, metrics = state
            x, y = data

            def loss_of(trainable):
                y_pred, after = self.stateless_call(trainable, non_trainable, x, training=True)
                return mean_of(self, ops.mean(ops.square(y - y_pred), axis=-1)), after

            (loss, non_trainable), gradients = jax.value_and_grad(loss_of, has_aux=True)(trainable)
            trainable, optimizer = self.optimizer.stateless_apply(optimizer, gradients, trainable)
            return {"loss": loss, "twice": 2 * loss}, (trainable, non_trainable, optimizer, metrics)

    return ComputesItsLoss


@pytest.mark.parametrize("batch_size", [103, 33, 3])
@pytest.mark.parametrize("steps_per_execution", [1, 3])
def test_a_train_step_of_ones_own_sees_the_examples_alone_and_shows_its_loss(
    twins, data, batch_size, steps_per_execution
):
    classes = [
        computes_its_loss(keras.Model, lambda model, values: ops.mean(values)),
        computes_its_loss(kte.TPUModel, lambda model, values: model.global_mean(values)),
    ]
    rows = 103 if batch_size > 3 else 13
    pair = twins(dense, lambda: {"steps_per_execution": steps_per_execution}, classes)
    pair.agree(lambda model: fit(model, data.x[:rows], data.y[:rows], batch_size))


def test_a_schedule_takes_the_place_of_the_learning_rate_between_two_fits(twins, data):
    def act(model):
        first = fit(model, data.x[:96], data.y[:96], 48)["loss"]
        model.optimizer.learning_rate = keras.optimizers.schedules.ExponentialDecay(0.1, 1, 0.5)
        return first + fit(model, data.x[:96], data.y[:96], 48)["loss"]

    twins(dense).agree(act)


def test_the_optimizer_scales_the_loss_of_a_step_of_ones_own(twins, data):
    classes = [computes_its_loss(base, lambda _, values: ops.mean(values)) for base in (keras.Model, kte.TPUModel)]
    with kte.precision.policy_scope("mixed_float16"):
        pair = twins(dense, lambda: {"optimizer": keras.optimizers.SGD(1000.0)}, classes)
    # It divides gradients by a scale, with which this step should have multiplied its loss.
    pair.agree(lambda model: fit(model, data.x[:96], data.y[:96], 48)["loss"], tolerance=2**-8)


@pytest.mark.parametrize(
    "option", [{"loss_scale": 8.0}, pytest.param({"gradient_accumulation_steps": 2}, marks=pytest.mark.exhaustive)]
)
def test_a_step_of_ones_own_that_leaves_out_what_compile_was_told_is_an_error(scope3, data, option):
    with scope3:
        model = dense(computes_its_loss(keras.Model, lambda model, values: ops.mean(values)))
        model.compile("sgd", **option)
    with pytest.raises(kte.errors.ArgumentError, match=rf"`{next(iter(option))}` must be left out with a train_step"):
        fit(model, data.x, data.y, 48)
    with scope3:
        model = dense(adds_a_key(keras.Model))
        model.compile("sgd", "mse", **option)
    fit(model, data.x, data.y, 48)


@pytest.mark.parametrize("shape", [(5,), (5, 3)])
def test_global_mean_is_a_mean_over_the_elements(shape):
    values, weights = np.arange(np.prod(shape), dtype="float32").reshape(shape), np.arange(5, dtype="float32")
    model = dense(kte.TPUModel)
    assert float(model.global_mean(values)) == pytest.approx(values.mean())
    expected = (values.T * weights).T.mean()
    assert float(model.global_mean(values, weights)) == pytest.approx(expected)


class AnyId(set):
    """Ids of losses of earlier calls, one of which is that of any array that comes to be, until it is emptied."""

    emptied = False

    def __contains__(self, key):
        return not self.emptied or super().__contains__(key)

    def clear(self):
        self.emptied = True
        super().clear()


def regularized(model_class):
    x = inputs = keras.Input((6,))
    for _ in range(3):
        x = keras.layers.Dense(6, activity_regularizer=keras.regularizers.L2(0.1))(x)
    model = model_class(inputs, x)
    vars(model.layers[-1])["_loss_ids"] = AnyId()
    return model


def number_of_losses(model, x):
    weights = [variable.value for variable in model.trainable_variables]
    return len(model.stateless_call(weights, [], x, return_losses=True)[2])


def test_no_loss_of_a_layer_is_lost_because_an_id_comes_again(data):
    assert number_of_losses(regularized(kte.TPUModel), data.x) == 3
    assert number_of_losses(regularized(keras.Model), data.x) == 1, "Keras is mended: docs/upstream/lost_add_loss.md"


@pytest.mark.exhaustive
def test_all_eager_steps_have_the_losses_of_all_layers(data):
    model = regularized(kte.TPUModel)
    model.compile("sgd", "mse", run_eagerly=True)
    assert len({float(model.test_on_batch(data.x, data.x)) for _ in range(200)}) == 1
