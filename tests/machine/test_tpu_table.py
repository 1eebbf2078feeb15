"""The table of TPU generations against the figures Google published, and the names of slices."""

import dataclasses

import pytest

from keras_tpu_ext import hardware
from keras_tpu_ext.hardware import TPU_GENERATIONS

pytestmark = pytest.mark.gate_on("keras3_jax")

GIB = 2**30


@pytest.mark.parametrize(
    ("name", "board_tflops", "board_gib", "pod_tflops"),
    [("v2", 180, 64, 11_520), ("v3", 420, 128, 107_520)],
)
def test_launch_figures_of_a_board_and_a_pod(name, board_tflops, board_gib, pod_tflops):
    row = TPU_GENERATIONS[name]
    assert 4 * row.announced_peak_bf16_flops == board_tflops * 1e12
    assert 4 * row.hbm_bytes == board_gib * GIB
    assert row.pod_chips * row.announced_peak_bf16_flops == pod_tflops * 1e12
    assert str(board_tflops) in row.note
    assert row.announced_peak_bf16_flops < row.peak_bf16_flops


def test_pods_as_announced():
    # "11.5 petaflops" and "more than 100 petaflops" are Google's words of 2017 and 2019.
    v2, v3 = TPU_GENERATIONS["v2"], TPU_GENERATIONS["v3"]
    assert round(v2.pod_chips * v2.announced_peak_bf16_flops / 1e15, 1) == 11.5
    assert v3.pod_chips * v3.announced_peak_bf16_flops > 100e15


@pytest.mark.parametrize(
    ("name", "tflops", "gib", "gigabytes_per_s", "cores", "tensorcores", "pod"),
    [
        ("v2", 46, 16, 700, 2, 2, 256),
        ("v3", 123, 32, 900, 2, 2, 1024),
        ("v4", 275, 32, 1200, 1, 2, 4096),
        ("v5e", 197, 16, 819, 1, 1, 256),
        ("v5p", 459, 95, 2765, 1, 2, 8960),
        ("v6e", 918, 32, 1638, 1, 1, 256),
        ("7x", 2307, 192, 7380, 2, 2, 9216),
    ],
)
def test_published_figures(name, tflops, gib, gigabytes_per_s, cores, tensorcores, pod):
    row = TPU_GENERATIONS[name]
    assert row.name == name
    assert row.peak_bf16_flops == tflops * 1e12
    assert row.hbm_bytes == gib * GIB
    assert row.hbm_bandwidth == gigabytes_per_s * 1e9
    assert (row.cores_per_chip, row.tensorcores_per_chip, row.pod_chips) == (cores, tensorcores, pod)
    assert "https://" in row.source


def test_table_is_complete_and_cannot_be_changed():
    assert list(TPU_GENERATIONS) == ["v2", "v3", "v4", "v5e", "v5p", "v6e", "7x"]
    with pytest.raises(TypeError):
        TPU_GENERATIONS["v2"] = TPU_GENERATIONS["v3"]
    with pytest.raises(dataclasses.FrozenInstanceError):
        TPU_GENERATIONS["v2"].name = "v1"


@pytest.mark.parametrize(
    ("name", "estimate", "near_peak"),
    [
        ("v2", 22.8, True),
        ("v3", 61.4, True),
        ("v4", 2 * 137, True),  # the compiler was asked about one TensorCore, of which a device has two
        ("v5e", 197, True),
        ("v5p", 394, False),
        ("v6e", 918, True),
        ("7x", 996, False),
    ],
)
def test_compiler_never_expects_more_than_the_peak_of_a_device(name, estimate, near_peak):
    """One 8192^3 bf16 matmul by the TPU compiler's own cost model, in TFLOP/s per device."""
    peak = TPU_GENERATIONS[name].peak_bf16_flops_per_core
    assert estimate * 1e12 <= peak
    if near_peak:
        assert estimate * 1e12 >= 0.99 * peak


def test_figures_per_device():
    v3, v4 = TPU_GENERATIONS["v3"], TPU_GENERATIONS["v4"]
    assert (v3.peak_bf16_flops_per_core, v3.hbm_bytes_per_core) == (61.5e12, 16 * GIB)
    assert v3.hbm_bandwidth_per_core == 450e9
    assert (v4.peak_bf16_flops_per_core, v4.hbm_bytes_per_core) == (275e12, 32 * GIB)
    assert v4.hbm_bandwidth_per_core == 1200e9


@pytest.mark.parametrize(
    ("name", "gigabits_per_s"),
    [("v2", 1984), ("v3", 2624), ("v4", 2400), ("v5e", 1600), ("v5p", 4800), ("v6e", 3200), ("7x", 4800)],
)
def test_links_are_those_published_and_slower_than_memory(name, gigabits_per_s):
    row = TPU_GENERATIONS[name]
    assert row.ici_bandwidth == gigabits_per_s / 8 * 1e9
    assert row.ici_bandwidth < row.hbm_bandwidth


@pytest.mark.parametrize(
    ("name", "estimate", "units"),
    [
        ("v2", 22.8, 1),
        ("v3", 61.4, 2),
        ("v4", 2 * 137, 8),
        ("v5e", 197, 4),
        ("v5p", 394, 8),
        ("v6e", 918, 16),
        ("7x", 996, 16),
    ],
)
def test_a_clock_turns_units_of_128_by_128_into_the_compilers_own_rate(name, estimate, units):
    """The rate is that of one 8192^3 bf16 matmul, in TFLOP/s per device."""
    row = TPU_GENERATIONS[name]
    assert 0.5e9 < row.clock_hz < 2.5e9
    assert estimate * 1e12 == pytest.approx(units * 128 * 128 * 2 * row.clock_hz, rel=0.01)


@pytest.mark.parametrize("name", TPU_GENERATIONS)
def test_a_program_may_use_nearly_all_of_the_memory_of_a_device(name):
    row = TPU_GENERATIONS[name]
    assert isinstance(row.usable_hbm_bytes_per_core, int)
    assert 0.9 < row.usable_hbm_bytes_per_core / row.hbm_bytes_per_core <= 1.01


# Names of slices


@pytest.mark.parametrize(
    ("text", "name", "chips", "devices"),
    [
        ("v2-8", "v2", 4, 8),
        ("v3-8", "v3", 4, 8),
        ("v3-32", "v3", 16, 32),
        ("v4-8", "v4", 4, 4),
        ("v5litepod-8", "v5e", 8, 8),
        ("v5e-8", "v5e", 8, 8),
        ("v5e-256", "v5e", 256, 256),
        ("v5p-8", "v5p", 4, 4),
        ("v6e-8", "v6e", 8, 8),
        ("v6e-1", "v6e", 1, 1),
        ("tpu7x-8", "7x", 4, 8),
        ("7x-8", "7x", 4, 8),
        (" V5E-8\n", "v5e", 8, 8),
    ],
)
def test_accelerator_type(text, name, chips, devices):
    generation, found = hardware.parse_accelerator_type(text)
    assert (generation.name, found) == (name, chips)
    assert generation.cores_per_chip * found == devices


@pytest.mark.parametrize("name", TPU_GENERATIONS)
@pytest.mark.parametrize("chips", [1, 4, 256])
def test_slice_name_is_the_inverse(name, chips):
    text = TPU_GENERATIONS[name].slice_name(chips)
    assert hardware.parse_accelerator_type(text) == (TPU_GENERATIONS[name], chips)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "v3",
        "v3-",
        "v3-0",
        "v3-7",
        "v1-8",
        "v9z-8",
        "v3-8-8",
        "x v3-8",
        "v3-٨",
        "v3-" + "9" * 5000,
        None,
        8,
    ],
)
def test_no_accelerator_type(text):
    assert hardware.parse_accelerator_type(text) is None


@pytest.mark.parametrize("generation", TPU_GENERATIONS.values(), ids=TPU_GENERATIONS)
def test_jax_knows_a_generation_by_its_device_kind(generation):
    assert hardware.generation_of_device(generation.device_kind) is generation
