"""The private names of Keras 2 and TensorFlow Addons that `_runtime` leans on; see test_keras3_private_names.py."""

import importlib.util
import tempfile

import numpy as np
import pytest
import tensorflow as tf

from keras_tpu_ext._runtime.compat.keras2 import PACKAGE, in_symbolic_call
from keras_tpu_ext._runtime.keras2.adapter import _SAVED_EPOCH
from private_names import RUNTIME, check_attribute, check_import, model

pytestmark = pytest.mark.runtimes("keras2_tf")

STATISTICS = "keras2/batch_statistics.py"
IMPORTED = {
    "mixed_precision.loss_scale_optimizer:BaseLossScaleOptimizer": "compat/keras2.py",
    "mixed_precision.autocast_variable:enable_auto_cast_variables": "compat/keras2.py",
    "engine.functional:Functional": "keras2/functional.py",
    "engine.training:is_functional_model_init_params": "keras2/functional.py",
    "engine.base_layer:BaseRandomLayer": "keras2/models.py",
    "engine.compile_utils:LossesContainer._conform_to_outputs": "keras2/loss.py",
    "engine.compile_utils:MetricsContainer._conform_to_outputs": "keras2/metrics.py",
    "engine.compile_utils:match_dtype_and_rank": "keras2/loss.py, keras2/metrics.py",
    "utils.losses_utils:apply_mask": "keras2/loss.py, keras2/metrics.py",
    "utils.losses_utils:cast_losses_to_common_dtype": "keras2/loss.py",
    "engine.data_adapter:get_data_handler": "keras2/execution_schedule.py",
    "engine.data_adapter:DataHandler.steps": "keras2/execution_schedule.py",
    "engine.training:Model._get_optimizer": "keras2/step.py",
    "engine.training:Model._validate_and_get_metrics_result": "keras2/step.py",
    "engine.training:Model._validate_target_and_loss": "keras2/adapter.py",
    "engine.base_layer:Layer._flatten_layers": "keras2/adapter.py",
    "layers.normalization.batch_normalization:BatchNormalizationBase._calculate_mean_and_var": STATISTICS,
    "layers.normalization.batch_normalization:BatchNormalizationBase._assign_moving_average": STATISTICS,
    "layers.normalization.batch_normalization:BatchNormalizationBase._assign_new_value": STATISTICS,
    "optimizers.optimizer:_BaseOptimizer._build_learning_rate": "keras2/probes.py",
    "optimizers.optimizer:_BaseOptimizer._var_key": "keras2/probes.py",
}


@pytest.mark.parametrize("path", IMPORTED)
def test_it_is_still_there(path):
    check_import(f"{PACKAGE}.src.{path}", IMPORTED[path])


def trained():
    made = model()
    made.fit(np.ones((2, 2)), np.ones((2, 1)), verbose=0)
    return made


def epoch_in_a_backup():
    with tempfile.TemporaryDirectory() as folder:
        backup = tf.keras.callbacks.BackupAndRestore(folder, delete_checkpoint=False)
        model().fit(np.ones((2, 2)), np.ones((2, 1)), epochs=3, verbose=0, callbacks=[backup])
        return tf.train.load_variable(tf.train.latest_checkpoint(f"{folder}/chief"), _SAVED_EPOCH)


ATTRIBUTES = {
    "BackupAndRestore's file": (lambda: epoch_in_a_backup() == 2, "keras2/adapter.py"),
    "Model.compiled_loss": (
        lambda: trained().compiled_loss._total_loss_mean,
        "keras2/loss.py, compat/keras2.py",
    ),
    "LossesContainer._losses": (lambda: trained().compiled_loss._losses, "keras2/loss.py"),
    "LossesContainer._loss_weights": (lambda: trained().compiled_loss._loss_weights == [None], "keras2/loss.py"),
    "LossesContainer._per_output_metrics": (
        lambda: trained().compiled_loss._per_output_metrics == [None],
        "keras2/loss.py",
    ),
    "LossesContainer._user_losses": (lambda: model().compiled_loss._user_losses, "keras2/loss.py"),
    "LossesContainer._output_names": (lambda: model().compiled_loss._output_names, "keras2/loss.py"),
    "LossesContainer._built": (lambda: trained().compiled_loss._built, "keras2/loss.py"),
    "MetricsContainer._metrics": (lambda: trained().compiled_metrics._metrics, "keras2/metrics.py"),
    "MetricsContainer._weighted_metrics": (
        lambda: trained().compiled_metrics._weighted_metrics,
        "keras2/metrics.py",
    ),
    "MetricsContainer._user_metrics": (lambda: model().compiled_metrics._user_metrics, "keras2/models.py"),
    "MeanMetricWrapper._fn": (lambda: trained().compiled_metrics.metrics[0]._fn, "training/compile_utils.py"),
    "MeanMetricWrapper._fn_kwargs": (
        lambda: trained().compiled_metrics.metrics[0]._fn_kwargs == {},
        "training/compile_utils.py",
    ),
    "Model._train_counter": (lambda: trained()._train_counter, "keras2/step.py"),
    "Model._test_counter": (lambda: trained()._test_counter, "keras2/step.py"),
    "Model._steps_per_execution": (lambda: trained()._steps_per_execution, "keras2/step.py"),
    "Model._is_compiled": (lambda: model()._is_compiled, "keras2/models.py"),
    "Functional._nested_inputs": (lambda: model()._nested_inputs, "keras2/models.py"),
    "Functional._nodes_by_depth": (
        lambda: [
            (node.layer, node.keras_inputs, node.outputs)
            for of_depth in model()._nodes_by_depth.values()
            for node in of_depth
        ],
        "keras2/models.py",
    ),
    "KerasTensor._keras_history": (lambda: model().outputs[0]._keras_history.layer.name, "keras2/models.py"),
    "Layer._eager_losses": (lambda: model().layers[1]._eager_losses == [], "keras2/adapter.py"),
    "Layer._callable_losses": (lambda: model().layers[1]._callable_losses == [], "keras2/adapter.py"),
    "optimizer._distribution_strategy": (
        lambda: tf.keras.optimizers.SGD()._distribution_strategy is not None,
        "tensorflow/scope_checks.py",
    ),
    "legacy._distribution_strategy": (
        lambda: hasattr(tf.keras.optimizers.legacy.SGD(), "_distribution_strategy"),
        "tensorflow/scope_checks.py",
    ),
    "loss._allow_sum_over_batch_size": (
        lambda: hasattr(tf.keras.losses.MeanSquaredError(), "_allow_sum_over_batch_size"),
        "keras2/loss.py",
    ),
}


@pytest.mark.parametrize("name", ATTRIBUTES)
def test_an_object_still_carries_it(name):
    check_attribute(name, *ATTRIBUTES[name])


def test_a_data_handler_knows_its_place():
    from keras_tpu_ext._runtime.compat.keras2 import private

    handler = private("engine.data_adapter").DataHandler(np.ones((4, 2)), batch_size=2, epochs=1)
    names = ("_model", "_initial_step", "_current_step", "_inferred_steps", "_insufficient_data", "_step_increment")
    missing = [name for name in names if not hasattr(handler, name)]
    assert not missing, f"mend {RUNTIME}keras2/execution_schedule.py"


@pytest.mark.skipif(importlib.util.find_spec("tensorflow_addons") is None, reason="TensorFlow Addons is not here")
def test_compiled_operations_of_addons_are_loaded_through_one_class():
    from keras_tpu_ext.addons import tfa

    assert tfa is not None
    check_import("tensorflow_addons.utils.resource_loader:LazySO.ops", "keras2/addons.py")


def test_layers_are_told_from_the_graph_that_they_are_asked_for_shapes():
    found = []

    class Looking(tf.keras.layers.Layer):
        def call(self, inputs):
            found.append(in_symbolic_call())
            return inputs

    class Subclassed(tf.keras.Model):
        def __init__(self):
            super().__init__()
            self.layer = Looking()

        def call(self, inputs):
            return self.layer(inputs)

    inputs = tf.keras.Input((2,))
    model = tf.keras.Model(inputs, Looking()(inputs))
    Subclassed().build((None, 2))
    assert found, f"mend {RUNTIME}compat/keras2.py"
    assert all(found), f"mend {RUNTIME}compat/keras2.py"
    found.clear()
    model.predict(np.ones((2, 2)), verbose=0)
    model(np.ones((2, 2)))
    assert found == [False, False], f"mend {RUNTIME}compat/keras2.py"
