"""What `check_parity` finds in a plain model on JAX: its numbers are right, where it can be trained at all."""

import pytest

import keras_tpu_ext as kte
from keras_tpu_ext.errors import RuntimeNotSupportedError
from plain_models import batch, build_attention, build_plain, rows_by_key, sequences

pytestmark = pytest.mark.runtimes("keras3_jax")


@pytest.mark.exhaustive
@pytest.mark.slow
def test_a_plain_model_is_right_where_the_batch_divides_and_fails_where_it_does_not():
    report = kte.check_parity(build_plain, batch(32), replicas=2, steps=1, exact=False)
    rows = rows_by_key(report)
    assert not report.ok
    assert [rows["one step", name].ok for name in ("loss", "mae", "weights")] == [True] * 3
    assert rows["an inf in one replica", "skipped step"].ok
    for tail in (
        ("uneven tail, evaluate", "all"),
        ("uneven tail, predict", "predictions"),
        ("uneven tail, fit", "all"),
    ):
        assert rows[tail].ok is False
        assert rows[tail].note.startswith("fails on 2 replicas: IndivisibleError")
    (finding,) = report.findings
    assert finding.startswith(
        "The model is a plain keras.Model: Keras gives every device an equal part of a batch, and fails on one that "
        "cannot be split evenly. Write kte.TPUModel("
    )


@pytest.mark.exhaustive
@pytest.mark.slow
def test_in_the_scope_it_is_exact():
    report = kte.check_parity(build_plain, batch(31), replicas=2, steps=1)
    assert report.ok, str(report)
    assert not report.findings


@pytest.mark.exhaustive
@pytest.mark.slow
def test_on_the_paths_of_a_tpu():
    report = kte.check_parity(build_attention, sequences(5), replicas=2, steps=1, as_on_tpu=True)
    assert report.ok, str(report)
    assert "a batch of 5 examples; the replicas take the paths of a TPU; 1 step" in str(report).replace("\n", " ")


@pytest.mark.exhaustive
@pytest.mark.slow
def test_keras_alone_on_the_paths_of_a_tpu():
    report = kte.check_parity(build_attention, sequences(4), replicas=2, steps=1, exact=False, as_on_tpu=True)
    row = rows_by_key(report)["one step", "loss"]
    assert row.ok is False
    assert row.off is None or row.off > 1e-3


def test_as_on_tpu_is_not_for_tensorflow():
    with pytest.raises(RuntimeNotSupportedError, match=r'got backend="tensorflow"\. Write backend="jax", or leave'):
        kte.check_parity(build_attention, sequences(4), replicas=2, backend="tensorflow", as_on_tpu=True)
