"""All callbacks in one `fit`: what is learned is what is learned without, to the bit, and each has its report."""

import keras
import numpy as np
import pytest

import keras_tpu_ext as kte
import sources

pytestmark = pytest.mark.gate_on("keras3_tf", "keras3_jax")

STEPS = 40
OURS = {
    "Throughput": lambda: kte.callbacks.Throughput(flops_per_sample="auto", peak_flops=1e12),
    "HostBottleneck": lambda: kte.callbacks.HostBottleneck(verbose=False),
    "Goodput": lambda: kte.callbacks.Goodput(),
    "Recompilations": lambda: kte.callbacks.Recompilations(),
    "DeviceMemory": lambda: kte.callbacks.DeviceMemory(),
    "Trace": lambda: kte.callbacks.Trace(steps=(6, 9)),
    "Watch": lambda: kte.callbacks.Watch(),
}


def learned(scope, callbacks, kind):
    keras.utils.set_random_seed(1)
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(STEPS, 8, 4)).astype("float32"), rng.normal(size=(STEPS, 8, 1)).astype("float32")
    with scope:
        model = kind(
            [keras.Input((4,)), keras.layers.Dense(5, "tanh"), keras.layers.Dropout(0.3), keras.layers.Dense(1)]
        )
        model.compile("adam", "mse")
    data = sources.Batches(list(zip(x, y, strict=True)))
    history = model.fit(data, epochs=2, verbose=0, shuffle=False, callbacks=callbacks, validation_data=data).history
    return history["loss"], history["val_loss"], model.get_weights()


@pytest.mark.parametrize(
    "order", ["as written", pytest.param("the other way round", marks=pytest.mark.gate_on("keras3_jax"))]
)
def test_nothing_that_is_learned_changes(scope4, order):
    callbacks = [make() for make in OURS.values()]
    callbacks = callbacks if order == "as written" else callbacks[::-1]
    *losses, weights = learned(scope4, callbacks, keras.Sequential)
    *same_losses, same_weights = learned(scope4, [], keras.Sequential)
    assert losses == same_losses
    for one, other in zip(weights, same_weights, strict=True):
        np.testing.assert_array_equal(one, other)
    for callback in callbacks:
        assert type(callback).__name__ in repr(callback)
        if hasattr(callback, "report"):
            assert str(callback.report())
