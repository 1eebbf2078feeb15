"""One writer: a folder of checkpoints belongs to one process at a time."""

import json
import os
import subprocess
import sys
import textwrap
import time

import pytest

from keras_tpu_ext.resume import lock
from keras_tpu_ext.resume.lock import FolderLock, HeldError, Owner
from keras_tpu_ext.resume.storage import folder_of

pytestmark = pytest.mark.gate_on("keras3_jax")
HOLD = """
    import os, sys, time
    from keras_tpu_ext.resume.lock import FolderLock
    from keras_tpu_ext.resume.storage import folder_of

    held = FolderLock(folder_of(sys.argv[1]), print)
    held.acquire()
    if sys.argv[2] == "fork" and not os.fork():
        time.sleep(60)
    print("held", flush=True)
    time.sleep(60)
"""


@pytest.fixture(params=["system", "heartbeat", "object store"])
def folder(request, tmp_path, monkeypatch):
    monkeypatch.setattr(lock, "_BEAT_S", 0.1)
    monkeypatch.setattr(lock, "_WATCHED_S", 0.5)
    if request.param == "object store":
        pytest.importorskip("fsspec")
        return folder_of(f"memory://{tmp_path.name}")
    if request.param == "heartbeat":
        monkeypatch.setattr(lock, "fcntl", None)
    elif lock.fcntl is None:
        pytest.skip("there are no such locks on this system")
    return folder_of(str(tmp_path))


def test_the_second_is_refused_until_the_first_gives_it_back(folder):
    said = []
    first, second = FolderLock(folder, said.append), FolderLock(folder, said.append)
    first.acquire()
    with pytest.raises(HeldError) as caught:
        second.acquire()
    assert f"AutoResume cannot write into {folder.path}: process {os.getpid()} on " in str(caught.value)
    assert f"since {time.strftime('%Y-')}" in str(caught.value)
    assert "does so. Two trainings cannot share a folder. Wait until it has ended, or end it; or" in str(caught.value)
    first.check()
    first.release()
    assert not folder.names()
    second.acquire()
    second.release()
    assert not folder.names()
    second.release()  # does nothing


def hold(path, how="alone"):
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(HOLD), path, how], stdout=subprocess.PIPE, text=True
    )
    while process.stdout.readline() not in ("held\n", ""):
        pass
    return process


@pytest.mark.skipif(lock.fcntl is None, reason="there are no such locks on this system")
@pytest.mark.parametrize("how", [pytest.param("alone", marks=pytest.mark.exhaustive), "fork"])
def test_it_ends_with_its_process(how, tmp_path):
    """Also if that has forked another one, which has a copy of every open file."""
    process = hold(str(tmp_path), how)
    own = FolderLock(folder_of(str(tmp_path)), print)
    try:
        with pytest.raises(HeldError, match=f"process {process.pid} on"):
            own.acquire()
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
    own.acquire()
    own.release()


@pytest.mark.skipif(lock.fcntl is None, reason="there are no such locks on this system")
def test_a_copy_of_the_folder_does_not_end_it(tmp_path):
    """Some locks end when their process closes any open file of them."""
    own = FolderLock(folder_of(str(tmp_path)), print)
    own.acquire()
    for name in os.listdir(tmp_path):
        (tmp_path / name).read_bytes()
    with pytest.raises(HeldError, match=f"process {os.getpid()} on"):
        FolderLock(folder_of(str(tmp_path)), print).acquire()
    own.release()


@pytest.mark.skipif(lock.fcntl is None, reason="there are no such locks on this system")
def test_a_lock_whose_file_is_removed_is_taken_again(tmp_path):
    first, second = (FolderLock(folder_of(str(tmp_path)), print) for _ in range(2))
    first.acquire()
    os.remove(tmp_path / "keras_tpu_ext.lock")
    first.check()
    with pytest.raises(HeldError):
        second.acquire()
    os.remove(tmp_path / "keras_tpu_ext.lock")
    second.acquire()
    with pytest.raises(HeldError):
        first.check()
    first.release()
    assert os.listdir(tmp_path) == ["keras_tpu_ext.lock"], "it is the second's"
    second.release()


@pytest.mark.skipif(lock.fcntl is None, reason="there are no such locks on this system")
def test_a_lock_that_is_a_link_is_not_written(tmp_path):
    (tmp_path / "precious").write_text("mine")
    (tmp_path / "folder").mkdir()
    os.link(tmp_path / "precious", tmp_path / "folder" / "keras_tpu_ext.lock")
    with pytest.raises(OSError, match="is a link"):
        FolderLock(folder_of(str(tmp_path / "folder")), print).acquire()
    assert (tmp_path / "precious").read_text() == "mine"


@pytest.mark.parametrize("content", [None, b"", b"[]", b"\xff", json.dumps({"pid": "x"}).encode()])
def test_a_dead_owner_is_found_out(content, folder):
    """On storage without locks: its file stays as it is."""
    owner = Owner("host", 12, time.time(), "token")
    folder.write(lock._RECORD, lambda file: file.write(lock._text_of(owner) if content is None else content))
    said = []
    own = FolderLock(folder, said.append)
    own.acquire()
    own.check()
    if own._beating is not None:
        assert said == [
            f"watching for 0 s whether process {0 if content is not None else 12} still writes into {folder.path}."
        ]
    own.release()


def test_who_was_taken_for_dead_writes_no_more(folder):
    own = FolderLock(folder, print)
    own.acquire()
    if own._beating is None:
        own.release()
        pytest.skip("a lock of the system cannot be lost")
    folder.write(lock._RECORD, lambda file: file.write(lock._text_of(Owner("other", 34, 0.0, "token"))))
    with pytest.raises(HeldError, match="process 34 on other, since 1970-"):
        own.check()
    time.sleep(0.3)
    own.release()
    assert lock._RECORD in folder.names(), "it is the other's"
    folder.remove(lock._RECORD)
