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
    assert buckets.open("training") == "startup"
    clock.now = 5.0
    buckets.open("idle")
    clock.now = 6.0
    assert buckets.until(clock.now) == {"startup": 2.0, "training": 3.0, "idle": 1.0}
    buckets.end_cycle(computing=False)
    clock.now = 7.0
    assert buckets.until(clock.now) == {"startup": 2.0, "training": 3.0, "idle": 2.0}


def test_compiling_is_charged_where_it_happened():
    clock = Clock()
    buckets = clock.buckets()
    clock.now, clock.compiled = 5.0, 4.0
    buckets.open("idle")
    clock.now, clock.compiled = 6.0, 4.5
    buckets.charge([("callbacks/A", 0.25), ("callbacks/B", 0.75)])
    assert buckets.until(clock.now) == {"startup": 1.0, "compile": 4.5, "callbacks/A": 0.25, "callbacks/B": 0.25}


def test_compiling_of_another_thread_takes_no_more_than_there_is():
    clock = Clock()
    buckets = clock.buckets()
    clock.now, clock.compiled = 1.0, 40.0
    buckets.open("idle")
    assert buckets.until(clock.now) == {"compile": 1.0}


def test_what_runs_while_devices_are_known_to_compute_is_training():
    clock = Clock()
    buckets = clock.buckets()
    buckets.open("idle")
    buckets.computes_for(2.0)
    clock.now = 1.0
    buckets.charge([("callbacks/A", 1.0)])
    clock.now = 4.0
    buckets.charge([("callbacks/B", 1.5), ("callbacks/C", 1.5)])
    assert buckets.until(clock.now) == {"training": 2.0, "callbacks/B": 0.5, "callbacks/C": 1.5}


def test_a_cycle_at_whose_end_devices_compute_is_training_but_for_compiling():
    clock = Clock()
    buckets = clock.buckets()
    buckets.open("input")
    clock.now, clock.compiled = 3.0, 1.0
    buckets.open("callbacks/A")
    clock.now = 4.0
    cycle = buckets.end_cycle(computing=True, steps=2)
    assert cycle.steps == 2
    assert sum(seconds for _, seconds in cycle.seconds) == 4.0
    assert buckets.until(clock.now) == {"compile": 1.0, "training": 3.0}


def test_a_bucket_of_a_cycle_can_become_another():
    clock = Clock()
    buckets = clock.buckets()
    clock.now = 1.0
    buckets.open("idle")
    clock.now = 3.0
    buckets.open("training")
    buckets.relabel("idle", "validation")
    assert buckets.until(clock.now) == {"startup": 1.0, "validation": 2.0}
