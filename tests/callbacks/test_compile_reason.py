import pytest

from keras_tpu_ext.callbacks._compile_reason import ArrayType, reason_in_batches, reason_in_constants
from kind_of_keras import RUNTIMES

pytestmark = pytest.mark.gate_on("keras3_jax")


def batch(x=(8, 4), dtype="float32", **more):
    return {"x": ArrayType(x, dtype), "y": ArrayType((x[0], 1), "float32"), **more}


@pytest.mark.parametrize(
    ("new", "text"),
    [
        (batch((5, 4)), "x, y: rows 8 to 5"),
        (batch((8, 6)), "x: axis 1 4 to 6"),
        (batch((8, 4, 1)), "x: shape (8, 4) to (8, 4, 1)"),
        (batch(dtype="int32"), "x: dtype float32 to int32"),
        (batch((None, 4)), "x, y: rows 8 to any"),
        (batch((16, 5)), "x: axis 1 4 to 5"),  # from the batch of 16 rows, not from that of 8
        (batch(sample_weight=ArrayType((8,), "float32")), "sample_weight: is new"),
    ],
)
def test_what_differs_from_the_nearest_batch(new, text):
    found = reason_in_batches([batch(), new], [batch((16, 4)), batch()])
    assert found is not None
    assert found.text == text


def test_batches_that_were_seen_are_no_reason():
    assert reason_in_batches([batch()], [batch((16, 4)), batch()]) is None


def test_constants():
    before, now = {"a.rate": 0.1, "b.name": "b"}, {"a.rate": 0.2, "b.name": "b", "c.units": 3}
    assert reason_in_constants(before, now, made_again=True).text == "a Python constant changed: a.rate 0.1 to 0.2"
    assert reason_in_constants(before, now, made_again=False).text.startswith("perhaps because a Python constant")
    unknown = reason_in_constants(before, before, made_again=False)
    assert unknown.text == "for a reason that cannot be seen from here"
    assert ("JAX_EXPLAIN_CACHE_MISSES=1" in unknown.cure) == ("keras3_jax" in RUNTIMES)
