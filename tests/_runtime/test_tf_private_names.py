"""The private names of TensorFlow, and of Keras on it, that `_runtime` leans on; see test_keras3_private_names.py."""

import inspect

import keras
import numpy as np
import pytest
import tensorflow as tf

from private_names import RUNTIME, check_attribute, check_import, model

pytestmark = pytest.mark.runtimes("keras3_tf")

IMPORTED = {
    "keras.src.backend.tensorflow.optimizer:TFOptimizer._all_reduce_sum_gradients": "keras3_tf/adapter.py",
    "keras.src.trainers.trainer:Trainer._compute_loss": "keras3_tf/adapter.py",
    "keras.src.backend.tensorflow.trainer:TensorFlowTrainer._maybe_symbolic_build": "keras3_tf/step.py",
    "keras.src.layers.layer:Layer._get_own_losses": "keras3_tf/adapter.py",
    "keras.src.layers.layer:Layer._get_regularization_losses": "keras3_tf/adapter.py",
    "tensorflow.python.data.ops.iterator_ops:IteratorSpec": "tensorflow/rehearsal.py",
    "tensorflow.python.framework.kernels:get_registered_kernels_for_op": "tensorflow/tpu.py",
    "tensorflow.python.distribute.distribute_lib:_get_default_strategy": "tensorflow/devices.py",
    "tensorflow.python.eager.context:context": "tensorflow/cluster.py",
    "tensorflow.python.eager.context:global_seed": "tensorflow/cluster.py",
    "tensorflow.compiler.xla.tsl.protobuf.coordination_config_pb2:CoordinatedJob": "tensorflow/cluster.py",
}


@pytest.mark.parametrize("path", IMPORTED)
def test_it_is_still_there(path):
    check_import(path, IMPORTED[path])


ATTRIBUTES = {
    "Trainer._call_has_training_arg": (
        lambda: model()._call_has_training_arg is not None,
        "keras3_tf/step.py, tensorflow/flops.py",
    ),
    "optimizer._distribution_strategy": (
        lambda: keras.optimizers.SGD()._distribution_strategy,
        "tensorflow/scope_checks.py",
    ),
    "layer._losses": (lambda: keras.layers.Dense(1)._losses == [], "keras3_tf/adapter.py"),
}


@pytest.mark.parametrize("name", ATTRIBUTES)
def test_an_object_still_carries_it(name):
    check_attribute(name, *ATTRIBUTES[name])


def test_keras_builds_from_a_batch_through_maybe_symbolic_build():
    signature = inspect.signature(keras.Model._maybe_symbolic_build)
    assert list(signature.parameters) == ["self", "iterator", "data_batch"], f"mend {RUNTIME}keras3_tf/step.py"


def test_a_layer_keeps_its_own_losses_in_a_list():
    class Adds(keras.layers.Layer):
        def call(self, x):
            self.add_loss(keras.ops.sum(x))
            return x

    layer = Adds()
    layer(np.ones((2, 3)))
    assert [float(loss) for loss in layer._losses] == [6.0], f"mend {RUNTIME}keras3_tf/adapter.py"


def test_a_model_takes_its_strategy_where_it_is_made(scope8):
    assert model()._distribute_strategy is None, f"mend {RUNTIME}keras3_tf/step.py"
    with scope8:
        assert model()._distribute_strategy is scope8.strategy, f"mend {RUNTIME}keras3_tf/step.py"


def test_an_iterator_holds_the_distributed_dataset(scope8):
    from keras.src.backend.tensorflow.trainer import TFEpochIterator

    iterator = TFEpochIterator(x=np.ones((4, 2)), batch_size=4, distribute_strategy=scope8.strategy)
    spec = tf.nest.flatten(iterator._distributed_dataset.element_spec)[0]
    assert len(spec._value_specs) == 8, f"PerReplicaSpec._value_specs is gone: mend {RUNTIME}keras3_tf.py"


def test_replicas_on_cpus_take_their_parts_from_the_pipeline_itself(scope8):
    from tensorflow.python.distribute import input_lib

    own = {"_make_iterator", "get_next_as_list", "get_next_as_optional_list"}
    assert own <= vars(input_lib._SingleWorkerOwnedDatasetIterator).keys(), f"mend {RUNTIME}tensorflow/rehearsal.py"
    iterator = iter(scope8.distribute(tf.data.Dataset.range(19).batch(16)))
    (of_worker,) = iterator._iterators
    assert isinstance(of_worker._iterator, tf.data.Iterator), f"mend {RUNTIME}tensorflow/rehearsal.py"
    assert of_worker._type_spec._component_specs == [of_worker._iterator._type_spec]
    read = tf.function(lambda iterator: scope8.strategy.experimental_local_results(next(iterator)))
    parts = [part.numpy().tolist() for _ in range(2) for part in read(iterator)]
    assert parts == [[2 * i, 2 * i + 1] for i in range(8)] + [[16], [17], [18], *[[]] * 5]
    with pytest.raises(tf.errors.OutOfRangeError):
        read(iterator)


def test_the_coordination_service_takes_timeouts_before_a_strategy_sets_it_up():
    from tensorflow.python.eager import context

    takes = inspect.signature(context.Context.configure_coordination_service).parameters
    used = {"service_type", "service_leader", "coordinated_jobs"}
    used |= {"cluster_register_timeout_in_ms", "heartbeat_timeout_in_ms"}
    assert used <= set(takes), f"mend {RUNTIME}tensorflow/cluster.py"
    assert hasattr(context.context(), "coordination_service"), f"mend {RUNTIME}tensorflow/cluster.py"
