"""Slices to compile for, by the names that users and XLA have for them."""

import math

import pytest

from keras_tpu_ext.errors import ArgumentError
from keras_tpu_ext.hardware import TPU_GENERATIONS
from keras_tpu_ext.preflight.targets import parse_target

pytestmark = pytest.mark.gate_on("keras3_jax")


@pytest.mark.parametrize(
    ("name", "said", "topology", "chips", "devices"),
    [
        ("v2-8", "v2-8", "v2:2x2", 4, 8),
        ("v3-8", "v3-8", "v3:2x2", 4, 8),
        ("v3-32", "v3-32", "v3:4x4", 16, 32),
        ("v4-8", "v4-8", "v4:2x2x1", 4, 4),
        ("v4-32", "v4-32", "v4:2x2x4", 16, 16),
        ("v5e-1", "v5e-1", "v5e:1x1", 1, 1),
        ("v5e-8", "v5e-8", "v5e:2x4", 8, 8),
        ("v5litepod-8", "v5e-8", "v5e:2x4", 8, 8),
        ("v5e-256", "v5e-256", "v5e:16x16", 256, 256),
        ("v5p-8", "v5p-8", "v5p:2x2x1", 4, 4),
        ("v5p-128", "v5p-128", "v5p:4x4x4", 64, 64),
        ("v6e-8", "v6e-8", "v6e:2x4", 8, 8),
        ("7x-8", "7x-8", "tpu7x:2x2x1", 4, 8),
        ("tpu7x-16", "7x-16", "tpu7x:2x2x2", 8, 16),
        (" V3-8\n", "v3-8", "v3:2x2", 4, 8),
    ],
)
def test_a_slice_by_its_name(name, said, topology, chips, devices):
    target = parse_target(name)
    assert (target.name, target.topology, target.chips, target.devices) == (said, topology, chips, devices)
    assert target.generation is TPU_GENERATIONS[said.split("-")[0]]


@pytest.mark.parametrize("name", ["7x", "v7x", "tpu7x", "TPU7x"])
def test_the_seventh_generation_without_a_number_is_one_host(name):
    assert parse_target(name) == parse_target("7x-8")


def test_options_are_said_where_the_topology_leaves_something_open():
    assert parse_target("v5e-16").topology_options == {}  # four chips to a host
    assert parse_target("v5e-8").topology_options == {"chips_per_host_bounds": [2, 4, 1]}
    assert parse_target("v5e-1").topology_options == {"chips_per_host_bounds": [1, 1, 1]}
    assert parse_target("v4-8").topology_options == {"chip_config_name": "megacore"}


@pytest.mark.parametrize(("name", "said", "devices"), [("cpu", "cpu-1", 1), (" CPU-8", "cpu-8", 8)])
def test_this_machines_cpu_is_a_target_with_a_part_of_its_memory(name, said, devices):
    target = parse_target(name)
    assert (target.name, target.devices, target.is_cpu) == (said, devices, True)
    assert target.generation.device_kind == "cpu"
    memory = parse_target("cpu").generation.usable_hbm_bytes_per_core
    assert target.generation.usable_hbm_bytes_per_core == memory // devices > 1e8
    assert not parse_target("v5e-8").is_cpu


@pytest.mark.parametrize("name", TPU_GENERATIONS)
def test_a_grid_has_all_chips_of_the_slice_and_is_nearly_square(name):
    generation = TPU_GENERATIONS[name]
    for exponent in range(2, int(math.log2(generation.pod_chips)) + 1):
        target = parse_target(generation.slice_name(2**exponent))
        grid = [int(size) for size in target.topology.split(":")[1].split("x")]
        assert math.prod(grid) == target.chips == 2**exponent
        assert grid == sorted(grid) or grid == [2, 2, 1]
        assert max(grid) <= 2 * min(grid)
        assert len(grid) == (2 if name in ("v2", "v3", "v5e", "v6e") else 3)


@pytest.mark.parametrize("name", ["", "v1-8", "v3", "v3-7", "gpu", "8", None, 8])
def test_what_is_no_slice_is_named_with_those_that_there_are(name):
    with pytest.raises(
        ArgumentError, match=r"the generations are v2, v3, v4, v5e, v5p, v6e, 7x\. Write target="
    ) as caught:
        parse_target(name)
    assert f"There is no TPU slice {name!r}" in str(caught.value)


@pytest.mark.parametrize(
    ("name", "sizes"),
    [
        ("v2-2", "v2 comes as v2-8, v2-16, v2-32, v2-64, v2-128, v2-256, v2-512."),
        ("v3-24", "v3 comes as v3-8, v3-16, v3-32, v3-64, v3-128, v3-256, v3-512, v3-1024, v3-2048."),
        ("v5e-2", "v5e comes as v5e-1, v5e-4, v5e-8, v5e-16, v5e-32, v5e-64, v5e-128, v5e-256."),
        ("v5e-512", "v5e comes as v5e-1, v5e-4,"),
        ("v4-4", "v4 comes as v4-8, v4-16,"),
    ],
)
def test_another_size_is_told_with_those_that_there_are(name, sizes):
    with pytest.raises(ArgumentError, match=f"There is no slice '{name}': {sizes}"):
        parse_target(name)


@pytest.mark.parametrize("name", TPU_GENERATIONS)
def test_every_size_that_is_told_can_be_had_up_to_the_largest(name):
    generation = TPU_GENERATIONS[name]
    with pytest.raises(ArgumentError) as caught:
        parse_target(generation.slice_name(3))
    told = str(caught.value).split("comes as ")[1].split(". Write")[0].split(", ")
    assert [parse_target(size).name for size in told] == told
    assert 2 * parse_target(told[-1]).chips > generation.pod_chips
