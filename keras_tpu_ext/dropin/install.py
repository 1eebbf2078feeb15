"""Install the drop-in, each part in its order."""

from __future__ import annotations

import importlib

from keras_tpu_ext.dropin import report

_PARTS = ("tpu", "tensors", "dispatcher", "control", "keras_backend", "old_keras", "stand_ins", "out_of_reach")


def install() -> None:
    """Replace what old programs use, and print a summary when the process ends."""
    for part in _PARTS:
        try:
            importlib.import_module(f"keras_tpu_ext.dropin.{part}").install()
        except Exception as error:  # while it is being built
            print("dropin: NOT YET", part, repr(error)[:300])
    report.print_at_exit()
