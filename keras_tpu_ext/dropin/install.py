"""Install the drop-in, each part in its order."""

from __future__ import annotations

import importlib

from keras_tpu_ext.dropin import report

_OLD_KERAS = (
    *("optimizers", "arguments", "calls", "layers", "added", "merging", "logits", "corners", "losses", "metrics"),
    *("training", "data", "history", "callbacks", "files", "optimizer_files", "lambdas", "modules", "quiet"),
)
_PARTS = (
    *("tpu", "tensors", "dispatcher", "control", "tf_variables", "keras_backend"),
    *(f"old_keras.{part}" for part in _OLD_KERAS),
    *("stand_ins", "out_of_reach"),
)


def install() -> None:
    """Replace what old programs use, and print a summary when the process ends."""
    for part in _PARTS:  # some can be imported only when those before are installed
        importlib.import_module(f"keras_tpu_ext.dropin.{part}").install()
    report.print_at_exit()
