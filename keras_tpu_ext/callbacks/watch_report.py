"""What `Watch` found in a `fit`."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Literal

from keras_tpu_ext._runtime.common.values import FirstCall, NotFinite
from keras_tpu_ext.callbacks._spikes import Spike
from keras_tpu_ext.output.display import variables_text, wrap
from keras_tpu_ext.output.report import Report

Cause = Literal["", "batch", "gradients", "layer", "loss", "update", "weights", "unknown"]
# The largest numbers of formats with few exponent or significand bits: (2 - 2**-significand) * 2**exponent.
_LARGEST = {"float16": (2 - 2**-10) * 2.0**15, "bfloat16": (2 - 2**-7) * 2.0**127}


@dataclasses.dataclass(frozen=True)
class WatchReport(Report):
    """The first loss or weight of a `fit` that was not finite, where it came from, and the spikes of the loss.

    Steps and batches are counted from 0, as in `on_train_batch_begin`.

    Attributes:
        steps: Number of batches that were watched.
        cause: Where it came from: `"layer"`, the output of a layer; `"loss"`, the loss function; `"gradients"`;
            `"update"`, its learning rate; `"weights"`, weights that an update or code between
            two steps wrote; `"batch"`, the data; `"unknown"`. Empty if
            everything was finite.
        step: The step of this `fit` to which that happened: after `"weights"`, the one that began with them. `None`
            if everything was finite, or it is not known.
        epoch: Its epoch, from 0.
        batch: Its batch in the epoch; without a record in the step, the first one of an execution.
        layers: Paths of the layers that are to blame, as far as they are known.
        text: All of this in sentences.
        spikes: The starts of the spikes of the loss.

    Example:
        ```python
        import keras_tpu_ext as kte

        # As Watch().report() may be after a training.
        report = kte.callbacks.WatchReport(steps=100)
        print(report.ok)  # True
        print(report)
        ```
    """

    steps: int
    cause: Cause = ""
    step: int | None = None
    epoch: int | None = None
    batch: int | None = None
    layers: tuple[str, ...] = ()
    text: str = ""
    spikes: tuple[Spike, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether losses and weights were finite."""
        return not self.cause

    def __str__(self) -> str:
        lines = [self.text or f"all losses and weights were finite in {self.steps} steps", *map(str, self.spikes)]
        return "\n".join(line for text in lines for line in wrap(text, 2))


def explained(found: NotFinite) -> tuple[Cause, tuple[str, ...], str]:
    """Return the cause, the layers to blame, and a sentence."""
    if found.weights:
        return _of_weights(found)
    if not found.batch_finite:
        return "batch", (), "the inputs, targets or sample weights of the batch had NaN or inf"
    if found.call is not None:
        return "layer", (found.call.layer,), _of_call(found.call)
    if found.looked:
        text = "the loss was not finite, though the outputs of all layers were: the loss function gave it. "
        return "loss", (), text + "Often this is a logarithm of 0 or a division by 0"
    text = (
        "the loss was not finite, though the weights were. Whether a layer or the loss function gave it is not "
        "known: on TensorFlow it is looked for on one replica only. Write strategy_scope(replicas=1) to find out"
    )
    return "unknown", (), text


def _of_weights(found: NotFinite) -> tuple[Cause, tuple[str, ...], str]:
    names, layers = variables_text(found.weights, found.of), _layers(found.weights)
    if not found.step:
        return "weights", layers, f"{names} had NaN or inf when this first step began: see what wrote them before"
    if found.updated and not found.rate_finite:
        return "update", layers, f"the learning rate was not finite, and the update put NaN or inf into {names}"
    if found.updated:
        text = (
            f"the loss was finite, but the update put NaN or inf into {names}: gradients were not finite, or too "
            "large. Often this is a square root, a norm or a division at 0"
        )
        return "gradients", layers, text
    text = (
        f"{names} had NaN or inf when the step began, though the update before had left biases and other small "
        "variables finite: most likely code between the steps wrote that, such as a callback"
    )
    return "weights", layers, text


def explained_without_record(
    weights: Sequence[str], of: int, *, has_loss: bool, has_record: bool
) -> tuple[Cause, tuple[str, ...], str]:
    """Return the same where no step has recorded it, given the weights that are not finite by now."""
    loss = "the loss was not finite" if has_loss else "the losses were finite"
    seen = f"{variables_text(weights, of)} had NaN or inf" if weights else "all weights were finite"
    text = f"{loss}. When this was looked at, {seen}"
    is_told = 0 < len(weights) < of
    if weights and not is_told:
        text += ", so that the first layer cannot be told"
    if not has_record:
        text += ". Its step keeps no record: for layer and step write `with kte.strategy_scope():` around the model"
    return "unknown", _layers(weights) if is_told else (), text


def _of_call(call: FirstCall) -> str:
    who = f"the output of layer {call.layer} ({call.kind}{f', {call.policy}' if call.policy else ''})"
    sizes = (
        f"The largest finite number was {call.largest:.4g} in its output, and {call.largest_input:.4g} in its inputs"
    )
    if call.peak < float("inf"):
        return f"{who} had NaN, the first in the forward pass, from finite inputs. {sizes}"
    if call.dtype not in _LARGEST:
        return (
            f"{who} had inf, the first in the forward pass, in {call.dtype}: an overflow, or a division by 0. {sizes}"
        )
    return (
        f"{who} overflowed {call.dtype}, whose largest number is {_LARGEST[call.dtype]:.6g}, the first in the "
        f'forward pass (or it divided by 0). {sizes}. Write dtype="float32" for this layer'
    )


def _layers(paths: Sequence[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(path.rpartition("/")[0] or path for path in paths))
