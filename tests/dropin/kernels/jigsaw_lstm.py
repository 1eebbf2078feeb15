"""Toxic comments: Tokenizer, pad_sequences, an embedding matrix, two bidirectional LSTMs, AUC, a second output."""

import json
import os

import numpy as np
import tensorflow as tf
from tensorflow.keras.callbacks import LearningRateScheduler
from tensorflow.keras.layers import LSTM, Bidirectional, Dense, Embedding, Input, SpatialDropout1D, add, concatenate
from tensorflow.keras.layers import GlobalAveragePooling1D, GlobalMaxPooling1D
from tensorflow.keras.models import Model
from tensorflow.keras.preprocessing import sequence, text

NUM_MODELS = 1
BATCH_SIZE = 32
LSTM_UNITS = 8
DENSE_HIDDEN_UNITS = 4 * LSTM_UNITS
EPOCHS = 2
MAX_LEN = 12

try:
    tpu = tf.distribute.cluster_resolver.TPUClusterResolver()
    tf.config.experimental_connect_to_cluster(tpu)
    tf.tpu.experimental.initialize_tpu_system(tpu)
    strategy = tf.distribute.experimental.TPUStrategy(tpu)
except ValueError:
    strategy = tf.distribute.get_strategy()

kind = ["thank you for the kind answer", "a fair point, well made!", "I like this photo very much"]
rude = ["what a stupid idea, go away", "you are an idiot and a liar", "this is rubbish. Nobody asked you"]
rng = np.random.RandomState(3)
x_text, y = [], []
for i in range(128):
    label = rng.randint(2)
    words = ((rude if label else kind)[rng.randint(3)] + " " + kind[rng.randint(3)]).split()
    x_text.append(" ".join(words[: 6 + rng.randint(6)]))
    y.append(label)
y_train = np.array(y, "float32")
y_aux_train = np.stack([y_train, y_train * 0.5, 1 - y_train], axis=1)


def build_matrix(word_index):
    embedding_matrix = np.zeros((len(word_index) + 1, 10))
    for word, i in word_index.items():
        embedding_matrix[i] = np.random.RandomState(sum(map(ord, word))).normal(0, 0.5, 10)
    return embedding_matrix


def build_model(embedding_matrix, num_aux_targets):
    words = Input(shape=(MAX_LEN,))
    x = Embedding(*embedding_matrix.shape, weights=[embedding_matrix], input_length=MAX_LEN, trainable=False)(words)
    x = SpatialDropout1D(0.0)(x)
    x = Bidirectional(LSTM(LSTM_UNITS, return_sequences=True))(x)
    x = Bidirectional(LSTM(LSTM_UNITS, return_sequences=True))(x)
    hidden = concatenate([GlobalMaxPooling1D()(x), GlobalAveragePooling1D()(x)])
    hidden = add([hidden, Dense(DENSE_HIDDEN_UNITS, activation="relu")(hidden)])
    hidden = add([hidden, Dense(DENSE_HIDDEN_UNITS, activation="relu")(hidden)])
    result = Dense(1, activation="sigmoid", name="target")(hidden)
    aux_result = Dense(num_aux_targets, activation="sigmoid", name="aux")(hidden)
    model = Model(inputs=words, outputs=[result, aux_result])
    model.compile(
        loss="binary_crossentropy",
        optimizer=tf.keras.optimizers.Adam(lr=1e-3),
        metrics={"target": tf.keras.metrics.AUC(name="auc")},
    )
    return model


tokenizer = text.Tokenizer(filters='!"#$%&()*+,-./:;<=>?@[\\]^_`{|}~\t\n', lower=True)
tokenizer.fit_on_texts(list(x_text))
x_train = sequence.pad_sequences(tokenizer.texts_to_sequences(x_text), maxlen=MAX_LEN)
matrix = build_matrix(tokenizer.word_index)

with strategy.scope():
    model = build_model(matrix, y_aux_train.shape[-1])
rng = np.random.RandomState(0)
for layer in model.layers:
    if not isinstance(layer, Embedding):
        layer.set_weights([rng.normal(0, 0.2, w.shape) if w.ndim > 1 else w for w in layer.get_weights()])
model.summary()

sample_weights = np.where(y_train > 0, 1.5, 1.0)
history = model.fit(
    x_train,
    [y_train, y_aux_train],
    batch_size=BATCH_SIZE,
    epochs=EPOCHS,
    verbose=2,
    shuffle=False,
    sample_weight=[sample_weights, np.ones_like(sample_weights)],
    callbacks=[LearningRateScheduler(lambda epoch: 1e-3 * (0.6**epoch))],
)
predictions = model.predict(x_train[:40], batch_size=2048)[0].flatten()

json.dump(
    {
        "replicas": strategy.num_replicas_in_sync,
        "words": len(tokenizer.word_index),
        "history": {k: [float(x) for x in v] for k, v in history.history.items()},
        "predictions": predictions.tolist(),
    },
    open(os.environ["KERNEL_OUT"], "w"),
)
