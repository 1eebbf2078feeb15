"""Dtype policies: the one for each device, a scope that sets it, and an audit of a model."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator
from typing import Any

from keras_tpu_ext import _runtime
from keras_tpu_ext.checks import arguments as check
from keras_tpu_ext.errors import ArgumentError
from keras_tpu_ext.hardware import Hardware, detect
from keras_tpu_ext.output.report import Report

__all__ = [
    "recommended_policy",
    "check_policy",
    "policy_scope",
    "Finding",
    "AuditReport",
    "audit",
]
_LOW = ("bfloat16", "float16")


def recommended_policy(hardware: Hardware | None = None) -> str:
    """Return the name of the Keras dtype policy that fits `hardware`.

    TPUs and GPUs with bfloat16 units: `"mixed_bfloat16"`. Older GPUs, and those that cannot be identified:
    `"mixed_float16"`, which comes with a dynamic loss scale. CPUs: `"float32"`.

    Args:
        hardware: Hardware to train on; by default what `hardware.detect()` finds.

    Raises:
        ArgumentError: If `hardware` is not a `Hardware`.

    Example:
        ```python
        import keras
        import keras_tpu_ext as kte

        policy = kte.precision.recommended_policy()
        print(policy)  # float32 on a CPU
        keras.config.set_dtype_policy(policy)
        a100 = kte.hardware.Hardware("gpu", 1, "NVIDIA A100-SXM4-40GB", supports_bfloat16=True)
        print(kte.precision.recommended_policy(a100))  # mixed_bfloat16
        ```
    """
    hardware = detect() if hardware is None else hardware
    if not isinstance(hardware, Hardware):
        raise check.argument_error(
            "recommended_policy",
            "hardware",
            "a kte.hardware.Hardware",
            repr(hardware),
            "recommended_policy(scope.hardware)",
        )
    if hardware.kind == "cpu":
        return "float32"
    if hardware.kind == "tpu" or hardware.supports_bfloat16:
        return "mixed_bfloat16"
    return "mixed_float16"


def check_policy(name: str) -> str:
    """Return `name` after checking that it is a dtype policy that Keras knows.

    Raises:
        ArgumentError: If it is not.

    Example:
        ```python
        import keras_tpu_ext as kte

        print(kte.precision.check_policy("mixed_bfloat16"))  # mixed_bfloat16
        try:
            kte.precision.check_policy("bf16")
        except kte.errors.ArgumentError as error:
            print(error)  # 'bf16' is no dtype policy. Write ...
        ```
    """
    policy: Any = None
    with contextlib.suppress(TypeError, ValueError):
        policy = _runtime.keras.mixed_precision.Policy(name) if isinstance(name, str) else None
    if policy is None or "float" not in (policy.compute_dtype or ""):  # no model can train in integers
        raise ArgumentError(
            f"{name!r} is no dtype policy. Write 'mixed_bfloat16' (TPUs, newer GPUs), 'mixed_float16' (older "
            "GPUs), 'float32', or 'auto'."
        )
    return name


@contextlib.contextmanager
def policy_scope(name: str) -> Iterator[str]:
    """Set Keras's global dtype policy inside a `with` block and restore the old one afterwards, also on error.

    Args:
        name: A policy such as `"mixed_bfloat16"`, or `"auto"` for `recommended_policy()` on this machine.

    Yields:
        The name of the active policy.

    Raises:
        ArgumentError: If Keras knows no such policy.

    Example:
        ```python
        import keras
        import keras_tpu_ext as kte

        with kte.precision.policy_scope("mixed_bfloat16") as policy:
            layer = keras.layers.Dense(4)
        print(policy, layer.compute_dtype, layer.variable_dtype)  # mixed_bfloat16 bfloat16 float32
        print(keras.layers.Dense(4).compute_dtype)  # float32 again
        ```
    """
    policy = check_policy(recommended_policy() if name == "auto" else name)
    before = _runtime.keras.mixed_precision.global_policy()
    _runtime.keras.mixed_precision.set_global_policy(policy)
    try:
        yield policy
    finally:
        _runtime.keras.mixed_precision.set_global_policy(before)


@dataclasses.dataclass(frozen=True)
class Finding:
    """One place in a model that is computed in a 16-bit type and should not be.

    Attributes:
        kind: `"softmax"`, `"loss"` or `"metric"`.
        where: Name of the layer, output or metric.
        dtype: `"bfloat16"` or `"float16"`.
        cure: The line to write.
    """

    kind: str
    where: str
    dtype: str
    cure: str

    def __str__(self) -> str:
        what = {
            "softmax": f"softmax in {self.dtype} in layer {self.where!r}",
            "loss": f"loss from {self.dtype} values of layer {self.where!r}",
            "metric": f"metric {self.where!r} kept in {self.dtype}",
        }[self.kind]
        return f"{what}: {self.cure}"


@dataclasses.dataclass(frozen=True)
class AuditReport(Report):
    """The result of `audit`.

    Attributes:
        model: Name of the model.
        findings: The places at risk, in the order of the layers; empty if there are none.
    """

    model: str
    findings: tuple[Finding, ...]

    @property
    def ok(self) -> bool:
        """Whether nothing was found."""
        return not self.findings

    def __str__(self) -> str:
        if self.ok:
            return f"{self.model}: softmax, loss and metrics are computed in full precision."
        lines = [f"{self.model}: {len(self.findings)} place(s) where 16 bits cost accuracy:"]
        return "\n".join(lines + [f"  - {finding}" for finding in self.findings])


def audit(model: Any) -> AuditReport:
    """Find softmaxes, losses and metrics of `model` that are computed in bfloat16 or float16.

    A 16-bit softmax loses small probabilities, 16-bit logits round the loss, and a metric kept in bfloat16 stops
    counting at 256. To have its loss and metrics checked, compile the model first.

    The `call` of a subclassed model cannot be inspected, only its layers.

    Args:
        model: A built Keras model.

    Raises:
        ArgumentError: If `model` is not a Keras model.

    Example:
        ```python
        import keras
        import keras_tpu_ext as kte

        with kte.precision.policy_scope("mixed_bfloat16"):
            inputs = keras.Input((8,))
            x = keras.layers.Dense(16, activation="relu")(inputs)
            model = keras.Model(inputs, keras.layers.Dense(4, activation="softmax", name="classes")(x))
        model.compile("adam", "sparse_categorical_crossentropy")
        report = kte.precision.audit(model)
        print(report.ok)  # False
        print(report)  # softmax in bfloat16 in layer 'classes', and the line to write
        ```
    """
    if not isinstance(model, _runtime.keras.Model):
        raise check.argument_error("audit", "model", "a Keras model", type(model).__name__, "audit(model)")
    findings = [
        Finding("softmax", name, dtype, _in_float32(made_by))
        for name, made_by, dtype in _runtime.models.softmaxes(model)
        if dtype in _LOW
    ]
    for name, value_dtype, made_by, loss_dtype in _runtime.models.losses(model):
        if value_dtype in _LOW:
            findings.append(Finding("loss", name, value_dtype, "give that output layer dtype='float32'"))
        elif loss_dtype in _LOW:
            findings.append(Finding("loss", name, loss_dtype, _in_float32(made_by)))
    findings += [
        Finding("metric", name, dtype, _in_float32(made_by))
        for name, made_by, dtype in _runtime.models.metrics(model)
        if dtype in _LOW
    ]
    return AuditReport(model.name, tuple(findings))


def _in_float32(made_by: str) -> str:
    return f"write {made_by}(..., dtype='float32')"


def __dir__() -> list[str]:
    return __all__
