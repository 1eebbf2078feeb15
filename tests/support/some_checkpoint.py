"""A small checkpoint, for tests of what writes and reads them."""

import numpy as np

from keras_tpu_ext._runtime.common.random_state import random_state
from keras_tpu_ext._runtime.common.values import Place, SavedVariable
from keras_tpu_ext.resume.checkpoint import Checkpoint
from keras_tpu_ext.resume.data_spec import DataSpec


def some_checkpoint(**changes):
    """Return a checkpoint of the third epoch, with some of its attributes changed."""
    weight = np.arange(12, dtype="float32").reshape(4, 3)
    content = {
        "keras": "Keras 3",
        "framework": "JAX",
        "epochs": 5,
        "epoch": 2,
        "batch": 7,
        "batches": 27,
        "finished": False,
        "diverged": False,
        "time": 0.0,
        "variables": [
            SavedVariable("weight", "sequential/dense/kernel", weight),
            SavedVariable("metric", "loss/total", np.float32(2.5)[np.newaxis], True),
            SavedVariable("random", "seed/state", np.arange(2, dtype="uint32")),
        ],
        "callbacks": [("EarlyStopping", {"wait": 1, "best": 0.5, "best_weights": [weight]}), ("History", {})],
        "history": {"epoch": [0, 1], "history": {"loss": [1.0, 0.5]}},
        "place": Place(7, 7, [2, 0, 1], random_state(), random_state(), rows=16, draws=True),
        "data": DataSpec("arrays", 10, None, 160, 16, [("float32", [4])], "0123456789abcdef"),
        "data_state": [("Batches", {"rows": np.arange(3), "name": b"\x00\xff"})],
        "seed": None,
    }
    return Checkpoint(**{**content, **changes})
