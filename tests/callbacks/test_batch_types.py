import numpy as np
import pytest

from keras_tpu_ext.callbacks._compile_reason import types_of

pytestmark = pytest.mark.gate_on("keras3_jax")


class PerReplica:
    def __init__(self, *specs):
        self._value_specs = specs


def test_each_array_has_a_name():
    image, label = np.zeros((8, 4, 4)), np.zeros(8, "int32")
    assert types_of(({"image": image, "size": (label, label)}, label, None)) == {
        'x["image"]': ((8, 4, 4), "float64"),
        'x["size"][0]': ((8,), "int32"),
        'x["size"][1]': ((8,), "int32"),
        "y": ((8,), "int32"),
    }
    assert types_of(image) == {"x": ((8, 4, 4), "float64")}


def test_the_rows_of_all_replicas_count():
    assert types_of((PerReplica(np.zeros((4, 3)), np.zeros((3, 3))),)) == {"x": ((7, 3), "float64")}
