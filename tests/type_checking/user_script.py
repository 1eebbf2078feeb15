"""A user's script, which `make lint` gives to mypy: names and types are known, and what is wrong is told.

An ignore that mypy does not need is an error, so each one holds that mypy sees the mistake of its line.
"""

import numpy as np
from typing_extensions import assert_type

import keras_tpu_ext as kte

with kte.strategy_scope(replicas=8, precision="auto") as scope:
    assert_type(scope, kte.Scope)
    model = kte.TPUModel()
    assert_type(model, kte.TPUModel)
    model.compile(optimizer="adam", loss="mse", metrics=["mae"], loss_scale="dynamic", steps_per_execution="auto")
    model.compile("adam", "mse", gradient_accumulation_steps=4)
    model.compile(optimiser="adam")  # type: ignore[call-arg]
    model.compile(loss_scale="automatic")  # type: ignore[arg-type]
    assert_type(kte.TPUModel.from_model(model), kte.TPUModel)

assert_type(scope.num_replicas, int)
assert_type(scope.global_batch_size(8), int)
scope.global_batch_size("8")  # type: ignore[arg-type]
kte.strategy_scope(require="tpus")  # type: ignore[arg-type]


class Mine(kte.TPUModel):
    """Subclassed, with a step around ours."""

    def train_step(self, data: object) -> object:
        """Take a step."""
        return super().train_step(data)


kte.layers.MixUp(alpha=0.2, seed=1)
kte.layers.MixUp(alpha="much")  # type: ignore[arg-type]
kte.layers.RandomFlipCrop(height=32, width=32, horizontal=True)
kte.layers.RandomFlipCrop(height=32.5)  # type: ignore[arg-type]
kte.callbacks.Throughput(window=10)
kte.callbacks.Throughput(windows=10)  # type: ignore[call-arg]
kte.callbacks.HostBottleneck()

report = kte.check_parity(lambda: model, np.ones((8, 4)))
assert_type(report, kte.ParityReport)
assert_type(report.ok, bool)
assert_type(kte.preflight(model, np.ones((8, 4)), target="v5e-8"), kte.PreflightReport)
assert_type(kte.doctor(), kte.DoctorReport)
