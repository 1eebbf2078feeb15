"""The private names of tf.data and tf.distribute that are leaned on; see test_keras3_private_names.py."""

import pytest
import tensorflow as tf
from tensorflow.python.distribute import distribute_lib

from keras_tpu_ext._runtime.tensorflow.compile_only import _Extended
from keras_tpu_ext.data.pipeline import nodes
from private_names import RUNTIME, check_attribute, check_import

pytestmark = pytest.mark.runtimes("keras3_tf", "keras2_tf")

MODULE = "../data/pipeline/nodes.py"  # beside the runtime
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
    tf.data.Dataset.zip((RANGE, RANGE)),
    RANGE.concatenate(RANGE),
]
MADE = {nodes.class_name(node): node for node in NODES}


def test_every_class_of_the_table_is_tried():
    assert MADE.keys() == nodes.NODE_TYPES.keys(), f"mend {RUNTIME}{MODULE}"


@pytest.mark.parametrize("name", nodes.NODE_TYPES)
def test_a_node_is_rebuilt_from_the_arguments_of_its_operation(name):
    if name == nodes.PARALLEL_INTERLEAVE:
        # Those of TensorFlow do not keep whether they are deterministic, and so are left alone.
        assert nodes.node_type(MADE[name]) is None, f"mend {RUNTIME}{MODULE}"
        return
    assert nodes.node_type(MADE[name]) is nodes.NODE_TYPES[name], (
        f"{sorted(vars(MADE[name]))}: mend {RUNTIME}{MODULE}"
    )
    made = nodes.rebuild(MADE[name], nodes.inputs_of(MADE[name]))
    assert vars(made).keys() == vars(MADE[name]).keys(), f"mend {RUNTIME}{MODULE}"
    assert made.element_spec == MADE[name].element_spec


def test_a_node_with_an_unknown_attribute_is_left_alone():
    node = RANGE.map(same)
    node._a_new_option = 1
    assert nodes.node_type(node) is None


IMPORTED = {
    "tensorflow:Graph._get_function": "tensorflow/graph_flops.py",
    "tensorflow.python.framework.op_def_registry:get": "../data/pipeline/effects.py",
    "tensorflow.python.distribute.distribute_lib:_DefaultDistributionExtended._gather_to_implementation": (
        "tensorflow/compile_only.py"
    ),
    "tensorflow.compiler.tf2xla.ops.gen_xla_ops:xla_all_reduce": "tensorflow/compile_only.py",
    "tensorflow.compiler.tf2xla.ops.gen_xla_ops:xla_replica_id": "tensorflow/compile_only.py",
    "tensorflow.compiler.tf2xla.ops.gen_xla_ops:xla_dynamic_update_slice": "tensorflow/compile_only.py",
}


@pytest.mark.parametrize("path", IMPORTED)
def test_it_is_still_there(path):
    check_import(path, IMPORTED[path])


def test_a_strategy_that_only_compiles_overrides_what_there_is():
    own = {name for name in vars(_Extended) if not name.startswith("__")} - {"_all_reduce"}
    missing = {name for name in own if not hasattr(distribute_lib._DefaultDistributionExtended, name)}
    assert not missing, f"{missing} is gone: mend {RUNTIME}tensorflow/compile_only.py"


ATTRIBUTES = {
    "DatasetV2._inputs": lambda: RANGE.map(same)._inputs() is not None,
    "DatasetV2._functions": lambda: RANGE.map(same)._functions()[0].function.graph,
    "StructuredFunctionWrapper._func": lambda: RANGE.map(same)._functions()[0]._func is same,
    "DatasetV2._common_args": lambda: "metadata" in RANGE.map(same)._common_args,
    "DatasetV2._variant_tensor": lambda: RANGE._variant_tensor is not None,
    "_TensorSliceDataset._tensors": lambda: len(tf.data.Dataset.from_tensor_slices([1])._tensors) == 1,
    "_TensorSliceDataset": lambda: nodes.class_name(tf.data.Dataset.from_tensor_slices([1])) == nodes.SLICES,
    "_TensorDataset": lambda: nodes.class_name(tf.data.Dataset.from_tensors([1])) == nodes.TENSORS,
    "readers": lambda: nodes.class_name(tf.data.TextLineDataset("a")).startswith("readers."),
}


@pytest.mark.parametrize("name", ATTRIBUTES)
def test_an_object_still_carries_it(name):
    check_attribute(name, ATTRIBUTES[name], MODULE)
