"""The private names of tf.data and tf.distribute that `_runtime` leans on; see test_keras3_private_names.py."""

import inspect

import pytest
import tensorflow as tf
from tensorflow.python.distribute import distribute_lib

from keras_tpu_ext._runtime.tensorflow.compile_only import _Extended
from keras_tpu_ext.data.pipeline import stages as pipeline
from keras_tpu_ext.data.pipeline.stage_kinds import KINDS, PARALLEL_INTERLEAVE, SLICES, TENSORS
from private_names import RUNTIME, check_attribute, check_import

RANGE = tf.data.Dataset.range(6)


def same(x):
    return x


def one(x):
    return tf.data.Dataset.from_tensors(x)


def some(x):
    return x < 4


STAGES = [
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
MADE = {pipeline.name_of(stage): stage for stage in STAGES}


def test_every_class_of_the_table_is_tried():
    assert MADE.keys() == KINDS.keys(), f"mend {RUNTIME}pipeline/stage_kinds.py"


@pytest.mark.parametrize("name", KINDS)
def test_a_stage_is_made_of_what_the_table_says(name):
    if name == PARALLEL_INTERLEAVE:
        # Those of TensorFlow do not keep whether they are deterministic, and so are left alone.
        assert pipeline.kind_of(MADE[name]) is None, f"mend {RUNTIME}pipeline/stage_kinds.py"
        return
    assert pipeline.kind_of(MADE[name]) is KINDS[name], (
        f"{sorted(vars(MADE[name]))}: mend {RUNTIME}pipeline/stage_kinds.py"
    )
    made = pipeline.remade(MADE[name], pipeline.inputs_of(MADE[name]))
    assert vars(made).keys() == vars(MADE[name]).keys(), f"mend {RUNTIME}pipeline/stages.py"
    assert made.element_spec == MADE[name].element_spec


@pytest.mark.parametrize("name", [name for name in KINDS if KINDS[name].op])
def test_an_operation_takes_nothing_else(name):
    takes = set(inspect.signature(getattr(tf.raw_ops, KINDS[name].op)).parameters)
    own = {attribute[1:] for attribute in KINDS[name].own | KINDS[name].optional}
    others = {"input_dataset", "input_datasets", "another_dataset", "other_arguments", "f", "predicate", "name"}
    others |= {"output_types", "output_shapes", "metadata", "cache", "seed_generator", "legacy_autotune"}
    others |= {"slack_period", "buffer_size_min", "require_non_empty"}  # of no method
    others |= {"parallel_copy"} if "Batch" in name else set()  # False, and set by TensorFlow's own optimizer
    unknown = takes - own - others
    assert not unknown, f"{KINDS[name].op} takes {unknown}: mend {RUNTIME}pipeline/stage_kinds.py"


def test_a_stage_with_an_unknown_attribute_is_left_alone():
    stage = RANGE.map(same)
    stage._a_new_option = 1
    assert pipeline.kind_of(stage) is None


IMPORTED = {
    "tensorflow:Graph._get_function": "tensorflow/graph_flops.py",
    "tensorflow.python.framework.op_def_registry:get": "pipeline/function_effects.py",
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
    "_TensorSliceDataset": lambda: pipeline.name_of(tf.data.Dataset.from_tensor_slices([1])) == SLICES,
    "_TensorDataset": lambda: pipeline.name_of(tf.data.Dataset.from_tensors([1])) == TENSORS,
    "readers": lambda: pipeline.name_of(tf.data.TextLineDataset("a")).startswith("readers."),
}


@pytest.mark.parametrize("name", ATTRIBUTES)
def test_an_object_still_carries_it(name):
    check_attribute(name, ATTRIBUTES[name], "pipeline/stages.py")
