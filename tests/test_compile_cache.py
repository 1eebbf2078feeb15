"""The folder of compiled programs, which needs no framework."""

import errno
import os
import re
import shutil

import keras
import numpy as np
import pytest

import keras_tpu_ext as kte
from keras_tpu_ext import compile_cache, resume
from keras_tpu_ext.compile_cache import CompileCache
from keras_tpu_ext.errors import ArgumentError, RuntimeNotSupportedError
from keras_tpu_ext.machine import system

PROGRAM = bytes(range(256)) * 8


@pytest.fixture
def cache(tmp_path):
    return CompileCache(str(tmp_path / "programs"))


def entries(cache):
    return sorted(os.listdir(cache._path))


def path_of(cache, key):
    (name,) = (name for name in entries(cache) if name.startswith(key))
    return os.path.join(cache._path, name)


def test_a_program_is_read_again_by_another_process_and_in_another_place(cache, tmp_path):
    assert cache.get("step") is None
    cache.put("step", PROGRAM)
    shutil.copytree(cache._path, tmp_path / "moved")
    assert CompileCache(str(tmp_path / "moved")).get("step") == PROGRAM


@pytest.mark.parametrize("damage", ["cut off", "empty", "a flipped bit", "something else"])
def test_what_is_damaged_is_missing_and_written_anew(cache, damage):
    cache.put("step", PROGRAM)
    path = path_of(cache, "step")
    with open(path, "rb") as file:
        whole = file.read()
    flipped = bytearray(whole)
    flipped[-100] ^= 1
    changed = {"cut off": whole[:-1], "empty": b"", "a flipped bit": flipped, "something else": b"MZ" * 99}[damage]
    with open(path, "wb") as file:
        file.write(changed)
    assert cache.get("step") is None
    cache.put("step", PROGRAM)
    assert cache.get("step") == PROGRAM


@pytest.mark.parametrize("what", ["pipe", "loop", "link to nothing"])
def test_what_is_no_file_is_missing_and_written_anew(cache, what):
    cache.put("step", PROGRAM)
    path = path_of(cache, "step")
    os.remove(path)
    if what == "pipe":
        os.mkfifo(path)
    else:
        os.symlink(path if what == "loop" else "nothing", path)
    assert cache.get("step") is None  # and does not wait for who writes into a pipe
    cache.put("step", PROGRAM)
    assert cache.get("step") == PROGRAM


@pytest.mark.parametrize("what", ["loop", "link to nothing", "folder"])
def test_what_is_no_file_does_not_keep_others_from_making_room(cache, monkeypatch, what):
    monkeypatch.setattr(compile_cache, "_MOST_BYTES", len(PROGRAM) + 32)
    path = os.path.join(cache._path, "stranger.program")
    if what == "folder":
        os.mkdir(path)
    else:
        os.symlink(path if what == "loop" else "nothing", path)
    for key in ("a", "b"):
        cache.put(key, PROGRAM)
    assert [name.split("-")[0] for name in entries(cache)] == ["b", "stranger.program"]


@pytest.mark.parametrize("what", ["libtpu", "CPU"])
def test_programs_of_another_libtpu_or_cpu_are_not_taken(cache, monkeypatch, what):
    cache.put("step", PROGRAM)
    if what == "libtpu":
        monkeypatch.setattr(compile_cache, "installed_version", lambda name: "0.0.99")
    else:
        monkeypatch.setattr(system, "read_text", lambda root, file: "flags\t\t: fpu avx512f\n")
    assert CompileCache(cache._path).get("step") is None


def test_the_programs_used_longest_ago_make_room(cache, monkeypatch):
    monkeypatch.setattr(compile_cache, "_MOST_BYTES", 3 * (len(PROGRAM) + 32))
    with open(os.path.join(cache._path, "of-the-user"), "wb") as file:
        file.write(PROGRAM * 9)
    for age, key in enumerate(["a", "b", "c"]):
        cache.put(key, PROGRAM)
        os.utime(path_of(cache, key), (age, age))
    assert cache.get("a") == PROGRAM  # used now
    cache.put("d", PROGRAM)
    assert [name.split("-")[0] for name in entries(cache)] == ["a", "c", "d", "of"]


def test_a_full_disk_leaves_nothing_behind_and_is_told_once(cache, monkeypatch):
    def full(file):
        raise OSError(errno.ENOSPC, "No space left on device")

    cache.put("before", PROGRAM)
    monkeypatch.setattr(resume.storage.os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):  # of which JAX makes a warning
        cache.put("step", PROGRAM)
    cache.put("another", PROGRAM)
    assert [name.split("-")[0] for name in entries(cache)] == ["before"]
    assert cache.get("before") == PROGRAM


@pytest.mark.runtimes("keras3_jax")
def test_a_folder_that_cannot_be_written_is_read(cache, monkeypatch, capsys):
    cache.put("step", PROGRAM)

    def refuse(*args, **kwargs):
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(resume.storage.tempfile, "TemporaryFile", refuse)
    monkeypatch.setattr(compile_cache, "_USE", compile_cache._Use())
    monkeypatch.setattr(kte._runtime.devices, "use_compile_cache", lambda path, cache: None)
    compile_cache._open(cache._path)
    assert re.search("programs are read from .*; none is kept: .*Permission denied", capsys.readouterr().err)
    assert compile_cache._USE.cache.get("step") == PROGRAM
    compile_cache._USE.cache.put("another", PROGRAM)
    assert len(entries(cache)) == 1


@pytest.mark.runtimes("keras3_jax")
def test_errors_say_what_to_write(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ArgumentError, match=r"`compile_cache` must be a folder; got '.*file' \(.*File exists"):
        kte.strategy_scope(require="cpu", compile_cache=tmp_path / "file")
    with pytest.raises(ArgumentError, match=r'the path of a folder; got True. Write compile_cache="programs"\.'):
        kte.strategy_scope(require="cpu", compile_cache=True)
    with pytest.raises(ArgumentError, match=r"pip install fsspec gcsfs for gs://"):
        kte.strategy_scope(require="cpu", compile_cache="nothing://programs")


@pytest.mark.runtimes("keras3_tf", "keras2_tf")
def test_tensorflow_refuses(tmp_path):
    with pytest.raises(RuntimeNotSupportedError, match=r"compile_cache=\.\.\.\) is for Keras 3 on JAX"):
        kte.strategy_scope(require="cpu", compile_cache=tmp_path)


class TestAuto:
    """Which folder `"auto"` is."""

    pytestmark = pytest.mark.runtimes("keras3_jax")

    @pytest.fixture(autouse=True)
    def opened(self, tmp_path, monkeypatch):
        """A process that has not used a cache; the folders that JAX was given."""
        given = []
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
        monkeypatch.setattr(compile_cache, "_USE", compile_cache._Use())
        monkeypatch.setattr(kte._runtime.devices, "use_compile_cache", lambda path, cache: given.append(path))
        monkeypatch.setattr(kte._runtime.devices, "compile_cache_dir", lambda: given[-1] if given else None)
        return given

    def fit(self, *callbacks):
        with kte.strategy_scope(require="cpu", replicas=2, compile_cache="auto"):
            model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
            model.compile("sgd", "mse")
        model.fit(np.ones((8, 2)), np.ones((8, 1)), verbose=0, callbacks=callbacks)

    def test_it_is_in_the_users_cache(self, opened, tmp_path):
        self.fit()
        self.fit()
        assert opened == [str(tmp_path / "home" / "keras_tpu_ext" / "compile")]

    @pytest.mark.parametrize("also", [None, kte.callbacks.Goodput])
    def test_and_beside_the_checkpoints(self, opened, tmp_path, also):
        for _ in range(2):
            others = [] if also is None else [also()]
            self.fit(kte.callbacks.AutoResume(tmp_path / "checkpoints"), *others)
        beside = str(tmp_path / "checkpoints-compile-cache")
        assert opened[:2] == [str(tmp_path / "home" / "keras_tpu_ext" / "compile"), beside]
        assert set(opened[2:]) <= {beside}

    def test_what_jax_was_given_stays(self, opened, tmp_path, capsys):
        opened.append("/users/own")
        self.fit(kte.callbacks.AutoResume(tmp_path / "checkpoints"))
        assert opened == ["/users/own"]
        assert "leaves JAX the compilation cache that it has, in /users/own" in capsys.readouterr().err

    def test_a_folder_of_the_user_is_no_folder_of_that_name(self, opened, tmp_path, monkeypatch):
        monkeypatch.setenv("HOME", str(tmp_path))
        monkeypatch.chdir(tmp_path)
        kte.strategy_scope(require="cpu", replicas=2, compile_cache="~/programs")
        assert opened == [str(tmp_path / "programs")]

    def test_where_nothing_can_be_written_programs_are_compiled(self, opened, tmp_path, capsys):
        (tmp_path / "home").write_text("")
        self.fit()
        assert opened == []
        assert "compiled programs are not kept in" in capsys.readouterr().err
