"""The arguments of `keras-tpu-ext`; nothing slow is imported for them."""

from __future__ import annotations

import argparse
import importlib.util
import os
import re
import sys
from collections.abc import Callable, Sequence
from typing import Any

# Held against the table of TPUs by a test.
SLICES = "v2-8 to v2-512, v3-8 to v3-2048, v4-8 to v4-8192, v5e-1 to v5e-256, v5p-8 to v5p-16384, v6e-1 to v6e-256, "
SLICES += "7x-8 to 7x-16384; the number counts TensorCores"
_MODEL = "a function, my_models:model or my_models.py:model say, that returns a compiled model"
# What one writes.
EXAMPLES = {
    "parity": ("my_models:model", "my_models.py:model --data my_models:batch --replicas 4"),
    "doctor": ("", "/kaggle/working gs://my-bucket/train"),
    "preflight": (
        "my_models:model --target v5e-8",
        "my_models.py:model --batch-size 1024 --plot preflight.png",
        "my_models:model --data my_data:dataset --shard auto --target v6e-16",
    ),
    "compile": ("my_models:model --target v5e-8 --batch-size 1024 --out step.kte",),
    "plan": (
        "my_models:model --data my_data:dataset --epochs 10 --hours 9",
        "my_models:model --data my_data:arrays --batch-size 256 --epochs 10 --target cpu",
    ),
    "advise": ("my_data:dataset --replicas 8",),
    "resume": ("/kaggle/working/checkpoints",),
    "report": ("runs/first --out first.html",),
    "tfrecords": ("photos shards --size 256", "'photos/**.jpg' gs://my-bucket/shards --no-labels"),
    "migrate": ("old_kernel.py", "old_kernel.ipynb --write"),
}

_STATUS = "Exit status: 0 if the report is good, 1 if it is not, 2 if there is none."
_STATUS_OF_WRITER = "Exit status: 0 if there are records now, 2 if there are none."


def parse_arguments(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Return the options of one sub-command, whose name is `.command`.

    Args:
        arguments: What stands behind the command's name; by default what this process was called with.

    Raises:
        SystemExit: For `--help`, `--version` and a wrong call, after its answer.
    """
    parser = argparse.ArgumentParser(
        "keras-tpu-ext",
        description="Take a Keras model to TPUs.",
        epilog=f"keras-tpu-ext COMMAND --help has its options, and examples. {_STATUS}",
    )
    parser.add_argument("--version", action="version", version=f"keras-tpu-ext {_version()}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    _add(commands, "parity", "does a model train on N replicas as on one device?", _add_parity)
    _add(commands, "doctor", "what machine is this, and what is to be mended?", _add_doctor)
    _add(commands, "preflight", "does a train step fit a TPU, and how fast is it?", _add_preflight)
    _add(commands, "compile", "compile the programs of a training into a file, for strategy_scope", _add_compile)
    _add(commands, "plan", "how long will a training take, and what of it costs most?", _add_plan)
    _add(commands, "advise", "what makes an input pipeline slow?", _add_advise)
    _add(commands, "resume", "where does a training go on that AutoResume has saved?", _add_resume)
    _add(commands, "report", "what did the callbacks of a training find?", _add_report)
    _add(commands, "tfrecords", "write images into TFRecord shards", _add_tfrecords, _STATUS_OF_WRITER)
    _add(commands, "migrate", "what becomes of an old TPU kernel, and what is its modern form?", _add_migrate)
    _add_explain(commands)
    if not (sys.argv[1:] if arguments is None else arguments):
        parser.print_help(sys.stderr)
        parser.exit(2)
    options, unknown = parser.parse_known_args(arguments)
    if unknown:
        commands.choices[options.command].error(f"unrecognized arguments: {' '.join(unknown)}")
    return options


def _version() -> str:
    """Return the version of the package; its metadata is not there in a checkout that is not installed."""
    spec = importlib.util.find_spec("keras_tpu_ext")
    assert spec is not None, "the package stands beside this file"
    assert spec.origin is not None, "it is a package with an __init__.py"
    with open(spec.origin, encoding="utf-8") as file:
        found = re.search(r'^__version__ = "(.+)"$', file.read(), re.MULTILINE)
    assert found is not None, "pyproject.toml reads it there, too"
    return found[1]


def _add(
    commands: Any, name: str, text: str, add: Callable[[argparse.ArgumentParser], None], status: str = _STATUS
) -> None:
    examples = "\n".join(f"  keras-tpu-ext {name} {example}".rstrip() for example in EXAMPLES[name])
    command = commands.add_parser(
        name,
        help=text,
        description=text[0].upper() + text[1:],
        epilog=f"examples:\n{examples}\n\n{status}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add(command)
    command.add_argument("--json", action="store_true", help="print the report as JSON")


def _add_parity(command: argparse.ArgumentParser) -> None:
    _add_function(command, f"{_MODEL}, (model, batch) or (build_model, batch)")
    _add_function(command, "a function that returns the batch: (x, y) say (default: made up)", "--data")
    command.add_argument("--replicas", type=_integer(2), default=8, help="number of replicas (default: 8)")
    command.add_argument("--steps", type=_integer(1), default=3, help="number of training steps (default: 3)")
    command.add_argument("--tolerance", type=_number(1), help="largest relative difference (default: by the dtype)")
    command.add_argument(
        "--backend", choices=("jax", "tensorflow"), help="Keras's backend for the replicas (default: the same)"
    )
    command.add_argument(
        "--as-on-tpu", action="store_true", help="let the replicas take Keras's paths for a TPU (JAX only)"
    )
    _add_timeout(command, "seconds for each process")
    _add_quiet(command)


def _add_doctor(command: argparse.ArgumentParser) -> None:
    command.add_argument("paths", metavar="PATH", nargs="*", help="where data and checkpoints are to be")
    command.add_argument("--start", action="store_true", help="start the TPU as well")
    command.add_argument(
        "--compiled",
        nargs=2,
        metavar=("FILE", "SHA256"),
        help="does a file of compiled programs fit this machine?",
    )


def _add_preflight(command: argparse.ArgumentParser) -> None:
    _add_step(command)
    command.add_argument("--largest", action="store_true", help="compile a few times more, for the largest batch")
    command.add_argument("--plot", metavar="FILE", type=_new_file, help="draw the report, into preflight.png say")


def _add_compile(command: argparse.ArgumentParser) -> None:
    _add_step(command)
    command.add_argument("--out", metavar="FILE", type=_new_file, default="step.kte", help="default: step.kte")
    command.set_defaults(largest=False, plot=None)


def _add_step(command: argparse.ArgumentParser) -> None:
    _add_function(command, f"{_MODEL}, or (model, batch)")
    data = "a function that returns a batch, (x, y) say, or a pipeline, whose rate is measured (default: made up)"
    _add_function(command, data, "--data")
    command.add_argument(
        "--batch-size",
        metavar="N",
        type=_integer(1),
        help="examples in a batch over all replicas (default: that of the batch; 128 a replica if it is made up)",
    )
    command.add_argument("--target", metavar="SLICE", default="v5e-8", help=f"{SLICES} (default: v5e-8)")
    command.add_argument("--shard", choices=("fsdp", "auto"), help="shard the model over the devices (JAX only)")
    command.add_argument(
        "--mesh",
        metavar="AXIS=SIZE,...",
        type=_mesh,
        help="axes of the mesh, data=2,model=4 say (default: all in data)",
    )
    _add_timeout(command, "seconds for each compile")
    _add_quiet(command)


def _add_plan(command: argparse.ArgumentParser) -> None:
    _add_function(command, f"{_MODEL}, or (model, batch)")
    _add_function(command, "a function that returns what fit takes: (x, y) or a dataset", "--data", required=True)
    command.add_argument("--epochs", metavar="N", type=_integer(1), required=True, help="number of epochs")
    command.add_argument(
        "--batch-size", metavar="N", type=_integer(1), help="examples in a batch of arrays (default: 32)"
    )
    command.add_argument(
        "--steps-per-epoch", metavar="N", type=_integer(1), help="steps of an epoch, if the data do not tell"
    )
    _add_function(command, "a function that returns what fit takes as such", "--validation-data")
    command.add_argument(
        "--target", metavar="SLICE", default="v5e-8", help=f"cpu, which is this machine, or {SLICES} (default: v5e-8)"
    )
    command.add_argument("--hours", type=_number(), help="the quota")
    command.add_argument(
        "--price-per-hour", metavar="DOLLARS", type=_number(), help="what an hour of the target costs"
    )
    _add_quiet(command)


def _add_advise(command: argparse.ArgumentParser) -> None:
    _add_function(command, "a function that returns a tf.data.Dataset")
    command.add_argument("--replicas", type=_integer(1), default=1, help="number of replicas (default: 1)")
    command.add_argument("--tpu", default="auto", help="the TPU that it is for, such as grpc://10.0.0.2:8470")


def _add_resume(command: argparse.ArgumentParser) -> None:
    command.add_argument("directory", metavar="DIRECTORY", help="the folder that AutoResume was given")


def _add_report(command: argparse.ArgumentParser) -> None:
    command.add_argument("directory", metavar="RUN_DIR", help="the folder that RunLog was given")
    command.add_argument(
        "--out",
        metavar="FILE",
        type=_new_file,
        help="the HTML page (default: report.html in RUN_DIR; none with --json)",
    )


def _add_tfrecords(command: argparse.ArgumentParser) -> None:
    command.add_argument("source", metavar="FOLDER", help="a folder of class folders, or a pattern of image files")
    command.add_argument("out", metavar="OUT", help="the folder to write to; run again after a kill, it goes on")
    command.add_argument("--shards", type=_integer(1), help="number of files (default: of 128 MB, and at least 8)")
    command.add_argument("--size", type=_integer(1), help="make larger images smaller: pixels of the short side")
    command.add_argument(
        "--quality", type=_integer(1, 100), default=95, help="of the JPEGs that --size makes (default: 95)"
    )
    command.add_argument(
        "--max-pixels", type=_integer(1), default=100_000_000, help="the most of an image (default: 100000000)"
    )
    command.add_argument("--no-labels", action="store_true", help="the folder has no class folders")
    command.add_argument("--no-shuffle", action="store_true", help="keep the order of the paths")
    command.add_argument("--seed", type=int, default=0, help="for the order of the records (default: 0)")
    command.add_argument("--skip-errors", action="store_true", help="leave out and count what is no image")
    _add_quiet(command)


def _add_migrate(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "path", metavar="KERNEL", help="a script (.py) or notebook (.ipynb); it is read, and not run"
    )
    command.add_argument("--write", action="store_true", help="write the modern program, KERNEL.modern.py say")
    command.add_argument("--output", metavar="FILE", type=_new_file, help="write it to this file")
    command.add_argument("--overwrite", action="store_true", help="write it also where a file is there already")


def _add_explain(commands: Any) -> None:
    text = "what does the code of an error or a warning mean?"
    example = "Example: keras-tpu-ext explain KTE402"
    command = commands.add_parser("explain", help=text, description=text[0].upper() + text[1:], epilog=example)
    command.add_argument("code", nargs="?", help="the code behind the message (default: list all)")


def _add_function(command: argparse.ArgumentParser, text: str, name: str = "function", **options: Any) -> None:
    command.add_argument(name, metavar="MODULE:FUNCTION", help=text, **options)


def _mesh(text: str) -> dict[str, int]:
    found = re.findall(r"(\w+)=(\d+)(?:,|$)", text)
    if not found or ",".join(f"{name}={size}" for name, size in found) != text:
        raise argparse.ArgumentTypeError(f"must be sizes of axes; got {text!r}. Write data=2,model=4")
    return {name: int(size) for name, size in found}


def _add_timeout(command: argparse.ArgumentParser, text: str) -> None:
    command.add_argument("--timeout", metavar="SECONDS", type=_number(), default=600.0, help=f"{text} (default: 600)")


def _add_quiet(command: argparse.ArgumentParser) -> None:
    command.add_argument("--quiet", action="store_true", help="show no progress")


def _integer(minimum: int, maximum: int | None = None) -> Callable[[str], int]:
    """Return the reader of a whole number from `minimum` to `maximum`."""

    def read(text: str) -> int:
        number = int(text) if re.fullmatch(r"[+-]?\d+", text) else None
        if number is None or number < minimum or (maximum is not None and number > maximum):
            bounds = f"of at least {minimum}" if maximum is None else f"from {minimum} to {maximum}"
            raise argparse.ArgumentTypeError(f"must be an integer {bounds}; got {text!r}")
        return number

    return read


def _number(maximum: float = sys.float_info.max) -> Callable[[str], float]:
    """Return the reader of a number above 0, up to `maximum`."""

    def read(text: str) -> float:
        try:
            number = float(text)
        except ValueError:
            number = 0.0
        if not 0 < number <= maximum:
            bound = f" and at most {maximum:g}" if maximum < sys.float_info.max else ""
            raise argparse.ArgumentTypeError(f"must be a number above 0{bound}; got {text!r}")
        return number

    return read


def _new_file(text: str) -> str:
    """Return the path of a file that can be written, which is better known before the work than after it."""
    folder = os.path.dirname(os.path.abspath(text))
    if not os.path.isdir(folder):
        raise argparse.ArgumentTypeError(f"cannot write {text!r}: there is no folder {folder}")
    if not os.access(text if os.path.exists(text) else folder, os.W_OK) or os.path.isdir(text):
        raise argparse.ArgumentTypeError(f"cannot write {text!r}: it is a folder, or not yours to write")
    return text
