"""TabNet in small: tf.split gates, sparsemax from tf.sort and tf.cumsum, a prior that shrinks step by step."""

import json
import os

import numpy as np
import tensorflow as tf
from sklearn.datasets import load_wine

try:
    tpu = tf.distribute.cluster_resolver.TPUClusterResolver()
    tf.config.experimental_connect_to_cluster(tpu)
    tf.tpu.experimental.initialize_tpu_system(tpu)
    strategy = tf.distribute.experimental.TPUStrategy(tpu)
except ValueError:
    strategy = tf.distribute.get_strategy()


def glu(x, n_units):
    """Generalized linear unit nonlinear activation."""
    return x[:, :n_units] * tf.nn.sigmoid(x[:, n_units:])


def sparsemax(logits):
    z = logits - tf.reduce_mean(logits, axis=1)[:, tf.newaxis]
    z_sorted = tf.sort(z, axis=1, direction="DESCENDING")
    z_cumsum = tf.cumsum(z_sorted, axis=1)
    k = tf.range(1, tf.cast(tf.shape(logits)[1], logits.dtype) + 1, dtype=logits.dtype)
    z_check = 1 + k * z_sorted > z_cumsum
    k_z = tf.reduce_sum(tf.cast(z_check, tf.int32), axis=1)
    indices = tf.stack([tf.range(0, tf.shape(logits)[0]), k_z - 1], axis=1)
    tau_sum = tf.gather_nd(z_cumsum, indices)
    tau_z = (tau_sum - 1) / tf.cast(k_z, logits.dtype)
    return tf.maximum(tf.cast(0, logits.dtype), z - tau_z[:, tf.newaxis])


class TransformBlock(tf.keras.Model):
    def __init__(self, features, momentum=0.9, **kwargs):
        super(TransformBlock, self).__init__(**kwargs)
        self.transform = tf.keras.layers.Dense(features, use_bias=False)
        self.bn = tf.keras.layers.BatchNormalization(axis=-1, momentum=momentum)

    def call(self, inputs, training=None):
        return self.bn(self.transform(inputs), training=training)


class TabNet(tf.keras.Model):
    def __init__(self, num_features, feature_dim=8, output_dim=4, num_steps=2, gamma=1.3, num_classes=3, **kwargs):
        super().__init__(**kwargs)
        self.num_features, self.output_dim, self.feature_dim = num_features, output_dim, feature_dim
        self.num_steps, self.gamma = num_steps, gamma
        self.input_bn = tf.keras.layers.BatchNormalization(axis=-1, momentum=0.9)
        self.shared = TransformBlock(2 * feature_dim)
        self.steps = [TransformBlock(2 * feature_dim) for _ in range(num_steps + 1)]
        self.attention = [TransformBlock(num_features) for _ in range(num_steps)]
        self.head = tf.keras.layers.Dense(num_classes, activation="softmax", use_bias=False)

    def call(self, inputs, training=None):
        features = self.input_bn(inputs, training=training)
        batch_size = tf.shape(features)[0]
        output = tf.zeros((batch_size, self.output_dim))
        masked = features
        prior = tf.ones((batch_size, self.num_features))
        for i in range(self.num_steps + 1):
            x = glu(self.shared(masked, training=training), self.feature_dim)
            x = (glu(self.steps[i](x, training=training), self.feature_dim) + x) * tf.math.sqrt(0.5)
            decision, coefficients = tf.split(x, [self.output_dim, self.feature_dim - self.output_dim], axis=-1)
            if i > 0:
                output += tf.nn.relu(decision)
            if i < self.num_steps:
                mask = sparsemax(self.attention[i](coefficients, training=training) * prior)
                prior *= self.gamma - mask
                entropy = tf.reduce_sum(-mask * tf.math.log(mask + 1e-5), axis=1)
                self.add_loss(1e-3 * tf.reduce_mean(entropy) / self.num_steps)
                masked = tf.multiply(mask, features)
        return self.head(output)


X, y = load_wine(return_X_y=True)
order = np.random.RandomState(0).permutation(178)
X, y = X[order].astype("float32"), y[order].astype("int32")
train = tf.data.Dataset.from_tensor_slices((X[:128], y[:128])).batch(32)
valid = tf.data.Dataset.from_tensor_slices((X[128:160], y[128:160])).batch(32)

with strategy.scope():
    model = TabNet(13)
    model.compile(optimizer="adam", loss="sparse_categorical_crossentropy", metrics=["accuracy"])
model(X[:2])  # makes the weights
for w in model.trainable_weights:
    if len(w.shape) > 1:
        w.assign(np.random.RandomState(sum(w.shape)).normal(0, 0.4, tuple(w.shape)))

history = model.fit(train, epochs=3, validation_data=valid, verbose=2)

json.dump(
    {
        "replicas": strategy.num_replicas_in_sync,
        "history": history.history,
        "predictions": model.predict(valid)[:8].tolist(),
    },
    open(os.environ["KERNEL_OUT"], "w"),
)
