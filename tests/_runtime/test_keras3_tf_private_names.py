"""The attributes of Keras 3's objects on TensorFlow that are private and used; see test_private_names.py."""

import inspect

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras.src.backend.tensorflow.trainer import TFEpochIterator
from keras.src.trainers.data_adapters.tf_dataset_adapter import TFDatasetAdapter

import private_name_table
from private_names import attributes, check_attribute, mend, model

pytestmark = pytest.mark.runtimes("keras3_tf")


def averaging(**options):
    made = model()
    made.compile(keras.optimizers.SGD(use_ema=True, **options), "mse")
    made.fit(np.ones((2, 2)), np.ones((2, 1)), verbose=0)
    return made.optimizer


ATTRIBUTES = {
    "Layer._losses": lambda: keras.layers.Dense(1)._losses == [],
    "Optimizer._accumulated_gradients": (
        lambda: len(averaging(gradient_accumulation_steps=2)._accumulated_gradients) == 2
    ),
    "Optimizer._distribution_strategy": lambda: keras.optimizers.SGD()._distribution_strategy,
    "Optimizer._model_variables_moving_average": lambda: len(averaging()._model_variables_moving_average) == 2,
    "Optimizer._trainable_variables": lambda: len(averaging()._trainable_variables) == 2,
    "Optimizer._trainable_variables_indices": lambda: len(averaging()._trainable_variables_indices) == 2,
    "TFDatasetAdapter._dataset": lambda: TFDatasetAdapter(tf.data.Dataset.range(3))._dataset,
    "TFEpochIterator._distributed_dataset": (
        lambda: (
            TFEpochIterator(
                x=np.ones((4, 2)), batch_size=4, distribute_strategy=tf.distribute.get_strategy()
            )._distributed_dataset
        )
    ),
    "Trainer._call_has_training_arg": lambda: model()._call_has_training_arg is not None,
    "Trainer._distribute_strategy": lambda: model()._distribute_strategy is None,
}


def test_every_attribute_of_the_table_is_tried():
    assert attributes(private_name_table.KERAS3_TENSORFLOW) == ATTRIBUTES.keys()


@pytest.mark.parametrize("name", ATTRIBUTES)
def test_an_object_still_carries_it(name):
    check_attribute(name, ATTRIBUTES[name])


def test_keras_builds_from_a_batch_through_maybe_symbolic_build():
    signature = inspect.signature(keras.Model._maybe_symbolic_build)
    assert list(signature.parameters) == ["self", "iterator", "data_batch"], mend(
        "TensorFlowTrainer._maybe_symbolic_build"
    )


def test_a_layer_keeps_its_own_losses_in_a_list():
    class Adds(keras.layers.Layer):
        def call(self, x):
            self.add_loss(keras.ops.sum(x))
            return x

    layer = Adds()
    layer(np.ones((2, 3)))
    assert [float(loss) for loss in layer._losses] == [6.0], mend("Layer._losses")


def test_a_model_takes_its_strategy_where_it_is_made(scope8):
    assert model()._distribute_strategy is None, mend("Trainer._distribute_strategy")
    with scope8:
        assert model()._distribute_strategy is scope8.strategy, mend("Trainer._distribute_strategy")


def test_an_iterator_holds_the_distributed_dataset(scope8):
    iterator = TFEpochIterator(x=np.ones((4, 2)), batch_size=4, distribute_strategy=scope8.strategy)
    spec = tf.nest.flatten(iterator._distributed_dataset.element_spec)[0]
    assert len(spec._value_specs) == 8, mend("PerReplicaSpec._value_specs")


def test_replicas_on_cpus_take_their_parts_from_the_pipeline_itself(scope8):
    from tensorflow.python.distribute import input_lib

    own = {"_make_iterator", "get_next_as_list", "get_next_as_optional_list"}
    assert own <= vars(input_lib._SingleWorkerOwnedDatasetIterator).keys(), mend("_SingleWorkerOwnedDatasetIterator")
    iterator = iter(scope8.distribute(tf.data.Dataset.range(19).batch(16)))
    (of_worker,) = iterator._iterators
    assert isinstance(of_worker._iterator, tf.data.Iterator), mend("_SingleWorkerOwnedDatasetIterator")
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
    assert used <= set(takes), mend("context:configure_coordination_service")
    assert hasattr(context.context(), "coordination_service"), mend("context:coordination_service")
