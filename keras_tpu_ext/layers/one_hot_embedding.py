"""An embedding whose lookup and gradient are matrix products."""

from __future__ import annotations

from typing import Any

from keras_tpu_ext import _runtime
from keras_tpu_ext.checks import arguments as check
from keras_tpu_ext.errors import ArgumentError

ops = _runtime.ops


@_runtime.keras.saving.register_keras_serializable(package="keras_tpu_ext")
class OneHotEmbedding(_runtime.keras.layers.Embedding):
    """Looks up rows of a small table by multiplying it by one-hot rows, so that the gradient has no scatter.

    It is a `keras.layers.Embedding`, with the same variable and the same outputs, so one can replace the other in a
    model. The differences:

    - The gradient is a matrix product too. A TPU's matrix units add up all rows at once, whereas a scatter reads and
      writes the table anew for each id. Work grows with `input_dim`: by the compiler's estimates it pays off up to
      some hundred words on a v3, a thousand on a v5e and three thousand on a v6e (docs/layers.md).
    - The gradient is summed in float32 whatever the dtype policy. Under `mixed_bfloat16` on JAX Keras adds in
      bfloat16, where a sum of equal numbers stops growing once the next one is less than half its last bit: a sum of
      ones stops at 256.
    - An id outside the table, negative or at least `input_dim`, gives a row of zeros and no gradient, on
      every runtime. Keras raises an error on TensorFlow on a CPU and gives zeros on a GPU; on JAX it counts
      negative ids from the end and gives NaN for those above.
    - Zero times infinity is NaN, so one infinite or NaN weight in the table reaches all outputs, in its column.

    The one-hot matrix is exact in every dtype and the product has one term, so an output has the bits of the row in
    the compute dtype, except that minus zero becomes zero. Under `float32` no factor is rounded either, at the cost
    of three passes of the TPU's matrix units.

    Args:
        input_dim: Number of rows of the table: the largest id plus one.
        output_dim: Number of values in a row.
        embeddings_initializer: Initialiser of the table. Defaults to `"uniform"`.
        embeddings_regularizer: Regulariser of the table, or `None` (default).
        embeddings_constraint: Constraint on the table, or `None` (default).
        mask_zero: Whether the id 0 is padding, which later layers mask out. Defaults to `False`.
        **kwargs: All other arguments of `keras.layers.Embedding`, except `sparse=True`.

    Call arguments:
        inputs: Dense tensor of ids, of any shape. Floats are truncated to integers, as in Keras.

    Raises:
        ArgumentError: If `sparse=True` is given; when it is called, if ids are a ragged or sparse tensor.

    Example:
        ```python
        import keras
        import numpy as np
        import keras_tpu_ext as kte

        inputs = keras.Input((128,), dtype="int32")
        x = kte.layers.OneHotEmbedding(1000, 64, mask_zero=True)(inputs)
        x = keras.layers.GlobalAveragePooling1D()(x)
        model = keras.Model(inputs, keras.layers.Dense(2, activation="softmax")(x))
        model.compile("adam", "sparse_categorical_crossentropy")
        ids = np.random.default_rng(0).integers(0, 1000, (256, 128))
        model.fit(ids, ids[:, 0] % 2)
        ```
    """

    def __init__(
        self,
        input_dim: int,
        output_dim: int,
        *,
        embeddings_initializer: Any = "uniform",
        embeddings_regularizer: Any = None,
        embeddings_constraint: Any = None,
        mask_zero: bool = False,
        **kwargs: Any,
    ) -> None:
        if kwargs.pop("sparse", False):
            raise ArgumentError(
                "sparse=True is not offered: the outputs of a matrix product are dense. Write: "
                "OneHotEmbedding(...) without it, or keras.layers.Embedding(..., sparse=True)"
            )
        super().__init__(
            input_dim=input_dim,
            output_dim=output_dim,
            embeddings_initializer=embeddings_initializer,
            embeddings_regularizer=embeddings_regularizer,
            embeddings_constraint=embeddings_constraint,
            mask_zero=mask_zero,
            **kwargs,
        )

    def call(self, inputs: Any) -> Any:
        """Return the rows of `inputs`, in their shape with one more dimension."""
        if hasattr(inputs, "dense_shape") or hasattr(inputs, "row_splits"):
            got = f"a {type(inputs).__name__}"
            write = (
                "layer(ids.to_tensor()) for a ragged tensor, layer(tf.sparse.to_dense(ids)) for a sparse one, or use "
                "keras.layers.Embedding"
            )
            raise check.argument_error("OneHotEmbedding", "inputs", "a dense tensor", got, write)
        with ops.no_autocast():
            # This makes it a tensor: Keras 3's `convert_to_tensor` of a variable returns TensorFlow's variable.
            table = ops.reshape(self.embeddings, (self.input_dim, self.output_dim))
        ids = ops.reshape(inputs, (-1,))
        if str(getattr(ids.dtype, "name", ids.dtype)) == "int64":  # in int32, too, what is outside stays outside
            ids = ops.clip(ids, -1, self.input_dim)
        rows = _lookup(table, ops.cast(ids, "int32"), self.compute_dtype)
        return ops.reshape(rows, (*ops.shape(inputs), self.output_dim))


def _lookup(table: Any, ids: Any, dtype: str) -> Any:
    """Return rows of `table` by their ids, in `dtype`."""
    positions = ops.arange(table.shape[0], dtype="int32")

    # Made again in the backward pass: a TPU never holds it in memory, since its compiler fuses it into the product.
    def one_hot() -> Any:
        return ops.cast(ops.equal(ops.expand_dims(ids, -1), positions), dtype)

    @ops.custom_gradient
    def lookup(table: Any) -> Any:
        def gradient(*args: Any, upstream: Any = None) -> Any:
            upstream = args[0] if upstream is None else upstream
            sums = ops.one_hot_matmul(one_hot(), ops.cast(upstream, dtype), transposed=True)
            return ops.cast(sums, table.dtype)

        return ops.cast(ops.one_hot_matmul(one_hot(), ops.cast(table, dtype)), dtype), gradient

    return lookup(table)
