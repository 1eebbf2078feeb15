"""`steps_per_execution="auto"` over several epochs of a `tf.data.Dataset` of unknown length."""

import keras
import pytest

from paced import assert_same, compiled, dataset, fitted

pytestmark = [pytest.mark.runtimes("keras3_tf", "keras2_tf"), pytest.mark.gate_on("keras3_tf", "keras2_tf215")]


class EveryBatch(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        pass


@pytest.mark.filterwarnings("ignore:Your input ran out of data:UserWarning")
@pytest.mark.parametrize(
    "batches", [1, *(pytest.param(number, marks=pytest.mark.exhaustive) for number in (2, 9, 10)), 21]
)
def test_a_dataset_of_unknown_length(data, batches):
    act = lambda m: m.fit(dataset(data, known=False).take(batches), epochs=4, shuffle=False, verbose=0)  # noqa: E731
    assert_same(fitted(act)[0])


@pytest.mark.filterwarnings("ignore:Your input ran out of data:UserWarning")
@pytest.mark.filterwarnings('ignore:steps_per_execution="auto" stays at 1:UserWarning')
def test_data_of_unknown_length_that_somebody_wants_batch_by_batch(data):
    """The last execution before had many steps; that says nothing about these."""
    model, recorded = compiled(), EveryBatch()
    batches = dataset(data, known=False)
    model.fit(batches, epochs=2, shuffle=False, verbose=0)
    numbers = []
    recorded.on_train_batch_end = recorded.on_test_batch_end = lambda batch, logs=None: numbers.append(batch)
    model.fit(batches, epochs=2, shuffle=False, verbose=0, callbacks=[recorded])
    model.evaluate(batches, verbose=0, callbacks=[recorded])
    assert numbers == [*range(21)] * 3
