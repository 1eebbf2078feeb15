"""A clock that charges time to buckets, moved by the test."""

import pytest

from keras_tpu_ext.callbacks._buckets import Buckets

pytestmark = pytest.mark.gate_on("keras3_jax")


class Clock:
    def __init__(self):
        self.now = self.compiled = 0.0

    def __call__(self):
        return self.now

    def buckets(self):
        return Buckets(self, lambda: self.compiled, 0.0, "startup")


def test_each_second_is_in_the_bucket_that_was_open():
    clock = Clock()
    buckets = clock.buckets()
    clock.now = 2.0
    buckets.open("validation")
    clock.now = 5.0
    buckets.open("idle")
    clock.now = 6.0
    assert buckets.until(clock.now) == {"startup": 2.0, "validation": 3.0, "idle": 1.0}
    assert buckets.until(9.0) == {"startup": 2.0, "validation": 3.0, "idle": 4.0}


def test_compiling_is_charged_where_it_happened():
    clock = Clock()
    buckets = clock.buckets()
    clock.now, clock.compiled = 5.0, 4.0
    buckets.open("idle")
    clock.now, clock.compiled = 6.0, 4.5
    buckets.charge("callbacks/A", 0.75)
    buckets.charge("callbacks/B", 0.25)
    assert buckets.until(clock.now) == {
        "startup": 1.0,
        "compile": 4.5,
        "callbacks/A": 0.25,
        "callbacks/B": 0.25,
        "idle": 0.0,
    }


def test_compiling_of_another_thread_takes_no_more_than_there_is():
    clock = Clock()
    buckets = clock.buckets()
    clock.now, clock.compiled = 1.0, 40.0
    buckets.open("idle")
    assert buckets.until(clock.now) == {"compile": 1.0, "startup": 0.0, "idle": 0.0}


def test_what_something_else_has_charged_is_not_charged_again():
    clock = Clock()
    buckets = clock.buckets()
    clock.now, clock.compiled = 7.0, 3.0
    buckets.skip(6.0)
    buckets.open("idle")
    assert buckets.until(8.0) == {"startup": 1.0, "idle": 1.0}


def test_compiling_is_not_lost_to_a_hook_that_took_no_time():
    clock = Clock()
    buckets = clock.buckets()
    clock.now, clock.compiled = 5.0, 4.0
    buckets.charge("callbacks/A", 0.5)
    buckets.open("idle")
    assert buckets.until(clock.now) == {"compile": 4.0, "callbacks/A": 0.0, "startup": 1.0, "idle": 0.0}
