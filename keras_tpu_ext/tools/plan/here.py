"""A training on this machine: its own step is run a few times, and the model is as it was afterwards."""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

import numpy as np

from keras_tpu_ext import _runtime
from keras_tpu_ext._runtime.common.random_state import random_state, set_random_state
from keras_tpu_ext.checks import arguments as check
from keras_tpu_ext.tools.plan.data import PlannedData
from keras_tpu_ext.tools.plan.report import Cost, Seconds

_TRAIN_SECONDS, _OTHER_SECONDS = 6.0, 2.0  # how long training is measured, and each of the other parts
_DRIFT = 0.1  # of each part: a machine is not always as fast; chosen, not measured
_ROUNDS = 4  # at least so many parts, whose spread is the error
_Run: TypeAlias = "Callable[[PlannedData, int], tuple[float, float]]"
_NOT_INPUT_BOUND = 0.05  # xprof's word: a pipeline that takes less of a step costs nothing that can be measured


class _Watch(_runtime.keras.callbacks.Callback):
    """Notes when an epoch began."""

    async_safe = True  # it has no hook for batches

    def __init__(self, clock: Callable[[], float]) -> None:
        super().__init__()
        self._clock = clock
        self.epoch_began = 0.0

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self.epoch_began = self._clock()


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


class Bench:
    """Runs parts of a training of one model, and takes their times."""

    def __init__(self, model: Any, clock: Callable[[], float] = time.perf_counter) -> None:
        self._model = model
        self._clock = clock
        self._watch = _Watch(clock)
        found = getattr(model, "steps_per_execution", 1)
        self._stride = found if isinstance(found, int) else 1

    def train(self, data: PlannedData, steps: int) -> tuple[float, float]:
        """Return the seconds that `fit` takes until the epoch begins, and those of the epoch."""
        arguments = data.arguments(steps)
        begin = self._clock()
        steps_per_epoch = arguments.pop("steps")
        self._model.fit(**arguments, steps_per_epoch=steps_per_epoch, verbose=0, callbacks=[self._watch])
        began = self._watch.epoch_began
        return began - begin, self._clock() - began

    def evaluate(self, data: PlannedData, steps: int) -> tuple[float, float]:
        """Return 0 and the seconds that `evaluate` takes."""
        begin = self._clock()
        self._model.evaluate(**data.arguments(steps), verbose=0)
        return 0.0, self._clock() - begin

    def measure(self, run: _Run, data: PlannedData, budget: float) -> Measured:
        """Measure the first execution, the second, and then the same number of steps again and again.

        Args:
            run: `train` or `evaluate`.
            data: The data.
            budget: About how many seconds this takes, compiling aside.
        """
        one = min(self._stride, data.steps)
        (startup, first), (_, second), (_, third) = (run(data, one) for _ in range(3))
        again = min(second, third)
        compiled = max(first + second - 2 * again, 0.0)  # on JAX the second step may be compiled anew
        steps, part = self._enough_steps(run, data, again, budget / _ROUNDS)
        parts: list[float] = []
        begin = self._clock()
        while len(parts) < 2 or self._clock() - begin < budget:
            parts.append(run(data, steps)[1])
        each = (Seconds.of(parts).middle - again) / max(steps - one, 1)
        fixed = max(again - one * each, 0.0) if each > 0 else 0.0  # else they cannot be told apart
        later = max(part - max(parts), 0.0) if steps == data.steps else 0.0
        steady = Seconds.of([(taken - fixed) / steps for taken in parts])
        return Measured(data.steps, startup, compiled, later, steady, fixed)

    def _enough_steps(self, run: _Run, data: PlannedData, again: float, seconds: float) -> tuple[int, float]:
        """Return a number of steps that takes about so many seconds, and how long it took at first."""
        one = steps = min(self._stride, data.steps)
        part = again
        while steps < data.steps:
            each = (part - again) / (steps - one) if steps > one else again / one
            wanted = int(seconds / max(each, 1e-6)) // self._stride * self._stride
            if steps > one and wanted < 2 * steps:
                break
            steps = min(max(wanted, 2 * steps) if steps == one else min(wanted, 16 * steps), data.steps)
            part = run(data, steps)[1]
        return steps, part

    def on_ready_batches(self, data: PlannedData) -> Seconds:
        """Return the seconds of a step on a batch that is ready."""
        ready = PlannedData("data", _Ready(data.first, data.steps), None, None)
        return self.measure(self.train, ready, _OTHER_SECONDS).each


@dataclasses.dataclass(frozen=True)
class Measured:
    """The measured parts of one epoch, or of one evaluation."""

    steps: int  # number of steps of an epoch
    startup: float  # seconds before the epoch begins
    compiled: float  # seconds by which the first executions are longer than later ones
    compiled_later: float  # seconds by which the first whole epoch is longer: its last batch is compiled, too
    each: Seconds  # seconds of a step, input included
    fixed: float  # seconds of an epoch that do not depend on its steps: iterators, a shuffle buffer

    @property
    def epoch(self) -> Seconds:
        """The seconds of an epoch."""
        return self.each * self.steps + Seconds.exactly(self.fixed)


class _Ready(_runtime.PyDataset):
    """The same batch over and over."""

    def __init__(self, batch: Any, steps: int) -> None:
        with contextlib.suppress(TypeError):  # Keras 2's has no __init__ of its own
            super().__init__()
        self._batch, self._steps = batch, steps

    def __len__(self) -> int:
        return self._steps

    def __getitem__(self, index: int) -> Any:
        return self._batch


def costs_here(
    model: Any, data: PlannedData, validation: PlannedData | None, epochs: int, clock: Callable[[], float]
) -> list[Cost]:
    """Run some steps of the training and return what all of it costs, saves aside."""
    bench = Bench(model, clock)
    train = bench.measure(bench.train, data, _TRAIN_SECONDS)
    waits = data.rate(clock).seconds > _NOT_INPUT_BOUND * train.each.middle
    ready = bench.on_ready_batches(data) if waits else train.each
    checked = None if validation is None else bench.measure(bench.evaluate, validation, _OTHER_SECONDS)
    return _costs(data, train, ready, checked, epochs)


def _costs(data: PlannedData, train: Measured, ready: Seconds, checked: Measured | None, epochs: int) -> list[Cost]:
    waiting = max(train.each.middle - ready.middle, 0.0) / train.each.middle
    steps = train.each * (data.steps * epochs)
    compiled = train.compiled + train.compiled_later
    others = len(data.shapes()) - 1 if not train.compiled_later else 0
    compile_ = Seconds(compiled, compiled, compiled + others * train.compiled)
    if checked is not None:
        compile_ += Seconds.exactly(checked.compiled + checked.compiled_later)
    measured = f"{data.steps * epochs:,} steps of {train.each.middle * 1e3:.3g} ms, measured here"
    found = [
        Cost("training", steps * (1 - waiting), measured, _faster_step(train.each.middle)),
        Cost("compile", compile_, "the first step less a later one, measured here", kept_programs()),
        Cost("startup", Seconds.exactly(train.startup), "from the call of fit to its first epoch, measured here"),
    ]
    feeding = steps * waiting + Seconds.exactly(train.fixed * epochs)
    how = f"{waiting:.0%} of a step is waiting, and {train.fixed:.3g} s at the start of an epoch, measured here"
    found.append(Cost("input", feeding, how, faster_input(data)))
    if checked is not None:
        how = f"{epochs} times {checked.epoch.middle:.3g} s, measured here"
        found.append(Cost("validation", checked.epoch * epochs, how, "model.fit(..., validation_freq=5)"))
    return [dataclasses.replace(cost, seconds=cost.seconds.widened(_DRIFT)) for cost in found]


def faster_input(data: PlannedData) -> str:
    """Return the line to write for a faster input."""
    if data.is_dataset:
        return "print(kte.data.advise(dataset)), which says what to write"
    return "PyDataset(workers=4, use_multiprocessing=True)" if data.is_sequence else ""


def _faster_step(seconds: float) -> str:
    return "model.compile(..., steps_per_execution=32)" if seconds < 0.01 else 'target="v5e-8", to plan it for a TPU'


def kept_programs() -> str:
    """Return the line to write to compile only once, where there is one."""
    if _runtime.message_terms.framework != "JAX":
        return ""
    return 'jax.config.update("jax_compilation_cache_dir", "compiled"), for the next start'
