"""A causal transformer (as for Riiid): attention written in tf functions, sizes from tf.shape, positions embedded."""

import json
import os

import numpy as np
import tensorflow as tf

try:
    tpu = tf.distribute.cluster_resolver.TPUClusterResolver()
    tf.config.experimental_connect_to_cluster(tpu)
    tf.tpu.experimental.initialize_tpu_system(tpu)
    strategy = tf.distribute.experimental.TPUStrategy(tpu)
except ValueError:
    strategy = tf.distribute.get_strategy()

WINDOW, DIM, HEADS, VOCAB = 12, 16, 2, 20


def create_padding_mask(seqs):
    mask = tf.cast(tf.math.equal(seqs, 0), tf.float32)
    return mask[:, tf.newaxis, tf.newaxis, :]


def create_look_ahead_mask(size):
    return 1 - tf.linalg.band_part(tf.ones((size, size)), -1, 0)


def scaled_dot_product_attention(q, k, v, mask):
    matmul_qk = tf.matmul(q, k, transpose_b=True)
    dk = tf.cast(tf.shape(k)[-1], tf.float32)
    scaled_attention_logits = matmul_qk / tf.math.sqrt(dk)
    if mask is not None:
        scaled_attention_logits += mask * -1e9
    attention_weights = tf.nn.softmax(scaled_attention_logits, axis=-1)
    return tf.matmul(attention_weights, v), attention_weights


class MultiHeadAttention(tf.keras.layers.Layer):
    def __init__(self, d_model, num_heads):
        super(MultiHeadAttention, self).__init__()
        self.num_heads = num_heads
        self.d_model = d_model
        assert d_model % self.num_heads == 0
        self.depth = d_model // self.num_heads
        self.wq = tf.keras.layers.Dense(d_model)
        self.wk = tf.keras.layers.Dense(d_model)
        self.wv = tf.keras.layers.Dense(d_model)
        self.dense = tf.keras.layers.Dense(d_model)

    def split_heads(self, x, batch_size):
        x = tf.reshape(x, (batch_size, -1, self.num_heads, self.depth))
        return tf.transpose(x, perm=[0, 2, 1, 3])

    def call(self, v, k, q, mask):
        batch_size = tf.shape(q)[0]
        q = self.split_heads(self.wq(q), batch_size)
        k = self.split_heads(self.wk(k), batch_size)
        v = self.split_heads(self.wv(v), batch_size)
        scaled_attention, attention_weights = scaled_dot_product_attention(q, k, v, mask)
        scaled_attention = tf.transpose(scaled_attention, perm=[0, 2, 1, 3])
        concat_attention = tf.reshape(scaled_attention, (batch_size, -1, self.d_model))
        return self.dense(concat_attention), attention_weights


class Block(tf.keras.layers.Layer):
    def __init__(self, d_model, num_heads, dff, rate=0.0):
        super(Block, self).__init__()
        self.mha = MultiHeadAttention(d_model, num_heads)
        self.ffn = tf.keras.Sequential(
            [tf.keras.layers.Dense(dff, activation="relu"), tf.keras.layers.Dense(d_model)]
        )
        self.layernorm1 = tf.keras.layers.LayerNormalization(epsilon=1e-6)
        self.layernorm2 = tf.keras.layers.LayerNormalization(epsilon=1e-6)
        self.dropout1 = tf.keras.layers.Dropout(rate)

    def call(self, x, training=None, mask=None):
        attn_output, _ = self.mha(x, x, x, mask)
        attn_output = self.dropout1(attn_output, training=training)
        out1 = self.layernorm1(x + attn_output)
        return self.layernorm2(out1 + self.ffn(out1))


class Riiid(tf.keras.models.Model):
    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.embedding = tf.keras.layers.Embedding(VOCAB, DIM)
        self.positions = tf.keras.layers.Embedding(WINDOW, DIM)
        self.blocks = [Block(DIM, HEADS, 32) for _ in range(2)]
        self.out = tf.keras.layers.Dense(1, activation="sigmoid")

    def call(self, inputs, training=None):
        seq_len = tf.shape(inputs)[1]
        mask = tf.maximum(create_padding_mask(inputs), create_look_ahead_mask(seq_len))
        x = self.embedding(inputs) * tf.math.sqrt(tf.cast(DIM, tf.float32))
        x += self.positions(tf.range(start=0, limit=seq_len, delta=1))
        for block in self.blocks:
            x = block(x, training=training, mask=mask)
        return self.out(x)


rng = np.random.RandomState(0)
x = rng.randint(1, VOCAB, (128, WINDOW))
x[:, -2:] = np.where(rng.rand(128, 1) < 0.3, 0, x[:, -2:])
y = (np.cumsum(x, axis=1) % 5 > 2).astype("float32")[..., None]

with strategy.scope():
    model = Riiid()
    model(x[:2])  # makes the weights
    model.compile(
        optimizer=tf.keras.optimizers.Adam(1e-3, beta_1=0.9, beta_2=0.98, epsilon=1e-7),
        loss=tf.keras.losses.BinaryCrossentropy(),
        metrics=[tf.keras.metrics.AUC(name="auc"), "accuracy"],
    )
for w in model.trainable_weights:
    if len(w.shape) > 1:
        w.assign(np.random.RandomState(sum(w.shape)).normal(0, 0.15, tuple(w.shape)))

history = model.fit(x, y, batch_size=32, epochs=2, shuffle=False, verbose=2)
model.save_weights("riiid.h5")
model.load_weights("riiid.h5")

json.dump(
    {
        "replicas": strategy.num_replicas_in_sync,
        "history": history.history,
        "eager": model(x[:4], training=False).numpy()[..., 0].tolist(),
        "predictions": model.predict(x[:8])[..., 0].tolist(),
    },
    open(os.environ["KERNEL_OUT"], "w"),
)
