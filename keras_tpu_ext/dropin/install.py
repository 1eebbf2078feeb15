"""Install the drop-in, each part in its order."""

from __future__ import annotations

import importlib

from keras_tpu_ext.dropin import report

_PARTS = ("tpu", "tensors", "dispatcher", "control", "keras_backend", "old_keras", "stand_ins", "out_of_reach")


def install() -> None:
    """Replace what old programs use, and print a summary when the process ends."""
    for part in _PARTS:
        try:
            module = importlib.import_module(f"keras_tpu_ext.dropin.{part}")
        except ModuleNotFoundError as error:  # while it is being built
            print("dropin: missing", part, error)
            continue
        if not hasattr(module, "install"):
            print("dropin: no install in", part)
            continue
        module.install()
    report.print_at_exit()
