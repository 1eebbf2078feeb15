"""Lines of old programs, and what becomes of them."""

import pytest

from tools.migrate.migrating import HEAD, found, migrated

pytestmark = pytest.mark.gate_on("keras3_jax")

TF = "import tensorflow as tf\n"
LAYER = TF + "class A(tf.keras.layers.Layer):\n    def call(self, x):\n        "
OF_TWO = "    {0} = {0}[:, None] if (len({0}.shape), len({1}.shape)) == (1, 2) else {0}\n"
NEW_LAYER = "import keras\nclass A(keras.layers.Layer):\n    def call(self, x):\n        "
DATA = TF + "def f(x):\n    return tf.cast(x, tf.float32)\n\nds = tf.data.Dataset.range(3).map(f)\n"


MODEL = "import keras\nm = keras.Sequential()\n"
KERAS = "import keras, numpy, tensorflow as tf; K = keras.backend; m = keras.Sequential(); m.compile()\n"
ONLY_BY_DROPIN = {  # what Keras 3 would do in another way without a word, or not at all
    "keras.callbacks.EarlyStopping(restore_best_weights=True)\n": "restore_best_weights=",
    "keras.callbacks.EarlyStopping('val_dice')\n": "monitor='val_dice' without mode=",
    "keras.callbacks.ModelCheckpoint('a.h5', monitor='val_auc')\n": "monitor='val_auc' without mode=",
    "keras.regularizers.l1_l2(l1=1e-5)\n": "keras.regularizers.l1_l2() without l2=",
    "keras.applications.EfficientNetB0(drop_connect_rate=0.4)\n": "drop_connect_rate=",
    "keras.layers.ConvLSTM2D(3, 3)\n": "keras.layers.ConvLSTM2D() without recurrent_activation=",
    "keras.layers.AveragePooling2D()\n": "keras.layers.AveragePooling2D() without pool_size=",
    "keras.layers.Activation('hard_sigmoid')\n": "hard_sigmoid",
    "numpy.random.seed(1); tf.random.set_seed(2)\n": "tf.random.set_seed",
    "m.trainable = False\n": "trainable= after compile",
    "for one in m.layers[-3:]: one.trainable = True\n": "trainable=True of one layer after another",
    "m.compile('adam', ['mse', 'mae'], loss_weights={'b': 2, 'a': 1})\n": "loss_weights= by name",
    "m.compile('adam', {'a': 'mse', 'b': 'mae'}, loss_weights={'b': 2})\n": "loss_weights= by name",
    "tf.keras.optimizers.legacy.RMSprop(0.1)\n": "tf.keras.optimizers.legacy.RMSprop",
    "m.add_loss(x)\n": "model.add_loss()",
    "m.trainable = keras.layers.Dense(1, kernel_regularizer='l2')\n": "the regularizer of a frozen weight",
    "keras.layers.Dense(1, kernel_regularizer='l2', trainable=False)\n": "the regularizer of a frozen weight",
    "keras.layers.GRU(2, return_sequences=True)(keras.layers.Masking()(x)); m.compile(metrics=[])\n": (
        "the metrics of masked outputs"
    ),
    "m.set_weights(w)\nclass A(keras.Model):\n    def build(self, _): self.add_weight()\n": "the order of weights",
    "tf.saved_model.LoadOptions(); m.load_weights('a.weights.h5', by_name=True)\n": "by_name=",
    "m.reset_states()\n": ".reset_states()",
    "m.predict_classes(x)\n": ".predict_classes()",
    "m.predict_proba(x)\n": ".predict_proba()",
    "m.load_weights('../input/a.h5')\n": "the file of weights '../input/a.h5'",
    "K.learning_phase()\n": "K.learning_phase",
    "tf.compat.v1.disable_eager_execution()\n": "tf.compat.v1.disable_eager_execution",
}


def test_what_means_the_same_today_stays(tmp_path):
    lines = (
        "keras.callbacks.EarlyStopping('loss', restore_best_weights=False)\n"
        "keras.callbacks.ModelCheckpoint('a.keras', 'val_dice', mode='max')\n"
        "keras.regularizers.l1_l2(0.1, 0.1)\n"
        "keras.layers.AveragePooling2D(3)\n"
        "m.trainable = False\nm.compile('adam', 'mse')\n"
        "forest.predict_proba(x)\n"
        "keras.metrics.Mean().reset_state()\n"
    )
    report, made = migrated(KERAS + lines, tmp_path)
    assert not report.findings
    assert made.endswith(lines)


def test_history_keeps_its_old_key_on_the_dropin(tmp_path):
    line = "print(history.history['lr'])\n"
    made = migrated(KERAS + "m.predict_classes(x)\n" + line, tmp_path)[1]
    assert made.endswith(line)


def test_the_first_value_of_a_variable_is_tensorflows(tmp_path):
    line = "self.v = tf.Variable(initial_value=tf.zeros_like(tf.ones([2])))\n"
    assert migrated(LAYER + line, tmp_path)[1].endswith(line)


def test_what_keras_3_computes_a_little_differently_is_noted(tmp_path):
    report = migrated("import keras\nkeras.layers.BatchNormalization()\n", tmp_path)[0]
    assert report.notes[0].endswith("over N - 1, Keras 3 over N.")
    line = KERAS + "keras.layers.BatchNormalization(); m.predict_classes(x)\n"
    assert not migrated(line, tmp_path, "other.py")[0].notes


def test_files_of_weights_keep_their_names_where_another_line_reads_them(tmp_path):
    lines = "m.save_weights('a.h5')\nprint(open('a.h5'))\nm.load_weights('a.h5')\n"
    report, made = migrated(KERAS + lines, tmp_path)
    assert made.endswith(lines)
    assert len(report.on_dropin) == 2


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (
            MODEL + "m.compile('adam', 'mse', loss_weights=[1, 2], metrics=['mae'])\n",
            MODEL + "m.compile('adam', ['mse'] * 2, loss_weights=[1, 2], metrics=[['mae']] * 2)\n",
        ),
        (
            MODEL + "m.compile('adam', loss=keras.losses.Hinge(), loss_weights={'a': 1, 'b': 2})\n",
            MODEL + "m.compile('adam', loss=dict.fromkeys(['a', 'b'], keras.losses.Hinge()), "
            "loss_weights={'a': 1, 'b': 2})\n",
        ),
        (
            MODEL + "print(m.input_names)\n",
            MODEL + "print([one.name for one in m.inputs])\n",
        ),
        (
            MODEL + "x = keras.Model(m.input, f(m.output))\n",
            MODEL + "x = keras.Model(m.inputs[0], f(m.outputs[0]))\n",
        ),
        (LAYER + "return tf.nn.relu(x)\n", NEW_LAYER + "return keras.ops.relu(x)\n"),
        (LAYER + "return x[:, tf.newaxis]\n", NEW_LAYER + "return x[:, None]\n"),
        (LAYER + "return tf.cast(x > 0, tf.float32)\n", NEW_LAYER + 'return keras.ops.cast(x > 0, "float32")\n'),
        (
            "from tensorflow.keras import backend as K\nfrom tensorflow.keras.layers import Layer\n"
            "class A(Layer):\n    def call(self, x):\n        return K.mean(x, -1) + K.epsilon()\n",
            "import keras\nfrom keras.layers import Layer\n"
            "class A(Layer):\n    def call(self, x):\n"
            "        return keras.ops.mean(x, axis=-1) + keras.config.epsilon()\n",
        ),
        (
            TF + "def loss(a, b):\n    return tf.reduce_mean(a - b)\n\nmodel.compile('adam', loss=loss)\n",
            "import keras\ndef loss(a, b):\n" + OF_TWO.format("a", "b") + "    return keras.ops.mean(a - b)\n\n"
            "model.compile('adam', loss=loss)\n",
        ),
        (
            TF + "def make(s):\n    def loss(a, b):\n        return tf.abs(a - b) * s\n    return loss\n\n"
            "model.compile('adam', make(2))\n",
            "import keras\ndef make(s):\n    def loss(a, b):\n    "
            + OF_TWO.format("a", "b")
            + "        return keras.ops.abs(a - b) * s\n"
            "    return loss\n\n"
            "model.compile('adam', make(2))\n",
        ),
        (
            TF + "x = tf.keras.Input((4,))\ny = tf.reshape(x, (-1, 2))\n",
            "import keras\nx = keras.Input((4,))\ny = keras.ops.reshape(x, (-1, 2))\n",
        ),
        (
            TF + "m = tf.keras.Sequential([tf.keras.layers.Lambda(lambda x: tf.square(x))])\n",
            "import keras\nm = keras.Sequential([keras.layers.Lambda(lambda x: keras.ops.square(x))])\n",
        ),
        (
            TF + "d = tf.keras.layers.Dense(3, activation=tf.nn.relu)\n",
            "import keras\nd = keras.layers.Dense(3, activation=keras.ops.relu)\n",
        ),
        (DATA, DATA),
        (TF + "print(tf.cast([1, 2], tf.float32).numpy())\n", TF + "print(tf.cast([1, 2], tf.float32).numpy())\n"),
        (
            "from tensorflow.keras.optimizers import Adam\no = Adam(lr=1e-3)\n",
            "from keras.optimizers import Adam\no = Adam(learning_rate=1e-3)\n",
        ),
        (
            "from keras.layers import Embedding\ne = Embedding(10, 4, input_length=7)\n",
            "from keras.layers import Embedding\ne = Embedding(10, 4, input_shape=(7,))\n",
        ),
        (
            "from keras.layers.core import Dense\nfrom keras.utils import np_utils\ny = np_utils.to_categorical(t)\n",
            "from keras.layers import Dense\nfrom keras import utils as np_utils\ny = np_utils.to_categorical(t)\n",
        ),
        (
            "from tensorflow.keras.layers import *\nd = Dense(3)(Input((2,)))\n",
            "from keras.layers import *\nd = Dense(3)(Input((2,)))\n",
        ),
        (
            "from tensorflow import keras\nm = keras.Sequential(); m.compile()\n",
            "import keras\nm = keras.Sequential(); m.compile()\n",
        ),
        (
            "import tensorflow.keras.backend as K\nimport tensorflow.keras.layers as L\n"
            "K.clear_session()\nd = L.Dense(3)\n",
            "import keras\nimport keras.layers as L\nkeras.utils.clear_session()\nd = L.Dense(3)\n",
        ),
        ("model.fit_generator(g, 10, workers=4)\n", "model.fit(g, steps_per_epoch=10)\n"),
        ("model.fit(x, y, max_queue_size=10, epochs=2)\n", "model.fit(x, y, epochs=2)\n"),
        ("model.fit(d, steps_per_epoch=n / b)\n", "import math\nmodel.fit(d, steps_per_epoch=math.ceil(n / b))\n"),
        ("model.save_weights(f'a{i}.h5')\n", "model.save_weights(f'a{i}.weights.h5')\n"),
        (
            "model.save_weights('a%d.h5' % i)\nmodel.load_weights('a%d.h5' % i)\n",
            "model.save_weights('a%d.weights.h5' % i)\nmodel.load_weights('a%d.weights.h5' % i)\n",
        ),
        ("model.fit(x, y, nb_epoch=2, pickle_safe=True)\n", "model.fit(x, y, epochs=2)\n"),
        ("model.fit_generator(g, 10, nb_epoch=2)\n", "model.fit(g, steps_per_epoch=10, epochs=2)\n"),
        ("model.compile('adam', 'mse', ['mae'])\n", "model.compile('adam', 'mse', metrics=['mae'])\n"),
        (TF + "tf.random.set_seed(7)\n", "import keras\nkeras.utils.set_random_seed(7)\n"),
        (
            "from tensorflow import set_random_seed\nimport tensorflow.compat.v1 as tf\n"
            "set_random_seed(7)\ntf.set_random_seed(7)\n",
            "import keras\nkeras.utils.set_random_seed(7)\nkeras.utils.set_random_seed(7)\n",
        ),
        (TF + "o = tf.optimizers.Adam(lr=1)\n", "import keras\no = keras.optimizers.Adam(learning_rate=1)\n"),
        (
            "from keras.preprocessing.text import Tokenizer\n",
            "from tensorflow.keras.preprocessing.text import Tokenizer\n",
        ),
        (
            "import tensorflow as T\nT.logging.set_verbosity(T.logging.ERROR)\n",
            "import tensorflow as T\nT.compat.v1.logging.set_verbosity(T.compat.v1.logging.ERROR)\n",
        ),
        (
            "from keras.callbacks import LearningRateScheduler as L\nimport tensorflow as tf\n"
            "L(lambda e: float(tf.cos(e)))\n",
            "from keras.callbacks import LearningRateScheduler as L\nimport tensorflow as tf\n"
            "L(lambda e: float(tf.cos(e)))\n",
        ),
        ("print(history.history['lr'])\n", 'print(history.history["learning_rate"])\n'),
        (
            "def on_epoch_end(epoch, logs):\n    print(logs['lr'])\n",
            'def on_epoch_end(epoch, logs):\n    print(logs["learning_rate"])\n',
        ),
        (
            "from keras import backend as K\nK.set_value(model.optimizer.lr, 0.1)\n",
            "model.optimizer.learning_rate = 0.1\n",
        ),
        (
            LAYER + "return tf.ones((tf.cast(tf.shape(x)[0], dtype='int64'), 1))\n",
            NEW_LAYER + "return keras.ops.ones((keras.ops.shape(x)[0], 1))\n",
        ),
        (
            LAYER + "s = tf.shape(x)\n        return tf.reshape(x, tf.stack([s[0], -1]))\n",
            NEW_LAYER + "s = keras.ops.shape(x)\n        return keras.ops.reshape(x, [s[0], -1])\n",
        ),
        (
            "import keras\nclass A(keras.Model):\n    def compile(self, a, b, c): pass\n\nA().compile(x, y, z)\n",
            "import keras\nclass A(keras.Model):\n    def compile(self, a, b, c): pass\n\nA().compile(x, y, z)\n",
        ),
        (
            TF + "model.load_weights('a.weights.h5', options=tf.saved_model.LoadOptions())\n",
            "model.load_weights('a.weights.h5')\n",
        ),
        ("model.compile('adam', 'mse', metrics='mae')\n", "model.compile('adam', 'mse', metrics=['mae'])\n"),
        (
            "def IoU(y, p): return p\nmodel.compile('adam', metrics=[IoU])\n",
            "import keras\ndef IoU(y, p):\n" + OF_TWO.format("y", "p") + "    return p\n"
            "model.compile('adam', metrics=[keras.metrics.MeanMetricWrapper(IoU, name=\"IoU\")])\n",
        ),
        (
            "def made():\n    def f(t, q):\n        'Text.'\n        return t - q\n    return f\n"
            "model.compile('adam', 'mse', [made()])\n",
            "def made():\n    def f(t, q):\n        'Text.'\n    "
            + OF_TWO.format("t", "q")
            + "        return t - q\n"
            "    return f\nmodel.compile('adam', 'mse', metrics=[made()])\n",
        ),
        (
            "model.compile('adam', loss=['mse', 'mae'], metrics=['acc'])\n",
            "model.compile('adam', loss=['mse', 'mae'], metrics=[['acc']] * 2)\n",
        ),
        (
            TF + "l = tf.keras.losses.MeanSquaredError(reduction=tf.keras.losses.Reduction.NONE)\n",
            'import keras\nl = keras.losses.MeanSquaredError(reduction="none")\n',
        ),
        (
            LAYER.replace("self, x", "self, x, training") + "return x\n",
            NEW_LAYER.replace("self, x", "self, x, training=None") + "return x\n",
        ),
    ],
)
def test_lines_in_todays_words(old, new, tmp_path):
    report, made = migrated(old, tmp_path)
    assert made == HEAD + new
    assert report.ok
    assert not report.on_dropin


@pytest.mark.parametrize(
    ("old", "said"),
    [
        (
            TF + "def f(x):\n    return tf.square(x)\n\nds.map(f)\nmodel.compile(loss=f)\n",
            "line 3: tf.square is not decided: its function is used in a model and in an input pipeline",
        ),
        (
            TF + "def f(x):\n    return tf.square(x)\n",
            "line 3: tf.square is not decided: whether it gets a value of Keras",
        ),
        (
            LAYER + "return tf.square(x)\n\na = A()\nds.map(lambda x: a(x))\n",
            "line 4: tf.square is not decided: its function is used in a model and in an input pipeline",
        ),
        (
            LAYER + "return tf.reshape(x, tf.concat([tf.shape(x)[:1], [4]], 0))\n",
            "line 4: tf.concat is not decided: a size that TensorFlow computes",
        ),
        (
            LAYER + "s = tf.shape(x)\n        return tf.zeros([tf.reduce_prod(s[:2]), 1])\n",
            "line 5: tf.reduce_prod is not decided: a size that TensorFlow computes",
        ),
        (
            LAYER + "return tf.zeros(tf.shape(x)[1:3] * 2)\n",
            "line 4: tf.shape is not decided: a size that",
        ),
        (
            LAYER + "return tf.linalg.expm(x)\n",
            "line 4: tf.linalg.expm is not decided: whether it can",
        ),
        (TF + "s = tf.compat.v1.Session()\n", "line 2: tf.compat.v1.Session is not decided: what it does in a graph"),
        (LAYER + "return x.numpy()\n", "line 4: .numpy() is not decided: a traced value has none"),
        (
            "from tensorflow.nowhere import *\n",
            "line 1: from tensorflow.nowhere import * is not decided: which names it binds",
        ),
        (
            "import keras\nx = keras.layers.NoSuchLayer()\n",
            "line 2: keras.layers.NoSuchLayer is not decided: Keras 3 has no such name that is known here",
        ),
    ],
)
def test_what_reading_cannot_decide_stays_and_is_told(old, said, tmp_path):
    report, made = migrated(old, tmp_path)
    assert any(line.startswith(said) for line in found(report))
    assert report.ok
    assert f"# keras-tpu-ext migrate: not decided: {said.partition(': ')[2].partition(' is ')[0]}: " in made
    assert made.startswith("import keras_tpu_ext.dropin.old_program  # keras-tpu-ext migrate: still needed for ")


@pytest.mark.parametrize(
    ("old", "said"),
    [
        (
            TF + "with tf.GradientTape() as tape:\n    pass\n",
            "line 2: tf.GradientTape is out of reach: write model.compile",
        ),
        (
            "from transformers import TFBertModel\n",
            "line 1: transformers.TFBertModel is out of reach: write the same",
        ),
        (
            "import keras\nclass A(keras.Model):\n    def train_step(self, data):\n        pass\n",
            "line 3: train_step(self, data) is out of reach: write the loss in compute_loss",
        ),
        ("import tensorflow_hub as hub\n", "line 1: tensorflow_hub is out of reach: write the same network from"),
        (
            TF + "p = tf.compat.v1.placeholder('float32')\n",
            "line 2: tf.compat.v1.placeholder is out of reach: ",
        ),
        (
            LAYER + "return tf.boolean_mask(x, x > 0)\n",
            "line 4: tf.boolean_mask is out of reach: write tf.where(",
        ),
        (
            "from keras import backend as K\ns = K.get_session()\n",
            "line 2: K.get_session is out of reach: write K.g",
        ),
        (
            "import tensorflow_addons as tfa\nl = tfa.layers.SpectralNormalization()\n",
            "line 2: tfa.layers.SpectralNormalization is out of reach: write keras.layers.SpectralNormalization",
        ),
        (
            TF + "strategy = tf.distribute.get_strategy()\nstrategy.run(f)\n",
            "line 3: .run() is out of reach: write model.compile",
        ),
    ],
)
def test_what_cannot_be_has_the_line_to_write(old, said, tmp_path):
    report, made = migrated(old, tmp_path)
    assert any(line.startswith(said) for line in found(report))
    assert not report.ok
    assert "# keras-tpu-ext migrate: out of reach: " in made


@pytest.mark.parametrize(
    ("old", "said"),
    [
        (
            "import tensorflow_addons as tfa\no = tfa.optimizers.AdamW(1e-4)\n",
            "line 2: tfa.optimizers.AdamW -> its stand-in, by",
        ),
        (
            "from keras.optimizers import SGD\no = SGD(decay=1e-6)\n",
            "line 2: decay= -> what it meant, by the drop-in",
        ),
        ("model.fit(x, {'a': y}, epochs=2)\n", "line 1: the target of one output by its name -> what it meant, by"),
        (LAYER + "return self.dropout(x, training)\n", "line 4: a layer's training by position -> what it meant, by"),
        (
            KERAS + "def g():\n    yield x\nm.predict(g(), steps=2)\n",
            "line 4: a generator of inputs alone -> what it meant, by",
        ),
        (
            TF + "m = tf.keras.Sequential(); m.compile(loss=lambda y, p: p - y)\n",
            "line 2: y of one dimension in a lambda -> ",
        ),
        (
            "import functools, keras\ndef f(q, y, p): return q * p\n\nm.compile(loss=functools.partial(f, 0.5))\n",
            "line 2: labels of one dimension in f -> ",
        ),
        (LAYER + "self.add_metric(x)\n", "line 4: .add_metric() -> what it meant, by the drop-in"),
        (LAYER + "return tf.math.top_k(x)\n", "line 4: tf.math.top_k -> keras.ops, by the drop-in"),
        (
            "from keras.models import load_model\nm = load_model(path)\n",
            "line 2: load_model(.h5) -> what it meant, by the",
        ),
        *((KERAS + line, f"line 2: {said} -> ") for line, said in ONLY_BY_DROPIN.items()),
    ],
)
def test_what_has_no_modern_form_stays_on_the_dropin(old, said, tmp_path):
    report, made = migrated(old, tmp_path)
    assert any(line.startswith(said) for line in found(report))
    assert report.ok
    assert made.startswith("import keras_tpu_ext.dropin.old_program  # keras-tpu-ext migrate: still needed for ")


def test_comments_and_format_stay(tmp_path):
    old = """# first
class A( tf.keras.layers.Layer ):  # why

    def call(self,x):
        # sum
        return tf.reduce_sum( x,axis = 1 )  # all
"""
    new = old.replace("tf.keras", "keras").replace("tf.reduce_sum", "keras.ops.sum")
    assert migrated(TF + old, tmp_path)[1] == HEAD + "import keras\n" + new


def test_comments_of_an_earlier_migration_are_not_written_twice(tmp_path):
    old = "from keras.engine.topology import Layer\n" + LAYER.replace("tf.keras.layers.Layer", "Layer")
    made = migrated(old + "return tf.math.top_k(tf.boolean_mask(tf.abs(x), x > 0))\n", tmp_path)[1]
    assert made.count("keras.ops.abs(x)") == made.count("# keras-tpu-ext migrate: still needed for") == 1
    assert made.count("# keras-tpu-ext migrate: out of reach: tf.boolean_mask") == 1
    assert migrated(made, tmp_path, "again.py")[1] == made
