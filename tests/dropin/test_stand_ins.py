"""The packages that stand in for old ones compute what these did; references/make_addons.py wrote the numbers."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest

pytestmark = pytest.mark.runtimes("keras3_jax", reason="the drop-in is about JAX")

import keras
import tensorflow as tf

import keras_tpu_ext.dropin  # noqa: F401
from keras_tpu_ext.dropin.errors import OutOfReachError

sys.path.insert(0, str(Path(__file__).parent / "references"))
import addons_cases as cases  # noqa: E402

import efficientnet.tfkeras as efn  # noqa: E402
import tensorflow_addons as tfa  # noqa: E402

REFERENCES = json.loads((Path(__file__).parent / "references" / "addons.json").read_text())


def numbered(kind, table):
    """Return a test's parameters: each case with what it gave, named by its first part and its place."""
    found = REFERENCES[kind]
    assert len(found) == len(table), "run tests/dropin/references/make_addons.py"
    return pytest.mark.parametrize(
        ("case", "expected"), list(zip(table, found, strict=True)), ids=[f"{case[0]}-{i}" for i, case in enumerate(table)]
    )


def close(actual, expected, rtol=1e-5, atol=1e-6):
    """Check an array against the numbers of a reference."""
    actual = np.asarray(actual)
    np.testing.assert_allclose(actual.ravel(), np.ravel(expected), rtol=rtol, atol=atol)


@numbered("optimizers", cases.OPTIMIZERS)
def test_optimizers_take_the_steps_of_addons(case, expected):
    name, arguments, calls = case
    variables = [keras.Variable(value, name=called) for called, value in cases.VARIABLES.items()]
    optimizer = cases.optimizer(tfa, keras.optimizers, keras.optimizers.schedules, name, arguments)
    decayed = [variables[i] for i in calls.get("decay_var_list", [])]
    extra = {"decay_var_list": decayed} if decayed else {}
    for gradients, values in zip(cases.GRADIENTS, expected["steps"], strict=True):
        optimizer.apply_gradients(list(zip(gradients, variables, strict=True)), **extra)
        for variable, value in zip(variables, values, strict=True):
            close(variable, value, rtol=1e-4, atol=1e-5)
    if expected["averages"] is not None:
        optimizer.assign_average_vars(variables)
        for variable, value in zip(variables, expected["averages"], strict=True):
            close(variable, value, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("case", cases.OPTIMIZERS[::3], ids=lambda case: case[0])
def test_an_optimizer_is_made_again_from_its_config(case):
    optimizer = cases.optimizer(tfa, keras.optimizers, keras.optimizers.schedules, *case[:2])
    again = keras.optimizers.deserialize(keras.optimizers.serialize(optimizer))
    assert type(again) is type(optimizer)
    assert again.get_config() == optimizer.get_config()


@numbered("losses", cases.LOSSES)
def test_losses_are_those_of_addons(case, expected):
    import jax

    name, arguments, y_true, y_pred = case
    loss = getattr(tfa.losses, name)(**arguments)
    labels, x = cases.DATA[y_true], cases.DATA[y_pred]
    close(loss(labels, x), expected["value"], rtol=2e-5)
    gradient = jax.grad(lambda x: keras.ops.sum(loss(labels, x)))(x)
    close(gradient, expected["gradient"], rtol=2e-4, atol=2e-6)


@numbered("metrics", cases.METRICS)
def test_metrics_are_those_of_addons(case, expected):
    name, arguments, batches = case
    metric = getattr(tfa.metrics, name)(**arguments)
    for (y_true, y_pred, weights), value in zip(batches, expected, strict=True):
        metric.update_state(cases.DATA[y_true], cases.DATA[y_pred], None if weights is None else cases.DATA[weights])
        close(metric.result(), value)
    again = type(metric).from_config(metric.get_config())
    assert again.get_config() == metric.get_config()


@numbered("layers", cases.LAYERS)
def test_layers_are_those_of_addons(case, expected):
    import jax

    name, arguments, x, weights = case
    layer = cases.layer(tfa, keras.layers, name, arguments)
    x = keras.ops.convert_to_tensor(cases.DATA[x])
    layer.build(x.shape)
    if weights is not None:
        cases.fill(layer)
    trainable = [v.value for v in layer.trainable_variables]
    others = [v.value for v in layer.non_trainable_variables]

    def total(x):
        outputs, changed = layer.stateless_call(trainable, others, x)
        return keras.ops.sum(outputs**2), (outputs, changed)

    (_, (outputs, changed)), gradient = jax.value_and_grad(total, has_aux=True)(x)
    close(outputs, expected["outputs"], rtol=2e-5, atol=2e-5)
    if name != "WeightNormalization":  # whose first call has a gradient through the first batch's numbers in Addons
        close(gradient, expected["gradient"], rtol=2e-4, atol=2e-4)
    again, _ = layer.stateless_call(trainable, changed, x)
    close(again, expected["again"], rtol=2e-5, atol=2e-5)
    assert tuple(layer.compute_output_shape(x.shape)) == tuple(outputs.shape)


@numbered("activations", cases.ACTIVATIONS)
def test_activations_are_those_of_addons(case, expected):
    name, arguments = case
    close(getattr(tfa.activations, name)(keras.ops.convert_to_tensor(cases.DATA["x"]), **arguments), expected)


@numbered("images", cases.IMAGES)
@pytest.mark.parametrize("inside", ["eager", "tf.data"])
def test_images_are_those_of_addons(case, expected, inside):
    name, image, arguments = case
    image = cases.DATA[image]
    if inside == "eager":
        output = getattr(tfa.image, name)(image, **arguments)
    else:
        dataset = tf.data.Dataset.from_tensors(image).map(lambda x: getattr(tfa.image, name)(x, **arguments))
        output = next(iter(dataset))
    assert output.dtype == image.dtype
    close(output, expected, atol=1 if image.dtype == np.uint8 and "filter" in name else 1e-5)


@numbered("schedules", cases.SCHEDULES)
def test_schedules_are_those_of_addons(case, expected):
    name, arguments = case
    schedule = getattr(tfa.optimizers, name)(**arguments)
    close([float(schedule(step)) for step in cases.SCHEDULE_STEPS], expected)
