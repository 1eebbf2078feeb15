"""Programs that others wrote: is what preflight lowers what their `fit`, `evaluate` and `predict` compile?

    python benchmarks/same_programs.py FOLDER [--only NAME ...]

FOLDER and the programs are those of benchmarks/programs.py, on Keras 3 on JAX and eight CPU devices. Each is run
in a process of its own, in a scope. Every program that the compiler gets for a step is compared, to the letter, with
those that are lowered from the shapes of the model and of the batch; see tests/support/fit_programs.py.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "support")]

import programs  # noqa: E402


def main() -> int:
    """Print for each program how many of its programs are lowered the same; return 0 if all are."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", nargs="*", default=None, help="names of programs, without .py")
    parser.add_argument("--run", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.run:
        print(json.dumps(compared(options.folder)))
        return 0
    failed = False
    for name in programs.PROGRAMS:
        if options.only is not None and Path(name).stem not in options.only:
            continue
        if not programs.meant_for(options.folder, name, "jax"):
            continue
        command = [sys.executable, str(Path(__file__).resolve()), str((options.folder / name).resolve()), "--run"]
        with tempfile.TemporaryDirectory() as folder:  # they write files
            done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
        last = (done.stdout.splitlines() or [""])[-1] if done.returncode == 0 else done.stderr[-800:]
        print(name, last, flush=True)
        failed |= done.returncode != 0 or bool(json.loads(last)["others"])
    return int(failed)


def compared(path: Path) -> dict[str, Any]:
    """Run a program; return how many of its programs are the same, and what is lowered instead of the others."""
    from unittest import mock

    import jax

    import fit_programs
    from keras_tpu_ext._runtime import devices
    from keras_tpu_ext._runtime.jax import lowering
    from keras_tpu_ext._runtime.jax.loop import CompiledLoop

    batches: dict[tuple[int, bool], tuple[Any, list[Any]]] = {}
    stock = CompiledLoop.call

    def call(loop: Any, state: Any, group: Any) -> Any:
        axis = 0 if group.steps is None else 1
        batch = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape[axis:], leaf.dtype), group.data)
        found = batches.setdefault((id(loop._model), loop._collects), (loop._model, []))[1]
        if batch not in found:
            found.append(batch)
        return stock(loop, state, group)

    with fit_programs.compiled_programs(fit_programs.CPU) as texts, mock.patch.object(CompiledLoop, "call", call):
        programs.run(path, "scope")
    lowered = []
    opened = devices.abstract_strategy(programs.REPLICAS)
    for (_, predicts), (model, found) in batches.items():
        methods: tuple[Any, ...] = ("predict",) if predicts else ("fit", "evaluate")
        for method, padded, batch in itertools.product(methods, (False, True), found):
            program = lowering._Program(method, padded=padded)
            with contextlib.suppress(Exception):  # what only `evaluate` gets may not do for `fit`
                lowered += lowering._lower(model, batch, opened, "cpu", lambda *built, one=program: [one])
    same, others = 0, []
    for text in texts:
        try:
            fit_programs.names_of([text], lowered)
            same += 1
        except AssertionError as error:
            others.append(str(error)[:2000])
    return {"same": same, "others": others}


if __name__ == "__main__":
    sys.exit(main())
