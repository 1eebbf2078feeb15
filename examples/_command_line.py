"""The options that the examples share."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

import keras_tpu_ext as kte

REHEARSED = 8


def parser(description: str) -> argparse.ArgumentParser:
    """Return a parser with the options that every example has."""
    made = argparse.ArgumentParser(description=description)
    made.add_argument("--data", type=Path, metavar="DIR", help="folder with the data files; nothing is downloaded")
    made.add_argument(
        "--replicas",
        type=positive,
        metavar="N",
        help=f"replicas; default: all devices of an accelerator, or {REHEARSED} rehearsed on the CPU",
    )
    made.add_argument("--precision", help="dtype policy, such as mixed_bfloat16, or auto; default: leave it alone")
    made.add_argument("--seed", type=int, default=0, help="seed of weights and order; default: 0")
    made.add_argument("--output", type=Path, default=Path("out"), metavar="DIR", help="where the picture goes")
    return made


def positive(text: str) -> int:
    """Return `text` as a whole number of at least 1."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number of at least 1")
    return int(text)


def replicas(args: argparse.Namespace) -> int | None:
    """Return how many replicas to ask for: what the user wants, or a rehearsal where there is no accelerator."""
    if args.replicas is None and kte.hardware.detect().kind == "cpu":
        return REHEARSED
    return args.replicas


def run(main: Callable[[], None]) -> None:
    """Run `main`; what `keras_tpu_ext` has to say is one line then, and no traceback."""
    try:
        main()
    except kte.KteError as error:
        raise SystemExit(str(error)) from None
