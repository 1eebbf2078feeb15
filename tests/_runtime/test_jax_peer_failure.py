"""What a process tells the others when an error ends it, and what it heeds; no other process is started here."""

import sys
import threading
import time
import types

import pytest

from keras_tpu_ext._runtime.jax import process_group
from keras_tpu_ext._runtime.jax.process_group import end_with_peers
from keras_tpu_ext.errors import ClusterError

pytestmark = pytest.mark.runtimes("keras3_jax")


class Store:
    """The key-value store of JAX's coordination service."""

    def __init__(self):
        self.values = {}

    def key_value_set(self, key, value):
        self.values[key] = value

    def key_value_dir_get(self, folder):
        return [(key, value) for key, value in self.values.items() if key.startswith(folder)]


@pytest.fixture
def store(monkeypatch):
    """Return the store that this process, one of several, shares with the others."""
    client = Store()
    monkeypatch.setattr(process_group, "_global_state", types.SimpleNamespace(client=client, process_id=1))
    monkeypatch.setattr(process_group, "_Loops", type("_Loops", (process_group._Loops,), {}))
    monkeypatch.setattr(process_group, "_POLL_S", 0.01)
    monkeypatch.setattr(process_group, "_GRACE_S", 0.01)
    monkeypatch.setattr(process_group, "_shut_down", lambda: None)
    monkeypatch.delattr(sys, "last_value", raising=False)
    return client


def fail(error):
    with pytest.raises(type(error)), end_with_peers():
        raise error


def fail_when_told():
    with end_with_peers():
        while not process_group._Loops.watch.reason:
            time.sleep(0.01)
        raise RuntimeError("Gloo: connection closed")


def published(store):
    process_group._publish_failure()
    return store.values.get("keras_tpu_ext/failed/1")


def watches():
    return [one for one in threading.enumerate() if isinstance(one, process_group._PeerWatch)]


def test_a_process_without_an_error_publishes_nothing(store):
    with end_with_peers():
        pass
    assert published(store) is None


def test_an_error_that_ended_the_last_loop_is_published_with_the_number_of_loops_before_it(store):
    with end_with_peers(), end_with_peers():
        pass  # a validation within a fit
    fail(ValueError("\nbad data\nand more"))
    assert published(store) == "1 ValueError: bad data"


def test_an_error_after_the_last_loop_is_published_with_the_number_of_all_loops(store, monkeypatch):
    with end_with_peers():
        pass
    monkeypatch.setattr(sys, "last_value", KeyError(), raising=False)
    assert published(store) == "1 KeyError"


def test_an_error_is_forgotten_when_a_later_loop_has_ended_well(store):
    fail(ValueError("out of memory"))
    with end_with_peers():
        pass
    assert published(store) is None


def test_only_a_process_that_has_not_got_through_this_loop_ends_it(store):
    store.values["keras_tpu_ext/failed/0"] = "1 ValueError: after the first loop"
    with end_with_peers():
        time.sleep(0.2)
        assert process_group._Loops.watch.reason == ""
    with pytest.raises(ClusterError) as caught:
        fail_when_told()
    assert str(caught.value).startswith("Process 0 of 1 has failed (ValueError: after the first loop), so this one")
    assert isinstance(caught.value.__cause__, RuntimeError)


def test_a_process_that_cannot_be_interrupted_prints_the_error_and_exits(store, monkeypatch, capsys):
    exited = threading.Event()
    monkeypatch.setattr(process_group, "_LEAVE_S", 0.01)
    monkeypatch.setattr(process_group.os, "_exit", lambda status: status == 1 and exited.set())
    store.values["keras_tpu_ext/failed/0"] = "0 ValueError: bad data"
    with end_with_peers():
        assert exited.wait(timeout=10)
    begin = "keras_tpu_ext.errors.ClusterError: Process 0 of 1 has failed (ValueError: bad data), so this one,"
    assert capsys.readouterr().err.startswith(begin)


def test_the_watch_ends_with_the_outermost_loop(store):
    with end_with_peers():
        with end_with_peers():
            (watch,) = watches()
        assert watches() == [watch]
    watch.join(timeout=10)
    assert not watch.is_alive()


def test_one_process_alone_has_no_watch():
    with end_with_peers():
        assert watches() == []
