"""What plain Keras 3 does in the same places under `tf.distribute`: it is why `TPUModel` is there.

Each of these tests asserts the failure. One that fails after an upgrade of Keras has good news: the shim that
it names can go.
"""

import keras
import numpy as np
import pytest
import tensorflow as tf


def dense(model_class=keras.Model):
    inputs = keras.Input((6,))
    hidden = keras.layers.Dense(5, activation="tanh")(inputs)
    return model_class(inputs, keras.layers.Dense(1)(hidden))


def compiled(**options):
    model = dense()
    model.compile(**{"optimizer": keras.optimizers.SGD(1.0), "loss": "mse"} | options)
    return model


def repaired(what, shim):
    return f"Keras {keras.__version__} {what}: {shim} can go, and this test with it"


def test_an_uneven_first_batch_crashes(scope8, data):
    with scope8:
        model = compiled()
    try:
        model.fit(data.x[:100], data.y[:100], batch_size=100, verbose=0)
    except (tf.errors.InvalidArgumentError, ValueError) as error:
        assert "AddN" in str(error)  # noqa: PT017
    else:
        pytest.fail(repaired("takes an uneven first batch", "TrainStep._maybe_symbolic_build in keras3_tf.py"))


@pytest.mark.parametrize("weighted", [False, True])
def test_the_update_is_far_off_when_the_last_batch_is_short(twins, data, weighted):
    def build(model_class):
        inputs = keras.Input((6,))
        return model_class(inputs, keras.layers.Dense(1)(inputs))

    pair = twins(build, lambda: {"optimizer": keras.optimizers.SGD(0.1)}, (keras.Model, keras.Model))
    weights = data.weights[:100] if weighted else None
    for model in (pair.plain, pair.ours):
        model.fit(data.x[:100], data.y[:100], batch_size=96, sample_weight=weights, shuffle=False, verbose=0)
    assert pair.off() > 0.01, repaired("gives the global mean", "ShareOfLoss in _keras3_loss.py")
    with pytest.raises(AssertionError, match="off by"):
        pair.agree(lambda model: 0.0)  # the check of test_exactness.py sees it


def test_predict_on_batch_gives_every_row_once_for_each_replica(scope8, data):
    with scope8:
        model = compiled()
    rows = model.predict_on_batch(data.x[:16]).shape[0]
    assert rows == 16 * 8, repaired(
        "splits a batch in predict_on_batch", "TrainStep.predict_on_batch in keras3_tf.py"
    )


@pytest.mark.filterwarnings("ignore:Your input ran out of data; interrupting training.:UserWarning")
def test_a_step_too_many_is_counted_where_a_dataset_of_unknown_length_ends(data):
    model = compiled()
    dataset = tf.data.Dataset.from_tensor_slices((data.x[:80], data.y[:80])).batch(16).filter(lambda *_: True)
    model.fit(dataset, epochs=2, verbose=0, shuffle=False)
    steps = int(model.optimizer.iterations.numpy())
    assert steps == 12, repaired("counts its steps right", "_only_with in _tf_loop.py")


def test_an_inf_on_one_replica_spoils_the_weights(scope8, data):
    with scope8:
        inner = keras.optimizers.SGD(1.0)
        model = compiled(optimizer=keras.optimizers.LossScaleOptimizer(inner, initial_scale=2.0))
    y = data.y[:96].copy()
    y[12:24] = np.inf  # all of replica 1's examples
    model.fit(data.x[:96], y, batch_size=96, shuffle=False, verbose=0)
    finite = all(np.isfinite(weights).all() for weights in model.get_weights())
    assert not finite, repaired("looks at all replicas for an inf", "the reduce-first order in _tf_step.py")
