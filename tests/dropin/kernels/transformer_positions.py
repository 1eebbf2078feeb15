"""A text classifier of subclassed transformer blocks with sine positions and keras' own MultiHeadAttention; pooled."""

import json
import os

import numpy as np
import tensorflow as tf
from tensorflow import keras
from tensorflow.keras import layers

try:
    tpu = tf.distribute.cluster_resolver.TPUClusterResolver()
    tf.config.experimental_connect_to_cluster(tpu)
    tf.tpu.experimental.initialize_tpu_system(tpu)
    strategy = tf.distribute.TPUStrategy(tpu)
except ValueError:
    strategy = tf.distribute.get_strategy()

maxlen, vocab_size, embed_dim, num_heads, ff_dim = 10, 40, 16, 2, 24


def get_angles(pos, i, d_model):
    angle_rates = 1 / np.power(10000, (2 * (i // 2)) / np.float32(d_model))
    return pos * angle_rates


def positional_encoding(position, d_model):
    angle_rads = get_angles(np.arange(position)[:, np.newaxis], np.arange(d_model)[np.newaxis, :], d_model)
    angle_rads[:, 0::2] = np.sin(angle_rads[:, 0::2])
    angle_rads[:, 1::2] = np.cos(angle_rads[:, 1::2])
    return tf.cast(angle_rads[np.newaxis, ...], dtype=tf.float32)


class TransformerBlock(layers.Layer):
    def __init__(self, embed_dim, num_heads, ff_dim, rate=0.0):
        super(TransformerBlock, self).__init__()
        self.att = layers.MultiHeadAttention(num_heads=num_heads, key_dim=embed_dim // num_heads)
        self.ffn = keras.Sequential([layers.Dense(ff_dim, activation=tf.nn.gelu), layers.Dense(embed_dim)])
        self.layernorm1 = layers.LayerNormalization(epsilon=1e-6)
        self.layernorm2 = layers.LayerNormalization(epsilon=1e-6)
        self.dropout1 = layers.Dropout(rate)
        self.dropout2 = layers.Dropout(rate)

    def call(self, inputs, training):
        attn_output = self.att(inputs, inputs)
        attn_output = self.dropout1(attn_output, training=training)
        out1 = self.layernorm1(inputs + attn_output)
        ffn_output = self.ffn(out1)
        ffn_output = self.dropout2(ffn_output, training=training)
        return self.layernorm2(out1 + ffn_output)


class TokenAndPositionEmbedding(layers.Layer):
    def __init__(self, maxlen, vocab_size, embed_dim):
        super(TokenAndPositionEmbedding, self).__init__()
        self.token_emb = layers.Embedding(input_dim=vocab_size, output_dim=embed_dim)
        self.pos_emb = layers.Embedding(input_dim=maxlen, output_dim=embed_dim)
        self.fixed = positional_encoding(maxlen, embed_dim)

    def call(self, x):
        maxlen = tf.shape(x)[-1]
        positions = tf.range(start=0, limit=maxlen, delta=1)
        positions = self.pos_emb(positions)
        x = self.token_emb(x)
        return x + positions + self.fixed[:, :maxlen, :]


rng = np.random.RandomState(0)
x = rng.randint(0, vocab_size, (160, maxlen))
y = (x[:, :5].sum(1) > x[:, 5:].sum(1)).astype("int32")

with strategy.scope():
    inputs = layers.Input(shape=(maxlen,))
    h = TokenAndPositionEmbedding(maxlen, vocab_size, embed_dim)(inputs)
    transformer_block = TransformerBlock(embed_dim, num_heads, ff_dim)
    h = transformer_block(h)
    h = layers.GlobalAveragePooling1D()(h)
    h = layers.Dropout(0.0)(h)
    outputs = layers.Dense(2, activation="softmax")(h)
    model = keras.Model(inputs=inputs, outputs=outputs)
    model.compile(
        optimizer=keras.optimizers.Adam(clipnorm=1.0),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=False),
        metrics=["accuracy"],
    )
for w in model.trainable_weights:
    if len(w.shape) > 1:
        w.assign(np.random.RandomState(sum(w.shape)).normal(0, 0.2, tuple(w.shape)))
print(model.count_params())

history = model.fit(x[:128], y[:128], batch_size=32, epochs=2, validation_data=(x[128:], y[128:]), shuffle=False)

json.dump(
    {
        "replicas": strategy.num_replicas_in_sync,
        "history": history.history,
        "parameters": int(model.count_params()),
        "predictions": model.predict(x[128:])[:16].tolist(),
    },
    open(os.environ["KERNEL_OUT"], "w"),
)
