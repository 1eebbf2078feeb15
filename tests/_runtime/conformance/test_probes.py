import importlib.util
import time

import keras
import numpy as np
import pytest

import keras_tpu_ext as kte
from keras_tpu_ext import _runtime
from keras_tpu_ext._runtime.common.lowering import LoweringError
from keras_tpu_ext.callbacks._xplane import read_xplane
from kind_of_keras import tensorflow_version

devices, models, probes, watches = _runtime.devices, _runtime.models, _runtime.probes, _runtime.watches


class Around(keras.callbacks.Callback):
    """Intercepts the executions of a fit, and counts the FLOPs of a step once it has seen one."""

    def __init__(self):
        super().__init__()
        self.steps, self.flops, self.interception = [], None, None

    def on_train_begin(self, logs=None):
        self.interception = None

    def on_epoch_begin(self, epoch, logs=None):
        if self.interception is None:
            self.interception = probes.intercept_executions(self.model, self.around)
            self.interception.begin()

    def around(self, execution):
        self.steps.append(execution.steps)
        result, _ = execution.run_watched(probes.watch_compiles())
        (self.batch,) = execution.batches()
        return result

    def on_epoch_end(self, epoch, logs=None):
        self.flops = probes.count_flops(self.model, self.batch, 4)

    def on_train_end(self, logs=None):
        self.interception.undo()


def test_executions_go_through_and_their_flops_are_counted(make, rows):
    x, y = rows
    model, around = make(kte.TPUModel), Around()
    model.fit(x[:8], y[:8], batch_size=4, epochs=1, verbose=0, callbacks=[around])
    assert around.steps[:2] == [1, 1]
    assert not hasattr(model.train_function, "by")
    # Each layer forward and for its weights, and the second for what it gets.
    assert around.flops == (pytest.approx(2 * (2 * 3 * 2 + 3 * 1 * 3)), 4)


def test_recorded_gradients_are_those_of_the_batch(rows):
    x, y = rows
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1, kernel_initializer="ones")])
    model.compile(keras.optimizers.SGD(0.1), "mse")
    read = models.record_gradients(model)
    before = model.get_weights()
    model.fit(x, y, batch_size=10, shuffle=False, verbose=0)
    kernel, bias = read()
    error = x.sum(axis=1, keepdims=True) - y
    np.testing.assert_allclose(kernel, 2 * x.T @ error / 10, rtol=1e-5)
    np.testing.assert_allclose(bias, 2 * error.mean(axis=0), rtol=1e-5)
    for old, new in zip(before, model.get_weights(), strict=True):
        np.testing.assert_array_equal(new, old)


def test_a_watched_step_notes_what_is_not_finite(make):
    model = make(kte.TPUModel, loss_scale=kte.LossScale(initial=8.0))
    read = watches.watch_overflow(model)
    model.fit(np.ones((4, 2), "float32"), np.full((4, 1), np.inf, "float32"), verbose=0)
    if read is not None:
        (overflow,) = read()
        assert (overflow.update, overflow.of) == (1, 4)
        assert any("out" in name for name in overflow.variables)
    watches.unwatch(model)
    model.fit(np.ones((4, 2), "float32"), np.full((4, 1), np.inf, "float32"), verbose=0)


def test_a_watched_step_notes_the_first_loss_that_is_not_finite(make):
    model = make(kte.TPUModel)
    read = watches.watch_not_finite(model)
    x, y = np.ones((12, 2), "float32"), np.ones((12, 1), "float32")
    y[5] = np.inf
    model.fit(x, y, batch_size=4, shuffle=False, verbose=0)
    found = read()
    assert (found.steps, found.step, found.of, found.weights, found.batch_finite) == (3, 1, 4, (), False)
    watches.unwatch(model)
    assert len(watches.not_finite_weights(model)) > 0
    assert watches.watch_not_finite(make(keras.Model)) is None


def test_finite_weights_are_not_named(plain):
    assert watches.not_finite_weights(plain) == []
    kernel = plain.get_layer("out").kernel
    before = np.array(kernel.numpy())
    kernel.assign(np.full((3, 1), np.inf, "float32"))
    assert watches.not_finite_weights(plain) == ["out/kernel"]
    kernel.assign(before)


class Shape:
    def __init__(self, *shape):
        self.shape, self.dtype = shape, "float32"


BATCH = (Shape(4, 2), Shape(4, 1))


@pytest.mark.parametrize(
    "kind",
    [pytest.param("TPUModel", marks=pytest.mark.gate_on("keras3_tf", "keras3_jax", "keras2_tf221")), "keras.Model"],
)
def test_a_step_is_lowered_for_tpus(make, kind):
    model = make(kte.TPUModel if kind == "TPUModel" else keras.Model)
    if tensorflow_version() < (2, 19):
        with pytest.raises(LoweringError, match="cannot write what the TPU compiler reads"):
            probes.lower_step(model, BATCH, devices.abstract_strategy(2), "TPU v5 lite")
        return
    lowered = probes.lower_step(model, BATCH, devices.abstract_strategy(2), "TPU v5 lite")
    assert lowered.examples == 4
    assert lowered.program
    assert {"hidden", "out"} <= set(lowered.layers)


@pytest.mark.gate_on("keras3_tf", "keras3_jax")
def test_all_programs_of_a_fit_are_lowered_on_jax(make):
    model = make(kte.TPUModel)
    if keras.backend.backend() != "jax":
        with pytest.raises(LoweringError, match="takes none that was compiled elsewhere"):
            probes.lower_programs(model, BATCH, devices.abstract_strategy(2), "TPU v5 lite")
        return
    found = probes.lower_programs(model, BATCH, devices.abstract_strategy(2), "TPU v5 lite")
    assert {"train", "evaluate", "predict"} <= {one.name for one in found}
    assert len({one.digest for one in found}) == len(found)


@pytest.mark.skipif(importlib.util.find_spec("libtpu") is None, reason="the TPU compiler is not installed")
@pytest.mark.skipif(tensorflow_version() < (2, 19), reason="TensorFlow cannot write what the TPU compiler reads")
def test_the_compiler_at_hand_takes_a_step(make):
    report = kte.preflight(make(keras.Model), (np.ones((8, 2)), np.ones((8, 1))), cache_dir=False, progress=False)
    assert report.fault is None
    assert report.ok


def test_an_abstract_model_has_shapes(make):
    model = probes.call_abstractly(lambda: make(keras.Model))
    assert [tuple(weight.shape) for weight in model.weights] == [(2, 3), (3,), (3, 1), (1,)]


def test_a_watch_counts_the_seconds_of_compiling(make, rows):
    x, y = rows
    model, watch = make(kte.TPUModel), probes.watch_compiles()
    assert watch.seconds() == 0.0
    began = time.perf_counter()
    model.train_on_batch(x[:4], y[:4])
    seconds = watch.seconds()
    assert 0.01 < seconds < time.perf_counter() - began
    model.train_on_batch(x[:4], y[:4])
    assert watch.seconds() == seconds
    assert probes.watch_compiles().seconds() == 0.0


def test_constants_are_those_that_layers_have(make):
    constants = models.constants_of(make(keras.Model))
    assert (constants["hidden.units"], constants["out.units"]) == (3, 1)
    assert constants["out.trainable"] is True
    assert not any(name.endswith((".built", ".kernel")) for name in constants)


def test_a_profile_has_its_steps_and_another_one_is_refused(tmp_path):
    probes.start_profiler(str(tmp_path))
    try:
        with pytest.raises(RuntimeError):
            probes.start_profiler(str(tmp_path))
        with probes.profiled_step("mine", 3):
            pass
    finally:
        probes.stop_profiler()
    (file,) = tmp_path.glob("plugins/profile/*/*.xplane.pb")
    assert len(read_xplane(file.read_bytes(), "mine").steps) == 1
