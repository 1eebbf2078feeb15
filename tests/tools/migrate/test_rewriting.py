"""Lines of old programs, and what becomes of them."""

import pytest

from tools.migrate.migrating import HEAD, found, migrated

pytestmark = pytest.mark.gate_on("keras3_jax")

TF = "import tensorflow as tf\n"
LAYER = TF + "class A(tf.keras.layers.Layer):\n    def call(self, x):\n        "
NEW_LAYER = "import keras\nclass A(keras.layers.Layer):\n    def call(self, x):\n        "
DATA = TF + "def f(x):\n    return tf.cast(x, tf.float32)\n\nds = tf.data.Dataset.range(3).map(f)\n"


@pytest.mark.parametrize(
    ("old", "new"),
    [
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
            "import keras\ndef loss(a, b):\n    return keras.ops.mean(a - b)\n\nmodel.compile('adam', loss=loss)\n",
        ),
        (
            TF + "def make(s):\n    def loss(a, b):\n        return tf.abs(a - b) * s\n    return loss\n\n"
            "model.compile('adam', make(2))\n",
            "import keras\ndef make(s):\n    def loss(a, b):\n        return keras.ops.abs(a - b) * s\n"
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
            "from tensorflow import keras\nm = keras.Sequential()\n",
            "import keras\nm = keras.Sequential()\n",
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
        ("model.load_weights('a%d.h5' % i)\n", "model.load_weights('a%d.weights.h5' % i)\n"),
        ("print(history.history['lr'])\n", 'print(history.history["learning_rate"])\n'),
        (
            "from keras import backend as K\nK.set_value(model.optimizer.lr, 0.1)\n",
            "model.optimizer.learning_rate = 0.1\n",
        ),
        ("model.compile('adam', 'mse', metrics='mae')\n", "model.compile('adam', 'mse', metrics=['mae'])\n"),
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
            LAYER + "return tf.reshape(x, tf.concat([tf.shape(x)[:1], [4]], 0))\n",
            "line 4: tf.concat is not decided: a size that TensorFlow computes",
        ),
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
    assert said in found(report)
    assert report.ok
    assert f"# keras-tpu-ext migrate: not decided: {said.partition(': ')[2].partition(' is ')[0]}: " in made
    assert made.startswith("import keras_tpu_ext.dropin  # keras-tpu-ext migrate: still needed for line ")


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
        (TF + "s = tf.compat.v1.Session()\n", "line 2: tf.compat.v1.Session is out of reach: write eager code"),
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
        (LAYER + "return tf.math.top_k(x)\n", "line 4: tf.math.top_k -> keras.ops, by the drop-in"),
        (
            "from keras.models import load_model\nm = load_model(path)\n",
            "line 2: load_model(.h5) -> what it meant, by the",
        ),
    ],
)
def test_what_has_no_modern_form_stays_on_the_dropin(old, said, tmp_path):
    report, made = migrated(old, tmp_path)
    assert any(line.startswith(said) for line in found(report))
    assert report.ok
    assert made.startswith("import keras_tpu_ext.dropin  # keras-tpu-ext migrate: still needed for line ")


def test_comments_and_format_stay(tmp_path):
    old = """# first
class A( tf.keras.layers.Layer ):  # why

    def call(self,x):
        # sum
        return tf.reduce_sum( x,axis = 1 )  # all
"""
    new = old.replace("tf.keras", "keras").replace("tf.reduce_sum", "keras.ops.sum")
    assert migrated(TF + old, tmp_path)[1] == HEAD + "import keras\n" + new
