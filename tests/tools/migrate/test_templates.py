"""Rows of the tables, and what they make of calls."""

import libcst as cst
import pytest

from keras_tpu_ext.tools.migrate import templates
from keras_tpu_ext.tools.migrate.tables.backend import BACKEND
from keras_tpu_ext.tools.migrate.tables.rows import read_rows
from keras_tpu_ext.tools.migrate.tables.tensorflow import TENSORFLOW, canonical_name

pytestmark = pytest.mark.gate_on("keras3_jax")


def rendered(row, call):
    made = templates.render(row, cst.parse_expression(call))
    return None if made is None else cst.Module([]).code_for_node(made)


@pytest.mark.parametrize(
    ("name", "call", "new"),
    [
        ("math.reduce_mean", "f(x)", "mean(x)"),
        ("math.reduce_mean", "f(x, 1)", "mean(x, axis=1)"),
        ("math.reduce_mean", "f(x, axis=[1, 2], keepdims=True)", "mean(x, axis=[1, 2], keepdims=True)"),
        ("math.reduce_mean", "f(input_tensor=x)", "mean(x)"),
        ("math.reduce_mean", "f(x, None, True)", "mean(x, keepdims=True)"),
        ("math.reduce_sum", "f(\n    x,  # why\n    axis=1,\n)", "sum(\n    x,  # why\n    axis=1,\n)"),
        ("math.argmax", "f(x)", "argmax(x, axis=0)"),
        ("math.squared_difference", "f(a + b, c)", "square((a + b) - c)"),
        ("linalg.band_part", "f(m, -1, 0)", "tril(m)"),
        ("linalg.band_part", "f(m, 0, -1)", "triu(m)"),
        ("linalg.band_part", "f(m, 1, 1)", None),
        ("linalg.matmul", "f(q, k, transpose_b=True)", "matmul(q, keras.ops.swapaxes(k, -1, -2))"),
        ("linalg.matmul", "f(q, k, True)", "matmul(keras.ops.swapaxes(q, -1, -2), k)"),
        ("linalg.matmul", "f(q, k, transpose_a=True, transpose_b=True)", None),
        ("linalg.matmul", "f(q, k, transpose_b=flag)", None),
        ("sort", "f(x, axis=1)", "sort(x, axis=1)"),
        ("sort", "f(x, axis=1, direction='DESCENDING')", "flip(keras.ops.sort(x, axis=1), axis=1)"),
        ("split", "f(x, 2, axis=-1)", "split(x, 2, axis=-1)"),
        ("split", "f(x, [1, 2])", None),
        ("one_hot", "f(y, depth=n)", "one_hot(y, n)"),
        ("one_hot", "f(y, n, 0.9, 0.1)", None),
        ("gather", "f(x, i, axis=1)", "take(x, i, axis=1)"),
        ("gather", "f(x, i, batch_dims=1)", None),
        ("einsum", "f('ab,bc', a, b)", "einsum('ab,bc', a, b)"),
        ("nn.gelu", "f(x)", "gelu(x, approximate=False)"),
        ("cast", "f(x, dtype, name='c')", "cast(x, dtype)"),
        ("cast", "f(*args)", None),
        ("where", "f(a)", None),
        ("math.top_k", "f(x)", None),
        ("repeat", "f(x, n, 0)", "repeat(x, n, axis=0)"),
        ("repeat", "f(x, [1, 2])", None),
        ("norm", "f(x, axis=1)", "norm(x, axis=1)"),
        ("norm", "f(x)", "norm(x)"),
        ("norm", "f(x, axis=[1, 2])", None),
        (
            "nn.sigmoid_cross_entropy_with_logits",
            "f(labels=a, logits=b)",
            "binary_crossentropy(a, b, from_logits=True)",
        ),
    ],
)
def test_a_call_in_todays_words(name, call, new):
    assert rendered(TENSORFLOW[name], call) == (None if new is None else f"keras.ops.{new}")


@pytest.mark.parametrize(
    ("name", "call", "new"),
    [
        ("flatten", "f(a + b)", "keras.ops.reshape(a + b, (-1,))"),
        ("int_shape", "f(x)", "tuple(x.shape)"),
        ("hard_sigmoid", "f(a - b)", "keras.ops.clip(0.2 * (a - b) + 0.5, 0.0, 1.0)"),
        ("arange", "f(5)", 'keras.ops.arange(5, dtype="int32")'),
        ("cast_to_floatx", "f(x)", "keras.ops.cast(x, keras.config.floatx())"),
        ("relu", "f(x, max_value=6)", None),
        ("constant", "f(1)", "keras.ops.convert_to_tensor(1, dtype=keras.config.floatx())"),
    ],
)
def test_a_call_of_the_backend(name, call, new):
    assert rendered(BACKEND[name], call) == new


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("reduce_sum", "math.reduce_sum"),
        ("nn.tanh", "math.tanh"),
        ("nn.swish", "nn.silu"),
        ("matmul", "linalg.matmul"),
        ("linalg.norm", "norm"),
        ("image.resize", "image.resize"),
        ("random.cast", None),
        ("nowhere", None),
    ],
)
def test_other_names_of_a_function(name, key):
    assert canonical_name(name) == key


def test_each_row_can_be_read():
    for row in filter(None, [*TENSORFLOW.values(), *BACKEND.values()]):
        assert row.startswith("=") or templates._forms(row)


def test_two_rows_of_one_name_are_refused():
    with pytest.raises(ValueError, match="two rows are named a"):
        read_rows("a: 1\na, b: 2")


def test_a_function_that_is_given_as_a_value():
    assert templates.function_of(TENSORFLOW["nn.relu"]) == "keras.ops.relu"
    assert templates.function_of(TENSORFLOW["linalg.matmul"]) == "keras.ops.matmul"
    assert templates.function_of("") == ""
