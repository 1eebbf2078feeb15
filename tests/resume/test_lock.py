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

    held = FolderLock(folder_of(sys.argv[1]))
    held.acquire()
    if sys.argv[2] == "fork" and not os.fork():
        time.sleep(60)
    print("held", flush=True)
    time.sleep(60)
"""


@pytest.fixture(params=["disk", "object store"])
def without_locks(request, tmp_path, monkeypatch):
    if request.param == "object store":
        pytest.importorskip("fsspec")
        return folder_of(f"memory://{tmp_path.name}")
    monkeypatch.setattr(lock, "fcntl", None)
    return folder_of(str(tmp_path))


@pytest.mark.skipif(lock.fcntl is None, reason="there are no such locks on this system")
def test_the_second_is_refused_until_the_first_gives_it_back(tmp_path):
    folder = folder_of(str(tmp_path))
    first, second = FolderLock(folder), FolderLock(folder)
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
    own = FolderLock(folder_of(str(tmp_path)))
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
    own = FolderLock(folder_of(str(tmp_path)))
    own.acquire()
    for name in os.listdir(tmp_path):
        (tmp_path / name).read_bytes()
    with pytest.raises(HeldError, match=f"process {os.getpid()} on"):
        FolderLock(folder_of(str(tmp_path))).acquire()
    own.release()


@pytest.mark.skipif(lock.fcntl is None, reason="there are no such locks on this system")
def test_a_lock_whose_file_is_removed_is_taken_again(tmp_path):
    first, second = (FolderLock(folder_of(str(tmp_path))) for _ in range(2))
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
        FolderLock(folder_of(str(tmp_path / "folder"))).acquire()
    assert (tmp_path / "precious").read_text() == "mine"


@pytest.mark.parametrize("content", [None, b"", b"[]", b"\xff", json.dumps({"pid": "x"}).encode()])
def test_without_locks_a_file_of_another_is_taken_over(content, without_locks):
    """At once: nothing tells whether its process lives."""
    owner = Owner("host", 12, time.time(), "token")
    without_locks.write(lock._RECORD, lambda file: file.write(lock._text_of(owner) if content is None else content))
    own = FolderLock(without_locks)
    own.acquire()
    own.check()
    own.release()
    assert not without_locks.names()


def test_without_locks_the_one_before_writes_no_more(without_locks):
    first, second = FolderLock(without_locks), FolderLock(without_locks)
    first.acquire()
    second.acquire()
    with pytest.raises(HeldError, match=f"process {os.getpid()} on"):
        first.check()
    second.check()
    first.release()
    assert without_locks.names() == [lock._RECORD], "it is the other's"
    second.release()
    assert not without_locks.names()
