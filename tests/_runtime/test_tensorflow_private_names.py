"""The private attributes of tf.data and tf.distribute that are used; see test_private_names.py."""

import pytest
import tensorflow as tf
from tensorflow.python.distribute import distribute_lib, input_lib

from keras_tpu_ext._runtime.common import private_names
from keras_tpu_ext._runtime.tensorflow.compile_only import _Extended
from keras_tpu_ext.data.pipeline import nodes
from kind_of_keras import RUNTIMES
from private_names import NAMES, attributes, check_attribute, mend

pytestmark = pytest.mark.runtimes("keras3_tf", "keras2_tf")

RANGE = tf.data.Dataset.range(6)


def same(x):
    return x


def one(x):
    return tf.data.Dataset.from_tensors(x)


def some(x):
    return x < 4


NODES = [
    RANGE.map(same),
    RANGE.map(same, num_parallel_calls=2),
    RANGE.batch(2),
    RANGE.batch(2, num_parallel_calls=2),
    RANGE.padded_batch(2),
    RANGE.shuffle(2),
    RANGE.cache(),
    RANGE.prefetch(2),
    RANGE.repeat(2),
    RANGE.take(2),
    RANGE.skip(2),
    RANGE.filter(some),
    RANGE.take_while(some),
    RANGE.flat_map(one),
    RANGE.interleave(one),
    RANGE.interleave(one, num_parallel_calls=2),
    RANGE.with_options(tf.data.Options()),
    RANGE.shard(2, 0),
    RANGE.window(2),
    RANGE.batch(2).unbatch(),
]
MADE = {nodes.class_name(node): node for node in NODES}


def test_every_class_of_the_table_is_tried():
    assert MADE.keys() == nodes.NODE_TYPES.keys(), mend("NODE_TYPES")


@pytest.mark.parametrize("name", nodes.NODE_TYPES)
def test_a_node_is_rebuilt_from_the_arguments_of_its_operation(name):
    if name == nodes.PARALLEL_INTERLEAVE:
        # Those of TensorFlow do not keep whether they are deterministic, and so are left alone.
        assert nodes.node_type(MADE[name]) is None, mend("NODE_TYPES")
        return
    assert nodes.node_type(MADE[name]) is nodes.NODE_TYPES[name], f"{sorted(vars(MADE[name]))}: {mend('NODE_TYPES')}"
    made = nodes.rebuild(MADE[name], *nodes.inputs_of(MADE[name]))
    assert vars(made).keys() == vars(MADE[name]).keys(), mend("NODE_TYPES")
    assert made.element_spec == MADE[name].element_spec


def test_a_node_with_an_unknown_attribute_is_left_alone():
    node = RANGE.map(same)
    node._a_new_option = 1
    assert nodes.node_type(node) is None


def test_a_strategy_that_only_compiles_overrides_what_there_is():
    own = {name for name in vars(_Extended) if not name.startswith("__")} - {"_all_reduce"}
    missing = {name for name in own if not hasattr(distribute_lib._DefaultDistributionExtended, name)}
    assert not missing, mend("_DefaultDistributionExtended")


def replicas(node):
    return tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"]).experimental_distribute_dataset(node)


def replicated():
    with tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"]).scope():
        return tf.Variable(1.0)


def of_worker():
    return input_lib._SingleWorkerOwnedDatasetIterator(RANGE, "CPU:0", ["CPU:0"])


ATTRIBUTES = {
    "Dataset._variant_tensor": lambda: RANGE._variant_tensor is not None,
    "DistributedVariable._primary": lambda: replicated()._primary.handle is not None,
    "OwnedIterator._iterator_resource": lambda: iter(RANGE)._iterator_resource is not None,
    "PerReplicaSpec._value_specs": lambda: len(replicas(RANGE.batch(2)).element_spec._value_specs) == 2,
    "StructuredFunctionWrapper._func": lambda: RANGE.map(same)._functions()[0]._func is same,
    "_MapDataset._input_dataset": lambda: RANGE.map(same)._input_dataset is RANGE,
    "_ParallelMapDataset._deterministic": lambda: RANGE.map(same, num_parallel_calls=2)._deterministic,
    "_ShuffleDataset._reshuffle_each_iteration": lambda: RANGE.shuffle(2)._reshuffle_each_iteration,
    "_SingleWorkerDatasetIteratorSpec._element_spec": lambda: of_worker()._type_spec._element_spec,
    "_SingleWorkerOwnedDatasetIterator._worker": lambda: of_worker()._worker,
    "_TensorSliceDataset._tensors": lambda: len(tf.data.Dataset.from_tensor_slices([1])._tensors) == 1,
    "_TensorSliceDataset": lambda: nodes.class_name(tf.data.Dataset.from_tensor_slices([1])) == nodes.SLICES,
    "_TensorDataset": lambda: nodes.class_name(tf.data.Dataset.from_tensors([1])) == nodes.TENSORS,
    "readers": lambda: nodes.class_name(tf.data.TextLineDataset("a")).startswith("readers."),
}
if "keras2_tf215" not in RUNTIMES:
    ATTRIBUTES["_ParallelMapDataset._force_synchronous"] = lambda: RANGE.map(same)._force_synchronous is False
CLASSES = {"_TensorSliceDataset", "_TensorDataset", "readers"}  # whose names are read, as are those in NODE_TYPES


def test_every_attribute_of_the_table_is_tried():
    of_tensorflow = private_names.TENSORFLOW + private_names.NEWER_TENSORFLOW
    assert attributes(of_tensorflow) & attributes(NAMES) == ATTRIBUTES.keys() - CLASSES


@pytest.mark.parametrize("name", ATTRIBUTES)
def test_an_object_still_carries_it(name):
    check_attribute(name, ATTRIBUTES[name])
