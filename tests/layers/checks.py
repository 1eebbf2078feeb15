"""What the tests of every layer do, on every runtime."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import keras
import numpy as np

from keras_tpu_ext._runtime.common.select import chosen
from layers.catalogue import Row


def tensor(values: Any, dtype: str | None = None) -> Any:
    """Return a tensor of an array."""
    values = keras.ops.convert_to_tensor(values)
    return values if dtype is None else keras.ops.cast(values, dtype)


def array(tensor: Any) -> np.ndarray:
    """Return a tensor in NumPy, of a dtype that NumPy has."""
    return np.asarray(keras.ops.convert_to_numpy(keras.ops.cast(tensor, "float32")))


def dtype_of(tensor: Any) -> str:
    """Return the name of the dtype of a tensor, a variable or a symbolic tensor."""
    return str(getattr(tensor.dtype, "name", tensor.dtype))


def some_inputs(row: Row) -> np.ndarray:
    """Return inputs for a layer: numbers of both signs, or small whole ones, of which some are 0."""
    rng = np.random.default_rng(5)
    if np.issubdtype(row.dtype, np.floating):
        return rng.normal(0.5, 2.0, size=row.shape).astype(row.dtype)
    return rng.integers(0, 4, size=row.shape).astype(row.dtype)


def check_layer(row: Row, folder: Path) -> None:
    """Check that a layer does what Keras asks of any layer; `folder` is where it may save a model."""
    inputs = some_inputs(row)
    _check_shapes_and_weights(row, inputs)
    for policy in ("float32", "mixed_bfloat16", "mixed_float16"):
        _check_dtypes(row, inputs, policy)
    _check_masking(row, inputs)
    _check_config(row)
    _check_training_and_saving(row, inputs, folder)


def _make(row: Row, **options: Any) -> Any:
    return row.layer(**(row.options | options))


def _check_shapes_and_weights(row: Row, inputs: np.ndarray) -> None:
    expected = row.output_shape or row.shape
    built = _make(row)
    built.build(row.shape)
    called = _make(row)
    output = called(keras.ops.convert_to_tensor(inputs), **row.call)
    for layer in (built, called):
        assert layer.built
        assert len(layer.trainable_weights) == row.trainable
        # On Keras 3 the state of a seed generator is no weight; on Keras 2 it is a variable of the generator.
        assert len(layer.non_trainable_weights) == row.non_trainable
    assert tuple(output.shape) == expected
    assert tuple(_make(row).compute_output_shape(row.shape)) == expected
    symbolic = _make(row)(keras.Input(row.shape[1:], dtype=row.dtype), **row.call)
    assert tuple(symbolic.shape) == (None, *expected[1:])


def _check_dtypes(row: Row, inputs: np.ndarray, policy: str) -> None:
    layer = _make(row, dtype=policy)
    compute = {"mixed_bfloat16": "bfloat16", "mixed_float16": "float16"}.get(policy, policy)
    symbolic = layer(keras.Input(row.shape[1:], dtype=row.dtype), **row.call)
    output = layer(keras.ops.convert_to_tensor(inputs), **row.call)
    assert dtype_of(symbolic) == dtype_of(output), policy
    if np.issubdtype(row.dtype, np.floating) or row.trainable:
        assert dtype_of(output) == (row.dtype if row.keeps_dtype else compute)
    assert {dtype_of(weight) for weight in layer.weights} <= {"float32", "int32"}
    assert np.isfinite(array(output)).all()


def _check_masking(row: Row, inputs: np.ndarray) -> None:
    layer = _make(row)
    assert layer.supports_masking is row.masks
    if row.masks and len(row.shape) > 2:
        mask = keras.ops.convert_to_tensor(np.arange(np.prod(row.shape[:-1])).reshape(row.shape[:-1]) % 3 > 0)
        assert layer.compute_mask(keras.ops.convert_to_tensor(inputs), mask) is mask


def _check_config(row: Row) -> None:
    layer = _make(row)
    config = layer.get_config()
    assert row.options.items() <= config.items()
    json.dumps(config)  # what a model file holds
    again = row.layer.from_config(config)
    assert type(again) is row.layer
    assert again.get_config() == config
    if row.saved_as is None:
        assert keras.saving.get_registered_name(row.layer) == f"keras_tpu_ext>{row.layer.__name__}"


def _check_training_and_saving(row: Row, inputs: np.ndarray, folder: Path) -> None:
    symbols = keras.Input(row.shape[1:], dtype=row.dtype)
    layer = _make(row, name="checked")
    output = keras.layers.Flatten()(layer(symbols, **row.call))
    model = keras.Model(symbols, keras.layers.Dense(2)(output))
    model.compile("sgd", "mse")
    before = [array(weight) for weight in layer.trainable_weights]
    # Each row has a target of its own: what a normalisation has before it learns has no part in a common one.
    targets = np.arange(2 * row.shape[0], dtype="float32").reshape(-1, 2) ** 2
    loss = model.train_on_batch(inputs, targets)
    assert np.isfinite(loss).all()
    for old, weight in zip(before, layer.trainable_weights, strict=True):
        assert np.isfinite(array(weight)).all()
        assert np.abs(array(weight) - old).max() > 0, weight.name
    path = folder / "model.keras"
    model.save(path)
    loaded = keras.models.load_model(path)
    assert type(loaded.get_layer("checked")) is (row.saved_as or row.layer)
    assert loaded.get_layer("checked").get_config() == layer.get_config()
    for got, expected in zip(loaded.get_weights(), model.get_weights(), strict=True):
        np.testing.assert_array_equal(got, expected)
    if not row.draws:
        np.testing.assert_array_equal(loaded.predict(inputs, verbose=0), model.predict(inputs, verbose=0))


def call_and_differentiate(
    layer: Any, inputs: Any, upstream: np.ndarray, *, compiled: bool = False, **call: Any
) -> tuple[Any, list[Any]]:
    """Return the outputs of a built layer, and the gradients of `sum(outputs * upstream)`.

    The gradients are those of `inputs` and then of the trainable weights. What the call makes of the weights that
    are not trained is kept in `layer`.
    """
    inputs = keras.ops.convert_to_tensor(inputs)
    if chosen() == "keras3_jax":
        return _on_jax(layer, inputs, upstream, compiled, call)
    import tensorflow as tf

    def both(inputs):
        with tf.GradientTape() as tape:
            tape.watch(inputs)
            outputs = layer(inputs, **call)
            total = tf.reduce_sum(tf.cast(outputs, upstream.dtype) * upstream)
        trained = [getattr(weight, "value", weight) for weight in layer.trainable_weights]
        trained = layer.trainable_weights if chosen() == "keras2_tf" else trained
        return outputs, tape.gradient(total, [inputs, *trained], unconnected_gradients="zero")

    return (tf.function(both) if compiled else both)(inputs)


def _on_jax(layer: Any, inputs: Any, upstream: np.ndarray, compiled: bool, call: dict[str, Any]) -> Any:
    import jax

    others = [variable.value for variable in layer.non_trainable_variables]

    def total(inputs, trained):
        outputs, after = layer.stateless_call(trained, others, inputs, **call)
        return (outputs.astype(upstream.dtype) * upstream).sum(), (outputs, after)

    differentiated = jax.grad(total, argnums=(0, 1), has_aux=True)
    differentiated = jax.jit(differentiated) if compiled else differentiated
    trained = [variable.value for variable in layer.trainable_variables]
    (of_inputs, of_trained), (outputs, after) = differentiated(inputs, trained)
    for variable, value in zip(layer.non_trainable_variables, after, strict=True):
        variable.assign(value)
    return outputs, [of_inputs, *of_trained]


def differentiate_twice(layer: Any, inputs: Any, upstream: np.ndarray, **call: Any) -> Any:
    """Return the gradient of the sum of the squared gradient of `sum(outputs * upstream)` to `inputs`."""
    inputs = tensor(inputs)
    if chosen() == "keras3_jax":
        import jax

        variables = [[variable.value for variable in kind] for kind in _variables(layer)]

        def slope(inputs):
            return jax.grad(lambda x: (layer.stateless_call(*variables, x, **call)[0] * upstream).sum())(inputs)

        return jax.grad(lambda x: (slope(x) ** 2).sum())(inputs)
    import tensorflow as tf

    with tf.GradientTape() as outer:
        outer.watch(inputs)
        with tf.GradientTape() as inner:
            inner.watch(inputs)
            total = tf.reduce_sum(layer(inputs, **call) * upstream)
        penalty = tf.reduce_sum(inner.gradient(total, inputs) ** 2)
    return outer.gradient(penalty, inputs, unconnected_gradients="zero")


def _variables(layer: Any) -> tuple[Any, Any]:
    return layer.trainable_variables, layer.non_trainable_variables
