"""What the tests of padding on `tf.data` and on a `PyDataset` ask of padded batches."""

import numpy as np


def is_mark(weights):
    """Return where weights are minus zero."""
    return (weights == 0) & np.signbit(weights)


def assert_nothing_is_lost(batches, x, y, w):
    """Check that `batches`, each `(x, y, sample_weight)`, hold these rows, and behind them only marks."""
    xs, ys, ws = (np.concatenate(parts) for parts in zip(*batches, strict=True))
    marks = is_mark(ws).reshape(len(ws), -1)
    real = ~marks.all(axis=1)
    np.testing.assert_array_equal(real, np.arange(len(real)) < len(x))
    assert not marks[real].any()
    for got, expected in ((xs, x), (ys, y), (ws, w.astype("float32"))):
        np.testing.assert_array_equal(got[real], expected)
