"""Trainings that are killed again and again, and end as if nobody had.

Each runs in a process of its own: it is killed by SIGKILL at random times, by SIGKILL inside a save, or asked to
leave by SIGTERM, and started again until it ends. What came of it is compared with a training without interruption:
weights, history, learning rate, decisions of callbacks, and the metrics after every step, which say what data it had,
to the bit. `KTE_KILLS` says how often each kind is killed (50 in `make torture`), `KTE_SEED` when, and `KTE_RESULTS`
names a file that gets a line of each.
"""

from __future__ import annotations

import multiprocessing
import os
import random
import signal
import sys
import time
from multiprocessing import forkserver
from pathlib import Path
from typing import Any

import pytest

from torture import training

pytestmark = pytest.mark.exhaustive
KILLS = int(os.environ.get("KTE_KILLS", "4"))
SEED = int(os.environ.get("KTE_SEED", "0"))
SLACK_S = 2.0  # of a machine that stands still now and then
# They are forked from one that has imported all there is to import, and begun nothing.
PROCESSES = multiprocessing.get_context("forkserver")
PROCESSES.set_forkserver_preload(["torture.training", *training.NEEDED])


class DiedError(Exception):
    """A process has ended before its training."""


class Run:
    """A training in a process of its own.

    Args:
        kind: The name of a kind of training.
        directory: Of its checkpoints.
        dies_in: A function of `os`, and in which of its calls the process is to be killed.
        by_keras: Whether to save as Keras does.

    Attributes:
        times: When each step was done, and at 0 when training began.
        first: After how many steps it has begun.
        outcome: What came of it, if it came to its end.
        refusal: The error of one that was not let in; else empty.
    """

    def __init__(
        self,
        kind: str,
        directory: str | None,
        dies_in: tuple[str, int] | None = None,
        *,
        by_keras: bool = False,
    ) -> None:
        self._pipe, theirs = PROCESSES.Pipe(duplex=False)
        self._process = PROCESSES.Process(
            target=training.train, args=(kind, directory, theirs, dies_in), kwargs={"by_keras": by_keras}
        )
        self._process.start()
        theirs.close()
        self.times: dict[int, float] = {}
        self.finished, self.outcome, self.refusal = False, None, ""

    def until_begun(self) -> None:
        """Wait until it trains."""
        self._receive()

    def kill_after(self, step: int) -> None:
        """Kill it after a step."""
        while max(self.times, default=0) < step:
            self._receive()
        os.kill(self._process.pid, signal.SIGKILL)

    def after(self, seconds: float, number: int) -> None:
        """Send a signal after some seconds, unless it ends before."""
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0 and self._pipe.poll(left):
            self._receive()
            if self.outcome is not None:
                return
        os.kill(self._process.pid, number)

    def until_end(self) -> None:
        """Wait until it ends, by itself or not."""
        try:
            while self.outcome is None and not self.refusal:
                self._receive()
        except DiedError:
            pass
        self._process.join()
        self._pipe.close()

    @property
    def has_failed(self) -> bool:
        """Whether it has ended by an error."""
        return self._process.exitcode not in (0, -signal.SIGKILL)

    def _receive(self) -> None:
        try:
            what, *about = self._pipe.recv()
        except EOFError:
            raise DiedError from None
        if what == "end":
            self.finished, self.outcome = about
        elif what == "refused":
            (self.refusal,) = about
        else:
            number, self.times[number] = about[0], about[1]


class Torture:
    """Kills trainings of one kind.

    Args:
        kind: Its name.
        folder: For the checkpoints.
        draw: Says when.

    Attributes:
        ended: Number of trainings that came to their end.
        lost: Seconds of work that each kill has lost.
    """

    def __init__(self, kind: str, folder: Path, draw: random.Random) -> None:
        self._kind, self._folder, self._draw = kind, folder, draw
        # The workers of Keras 2 draw the order in a thread, beside what callbacks draw: no two runs are the same.
        is_by_chance = training.IS_KERAS2 and kind == "workers"
        whole = Run(kind, str(folder / "whole") if is_by_chance else None)
        whole.until_end()
        self.expected = whole.outcome
        self._seconds = max(whole.times.values()) - whole.times[0]
        self._done: dict[int, float] = {}  # when the last process that took steps was done with each
        self.ended = 0
        self.lost: list[float] = [0.0]

    def kill(self, how: str) -> bool:
        """Start the training and end it before its end; if it comes to it, the next call begins another.

        Args:
            how: `"SIGKILL"` or `"SIGTERM"`, or one of `IN_A_SAVE`.

        Returns:
            Whether it was ended.
        """
        dies_in = (how, self._draw.randint(1, 6)) if how in IN_A_SAVE else None
        run = self._started(dies_in)
        try:
            run.until_begun()
            if dies_in is None:
                left = self._seconds * (1 - max(self._done, default=0) / len(self.expected["steps"]))
                run.after(self._draw.uniform(0, left), getattr(signal, how))
        except DiedError:
            pass
        self._end(run)
        return not run.finished

    def finish(self) -> None:
        """Let the training come to its end."""
        self._end(self._started())

    def _started(self, dies_in: tuple[str, int] | None = None) -> Run:
        return Run(self._kind, str(self._folder / str(self.ended)), dies_in)

    def _end(self, run: Run) -> None:
        run.until_end()
        assert not run.has_failed
        steps = {number: at for number, at in run.times.items() if number}
        if steps:
            again = [at for number, at in self._done.items() if number >= min(steps)]
            self.lost += [max(again) - min(again)] if again else []
            self._done = steps
        if run.finished:
            assert_same(run.outcome, self.expected)
            self._done = {}
            self.ended += 1


def assert_same(got: dict[str, Any], expected: dict[str, Any]) -> None:
    """Assert that two trainings came to the same, and else say in what they differ."""
    steps = zip(got["steps"], expected["steps"], strict=False)
    first = next((pair for pair in enumerate(steps) if pair[1][0] != pair[1][1]), None)
    differs = {name for name, value in got.items() if value != expected[name]}
    assert not differs, f"the first step that differs, and how it should be: {first}"


IN_A_SAVE = ("fsync", "replace")


@pytest.fixture(scope="module", autouse=True)
def preloading():
    """Let the process that all are forked from find what it is to import."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
        forkserver.ensure_running()


@pytest.mark.parametrize("kind", training.HERE)
def test_a_training_that_is_killed_ends_as_if_it_had_not_been(kind, tmp_path):
    draw = random.Random(f"{SEED} {kind}")
    torture = Torture(kind, tmp_path, draw)
    in_a_save = max(1, KILLS // 6)
    kills = [*IN_A_SAVE] * in_a_save + ["SIGKILL"] * (KILLS - 2 * in_a_save) + ["SIGTERM"] * (KILLS * 3 // 5)
    draw.shuffle(kills)
    for how in kills:
        while not torture.kill(how):
            pass
    torture.finish()
    by_term, lost = kills.count("SIGTERM"), max(torture.lost)
    told = f"{len(kills)} kills, {by_term} of them by SIGTERM; {torture.ended} trainings ended, all equal"
    _note(f"{kind}: {told}; at most {lost:.2f} s lost, saving every {training.EVERY_S} s")
    assert lost < training.EVERY_S + SLACK_S


@pytest.mark.runtimes("keras3_jax")
def test_of_two_processes_in_one_folder_one_trains_and_the_other_is_refused(tmp_path):
    """Each is started at a random moment of the other's life: while it starts, trains, saves or ends."""
    draw = random.Random(f"{SEED} two")
    whole = Run("arrays", None)
    whole.until_end()
    seconds = max(whole.times.values()) - whole.times[0]
    refused, ended = 0, 0
    for number in range(KILLS):
        folder = str(tmp_path / str(number))
        first = Run("arrays", folder)
        time.sleep(draw.uniform(0, 1.5 * seconds))
        second = Run("arrays", folder)
        runs = [first, second]
        for run in runs:
            run.until_end()
        told = [run.refusal for run in runs if run.refusal]
        assert all("Two trainings cannot share a folder" in text for text in told), told
        assert len(told) < 2
        refused += len(told)
        for run in runs:
            if not run.refusal:  # the second goes on where the first has ended
                assert run.finished
                assert_same(run.outcome, whole.outcome)
                ended += 1
    assert refused
    assert ended + refused == 2 * KILLS
    _note(f"two processes in one folder: {KILLS} pairs; {refused} refused, {ended} trainings ended, all equal")


@pytest.mark.parametrize("by_keras", [False, True])
def test_keras_does_not_pass_what_this_package_passes(by_keras, tmp_path):
    killed = Run("arrays", str(tmp_path), by_keras=by_keras)
    killed.kill_after(30)  # in the second epoch
    killed.until_end()
    whole, again = Run("arrays", None), Run("arrays", str(tmp_path), by_keras=by_keras)
    whole.until_end()
    again.until_end()
    assert again.finished
    is_same = again.outcome["weights"] == whole.outcome["weights"]
    assert is_same is not by_keras, "the test cannot fail" if is_same else "the weights differ"


def _note(line: str) -> None:
    if path := os.environ.get("KTE_RESULTS"):
        with open(path, "a", encoding="utf-8") as file:
            file.write(f"{line}\n")
