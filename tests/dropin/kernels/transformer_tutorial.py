"""Reversing words with the transformer of the TensorFlow tutorial: masks, warm-up schedule, a loss without padding."""

import json, os
import numpy as np
import tensorflow as tf

try:
    tpu = tf.distribute.cluster_resolver.TPUClusterResolver.connect()
    strategy = tf.distribute.TPUStrategy(tpu)
except ValueError:
    strategy = tf.distribute.get_strategy()

D_MODEL, HEADS, VOCAB, LEN = 8, 2, 14, 6


def get_angles(pos, i, d_model):
    return pos * (1 / np.power(10000, (2 * (i // 2)) / np.float32(d_model)))


def positional_encoding(position, d_model):
    rads = get_angles(np.arange(position)[:, np.newaxis], np.arange(d_model)[np.newaxis, :], d_model)
    rads[:, 0::2] = np.sin(rads[:, 0::2])
    rads[:, 1::2] = np.cos(rads[:, 1::2])
    return tf.cast(rads[np.newaxis, ...], dtype=tf.float32)


def create_padding_mask(seq):
    seq = tf.cast(tf.math.equal(seq, 0), tf.float32)
    return seq[:, tf.newaxis, tf.newaxis, :]


def create_look_ahead_mask(size):
    return 1 - tf.linalg.band_part(tf.ones((size, size)), -1, 0)


def scaled_dot_product_attention(q, k, v, mask):
    matmul_qk = tf.matmul(q, k, transpose_b=True)
    dk = tf.cast(tf.shape(k)[-1], tf.float32)
    logits = matmul_qk / tf.math.sqrt(dk)
    if mask is not None:
        logits += mask * -1e9
    weights = tf.nn.softmax(logits, axis=-1)
    return tf.matmul(weights, v), weights


class MultiHeadAttention(tf.keras.layers.Layer):
    def __init__(self, d_model, num_heads):
        super(MultiHeadAttention, self).__init__()
        self.num_heads, self.d_model = num_heads, d_model
        assert d_model % self.num_heads == 0
        self.depth = d_model // self.num_heads
        self.wq, self.wk, self.wv = [tf.keras.layers.Dense(d_model) for _ in range(3)]
        self.dense = tf.keras.layers.Dense(d_model)

    def split_heads(self, x, batch_size):
        x = tf.reshape(x, (batch_size, -1, self.num_heads, self.depth))
        return tf.transpose(x, perm=[0, 2, 1, 3])

    def call(self, v, k, q, mask):
        batch_size = tf.shape(q)[0]
        q, k, v = self.wq(q), self.wk(k), self.wv(v)
        q, k, v = [self.split_heads(t, batch_size) for t in (q, k, v)]
        attention, weights = scaled_dot_product_attention(q, k, v, mask)
        attention = tf.transpose(attention, perm=[0, 2, 1, 3])
        concat = tf.reshape(attention, (batch_size, -1, self.d_model))
        return self.dense(concat), weights


def feed_forward(d_model, dff):
    return tf.keras.Sequential([tf.keras.layers.Dense(dff, activation="relu"), tf.keras.layers.Dense(d_model)])


class EncoderLayer(tf.keras.layers.Layer):
    def __init__(self, d_model, num_heads, dff, rate=0.0):
        super(EncoderLayer, self).__init__()
        self.mha = MultiHeadAttention(d_model, num_heads)
        self.ffn = feed_forward(d_model, dff)
        self.layernorm1 = tf.keras.layers.LayerNormalization(epsilon=1e-6)
        self.layernorm2 = tf.keras.layers.LayerNormalization(epsilon=1e-6)
        self.dropout1 = tf.keras.layers.Dropout(rate)

    def call(self, x, training, mask):
        attn, _ = self.mha(x, x, x, mask)
        out1 = self.layernorm1(x + self.dropout1(attn, training=training))
        return self.layernorm2(out1 + self.ffn(out1))


class DecoderLayer(tf.keras.layers.Layer):
    def __init__(self, d_model, num_heads, dff):
        super(DecoderLayer, self).__init__()
        self.mha1, self.mha2 = MultiHeadAttention(d_model, num_heads), MultiHeadAttention(d_model, num_heads)
        self.ffn = feed_forward(d_model, dff)
        self.norms = [tf.keras.layers.LayerNormalization(epsilon=1e-6) for _ in range(3)]

    def call(self, x, enc_output, training, look_ahead_mask, padding_mask):
        attn1, w1 = self.mha1(x, x, x, look_ahead_mask)
        out1 = self.norms[0](attn1 + x)
        attn2, w2 = self.mha2(enc_output, enc_output, out1, padding_mask)
        out2 = self.norms[1](attn2 + out1)
        return self.norms[2](self.ffn(out2) + out2), w1, w2


class Transformer(tf.keras.Model):
    def __init__(self, num_layers, d_model, num_heads, dff, vocab, **kwargs):
        super(Transformer, self).__init__(**kwargs)
        self.d_model = d_model
        self.embedding = tf.keras.layers.Embedding(vocab, d_model)
        self.target_embedding = tf.keras.layers.Embedding(vocab, d_model)
        self.pos_encoding = positional_encoding(LEN * 2, d_model)
        self.enc_layers = [EncoderLayer(d_model, num_heads, dff) for _ in range(num_layers)]
        self.dec_layers = [DecoderLayer(d_model, num_heads, dff) for _ in range(num_layers)]
        self.final_layer = tf.keras.layers.Dense(vocab)

    def embed(self, layer, x):
        seq_len = tf.shape(x)[1]
        e = layer(x)
        e *= tf.math.sqrt(tf.cast(self.d_model, tf.float32))
        return e + self.pos_encoding[:, :seq_len, :]

    def call(self, inputs, training=None):
        inp, tar = inputs
        enc_padding_mask = create_padding_mask(inp)
        look_ahead_mask = create_look_ahead_mask(tf.shape(tar)[1])
        combined_mask = tf.maximum(create_padding_mask(tar), look_ahead_mask)
        x = self.embed(self.embedding, inp)
        for layer in self.enc_layers:
            x = layer(x, training, enc_padding_mask)
        y = self.embed(self.target_embedding, tar)
        for i, layer in enumerate(self.dec_layers):
            y, block1, block2 = layer(y, x, training, combined_mask, enc_padding_mask)
        return self.final_layer(y)


class CustomSchedule(tf.keras.optimizers.schedules.LearningRateSchedule):
    def __init__(self, d_model, warmup_steps=6):
        super(CustomSchedule, self).__init__()
        self.d_model = d_model
        self.d_model = tf.cast(self.d_model, tf.float32)
        self.warmup_steps = warmup_steps

    def __call__(self, step):
        step = tf.cast(step, dtype=tf.float32)
        arg1 = tf.math.rsqrt(step)
        arg2 = step * (self.warmup_steps**-1.5)
        return tf.math.rsqrt(self.d_model) * tf.math.minimum(arg1, arg2)


loss_object = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="none")


def loss_function(real, pred):
    mask = tf.math.logical_not(tf.math.equal(real, 0))
    loss_ = loss_object(real, pred)
    mask = tf.cast(mask, dtype=loss_.dtype)
    loss_ *= mask
    return tf.reduce_sum(loss_) / tf.reduce_sum(mask)


def accuracy_function(real, pred):
    accuracies = tf.equal(real, tf.cast(tf.argmax(pred, axis=2), real.dtype))
    mask = tf.math.logical_not(tf.math.equal(real, 0))
    accuracies = tf.math.logical_and(mask, accuracies)
    return tf.reduce_sum(tf.cast(accuracies, tf.float32)) / tf.reduce_sum(tf.cast(mask, tf.float32))


rng = np.random.RandomState(0)
source = rng.randint(1, VOCAB - 1, (96, LEN))
lengths = rng.randint(3, LEN + 1, 96)
target = np.zeros((96, LEN + 1), "int32")
target[:, 0] = VOCAB - 1
for i, n in enumerate(lengths):
    source[i, n:] = 0
    target[i, 1 : n + 1] = source[i, :n][::-1]
source = source.astype("int32")

ds = tf.data.Dataset.from_tensor_slices(((source, target[:, :-1]), target[:, 1:])).batch(32)
with strategy.scope():
    transformer = Transformer(1, D_MODEL, HEADS, 16, VOCAB)
    optimizer = tf.keras.optimizers.Adam(CustomSchedule(D_MODEL), beta_1=0.9, beta_2=0.98, epsilon=1e-9)
    transformer.compile(optimizer=optimizer, loss=loss_function, metrics=[accuracy_function])
transformer([source[:2], target[:2, :-1]])
state = np.random.RandomState(4)
transformer.set_weights([state.normal(0, 0.3, w.shape) if w.ndim > 1 else w for w in transformer.get_weights()])
history = transformer.fit(ds, epochs=3, validation_data=ds.take(1), verbose=2)
scores = transformer.evaluate(ds, verbose=0)

output = np.full((2, 1), VOCAB - 1, "int32")
for i in range(LEN):
    predictions = transformer.predict([source[:2], output], verbose=0)
    predicted_id = np.argmax(predictions[:, -1:, :], axis=-1).astype("int32")
    output = np.concatenate([output, predicted_id], axis=-1)
transformer.save_weights("transformer_weights.h5")
json.dump(
    {
        "replicas": strategy.num_replicas_in_sync,
        "history": history.history,
        "scores": scores,
        "decoded": output.tolist(),
        "predictions": transformer.predict(ds, verbose=0)[:2, :2].tolist(),
        "params": transformer.count_params(),
        "rates": [float(CustomSchedule(D_MODEL)(tf.constant(float(s)))) for s in (1, 5, 20)],
    },
    open(os.environ["KERNEL_OUT"], "w"),
)
