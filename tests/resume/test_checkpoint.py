"""Checkpoints: whole or not at all, and checked when they are read."""

import errno
import io
import itertools
import json
import os
import zipfile

import numpy as np
import pytest

from keras_tpu_ext._runtime.common.random_state import random_state
from keras_tpu_ext._runtime.common.values import Place, SavedVariable
from keras_tpu_ext.errors import CheckpointError
from keras_tpu_ext.resume import checkpoint, storage
from keras_tpu_ext.resume.checkpoint import CheckpointFolder
from keras_tpu_ext.resume.data_spec import DataSpec
from keras_tpu_ext.resume.report import resume_report
from keras_tpu_ext.resume.saver import copied_to_host
from keras_tpu_ext.resume.tensor_file import CannotWriteError
from some_checkpoint import some_checkpoint

pytestmark = pytest.mark.gate_on("keras3_jax")


@pytest.fixture(params=["local", "object store"])
def directory(request, tmp_path):
    if request.param == "local":
        return str(tmp_path / "new")
    pytest.importorskip("fsspec")
    return f"memory://{tmp_path.name}"


def test_what_is_read_is_what_was_written(tmp_path):
    folder = CheckpointFolder(str(tmp_path))
    written = some_checkpoint()
    found, read = folder.read_newest() if folder.write(written) else None
    assert found.name == "checkpoint-000000.safetensors"
    assert repr(read.to_content()) == repr(written.to_content())
    assert isinstance(read.place, Place)
    assert isinstance(read.data, DataSpec)
    folder.write(read)
    assert repr(folder.read_newest()[1].to_content()) == repr(written.to_content())


@pytest.mark.parametrize(
    ("role", "value", "dtype", "has_diverged"),
    [
        ("weight", np.nan, "float32", True),  # the loss of the next step shows it
        ("weight", np.nan, "bfloat16", True),
        ("weight", -np.inf, "float32", False),  # a running maximum begins with it
        ("optimizer", np.nan, "float32", False),
        ("weight", 3, "int32", False),
    ],
)
def test_a_weight_that_is_nan_has_diverged(role, value, dtype, has_diverged):
    one = SavedVariable(role, "a", np.full(2, value, dtype))
    assert copied_to_host(some_checkpoint(variables=[one])).diverged == has_diverged


def test_what_cannot_be_written_is_named_and_leaves_nothing(tmp_path):
    with pytest.raises(CannotWriteError, match=r"builtins\.object"):
        CheckpointFolder(str(tmp_path)).write(some_checkpoint(callbacks=[("Mine", {"value": object()})]))
    with pytest.raises(
        CannotWriteError, match=r"its lists, texts and numbers take 3\d,\d{3},\d{3} bytes, more than 25"
    ):
        CheckpointFolder(str(tmp_path)).write(some_checkpoint(callbacks=[("Mine", {"value": "x" * 30_000_000})]))
    assert not os.listdir(tmp_path)


def test_the_newest_ones_are_kept(directory):
    folder = CheckpointFolder(directory, keep=2)
    folder.folder.prepare()
    assert folder.read_newest() == (None, None)
    for number in range(4):
        folder.write(some_checkpoint(epoch=number))
    assert [found.number for found in folder.find()] == [3, 2]
    assert folder.read_newest()[1].epoch == 3


def test_a_damaged_one_is_passed_over_and_not_kept(tmp_path):
    folder = CheckpointFolder(str(tmp_path), keep=2)
    for number in range(2):
        found = folder.write(some_checkpoint(epoch=number))
    damage(tmp_path / found.name)
    newest, values = folder.read_newest()
    assert newest.number == 0
    assert values.epoch == 0
    assert folder.damaged == [found.name]
    folder.write(some_checkpoint())
    assert [one.number for one in folder.find()] == [2, 0]


def damage(path):
    size = os.path.getsize(path)
    with open(path, "r+b") as file:
        file.seek(size // 3)
        byte = file.read(1)
        file.seek(size // 3)
        file.write(bytes([byte[0] ^ 1]))


@pytest.mark.parametrize("error", [OSError(errno.EIO, "Input/output error"), MemoryError()])
@pytest.mark.parametrize("at", [0, 3])
def test_what_cannot_be_read_now_is_not_damaged(error, at, tmp_path, monkeypatch):
    folder = CheckpointFolder(str(tmp_path))
    for number in range(2):
        folder.write(some_checkpoint(epoch=number))
    before = sorted(path.name for path in tmp_path.iterdir())
    reads = itertools.count()

    class Failing(io.FileIO):
        def read(self, size=-1):
            if next(reads) >= at:
                raise error
            return super().read(size)

        def readinto(self, content):
            if next(reads) >= at:
                raise error
            return super().readinto(content)

    with monkeypatch.context() as patch:
        patch.setattr(storage, "open", lambda path, mode: Failing(path, mode), raising=False)
        with pytest.raises(OSError, match=r"Input/output error|not enough memory"):
            folder.read_newest()
    assert not folder.damaged
    folder.write(some_checkpoint())
    assert sorted(path.name for path in tmp_path.iterdir()) == [before[1], "checkpoint-000002.safetensors"]


def test_a_failure_leaves_what_was_there(tmp_path, monkeypatch):
    folder = CheckpointFolder(str(tmp_path), keep=1)
    folder.write(some_checkpoint())

    def full(*args):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        folder.write(some_checkpoint(epoch=3))
    assert os.listdir(tmp_path) == ["checkpoint-000000.safetensors"]
    assert folder.read_newest()[1].epoch == 2


def test_what_a_kill_has_left_is_removed(tmp_path):
    folder = CheckpointFolder(str(tmp_path))
    (tmp_path / "checkpoint-000003.safetensors.keras_tpu_ext-unfinished").write_text("half")
    (tmp_path / "notes.unfinished").write_text("mine")
    assert folder.read_newest() == (None, None)
    folder.folder.remove_unfinished()
    assert os.listdir(tmp_path) == ["notes.unfinished"]


@pytest.mark.parametrize("error", [RuntimeError("quota"), PermissionError("no rights")])
def test_what_an_object_store_refuses_is_an_error_of_files(error, monkeypatch):
    memory = pytest.importorskip("fsspec").filesystem("memory")

    def refusing(*args, **kwargs):
        raise error

    folder = CheckpointFolder("memory://refused")
    folder.write(some_checkpoint())
    monkeypatch.setattr(type(memory), "put_file", refusing)
    with pytest.raises(OSError, match=str(error)):
        folder.write(some_checkpoint(epoch=3))
    with pytest.raises(OSError, match=str(error)):
        folder.folder.prepare()
    assert folder.read_newest()[1].epoch == 2


def test_one_of_another_version_is_refused(tmp_path, monkeypatch):
    folder = CheckpointFolder(str(tmp_path))
    with monkeypatch.context() as patch:
        patch.setattr(checkpoint, "FORMAT", 3)
        folder.write(some_checkpoint())
    with pytest.raises(CheckpointError, match=r"its format is 3, and this version reads 2\. Upgrade this package"):
        folder.read_newest()
    assert "cannot be used: " in str(resume_report(str(tmp_path)))
    assert "its format is 3" in str(resume_report(str(tmp_path)))
    assert not resume_report(str(tmp_path)).ok


def test_one_of_format_1_is_refused_and_stays(tmp_path):
    with zipfile.ZipFile(tmp_path / "checkpoint-000004.zip", "w") as archive:
        archive.writestr("checkpoint.json", json.dumps({"format": 1, "content": {"function": "os:system"}}))
    folder = CheckpointFolder(str(tmp_path))
    with pytest.raises(
        CheckpointError, match=r"checkpoint-000004\.zip is of format 1, which could run code .* use the"
    ):
        folder.read_newest()
    with pytest.raises(CheckpointError, match="of format 1"):
        resume_report(str(tmp_path))
    assert os.listdir(tmp_path) == ["checkpoint-000004.zip"]


def test_folders_and_pipes_that_are_named_like_one(tmp_path):
    folder = CheckpointFolder(str(tmp_path))
    (tmp_path / "checkpoint-000004.safetensors").mkdir()
    os.mkfifo(tmp_path / "checkpoint-000005.safetensors")
    (tmp_path / f"checkpoint-{'9' * 200}.safetensors").write_bytes(b"")
    assert folder.read_newest() == (None, None)
    assert folder.write(some_checkpoint()).number == 6
    assert folder.read_newest()[1].epoch == 2
    assert len(resume_report(str(tmp_path)).checkpoints) == 1


def test_the_last_one_with_a_finite_loss_is_kept(tmp_path):
    folder = CheckpointFolder(str(tmp_path), keep=2)
    for number in range(5):
        folder.write(some_checkpoint(diverged=number > 1))
    assert [found.number for found in folder.find()] == [4, 3, 1]
    again = CheckpointFolder(str(tmp_path), keep=1)  # another process
    assert again.last_before_it_diverged() == "checkpoint-000001.safetensors"
    again.write(some_checkpoint(diverged=True))
    assert [found.number for found in again.find()] == [5, 1]
    again.write(some_checkpoint())
    assert [found.number for found in again.find()] == [6]


WRONG = {
    "epoch": (-5, "epoch must be an integer of at least 0; got -5"),
    "batch": ("x", "batch must be an integer of at least 0; got 'x'"),
    "batches": (3, "batch must be no more than batches, 3; got 7"),
    "epochs": (2**70, "epochs must be an integer of at least 0"),
    "finished": (1, "finished must be true or false; got 1"),
    "time": (float("nan"), "time must be a finite number; got nan"),
    "keras": (None, "keras must be a text; got None"),
    "history": ({"epoch": [0]}, "history must be an object with the key 'history'"),
    "callbacks": ([("EarlyStopping", [])], "must be an object; got a list of 0"),
    "variables": ([SavedVariable("code", "a", np.ones(2))], r"variables\[0\]\.role must be one of 'weight'"),
    "seed": (2.5, "seed must be an integer"),
    "place": (
        Place(0, 0, None, {"python": (3, (1,), None), "numpy": None}, None),
        "random must be states of Python's",
    ),
    "data": (DataSpec("arrays", rows="many"), r"data\.rows must be an integer"),
}


@pytest.mark.parametrize("name", WRONG)
def test_content_of_another_kind_is_damage(name, tmp_path):
    value, message = WRONG[name]
    folder = CheckpointFolder(str(tmp_path))
    folder.write(some_checkpoint(epoch=1))
    found = folder.write(some_checkpoint(**{name: value}))
    with pytest.raises(checkpoint.DamagedError, match=message):
        checkpoint.read(folder.folder, found.name)
    assert folder.read_newest()[1].epoch == 1
    assert folder.damaged == [found.name]


def test_numbers_that_leave_no_room_are_none_of_ours(tmp_path):
    folder = CheckpointFolder(str(tmp_path))
    found = folder.write(some_checkpoint())
    for number in ("999999999", "999000000", "9" * 12):
        (tmp_path / f"checkpoint-{number}.safetensors").write_bytes((tmp_path / found.name).read_bytes())
    assert folder.write(some_checkpoint(epoch=3)).number == 1
    assert folder.read_newest()[1].epoch == 3


@pytest.mark.parametrize("changed", [{1: 10**9}, {1: -1}, {0: "PCG64"}, {0: np.ones(2)}, {2: np.ones(2)}, {3: 7}])
def test_states_of_generators_that_numpy_would_read_beyond_are_refused(changed, tmp_path):
    """NumPy reads memory at any position that it is told."""
    random = random_state()
    numpy = list(random["numpy"])
    for place, value in changed.items():
        numpy[place + (place > 0)] = value
    place = Place(0, 0, None, {**random, "numpy": tuple(numpy)}, None)
    folder = CheckpointFolder(str(tmp_path))
    found = folder.write(some_checkpoint(place=place))
    with pytest.raises(checkpoint.DamagedError, match="states of Python's and NumPy's random generators"):
        checkpoint.read(folder.folder, found.name)


def test_the_report_tells_what_is_there(directory):
    folder = CheckpointFolder(directory)
    folder.write(some_checkpoint(data_state=[("Mine", {"array": np.zeros(10**6, "int8")})]))
    report = resume_report(directory)
    assert report.ok
    assert str(report).splitlines()[0].endswith("goes on at epoch 3, batch 7 (27 batches in all)")
    assert "checkpoint-000000.safetensors   1.02 MB  epoch 3, batch 7" in str(report)
    assert report.to_dict()["checkpoints"][0]["batches"] == 27
    folder.write(some_checkpoint(finished=True, diverged=True))
    assert "finished after 2 epochs, 27 batches" in str(resume_report(directory))
    assert "JAX  its loss is no finite number" in str(resume_report(directory))


def test_the_report_prints_no_control_characters(tmp_path):
    CheckpointFolder(str(tmp_path)).write(some_checkpoint(framework="\x1b]0;title\x07\x1b[2J", time=1e300))
    assert "\x1b" not in str(resume_report(str(tmp_path)))
    assert r"\x1b]0;title" in str(resume_report(str(tmp_path)))


def test_the_report_of_a_damaged_one(tmp_path):
    folder = CheckpointFolder(str(tmp_path))
    folder.write(some_checkpoint())
    damage(tmp_path / folder.write(some_checkpoint()).name)
    report = resume_report(str(tmp_path))
    assert report.ok
    assert "cannot be used: " in str(report)


def test_the_report_of_no_checkpoint(tmp_path):
    assert not resume_report(str(tmp_path)).ok
    assert str(resume_report(str(tmp_path))).endswith(": no checkpoint")
    with pytest.raises(CheckpointError, match="there is no folder"):
        resume_report(str(tmp_path / "none"))
