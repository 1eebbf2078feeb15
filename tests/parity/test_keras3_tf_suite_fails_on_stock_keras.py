"""The parity suite, pointed at plain Keras under `tf.distribute`, fails where plain Keras is not exact.

So nobody need take the suite's word on trust. A test that fails here after an upgrade of Keras has good news: the
shim that it names can go.
"""

import dataclasses

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_tpu_ext as kte
from parity import check
from parity.cases import Case

pytestmark = pytest.mark.runtimes("keras3_tf")

# What it is: the case, what the check then finds or the error says, and what could go if there were nothing.
BREAKS = {
    "an uneven last batch": (Case(batches=(70, 32)), "update", "ShareOfLoss in training/loss.py"),
    "an uneven last batch, weighted": (
        Case(batches=(65, 32), weights="per example", replicas=2),
        "update",
        "ShareOfLoss in training/loss.py",
    ),
    "an uneven first batch": (Case(batches=(99, 33)), "AddN", "Keras3TensorFlowProgram.symbolic_build"),
    "masked timesteps": (Case(model="words", replicas=2), "update", "ShareOfLoss in training/loss.py"),
    "ignored classes": (Case(loss="ignored classes", replicas=2), "update", "ShareOfLoss in training/loss.py"),
    "mean_with_sample_weight where a replica has no weight": (
        Case(reduction="mean_with_sample_weight", weights="half of them zero", replicas=2),
        "update",
        "loss_sum in training/denominator.py",
    ),
    "an inf on one replica": (
        Case(scale="LossScaleOptimizer", overflow="overflow"),
        "update",
        "the reduce-first order in tensorflow/program.py",
    ),
    "clipnorm": (Case(clip="clipnorm", replicas=2), "update", "apply_gradients in keras3_tf/program.py"),
    "clipvalue": (Case(clip="clipvalue", replicas=2), "update", "apply_gradients in keras3_tf/program.py"),
    "global_clipnorm": (
        Case(clip="global_clipnorm", replicas=2),
        "update",
        "apply_gradients in keras3_tf/program.py",
    ),
    "gradient_accumulation_steps": (
        Case(accumulation="2 in optimizer", batches=(48, 8), replicas=2),
        "merge_call",
        "accumulate_or_apply in tensorflow/update.py",
    ),
    "an incomplete last window, on one replica": (
        Case(accumulation="2 in compile", replicas=1),
        "update",
        "TensorFlowProgram.make_flush",
    ),
    "add_loss per example": (
        Case(extras="add_loss per example", replicas=2),
        "update",
        "_share_of_layer_loss in tensorflow/program.py",
    ),
    "a compute_loss that needs the whole batch": (
        Case(extras="own compute_loss", replicas=2),
        "update",
        "gather_batch in tensorflow/replicas.py",
    ),
}
IN_GATE = ("an uneven last batch", "an inf on one replica")
EXACT = {
    "even batches": Case(),
    "weights, several outputs, Adam, regularizers": Case(
        model="dict", weights="per output", optimizer="Adam", extras="regularizers", metrics="metrics", replicas=2
    ),
}


def run_on_stock_keras(case):
    """Return what the check of the suite finds, with plain Keras on the replicas."""
    start, expected = check.reference(case)
    got = check.stock(case, kte.strategy_scope(require="cpu", replicas=case.replicas, exact=False), start)
    return check.differences(expected, got, start)


def repaired(what, shim):
    return f"Keras {keras.__version__} has repaired {what}: {shim} can go, and this test with it"


@pytest.mark.parametrize(
    "what", [pytest.param(what, marks=() if what in IN_GATE else pytest.mark.exhaustive) for what in BREAKS]
)
def test_the_suite_fails_where_stock_keras_is_not_exact(what):
    case, text, shim = BREAKS[what]
    try:
        found = run_on_stock_keras(case)
    except (tf.errors.InvalidArgumentError, ValueError, RuntimeError) as error:
        found = {str(error): float("inf")}
    assert any(text in name and not off < 0.01 for name, off in found.items()), repaired(what, shim)


@pytest.mark.exhaustive
@pytest.mark.parametrize("what", EXACT)
def test_the_suite_passes_where_stock_keras_is_exact(what):
    assert not run_on_stock_keras(EXACT[what])


# -- what no case of the suite shows ------------------------------------------------------------------------------


def compiled():
    inputs = keras.Input((6,))
    model = keras.Model(inputs, keras.layers.Dense(1)(inputs))
    model.compile("sgd", "mse")
    return model


def test_predict_on_batch_gives_every_row_once_for_each_replica(scope8):
    with dataclasses.replace(scope8, exact=False):
        model = compiled()
    rows = model.predict_on_batch(np.ones((16, 6), "float32")).shape[0]
    assert rows == 16 * 8, repaired("predict_on_batch", "TrainStep.predict_on_batch")


@pytest.mark.filterwarnings("ignore:Your input ran out of data; interrupting training.:UserWarning")
def test_a_step_too_many_is_counted_where_a_dataset_of_unknown_length_ends():
    model = compiled()
    x = np.ones((80, 6), "float32")
    dataset = tf.data.Dataset.from_tensor_slices((x, x[:, :1])).batch(16).filter(lambda *_: True)
    model.fit(dataset, epochs=2, verbose=0, shuffle=False)
    steps = int(model.optimizer.iterations.numpy())
    assert steps == 12, repaired("its count of steps", "_only_with in tensorflow/loop.py")
