"""The ledger of a fit whose executions and clock are made up."""

import pytest

from keras_tpu_ext import _runtime
from keras_tpu_ext.callbacks._ledger import FitLedger
from keras_tpu_ext.callbacks._step_costs import Cycle
from probed_loop import FakeExecution, Fit, HostReads

pytestmark = pytest.mark.gate_on("keras3_jax")


class Loop:
    """Runs epochs of executions as Keras does, through a ledger."""

    def __init__(self, fit, kind, *, steps=None, between=0.0, probes=False, reads_metrics=False, known=None):
        self.fit, self.kind, self.between, self.reads_metrics = fit, kind, between, reads_metrics
        self.ledger = FitLedger(None, [], fit.now, clock=fit.clock, window=20, probes=probes)
        self.ledger.probes._steps = steps
        self.ledger._known_steps = known

    def run(self, epochs, executions):
        hooks, self.intercepted = self.ledger, 0
        for epoch in range(epochs):
            hooks.on_epoch_begin(epoch)
            for batch in range(executions):
                hooks.on_train_batch_begin(batch)
                execution = self.kind(self.fit)
                if self.ledger._interception.is_in_place:
                    self.intercepted += 1
                    self.ledger._around(execution)
                else:
                    execution.run()
                hooks.on_train_batch_end(batch)
                self.fit.now += self.between
            if self.reads_metrics:  # as Keras does, before it calls the hooks
                self.fit.now = max(self.fit.now, self.fit.ready_at) + 3.0
            hooks.on_epoch_end(epoch)
        hooks.on_train_end()
        self.ledger.end()
        return self.ledger.seconds()


@pytest.fixture(autouse=True)
def nothing_to_intercept(monkeypatch):
    monkeypatch.setattr(_runtime.probes, "intercept_executions", lambda model, around: FakeInterception())


class FakeInterception:
    is_in_place = False

    def begin(self):
        self.is_in_place = True

    def undo(self):
        self.is_in_place = False


def host_reads(host, device, dispatch=0.0, batches=100):
    fit = Fit(host, dispatch, batches=batches)
    fit.device = device
    return fit


def test_devices_that_never_wait_train_all_the_time():
    fit = host_reads(host=0.5, device=2.0)
    loop = Loop(fit, HostReads, between=0.25)
    found = loop.run(1, 20)
    assert found["training"] == pytest.approx(20 * 2.0, abs=0.3)
    # The first batch, and those after three executions in which it waits for the devices.
    assert found["input"] == pytest.approx(4 * 0.5)
    assert sum(found.values()) == pytest.approx(fit.now, abs=1e-2)


@pytest.mark.parametrize("known", [None, 20])
def test_steps_that_are_dispatched_ahead_of_the_devices_train_until_the_metrics_are_read(known):
    fit = host_reads(host=0.0, device=2.0)
    loop = Loop(fit, HostReads, between=0.01, reads_metrics=True, known=known)
    found = loop.run(2, 20)
    keras = 0.0 if known else 2 * 3.0  # it is not known when the devices were done, if the last step was not
    assert found["training"] == pytest.approx(40 * 2.0 + keras, abs=0.2)
    assert found.get("idle", 0.0) == pytest.approx(6.0 - keras, abs=0.2)
    assert loop.ledger.costs.per_step().training == pytest.approx(2.0 + keras / 2 / 17, rel=0.05)


def test_devices_that_wait_for_data_wait_for_what_they_do_not_compute():
    fit = host_reads(host=3.0, device=1.0)
    found = Loop(fit, HostReads).run(1, 40)
    assert sum(found.values()) == pytest.approx(fit.now, abs=1e-2)
    # In four executions it waits for the devices before the host goes on.
    assert found["training"] == pytest.approx(40.0)
    assert found["input"] == pytest.approx(fit.now - 40.0)
    costs = Loop(host_reads(host=3.0, device=1.0), HostReads)
    costs.run(1, 40)
    each = costs.ledger.costs.per_step()
    assert each.input == pytest.approx(2.0)
    assert each.training == pytest.approx(1.0)


def test_the_time_of_the_host_between_executions_is_not_waiting_for_data():
    fit = host_reads(host=0.0, device=1.0)
    loop = Loop(fit, HostReads, between=5.0)
    found = loop.run(1, 40)
    assert found["idle"] == pytest.approx(40 * 4.0, rel=0.05)
    assert found.get("input", 0.0) == 0.0
    assert loop.ledger.costs.per_step() == pytest.approx(Cycle(1, 1.0, 0.0, 0.0, 4.0, 0.0))


def test_a_graph_that_reads_is_told_apart_by_a_probe():
    fit = Fit(host=3.0, compute=1.0)
    loop = Loop(fit, FakeExecution, steps=40)
    found = loop.run(2, 40)
    assert loop.ledger.knows_input
    assert loop.ledger.compute_seconds == pytest.approx(1.0)
    assert found["training"] == pytest.approx(80.0)
    assert found["input"] == pytest.approx(240.0)
    assert sum(found.values()) == pytest.approx(fit.now, abs=1e-2)


def test_after_its_probe_a_graph_that_reads_is_not_intercepted_until_its_last_execution():
    loop = Loop(Fit(host=3.0, compute=1.0, batches=1000), FakeExecution, steps=500, known=500, between=0.5)
    found = loop.run(1, 500)
    assert len(loop.ledger.probes.found) == 1
    assert loop.intercepted == loop.ledger.probes.needed + 2  # the one that follows it, and the last
    assert loop.ledger.executions == 500
    assert found["idle"] == pytest.approx(500 * 0.5)
    assert sum(found.values()) == pytest.approx(loop.fit.now, abs=1e-2)


def test_a_probe_lets_go_of_the_pipeline_at_its_end():
    loop = Loop(Fit(host=3.0, compute=1.0), FakeExecution, steps=40)
    began = []
    begin = loop.ledger.probes.next
    loop.ledger.probes.next = lambda *args, **more: began.append(begin(*args, **more)) or began[-1]
    loop.run(1, 40)
    (probe,) = filter(None, began)
    assert probe._ahead is None


def test_where_epochs_are_too_short_for_a_probe_it_is_not_known():
    loop = Loop(Fit(host=3.0, compute=1.0), FakeExecution, steps=5)
    found = loop.run(3, 5)
    assert not loop.ledger.knows_input
    assert found["training"] == pytest.approx(15 * 4.0)


def test_the_seconds_of_an_epoch_beyond_its_steps():
    loop = Loop(host_reads(host=0.0, device=0.0), HostReads, between=2.0)
    loop.run(1, 20)
    assert loop.ledger.left_out(2.0) == pytest.approx(0.0)
    assert loop.ledger.left_out(1.5) == pytest.approx(0.5 * 19)


def test_what_keras_does_around_the_hooks_of_a_validation_is_validation_too():
    """On TensorFlow it waits for the thread that makes the data, after the last hook."""
    fit = host_reads(host=0.0, device=0.0)
    ledger = Loop(fit, HostReads).ledger
    ledger.on_epoch_begin(0)
    ledger.on_test_begin()
    fit.now += 2.0
    ledger.on_test_end()
    fit.now += 1.0
    ledger.on_epoch_end(0)
    fit.now += 4.0
    ledger.on_train_end()
    ledger.end()
    assert ledger.seconds() == {"validation": 3.0, "idle": 4.0}


def test_data_that_end_end_the_epoch():
    fit = host_reads(host=1.0, device=0.0, batches=6)
    loop = Loop(fit, HostReads)
    with pytest.raises(StopIteration):
        loop.run(1, 7)
    assert fit.trained == list(range(6))
    loop.ledger.end()
    assert loop.ledger.seconds()["input"] == pytest.approx(6.0, abs=1e-3)


@pytest.mark.parametrize("kind", [HostReads, FakeExecution])
def test_what_the_ledger_itself_takes_is_charged_too(kind):
    fit = host_reads(host=0.0, device=0.0, batches=300)

    def clock():
        fit.now += 0.01
        return fit.now

    fit.clock = clock
    found = Loop(fit, kind).run(1, 290)
    assert sum(found.values()) == pytest.approx(fit.now, rel=0.01)
