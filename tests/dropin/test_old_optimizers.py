"""Optimizers of old Keras against the numbers of Keras 2.15."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from dropin.old_keras_cases import EXPECTED, assert_same, cases
from keras_tpu_ext.dropin import OutOfReachError, report

pytestmark = pytest.mark.runtimes("keras3_jax")


@pytest.mark.parametrize("name", cases.OPTIMIZERS)
def test_optimizer_trains_as_then(name):
    assert_same(cases.optimizer_case(name), EXPECTED[f"optimizer {name}"])


@pytest.mark.parametrize("where", ["optimizers", "optimizers.legacy", "optimizers.experimental"])
@pytest.mark.parametrize("root", ["tf.keras", "keras", "tf"])
def test_all_spellings_are_one_class(root, where):
    module = {"tf.keras": tf.keras, "keras": keras, "tf": tf}[root]
    for part in where.split("."):
        module = getattr(module, part)
    assert module.Adam is keras.optimizers.Adam


def test_from_imports():
    from keras.optimizers import Adam
    from tensorflow.keras import optimizers
    from tensorflow.keras.optimizers import legacy

    assert Adam is optimizers.Adam is legacy.Adam


@pytest.mark.parametrize(
    "rate", [1, np.float32(1), tf.constant(1.0), tf.Variable(1.0)], ids=lambda r: type(r).__name__
)
def test_rate_may_be_any_number(rate):
    assert float(keras.optimizers.SGD(rate).lr) == 1.0


def test_rate_is_read_and_set_by_its_old_name():
    optimizer = tf.keras.optimizers.Adam(lr=0.5)
    assert float(optimizer.lr) == optimizer.lr.numpy() == 0.5
    optimizer.lr = 0.25
    assert float(optimizer.learning_rate) == 0.25
    tf.keras.backend.set_value(optimizer.lr, 0.125)
    assert tf.keras.backend.get_value(optimizer.lr) == 0.125


@pytest.mark.parametrize("name", ["Adam", "adam", "SGD", "sgd", "nadam", "RMSprop", "rmsprop", "Adagrad"])
def test_names_of_any_case(name):
    assert type(keras.optimizers.get(name)).__name__.lower() == name.lower()


def test_decay_of_a_schedule_is_refused():
    schedule = tf.keras.optimizers.schedules.ExponentialDecay(0.1, 10, 0.5)
    with pytest.raises(ValueError, match=r"decay=0\.1 needs a learning rate that is a number.*Write the decay into"):
        keras.optimizers.SGD(schedule, decay=0.1)
    assert keras.optimizers.SGD(schedule, decay=0.0).learning_rate is not None


def test_rate_of_the_next_step_by_its_private_name():
    optimizer = keras.optimizers.SGD(lr=0.1, decay=0.5)
    optimizer.iterations.assign(2)
    assert float(optimizer._decayed_lr(tf.float32)) == pytest.approx(0.05)
    schedule = keras.optimizers.schedules.PiecewiseConstantDecay([1], [0.1, 0.01])
    optimizer = keras.optimizers.SGD(schedule)
    optimizer.iterations.assign(2)
    assert float(optimizer._decayed_lr(tf.float32)) == pytest.approx(0.01)


def test_decay_is_told_and_saved():
    optimizer = keras.optimizers.SGD(lr=0.1, decay=0.01)
    assert "decay=0.01" in report.summary()
    again = keras.optimizers.SGD.from_config(optimizer.get_config())
    assert again.get_config()["decay"] == 0.01
    assert "decay" not in keras.optimizers.SGD(0.1).get_config()


class Warmup(tf.keras.optimizers.schedules.LearningRateSchedule):
    """The schedule of the transformer's tutorial."""

    def __init__(self, size, warmup=4):
        super().__init__()
        self.size = tf.cast(size, tf.float32)
        self.warmup = warmup

    def __call__(self, step):
        step = tf.cast(step, tf.float32)
        return tf.math.rsqrt(self.size) * tf.math.minimum(tf.math.rsqrt(step + 1), step * self.warmup**-1.5)


def test_own_schedule_in_ops_of_tensorflow():
    model = cases.small_model()
    model.compile(tf.keras.optimizers.Adam(Warmup(8)), "mse")
    history = model.fit(cases.values(8, 4), cases.values(8, 1), batch_size=2, epochs=2, verbose=0).history
    assert history["loss"][1] < history["loss"][0]


def test_old_subclass_is_out_of_reach():
    class Own(tf.keras.optimizers.Optimizer):
        def _resource_apply_dense(self, grad, var, apply_state=None):
            return var.assign_sub(grad)

    with pytest.raises(OutOfReachError, match=r"Own\._resource_apply_dense cannot run on JAX.*update_step\(self"):
        Own(lr=0.1)


def test_optimizers_of_tensorflow_1():
    optimizer = tf.compat.v1.train.AdamOptimizer(0.1, beta1=0.8)
    model = cases.small_model()
    model.compile(optimizer, "mse")
    assert isinstance(model.optimizer, keras.optimizers.Adam)
    config = model.optimizer.get_config()
    expected = [0.1, 0.8, 1e-8]
    np.testing.assert_allclose([config[k] for k in ("learning_rate", "beta_1", "epsilon")], expected, rtol=1e-6)
    with pytest.raises(OutOfReachError, match=r"tf\.compat\.v1\.train\.FtrlOptimizer cannot run on JAX"):
        model.compile(tf.compat.v1.train.FtrlOptimizer(0.1), "mse")


def test_loss_scale_of_experimental_mixed_precision():
    made = keras.mixed_precision.LossScaleOptimizer(keras.optimizers.SGD(0.1), loss_scale="dynamic")
    assert isinstance(made.inner_optimizer, keras.optimizers.SGD)
    with pytest.raises(OutOfReachError, match="LossScaleOptimizer"):
        keras.mixed_precision.LossScaleOptimizer(keras.optimizers.SGD(0.1), loss_scale=128.0)


def test_loss_scale_of_keras_2():
    """Its second argument was `dynamic`; that of Keras 3 is `initial_scale`, which still is what it is."""
    scaled = keras.mixed_precision.LossScaleOptimizer
    assert scaled(keras.optimizers.SGD(0.1), True).initial_scale == scaled(keras.optimizers.SGD(0.1)).initial_scale
    assert scaled(keras.optimizers.SGD(0.1), 64.0).initial_scale == 64
    with pytest.raises(OutOfReachError, match="dynamic=False"):
        scaled(keras.optimizers.SGD(0.1), False, 64.0)


def test_ordinary_optimizers_are_as_before():
    optimizer = keras.optimizers.Adam(0.01, 0.8, 0.9, 1e-6)
    config = optimizer.get_config()
    assert (config["beta_1"], config["beta_2"], config["epsilon"]) == (0.8, 0.9, 1e-6)
    assert keras.optimizers.Adam.from_config(config).get_config() == config
    with pytest.raises(ValueError, match="not recognized"):
        keras.optimizers.Adam(0.01, nothing=1)


@pytest.mark.parametrize("name", ["lr", "learning_rate"])
def test_a_rate_among_the_metrics_is_refused(name):
    optimizer = keras.optimizers.SGD(0.1)
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    model.compile(optimizer, "mse", metrics=[lambda y_true, y_pred: getattr(optimizer, name)])
    with pytest.raises(OutOfReachError, match=r"optimizer\.lr in a metric.*Write instead: metrics=.*logs\["):
        model.fit(np.ones((4, 1)), np.ones((4, 1)), verbose=0)


def test_the_rate_of_a_schedule_is_told(capsys):
    report._USES.pop(("optimizer.lr of a schedule", "the rate of the next step; Keras 2.15 gave that of the last"), 0)
    optimizer = keras.optimizers.SGD(keras.optimizers.schedules.ExponentialDecay(0.1, 1, 0.5))
    optimizer.iterations.assign(2)
    assert float(optimizer.lr) == pytest.approx(0.025)
    assert "optimizer.lr of a schedule -> the rate of the next step" in capsys.readouterr().out
