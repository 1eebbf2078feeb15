"""What steps take, by a clock that only the test moves."""

import pytest

from keras_tpu_ext.callbacks._step_costs import Cycle, StepClock, StepCosts, divided

pytestmark = pytest.mark.gate_on("keras3_jax")


def cycles(lengths, steps=1):
    return [Cycle(steps, seconds, 0.0, 0.0, 0.0, 0.0) for seconds in lengths]


def training(lengths, steps=1):
    return StepCosts(cycles(lengths, steps)).per_step().training


def test_a_step_takes_what_it_takes_on_average():
    assert training([1.0, 2.0], steps=3) == pytest.approx(0.5)
    assert StepCosts().per_step() is None


def test_a_single_pause_among_many_does_not_count():
    assert training([*[1.0] * 9, 30.0]) == pytest.approx(1.0)
    assert training([*[1.0] * 8, 10.0]) == pytest.approx(2.0)  # of too few


def test_what_comes_again_counts():
    assert training([1.0, 1.0, 1.0, 11.0] * 5) == pytest.approx((15 + 4 * 11) / 19)


def test_the_longest_is_the_one_of_the_longest_steps():
    costs = StepCosts([*cycles([8.0] * 9, steps=8), *cycles([6.0])])
    assert costs.per_step().training == pytest.approx(1.0)


def test_waiting_in_the_graph_is_what_a_step_takes_beyond_one_that_is_ready():
    costs = StepCosts(cycles([3.0]))
    assert costs.per_step(1.0) == Cycle(1, 1.0, 2.0, 0.0, 0.0, 0.0)
    assert costs.per_step(4.0) == Cycle(1, 3.0, 0.0, 0.0, 0.0, 0.0)


class Run:
    """Calls a StepClock as a ledger does."""

    def __init__(self, tail=0.0):
        self.now = self.compiled = 0.0
        self.tail = tail
        self.hooks = [0.0, 0.0]
        self.clock = StepClock(lambda: self.now, lambda: self.compiled, self.hooks)
        self.of_callbacks: list[float] = []
        if tail:
            self.sample(1.0)

    def call(self, seconds, compiling=0.0, reading=0.0):
        self.clock.begin_call()
        self.now += seconds + compiling + reading
        self.compiled += compiling
        self.clock.read(reading, inside=True)
        self.clock.end_call()
        return self

    def sample(self, seconds, steps=1):
        """Make a call, and wait until the devices are done."""
        self.call(seconds)
        self.now += self.tail
        self.clock.end_computing(steps)
        return self.clock.end_cycle(steps, computing=False)

    def hook(self, which, seconds):
        self.hooks[which] += seconds
        self.now += seconds
        return self

    def read(self, seconds):
        self.now += seconds
        self.clock.read(seconds)
        return self

    def python(self, seconds):
        self.now += seconds
        return self

    def end(self, computing=False):
        cycles, of_hooks = divided([self.clock.end_cycle(1, computing=computing)])
        self.of_callbacks = of_hooks[0].tolist()
        return Cycle(*cycles[0].tolist())


def test_each_part_of_a_cycle_is_found():
    run = Run().call(1.0, compiling=16.0).hook(0, 2.0).python(4.0).hook(1, 6.0).read(8.0)
    assert run.end() == Cycle(1, 1.0, 8.0, 8.0, 4.0, 16.0)
    assert run.of_callbacks == [2.0, 6.0]
    assert run.hooks == [0.0, 0.0]
    assert run.clock.ended == run.now


def test_batches_that_are_read_in_a_call_are_not_training():
    assert Run().call(1.0, reading=2.0).end() == Cycle(1, 1.0, 2.0, 0.0, 0.0, 0.0)


def test_what_runs_beside_the_devices_is_training():
    assert Run().call(1.0, compiling=4.0).hook(0, 2.0).python(4.0).read(8.0).end(computing=True) == (
        Cycle(1, 15.0, 0.0, 0.0, 0.0, 4.0)
    )


@pytest.mark.parametrize(
    ("tail", "expected"),
    [
        (1.0, (2.0, 8.0, 1.0, 4.0)),
        (3.0, (4.0, 8.0, 0.0, 3.0)),
        (8.0, (9.0, 6.0, 0.0, 0.0)),
        (20.0, (15.0, 0.0, 0.0, 0.0)),
    ],
)
def test_the_devices_go_on_for_as_long_as_they_are_known_to(tail, expected):
    run = Run(tail).call(1.0).hook(0, 2.0).python(4.0).read(8.0)
    assert run.end() == Cycle(1, *expected, 0.0)
    assert run.of_callbacks == [pytest.approx(expected[2]), 0.0]


def test_a_hook_that_waits_for_steps_ahead_is_training():
    run = Run(tail=9.0)  # of a step of 10 s, of which a call takes 1
    for _ in range(3):
        assert run.call(1.0).python(1.0).end(computing=True) == Cycle(1, 2.0, 0.0, 0.0, 0.0, 0.0)
    assert run.call(1.0).hook(0, 35.0).end() == Cycle(1, 34.0, 0.0, 2.0, 0.0, 0.0)  # 40 s of work, and 6 had passed
    assert run.call(1.0).hook(0, 35.0).end() == Cycle(1, 10.0, 0.0, 26.0, 0.0, 0.0)  # nothing was ahead


def test_a_callback_that_compiles_takes_it_from_its_own_time():
    run = Run().call(1.0)
    run.compiled += 3.0
    assert run.hook(0, 5.0).end() == Cycle(1, 0.0, 0.0, 3.0, 0.0, 3.0)


def test_data_that_compile_take_it_from_the_time_to_read_them():
    run = Run().call(1.0, reading=5.0)
    run.compiled += 3.0
    assert run.end() == Cycle(1, 0.0, 3.0, 0.0, 0.0, 3.0)


def test_what_was_before_the_first_call_is_dropped():
    run = Run().hook(0, 2.0).read(3.0)
    assert run.clock.drop() == [2.0, 0.0]
    assert run.call(1.0).end() == Cycle(1, 1.0, 0.0, 0.0, 0.0, 0.0)


def test_cycles_that_are_divided_together_are_what_they_are_alone():
    def noted(run):
        return [
            run.call(1.0, compiling=2.0).hook(0, 2.0).read(8.0).clock.end_cycle(1, computing=False),
            run.call(1.0).hook(1, 2.0).python(3.0).clock.end_cycle(4, computing=True),
            run.call(1.0, reading=0.5).python(3.0).clock.end_cycle(2, computing=False),
        ]

    together, of_hooks = divided(noted(Run(tail=0.25)))
    alone = [divided([one]) for one in noted(Run(tail=0.25))]
    assert together.tolist() == [cycles[0].tolist() for cycles, _ in alone]
    assert of_hooks.tolist() == [hooks[0].tolist() for _, hooks in alone]
