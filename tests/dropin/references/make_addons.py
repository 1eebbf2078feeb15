"""Write addons.json: what TensorFlow Addons 0.23 computes, on TF 2.15 / Keras 2 (`.envs/keras2-tf215/bin/python`).

`tests/dropin/test_stand_ins.py` compares the stand-ins with it. The cases stand in addons_cases.py, which both read.
"""

from __future__ import annotations

import json
import logging
from pathlib import Path

import addons_cases as cases
import numpy as np
import tensorflow as tf
import tensorflow_addons as tfa

HERE = Path(__file__).parent


def listed(values):
    """Return arrays as lists, with what a float32 needs."""
    if isinstance(values, (list, tuple)):
        return [listed(value) for value in values]
    if isinstance(values, dict):
        return {name: listed(value) for name, value in values.items()}
    values = np.asarray(values)
    return values.tolist() if values.dtype != np.float32 else [float(f"{v:.8g}") for v in values.ravel()]


def optimizer_steps(name, arguments):
    """Return the variables after each step."""
    variables = [tf.Variable(value, name=f"{called}/{called}") for called, value in cases.VARIABLES.items()]
    optimizer = cases.optimizer(tfa, tf.keras.optimizers.legacy, tf.keras.optimizers.schedules, name, arguments)
    steps = []
    for gradients in cases.GRADIENTS:
        optimizer.apply_gradients(list(zip([tf.constant(g) for g in gradients], variables, strict=True)))
        steps.append([v.numpy() for v in variables])
    averages = None
    if hasattr(optimizer, "assign_average_vars"):
        optimizer.assign_average_vars(variables)
        averages = [v.numpy() for v in variables]
    return {"steps": steps, "averages": averages}


def loss_values(name, arguments, y_true, y_pred):
    """Return the loss and the gradient of its sum."""
    x = tf.constant(cases.DATA[y_pred])
    loss = getattr(tfa.losses, name)(**arguments)
    with tf.GradientTape() as tape:
        tape.watch(x)
        value = loss(tf.constant(cases.DATA[y_true]), x)
        total = tf.reduce_sum(value)
    return {"value": value.numpy(), "gradient": tape.gradient(total, x).numpy()}


def metric_values(name, arguments, batches):
    """Return the result after each batch."""
    metric = getattr(tfa.metrics, name)(**arguments)
    results = []
    for y_true, y_pred, weights in batches:
        weight = None if weights is None else tf.constant(cases.DATA[weights])
        metric.update_state(tf.constant(cases.DATA[y_true]), tf.constant(cases.DATA[y_pred]), weight)
        results.append(np.asarray(metric.result()))
    return results


def layer_values(name, arguments, x, weights):
    """Return the output of a layer, and the gradient of the sum of its squares."""
    inputs = tf.constant(cases.DATA[x])
    layer = cases.layer(tfa, tf.keras.layers, name, arguments, inputs.shape)
    layer.build(inputs.shape)
    if weights is not None:
        cases.fill(layer)
    with tf.GradientTape() as tape:
        tape.watch(inputs)
        outputs = layer(inputs)
        total = tf.reduce_sum(outputs**2)
    gradient = tape.gradient(total, inputs)
    again = layer(inputs)
    return {"outputs": outputs.numpy(), "gradient": gradient.numpy(), "again": again.numpy()}


def main():
    """Write the file."""
    logging.getLogger("tensorflow").setLevel("ERROR")
    result = {
        "optimizers": [optimizer_steps(*case) for case in cases.OPTIMIZERS],
        "losses": [loss_values(*case) for case in cases.LOSSES],
        "metrics": [metric_values(*case) for case in cases.METRICS],
        "layers": [layer_values(*case) for case in cases.LAYERS],
        "activations": [
            getattr(tfa.activations, name)(tf.constant(cases.DATA["x"]), **arguments).numpy()
            for name, arguments in cases.ACTIVATIONS
        ],
        "images": [
            getattr(tfa.image, name)(tf.constant(cases.DATA[image]), **arguments).numpy()
            for name, image, arguments in cases.IMAGES
        ],
    }
    HERE.joinpath("addons.json").write_text(json.dumps(listed(result)) + "\n")


if __name__ == "__main__":
    main()
