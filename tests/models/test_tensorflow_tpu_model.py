"""What `TPUModel` refuses on TensorFlow, where variables belong to the strategy they were made in."""

import keras
import pytest

import keras_tpu_ext as kte
from keras_tpu_ext.errors import ScopeError

pytestmark = [pytest.mark.runtimes("keras3_tf", "keras2_tf"), pytest.mark.gate_on("keras3_tf", "keras2_tf215")]


def functional():
    inputs = keras.Input((6,))
    return kte.TPUModel(inputs, keras.layers.Dense(1)(inputs))


def test_the_optimizer_belongs_to_the_models_strategy(scope3):
    with scope3:
        model = functional()
    assert model.distribute_strategy is scope3.strategy
    model.compile("adam", "mse")
    assert model.optimizer._distribution_strategy is scope3.strategy


def test_an_optimizer_made_outside_the_scope_is_refused(scope3):
    with scope3:
        model = functional()
    with pytest.raises(ScopeError) as error:
        model.compile(keras.optimizers.Adam(), "mse")
    assert str(error.value) == (
        "The optimizer must be made inside the model's strategy_scope() so that its state is mirrored on all 3 "
        "replicas; this Adam was made outside. Write: with scope: optimizer = keras.optimizers.Adam(...), or pass "
        "its name, model.compile('adam', ...)."
    )


def test_an_inner_optimizer_made_outside_the_scope_is_refused(scope3):
    inner = keras.optimizers.SGD()
    with scope3:
        model = functional()
        optimizer = keras.optimizers.LossScaleOptimizer(inner)
    with pytest.raises(ScopeError, match="this SGD was made outside"):
        model.compile(optimizer, "mse")


@pytest.mark.runtimes("keras3_tf", "keras3_jax", reason="Keras 2: refuses them itself")
def test_layers_made_outside_the_scope_are_refused(scope3):
    layer = keras.layers.Dense(1, name="early")
    layer.build((None, 6))
    with scope3:
        inputs = keras.Input((6,))
        model = kte.TPUModel(inputs, layer(inputs), name="late")
    with pytest.raises(ScopeError) as error:
        model.compile("sgd", "mse")
    assert str(error.value) == (
        "All layers of 'late' must be made inside its strategy_scope(), so that each of the 3 replicas has its copy; "
        "the variable 'early/kernel' was made outside. Write: with scope: ... around the lines that make the layers."
    )
