"""Patches of what replicas and threads share."""

import sys
import threading
import types

import pytest

from keras_tpu_ext._runtime.common.patches import patched

pytestmark = pytest.mark.gate_on("keras3_jax")


def test_threads_leave_what_they_found():
    shared = types.ModuleType("shared")
    shared.name = before = object()
    errors = []

    def enter_and_leave():
        try:
            for _ in range(3000):
                with patched([(shared, "name", lambda old: [old])]):
                    assert shared.name == [before]
        except BaseException as error:
            errors.append(error)

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        threads = [threading.Thread(target=enter_and_leave) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    assert not errors
    assert shared.name is before


def test_what_cannot_be_patched_leaves_nothing_patched():
    shared = types.ModuleType("shared")
    shared.name = before = object()
    patches = [(shared, "name", lambda old: None), (shared, "missing", lambda old: None)]
    with pytest.raises(AttributeError, match="missing"), patched(patches):
        raise AssertionError("not to be reached")
    assert shared.name is before
