"""What `check_parity` finds in models that are not exact on TensorFlow."""

import keras
import pytest

import keras_tpu_ext as kte
from plain_models import batch, build_plain, rows_by_key

pytestmark = pytest.mark.runtimes("keras3_tf")


def local():
    inputs = keras.Input((5,))
    hidden = keras.layers.BatchNormalization(name="norm")(keras.layers.Dense(6)(inputs))
    model = kte.TPUModel(inputs, keras.layers.Dense(1)(hidden))
    model.compile(keras.optimizers.SGD(0.1), "mse")
    return model


@pytest.mark.exhaustive
@pytest.mark.slow
def test_a_plain_model_is_caught_on_the_tail_and_on_the_inf():
    report = kte.check_parity(build_plain, batch(32), replicas=2, steps=1, exact=False)
    rows = rows_by_key(report)
    assert not report.ok
    assert str(report).startswith("2 replicas do not equal one device: ")
    assert rows["one step", "loss"].ok
    assert rows["one step", "gradients"].ok
    assert rows["uneven tail, fit", "gradients"].ok is False
    assert rows["uneven tail, fit", "gradients"].off > 0.01
    assert "most in dense" in rows["uneven tail, fit", "gradients"].note
    skipped = rows["an inf in one replica", "skipped step"]
    assert skipped.ok is False
    assert skipped.note == "one device: the step is skipped; 2 replicas: inf or NaN reaches the weights"
    (finding,) = report.findings
    assert finding.startswith("The model is a plain keras.Model")
    assert "Write kte.TPUModel(inputs, outputs), or kte.TPUModel.from_model(model)" in finding


@pytest.mark.exhaustive
@pytest.mark.slow
def test_in_the_scope_it_is_exact():
    report = kte.check_parity(build_plain, batch(31), replicas=2, steps=1)
    assert report.ok, str(report)
    assert not report.findings


@pytest.mark.exhaustive
@pytest.mark.slow
def test_a_normalisation_that_sees_its_replica_only_is_named_with_the_cure():
    report = kte.check_parity(local, batch(32), replicas=2, steps=1)
    assert not report.ok
    assert rows_by_key(report)["one step", "gradients"].off > 1e-3
    (finding,) = report.findings
    assert finding.startswith("BatchNormalization 'norm' ")
    assert "sees only its replica" in finding
    assert finding.endswith("Write keras.layers.BatchNormalization(..., synchronized=True).")
