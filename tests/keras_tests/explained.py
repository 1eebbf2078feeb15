"""Tests of Keras that need not pass here, one by one, and why."""

from __future__ import annotations

from typing import NamedTuple


class Explained(NamedTuple):
    """What a test's name ends with, on which backends and from how many replicas on it may fail, and why."""

    name: str
    backends: tuple[str, ...]
    replicas: int
    why: str


EXPLAINED = (
    Explained(
        "trainer_test.TestTrainer::test_adds_loss_scaling_optimizer",
        ("jax", "tensorflow"),
        1,
        "it asks that model.optimizer is a LossScaleOptimizer; the exact step scales the loss itself, so that the "
        "optimizer stays the user's own",
    ),
    Explained(
        "trainer_test.TestTrainer::test_retracing",
        ("tensorflow",),
        8,
        "it counts the calls of train_step while it is traced, and allows two; TensorFlow traces a step on eight "
        "replicas once, and calls it for each of them",
    ),
)

# Files that pytest cannot import: what their name ends with, and why.
NOT_COLLECTED = {
    "callbacks.remote_monitor_test": "it imports the conftest.py of Keras's repository, which the wheel has not",
}
