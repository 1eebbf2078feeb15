import re
from pathlib import Path

import keras
import numpy as np
import pytest

from keras_tpu_ext import _runtime

ops = _runtime.ops
X = np.array([[1.0, -2.0, 3.0], [4.0, 5.0, -6.0]], "float32")
WORDS = np.array([1, 6, 12], "uint32")
TRUE = np.array([True, False, True])

# A verb, its arguments, and what NumPy has instead.
VERBS = {
    "bitwise_and": ((WORDS, np.uint32(6)), WORDS & 6),
    "bitwise_left_shift": ((WORDS, np.uint32(2)), WORDS << 2),
    "bitwise_or": ((WORDS, np.uint32(6)), WORDS | 6),
    "bitwise_right_shift": ((WORDS, np.uint32(1)), WORDS >> 1),
    "bitwise_xor": ((WORDS, np.uint32(6)), WORDS ^ 6),
    "cast": ((X, "int32"), X.astype("int32")),
    "clip": ((X, -1.0, 2.0), np.clip(X, -1, 2)),
    "concatenate": (([X, X], 0), np.concatenate([X, X])),
    "convert_to_numpy": ((X,), X),
    "convert_to_tensor": ((X,), X),
    "divide_no_nan": ((X[0], np.array([0.0, 2.0, 4.0], "float32")), [0, -1, 0.75]),
    "equal": ((X, X), np.ones(X.shape, bool)),
    "expand_dims": ((X, 1), X[:, None]),
    "flip": ((X, 1), X[:, ::-1]),
    "logical_and": ((TRUE, ~TRUE), [False] * 3),
    "logical_not": ((TRUE,), ~TRUE),
    "maximum": ((X, 0.0), np.maximum(X, 0)),
    "ones": (((2, 3),), np.ones((2, 3))),
    "ones_like": ((X,), np.ones(X.shape)),
    "pad": ((X, ((0, 1), (0, 0))), np.pad(X, ((0, 1), (0, 0)))),
    "reshape": ((X, (3, 2)), X.reshape(3, 2)),
    "round": ((X / 4,), np.round(X / 4)),
    "rsqrt": ((np.abs(X),), 1 / np.sqrt(np.abs(X))),
    "segment_sum": ((X[0], np.array([0, 1, 0])), [4, -2]),
    "sqrt": ((np.abs(X),), np.sqrt(np.abs(X))),
    "square": ((X,), X**2),
    "stop_gradient": ((X,), X),
    "sum": ((X, 0), X.sum(0)),
    "take": ((X[0], np.array([2, 0])), X[0][[2, 0]]),
    "transpose": ((X,), X.T),
    "where": ((TRUE, X[0], X[1]), [1, 5, 3]),
    "zeros_like": ((X,), np.zeros(X.shape)),
}


@pytest.mark.parametrize("verb", VERBS)
def test_a_verb_does_what_numpy_does(verb):
    arguments, expected = VERBS[verb]
    more = {"num_segments": 2} if verb == "segment_sum" else {}
    got = ops.convert_to_numpy(getattr(ops, verb)(*arguments, **more))
    np.testing.assert_allclose(got, expected, rtol=1e-6)
    assert got.shape == np.shape(expected)


def test_each_that_a_layer_asks_for_is_there():
    """On Keras 2 they are those of `compat/keras2_ops.py`."""
    layers = Path(__file__).parents[3] / "keras_tpu_ext" / "layers"
    texts = [path.read_text(encoding="utf-8") for path in layers.glob("*.py")]
    asked = {
        name for text in texts if "\nops = _runtime.ops" in text for name in re.findall(r"(?<!\.)\bops\.(\w+)", text)
    }
    assert len(asked) > len(VERBS) / 2
    assert [name for name in sorted(asked) if not hasattr(ops, name)] == []


def test_arange_and_shape():
    np.testing.assert_array_equal(ops.convert_to_numpy(ops.arange(4, dtype="int32")), np.arange(4))
    assert tuple(ops.shape(ops.convert_to_tensor(X))) == (2, 3)


def test_custom_gradient_is_the_gradient_that_is_given():
    @ops.custom_gradient
    def tripled(x):
        return 3 * x, lambda upstream: 10 * upstream

    np.testing.assert_array_equal(ops.convert_to_numpy(tripled(ops.convert_to_tensor(X))), 3 * X)


def test_a_counter_is_a_weight_that_counts():
    layer = keras.layers.Layer()
    counter = ops.add_counter(layer, "calls")
    counter.assign(counter + 1)
    assert any(weight is counter for weight in layer.weights)
    assert int(ops.convert_to_numpy(counter)) == 1
    assert "int" in str(counter.dtype)


def test_ensure_shape_gives_the_values():
    np.testing.assert_array_equal(ops.convert_to_numpy(ops.ensure_shape(ops.convert_to_tensor(X), (None, 3))), X)


def test_only_a_symbolic_call_is_one():
    seen = []

    class Sees(keras.layers.Layer):
        def call(self, x):
            seen.append(ops.in_symbolic_call())
            return x

    layer = Sees()
    layer(keras.Input((3,)))
    layer(X)
    assert (seen[0], seen[-1], ops.in_symbolic_call()) == (True, False, False)


def test_without_autocast_a_variable_has_its_own_dtype():
    seen = []

    class Sees(keras.layers.Layer):
        def build(self, _):
            self.scale = self.add_weight(name="scale", shape=())

        def call(self, x):
            with ops.no_autocast():
                seen.append(str((self.scale + 0).dtype))
            return x

    Sees(dtype="mixed_bfloat16")(X)
    assert "float32" in seen[-1]
    assert "bfloat16" not in seen[-1]


@pytest.mark.parametrize("transposed", [False, True])
def test_one_hot_matmul_rounds_no_factor(transposed):
    values = (np.arange(6, dtype="float32").reshape(3, 2) + 1) / 3
    chosen = np.eye(3, dtype="float32")[[2, 0, 0]]
    got = ops.convert_to_numpy(ops.one_hot_matmul(chosen, values, transposed=transposed))
    np.testing.assert_allclose(got, (chosen.T if transposed else chosen) @ values, rtol=1e-7)


def test_one_hot_einsum_keeps_every_bit():
    values = ((np.arange(6, dtype="float32").reshape(1, 3, 2) + 1) / 3).astype("float32")
    chosen = np.eye(3, dtype=bool)[[2, 1]][None]  # two of three rows
    got = ops.convert_to_numpy(ops.one_hot_einsum(values, ("bih,bhw->biw", chosen)))
    np.testing.assert_array_equal(got, values[:, [2, 1]])


def test_value_of_is_what_a_variable_holds():
    layer = keras.layers.Dense(1)
    layer.build((None, 2))
    np.testing.assert_array_equal(ops.value_of(layer.kernel), layer.get_weights()[0])
