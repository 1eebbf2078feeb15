"""The batch axis in TensorFlow's graphs: what each operation makes of it, and that the answer is never too kind."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

import keras_tpu_ext as kte
from keras_tpu_ext._runtime.tensorflow.batch import regularizer_of_whole_batch, respects_padding, trial_context
from keras_tpu_ext._runtime.tensorflow.separability import keeps_sums, of_function, of_model
from keras_tpu_ext.errors import ArgumentError

pytestmark = [pytest.mark.runtimes("keras3_tf", "keras2_tf"), pytest.mark.gate_on("keras3_tf")]

X = tf.TensorSpec([None, 6])
IDS = tf.TensorSpec([None, 5], tf.int32)
TABLE = np.linspace(0.0, 1.0, 40, dtype="float32").reshape(10, 4)


def rows_of(x):
    return tf.shape(x)[0]


def number_of(x):
    return tf.cast(rows_of(x), tf.float32)


def images(x):
    return tf.reshape(x, [-1, 2, 3, 1])


def square(x):
    return tf.ones([rows_of(x), rows_of(x)])


@tf.custom_gradient
def with_gradient_of_its_own(x):
    return tf.identity(x), lambda upstream: tf.clip_by_value(-upstream, -1.0, 1.0)


@tf.custom_gradient
def with_gradient_of_norm_one(x):
    return tf.identity(x), lambda upstream: upstream / tf.norm(upstream)


@tf.custom_gradient
def with_the_same_gradient_of_a_constant(x, constant):
    return x * constant, lambda upstream: (upstream * constant, tf.ones_like(constant))


@tf.function(autograph=False)
def shape_of(x):
    return tf.shape(x)


def second_beside_rows(x, sizes):
    """Return rows times their number, in another unit: the second of the sizes, which is no number of rows."""
    return x * (number_of(x) / tf.cast(tf.reshape(sizes, [-1]), tf.float32))[1]


def with_item(x):
    array = tf.TensorArray(tf.float32, 9, element_shape=[None, 6]).unstack(tf.tile(x[None], [9, 1, 1]))
    return array.write(rows_of(x), 2.0 * x).stack()[5]


ROWS = {
    "element-wise": lambda x: tf.nn.gelu(tf.math.erf(x)) / (1.0 + tf.abs(x)),
    "reduced along other axes": lambda x: x - tf.reduce_mean(x, axis=1, keepdims=True),
    "softmax": lambda x: tf.nn.softmax(x, axis=1),
    "a column": lambda x: x[:, 1],
    "some columns": lambda x: tf.gather(x, [3, 1], axis=1),
    "sorted along another axis": lambda x: tf.sort(x, axis=1),
    "cumulative": lambda x: tf.cumsum(tf.reverse(x, [1]), axis=1),
    "a product with a constant": lambda x: x @ tf.ones([6, 2]),
    "outer products": lambda x: tf.einsum("bi,bj->bij", x, x),
    "a product of every row": lambda x: x[:, None] @ x[:, :, None],
    "in another shape": lambda x: tf.reshape(tf.reshape(x, [rows_of(x), 2, -1]), [-1, 6]),
    "in a shape of sizes one by one": lambda x: tf.reshape(x, [*tf.unstack(tf.shape(x)), 1]),
    "repeated": lambda x: tf.reshape(tf.repeat(x, 3, axis=0), [-1, 3, 6])[:, 0],
    "zeros for each row": lambda x: x + tf.zeros([rows_of(x), 6]),
    "random numbers": lambda x: x * tf.random.uniform([rows_of(x), 6]),
    "a loop": lambda x: tf.while_loop(lambda i, y: i < 3, lambda i, y: (i + 1, y * 2), [0, x])[1],
    "a branch": lambda x: tf.cond(tf.random.uniform([]) > 2.0, lambda: x, lambda: -x),
    "a table": lambda x: tf.gather(TABLE, tf.argmax(x, axis=1)),
    "one of a kind": lambda x: tf.one_hot(tf.argmax(x, axis=1), 4),
    "a convolution": lambda x: tf.nn.conv1d(x[:, :, None], tf.ones([3, 1, 2]), 1, "SAME"),
    "normalised by itself": lambda x: tf.reshape(
        tf.compat.v1.nn.fused_batch_norm(
            tf.reshape(x, [1, rows_of(x), 6, 1]), tf.ones([rows_of(x)]), tf.zeros([rows_of(x)]), data_format="NCHW"
        )[0],
        [-1, 6],
    ),
    "a gradient of its own": with_gradient_of_its_own,
    "up to the last row": lambda x: x[: rows_of(x), 1:],
    "counts of classes": lambda x: tf.math.bincount(tf.cast(tf.abs(x), tf.int32), minlength=3, maxlength=3, axis=-1),
    "an image": lambda x: tf.image.resize(tf.reshape(x, [-1, 2, 3, 1]), [4, 4]),
}
NOT_ROWS = {
    "a mean": lambda x: x - tf.reduce_mean(x, axis=0),
    "a maximum": lambda x: x / tf.reduce_max(x),
    "softmax along the rows": lambda x: tf.nn.softmax(x, axis=-2),
    "the first row": lambda x: x - x[:1],
    "all pairs": lambda x: x @ tf.transpose(x),
    "a sum of outer products": lambda x: x @ tf.einsum("bi,bj->ij", x, x),
    "shuffled": lambda x: tf.random.shuffle(x),
    "sorted": lambda x: tf.sort(x, axis=0),
    "shifted": lambda x: tf.roll(x, 1, axis=0),
    "reversed": lambda x: x[::-1],
    "cumulative": lambda x: tf.cumsum(x, axis=0),
    "divided by the rows": lambda x: x / tf.cast(rows_of(x), tf.float32),
    "positions": lambda x: x * tf.cast(tf.range(rows_of(x)), tf.float32)[:, None],
    "two by two": lambda x: tf.reshape(x, [-1, 12]),
    "in halves": lambda x: tf.reshape(tf.reshape(x, [2, -1]) - 1.0, [-1, 6]),
    "joined": lambda x: tf.concat([x, x], axis=0),
    "of one number of rows": lambda x: x + tf.ones([4, 1]),
    "as long as any row asks for": lambda x: tf.while_loop(
        lambda y: tf.reduce_any(y > 0.0), lambda y: [y - 1.0], [x]
    )[0],
    "a branch for all": lambda x: tf.cond(tf.reduce_sum(x) > 0.0, lambda: x, lambda: -x),
    "normalised": lambda x: tf.nn.batch_normalization(x, *tf.nn.moments(x, [0]), 0.0, 1.0, 1e-3),
}
FIXED = tf.constant(np.linspace(-1.0, 1.0, 24, dtype="float32").reshape(4, 6))
BLOCKS = tf.constant(np.linspace(-1.0, 1.0, 144, dtype="float32").reshape(4, 6, 6))
HIDDEN = {
    "a table up to the rows": lambda x: x[:, :4] + tf.constant(TABLE)[: rows_of(x)],
    "a row of a table": lambda x: x[:, :4] + tf.constant(TABLE)[tf.cast(tf.reduce_max(x), tf.int32)],
    "as wide as any row asks for": lambda x: tf.reduce_sum(x[:, : tf.cast(tf.reduce_max(x), tf.int32)], 1),
    "as wide as the rows": lambda x: tf.reduce_sum(x[:, : rows_of(x)], 1),
    "the column of the last row": lambda x: x[:, rows_of(x)],
    "tiled": lambda x: tf.reduce_sum(tf.tile(x, [1, rows_of(x)]), 1),
    "a square of the rows": lambda x: x * number_of(x) ** 2,
    "the rows times the rows": lambda x: x * tf.cast(rows_of(x) * rows_of(x), tf.float32),
    "half the rows": lambda x: x * (number_of(x) * 0.5),
    "the rows in a vector": lambda x: x / tf.cast(rows_of(x)[None], tf.float32),
    "the largest, beside the rows": lambda x: x * tf.stack([number_of(x), tf.reduce_max(x)])[1],
    "parts of a shape": lambda x: x * (number_of(x) / tf.cast(tf.shape(x), tf.float32))[1],
    "sizes by a function": lambda x: second_beside_rows(x, shape_of(x)),
    "sizes in a matrix": lambda x: second_beside_rows(x, tf.reshape(tf.shape(x), [1, 2])),
    "sizes repeated": lambda x: second_beside_rows(x, tf.tile(tf.shape(x), [2])),
    "sizes beside rows": lambda x: second_beside_rows(x, tf.identity_n([tf.shape(x), x])[0]),
    "sizes cut": lambda x: x * (number_of(x) / tf.cast(tf.slice(tf.shape(x), [1], [1]), tf.float32)),
    "sizes split": lambda x: x / tf.cast(tf.split(tf.shape(x[:, :, None]), [-1, 2])[0], tf.float32),
    "sizes split at the first": lambda x: x / tf.cast(tf.split(tf.shape(x), [1, -1])[0], tf.float32),
    "the rows halved": lambda x: x * (tf.cast(tf.raw_ops.Div(x=rows_of(x), y=2), tf.float32) / number_of(x)),
    "an item whose place is the rows": with_item,
    "the same random numbers": lambda x: x * tf.random.stateless_uniform([rows_of(x), 6], [1, 2]),
    "as many columns as rows": lambda x: x * tf.reduce_sum(square(x), axis=1, keepdims=True),
    "broadcast": lambda x: tf.reduce_sum(tf.broadcast_to(x[None], [rows_of(x), rows_of(x), 6]), 0),
    "as many kinds as rows": lambda x: tf.reduce_sum(tf.one_hot(tf.cast(x, tf.int32), rows_of(x)), -1),
    "shifted by the rows": lambda x: tf.roll(x, rows_of(x), axis=1),
    "products of one number of rows": lambda x: BLOCKS @ x[:, :, None],
    "an einsum of one number of rows": lambda x: tf.einsum("...i,...i->...i", FIXED, x),
    "joined with one number of rows": lambda x: tf.concat([x, FIXED], axis=1),
    "images of one number of rows": lambda x: tf.nn.conv2d_transpose(
        images(x), TABLE[:2, :2, None, None], [4, 4, 6, 1], 2
    ),
    "a branch of one number of rows": lambda x: tf.cond(tf.random.uniform([]) > 2.0, lambda: x, lambda: FIXED),
    "squeezed": lambda x: tf.squeeze(x[:, :1]),
    "in another order": lambda x: tf.space_to_batch(images(x), [2, 1], [[0, 0], [0, 0]]),
    "in another order, by other blocks": lambda x: tf.batch_to_space(
        tf.space_to_batch(tf.reshape(x, [-1, 6, 1, 1]), [6, 1], [[0, 0], [0, 0]]), [3, 1], [[0, 0], [0, 0]]
    ),
    "places that count the rows": lambda x: tf.nn.max_pool_with_argmax(
        images(x), 1, 1, "SAME", include_batch_in_index=True
    )[1],
    "counts up to the largest": lambda x: tf.math.bincount(tf.cast(tf.abs(x), tf.int32), axis=-1),
    "a gradient of norm one": with_gradient_of_norm_one,
    "the same gradient of a constant": lambda x: with_the_same_gradient_of_a_constant(x, tf.ones([6])),
}
UNKNOWN = {
    "Python": lambda x: tf.numpy_function(lambda array: array, [x], tf.float32),
    "a sorting of its own": lambda x: tf.unique(x[:, 0]).y,
}


@pytest.mark.parametrize("name", ROWS)
def test_it_works_row_by_row(name):
    assert of_function(ROWS[name], [X]).reason == ""


@pytest.mark.parametrize("name", NOT_ROWS)
def test_it_does_not(name):
    found = of_function(NOT_ROWS[name], [X])
    assert not found.is_row_by_row
    assert "test_tensorflow_separability.py" in found.reason  # it tells the line


@pytest.mark.parametrize("name", HIDDEN)
def test_what_depends_on_the_batch_in_another_way_is_not_missed(name):
    assert not of_function(HIDDEN[name], [X]).is_row_by_row


@pytest.mark.parametrize("name", UNKNOWN)
def test_it_is_not_known(name):
    found = of_function(UNKNOWN[name], [X])
    assert not found.is_row_by_row
    assert not found.is_certain


def test_a_table_looked_up_once_is_found():
    table, other = tf.Variable(TABLE), tf.Variable(TABLE)
    found = of_function(lambda ids: tf.gather(table, ids) + tf.gather(other, [0, 1, 2, 3, 4]), [IDS])
    assert found.is_row_by_row
    assert found.once == {id(other.handle)}
    both = of_function(lambda ids: tf.gather(table, ids) + tf.gather(table, [0, 1, 2, 3, 4]), [IDS])
    assert both.reason == "a table is looked up for each row, and once for the batch"


def test_what_is_assigned_is_seen():
    kept = tf.Variable(tf.zeros([6]))
    assert of_function(lambda x: (kept.assign(kept + 1.0), x)[1], [X]).is_row_by_row
    assert "assigned to a variable" in of_function(lambda x: (kept.assign_add(tf.reduce_sum(x, 0)), x)[1], [X]).reason
    assert kept.numpy().sum() == 0  # nothing has run


def test_an_assignment_is_seen_wherever_it_is():
    kept, many = tf.Variable(0.0), tf.Variable(tf.zeros([3, 6]))

    def if_any(x):
        tf.cond(tf.reduce_any(x > 1.0), lambda: kept.assign(1.0) + 0.0, lambda: 0.0)
        return x

    assert "assigned to a variable" in of_function(if_any, [X]).reason
    assert not of_function(lambda x: (many[:1].assign(tf.reduce_mean(x, 0, keepdims=True)), x)[1], [X]).is_row_by_row


def test_sums_over_replicas_are_not_read_nor_given_the_same_on_each(scope3):
    with scope3:
        mean = keras.metrics.Mean()

    def found(function):
        return of_model(lambda x: (function(x), []), [X], mean.variables)

    assert found(lambda x: (mean.update_state(x), x)[1]).is_row_by_row
    assert "reads a sum" in found(lambda x: x - mean.result()).reason
    assert not found(lambda x: (mean.update_state(1.0), x)[1]).is_row_by_row


@pytest.mark.parametrize(
    ("function", "is_row_by_row"),
    [
        (lambda x: x - kte.batch_mean(tf.square(x)), True),
        (lambda x: x - kte.batch_mean(x / tf.reduce_max(x)), False),
        (lambda x: x - kte.batch_mean(tf.transpose(x))[:, None], False),
        (lambda x: respects_padding(tf.square)(x), True),
        (lambda x: respects_padding(tf.square)(x / tf.reduce_max(x)), False),
        (lambda x: tf.transpose(respects_padding(tf.square)(tf.transpose(x))), False),
    ],
)
def test_what_is_right_for_the_whole_batch_is_so_if_what_it_is_made_of_is(scope3, function, is_row_by_row):
    with scope3, trial_context():
        assert of_function(function, [X]).is_row_by_row == is_row_by_row


def test_a_loss_of_a_mean_is_a_mean_only_if_it_is_linear():
    def found(loss):
        return of_model(lambda x: (x, [loss(x)]), [X], [])

    assert found(lambda x: 2.0 * tf.reduce_mean(x)).is_row_by_row
    assert not found(lambda x: tf.nn.l2_loss(tf.reduce_mean(x, 0))).is_row_by_row
    assert not found(lambda x: tf.cast(tf.reduce_mean(tf.cast(x, tf.int32)), tf.float32)).is_row_by_row


@pytest.mark.parametrize(("of", "is_mean"), [(tf.reduce_sum, True), (tf.reduce_mean, False), (tf.reduce_max, False)])
def test_an_activity_regulariser_is_a_sum(of, is_mean):
    with trial_context():
        found = of_model(lambda x: (x, [regularizer_of_whole_batch(of)(x)]), [X], [])
    assert found.is_row_by_row == is_mean


def test_sums_that_a_metric_keeps(scope3):
    with scope3:
        mean, largest = keras.metrics.Mean(), keras.metrics.Mean()
    values = tf.TensorSpec([None])
    assert keeps_sums(mean.update_state, [values], mean.variables)
    assert not keeps_sums(lambda x: largest.total.assign(tf.reduce_max(x)), [values], largest.variables)


def test_code_that_cannot_be_traced_is_told_with_its_reason():
    def fails(x):
        raise ValueError("it wants a batch of 7")

    assert "it wants a batch of 7" in of_function(fails, [X]).reason
    assert "sparse" in of_function(lambda x: x, [tf.SparseTensorSpec([None, 3])]).reason
    assert "rank" in of_function(lambda x: x, [tf.TensorSpec(None)]).reason


_STEPS = {
    "double": lambda x: 2.0 * x,
    "square": tf.square,
    "softmax": lambda x: tf.nn.softmax(x, axis=-1),
    "of rows": lambda x: tf.nn.softmax(x, axis=0),
    "transpose": lambda x: tf.transpose(x, list(range(len(x.shape)))[::-1]),
    "sum of last": lambda x: tf.reduce_sum(x, axis=-1, keepdims=True),
    "sum of first": lambda x: tf.reduce_sum(x, axis=0, keepdims=True),
    "max of first": lambda x: x - tf.reduce_max(x, axis=0, keepdims=True),
    "flat": lambda x: tf.reshape(x, [-1, 1]),
    "in threes": lambda x: tf.reshape(x, [-1, 3]),
    "in twos": lambda x: tf.reshape(x, [2, -1]),
    "by rows": lambda x: tf.reshape(x, [tf.shape(x)[0], -1]),
    "reverse first": lambda x: tf.reverse(x, [0]),
    "reverse last": lambda x: tf.reverse(x, [-1]),
    "first column": lambda x: x[..., :1],
    "all but one": lambda x: x[1:],
    "twice": lambda x: tf.concat([x, x], axis=-1),
    "twice as many": lambda x: tf.repeat(x, 2, axis=0),
    "expand": lambda x: x[None],
    "squeeze": lambda x: x[0] if len(x.shape) > 2 else x,
    "gram": lambda x: tf.matmul(x, x, transpose_a=True),
    "size": lambda x: x * tf.cast(tf.shape(x)[0], tf.float32),
}


@settings(max_examples=40, deadline=None, derandomize=True)
@given(st.lists(st.sampled_from(sorted(_STEPS)), min_size=1, max_size=4))
def test_it_is_never_kinder_than_a_trial(names):
    def function(x):
        for name in names:
            x = _STEPS[name](x)
        return x

    if not of_function(function, [X]).is_row_by_row:
        return
    x = tf.constant(np.random.default_rng(0).normal(size=(4, 6)).astype("float32"))
    whole = function(x).numpy()
    parts = np.concatenate([function(x[i : i + 1]).numpy() for i in range(4)])
    np.testing.assert_allclose(parts, whole, rtol=1e-4, atol=1e-5)


def test_a_table_that_is_changed_is_an_error():
    table = tf.lookup.experimental.MutableHashTable(tf.int64, tf.float32, 0.0)

    def function(x):
        table.insert(tf.cast(x[:, 0], tf.int64), x[:, 0])
        return x

    with pytest.raises(
        ArgumentError, match=r"LookupTableInsertV2 in line \d+ of test_tensorflow_separability.py changes"
    ):
        of_function(function, [X])
