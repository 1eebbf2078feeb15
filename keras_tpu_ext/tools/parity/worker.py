"""One of the two processes of a parity check: `python -m keras_tpu_ext.tools.parity.worker FOLDER`.

It reads `task` from the folder and writes `outcome` there; both are pickles, and its output is not read.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import pickle
import sys
import traceback
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import numpy as np

from keras_tpu_ext import _runtime
from keras_tpu_ext._runtime.common.error_messages import summary_of
from keras_tpu_ext.errors import ArgumentError, KteError
from keras_tpu_ext.output.display import counted
from keras_tpu_ext.strategy import strategy_scope
from keras_tpu_ext.tools.parity.batches import take
from keras_tpu_ext.tools.parity.checks import PARTS, Part, Setup, run_part
from keras_tpu_ext.tools.parity.function_reference import check_compiled_model, unpack_model
from keras_tpu_ext.tools.parity.inspection import disable_dropout, inspect_model
from keras_tpu_ext.tools.parity.process import Outcome, Task

_SEED = 0


def main(folder: str) -> int:
    """Run the task in `folder` and return the exit status."""
    task: Task = pickle.loads((Path(folder) / "task").read_bytes())
    outcome: Outcome | ArgumentError | str
    try:
        with _runtime.devices.as_on_tpu() if task.as_on_tpu else contextlib.nullcontext():
            outcome = run(task)
    except ArgumentError as error:
        outcome = error
    except Exception as error:
        traceback.print_exc()
        outcome = str(error) if isinstance(error, KteError) else summary_of(error)
    (Path(folder) / "outcome").write_bytes(pickle.dumps(outcome))
    return 0


def run(task: Task) -> Outcome:
    """Run all parts of the check, and on one device run them again with only rounding changed."""
    scope: AbstractContextManager[object]
    if task.distributed:  # before loading the user's file, which may start the framework's devices
        scope = strategy_scope(require="cpu", replicas=task.replicas, tpu=False, exact=task.exact)
    else:
        scope = _runtime.models.exact_models(_runtime.TrainStep) if task.exact else contextlib.nullcontext()
    sys.path[:] = task.path
    build = task.build_model.load()
    model = _build(task, build, scope, task.start)
    facts = inspect_model(model, disable_dropout(model))
    start, names = model.get_weights(), tuple(_runtime.models.path_of(variable) for variable in model.weights)
    unused = [model]  # the first part has it, because Keras numbers the metrics of later ones
    del model

    def make(weights: list[Any]) -> Any:
        if unused:
            return unused.pop()
        fresh = _build(task, build, scope, weights)
        disable_dropout(fresh)
        return fresh

    setup = Setup(functools.partial(make, start), task.batch, task.replicas, task.steps, names)
    with scope:
        parts = {name: run_part(name, setup) for name in PARTS}
        rounding: dict[str, Part] = {}
        if not task.distributed:
            nearly = functools.partial(make, perturb_weights(start, facts.compute_dtypes))
            rounded = dataclasses.replace(setup, make_model=nearly, reverse=True)
            rounding = {name: run_part(name, rounded) for name in PARTS if name != "inf"}
    return Outcome(facts, start, parts, rounding)


def perturb_weights(weights: list[Any], compute_dtypes: tuple[str, ...]) -> list[Any]:
    """Return `weights` moved by half a unit in the last place of a 16-bit compute dtype, if there is one."""
    unit = 2.0**-9 if "bfloat16" in compute_dtypes else 2.0**-12 if "float16" in compute_dtypes else 0.0
    rng = np.random.default_rng(_SEED)
    moved = []
    for value in weights:
        sign = rng.choice([-1.0, 1.0], size=value.shape)
        moved.append((value * (1 + unit * sign)).astype(value.dtype) if unit and value.dtype.kind in "fV" else value)
    return moved


def _build(
    task: Task, build_model: Callable[[], Any], scope: AbstractContextManager[object], weights: list[Any] | None
) -> Any:
    """Build a model with `weights`, or with its own under the seed."""
    _runtime.keras.utils.set_random_seed(_SEED)
    with scope:
        model, _ = unpack_model(build_model())
        _check(model, task)
        if not model.built:
            x, _, _ = take(task.batch, np.arange(1))
            model(x)
        if weights is not None:
            model.set_weights(weights)
    return model


def _check(model: Any, task: Task) -> None:
    label = task.build_model.label
    check_compiled_model(label, model)
    replicas, needed = _runtime.devices.num_replicas(model), task.replicas if task.distributed else 1
    if replicas != needed:
        raise ArgumentError(
            f"{label} made a model on {counted(replicas, 'replica')} where the check needs "
            f"{needed}: check_parity opens the strategy_scope() itself. Take `with strategy_scope(...):` out of it."
        )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
