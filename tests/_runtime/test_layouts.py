"""Layouts by shapes and layers, in shapes small enough to say what is right."""

import pytest

from keras_tpu_ext._runtime.common.layouts import LayerFacts, MeshAxes, Patterns, sharded_spec

pytestmark = pytest.mark.gate_on("keras3_jax")

DATA = MeshAxes({"data": 8}, "data")
BOTH = MeshAxes({"data": 2, "model": 4}, "data")
TENSOR = MeshAxes({"data": 1, "model": 8}, "data")


@pytest.mark.parametrize(
    ("shape", "spec"),
    [
        ((), ()),
        ((4096,), (None,)),
        ((2**16,), ("data",)),  # a vector that is large
        ((16, 64), (None, "data")),
        ((64, 16), ("data", None)),
        ((64, 64), ("data", None)),
        ((3, 3, 16, 40), (None, None, None, "data")),
        ((7, 5), (None, None)),
        ((7, 16), (None, "data")),
        ((1001, 16), (None, "data")),  # the larger one is not divided
    ],
)
def test_one_axis_shards_the_largest_dimension_that_it_divides(shape, spec):
    assert sharded_spec(shape, LayerFacts(), DATA) == spec


QUERY, OUTPUT = LayerFacts("EinsumDense", "abc,cde->abde"), LayerFacts("EinsumDense", "abcd,cde->abe")


@pytest.mark.parametrize(
    ("shape", "layer", "spec"),
    [
        ((64, 4, 16), QUERY, ("data", "model", None)),
        ((4, 16, 64), OUTPUT, ("model", None, "data")),
        ((64, 6, 16), QUERY, ("model", None, "data")),  # 4 devices do not divide 6 heads
        ((8, 64, 16), LayerFacts("EinsumDense", "btd,ndh->btnh"), ("model", "data", None)),
        ((8, 16, 64), LayerFacts("EinsumDense", "btnh,nhd->btd"), ("model", None, "data")),
        ((64, 256), LayerFacts("EinsumDense", "btd,df->btf"), ("data", "model")),
        ((64, 256), LayerFacts("Dense"), ("data", "model")),
        ((256, 64), LayerFacts("Dense"), ("model", "data")),
        ((64, 64), LayerFacts("Dense"), ("data", "model")),
        ((1000, 64), LayerFacts("Embedding"), ("model", "data")),
        ((1001, 64), LayerFacts("Embedding"), (None, "model")),
        ((3, 3, 64, 32), LayerFacts("Conv2D"), (None, None, "data", "model")),
        ((64, 3), LayerFacts("Dense"), ("model", None)),
    ],
)
def test_a_further_axis_is_that_of_tensor_parallelism(shape, layer, spec):
    assert sharded_spec(shape, layer, BOTH) == spec


def test_an_axis_of_one_device_shards_nothing():
    assert sharded_spec((64, 256), LayerFacts("Dense"), TENSOR) == (None, "model")
    assert sharded_spec((64, 256), LayerFacts("Dense"), MeshAxes({"data": 1}, "data")) == (None, None)


def test_three_axes():
    axes = MeshAxes({"data": 2, "model": 2, "more": 2}, "data")
    assert sharded_spec((4, 8, 16), LayerFacts(), axes) == ("data", "more", "model")


def test_a_pattern_matches_where_it_is_found_and_a_whole_path_before_others():
    patterns = Patterns({"dense.*kernel": (None, "model"), "dense_1/kernel": ("model", None), "gone": ()})
    assert patterns.matching("block/dense/kernel") == ["dense.*kernel"]
    assert patterns.matching("dense_1/kernel") == ["dense_1/kernel"]
    assert patterns.matching("block/dense_1/kernel") == ["dense.*kernel", "dense_1/kernel"]
    assert patterns.matching("bias") == []
    assert patterns.unmatched(["block/dense/kernel", "dense_1/kernel", "bias"]) == ["gone"]
    assert patterns.unmatched(["bias"]) == ["dense.*kernel", "dense_1/kernel", "gone"]
