"""Patches of what replicas and threads share."""

import functools
import sys
import threading
import types

import pytest

from keras_tpu_ext._runtime.common import patches
from keras_tpu_ext._runtime.common.patches import install, patched
from keras_tpu_ext.errors import RuntimeNotSupportedError

pytestmark = pytest.mark.gate_on("keras3_jax")


@pytest.fixture(autouse=True)
def places_of_these_tests(monkeypatch):
    for name in ("shared.name", "shared.missing", "Parent.method", "Parent.make", "Parent.add"):
        monkeypatch.setitem(patches._NAMES, name, name.split(".")[-1])


class Parent:
    def __init__(self):
        self.calls = []

    def method(self, value):
        return [value]

    @classmethod
    def make(cls, value):
        return [cls.__name__, value]

    @staticmethod
    def add(one, two):
        return [one + two]


class Child(Parent):
    pass


def doubling(stock):
    return lambda *args: stock(*args) * 2


def test_threads_leave_what_they_found():
    shared = types.ModuleType("shared")
    shared.name = before = object()
    errors = []

    def enter_and_leave():
        try:
            for _ in range(3000):
                with patched([(shared, "shared.name", lambda old: [old])]):
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
    patches = [(shared, "shared.name", lambda old: None), (shared, "shared.missing", lambda old: None)]
    with pytest.raises(RuntimeNotSupportedError, match=r"`shared\.missing` is gone"), patched(patches):
        raise AssertionError("not to be reached")
    assert shared.name is before


def test_a_place_that_is_not_in_the_table_is_refused():
    with pytest.raises(LookupError, match=r"'shared\.other' is to be patched, and is not in .*patch_table"):
        patched([(types.ModuleType("shared"), "shared.other", lambda old: None)]).__enter__()


def test_a_value_that_somebody_has_set_meanwhile_stays():
    shared = types.ModuleType("shared")
    shared.name = 1
    with patched([(shared, "shared.name", lambda old: old + 1)]):
        assert shared.name == 2
        shared.name = 7
    assert shared.name == 7


@pytest.mark.parametrize("owner", [Parent, Child])
def test_methods_of_each_kind_are_patched_as_such_and_left_as_they_were(owner):
    before = [dict(vars(Parent)), dict(vars(Child))]
    places = [(owner, f"Parent.{name}", doubling) for name in ("method", "make", "add")]
    for _ in range(2):
        with patched(places):
            assert Child().method(1) == [1, 1]
            assert Child.make(1) == ["Child", 1] * 2 == Child().make(1)
            assert Child.add(1, 2) == [3, 3] == Child().add(1, 2)
    assert [dict(vars(Parent)), dict(vars(Child))] == before
    assert Child().method(1) == [1]


def test_a_method_of_one_object_is_patched():
    child = Child()
    with patched([(child, "Parent.method", doubling)]):
        assert child.method(1) == [1, 1]
        assert Child().method(1) == [1]
    assert list(vars(child)) == ["calls"]


@pytest.mark.parametrize("owner", [Parent, Child])
def test_a_wrapper_round_a_patch_stays_and_the_patch_in_it_ends(owner):
    block = patched([(owner, "Parent.method", doubling)])
    had = "method" in vars(owner)
    stock = Parent.method

    def wrap(stock):
        @functools.wraps(stock)
        def wrapper(self, value):
            self.calls.append(value)
            return stock(self, value)

        return wrapper

    with block:
        owner.method = wrapper = wrap(owner.method)
        with block:
            assert Child().method(1) == [1, 1]
        assert Child().method(1) == [1, 1]
    try:
        assert owner.method is wrapper
        for _ in range(2):
            child = Child()
            assert child.method(1) == [1]
            assert child.calls == [1]
            with block:
                assert child.method(2) == [2, 2]
            assert child.calls == [1, 2]
        assert owner.method is wrapper
        owner.method = wrapper.__wrapped__  # its owner takes it off, and puts back what he found
        with block:
            assert Child().method(1) == [1, 1]
        assert Child().method(1) == [1]
    finally:
        setattr(owner, "method", stock) if had else delattr(owner, "method")


def test_what_somebody_has_kept_from_a_block_works_as_in_each_block():
    block = patched([(Parent, "Parent.method", doubling)])
    with block:
        kept = Parent.method
    assert kept(Parent(), 1) == [1]
    with block:
        assert kept(Parent(), 1) == [1, 1]


def test_what_is_installed_stays_and_is_there_once():
    shared = types.ModuleType("shared")
    shared.name = lambda: [1]
    for _ in range(2):
        install([(shared, "shared.name", doubling)])
    assert shared.name() == [1, 1]


def added(stock):
    return lambda *args: [*stock(*args), "for good"]


@pytest.mark.parametrize("first", ["for good", "block"])
def test_a_block_patches_what_is_patched_for_good(first):
    class Own(Parent):
        pass

    own = Own()
    block = patched([(Own, "Parent.method", doubling)])
    if first == "for good":
        install([(Own, "Parent.method", added)])
        assert own.method(1) == [1, "for good"]
    with block:
        if first == "block":
            install([(Own, "Parent.method", added)])
        assert own.method(1) == [1, "for good"] * 2
    assert own.method(1) == [1, "for good"]
    with block, block:
        assert own.method(1) == [1, "for good"] * 2
    assert own.method(1) == [1, "for good"]


def test_somebodys_wrapper_round_a_patch_for_good_stays_after_a_block():
    class Own(Parent):
        pass

    own = Own()
    install([(Own, "Parent.method", added)])
    with patched([(Own, "Parent.method", doubling)]):
        inner = Own.method
        Own.method = lambda *args: ["logged", *inner(*args)]
        assert own.method(1) == ["logged", *[1, "for good"] * 2]
    assert own.method(1) == ["logged", 1, "for good"]
    with patched([(Own, "Parent.method", doubling)]):
        assert own.method(1) == ["logged", 1, "for good"] * 2
    assert own.method(1) == ["logged", 1, "for good"]
