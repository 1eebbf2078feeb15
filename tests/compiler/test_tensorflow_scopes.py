"""Models that were made in a scope: of one replica as any other, of several they are refused with what to do."""

import keras
import numpy as np
import pytest

import keras_tpu_ext as kte

pytestmark = pytest.mark.runtimes("keras3_tf", "keras2_tf")

DATA = np.zeros((64, 256), "float32"), np.zeros((64, 256), "float32")


def model_in(scope, exact):
    with scope:
        inputs = keras.Input((256,))
        kind = kte.TPUModel if exact else keras.Model
        model = kind(inputs, keras.layers.Dense(256)(inputs), name="scoped")
        model.compile("adam", "mse")
    return model


@pytest.mark.parametrize("exact", [True, False])
def test_a_model_of_one_replica(exact, tmp_path):
    model = model_in(kte.strategy_scope(require="cpu"), exact)
    report = kte.preflight(model, DATA, "v5e-4", cache_dir=tmp_path, progress=False)
    assert report.ok, str(report)
    assert report.collectives.count >= 1


def test_a_model_of_several_replicas_is_refused_with_what_to_do(tmp_path):
    model = model_in(kte.strategy_scope(require="cpu", replicas=8), exact=True)
    report = kte.preflight(model, DATA, "v5e-4", cache_dir=tmp_path, progress=False)
    assert not report.ok
    assert report.fault.cause.startswith("'scoped' was made on 8 replicas, and preflight makes those of the target")
    assert report.fault.cure.startswith("make it outside of strategy_scope()")
