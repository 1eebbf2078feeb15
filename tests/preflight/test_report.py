"""A report as data, in words and in HTML."""

import dataclasses
import json
import re

import pytest

from keras_tpu_ext.errors import ArgumentError
from keras_tpu_ext.output.display import file_size, memory_size
from keras_tpu_ext.preflight import _text
from keras_tpu_ext.preflight.results import (
    Buffer,
    CollectiveKind,
    Collectives,
    Fault,
    LayerTime,
    MemoryUse,
)
from keras_tpu_ext.sharding.layout_report import LayoutReport, VariableLayout
from preflight.reports import GIB, MEMORY, MIB, TIME, report

pytestmark = pytest.mark.gate_on("keras3_jax")

MESH = {"data": 2, "model": 4}
SHARDED = {"mesh": MESH, "global_batch": 64, "per_replica_batch": 32}
FAULT = Fault("a shape is not known", "dense", "model.py:12", "tf.image.resize(x, (224, 224))")


def unwrapped(found):
    return _text.report_text(found, width=10_000)


def line(found, begin):
    """Return the one line that begins so, without what is before it."""
    (only,) = (text for text in unwrapped(found).splitlines() if text.strip().startswith(begin))
    return re.sub(" +", " ", only.strip())


def test_rates_follow_from_the_time_of_a_step():
    found = report()
    assert found.step_seconds == 0.010
    assert found.samples_per_sec == pytest.approx(102_400)
    assert found.host_bytes_per_sec == pytest.approx(15e9)
    nothing = report(time=None)
    assert (nothing.step_seconds, nothing.samples_per_sec, nothing.host_bytes_per_sec) == (None, None, None)


@pytest.mark.parametrize(
    ("changes", "ok"),
    [
        ({}, True),
        ({"memory": MemoryUse(16 * GIB, 16 * GIB)}, True),
        ({"memory": MemoryUse(16 * GIB + 1, 16 * GIB)}, False),
        ({"memory": MemoryUse(None, 16 * GIB)}, False),
        ({"memory": None}, False),
        ({"fault": FAULT}, False),
    ],
)
def test_it_is_ok_where_it_compiles_and_fits(changes, ok):
    assert report(**changes).ok is ok


@pytest.mark.parametrize("changes", [{}, {"time": None, "memory": None, "collectives": None, "fault": FAULT}])
def test_as_a_dict_it_is_plain_data_with_all_that_is_in_it(changes):
    found = report(**changes)
    data = found.to_dict()
    assert json.loads(json.dumps(data)) == json.loads(json.dumps(data, default=str))
    fields = {field.name for field in dataclasses.fields(found)}
    more = {
        "ok",
        "num_replicas",
        "tokens_per_sec",
        "largest_sequence_length",
        "step_seconds",
        "samples_per_sec",
        "host_bytes_per_sec",
        "left_out",
    }
    assert set(data) == (fields - {"_save"}) | more
    assert data["ok"] is found.ok
    assert data["left_out"] == list(found.left_out)
    if not changes:
        assert data["memory"]["buffers"][1]["layer"] == "block/conv2"
        assert data["time"]["shares"]["memory"] == 0.7


def test_what_was_not_compiled_in_this_process_cannot_be_saved(tmp_path, capsys):
    for made, got in [
        (report(), "one that was copied or made by hand"),
        (report(fault=FAULT), f"one whose step does not compile: {re.escape(FAULT.cause)}"),
        (report(memory=None), "one whose step does not fit"),
    ]:
        with pytest.raises(ArgumentError, match=f"save: `report` must be what preflight returned; got {got}"):
            made.save(tmp_path / "step.kte")
    assert not list(tmp_path.iterdir())
    assert report(_save=lambda path: "ab").save(tmp_path / "step.kte") == "ab"
    assert capsys.readouterr().out == f'kte.strategy_scope(compiled=("{tmp_path / "step.kte"}", "ab"))\n'


def test_where_nothing_can_be_written_is_told_before_anything_is_compiled(tmp_path):
    compiled = []
    made = report(_save=compiled.append)
    (tmp_path / "file").write_text("")
    with pytest.raises(ArgumentError, match=f"save: `path` must be a file; got the folder '{tmp_path}'"):
        made.save(tmp_path)
    with pytest.raises(OSError, match="file"):
        made.save(tmp_path / "file" / "step.kte")
    assert not compiled
    made.save(tmp_path / "new" / "step.kte")
    assert (tmp_path / "new").is_dir()


def test_of_a_cpu_it_has_memory_and_says_that_there_is_no_time():
    found = str(report(target="cpu-8", chips=8, devices=8, time=None, layers=(), collectives=None))
    assert "on cpu-8 (8 virtual devices)" in found
    assert "of memory a device" in found
    assert "There is no estimate of time for this machine's CPU" in found
    assert "chip" not in found


def test_a_dict_has_the_layout_as_the_layout_has_it():
    kernel = VariableLayout("dense/kernel", "weight", (8, 4), "float32", ("data", None), 128, 64)
    layout = LayoutReport("resnet50", MESH, (kernel,), ("a complaint",))
    data = json.loads(json.dumps(report(**SHARDED, layout=layout).to_dict()))
    assert data["layout"] == layout.to_dict()
    assert (data["layout"]["ok"], data["layout"]["by_role"]) == (False, {"weights": [128, 64]})
    assert (data["mesh"], data["num_replicas"]) == (MESH, 2)
    assert report().to_dict()["layout"] is None


def test_a_sharded_model_has_as_many_replicas_as_batches_are_parts():
    assert report().num_replicas == 8
    sharded = report(**SHARDED, largest_per_replica_batch=48)
    assert sharded.num_replicas == 2
    assert line(sharded, "largest batch").startswith("largest batch per replica that fits: 48 (96 in all;")


@pytest.mark.parametrize(
    ("changes", "verdict"),
    [
        ({}, "compiles and fits"),
        ({"memory": MemoryUse(85 * MIB, 100 * MIB)}, "compiles and fits"),
        ({"memory": MemoryUse(86 * MIB, 100 * MIB)}, "compiles, and nearly fills the memory"),
        ({"memory": MemoryUse(101 * MIB, 100 * MIB)}, "compiles, and does NOT FIT into memory"),
        ({"memory": MemoryUse(None, 100 * MIB)}, "compiles, and does NOT FIT into memory"),
        ({"fault": FAULT, "memory": None}, "does not compile"),
    ],
)
def test_the_first_line_has_the_verdict(changes, verdict):
    first = str(report(**changes)).splitlines()[0]
    assert first == f"'resnet50' on v5e-8 (8 chips), batch of 1024, 128 on each chip: {verdict}"
    assert first == _text.headline(report(**changes))


def test_the_first_line_counts_cores_where_a_chip_has_two_and_says_nothing_of_one_device():
    assert "on v3-8 (4 chips), batch of 1024, 128 on each core:" in _text.headline(report(target="v3-8", chips=4))
    alone = report(target="v5e-1", chips=1, devices=1, global_batch=128)
    assert "on v5e-1 (1 chip), batch of 128: compiles" in _text.headline(alone)
    assert "collectives of" not in str(alone)


def test_the_first_line_has_the_mesh_of_a_sharded_model():
    begin = "'resnet50' on v5e-8 (8 chips, mesh of data 2 x model 4), batch of 64, 32 a replica: "
    assert _text.headline(report(**SHARDED)) == f"{begin}compiles and fits"
    assert _text.headline(report(**SHARDED, fault=FAULT)) == f"{begin}does not compile"


def test_a_fault_says_where_and_what_instead_and_no_more():
    assert str(report(fault=FAULT)).splitlines()[1:] == [
        "  layer 'dense' (model.py:12): a shape is not known",
        "  Instead: tf.image.resize(x, (224, 224)).",
    ]
    assert str(report(fault=Fault("it is so"))).splitlines()[1:] == ["  it is so"]


@pytest.mark.parametrize(
    ("layer", "at", "text"),
    [
        ("", "model.py:12", "(model.py:12): why"),
        ("dense", "", "layer 'dense': why"),
        ("", "", "why"),
    ],
)
def test_a_fault_tells_what_is_known_of_its_place(layer, at, text):
    assert str(Fault("why", layer, at)) == text


def test_memory_is_told_by_its_parts():
    assert line(report(), "memory") == (
        "memory 4 GiB of 16 GiB of HBM a chip (25 %): 3 GiB for temporaries, 1 GiB for weights, state and batch"
    )
    assert line(report(chips=4, memory=MemoryUse(4 * GIB, 16 * GIB)), "memory") == (
        "memory 4 GiB of 16 GiB of HBM a core (25 %)"
    )
    assert line(report(memory=MemoryUse(None, 16 * GIB)), "memory") == "memory more than the 16 GiB of HBM a chip"


def test_memory_is_told_by_what_it_is_for():
    sizes = {"weights": GIB, "optimizer": 2 * GIB, "gradients": 0, "activations": 512 * MIB}
    found = report(memory=dataclasses.replace(MEMORY, by_role=sizes))
    assert line(found, "of that") == "of that 1 GiB weights, 2 GiB optimizer, 512 MiB activations"
    assert "  of that" not in unwrapped(report())


def buffer(size, purpose, cure):
    return Buffer(size * MIB, f"conv{size}", f"f32[{size}]", size == 7, purpose, cure)


def test_buffers_are_told_with_what_they_are_for_and_the_largest_with_what_makes_them_smaller():
    buffers = (
        buffer(9, "gathered weight", "a mesh"),
        buffer(8, "gathered weight", "a mesh"),
        buffer(7, "gradient", 'shard="fsdp"'),
        buffer(6, "activation", "keras.RematScope"),
    )
    found = report(memory=dataclasses.replace(MEMORY, buffers=buffers))
    assert line(found, "9 MiB") == "9 MiB conv9 f32[9], gathered weight"
    assert line(found, "7 MiB") == "7 MiB conv7, backward f32[7], gradient"
    cures = [text.strip() for text in unwrapped(found).splitlines() if text.strip().startswith("to shrink")]
    assert cures == ["to shrink gathered weights: a mesh", 'to shrink gradients: shard="fsdp"']
    silent = (buffer(9, "gathered weight", ""), buffer(8, None, ""))
    assert "a smaller" not in str(report(memory=dataclasses.replace(MEMORY, buffers=silent)))


def test_the_largest_batch_says_how_it_is_known():
    begin = "largest batch per replica that fits: 512 (4096 in all; "
    assert line(report(), "largest batch") == begin + "extrapolated from this batch, not compiled)"
    assert line(report(largest_was_compiled=True), "largest batch") == begin + "compiled)"
    assert "largest batch" not in str(report(largest_per_replica_batch=None))


def test_five_buffers_are_told_with_layer_pass_and_shape():
    assert line(report(), "512 MiB") == "512 MiB conv1 bf16[128,56,56,256]"
    assert line(report(), "1010 MiB") == "1010 MiB block/conv2, backward bf16[128,28,28,512]"
    many = dataclasses.replace(MEMORY, buffers=MEMORY.buffers * 4)
    assert str(report(memory=many)).count("bf16[") == 5
    assert "largest buffers" not in str(report(memory=MemoryUse(GIB, 16 * GIB)))


def test_time_is_told_with_its_source_and_what_bounds_it():
    found = report()
    assert line(found, "step") == "step 10 ms estimated: 102,400 examples/s, 12,800 a chip"
    assert "  75 % of it stated by the compiler" in unwrapped(found)
    assert "over the chip's memory and links, at least" in unwrapped(found)
    assert "there is no published measurement on real v5e chips to compare with" in unwrapped(found)
    assert line(found, "FLOPs") == "FLOPs 1.5e+12 per device and step, 50 % of the bfloat16 peak (MFU)"
    assert line(found, "bound by") == (
        "bound by memory (time: matrix units 25 %, memory 70 %, collectives 5 %); 120 FLOPs per byte of HBM"
    )
    assert line(found, "network") == "network 3 collectives of 102 MB: at least 1.2 ms"
    assert line(found, "host") == "host must deliver 15 GB/s (150 MB a step)"


KINDS = (
    CollectiveKind("all-gather", ("data", "model"), 12, 90_000_000, 0.001, "dense"),
    CollectiveKind("all-reduce", ("model",), 1, 12_000_000, 0.0002, "(other)"),
)


def test_collectives_are_told_by_kind_where_there_is_a_mesh():
    found = report(**SHARDED, collectives=Collectives(13, 102_000_000, 0.0012, KINDS))
    rows = [re.sub(" +", " ", text.strip()) for text in unwrapped(found).splitlines()]
    place = rows.index("network 13 collectives of 102 MB: at least 1.2 ms")
    assert rows[place + 1 : place + 3] == [
        "90 MB all-gather along data and model: 1 ms in 12 times, most in dense",
        "12 MB all-reduce along model: 200 µs in 1 time",
    ]
    assert rows[place + 3].startswith("host ")


def test_collectives_by_kind_are_six_rows_at_most_and_none_without_a_mesh():
    many = report(collectives=Collectives(13, 102_000_000, 0.0012, KINDS * 4))
    assert str(many).count(" along ") == 6
    bare = tuple(dataclasses.replace(one, axes=()) for one in KINDS)
    found = unwrapped(report(collectives=Collectives(13, 102_000_000, 0.0012, bare)))
    assert "all-gather" not in found
    assert "13 collectives of 102 MB" in found


def test_the_range_says_whose_it_is():
    time = dataclasses.replace(
        TIME, seconds_range=(0.009, 0.0125), measured="2 training steps", corrections=("copies", "collectives")
    )
    found = report(time=time, target="v3-8")
    assert "9 ms to 12.5 ms, judging by measurements on real v3 chips (2 training steps)" in unwrapped(found)
    assert "links, as measured for copies and collectives, else at least" in unwrapped(found)
    assert "the time between steps, and a real network;" in unwrapped(found)
    assert "latency of collectives" in unwrapped(report())
    alone = report(time=time, target="v6e-1", chips=1, devices=1)
    assert "links, as measured for copies, else at least" in unwrapped(alone)
    assert line(found, "network") == "network 3 collectives of 102 MB: 1.2 ms"
    lent = dataclasses.replace(time, corrections=("copies",), borrowed={"copies": "v6e"})
    assert "links, as measured for copies on v6e chips, else at least" in unwrapped(report(time=lent))


@pytest.mark.parametrize(
    ("made", "verdict"),
    [(100.0, "enough"), (2500.0, "enough"), (25.0, "75 % of the time would be spent waiting for data")],
)
def test_a_pipeline_is_set_against_what_is_wanted(made, verdict):
    expected = f"the pipeline makes {made:,.1f} batches/s here, and 100.0 are needed: {verdict}"
    assert line(report(pipeline_batches_per_sec=made), "the pipeline") == expected
    assert "the pipeline" not in str(report())


@pytest.mark.parametrize(("count", "words"), [(1, "a loop runs is"), (3, "3 loops run is")])
def test_loops_of_which_nobody_knows_are_told(count, words):
    found = report(time=dataclasses.replace(TIME, unknown_loops=count))
    assert (
        line(found, "how often")
        == f"how often {words} not known before it runs: counted once, so a step takes longer"
    )
    assert "how often" not in str(report())


def test_layers_are_a_table():
    assert line(report(), "conv1 ").split() == ["conv1", "6", "ms", "60.0", "%", "75", "%", "300", "25", "%"]
    assert line(report(), "dense ").split() == ["dense", "3", "ms", "30.0", "%", "0", "%", "0", "0", "%"]
    rows = [text for text in str(report()).splitlines() if text.endswith("%") and " ms " in text]
    assert len({len(row) for row in rows}) == 1


def test_many_layers_are_summed_up_and_long_names_keep_their_end():
    long = "a_model_of_somebody/a_block_in_it/" + "x" * 20
    layers = (
        LayerTime(long, 0.5, 0.0, 0.0, 1, 0.0),
        *[LayerTime(f"l{i}", 0.05, 0.0, 0.0, 1, 0.0) for i in range(12)],
    )
    found = report(layers=layers)
    assert line(found, "(3 more)").split() == ["(3", "more)", "150", "ms", "13.6", "%"]
    assert line(found, "…").split()[0] == f"…{long[-27:]}"


def test_what_is_left_out_is_said():
    assert unwrapped(report()).splitlines()[-2:] == [f"- {sentence}" for sentence in report().left_out]
    assert "step " not in str(report(time=None)).split("- Times")[0]


def test_below_the_first_line_it_has_80_columns_and_loses_nothing():
    found = report(memory=dataclasses.replace(MEMORY, buffers_batch=64), pipeline_batches_per_sec=25.0)
    lines = str(found).splitlines()
    assert max(map(len, lines[1:])) <= 80
    assert " ".join(str(found).split()) == " ".join(unwrapped(found).split())
    after = lines[next(i for i, text in enumerate(lines) if text.startswith("  memory")) + 1]
    assert after[:12].isspace()
    assert not any(text.lstrip().startswith("%") for text in lines)
    assert all(len(text) - len(text.lstrip(" -")) == 2 for text in lines[-5:])  # also below "- Times are"


def test_html_shows_the_same_text():
    found = report(model="<a & b>")
    assert found._repr_html_().startswith(
        '<pre style="font-family: monospace; white-space: pre">&#x27;&lt;a &amp; b&gt;&#x27; on v5e-8'
    )
    assert found._repr_html_().endswith("</pre>")


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1 KiB"),
        (1010 * MIB, "1010 MiB"),
        (15.75 * GIB, "15.8 GiB"),
        (2000 * GIB, "2000 GiB"),
    ],
)
def test_sizes_in_memory(size, text):
    assert memory_size(size) == text


@pytest.mark.parametrize(
    ("size", "text"), [(999, "999 B"), (1500, "1.5 kB"), (999_700, "1000 kB"), (2.5e12, "2500 GB")]
)
def test_sizes_on_the_way(size, text):
    assert file_size(size) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 µs"),
        (1.5e-6, "1.5 µs"),
        (999.9e-6, "1000 µs"),
        (0.0123, "12.3 ms"),
        (0.9999, "1000 ms"),
        (2.345, "2.35 s"),
    ],
)
def test_times(seconds, text):
    assert _text._seconds(seconds) == text


@pytest.mark.parametrize(
    ("by_compiler", "means"),
    [
        (True, "the instructions that the compiler has made of them"),
        (False, "their products at the matrix units' peak"),
    ],
)
def test_the_part_of_kernels_is_told_where_there_is_any(by_compiler, means):
    kernels = f"in kernels, by {means} or by their bytes, whichever takes longer"
    assert kernels not in unwrapped(report())
    found = report(time=dataclasses.replace(TIME, by_kernels=0.2, kernels_by_compiler=by_compiler))
    assert f"75 % of it stated by the compiler, 20 % {kernels}; the rest is" in unwrapped(found)
