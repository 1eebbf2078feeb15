"""Install the drop-in, each part in its order."""

from __future__ import annotations

import importlib

from keras_tpu_ext.dropin import report

_PARTS = ("tpu", "tensors", "dispatcher", "control", "keras_backend", "old_keras", "stand_ins", "out_of_reach")


def install() -> None:
    """Replace what old programs use, and print a summary when the process ends."""
    for part in _PARTS:  # some can be imported only when those before are installed
        importlib.import_module(f"keras_tpu_ext.dropin.{part}").install()
    report.print_at_exit()
