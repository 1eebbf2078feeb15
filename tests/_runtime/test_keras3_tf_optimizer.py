"""The second face of an optimizer takes reduced gradients; the user's optimizer stays what it is."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_tpu_ext._runtime.keras3_tf.program import without_all_reduce
from keras_tpu_ext.errors import ArgumentError

pytestmark = pytest.mark.runtimes("keras3_tf")


def scaled(**options):
    return keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(1.0, **options), initial_scale=4.0)


@pytest.fixture
def variable(scope8):
    with scope8:
        return keras.Variable(np.zeros(3, "float32"))


def step(scope8, optimizer, variable, gradient=1.0, of_replica=False):
    """Give each of eight replicas the same gradient, as if it were summed already; return the variable.

    With `of_replica` it is one that each replica has made itself, which is all that stock Keras can sum.
    """

    @tf.function(autograph=False)
    def run():
        shared = tf.fill([3], gradient)

        def apply():
            made = tf.fill([3], gradient) if of_replica else shared
            optimizer.apply_gradients([(made, variable)])

        scope8.strategy.run(apply)

    run()
    return variable.numpy()


def test_the_face_does_not_sum_again_and_the_optimizer_itself_still_does(scope8, variable):
    with scope8:
        optimizer = keras.optimizers.SGD(1.0)
        optimizer.build([variable])
    assert step(scope8, without_all_reduce(optimizer), variable) == pytest.approx(-1.0)
    assert step(scope8, optimizer, variable, of_replica=True) == pytest.approx(-9.0)


def test_the_inner_optimizer_of_loss_scaling_does_not_sum_again(scope8, variable):
    with scope8:
        optimizer = scaled()
        optimizer.build([variable])
    assert step(scope8, without_all_reduce(optimizer), variable, 4.0) == pytest.approx(-1.0)
    assert step(scope8, without_all_reduce(optimizer), variable, np.inf) == pytest.approx(-1.0)
    assert float(optimizer.dynamic_scale.numpy()) == 2.0  # the state machine of the optimizer itself has moved
    assert int(optimizer.iterations.numpy()) == 1


@pytest.mark.parametrize("make", [keras.optimizers.SGD, keras.optimizers.Nadam, scaled])
def test_the_optimizer_is_left_as_it_is(make):
    optimizer = make()
    before, own_class, config = dict(optimizer.__dict__), type(optimizer), optimizer.get_config()
    face = without_all_reduce(optimizer)
    assert type(optimizer) is own_class
    assert optimizer.__dict__.keys() == before.keys()
    assert all(optimizer.__dict__[name] is before[name] for name in before)
    assert optimizer.get_config() == config
    assert isinstance(face, own_class)
    assert type(face).__name__ == own_class.__name__
    if make is scaled:
        assert type(optimizer.inner_optimizer) is keras.optimizers.SGD


def test_all_state_is_shared():
    optimizer = keras.optimizers.Adam(0.1)
    face = without_all_reduce(optimizer)
    variable = keras.Variable(np.zeros(2, "float32"))
    face.build([variable])
    assert optimizer.built
    assert [v.path for v in optimizer.variables] == [v.path for v in face.variables]
    optimizer.learning_rate = 0.5
    assert float(face.learning_rate.numpy()) == 0.5
    face.apply_gradients([(tf.ones(2), variable)])
    assert int(optimizer.iterations.numpy()) == 1


def test_one_class_of_faces_for_each_class_of_optimizers():
    faces = [without_all_reduce(keras.optimizers.SGD()) for _ in range(2)]
    assert type(faces[0]) is type(faces[1])
    assert type(without_all_reduce(keras.optimizers.Adam())) is not type(faces[0])


def test_a_users_own_apply_is_still_called():
    class Mine(keras.optimizers.SGD):
        called = 0

        def apply_gradients(self, grads_and_vars):
            type(self).called += 1
            Mine.called = type(self).called
            return super().apply_gradients(grads_and_vars)

    variable = keras.Variable(np.zeros(2, "float32"))
    without_all_reduce(Mine(1.0)).apply_gradients([(tf.ones(2), variable)])
    assert Mine.called == 1
    assert variable.numpy() == pytest.approx(-1.0)


def test_a_loop_of_ones_own_runs_below_the_block_and_is_told_so_within(scope3):
    with scope3:
        dense, optimizer = keras.layers.Dense(1, kernel_initializer="ones"), keras.optimizers.SGD(0.5)
        dense.build((None, 2))
        optimizer.build(dense.trainable_variables)
    with tf.GradientTape(persistent=True) as tape:
        loss = tf.reduce_mean(dense(tf.ones([4, 2])))
    with scope3, pytest.raises(ArgumentError, match=r"Or write optimizer\.build"):
        tape.gradient(loss, dense.trainable_variables)
    optimizer.apply(tape.gradient(loss, dense.trainable_variables), dense.trainable_variables)
    np.testing.assert_allclose(dense.kernel.numpy(), 0.5)
