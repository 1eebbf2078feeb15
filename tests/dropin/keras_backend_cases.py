# ruff: noqa: N803, programs call it K
"""Uses of `keras.backend`, as old programs have them: functions of `K` and of an array of floats, shape (4, 5, 3).

Nothing of a framework is imported, so that Keras 2 can run them too.
"""

import numpy as np

X = np.random.default_rng(0).normal(size=(4, 5, 3)).astype("float32")
OTHER = np.random.default_rng(1).normal(size=(4, 5, 3)).astype("float32")
WEIGHTS = np.random.default_rng(2).normal(size=(3, 6)).astype("float32")
KERNEL = np.random.default_rng(3).normal(size=(3, 3, 3, 2)).astype("float32")
LABELS = np.random.default_rng(4).integers(0, 3, (4, 5))
# Those whose results are no floats, and have no gradient.
NO_FLOATS = ("all", "any", "argmax", "argmin", "greater", "in_top_k", "mean of integers")


def chances(K, x):
    return K.softmax(x)


def images(K, x):
    return K.expand_dims(K.concatenate([x, x[:, ::-1]], axis=1), 2) * K.constant(np.ones((1, 1, 4, 1)))


def step(x, states):
    new = 0.5 * x + states[0]
    return new, [new]


# One line for each function: its name, and the function of K and x.
CASES = {
    "abs": lambda K, x: K.abs(x),
    "all": lambda K, x: K.all(x > -1, axis=-1),
    "any": lambda K, x: K.any(x > 1, axis=[1, 2], keepdims=True),
    "argmax": lambda K, x: K.argmax(x, axis=1),
    "argmin": lambda K, x: K.argmin(x),
    "arange": lambda K, x: x + K.arange(0, 6, 2, dtype="float32"),
    "batch_dot": lambda K, x: K.batch_dot(x, K.constant(OTHER), axes=(2, 2)),
    "batch_dot, one": lambda K, x: K.batch_dot(x, K.constant(OTHER), axes=1),
    "batch_dot, vectors": lambda K, x: K.batch_dot(x[:, 0], x[:, 1], axes=1),
    "batch_dot, default": lambda K, x: K.batch_dot(x, K.permute_dimensions(x, (0, 2, 1))),
    "batch_dot, matrix and vector": lambda K, x: K.batch_dot(x, x[:, 0]),
    "batch_flatten": lambda K, x: K.batch_flatten(x[:, :5]),
    "batch_normalization": lambda K, x: K.batch_normalization(x, 0.5, 2.0, 1.0, 3.0),
    "bias_add": lambda K, x: K.bias_add(x, K.constant([1.0, 2.0, 3.0])),
    "binary_crossentropy": lambda K, x: K.binary_crossentropy(K.constant(OTHER > 0), K.clip(x, 0.01, 0.99)),
    "binary_crossentropy, logits": lambda K, x: K.binary_crossentropy(K.constant(OTHER > 0), x, from_logits=True),
    "cast": lambda K, x: K.cast(x > 0, "float32") + K.cast(K.cast(x * 3, "int32"), "float32"),
    "cast_to_floatx": lambda K, x: K.cast(x > 0, K.floatx()),
    "categorical_crossentropy": lambda K, x: K.categorical_crossentropy(K.one_hot(LABELS, 3), K.abs(x)),
    "categorical_crossentropy, logits": lambda K, x: K.categorical_crossentropy(
        K.one_hot(LABELS, 3), x, from_logits=True
    ),
    "categorical_crossentropy, axis": lambda K, x: K.categorical_crossentropy(
        K.softmax(K.constant(OTHER)), K.exp(x), axis=1
    ),
    "categorical_crossentropy, of two": lambda K, x: K.categorical_crossentropy(K.softmax(-x), K.softmax(x)),
    "clip": lambda K, x: K.clip(x, -0.5, 0.5),
    "clip, one side": lambda K, x: K.clip(x, 0.0, None),
    "concatenate": lambda K, x: K.concatenate([x, x * 2, K.constant(OTHER)]),
    "constant": lambda K, x: x * K.constant(3, shape=(5, 3)),
    "conv1d": lambda K, x: K.conv1d(x, K.constant(KERNEL[0]), strides=2, padding="same"),
    "conv1d, causal": lambda K, x: K.conv1d(x, K.constant(KERNEL[0]), padding="causal", dilation_rate=2),
    "conv2d": lambda K, x: K.conv2d(images(K, x), K.constant(KERNEL), padding="same"),
    "conv2d, valid": lambda K, x: K.conv2d(images(K, x), K.constant(KERNEL), strides=(2, 2)),
    "conv2d_transpose": lambda K, x: K.conv2d_transpose(
        K.conv2d(images(K, x), K.constant(KERNEL), padding="same"),
        K.constant(KERNEL),
        (4, 20, 8, 3),
        strides=(2, 2),
        padding="same",
    ),
    "cos": lambda K, x: K.cos(x) + K.sin(x) + K.tanh(x),
    "ctc_batch_cost": lambda K, x: K.ctc_batch_cost(
        K.constant([[0, 1], [1, 0], [1, 1], [0, 0]]),
        chances(K, x),
        K.constant([[5], [5], [4], [5]]),
        K.constant([[2], [2], [1], [1]]),
    ),
    "cumprod": lambda K, x: K.cumprod(x, axis=1),
    "cumsum": lambda K, x: K.cumsum(x) + K.cumsum(x, axis=-1),
    "depthwise_conv2d": lambda K, x: K.depthwise_conv2d(images(K, x), K.constant(KERNEL), padding="same"),
    "dot": lambda K, x: K.dot(x, K.constant(WEIGHTS)),
    "dot, matrices": lambda K, x: K.dot(x[0], K.constant(WEIGHTS)),
    "dot, of three axes": lambda K, x: K.dot(K.constant(WEIGHTS.T), K.permute_dimensions(x, (0, 2, 1))),
    "elu": lambda K, x: K.elu(x) + K.elu(x, alpha=0.5),
    "equal": lambda K, x: (
        K.cast(K.equal(K.round(x), 0.0), "float32") + K.cast(K.not_equal(K.sign(x), 1.0), "float32")
    ),
    "exp": lambda K, x: K.exp(x),
    "expand_dims": lambda K, x: K.expand_dims(x) + K.expand_dims(x, axis=1)[:, 0, :, :, None],
    "flatten": lambda K, x: K.flatten(x),
    "foldl": lambda K, x: K.foldl(lambda a, b: a * 0.5 + b, x),
    "foldr": lambda K, x: K.foldr(lambda a, b: a * 0.5 + b, x),
    "gather": lambda K, x: K.gather(K.constant(WEIGHTS), K.argmax(x)) * K.gather(x, [1])[0, 0, 0],
    "greater": lambda K, x: K.greater(x, 0.1) & K.less(x, 0.5) | K.greater_equal(x, 1.0) | K.less_equal(x, -1.0),
    "hard_sigmoid": lambda K, x: K.hard_sigmoid(x),
    "identity": lambda K, x: x + 0,
    "in_top_k": lambda K, x: K.in_top_k(x[:, 0], K.constant(LABELS[:, 0], dtype="int32"), 2),
    "in_train_phase": lambda K, x: K.in_train_phase(x, lambda: x * 2, training=False),
    "int_shape": lambda K, x: x * K.int_shape(x)[-1] * K.ndim(x),
    "l2_normalize": lambda K, x: K.l2_normalize(x, axis=-1) + K.l2_normalize(x, axis=1),
    "log": lambda K, x: K.log(K.abs(x) + K.epsilon()),
    "map_fn": lambda K, x: K.map_fn(lambda one: one * K.sum(one), x),
    "max": lambda K, x: K.max(x, axis=-1) + K.max(x) - K.min(x, axis=(1, 2), keepdims=True)[:, 0],
    "maximum": lambda K, x: K.maximum(x, 0.3) + K.minimum(x, K.constant(OTHER)),
    "mean": lambda K, x: K.mean(x, axis=-1) + K.mean(x),
    "mean of truths": lambda K, x: K.mean(K.equal(K.argmax(x, axis=-1), K.argmax(K.constant(OTHER), axis=-1))),
    "mean of integers": lambda K, x: K.mean(K.cast(x * 10, "int32"), axis=1),
    "one_hot": lambda K, x: K.one_hot(K.argmax(x), 4),
    "ones_like": lambda K, x: K.ones_like(x) + K.zeros_like(x) + x,
    "permute_dimensions": lambda K, x: K.permute_dimensions(x, (0, 2, 1)),
    "pool2d": lambda K, x: K.pool2d(images(K, x), (2, 2), strides=(2, 2), padding="same", pool_mode="avg"),
    "pool2d, largest": lambda K, x: K.pool2d(images(K, x), (2, 2)),
    "pow": lambda K, x: K.pow(x, 2) + K.pow(K.abs(x), 0.5),
    "prod": lambda K, x: K.prod(x, axis=1),
    "relu": lambda K, x: K.relu(x) + K.relu(x, alpha=0.1) + K.relu(x, max_value=1.0) + K.relu(x, max_value=6),
    "relu, threshold": lambda K, x: K.relu(x, alpha=0.1, max_value=2.0, threshold=0.5),
    "repeat": lambda K, x: K.repeat(x[:, 0], 3),
    "repeat_elements": lambda K, x: K.repeat_elements(x, 2, axis=-1),
    "reshape": lambda K, x: K.reshape(x, (-1, K.int_shape(x)[2])),
    "reshape, by shape": lambda K, x: K.reshape(x, (K.shape(x)[0], -1)),
    "resize_images": lambda K, x: K.resize_images(images(K, x), 2, 3, "channels_last"),
    "resize_images, bilinear": lambda K, x: K.resize_images(
        images(K, x), 2, 2, "channels_last", interpolation="bilinear"
    ),
    "reverse": lambda K, x: K.reverse(x, axes=1) + K.reverse(x, axes=[0, 2]),
    "rnn": lambda K, x: K.rnn(step, x, [K.zeros_like(x[:, 0])])[1],
    "rnn, backwards, masked": lambda K, x: K.rnn(
        step, x, [K.zeros_like(x[:, 0])], go_backwards=True, mask=x[:, :, 0] > 0, zero_output_for_mask=True
    )[0],
    "round": lambda K, x: K.round(x) + K.round(x * 0 + 0.5) + K.round(x * 0 + 1.5),
    "sigmoid": lambda K, x: K.sigmoid(x),
    "softmax": lambda K, x: K.softmax(x) + K.softmax(x, axis=1),
    "softplus": lambda K, x: K.softplus(x) + K.softsign(x),
    "sparse_categorical_crossentropy": lambda K, x: K.sparse_categorical_crossentropy(LABELS, K.abs(x)),
    "sparse_categorical_crossentropy, logits": lambda K, x: K.sparse_categorical_crossentropy(
        LABELS[..., None], x, from_logits=True
    ),
    "sparse_categorical_crossentropy, axis": lambda K, x: K.sparse_categorical_crossentropy(
        LABELS[:, :3], K.permute_dimensions(K.abs(x[:, :3]), (0, 2, 1)), axis=1
    ),
    "spatial_2d_padding": lambda K, x: K.spatial_2d_padding(images(K, x), ((1, 2), (0, 1))),
    "sqrt": lambda K, x: K.sqrt(x) + K.square(x),
    "squeeze": lambda K, x: K.squeeze(x[:, :1], 1),
    "stack": lambda K, x: K.stack([x, x * 2], axis=1),
    "std": lambda K, x: K.std(x, axis=1) + K.var(x, axis=1) + K.std(x) + K.var(x > 0),
    "stop_gradient": lambda K, x: x * K.stop_gradient(x),
    "sum": lambda K, x: K.sum(x, axis=[1, 2]) + K.sum(x) + K.sum(K.sum(x, axis=0, keepdims=True)),
    "switch": lambda K, x: K.switch(x > 0, x * 2, x * 3),
    "switch, few axes": lambda K, x: K.switch(x[:, :, 0] > 0, x * 2, x * 3),
    "switch, a number": lambda K, x: K.switch(K.sum(x) > 100.0, lambda: x * 2, lambda: x * 3),
    "temporal_padding": lambda K, x: K.temporal_padding(x, (2, 1)),
    "tile": lambda K, x: K.tile(x, [1, 2, 1]) + K.tile(x, (1, 2, 1)),
    "transpose": lambda K, x: K.transpose(x[0]),
    # As losses and metrics of old programs have them.
    "dice": lambda K, x: (
        1
        - (2.0 * K.sum(K.flatten(K.sigmoid(x)) * K.flatten(K.constant(OTHER > 0))) + 1)
        / (K.sum(K.flatten(K.sigmoid(x))) + K.sum(K.flatten(K.cast(OTHER > 0, "float32"))) + 1)
    ),
    "focal": lambda K, x: K.mean(
        -K.constant(OTHER > 0) * 0.25 * K.pow(1.0 - K.sigmoid(x), 2.0) * K.log(K.clip(K.sigmoid(x), K.epsilon(), 1.0))
    ),
    "rmse": lambda K, x: K.sqrt(K.mean(K.square(x - OTHER), axis=-1)),
    "recall": lambda K, x: K.sum(K.round(K.clip(x * K.constant(OTHER > 0), 0, 1))) / (K.sum(x) + K.epsilon()),
}
