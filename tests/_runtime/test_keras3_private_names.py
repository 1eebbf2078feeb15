"""The attributes of Keras 3's objects that are private and used under every backend; see test_private_names.py."""

import tempfile

import keras
import numpy as np
import pytest
from keras.src.trainers.epoch_iterator import EpochIterator

import private_name_table
from keras_tpu_ext._runtime.compat.keras3 import execution
from keras_tpu_ext._runtime.keras3.program import Keras3Program
from private_names import attributes, check_attribute, mend, model

pytestmark = pytest.mark.runtimes("keras3_tf", "keras3_jax")


def epoch_in_a_backup():
    with tempfile.TemporaryDirectory() as folder:
        backup = keras.callbacks.BackupAndRestore(folder, delete_checkpoint=False)
        made = model()
        made.fit(np.ones((2, 2)), np.ones((2, 1)), epochs=3, verbose=0, callbacks=[backup])
        return Keras3Program.backup_epoch(None, backup)


def trained():
    made = model()
    made.fit(np.ones((2, 2)), np.ones((2, 1)), verbose=0)
    return made


def epochs():
    return EpochIterator(x=np.ones((4, 2)), batch_size=4)


def adapter_with_workers():
    class Batches(keras.utils.PyDataset):
        def __len__(self):
            return 2

        def __getitem__(self, index):
            return np.ones((2, 2)), np.ones((2, 1))

    return EpochIterator(x=Batches(workers=2)).data_adapter


def nodes():
    return [node for of_depth in model()._nodes_by_depth.values() for node in of_depth]


ATTRIBUTES = {
    "BackupAndRestore._training_metadata_path": lambda: epoch_in_a_backup() == 3,
    "BatchNormalization._reduction_axes": (
        lambda: keras.Sequential([keras.Input((2,)), keras.layers.BatchNormalization()]).layers[0]._reduction_axes
    ),
    "CallbackList._futures": lambda: keras.callbacks.CallbackList()._futures == [],
    "CompileLoss._flat_losses": lambda: callable(trained()._compile_loss._flat_losses[0].loss),
    "CompileLoss._user_loss": lambda: model()._compile_loss._user_loss,
    "CompileLoss._user_loss_weights": lambda: hasattr(model()._compile_loss, "_user_loss_weights"),
    "CompileMetrics._flat_metrics": lambda: (
        [metric.name for of_output in trained()._compile_metrics._flat_metrics for metric in of_output.metrics]
        == ["mae"]
    ),
    "CompileMetrics._flat_weighted_metrics": lambda: trained()._compile_metrics._flat_weighted_metrics == [None],
    "CompileMetrics._user_metrics": lambda: model()._compile_metrics._user_metrics == ["mae"],
    "CompileMetrics._user_weighted_metrics": lambda: hasattr(model()._compile_metrics, "_user_weighted_metrics"),
    "EpochIterator._current_iterator": lambda: hasattr(epochs(), "_current_iterator"),
    "EpochIterator._num_batches": lambda: epochs()._num_batches == 1,
    "EpochIterator._steps_seen": lambda: epochs()._steps_seen == 0,
    "Functional._inputs_struct": lambda: model()._inputs_struct,
    "Functional._nodes_by_depth": lambda: [(node.operation, node.input_tensors, node.outputs) for node in nodes()],
    "Functional._outputs_struct": lambda: model()._outputs_struct,
    "KerasTensor._keras_history": lambda: model().outputs[0]._keras_history.operation.name,
    # The instance has it, where a property of the class would hide it from a view.
    "LossScaleOptimizer.inner_optimizer": lambda: (
        vars(keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD()))["inner_optimizer"].iterations
    ),
    "MeanMetricWrapper._fn": lambda: callable(keras.metrics.MeanAbsoluteError()._fn),
    "MeanMetricWrapper._fn_kwargs": lambda: keras.metrics.MeanAbsoluteError()._fn_kwargs == {},
    "MultiHeadAttention._softmax": lambda: attention()._softmax.axis,
    "Operation._inbound_nodes": lambda: model().layers[1]._inbound_nodes[0].operation,
    "Optimizer._iterations": lambda: keras.optimizers.SGD()._iterations,
    "PyDatasetAdapter.enqueuer": lambda: adapter_with_workers().enqueuer.is_running() is False,
    "PyDatasetEnqueuer.ready_queue": lambda: adapter_with_workers().enqueuer.ready_queue.empty(),
    "Sequential._functional": (
        lambda: keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])._functional.outputs
    ),
    "TensorBoard._should_trace": lambda: keras.callbacks.TensorBoard()._should_trace is False,
    "Trainer._compile_config": lambda: model()._compile_config.config["metrics"] == ["mae"],
    "Trainer._compile_loss": lambda: model()._compile_loss,
    "Trainer._compile_metrics": lambda: model()._compile_metrics,
    "Trainer._loss_tracker": lambda: (model()._loss_tracker.total, model()._loss_tracker.count),
}


def attention():
    layer = keras.layers.MultiHeadAttention(1, 2)
    layer(np.ones((1, 2, 2)), np.ones((1, 2, 2)))
    return layer


def test_every_attribute_of_the_table_is_tried():
    assert attributes(private_name_table.KERAS3) == ATTRIBUTES.keys()


@pytest.mark.parametrize("name", ATTRIBUTES)
def test_an_object_still_carries_it(name):
    check_attribute(name, ATTRIBUTES[name])


def test_a_mask_travels_on_the_tensor():
    masked = keras.layers.Embedding(3, 2, mask_zero=True)(np.array([[1, 0]]))
    assert masked._keras_mask is not None, mend("keras.src.backend:get_keras_mask")


@pytest.mark.filterwarnings("ignore:.*ran out of data:UserWarning")  # until Keras 3.15
def test_an_epoch_asks_its_iterator_for_executions():
    iterator = EpochIterator(x=np.ones((4, 2)), batch_size=4)
    iterator._enumerate_iterator = lambda: iter([execution(0, 6, iter(["a batch"]))])
    ((begin, *_),) = iterator
    assert begin == 0, mend("EpochIterator._steps_seen")
    iterator._num_batches, iterator._steps_seen = None, 7
    with iterator.catch_stop_iteration():
        raise StopIteration
    assert iterator.num_batches == 7, mend("EpochIterator._steps_seen")
