"""The reports of the command `keras-tpu-ext`, whose arguments `keras_tpu_ext_command.arguments` reads.

The exit status is 0 if the report is good, 1 if it is not and 2 if there is none.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import os
import re
import sys
from collections.abc import Callable
from typing import Any

from keras_tpu_ext import _runtime, data
from keras_tpu_ext.callbacks.run_report import run_report
from keras_tpu_ext.doctor import doctor
from keras_tpu_ext.errors import ArgumentError, KteError, NothingMeasuredError
from keras_tpu_ext.output.figure import new_figure
from keras_tpu_ext.parity import ParityReport, check_parity
from keras_tpu_ext.plan import PlanReport, plan
from keras_tpu_ext.preflight import PreflightReport, preflight
from keras_tpu_ext.preflight._batch import batch_spec
from keras_tpu_ext.resume.report import resume_report
from keras_tpu_ext.resume.storage import folder_of
from keras_tpu_ext.tools.migrate import MigrationReport, migrate
from keras_tpu_ext.tools.parity.batches import synthetic_batch
from keras_tpu_ext.tools.parity.function_reference import (
    check_compiled_model,
    error_line,
    parse_reference,
    unpack_model,
)
from keras_tpu_ext_command import main as main

# The flags of Python's arguments, where they have another name.
_FLAGS = {"timeout_s": "timeout", "batch": "data", "pipeline": "data", "find_largest_batch": "largest"}
_OF_FUNCTIONS = {"data", "validation_data"}  # flags that take the name of a function
_FIRST = re.compile(r"(check_parity|doctor|preflight|plan|advise|write_tfrecords|migrate): ")
_PER_REPLICA = re.compile(r"per_replica_batch=\d+, which is a batch of (\d+)")
# A call, which is Python and stays, with brackets in brackets; a name; an argument.
_WITHIN = r"(?:[^()]|\((?:[^()]|\((?:[^()]|\([^()]*\))*\))*\))*"
_IN_PYTHON = re.compile(rf"""[\w.]+\({_WITHIN}\)|`(\w+)`|(?<!\w)(\w+)=("[^"]*"|\([^()]*\)|[\w.]*\w)""")


def run(options: argparse.Namespace) -> int:
    """Print the report that `options` ask for, write its file, and return the exit status."""
    path = list(sys.path)
    sys.path.insert(0, os.getcwd())  # as `python -m` does: a user's file is in the current folder
    try:
        report = _REPORTS[options.command](options)
        as_json = options.json and json.dumps(report.to_dict(), indent=2, allow_nan=False)
        print(as_json or in_flags(str(report), options), flush=True)
        _write_file(report, options)
        return 0 if report.ok else 1
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # `| head` has read enough; at the exit Python writes what is left
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except Exception as error:
        is_told = isinstance(error, KteError | OSError)
        if not is_told and sys.flags.dev_mode:
            raise
        text = str(error).splitlines()[0] if is_told else f"{error_line(error)}. PYTHONDEVMODE=1 shows the traceback."
        code = f" [{error.code}]" if isinstance(error, KteError) else ""
        print(f"keras-tpu-ext {options.command}: {in_flags(text, options)}{code}", file=sys.stderr)
        return 2
    finally:
        sys.path[:] = path


def _write_file(report: Any, options: argparse.Namespace) -> None:
    """Write the picture or the page of a report, after it is printed: what cannot be written hides nothing."""
    if getattr(options, "plot", None):
        try:
            report.plot(options.plot)
        except NothingMeasuredError:
            print(f"no {options.plot}: there is nothing to draw", file=sys.stderr)
    elif options.command == "report" and (options.out or not options.json):
        place, name = os.path.split(options.out) if options.out else (options.directory, "report.html")
        folder, page = folder_of(place), report.page().encode()
        folder.write(name, lambda file: file.write(page))
        print(f"wrote {folder.path_of(name)}", file=sys.stderr)


def in_flags(text: str, options: argparse.Namespace) -> str:
    """Return a text for who calls from Python with the command's flags in place of arguments."""

    def as_flag(match: re.Match[str]) -> str:
        argument = match[1] or match[2]
        name = _FLAGS.get(argument, argument)
        if argument is None or name not in options:
            return match[0]
        flag = f"--{name.replace('_', '-')}"
        if match[1] or isinstance(getattr(options, name), bool):
            return flag
        return f"{flag} {'MODULE:FUNCTION' if name in _OF_FUNCTIONS else match[3].strip(chr(34))}"

    text = _FIRST.sub("", text) if _FIRST.match(text) else text
    return _IN_PYTHON.sub(as_flag, _PER_REPLICA.sub(r"batch_size=\1", text))


def _parity_report(options: argparse.Namespace) -> ParityReport:
    return check_parity(
        parse_reference(options.function),
        None if options.data is None else parse_reference(options.data)(),
        options.replicas,
        steps=options.steps,
        tolerance=options.tolerance,
        backend=options.backend,
        as_on_tpu=options.as_on_tpu,
        timeout_s=options.timeout,
        progress=not options.quiet,
    )


def _builder(options: argparse.Namespace, batches: list[Any]) -> Callable[[], Any]:
    """Return a function that makes the model; the batch that comes with it, or `None`, goes to `batches`."""
    function = parse_reference(options.function)

    def build() -> Any:
        model, batch = unpack_model(function())
        check_compiled_model(options.function, model, "a compiled Keras model or (model, batch)")
        batches.append(batch)
        return model

    return build


def _preflight_report(options: argparse.Namespace, *, exact: bool = False) -> PreflightReport:
    if options.plot:
        new_figure("--plot")  # fail before anything that takes time
    found: list[Any] = []
    build = _builder(options, found)
    with _runtime.models.exact_models(_runtime.TrainStep) if exact else contextlib.nullcontext():
        model = _runtime.probes.call_abstractly(build)
    batch, pipeline, per_replica = found[0], None, None
    if options.data is not None:
        batch = parse_reference(options.data)()
        if not isinstance(batch, (tuple, list, dict)) and not hasattr(batch, "shape"):
            batch, pipeline = next(iter(batch)), batch
    elif batch is None:
        batch, per_replica = synthetic_batch(model, 1), 128
    if options.batch_size is not None:
        batch, per_replica = batch_spec(batch, options.target, 1, options.batch_size), None
    return preflight(
        model if options.shard is None else build,
        batch,
        options.target,
        per_replica,
        shard=options.shard,
        mesh=options.mesh,
        find_largest_batch=options.largest,
        pipeline=pipeline,
        timeout_s=options.timeout,
        progress=not options.quiet,
    )


@dataclasses.dataclass(frozen=True)
class _Compiled:
    """A preflight, and the file of its programs, which there is if it is good."""

    report: PreflightReport
    compiled: tuple[str, str] | None  # its path and its SHA-256

    @property
    def ok(self) -> bool:
        return self.report.ok

    def to_dict(self) -> dict[str, Any]:
        return {**self.report.to_dict(), "compiled": self.compiled}

    def __str__(self) -> str:
        return str(self.report)


def _compile_report(options: argparse.Namespace) -> _Compiled:
    report = _preflight_report(options, exact=True)
    if not report.ok:
        return _Compiled(report, None)
    with contextlib.redirect_stdout(sys.stderr if options.json else sys.stdout):  # of the line to write
        return _Compiled(report, (options.out, report.save(options.out)))


def _plan_report(options: argparse.Namespace) -> PlanReport:
    checked = options.validation_data
    return plan(
        _builder(options, []),
        parse_reference(options.data)(),
        epochs=options.epochs,
        batch_size=options.batch_size,
        target=options.target,
        hours=options.hours,
        validation_data=None if checked is None else parse_reference(checked)(),
        steps_per_epoch=options.steps_per_epoch,
        price_per_hour=options.price_per_hour,
        progress=not options.quiet,
    )


def _advise_report(options: argparse.Namespace) -> data.Advice:
    dataset = parse_reference(options.function)()
    if not hasattr(dataset, "element_spec"):
        got = type(dataset).__name__
        raise ArgumentError(f"{options.function} must return a tf.data.Dataset; it returned {got}.")
    return data.advise(dataset, replicas=options.replicas, tpu=options.tpu)


def _tfrecords_report(options: argparse.Namespace) -> data.WrittenRecords:
    return data.write_tfrecords(
        options.source,
        options.out,
        labels=None if options.no_labels else "folder",
        shards=options.shards,
        size=options.size,
        quality=options.quality,
        shuffle=not options.no_shuffle,
        seed=options.seed,
        max_pixels=options.max_pixels,
        on_error="skip" if options.skip_errors else "raise",
        progress=not options.quiet,
    )


def _migrate_report(options: argparse.Namespace) -> MigrationReport:
    write = options.write or options.output is not None
    return migrate(options.path, write=write, output=options.output, overwrite=options.overwrite)


_REPORTS: dict[str, Callable[[argparse.Namespace], Any]] = {
    "parity": _parity_report,
    "doctor": lambda options: doctor(paths=options.paths, start=options.start, compiled=options.compiled),
    "preflight": _preflight_report,
    "compile": _compile_report,
    "plan": _plan_report,
    "advise": _advise_report,
    "resume": lambda options: resume_report(options.directory),
    "report": lambda options: run_report(options.directory),
    "tfrecords": _tfrecords_report,
    "migrate": _migrate_report,
}

if __name__ == "__main__":
    sys.exit(main())
