"""Shifted windows, a class token and an MLP-Mixer in tf ops: variables of TensorFlow made in `build`, dicts of outputs."""

import json, os
import numpy as np
import tensorflow as tf
from sklearn.datasets import load_digits
from tensorflow import keras
from tensorflow.keras import layers as L

try:
    tpu = tf.distribute.cluster_resolver.TPUClusterResolver()
    tf.config.experimental_connect_to_cluster(tpu)
    tf.tpu.experimental.initialize_tpu_system(tpu)
    strategy = tf.distribute.TPUStrategy(tpu)
except ValueError:
    strategy = tf.distribute.get_strategy()


class Patches(L.Layer):
    def __init__(self, patch_size):
        super(Patches, self).__init__()
        self.patch_size = patch_size

    def call(self, images):
        batch_size = tf.shape(images)[0]
        patches = tf.image.extract_patches(
            images=images,
            sizes=[1, self.patch_size, self.patch_size, 1],
            strides=[1, self.patch_size, self.patch_size, 1],
            rates=[1, 1, 1, 1],
            padding="VALID",
        )
        patch_dims = patches.shape[-1]
        return tf.reshape(patches, [batch_size, -1, patch_dims])


class PatchEncoder(L.Layer):
    def __init__(self, num_patches, projection_dim):
        super(PatchEncoder, self).__init__()
        self.num_patches = num_patches
        self.projection = L.Dense(units=projection_dim)
        w_init = tf.random_normal_initializer()
        class_token = w_init(shape=(1, projection_dim), dtype="float32")
        self.class_token = tf.Variable(initial_value=tf.zeros_like(class_token), trainable=True)
        self.position_embedding = L.Embedding(input_dim=num_patches + 1, output_dim=projection_dim)

    def call(self, patch):
        batch = tf.shape(patch)[0]
        class_token = tf.tile(self.class_token, multiples=[batch, 1])
        class_token = tf.reshape(class_token, (batch, 1, self.class_token.shape[-1]))
        patches_embed = self.projection(patch)
        patches_embed = tf.concat([patches_embed, class_token], 1)
        positions_embed = self.position_embedding(tf.range(start=0, limit=self.num_patches + 1, delta=1))
        return patches_embed + positions_embed


def window_partition(x, window_size):
    _, height, width, channels = x.shape
    x = tf.reshape(x, shape=(-1, height // window_size, window_size, width // window_size, window_size, channels))
    x = tf.transpose(x, (0, 1, 3, 2, 4, 5))
    return tf.reshape(x, shape=(-1, window_size, window_size, channels))


def window_reverse(windows, window_size, height, width, channels):
    x = tf.reshape(
        windows, shape=(-1, height // window_size, width // window_size, window_size, window_size, channels)
    )
    x = tf.transpose(x, perm=(0, 1, 3, 2, 4, 5))
    return tf.reshape(x, shape=(-1, height, width, channels))


class WindowAttention(L.Layer):
    def __init__(self, dim, window_size, num_heads, **kwargs):
        super().__init__(**kwargs)
        self.dim, self.window_size, self.num_heads = dim, window_size, num_heads
        self.scale = (dim // num_heads) ** -0.5
        self.qkv = L.Dense(dim * 3, use_bias=True)
        self.proj = L.Dense(dim)

    def build(self, input_shape):
        num = (2 * self.window_size[0] - 1) * (2 * self.window_size[1] - 1)
        self.relative_position_bias_table = self.add_weight(
            shape=(num, self.num_heads), initializer=tf.initializers.Zeros(), trainable=True, name="table"
        )
        coords_h = np.arange(self.window_size[0])
        coords_w = np.arange(self.window_size[1])
        coords = np.stack(np.meshgrid(coords_h, coords_w, indexing="ij")).reshape(2, -1)
        relative = (coords[:, :, None] - coords[:, None, :]).transpose([1, 2, 0])
        relative[:, :, 0] += self.window_size[0] - 1
        relative[:, :, 1] += self.window_size[1] - 1
        relative[:, :, 0] *= 2 * self.window_size[1] - 1
        self.relative_position_index = tf.Variable(
            initial_value=tf.convert_to_tensor(relative.sum(-1)), trainable=False
        )

    def call(self, x, mask=None):
        _, size, channels = x.shape
        x_qkv = self.qkv(x)
        x_qkv = tf.reshape(x_qkv, shape=(-1, size, 3, self.num_heads, channels // self.num_heads))
        x_qkv = tf.transpose(x_qkv, perm=(2, 0, 3, 1, 4))
        q, k, v = x_qkv[0], x_qkv[1], x_qkv[2]
        attn = (q * self.scale) @ tf.transpose(k, perm=(0, 1, 3, 2))
        num = self.window_size[0] * self.window_size[1]
        flat = tf.reshape(self.relative_position_index, shape=(-1,))
        bias = tf.gather(self.relative_position_bias_table, flat)
        bias = tf.transpose(tf.reshape(bias, shape=(num, num, -1)), perm=(2, 0, 1))
        attn = attn + tf.expand_dims(bias, axis=0)
        attn = keras.activations.softmax(attn, axis=-1)
        x_qkv = tf.transpose(attn @ v, perm=(0, 2, 1, 3))
        x_qkv = tf.reshape(x_qkv, shape=(-1, size, channels))
        return self.proj(x_qkv)


class DropPath(L.Layer):
    def __init__(self, drop_prob=0.0, **kwargs):
        super().__init__(**kwargs)
        self.drop_prob = drop_prob

    def call(self, x, training=None):
        if self.drop_prob == 0.0 or not training:
            return x
        keep_prob = 1 - self.drop_prob
        shape = (tf.shape(x)[0],) + (1,) * (len(tf.shape(x)) - 1)
        random_tensor = keep_prob + tf.random.uniform(shape, 0, 1)
        random_tensor = tf.floor(random_tensor)
        return (x / keep_prob) * random_tensor


class SwinBlock(L.Layer):
    def __init__(self, dim, size, num_heads=2, window_size=2, shift_size=1, **kwargs):
        super().__init__(**kwargs)
        self.dim, self.size, self.window_size, self.shift_size = dim, size, window_size, shift_size
        self.norm1 = L.LayerNormalization(epsilon=1e-5)
        self.attn = WindowAttention(dim, window_size=(window_size, window_size), num_heads=num_heads)
        self.drop_path = DropPath(0.0)
        self.norm2 = L.LayerNormalization(epsilon=1e-5)
        self.mlp = keras.Sequential([L.Dense(dim), L.Activation(keras.activations.gelu), L.Dense(dim)])

    def call(self, x):
        height = width = self.size
        _, num_patches_before, channels = x.shape
        x_skip = x
        x = self.norm1(x)
        x = tf.reshape(x, shape=(-1, height, width, channels))
        shifted_x = tf.roll(x, shift=[-self.shift_size, -self.shift_size], axis=[1, 2])
        x_windows = window_partition(shifted_x, self.window_size)
        x_windows = tf.reshape(x_windows, shape=(-1, self.window_size * self.window_size, channels))
        attn_windows = self.attn(x_windows)
        attn_windows = tf.reshape(attn_windows, shape=(-1, self.window_size, self.window_size, channels))
        shifted_x = window_reverse(attn_windows, self.window_size, height, width, channels)
        x = tf.roll(shifted_x, shift=[self.shift_size, self.shift_size], axis=[1, 2])
        x = tf.reshape(x, shape=(-1, height * width, channels))
        x = x_skip + self.drop_path(x)
        return x + self.drop_path(self.mlp(self.norm2(x)))


def mixer(x, tokens):
    y = L.LayerNormalization()(x)
    y = tf.linalg.matrix_transpose(y)
    y = L.Dense(tokens, activation=tf.nn.gelu)(y)
    y = tf.linalg.matrix_transpose(y)
    return x + y


d = load_digits()
x = (d.images[:320, ..., None] / 16).astype("float32")
y = d.target[:320]

with strategy.scope():
    inputs = L.Input(shape=(8, 8, 1))
    patches = Patches(2)(inputs)
    tokens = L.Dense(8)(patches)
    s = SwinBlock(8, 4)(tokens)
    s = mixer(s, 16)
    s = L.GlobalAveragePooling1D()(s)
    e = PatchEncoder(16, 8)(patches)
    n = L.LayerNormalization(epsilon=1e-6)(e)
    att = L.MultiHeadAttention(num_heads=2, key_dim=4, dropout=0.0)(n, n)
    e = L.Add()([att, e])
    rep = e[:, -1]
    z = L.Concatenate()([s, rep])
    digit = L.Dense(10, name="digit")(z)
    odd = L.Dense(1, activation="sigmoid", name="odd")(tf.stop_gradient(z) * 0.5 + z * 0.5)
    model = keras.Model(inputs, {"digit": digit, "odd": odd})
    model.compile(
        optimizer=keras.optimizers.SGD(learning_rate=0.001),
        loss={"digit": keras.losses.SparseCategoricalCrossentropy(from_logits=True), "odd": "binary_crossentropy"},
        loss_weights={"digit": 1.0, "odd": 0.3},
        metrics={
            "digit": [
                keras.metrics.SparseCategoricalAccuracy(name="accuracy"),
                keras.metrics.SparseTopKCategoricalAccuracy(5, name="top-5-accuracy"),
            ],
            "odd": ["AUC"],
        },
    )
for v in model.trainable_weights:
    if len(v.shape) > 1:
        v.assign(np.random.RandomState(int(np.prod(v.shape))).normal(0, 0.3, tuple(v.shape)))
ds = (
    tf.data.Dataset.from_tensor_slices((x[:256], {"digit": y[:256], "odd": (y[:256] % 2).astype("float32")[:, None]}))
    .batch(32)
    .cache()
)
h = model.fit(
    ds, epochs=2, validation_data=(x[256:], {"digit": y[256:], "odd": (y[256:] % 2).astype("float32")[:, None]})
)
p = model.predict(x[256:])
json.dump(
    {
        "replicas": strategy.num_replicas_in_sync,
        "history": h.history,
        "predictions": p["digit"][:16].tolist(),
        "odd": p["odd"][:16].tolist(),
    },
    open(os.environ["KERNEL_OUT"], "w"),
)
