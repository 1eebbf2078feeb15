"""`steps_per_execution="auto"` changes how long executions are, and nothing that is computed."""

import keras
import numpy as np
import pytest

import keras_tpu_ext as kte
import sources
from paced import assert_same, compiled, dataset, dense, fitted

pytestmark = pytest.mark.gate_on("keras3_tf", "keras3_jax")
everywhere = pytest.mark.gate_on("keras3_tf", "keras3_jax", "keras2_tf215")


class Batches(keras.callbacks.Callback):
    """Records what an execution is said to have done."""

    wants_every_batch = False

    def __init__(self):
        super().__init__()
        self.begins, self.ends, self.test_ends = [], [], []

    def on_train_batch_begin(self, batch, logs=None):
        self.begins.append(batch)

    def on_train_batch_end(self, batch, logs=None):
        self.ends.append(batch)

    def on_test_batch_end(self, batch, logs=None):
        self.test_ends.append(batch)


class EveryBatch(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        pass


@pytest.mark.gate_on("keras2_tf215")
def test_arrays_whose_last_batch_is_short(data):
    results, model = fitted(lambda m: m.fit(data.x, data.y, batch_size=5, epochs=3, shuffle=False, verbose=0))
    assert_same(results)
    assert model.steps_per_execution > 1


@pytest.mark.gate_on("keras3_jax")
def test_replicas_and_validation(scope3, data):
    def act(model):
        return model.fit(
            data.x, data.y, batch_size=10, epochs=2, shuffle=False, verbose=0, validation_data=(data.x, data.y)
        )

    assert_same(fitted(act, scope3)[0])


@pytest.mark.gate_on("keras2_tf215")
def test_incomplete_windows_and_loss_scaling(data):
    act = lambda m: m.fit(data.x, data.y, batch_size=5, epochs=3, shuffle=False, verbose=0)  # noqa: E731
    assert_same(fitted(act, gradient_accumulation_steps=4, loss_scale="dynamic")[0])


@pytest.mark.gate_on("keras3_jax")
@pytest.mark.filterwarnings("ignore:Your input ran out of data:UserWarning")
@pytest.mark.parametrize(
    "batches", [1, *(pytest.param(number, marks=pytest.mark.exhaustive) for number in (2, 9, 10, 21))]
)
def test_data_of_unknown_length(data, batches):
    arrays = (data.x[: 5 * batches], data.y[: 5 * batches])

    def act(model):
        for _ in range(4):  # most data of unknown length is good for one epoch
            history = model.fit(sources.batched(arrays, 5, known=False), shuffle=False, verbose=0)
        return history

    assert_same(fitted(act)[0])


@pytest.mark.gate_on("keras3_jax")
def test_steps_per_epoch_on_an_endless_dataset(data):
    recorded = Batches()

    def act(model):
        endless = sources.endless((data.x, data.y), 5)
        return model.fit(endless, steps_per_epoch=13, epochs=4, shuffle=False, verbose=0, callbacks=[recorded])

    assert_same(fitted(act)[0])
    assert max(recorded.ends) == 12  # no execution reaches over the end of an epoch


@pytest.mark.exhaustive
@pytest.mark.filterwarnings("ignore:Your input ran out of data:UserWarning")
def test_steps_per_epoch_on_a_dataset_that_ends(data):
    act = lambda m: m.fit(dataset(data), steps_per_epoch=8, epochs=2, shuffle=False, verbose=0)  # noqa: E731
    assert_same(fitted(act)[0])


def test_executions_grow_and_cover_every_batch_once(data):
    model, recorded = compiled(), Batches()
    model.fit(data.x, data.y, batch_size=2, epochs=2, shuffle=False, verbose=0, callbacks=[recorded])
    # An execution that is compiled teaches nothing: the first one, and on JAX the first one of each length.
    expected = [(0, 0), (1, 1), (2, 9), (10, 51), (0, 51)]
    if keras.backend.backend() == "jax":
        expected[3:4] = [(10, 17), (18, 51)]
    assert list(zip(recorded.begins, recorded.ends, strict=True)) == expected
    assert model.steps_per_execution == 64


@pytest.mark.gate_on("keras3_jax")
def test_evaluate_takes_longer_executions_and_predict_does_not(data):
    model, recorded = compiled(), Batches()
    model.fit(data.x, data.y, batch_size=2, epochs=2, verbose=0)
    model.evaluate(data.x, data.y, batch_size=1, verbose=0, callbacks=[recorded])
    assert recorded.test_ends == [63, 102]
    predictions = model.predict(data.x, batch_size=2, verbose=0)
    np.testing.assert_allclose(predictions, model(data.x), rtol=1e-5, atol=1e-6)
    assert model.steps_per_execution == 64


@pytest.mark.gate_on("keras3_jax")
def test_a_second_fit_goes_on_with_what_was_found(data):
    model, recorded = compiled(), Batches()
    model.fit(data.x, data.y, batch_size=2, verbose=0)
    model.fit(data.x, data.y, batch_size=2, verbose=0, callbacks=[recorded])
    assert recorded.ends == [51]


@pytest.mark.gate_on("keras3_jax", "keras2_tf215")
def test_a_callback_that_asked_for_every_batch_gets_every_batch(data):
    model, recorded = compiled(), Batches()
    expected = (
        'steps_per_execution="auto" stays at 1 in this fit, because EveryBatch asked for every batch by overriding '
        "a batch hook. If it can do with one call for several batches, write in its class: "
        "wants_every_batch = False"
    )
    with pytest.warns(UserWarning, match="stays at 1") as caught:
        model.fit(data.x, data.y, batch_size=10, epochs=2, verbose=0, callbacks=[recorded, EveryBatch()])
    assert [warning.message.args[0] for warning in caught] == [expected]
    assert caught[0].filename == __file__
    assert recorded.ends == [*range(11), *range(11)]
    model.fit(data.x, data.y, batch_size=2, epochs=2, verbose=0)  # without it executions grow again
    assert model.steps_per_execution > 1


@pytest.mark.gate_on("keras3_jax")
@pytest.mark.filterwarnings("ignore:Your input ran out of data:UserWarning")
@pytest.mark.filterwarnings('ignore:steps_per_execution="auto" stays at 1:UserWarning')
def test_data_of_unknown_length_that_somebody_wants_batch_by_batch(data):
    """The last execution before had many steps; that says nothing about these."""
    model, recorded = compiled(), EveryBatch()
    for _ in range(2):
        model.fit(dataset(data, known=False), shuffle=False, verbose=0)
    numbers = []
    recorded.on_train_batch_end = recorded.on_test_batch_end = lambda batch, logs=None: numbers.append(batch)
    for _ in range(2):
        model.fit(dataset(data, known=False), shuffle=False, verbose=0, callbacks=[recorded])
    model.evaluate(dataset(data, known=False), verbose=0, callbacks=[recorded])
    assert numbers == [*range(21)] * 3


@pytest.mark.filterwarnings("ignore:Your input ran out of data:UserWarning")
@pytest.mark.parametrize(
    ("known", "hook"),
    [
        pytest.param(True, "on_train_batch_end", marks=everywhere),
        pytest.param(False, "on_train_batch_begin", marks=pytest.mark.exhaustive),
        pytest.param(True, "on_train_batch_begin", marks=pytest.mark.exhaustive),
        pytest.param(False, "on_train_batch_end", marks=pytest.mark.exhaustive),
    ],
)
def test_a_callback_that_evaluates_between_executions(data, hook, known):
    class Evaluates(keras.callbacks.Callback):
        wants_every_batch = False

        def evaluate(self, batch, logs=None):
            self.model.evaluate(dataset(data, batch_size=50, known=False), verbose=0)

    callback = Evaluates()
    setattr(callback, hook, callback.evaluate)
    model = compiled()
    fits, epochs = (1, 3) if known else (3, 1)
    for _ in range(fits):
        model.fit(dataset(data, known=known), epochs=epochs, shuffle=False, verbose=0, callbacks=[callback])
    assert int(keras.ops.convert_to_numpy(model.optimizer.iterations)) == 3 * 21


@everywhere
def test_a_call_inside_another_one_leaves_its_schedule_as_it_was(data):
    model = compiled()
    schedule = model._kte.schedule
    before = schedule.held, schedule.requested_steps, schedule.completed_steps = True, 7, 5
    model.evaluate(data.x[:30], data.y[:30], batch_size=10, verbose=0)
    assert (schedule.held, int(schedule.requested_steps), int(schedule.completed_steps)) == before


@pytest.mark.gate_on("keras3_jax")
def test_throughput_counts_every_batch_of_growing_executions(data):
    throughput = kte.callbacks.Throughput(warmup=0)
    counted = []

    class Count(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            counted.append(throughput._steps_of_epoch())

    compiled().fit(data.x, data.y, batch_size=5, epochs=3, verbose=0, callbacks=[throughput, Count()])
    assert counted == [21, 21, 21]


@pytest.mark.exhaustive
def test_eager_mode_stays_at_one(data):
    model = compiled(run_eagerly=True)
    model.fit(data.x, data.y, batch_size=20, epochs=2, verbose=0)
    assert model.steps_per_execution == 1


@pytest.mark.exhaustive
def test_on_batch_methods_go_on_working(data):
    model = compiled()
    model.fit(data.x, data.y, batch_size=2, epochs=2, verbose=0)
    assert model.train_on_batch(data.x[:10], data.y[:10], return_dict=True)["loss"] > 0


@pytest.mark.gate_on("keras3_jax")
def test_a_saved_model_still_finds_its_number(data, tmp_path):
    model = compiled()
    model.fit(data.x, data.y, batch_size=2, epochs=2, verbose=0)
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    assert loaded._kte.schedule is not None
    assert loaded.steps_per_execution == 1


@pytest.mark.parametrize("wrong", ["Auto", "automatic", 0, -1, 2.5, True, None])
def test_a_wrong_value_is_named(wrong):
    with pytest.raises(kte.errors.ArgumentError) as error:
        dense().compile("sgd", "mse", steps_per_execution=wrong)
    assert str(error.value) == (
        f'compile: `steps_per_execution` must be "auto" or an integer of at least 1; got {wrong!r}. '
        'Write steps_per_execution="auto", or leave it out.'
    )


def test_it_may_be_given_by_position():
    model = dense()
    model.compile("sgd", "mse", None, None, None, False, "auto")
    assert model._kte.schedule is not None
