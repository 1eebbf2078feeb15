"""One of the two processes of a parity check: `python -m keras_tpu_ext.tools.parity.worker FOLDER`.

It reads `task` from the folder and writes `outcome` there; both are pickles, and its output is not read.
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
from keras_tpu_ext._runtime.common.error_messages import summary_of
from keras_tpu_ext.errors import ArgumentError, KteError
from keras_tpu_ext.strategy import strategy_scope
from keras_tpu_ext.tools.parity.checks import PARTS, Part, Setup, run_checks
from keras_tpu_ext.tools.parity.function_reference import check_compiled_model
from keras_tpu_ext.tools.parity.inspection import disable_dropout, inspect_model
from keras_tpu_ext.tools.parity.process import Failure, Outcome, Task

_SEED = 0


def main(folder: str) -> int:
    """Run the task in `folder` and return the exit status."""
    task: Task = pickle.loads((Path(folder) / "task").read_bytes())
    outcome: Outcome | Failure
    try:
        outcome = run(task)
    except ArgumentError as error:
        outcome = Failure(str(error), is_argument=True)
    except Exception as error:
        traceback.print_exc()
        known = isinstance(error, KteError)
        outcome = Failure(str(error) if known else summary_of(error), is_argument=False)
    (Path(folder) / "outcome").write_bytes(pickle.dumps(outcome))
    return 0


def run(task: Task) -> Outcome:
    """Run all parts of the check, and on one device run them again with only rounding changed."""
    with _runtime.devices.as_on_tpu() if task.as_on_tpu else contextlib.nullcontext():
        return _run(task)


def _run(task: Task) -> Outcome:
    scope: Any = _runtime.models.exact_models(_runtime.TrainStep) if task.exact else contextlib.nullcontext()
    if task.distributed:  # before loading the user's file, which may start the framework's devices
        scope = strategy_scope(require="cpu", replicas=task.replicas, tpu=False, exact=task.exact)
    sys.path[:] = task.path
    build = task.build_model.load()
    model: Any = _build(task, build, scope, task.start)
    facts = inspect_model(model, disable_dropout(model))
    start, names = model.get_weights(), tuple(_runtime.models.path_of(variable) for variable in model.weights)
    spare, model = [model], None  # the first part uses it

    def make(weights: list[Any]) -> Callable[[], Any]:
        def made() -> Any:
            if spare:
                return spare.pop()
            fresh = _build(task, build, scope, weights)
            disable_dropout(fresh)
            return fresh

        return made

    with scope:
        parts = run_checks(Setup(make(start), task.batch, task.replicas, task.steps, names), list(PARTS))
        rounding: dict[str, Part] = {}
        if not task.distributed:
            nearly = perturb_weights(start, facts.compute_dtypes)
            setup = Setup(make(nearly), task.batch, task.replicas, task.steps, names, reverse=True)
            rounding = run_checks(setup, [name for name in PARTS if name != "inf"])
    return Outcome(facts, start, parts, rounding)


def perturb_weights(weights: list[Any], compute_dtypes: tuple[str, ...]) -> list[Any]:
    """Return `weights` moved by the rounding error of a 16-bit compute dtype; unchanged if there is none.

    Half a unit in the last place: 2**-9 of the value in bfloat16, 2**-12 in float16.
    """
    unit = 2.0**-9 if "bfloat16" in compute_dtypes else 2.0**-12 if "float16" in compute_dtypes else 0.0
    rng = np.random.default_rng(_SEED)
    moved = []
    for value in weights:
        sign = rng.choice([-1.0, 1.0], size=value.shape)
        moved.append((value * (1 + unit * sign)).astype(value.dtype) if unit and value.dtype.kind in "fV" else value)
    return moved


def _build(task: Task, build_model: Callable[[], Any], scope: Any, weights: list[Any] | None) -> Any:
    """Build a model with `weights`, or with its own under the seed."""
    _runtime.keras.utils.set_random_seed(_SEED)
    with scope:
        model = unpack_model(build_model())
        _check(model, task)
        if not model.built:
            x, _, _ = task.batch
            model(_runtime.tree.map_structure(lambda leaf: leaf if leaf is None else leaf[:1], x))
        if weights is not None:
            model.set_weights(weights)
    return model


def unpack_model(result: Any) -> Any:
    """Return the model in what the function returned: a model, (model, batch) or (build_model, batch)."""
    if isinstance(result, tuple) and len(result) == 2:
        result = result[0]
    if callable(result) and not isinstance(result, _runtime.keras.Model):
        result = result()
    return result


def _check(model: Any, task: Task) -> None:
    label = task.build_model.label
    check_compiled_model(label, model)
    replicas, needed = _runtime.devices.num_replicas(model), task.replicas if task.distributed else 1
    if replicas != needed:
        raise ArgumentError(
            f"{label} made a model on {replicas} replica{'' if replicas == 1 else 's'} where the check needs "
            f"{needed}: check_parity opens the strategy_scope() itself. Take `with strategy_scope(...):` out of it."
        )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
