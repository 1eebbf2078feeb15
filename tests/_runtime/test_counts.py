"""How far a model has come, from counters that Keras keeps anyway."""

import keras
import numpy as np
import pytest

from keras_tpu_ext import _runtime


def compiled(**options):
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse", **options)
    return model


def fit(model, examples=10, **options):
    return model.fit(np.ones((examples, 2)), np.ones((examples, 1)), batch_size=4, verbose=0, **options)


def test_examples_and_steps_are_counted_with_a_short_last_batch():
    model = compiled()
    assert _runtime.progress.examples_seen(model) is None
    assert _runtime.progress.train_steps(model) == 0
    fit(model, epochs=2)
    assert _runtime.progress.examples_seen(model) == 10
    assert _runtime.progress.train_steps(model) == 6
    assert _runtime.devices.num_replicas(model) == 1


def test_sample_weights_do_not_change_the_count():
    model = compiled()
    fit(model, sample_weight=np.linspace(0, 1, 10))
    assert _runtime.progress.examples_seen(model) == 10


@pytest.mark.runtimes(
    "keras3_tf", "keras3_jax", reason="Keras 2: its optimizers do not accumulate, and count skipped steps"
)
@pytest.mark.parametrize("optimizer", ["accumulating", "scaling"])
def test_steps_are_those_of_the_data_not_of_the_updates(optimizer):
    inner = keras.optimizers.SGD(gradient_accumulation_steps=2 if optimizer == "accumulating" else None)
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    wrapped = keras.optimizers.LossScaleOptimizer(inner, initial_scale=2.0) if optimizer == "scaling" else inner
    model.compile(wrapped, "mse")
    fit(model)
    assert _runtime.progress.train_steps(model) == 3


def test_a_model_that_was_never_compiled_has_no_counts():
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    assert _runtime.progress.examples_seen(model) is None
    assert _runtime.progress.train_steps(model) is None


@pytest.mark.runtimes("keras3_tf", "keras3_jax", reason="Keras 2: the tracker is compiled_loss._total_loss_mean")
@pytest.mark.parametrize("count", [0.0, 2.0**24, 2.0**30])
def test_a_count_beyond_what_its_dtype_holds_exactly_is_not_believed(count):
    model = compiled()
    model._loss_tracker.count.assign(count)
    assert _runtime.progress.examples_seen(model) is None
    model._loss_tracker.count.assign(2.0**24 - 1)
    assert _runtime.progress.examples_seen(model) == 2**24 - 1
