"""Tests of Keras that need not pass here, one by one, and why."""

from __future__ import annotations

from typing import NamedTuple


class Explained(NamedTuple):
    """What a test's name ends with, on which backends and from how many replicas on it may fail, and why."""

    name: str
    backends: tuple[str, ...]
    replicas: int
    why: str


RAW_VARIABLE = (
    "it makes an int of counter.value, TensorFlow's own variable, of which there is none on replicas; int(counter) "
    "is there, and where int(counter.value) is made to be, the test passes"
)

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
    Explained(
        "trainer_test.TestTrainer::test_retracing_predict",
        ("jax",),
        8,
        "it counts the calls of predict_step while it is traced, and allows two; a batch that devices cannot share "
        "evenly is traced twice more, with two numbers of rows, to see whether it may be padded",
    ),
    Explained(
        "functional_test.FunctionalTest::test_warning_for_mismatched_inputs_structure",
        ("tensorflow",),
        8,
        "it records every warning and asks for one; the model warns while it is traced, and TensorFlow calls it for "
        "each of the eight replicas",
    ),
    Explained("BackupAndRestoreCallbackTest::test_backup_corrupted", ("tensorflow",), 8, RAW_VARIABLE),
    Explained("BackupAndRestoreCallbackTest::test_best_case_epoch", ("tensorflow",), 8, RAW_VARIABLE),
    Explained("BackupAndRestoreCallbackTest::test_best_case_step", ("tensorflow",), 8, RAW_VARIABLE),
    Explained(
        "reduce_lr_on_plateau_test.ReduceLROnPlateauTest::test_cooldown",
        ("tensorflow",),
        8,
        "it makes an array of learning_rate.value, TensorFlow's own variable, which on replicas gives none of a "
        "number; np.array(learning_rate) does",
    ),
    Explained(
        "swap_ema_weights_test.SwapEMAWeightsTest::test_swap_ema_weights_with_tf_distribute",
        ("tensorflow",),
        8,
        "it opens a strategy of its own inside the scope, which TensorFlow refuses",
    ),
)

# Files that pytest cannot import: what their name ends with, and why.
NOT_COLLECTED = {
    "callbacks.remote_monitor_test": "it imports the conftest.py of Keras's repository, which the wheel has not",
}
