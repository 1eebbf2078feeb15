"""The private names of Keras and TensorFlow that `_runtime` leans on: a release that moves one fails here.

Every module lists its names in its docstring.
"""

import importlib
import inspect

import keras
import numpy as np
import pytest
import tensorflow as tf

RUNTIME = "keras_tpu_ext/_runtime/"


def model():
    inputs = keras.Input((2,), name="in")
    made = keras.Model(inputs, keras.layers.Dense(1)(inputs))
    made.compile("sgd", "mse", metrics=["mae"])
    return made


def found(path):
    """Return whether `package.module:name.attribute` is there."""
    module, _, names = path.partition(":")
    thing = importlib.import_module(module)
    for name in names.split("."):
        thing = getattr(thing, name)
    return thing is not None


IMPORTED = {
    "keras.src.models.functional:Functional": "_keras3_functional.py, _keras3_graph.py",
    "keras.src.models.model:functional_init_arguments": "_keras3_functional.py",
    "keras.src.saving.keras_saveable:KerasSaveable._unpickle_model": "_keras3_functional.py",
    "keras.src.layers.layer:Layer._flatten_layers": "_keras3_graph.py",
    "keras.src.trainers.compile_utils:CompileLoss.metrics": "_keras3_loss.py",
    "keras.src.losses.loss:apply_mask": "_keras3_loss.py",
    "keras.src.backend.tensorflow.optimizer:TFOptimizer._all_reduce_sum_gradients": "_keras3_tf_optimizer.py",
    "keras.src.optimizers.base_optimizer:BaseOptimizer._get_variable_index": "_keras3_watch.py",
    "keras.src.trainers.trainer:Trainer._symbolic_build": "_keras3_tf_step.py",
    "keras.src.trainers.trainer:Trainer._compute_loss": "_keras3_tf_step.py",
    "keras.src.backend.tensorflow.trainer:TensorFlowTrainer._maybe_symbolic_build": "_keras3_tf_step.py",
    "keras.src.trainers.trainer:Trainer._get_metrics_result_or_logs": "_keras3_tf_step.py",
    "keras.src.layers.layer:Layer._get_own_losses": "_keras3_tf_step.py",
    "keras.src.trainers.compile_utils:CompileMetrics._flatten_y": "_keras3_metrics.py",
    "keras.src.layers.layer:Layer._get_regularization_losses": "_keras3_tf_step.py",
    "keras:layers.BatchNormalization._moments": "_keras3_tf_rows.py",
    "tensorflow.python.data.ops.multi_device_iterator_ops:_create_device_dataset": "_tf_rehearsal.py",
    "tensorflow.python.framework.kernels:get_registered_kernels_for_op": "_tf_tpu.py",
    "tensorflow.python.distribute.distribute_lib:_get_default_strategy": "_tf_devices.py",
    "keras.src.callbacks.backup_and_restore:BackupAndRestore._save_model": "_keras3_chief.py",
    "tensorflow.python.eager.context:context": "_tf_workers.py",
    "tensorflow.python.eager.context:global_seed": "_tf_workers.py",
    "tensorflow.compiler.xla.tsl.protobuf.coordination_config_pb2:CoordinatedJob": "_tf_workers.py",
}


@pytest.mark.parametrize("path", IMPORTED)
def test_it_is_still_there(path):
    try:
        there = found(path)
    except (ImportError, AttributeError) as error:
        pytest.fail(f"{path} is gone ({error}): mend {RUNTIME}{IMPORTED[path]}")
    assert there


ATTRIBUTES = {
    "Functional._inputs_struct": (lambda: model()._inputs_struct, "_keras3_graph.py"),
    "Functional._outputs_struct": (lambda: model()._outputs_struct, "_keras3_graph.py"),
    "Sequential._functional": (
        lambda: keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])._functional.outputs,
        "_keras3_graph.py",
    ),
    "KerasTensor._keras_history": (lambda: model().outputs[0]._keras_history.operation.name, "_keras3_graph.py"),
    "Trainer._compile_loss": (lambda: model()._compile_loss, "_keras3_tf_step.py"),
    "Trainer._compile_metrics": (lambda: model()._compile_metrics, "_keras3_tf_step.py"),
    "Trainer._loss_tracker": (
        lambda: (model()._loss_tracker.total, model()._loss_tracker.count),
        "_keras3_tf_step.py",
    ),
    "Trainer._call_has_training_arg": (lambda: model()._call_has_training_arg is not None, "_keras3_tf_step.py"),
    "CompileLoss._user_loss": (lambda: model()._compile_loss._user_loss, "_keras3_tf_step.py"),
    "CompileLoss._user_loss_weights": (
        lambda: hasattr(model()._compile_loss, "_user_loss_weights"),
        "_keras3_tf_step.py",
    ),
    "optimizer._distribution_strategy": (lambda: keras.optimizers.SGD()._distribution_strategy, "_keras3_tf_step.py"),
    "BatchNormalization._reduction_axes": (
        lambda: keras.Sequential([keras.Input((2,)), keras.layers.BatchNormalization()]).layers[0]._reduction_axes,
        "_keras3_tf_rows.py",
    ),
    "layer._losses": (lambda: keras.layers.Dense(1)._losses == [], "_keras3_tf_step.py"),
    "Trainer._initial_epoch": (lambda: hasattr(model(), "_initial_epoch"), "_keras3_chief.py"),
    "optimizer._iterations": (lambda: keras.optimizers.SGD()._iterations, "_tf_counts.py"),
}


@pytest.mark.parametrize("name", ATTRIBUTES)
def test_an_object_still_carries_it(name):
    read, module = ATTRIBUTES[name]
    try:
        value = read()
    except AttributeError as error:
        pytest.fail(f"{name} is gone ({error}): mend {RUNTIME}{module}")
    assert value is not None, f"{name} is None: mend {RUNTIME}{module}"
    assert value is not False, f"{name} is gone: mend {RUNTIME}{module}"


def test_compile_loss_keeps_its_losses_in_tuples_with_a_loss():
    made = model()
    made.train_on_batch(np.ones((2, 2)), np.ones((2, 1)))
    (flat,) = made._compile_loss._flat_losses
    assert callable(flat._replace(loss=flat.loss).loss), f"_flat_losses has changed: mend {RUNTIME}_keras3_loss.py"


def test_keras_builds_from_a_batch_through_maybe_symbolic_build():
    signature = inspect.signature(keras.Model._maybe_symbolic_build)
    assert list(signature.parameters) == ["self", "iterator", "data_batch"], f"mend {RUNTIME}_keras3_tf_step.py"


def test_a_layer_keeps_its_own_losses_in_a_list():
    class Adds(keras.layers.Layer):
        def call(self, x):
            self.add_loss(keras.ops.sum(x))
            return x

    layer = Adds()
    layer(np.ones((2, 3)))
    assert [float(loss) for loss in layer._losses] == [6.0], f"mend {RUNTIME}_keras3_tf_own_losses.py"


def test_compiled_metrics_are_flat_lists_by_output():
    made = model()
    made.fit(np.ones((2, 2)), np.ones((2, 1)), verbose=0)
    flat = made._compile_metrics._flat_metrics
    assert [metric.name for of_output in flat for metric in of_output.metrics] == ["mae"], (
        f"mend {RUNTIME}_keras3_metrics.py"
    )
    assert callable(flat[0].metrics[0]._fn), f"mend {RUNTIME}_keras3_metrics.py"
    assert flat[0].metrics[0]._fn_kwargs == {}, f"mend {RUNTIME}_keras3_metrics.py"
    assert made._compile_metrics._flat_weighted_metrics == [None], f"mend {RUNTIME}_keras3_metrics.py"


def test_a_mask_travels_on_the_tensor():
    masked = keras.layers.Embedding(3, 2, mask_zero=True)(np.array([[1, 0]]))
    assert masked._keras_mask is not None, f"_keras_mask is gone: mend {RUNTIME}_keras3_loss.py"


def test_a_model_takes_its_strategy_where_it_is_made(scope8):
    assert model()._distribute_strategy is None, f"mend {RUNTIME}_keras3_tf_step.py"
    with scope8:
        assert model()._distribute_strategy is scope8.strategy, f"mend {RUNTIME}_keras3_tf_step.py"


def test_an_iterator_holds_the_distributed_dataset(scope8):
    from keras.src.backend.tensorflow.trainer import TFEpochIterator

    iterator = TFEpochIterator(x=np.ones((4, 2)), batch_size=4, distribute_strategy=scope8.strategy)
    spec = tf.nest.flatten(iterator._distributed_dataset.element_spec)[0]
    assert len(spec._value_specs) == 8, f"PerReplicaSpec._value_specs is gone: mend {RUNTIME}keras3_tf.py"


def test_an_epoch_asks_its_iterator_for_executions(scope8):
    from keras.src.backend.tensorflow.trainer import TFEpochIterator

    iterator = TFEpochIterator(x=np.ones((4, 2)), batch_size=4, distribute_strategy=scope8.strategy)
    iterator._enumerate_iterator = lambda: iter([(0, 6, "seven steps")])
    assert list(iterator) == [(0, 6, "seven steps")], f"mend {RUNTIME}_keras3_auto_steps.py"
    names = ["_current_iterator", "_steps_seen", "_num_batches", "_get_iterator", "_interrupted_warning"]
    assert not [name for name in names if not hasattr(iterator, name)], f"mend {RUNTIME}_keras3_auto_steps.py"
    iterator._num_batches, iterator._steps_seen = None, 7
    with pytest.warns(UserWarning, match="ran out of data"), iterator.catch_stop_iteration():
        raise StopIteration
    assert iterator.num_batches == 7, f"mend {RUNTIME}_keras3_auto_steps.py"


def test_tensorboard_says_whether_it_traces():
    assert keras.callbacks.TensorBoard()._should_trace is False, f"mend {RUNTIME}_keras3_batch_hooks.py"


def test_loss_scaling_keeps_its_inner_optimizer_in_its_dict():
    inner = keras.optimizers.SGD()
    optimizer = keras.optimizers.LossScaleOptimizer(inner)
    assert vars(optimizer).get("inner_optimizer") is inner, f"mend {RUNTIME}_keras3_tf_optimizer.py"


def test_the_coordination_service_takes_timeouts_before_a_strategy_sets_it_up():
    from tensorflow.python.eager import context

    takes = inspect.signature(context.Context.configure_coordination_service).parameters
    used = {"service_type", "service_leader", "coordinated_jobs"}
    used |= {"cluster_register_timeout_in_ms", "heartbeat_timeout_in_ms"}
    assert used <= set(takes), f"mend {RUNTIME}_tf_workers.py"
    assert hasattr(context.context(), "coordination_service"), f"mend {RUNTIME}_tf_workers.py"
