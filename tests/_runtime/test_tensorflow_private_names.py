"""The private attributes of tf.data and tf.distribute that are used; see test_private_names.py."""

import pytest
import tensorflow as tf
from tensorflow.python.distribute import distribute_lib, input_lib

import private_name_table
from keras_tpu_ext._runtime.tensorflow.compile_only import _Extended
from keras_tpu_ext.data.pipeline import nodes
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
READ = {nodes.MAP, nodes.PARALLEL_MAP, nodes.FLAT_MAP, nodes.INTERLEAVE, nodes.SHUFFLE, nodes.CACHE, nodes.PREFETCH}


def test_classes_of_nodes_are_named_as_before():
    assert {nodes.class_name(node) for node in NODES} >= READ | nodes.ANY_BATCH


@pytest.mark.parametrize("node", NODES, ids=nodes.method_name)
def test_a_class_is_named_after_the_method_that_makes_it(node):
    assert nodes.is_known(node), mend("_KNOWN")


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
    "_SingleWorkerDatasetIteratorSpec._element_spec": lambda: of_worker()._type_spec._element_spec,
    "_SingleWorkerOwnedDatasetIterator._worker": lambda: of_worker()._worker,
    "_TensorSliceDataset._tensors": lambda: len(tf.data.Dataset.from_tensor_slices([1])._tensors) == 1,
    "_TensorSliceDataset": lambda: nodes.class_name(tf.data.Dataset.from_tensor_slices([1])) == nodes.SLICES,
    "_TensorDataset": lambda: nodes.class_name(tf.data.Dataset.from_tensors([1])) == nodes.TENSORS,
    "readers": lambda: nodes.class_name(tf.data.TextLineDataset("a")).startswith("readers."),
}
CLASSES = {"_TensorSliceDataset", "_TensorDataset", "readers"}  # whose names are read


def test_every_attribute_of_the_table_is_tried():
    of_tensorflow = private_name_table.TENSORFLOW + private_name_table.NEWER_TENSORFLOW
    assert attributes(of_tensorflow) & attributes(NAMES) == ATTRIBUTES.keys() - CLASSES


@pytest.mark.parametrize("name", ATTRIBUTES)
def test_an_object_still_carries_it(name):
    check_attribute(name, ATTRIBUTES[name])
