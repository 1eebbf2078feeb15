"""The command `keras-tpu-ext`: the package's reports on the command line.

It exits with 0 when the report is good, with 1 when it is not and with 2 when there is none.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Sequence
from typing import Any

from keras_tpu_ext import data
from keras_tpu_ext._parity.batches import synthetic_batch
from keras_tpu_ext._parity.function_reference import call, check_compiled_model, parse_reference
from keras_tpu_ext.doctor import DoctorReport, doctor
from keras_tpu_ext.errors import ArgumentError, KteError
from keras_tpu_ext.parity import ParityReport, check_function
from keras_tpu_ext.preflight import PreflightReport, preflight
from keras_tpu_ext.preflight.targets import parse_target


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one sub-command and return the exit status.

    Args:
        arguments: The arguments of the command; by default those of this process.
    """
    options = _parser().parse_args(arguments)
    sys.path.insert(0, os.getcwd())  # as `python -m` does: a user's file is in the folder they stand in
    try:
        report = options.make_report(options)
    except KteError as error:
        print(f"keras-tpu-ext {options.command}: {str(error).splitlines()[0]}", file=sys.stderr)
        return 2
    finally:
        sys.path.remove(os.getcwd())
    print(json.dumps(report.to_dict(), indent=2, allow_nan=False) if options.json else report)
    return 0 if report.ok else 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("keras-tpu-ext", description="Take an existing Keras model to TPUs.")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    _add(commands, "parity", "does a model train on N replicas as on one device?", _parity_arguments, _parity_report)
    _add(commands, "doctor", "what machine is this, and what is to be mended?", _doctor_arguments, _doctor_report)
    _add(commands, "preflight", "does a train step fit a TPU, and how fast?", _preflight_arguments, _preflight_report)
    _add(commands, "advise", "what makes an input pipeline slow?", _advise_arguments, _advise_report)
    _add(commands, "tfrecords", "write images into TFRecord shards", _tfrecords_arguments, _tfrecords_report)
    return parser


def _add(
    commands: Any,
    name: str,
    text: str,
    add_arguments: Callable[[argparse.ArgumentParser], None],
    make_report: Callable[[argparse.Namespace], Any],
) -> None:
    command = commands.add_parser(name, help=text, description=text)
    add_arguments(command)
    command.add_argument("--json", action="store_true", help="print the report as JSON")
    command.set_defaults(make_report=make_report)


def _parity_arguments(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "function",
        metavar="MODULE:FUNCTION",
        help="a function that returns a compiled model, (model, batch) or (build_model, batch)",
    )
    command.add_argument("--batch", metavar="MODULE:FUNCTION", help="a function that returns the batch")
    command.add_argument("--replicas", type=int, default=8, help="number of replicas (default: 8)")
    command.add_argument("--steps", type=int, default=3, help="number of training steps (default: 3)")
    command.add_argument("--tolerance", type=float, help="largest relative difference (default: by the dtype)")
    command.add_argument("--backend", help="Keras's backend for the replicas: jax or tensorflow (default: the same)")
    command.add_argument("--timeout", type=float, default=600.0, help="seconds for each process (default: 600)")


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
        synthetic=synthetic,
    )


def _batch_of(result: Any, options: argparse.Namespace) -> tuple[Any, bool]:
    """Return the batch that comes with a model, or a synthetic one, and whether it is synthetic."""
    if isinstance(result, tuple) and len(result) == 2:
        return result[1], False
    check_compiled_model(options.function, result, "a compiled Keras model, (model, batch) or (build_model, batch)")
    return synthetic_batch(result, 8 * max(options.replicas, 1) + 3), True


def _doctor_arguments(command: argparse.ArgumentParser) -> None:
    command.add_argument("paths", metavar="PATH", nargs="*", help="where data and checkpoints are to be")
    command.add_argument("--start", action="store_true", help="start the TPU as well")


def _doctor_report(options: argparse.Namespace) -> DoctorReport:
    return doctor(paths=options.paths, start=options.start)


def _preflight_arguments(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "function", metavar="MODULE:FUNCTION", help="a function that returns a compiled model, or (model, batch)"
    )
    command.add_argument("--target", default="v5e-8", help="a TPU slice, v3-8 or v5e-256 say (default: v5e-8)")
    command.add_argument("--batch", type=int, help="examples in a batch over all replicas (default: 128 a replica)")
    command.add_argument("--largest", action="store_true", help="compile a few times more, for the largest batch")
    command.add_argument("--pipeline", metavar="MODULE:FUNCTION", help="a function that returns an input pipeline")
    command.add_argument("--plot", metavar="FILE", help="draw the report, into preflight.png say")
    command.add_argument("--timeout", type=float, default=600.0, help="seconds for each compile (default: 600)")
    command.add_argument("--quiet", action="store_true", help="show no progress")


def _preflight_report(options: argparse.Namespace) -> PreflightReport:
    result = call(parse_reference(options.function))
    model, batch = result if isinstance(result, tuple) and len(result) == 2 else (result, None)
    check_compiled_model(options.function, model, "a compiled Keras model or (model, batch)")
    devices = parse_target(options.target).devices
    per_replica, rest = (128, 0) if options.batch is None else divmod(options.batch, devices)
    if rest or per_replica < 1:
        raise ArgumentError(
            f"--batch {options.batch} cannot be shared evenly by the {devices} replicas of {options.target}. "
            f"Write --batch {max(per_replica, 1) * devices}."
        )
    if batch is None:
        batch = synthetic_batch(model, 1)
    elif options.batch is None:
        per_replica = None
    report = preflight(
        model,
        batch,
        options.target,
        per_replica,
        find_largest_batch=options.largest,
        pipeline=None if options.pipeline is None else call(parse_reference(options.pipeline)),
        timeout_s=options.timeout,
        progress=not options.quiet,
    )
    if options.plot:
        report.plot(options.plot)
    return report


def _advise_arguments(command: argparse.ArgumentParser) -> None:
    command.add_argument("function", metavar="MODULE:FUNCTION", help="a function that returns a tf.data.Dataset")
    command.add_argument("--replicas", type=int, default=1, help="number of replicas (default: 1)")
    command.add_argument("--tpu", default="auto", help="the TPU that it is for, such as grpc://10.0.0.2:8470")
    command.add_argument("--seconds", type=float, default=10.0, help="how long to measure in all (default: 10)")
    command.add_argument("--no-measure", action="store_true", help="look only, and run nothing")


def _advise_report(options: argparse.Namespace) -> data.Advice:
    dataset = call(parse_reference(options.function))
    measure = not options.no_measure
    return data.advise(dataset, replicas=options.replicas, tpu=options.tpu, measure=measure, seconds=options.seconds)


def _tfrecords_arguments(command: argparse.ArgumentParser) -> None:
    command.add_argument("source", metavar="FOLDER", help="a folder of class folders, or a pattern of image files")
    command.add_argument("out", metavar="OUT", help="the folder to write to; run again after a kill, it goes on")
    command.add_argument("--shards", type=int, help="number of files (default: 128 MB in each, and at least 8)")
    command.add_argument("--size", type=int, help="make larger images smaller: pixels of the short side")
    command.add_argument("--quality", type=int, default=95, help="of the JPEGs that --size makes (default: 95)")
    command.add_argument("--no-labels", action="store_true", help="the folder has no class folders")
    command.add_argument("--no-shuffle", action="store_true", help="keep the order of the paths")
    command.add_argument("--seed", type=int, default=0, help="for the order of the records (default: 0)")
    command.add_argument("--skip-errors", action="store_true", help="leave out and count what is no image")
    command.add_argument("--quiet", action="store_true", help="show no progress")


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
        on_error="skip" if options.skip_errors else "raise",
        progress=not options.quiet,
    )


if __name__ == "__main__":
    sys.exit(main())
