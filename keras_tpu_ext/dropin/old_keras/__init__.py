"""What old Keras (Keras 2, TensorFlow 2.1 to 2.15) had, with the meaning that it had then, on Keras 3."""

from __future__ import annotations

from keras_tpu_ext.dropin.old_keras import (
    added_losses,
    arguments,
    callbacks,
    calls,
    data,
    files,
    history,
    lambdas,
    layers,
    logits,
    losses,
    merging,
    metrics,
    modules,
    optimizer_files,
    optimizers,
    quiet,
    training,
)


def install() -> None:
    """Make old arguments, methods, modules and files work, under all spellings of Keras."""
    for part in (
        optimizers,
        arguments,
        calls,
        layers,
        added_losses,
        merging,
        logits,
        losses,
        metrics,
        training,
        data,
        history,
        callbacks,
        files,
        optimizer_files,
        lambdas,
        modules,
        quiet,
    ):
        part.install()
