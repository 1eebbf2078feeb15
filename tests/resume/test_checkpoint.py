"""Checkpoints: whole or not at all, and checked when they are read."""

import collections
import errno
import io
import itertools
import json
import os
import zipfile

import ml_dtypes
import numpy as np
import pytest

from keras_tpu_ext.errors import CheckpointError
from keras_tpu_ext.resume import checkpoint, storage
from keras_tpu_ext.resume.checkpoint import CannotWriteError, CheckpointFolder
from keras_tpu_ext.resume.report import resume_report
from keras_tpu_ext.resume.storage import folder_of

pytestmark = pytest.mark.gate_on("keras3_jax")


def content(**more):
    return {"epoch": 2, "batch": 7, "batches": 27, "time": 0.0, "finished": False, "framework": "JAX", **more}


def the_same(one, other):
    if isinstance(one, np.ndarray | np.generic):
        kinds = [(type(each), each.dtype, each.shape, each.tobytes()) for each in (one, other)]
        return kinds[0] == kinds[1]
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(the_same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return type(one) is type(other) and len(one) == len(other) and all(map(the_same, one, other))
    return type(one) is type(other) and (one == other or one != one)


def write(path, value):
    checkpoint.write(folder_of(str(path.parent)), path.name, value)


def read(path):
    return checkpoint.read(folder_of(str(path.parent)), path.name)


@pytest.fixture(params=["local", "object store"])
def directory(request, tmp_path):
    if request.param == "local":
        return str(tmp_path / "new")
    pytest.importorskip("fsspec")
    return f"memory://{tmp_path.name}"


def test_what_is_read_is_what_was_written(tmp_path):
    written = {
        "plain": [None, True, 3, 0.1, float("inf"), float("nan"), "ä", (1, (2,)), {3: "int", (1, 2): "tuple"}],
        "arrays": [np.arange(6, dtype="int8").reshape(2, 3), np.float32(0.1), np.zeros((0, 3)), np.array("text")],
        "order": np.asfortranarray(np.arange(6.0).reshape(2, 3)),
        "bytes": {"iterator": b"\x00\xff"},
        "function": np.less,
        "set": {1, 2},
    }
    write(tmp_path / "one.zip", written)
    found = read(tmp_path / "one.zip")
    assert found.pop("set") == written.pop("set")
    assert found.pop("function") is written.pop("function")
    assert the_same(found, written)


OF_ML_DTYPES = [name for name, kind in vars(ml_dtypes).items() if isinstance(kind, type) and "info" not in name]


@pytest.mark.parametrize("shape", [(2, 3), (1,), ()])
@pytest.mark.parametrize("dtype", OF_ML_DTYPES)
def test_dtypes_that_numpy_has_not(dtype, shape, tmp_path):
    values = np.array(np.arange(6)[: np.prod(shape, dtype=int)].reshape(shape), dtype=getattr(ml_dtypes, dtype))
    write(tmp_path / "one.zip", values)
    assert the_same(read(tmp_path / "one.zip"), values)


@pytest.mark.parametrize(
    "value", [object(), lambda: None, np.array([object()]), np.void(b"abc"), collections.OrderedDict(a=1)]
)
def test_what_cannot_be_written_is_named_and_leaves_nothing(value, tmp_path):
    with pytest.raises(CannotWriteError, match=r"\w+\.\w+"):
        write(tmp_path / "one.zip", {"value": value})
    assert not os.listdir(tmp_path)


def test_the_newest_ones_are_kept(directory):
    folder = CheckpointFolder(directory, keep=2)
    folder.folder.prepare()
    assert folder.read_newest() == (None, None)
    for number in range(4):
        folder.write(number)
    assert [found.number for found in folder.find()] == [3, 2]
    assert folder.read_newest()[1] == 3


def test_a_damaged_one_is_passed_over_and_not_kept(tmp_path):
    folder = CheckpointFolder(str(tmp_path), keep=2)
    for number in range(2):
        found = folder.write(np.full(1000, number))
    damage(tmp_path / found.name)
    newest, values = folder.read_newest()
    assert newest.number == 0
    assert (values == 0).all()
    assert folder.damaged == [found.name]
    folder.write(2)
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
        folder.write({"number": number, "array": np.arange(3.0)})
    before = sorted(path.name for path in tmp_path.iterdir())
    reads = itertools.count()

    class Failing(io.FileIO):
        def read(self, size=-1):
            if next(reads) >= at:
                raise error
            return super().read(size)

    with monkeypatch.context() as patch:
        patch.setattr(storage, "open", lambda path, mode: Failing(path, mode), raising=False)
        with pytest.raises(OSError, match=r"Input/output error|not enough memory"):
            folder.read_newest()
    assert not folder.damaged
    folder.write({"number": 2})
    assert sorted(path.name for path in tmp_path.iterdir()) == [before[1], "checkpoint-000002.zip"]


@pytest.mark.parametrize("kept", [0, 10, 500, 5000])
def test_half_a_file_is_no_checkpoint(kept, tmp_path):
    path = tmp_path / "one.zip"
    write(path, np.zeros(1000))
    os.truncate(path, kept)
    with pytest.raises(CheckpointError, match="is damaged, or no checkpoint of keras_tpu_ext"):
        read(path)


def test_every_byte_that_changes_is_seen(tmp_path):
    path = tmp_path / "one.zip"
    write(path, {"array": np.arange(4), "bytes": b"abc"})
    whole = path.read_bytes()
    seen = 0
    for place in range(len(whole)):
        changed = bytearray(whole)
        changed[place] ^= 1
        path.write_bytes(changed)
        try:
            found = read(path)
        except CheckpointError:
            seen += 1
        else:  # of what the archive does not need, such as the times of its members
            assert (found["array"] == np.arange(4)).all()
            assert found["bytes"] == b"abc"
    assert seen > len(whole) // 2


def test_a_failure_leaves_what_was_there(tmp_path, monkeypatch):
    folder = CheckpointFolder(str(tmp_path), keep=1)
    folder.write("before")

    def full(*args):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        folder.write("after")
    assert os.listdir(tmp_path) == ["checkpoint-000000.zip"]
    assert folder.read_newest()[1] == "before"


def test_what_a_kill_has_left_is_removed(tmp_path):
    folder = CheckpointFolder(str(tmp_path))
    (tmp_path / "checkpoint-000003.zip.keras_tpu_ext-unfinished").write_text("half")
    (tmp_path / "notes.unfinished").write_text("mine")
    assert folder.read_newest() == (None, None)
    folder.folder.prepare()
    assert os.listdir(tmp_path) == ["notes.unfinished"]


@pytest.mark.parametrize("error", [RuntimeError("quota"), PermissionError("no rights")])
def test_what_an_object_store_refuses_is_an_error_of_files(error, monkeypatch):
    memory = pytest.importorskip("fsspec").filesystem("memory")

    def refusing(*args, **kwargs):
        raise error

    folder = CheckpointFolder("memory://refused")
    folder.write("before")
    monkeypatch.setattr(type(memory), "put_file", refusing)
    with pytest.raises(OSError, match=str(error)):
        folder.write("after")
    with pytest.raises(OSError, match=str(error)):
        folder.folder.prepare()
    assert folder.read_newest()[1] == "before"


def test_one_of_a_newer_version_is_refused(tmp_path):
    path = tmp_path / "one.zip"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("checkpoint.json", json.dumps({"format": checkpoint.FORMAT + 1, "content": 1}))
    with pytest.raises(CheckpointError, match=r"newer version.*Upgrade this package"):
        read(path)


def test_the_report_tells_what_is_there(directory):
    folder = CheckpointFolder(directory)
    folder.write(content(array=np.zeros(10**6, "int8")))
    report = resume_report(directory)
    assert report.ok
    assert str(report).splitlines()[0].endswith("goes on at epoch 3, batch 7 (27 batches in all)")
    assert "checkpoint-000000.zip    1.0 MB  epoch 3, batch 7" in str(report)
    assert report.to_dict()["checkpoints"][0]["batches"] == 27
    folder.write(content(finished=True))
    assert "finished after 2 epochs, 27 batches" in str(resume_report(directory))


def test_the_report_of_a_damaged_one(tmp_path):
    folder = CheckpointFolder(str(tmp_path))
    folder.write(content())
    damage(tmp_path / folder.write(content()).name)
    report = resume_report(str(tmp_path))
    assert report.ok
    assert "damaged: " in str(report)


def test_the_report_of_no_checkpoint(tmp_path):
    assert not resume_report(str(tmp_path)).ok
    assert str(resume_report(str(tmp_path))).endswith(": no checkpoint")
    with pytest.raises(CheckpointError, match="there is no folder"):
        resume_report(str(tmp_path / "none"))
