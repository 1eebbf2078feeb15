"""Tests of Keras that need not pass here: a part of the name, from how many replicas on, and why."""

EXPLAINED: tuple[tuple[str, int, str], ...] = (
    (
        "trainer_test.TestTrainer::test_adds_loss_scaling_optimizer",
        1,
        "it asks that model.optimizer is a LossScaleOptimizer; the exact step scales the loss itself, and leaves the "
        "user's optimizer where it is",
    ),
)

NOT_COLLECTED: tuple[tuple[str, str], ...] = (
    ("callbacks.remote_monitor_test", "it imports the conftest.py of Keras's repository, which the wheel has not"),
)
"""Files that pytest cannot import: a part of the name, and why."""
