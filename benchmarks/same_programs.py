"""Programs that others wrote: is what preflight lowers what their `fit`, `evaluate` and `predict` compile?

    python benchmarks/same_programs.py FOLDER [--only NAME ...] [--results FILE]

FOLDER and the programs are those of benchmarks/programs.py, on Keras 3 on JAX and eight CPU devices; those for
TensorFlow alone are left out. Each is run in a process of its own, in a scope. Every program that the compiler gets
for a step is compared, to the letter, with those that are lowered from the shapes of the model and of the batch; see
tests/support/fit_programs.py. A model that only predicts is compiled before it is lowered, as preflight wants it.

Where a layer says that it cannot be compiled, as Keras's `RandomCrop` does, Keras runs each operation of a step by
itself, and there is no program. Such a model is compiled all the same here, and its row has these layers.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "support")]

import programs  # noqa: E402


def main() -> int:
    """Print for each program how many of its programs are lowered the same; return 0 if all of each are."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", nargs="*", default=None, help="names of programs, without .py")
    parser.add_argument(
        "--results", type=Path, default=None, help="a JSON file that gets the rows, beside those in it"
    )
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
        row = json.loads(done.stdout.splitlines()[-1]) if done.returncode == 0 else {"error": done.stderr[-800:]}
        print(name, json.dumps(row), flush=True)
        failed |= not row.get("same") or bool(row["others"])
        if options.results is not None:
            programs.merge(options.results, options.folder, {"program": name, "backend": "jax", **row})
    return int(failed)


def compared(path: Path) -> dict[str, Any]:
    """Run a program; return how many of its programs are the same, and what is lowered instead of the others."""
    from unittest import mock

    import jax
    import keras

    import fit_programs
    from keras_tpu_ext._runtime.jax.loop import CompiledLoop

    seen: dict[tuple[int, bool], tuple[Any, Iterable[str], list[Any]]] = {}
    not_compiled: set[str] = set()
    stock = CompiledLoop.call

    def call(loop: Any, state: Any, group: Any) -> Any:
        model, axis = loop._model, 0 if group.steps is None else 1
        if not model.jit_compile:
            not_compiled.update(type(layer).__name__ for layer in model._flatten_layers() if not layer.supports_jit)
            model._jit_compile = True
        batch = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape[axis:], leaf.dtype), group.data)
        methods = ("predict",) if loop._collects else ("fit", "evaluate")
        *_, batches = seen.setdefault((id(model), loop._collects), (model, methods, []))
        if batch not in batches:
            batches.append(batch)
        return stock(loop, state, group)

    with fit_programs.compiled_programs(fit_programs.CPU) as texts, mock.patch.object(CompiledLoop, "call", call):
        programs.run(path, "scope")
    with contextlib.ExitStack() as stack:
        for patch in programs.around(keras, {}, path.stem):
            stack.enter_context(patch)
        lowered = _lowered(seen.values())
    same, others = 0, []
    for text in texts:
        try:
            fit_programs.names_of([text], lowered)
            same += 1
        except AssertionError as error:
            others.append(str(error)[:2000])
    return {"same": same, "others": others, "not_compiled": sorted(not_compiled)}


def _lowered(found: Iterable[tuple[Any, Iterable[str], list[Any]]]) -> list[Any]:
    """Return the programs of models, for methods and batches, as they are lowered without them."""
    from keras_tpu_ext._runtime import devices
    from keras_tpu_ext._runtime.jax import lowering

    programs_of_all, opened = [], devices.abstract_strategy(programs.REPLICAS)
    for model, methods, batches in found:
        if not model.compiled:
            model.compile()
        for method, padded, batch in itertools.product(methods, (False, True), batches):
            one = lowering._Program(method, padded=padded)
            with contextlib.suppress(Exception):  # what only `evaluate` gets may not do for `fit`
                programs_of_all += lowering._lower(model, batch, opened, "cpu", lambda *built, one=one: [one])
    return programs_of_all


if __name__ == "__main__":
    sys.exit(main())
