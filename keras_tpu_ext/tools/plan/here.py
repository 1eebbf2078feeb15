"""A training on this machine: parts of it are run under the ledger of `callbacks.Goodput`."""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import statistics
import time
from collections.abc import Iterator
from typing import Any

import numpy as np

from keras_tpu_ext import _runtime
from keras_tpu_ext._runtime.common.random_state import random_state, set_random_state
from keras_tpu_ext.callbacks._buckets import COMPILE, IDLE, INPUT, STARTUP, TRAINING, VALIDATION
from keras_tpu_ext.callbacks._fit_observer import LedgerUser
from keras_tpu_ext.checks import arguments as check
from keras_tpu_ext.output.display import counted, duration
from keras_tpu_ext.tools.plan.data import PlannedData
from keras_tpu_ext.tools.plan.report import Cost, Seconds

_SECONDS = 8.0  # for which parts are run, the first one aside, in which all is compiled
_PARTS = 4  # at least about so many, whose spread is the range
_STEADY = 6  # executions of a part at least, and where they are slow three of any kind
_NO_END = 10**6  # epochs
_DRIFT = 0.1  # of each bucket: a machine is not always as fast; chosen, not measured


@contextlib.contextmanager
def restoring(model: Any) -> Iterator[None]:
    """Give back weights, optimizer, metrics, seeds, history and the global random states at the end."""
    build = getattr(model.optimizer, "build", None)
    if not model.built or build is None:  # what the first step makes has no value to go back to
        needed = "built, with an optimizer that can be, so that it can be as before afterwards"
        write = "plan(build_model, ...), a function that returns it"
        raise check.argument_error("plan", "model", needed, f"{model.name!r}, which is not", write)
    build(model.trainable_variables)
    variables = [variable for _, variable in _runtime.training_state.all_variables(model)]
    values = [np.array(_runtime.ops.value_of(variable)) for variable in variables]
    random, history = random_state(), vars(model).get("history")
    try:
        yield
    finally:
        model.reset_metrics()  # of which some are made by the first step
        for variable, value in zip(variables, values, strict=True):
            variable.assign(value)
        model.history, model.stop_training = history, False
        set_random_state(random)


class Part(LedgerUser):
    """Ends a `fit` after an epoch in which `seconds` are over, or within the first one; and long validations."""

    def __init__(self, model: Any, steps: int, steps_of_validation: int, seconds: float) -> None:
        super().__init__()
        self._of, self._seconds = model, seconds  # on JAX `self.model` is expensive
        self._all = {TRAINING: steps, VALIDATION: steps_of_validation}
        self._done = dict(self._all)  # steps of an epoch that have run
        self.epochs = 0
        self._executions = self._last = 0
        self._since: dict[str, float] = {}

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        """End the first epoch if it is time."""
        if not self.epochs and self._is_over(TRAINING, batch):
            self._of.stop_training = True

    def on_test_batch_begin(self, batch: int, logs: Any = None) -> None:
        """End the validation if it is time; that of Keras 2 runs to its end."""
        if self._is_over(VALIDATION, batch):
            self._of.stop_evaluating = True

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """End `fit` if it is time."""
        self.epochs += 1
        if self.clock() - self._since.get(TRAINING, 0.0) > self._seconds:
            self._of.stop_training = True

    def _is_over(self, what: str, batch: int) -> bool:
        """Return whether the execution that begins with a batch is to be the last one."""
        self._executions = self._executions + 1 if batch else 1
        stride, self._last = batch - self._last, batch
        if self._executions <= 2:  # the first one compiles
            self._since[what] = self.clock()
        ran = self.clock() - self._since[what]
        steady = self._ledger.costs.executions if self._ledger and what == TRAINING else self._executions
        is_slow = ran > _PARTS * self._seconds and self._executions > _STEADY // 2
        over = ran > self._seconds and (steady >= _STEADY or is_slow)
        if over:
            self._done[what] = min(batch + stride, self._all[what])
        return over

    @property
    def validations(self) -> float:
        """How many whole validations those steps make that have run."""
        return self.epochs * self._done[VALIDATION] / (self._all[VALIDATION] or 1)

    def of_epoch(self) -> dict[str, float]:
        """Return the seconds of a whole epoch by bucket, and those of `compile` and `startup` in this `fit`."""
        ledger = self._ledger
        assert ledger is not None, "fit has run"
        found, each = ledger.seconds(), ledger.costs.per_step(ledger.compute_seconds)
        done, steps = self._done[TRAINING], self._all[TRAINING]
        probing = sum(one.cost_seconds for one in ledger.probes.found)  # which `fit` does not do without the ledger
        found[INPUT] = max(found.get(INPUT, 0.0) - probing, 0.0)
        for bucket in (TRAINING, INPUT, IDLE):
            seconds = found.get(bucket, 0.0) / self.epochs
            of_step = seconds / done if each is None else getattr(each, bucket)
            found[bucket] = seconds + (steps - done) * of_step
        if VALIDATION in found:
            found[VALIDATION] /= self.validations
        return found


def costs_here(model: Any, data: PlannedData, validation: PlannedData | None, epochs: int) -> list[Cost]:
    """Run some steps of the training and return what all of it costs, saves aside."""
    more = {} if validation is None else validation.as_validation()
    parts: list[dict[str, float]] = []
    began = time.perf_counter()
    with _older_objects_frozen():
        while len(parts) < 3 or time.perf_counter() - began < _SECONDS:
            part = Part(model, data.steps, 0 if validation is None else validation.steps, _SECONDS / _PARTS)
            model.fit(**data.arguments(), **more, epochs=_NO_END, verbose=0, callbacks=[part])
            parts.append(part.of_epoch())
            gc.collect()  # a loop that was ended early is a cycle with its iterator, and TensorFlow may not exit then
            if len(parts) == 1:
                validations, began = part.validations, time.perf_counter()
    # On TensorFlow nothing tells how long a validation compiles.
    slower = parts[0].get(VALIDATION, 0.0) - Seconds.of([one.get(VALIDATION, 0.0) for one in parts[1:]]).middle
    compiled = sum(one.get(COMPILE, 0.0) for one in parts) + max(slower, 0.0) * validations
    return _costs(data, parts, compiled, epochs)


@contextlib.contextmanager
def _older_objects_frozen() -> Iterator[None]:
    """Let the garbage collector skip what is there already, which in a notebook may be millions of objects."""
    are_frozen = gc.get_freeze_count() > 0
    gc.freeze()
    try:
        yield
    finally:
        if not are_frozen:
            gc.unfreeze()


def _costs(data: PlannedData, parts: list[dict[str, float]], compiled: float, epochs: int) -> list[Cost]:
    """Return what a training costs, from the seconds of an epoch in each part, the first of which compiled."""
    advice = {**_ADVICE, INPUT: faster_input(data)}
    found = []
    for bucket, write in advice.items():
        measured = [one.get(bucket, 0.0) for one in parts[1:]]
        # Not the mean: what disturbs a part that is ended early counts for all of its epoch.
        each = Seconds(statistics.median(measured), min(measured), max(measured))
        how = f"{counted(epochs, 'epoch')} of {duration(each.middle)}, measured here"
        if bucket == TRAINING:
            how = f"{data.steps * epochs:,} steps of {duration(each.middle / data.steps)}, measured here"
        found.append(Cost(bucket, each * epochs, how, write))
    compile_ = Seconds(compiled, compiled, compiled * len(data.shapes()))  # if no part came to the last batch
    found.append(Cost(COMPILE, compile_, "as long as here", kept_programs()))
    startup = Seconds.exactly(parts[0].get(STARTUP, 0.0))
    found.append(Cost(STARTUP, startup, "from the call of fit to its first epoch, measured here"))
    return [dataclasses.replace(cost, seconds=cost.seconds.widened(_DRIFT)) for cost in found]


_ADVICE = {
    TRAINING: 'target="v5e-8", to plan it for a TPU',
    IDLE: "model.compile(..., steps_per_execution=32)",
    VALIDATION: "model.fit(..., validation_freq=5)",
}


def faster_input(data: PlannedData) -> str:
    """Return the line to write for a faster input."""
    if data.is_dataset:
        return "print(kte.data.advise(dataset)), which says what to write"
    return "PyDataset(workers=4, use_multiprocessing=True)" if data.is_sequence else ""


def kept_programs() -> str:
    """Return the line to write to compile only once, where there is one."""
    if _runtime.message_terms.framework != "JAX":
        return ""
    return 'with kte.strategy_scope(compile_cache="auto"): around the model, for the next start'
