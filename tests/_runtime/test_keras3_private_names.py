"""The private names of Keras that `_runtime` leans on under every backend: a release that moves one fails here.

Every module lists its names in its docstring; test_tf_private_names.py and test_jax_private_names.py watch the rest.
"""

import tempfile

import keras
import numpy as np
import pytest
from keras.src.trainers.epoch_iterator import EpochIterator

from keras_tpu_ext._runtime.keras3.adapter import Keras3Adapter
from private_names import RUNTIME, check_attribute, check_import, model

pytestmark = pytest.mark.runtimes("keras3_tf", "keras3_jax")

IMPORTED = {
    "keras.src.models.functional:Functional": "keras3/functional.py, keras3/models.py",
    "keras.src.models.model:functional_init_arguments": "keras3/functional.py",
    "keras.src.saving.keras_saveable:KerasSaveable._unpickle_model": "keras3/functional.py",
    "keras.src.layers.layer:Layer._flatten_layers": "keras3/models.py",
    "keras.src.trainers.compile_utils:CompileLoss.metrics": "keras3/compile_utils.py",
    "keras.src.losses.loss:apply_mask": "keras3/compile_utils.py",
    "keras.src.losses.loss:unscale_loss_for_distribution": "keras3/compile_utils.py",
    "keras.src.optimizers.base_optimizer:BaseOptimizer._get_variable_index": "keras3/probes.py",
    "keras.src.trainers.trainer:Trainer._symbolic_build": "keras3_tf/probes.py, jax/lowering.py, */step.py",
    "keras.src.trainers.trainer:Trainer._get_metrics_result_or_logs": "keras3/adapter.py",
    "keras.src.trainers.compile_utils:CompileMetrics._flatten_y": "keras3/compile_utils.py",
    "keras.src.callbacks.backup_and_restore:BackupAndRestore._save_model": "keras3/adapter.py",
    "keras.src.utils:file_utils.exists": "keras3/adapter.py",
    "keras.src.utils:file_utils.File": "keras3/adapter.py",
    "keras.src.backend:get_keras_mask": "compat/keras3.py",
    "keras.src.backend:set_keras_mask": "compat/keras3.py",
    "keras.src.backend:AutocastScope": "compat/keras3.py",
    "keras.src.backend:in_symbolic_scope": "compat/keras3.py",
    "keras.src.ops.nn:Softmax": "keras3/models.py",
    "keras.src.ops.nn:LogSoftmax": "keras3/models.py",
    "keras:layers.BatchNormalization._moments": "compat/keras3.py",
}


@pytest.mark.parametrize("path", IMPORTED)
def test_it_is_still_there(path):
    check_import(path, IMPORTED[path])


def epoch_in_a_backup():
    with tempfile.TemporaryDirectory() as folder:
        backup = keras.callbacks.BackupAndRestore(folder, delete_checkpoint=False)
        made = model()
        made.fit(np.ones((2, 2)), np.ones((2, 1)), epochs=3, verbose=0, callbacks=[backup])
        return Keras3Adapter().backup_epoch(backup)


ATTRIBUTES = {
    "Functional._inputs_struct": (lambda: model()._inputs_struct, "keras3/models.py"),
    "Functional._outputs_struct": (lambda: model()._outputs_struct, "keras3/models.py"),
    "Functional._nodes_by_depth": (
        lambda: [
            (node.operation, node.input_tensors, node.outputs)
            for of_depth in model()._nodes_by_depth.values()
            for node in of_depth
        ],
        "keras3/models.py",
    ),
    "Sequential._functional": (
        lambda: keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])._functional.outputs,
        "keras3/models.py",
    ),
    "KerasTensor._keras_history": (lambda: model().outputs[0]._keras_history.operation.name, "keras3/models.py"),
    "Trainer._compile_loss": (lambda: model()._compile_loss, "keras3/adapter.py"),
    "Trainer._compile_metrics": (lambda: model()._compile_metrics, "keras3/adapter.py"),
    "Trainer._loss_tracker": (
        lambda: (model()._loss_tracker.total, model()._loss_tracker.count),
        "keras3_tf/step.py, jax/step.py",
    ),
    "CompileLoss._user_loss": (lambda: model()._compile_loss._user_loss, "keras3_tf/step.py, jax/step.py"),
    "CompileLoss._user_loss_weights": (
        lambda: hasattr(model()._compile_loss, "_user_loss_weights"),
        "keras3_tf/step.py, jax/step.py",
    ),
    "BatchNormalization._reduction_axes": (
        lambda: keras.Sequential([keras.Input((2,)), keras.layers.BatchNormalization()]).layers[0]._reduction_axes,
        "keras3_tf/adapter.py, jax/batch.py",
    ),
    "optimizer._iterations": (
        lambda: keras.optimizers.SGD()._iterations,
        "training/progress.py, keras3/optimizer_view.py",
    ),
    "BackupAndRestore._training_metadata_path": (lambda: epoch_in_a_backup() == 3, "keras3/adapter.py"),
}


@pytest.mark.parametrize("name", ATTRIBUTES)
def test_an_object_still_carries_it(name):
    check_attribute(name, *ATTRIBUTES[name])


def test_compile_loss_keeps_its_losses_in_tuples_with_a_loss():
    made = model()
    made.train_on_batch(np.ones((2, 2)), np.ones((2, 1)))
    (flat,) = made._compile_loss._flat_losses
    assert callable(flat._replace(loss=flat.loss).loss), f"_flat_losses has changed: mend {RUNTIME}keras3/loss.py"


def test_compiled_metrics_are_flat_lists_by_output():
    made = model()
    made.fit(np.ones((2, 2)), np.ones((2, 1)), verbose=0)
    flat = made._compile_metrics._flat_metrics
    assert [metric.name for of_output in flat for metric in of_output.metrics] == ["mae"], (
        f"mend {RUNTIME}keras3/metrics.py"
    )
    assert callable(flat[0].metrics[0]._fn), f"mend {RUNTIME}keras3/metrics.py"
    assert flat[0].metrics[0]._fn_kwargs == {}, f"mend {RUNTIME}keras3/metrics.py"
    assert made._compile_metrics._flat_weighted_metrics == [None], f"mend {RUNTIME}keras3/metrics.py"


def test_a_mask_travels_on_the_tensor():
    masked = keras.layers.Embedding(3, 2, mask_zero=True)(np.array([[1, 0]]))
    assert masked._keras_mask is not None, f"_keras_mask is gone: mend {RUNTIME}keras3/loss.py"


def test_an_epoch_asks_its_iterator_for_executions():
    iterator = EpochIterator(x=np.ones((4, 2)), batch_size=4)
    iterator._enumerate_iterator = lambda: iter([(0, 6, iter(["a batch"]))])
    ((begin, end, _),) = iterator
    assert (begin, end) == (0, 6), f"mend {RUNTIME}keras3/execution_schedule.py"
    names = ["_current_iterator", "_steps_seen", "_num_batches", "_get_iterator", "_interrupted_warning"]
    assert not [name for name in names if not hasattr(iterator, name)], f"mend {RUNTIME}keras3/execution_schedule.py"
    iterator._num_batches, iterator._steps_seen = None, 7
    with pytest.warns(UserWarning, match="ran out of data"), iterator.catch_stop_iteration():
        raise StopIteration
    assert iterator.num_batches == 7, f"mend {RUNTIME}keras3/execution_schedule.py"


def test_tensorboard_says_whether_it_traces():
    assert keras.callbacks.TensorBoard()._should_trace is False, f"mend {RUNTIME}training/execution_schedule.py"


def test_loss_scaling_keeps_its_inner_optimizer_in_its_dict():
    inner = keras.optimizers.SGD()
    optimizer = keras.optimizers.LossScaleOptimizer(inner)
    assert vars(optimizer).get("inner_optimizer") is inner, f"mend {RUNTIME}keras3/optimizer_view.py"
