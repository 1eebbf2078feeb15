"""Files of compiled programs: what is in them comes back, and what is not right is refused with its reason."""

import dataclasses
import os

import pytest

import saved_files
from keras_tpu_ext import _runtime
from keras_tpu_ext._runtime.common.saved_programs import SavedProgram, Signature
from keras_tpu_ext.errors import ArgumentError
from keras_tpu_ext.preflight import _saved
from keras_tpu_ext.preflight._saved import SavedFile, machine_of, open_saved

pytestmark = pytest.mark.gate_on("keras3_jax")

TPU = {
    "platform": "tpu",
    "build": "Built on Jun 17 2026 11:08:48 (1781719728) cl/933746096",
    "device kind": "TPU v5 lite",
    "devices": " ".join(f"TPU_{i}(process=0,({i % 2},{i // 2},0,0))" for i in range(8)),
    "mesh": "batch=8",
    "LIBTPU_INIT_ARGS": " --xla_tpu_use_enhanced_launch_barrier=true",
}


def a_program(number, name):
    arguments = ("tensor<128x64xf32> #sdy.sharding<@mesh, [{}, {}]>", "tensor<8xi32>")
    signature = Signature(f"jit_{name}", f"{number:063x}a", arguments, "use_spmd_partitioning=True sha256=ab")
    return SavedProgram(name, number, signature, 12.5 + number, saved_files.programs_of(number))


FILE = SavedFile("v5e-8", machine_of(TPU), (a_program(1, "train"), a_program(2, "evaluate")))


@pytest.fixture
def written(tmp_path, monkeypatch):
    """A file, and its digest."""
    monkeypatch.setattr(_runtime, "saved_programs", _runtime.saved_programs or object())
    path = tmp_path / "step.kte"
    return path, FILE.write(path)


def test_what_was_written_comes_back(written):
    assert open_saved("strategy_scope", written) == FILE
    assert open_saved("strategy_scope", (str(written[0]), written[1].upper())) == FILE
    assert [entry.name for entry in os.scandir(written[0].parent)] == ["step.kte"]


def test_it_is_as_long_as_what_is_in_it(written):
    assert written[0].stat().st_size < sum(len(one.executable) for one in FILE.programs) + 4000


@pytest.mark.parametrize("name", saved_files.MUTATIONS)
def test_a_file_with_something_else_in_it_is_refused_with_the_reason(written, name):
    path, _ = written
    change, reason = saved_files.MUTATIONS[name]
    path.write_bytes(saved_files.mutated(path.read_bytes(), change))
    with pytest.raises(ArgumentError, match=f"in which .*{reason}"):
        open_saved("strategy_scope", (path, saved_files.digest(path.read_bytes())))


@pytest.mark.parametrize("name", saved_files.DAMAGES)
def test_a_damaged_file_is_refused_by_its_digest_and_else_with_the_reason(written, name):
    path, sha256 = written
    change, reason = saved_files.DAMAGES[name]
    path.write_bytes(change(path.read_bytes()))
    with pytest.raises(ArgumentError, match=f"must be a file of the SHA-256 {sha256}; got .* and was not used"):
        open_saved("strategy_scope", (path, sha256))
    with pytest.raises(ArgumentError, match=f"in which .*({reason})"):
        open_saved("strategy_scope", (path, saved_files.digest(path.read_bytes())))


@pytest.mark.parametrize("part", saved_files.OTHER_MACHINES)
def test_a_file_for_another_machine_does_not_fit_it(part):
    assert FILE.misfit(TPU) == ""
    other = FILE._replace(machine={**FILE.machine, part: saved_files.OTHER_MACHINES[part]})
    assert other.misfit(TPU).startswith(f"{part}: expected ")
    assert other.misfit(TPU).count("expected") == 1


def test_every_part_of_a_machine_is_tried():
    assert tuple(saved_files.OTHER_MACHINES) == _saved._MACHINE


def test_what_changes_nothing_in_a_program_is_no_difference(monkeypatch):
    monkeypatch.setenv("XLA_FLAGS", "--xla_b=1 --xla_a=2")
    expected = machine_of(TPU)
    monkeypatch.setenv("XLA_FLAGS", " --xla_a=2 --xla_force_host_platform_device_count=8 --xla_b=1")
    assert machine_of(TPU) == expected
    assert expected["XLA_FLAGS"] == "--xla_a=2 --xla_b=1"


def test_a_dump_of_programs_is_a_difference_because_only_what_is_compiled_is_dumped(monkeypatch):
    expected = machine_of(TPU)
    monkeypatch.setenv("XLA_FLAGS", f"{expected['XLA_FLAGS']} --xla_dump_to=/x")
    assert machine_of(TPU)["XLA_FLAGS"] != expected["XLA_FLAGS"]


def test_a_folder_of_the_user_is_no_folder_of_that_name(written, monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    assert open_saved("strategy_scope", ("~/step.kte", written[1])) == FILE


def test_a_cpu_has_its_features_and_no_libtpu():
    machine = machine_of({"platform": "cpu"})
    assert (machine["libtpu"], machine["LIBTPU_INIT_ARGS"]) == ("", "")
    assert len(machine["processor"].split()) > 1
    assert machine_of(TPU)["processor"] == ""


@pytest.mark.parametrize(
    ("compiled", "text"),
    [
        ("step.kte", "got 'step.kte'"),
        (("step.kte",), "got ('step.kte',)"),
        (("step.kte", "abc"), "got ('step.kte', 'abc')"),
        (("step.kte", None), "got ('step.kte', None)"),
        ((b"step.kte", "a" * 64), "got (b'step.kte'"),
        (5, "got 5"),
    ],
)
def test_a_digest_is_needed_and_not_told(written, monkeypatch, compiled, text):
    monkeypatch.chdir(written[0].parent)
    with pytest.raises(ArgumentError) as told:
        open_saved("strategy_scope", compiled)
    assert str(told.value).startswith("strategy_scope: `compiled` must be a file with its SHA-256, because it holds ")
    assert text in str(told.value)
    assert str(told.value).endswith(
        'Write compiled=("step.kte", "..."), the line that report.save("step.kte") printed.'
    )
    assert written[1] not in str(told.value)


def test_a_digest_of_another_file_is_not_told(written):
    with pytest.raises(ArgumentError) as told:
        open_saved("strategy_scope", (written[0], "0" * 64))
    assert written[1] not in str(told.value)


def test_what_is_no_file_is_refused_at_once(written):
    pipe = written[0].with_name("pipe")
    os.mkfifo(pipe)
    for path in (written[0].with_name("none"), written[0].parent, pipe):
        with pytest.raises(ArgumentError, match="`compiled` must be a file that is there; got '"):
            open_saved("strategy_scope", (path, written[1]))


def test_a_file_without_end_is_not_read(written, monkeypatch):
    monkeypatch.setattr(_saved, "_LARGEST", 100)
    with pytest.raises(ArgumentError, match="a file of at most 100 bytes"):
        open_saved("strategy_scope", written)


def test_a_program_may_have_no_code(tmp_path, written):
    empty = FILE._replace(programs=(dataclasses.replace(FILE.programs[0], executable=b""),))
    path = tmp_path / "empty.kte"
    assert open_saved("strategy_scope", (path, empty.write(path))) == empty


def test_without_jax_it_says_what_is_needed(written, monkeypatch):
    monkeypatch.setattr(_runtime, "saved_programs", None)
    with pytest.raises(
        ArgumentError, match=r"strategy_scope: `compiled` needs Keras 3 on JAX; this is Keras .* on \w+\."
    ):
        open_saved("strategy_scope", written)
