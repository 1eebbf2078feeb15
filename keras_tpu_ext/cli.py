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
from collections.abc import Callable, Sequence
from typing import Any

from keras_tpu_ext import _runtime, data
from keras_tpu_ext._runtime.common.layouts import batch_axis_of
from keras_tpu_ext.callbacks.run_report import RunReport, run_report
from keras_tpu_ext.doctor import DoctorReport, doctor
from keras_tpu_ext.errors import ArgumentError, KteError
from keras_tpu_ext.parity import ParityReport, check_function
from keras_tpu_ext.plan import PlanReport, plan
from keras_tpu_ext.preflight import PreflightReport, preflight
from keras_tpu_ext.preflight._batch import batch_spec, with_batch_size
from keras_tpu_ext.preflight.targets import parse_target
from keras_tpu_ext.resume.report import ResumeReport, resume_report
from keras_tpu_ext.resume.storage import folder_of
from keras_tpu_ext.tools.migrate import MigrationReport, migrate
from keras_tpu_ext.tools.parity.batches import synthetic_batch
from keras_tpu_ext.tools.parity.function_reference import call, check_compiled_model, parse_reference
from keras_tpu_ext_command.arguments import parse_arguments

# Python arguments, as named in messages, whose flag has another name.
_FLAGS = {"timeout_s": "timeout"}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one sub-command and return the exit status.

    Args:
        arguments: The arguments of the command; by default those of this process.
    """
    return run(parse_arguments(arguments))


def run(options: argparse.Namespace) -> int:
    """Print the report that `options` ask for and return the exit status."""
    sys.path.insert(0, os.getcwd())  # as `python -m` does: a user's file is in the current folder
    try:
        report = _REPORTS[options.command](options)
    except (KteError, OSError) as error:
        print(f"keras-tpu-ext {options.command}: {_message(error, options)}", file=sys.stderr)
        return 2
    finally:
        sys.path.remove(os.getcwd())
    print(json.dumps(report.to_dict(), indent=2, allow_nan=False) if options.json else report)
    return 0 if report.ok else 1


def _message(error: Exception, options: argparse.Namespace) -> str:
    """Return the first line of an error, with the command's flags in place of Python arguments."""

    def as_flag(match: re.Match[str]) -> str:
        name = _FLAGS.get(match[1], match[1])
        return f"--{name.replace('_', '-')} {match[2]}" if name in options else match[0]

    return re.sub(r"\b(\w+)=([\w.]+)", as_flag, str(error).splitlines()[0])


def _parity_report(options: argparse.Namespace) -> ParityReport:
    function = parse_reference(options.function)
    if options.batch is not None:
        batch, synthetic = call(parse_reference(options.batch)), False
    else:
        batch, synthetic = _batch_of(call(function), options)
    return check_function(
        function,
        batch,
        options.replicas,
        options.steps,
        options.tolerance,
        options.timeout,
        backend=options.backend,
        as_on_tpu=options.as_on_tpu,
        synthetic=synthetic,
        progress=not options.quiet,
    )


def _batch_of(result: Any, options: argparse.Namespace) -> tuple[Any, bool]:
    """Return the batch that comes with a model, or a synthetic one, and whether it is synthetic."""
    if isinstance(result, tuple) and len(result) == 2:
        return result[1], False
    check_compiled_model(options.function, result, "a compiled Keras model, (model, batch) or (build_model, batch)")
    return synthetic_batch(result, 8 * max(options.replicas, 1) + 3), True


def _doctor_report(options: argparse.Namespace) -> DoctorReport:
    return doctor(paths=options.paths, start=options.start, compiled=options.compiled)


def _preflight_report(options: argparse.Namespace, *, exact: bool = False) -> PreflightReport:
    function = parse_reference(options.function)

    def build() -> Any:
        result = call(function)
        model, batch = result if isinstance(result, tuple) and len(result) == 2 else (result, None)
        check_compiled_model(options.function, model, "a compiled Keras model or (model, batch)")
        batches.append(batch)
        return model

    batches: list[Any] = []
    with _runtime.models.exact_models(_runtime.TrainStep) if exact else contextlib.nullcontext():
        model = _runtime.probes.call_abstractly(build)
    batch = batches[0]
    replicas = parse_target(options.target).devices
    if options.mesh:
        replicas = options.mesh[batch_axis_of(options.mesh)]
    if options.shard == "auto" and not options.mesh:
        replicas = 1 if options.batch else replicas  # each mesh has its own number of replicas
    per_replica, rest = (128, 0) if options.batch is None else divmod(options.batch, replicas)
    if rest or per_replica < 1:
        raise ArgumentError(
            f"--batch {options.batch} cannot be shared evenly by the {replicas} replicas of {options.target}. "
            f"Write --batch {max(per_replica, 1) * replicas}."
        )
    if batch is None:
        batch = synthetic_batch(model, 1)
    elif options.batch is None:
        per_replica = None
    if replicas == 1 and per_replica is not None:
        batch, per_replica = with_batch_size(batch_spec(batch, options.target, 1, None), per_replica), None
    report = preflight(
        model if options.shard is None else build,
        batch,
        options.target,
        per_replica,
        shard=options.shard,
        mesh=options.mesh,
        find_largest_batch=options.largest,
        pipeline=None if options.pipeline is None else call(parse_reference(options.pipeline)),
        timeout_s=options.timeout,
        progress=not options.quiet,
    )
    if options.plot:
        report.plot(options.plot)
    return report


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
    function, checked = parse_reference(options.function), options.validation_data
    return plan(
        lambda: call(function),
        call(parse_reference(options.data)),
        epochs=options.epochs,
        batch_size=options.batch_size,
        target=options.target,
        hours=options.hours,
        validation_data=None if checked is None else call(parse_reference(checked)),
        steps_per_epoch=options.steps_per_epoch,
        price_per_hour=options.price_per_hour,
        progress=not options.quiet,
    )


def _advise_report(options: argparse.Namespace) -> data.Advice:
    dataset = call(parse_reference(options.function))
    if not hasattr(dataset, "element_spec"):
        got = type(dataset).__name__
        raise ArgumentError(f"{options.function} must return a tf.data.Dataset; it returned {got}.")
    measure = not options.no_measure
    return data.advise(dataset, replicas=options.replicas, tpu=options.tpu, measure=measure, seconds=options.seconds)


def _resume_report(options: argparse.Namespace) -> ResumeReport:
    return resume_report(options.directory)


def _run_report(options: argparse.Namespace) -> RunReport:
    report = run_report(options.directory)
    if options.out or not options.json:
        place, name = os.path.split(options.out) if options.out else (options.directory, "report.html")
        folder, page = folder_of(place), report.page().encode()
        folder.write(name, lambda file: file.write(page))
        print(f"wrote {folder.path_of(name)}", file=sys.stderr)
    return report


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
    "doctor": _doctor_report,
    "preflight": _preflight_report,
    "compile": _compile_report,
    "plan": _plan_report,
    "advise": _advise_report,
    "resume": _resume_report,
    "report": _run_report,
    "tfrecords": _tfrecords_report,
    "migrate": _migrate_report,
}

if __name__ == "__main__":
    sys.exit(main())
