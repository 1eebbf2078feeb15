"""One of the two processes of a parity check: `python -m keras_tpu_ext._parity.worker FOLDER`.

It reads `job` from the folder and writes `outcome` there; both are pickles, and what it prints is not read.
"""

from __future__ import annotations

import contextlib
import pickle
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from keras_tpu_ext import _runtime
from keras_tpu_ext._parity.checks import Stage, act, in_one_line
from keras_tpu_ext._parity.job import PARTS, Failure, Job, Outcome, Part
from keras_tpu_ext._parity.layers import look, silence_dropout
from keras_tpu_ext.errors import ArgumentError, KteError
from keras_tpu_ext.strategy import strategy_scope

_SEED = 0


def main(folder: str) -> int:
    """Do the job in `folder`; return the exit status."""
    job: Job = pickle.loads((Path(folder) / "job").read_bytes())
    outcome: Outcome | Failure
    try:
        outcome = run(job)
    except ArgumentError as error:
        outcome = Failure(str(error), is_argument=True)
    except Exception as error:
        traceback.print_exc()
        known = isinstance(error, KteError)
        outcome = Failure(str(error) if known else in_one_line(error), is_argument=False)
    (Path(folder) / "outcome").write_bytes(pickle.dumps(outcome))
    return 0


def run(job: Job) -> Outcome:
    """Act out all parts of the check, and on one device once more with rounding alone changed."""
    scope: Any = contextlib.nullcontext()
    if job.distributed:  # before the user's file is loaded, which may start the framework's devices
        scope = strategy_scope(require="cpu", replicas=job.replicas, tpu=False)
    sys.path[:] = job.path
    build = job.builder.load()
    model: Any = _fresh(job, build, scope, job.start)
    facts = look(model, silence_dropout(model))
    start, names = model.get_weights(), tuple(_runtime.models.path_of(variable) for variable in model.weights)
    spare, model = [model], None  # the first scene takes it

    def make(weights: list[Any]) -> Callable[[], Any]:
        def made() -> Any:
            if spare:
                return spare.pop()
            fresh = _fresh(job, build, scope, weights)
            silence_dropout(fresh)
            return fresh

        return made

    with scope:
        parts = act(Stage(make(start), job.batch, job.replicas, job.steps, names), list(PARTS))
        rounding: dict[str, Part] = {}
        if not job.distributed:
            nearly = nearly_equal(start, facts.compute_dtypes)
            stage = Stage(make(nearly), job.batch, job.replicas, job.steps, names, reverse=True)
            rounding = act(stage, [name for name in PARTS if name != "inf"])
    return Outcome(facts, start, parts, rounding)


def nearly_equal(weights: list[Any], compute_dtypes: tuple[str, ...]) -> list[Any]:
    """Return `weights`, moved by what a 16-bit compute dtype rounds away; as they are where there is none.

    Half a unit in the last place: 2**-9 of the value in bfloat16, 2**-12 in float16.
    """
    unit = 2.0**-9 if "bfloat16" in compute_dtypes else 2.0**-12 if "float16" in compute_dtypes else 0.0
    rng = np.random.default_rng(_SEED)
    moved = []
    for value in weights:
        sign = rng.choice([-1.0, 1.0], size=value.shape)
        moved.append((value * (1 + unit * sign)).astype(value.dtype) if unit and value.dtype.kind in "fV" else value)
    return moved


def _fresh(job: Job, build: Callable[[], Any], scope: Any, weights: list[Any] | None) -> Any:
    """Return a freshly built model with `weights`, or with its own under the seed."""
    _runtime.keras.utils.set_random_seed(_SEED)
    with scope:
        model = of_result(build())
        _check(model, job)
        if not model.built:
            x, _, _ = job.batch
            model(_runtime.tree.map_structure(lambda leaf: leaf if leaf is None else leaf[:1], x))
        if weights is not None:
            model.set_weights(weights)
    return model


def of_result(result: Any) -> Any:
    """Return the model that a function of the command line means by what it returned."""
    if isinstance(result, tuple) and len(result) == 2:
        result = result[0]
    if callable(result) and not isinstance(result, _runtime.keras.Model):
        result = result()
    return result


def _check(model: Any, job: Job) -> None:
    label = job.builder.label
    if not isinstance(model, _runtime.keras.Model):
        raise ArgumentError(
            f"{label} must return a compiled Keras model; it returned {type(model).__name__}. "
            "Write `return model` at its end."
        )
    if not _runtime.models.is_compiled(model):
        raise ArgumentError(
            f"{label} must return a compiled model; {model.name!r} is not compiled. "
            'Write model.compile("adam", loss, metrics=[...]) before `return model`.'
        )
    replicas, wanted = _runtime.devices.num_replicas(model), job.replicas if job.distributed else 1
    if replicas != wanted:
        raise ArgumentError(
            f"{label} made a model on {replicas} replica{'' if replicas == 1 else 's'} where the check wants "
            f"{wanted}: check_parity opens the strategy_scope() itself. Take `with strategy_scope(...):` out of it."
        )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
