"""The lines of old programs that find a TPU, each in a fresh process."""

import os
import subprocess
import sys

import pytest

import keras_tpu_ext as kte
from keras_tpu_ext.dropin import tpu

pytestmark = pytest.mark.runtimes("keras3_jax")

LINE = "import keras_tpu_ext.dropin\n"
CHOSEN = "import os; os.environ['KERAS_BACKEND'] = 'tensorflow'\n"


BEFORE = "Keras was imported before, on tensorflow"


def run(program, **environ):
    """Run a program without a choice of Keras's backend; return what it printed."""
    before = {name: value for name, value in os.environ.items() if name != "KERAS_BACKEND"}
    command = [sys.executable, "-W", "ignore", "-c", program]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, env={**before, **environ}, timeout=300
    )
    return done.stdout + done.stderr


FIND = """
import tensorflow as tf
try:
    tpu = tf.distribute.cluster_resolver.TPUClusterResolver()
    print("Running on TPU", tpu.master(), tpu.cluster_spec().as_dict()["worker"])
except ValueError as error:
    print(error)
    tpu = None
if tpu:
    tf.config.experimental_connect_to_cluster(tpu)
    tf.tpu.experimental.initialize_tpu_system(tpu)
    tf.tpu.experimental.initialize_tpu_system(tpu)
    strategy = tf.distribute.experimental.TPUStrategy(tpu)
else:
    strategy = tf.distribute.get_strategy()
print("replicas:", strategy.num_replicas_in_sync, len(tf.config.list_logical_devices("TPU")))
with strategy.scope() as inside:
    assert tf.distribute.get_strategy() is strategy is inside
    model = tf.keras.Sequential([tf.keras.layers.Dense(1, input_shape=(3,))])
    model.compile("sgd", "mse")
data = tf.data.Dataset.from_tensor_slices((tf.ones((32, 3)), tf.ones((32, 1)))).batch(16)
history = model.fit(strategy.experimental_distribute_dataset(data), epochs=2, verbose=0).history
print("learns:", history["loss"][1] < history["loss"][0], tf.keras.backend.backend())
"""


def test_a_rehearsal_looks_like_a_tpu():
    printed = run(LINE + FIND, KTE_REHEARSE="8")
    assert "Running on TPU grpc://localhost:8470 ['localhost:8470']" in printed
    assert "replicas: 8 8" in printed
    assert "learns: True jax" in printed
    assert "keras_tpu_ext.dropin: TPUClusterResolver -> keras_tpu_ext.strategy_scope()" in printed
    assert "tf.tpu.experimental.initialize_tpu_system" in printed.split("old names were mapped")[1]


@pytest.mark.exhaustive
def test_without_a_tpu_the_program_takes_its_own_way():
    printed = run(LINE + FIND)
    assert "Please provide a TPU Name to connect to." in printed
    assert "KTE_REHEARSE=8" in printed
    assert "replicas: 1 0" in printed
    assert "learns: True jax" in printed


OLD_COLAB = """
import os
import tensorflow as tf
resolver = tf.distribute.cluster_resolver.TPUClusterResolver(tpu="grpc://" + os.environ["COLAB_TPU_ADDR"])
tf.config.experimental_connect_to_host(resolver.master())
tf.tpu.experimental.initialize_tpu_system(resolver)
strategy = tf.distribute.TPUStrategy(resolver)
print(strategy.num_replicas_in_sync, strategy.cluster_resolver is resolver)
print(tf.distribute.cluster_resolver.TPUClusterResolver.connect().num_accelerators())
import keras_tpu_ext as kte
print(kte.hardware.find_tpu())
print(isinstance(strategy, tf.distribute.TPUStrategy), isinstance(strategy, tf.distribute.Strategy))
strategy.experimental_run_v2(print)
"""


def test_colabs_address_and_a_loop_of_ones_own():
    printed = run(LINE + OLD_COLAB, KTE_REHEARSE="2")
    assert "2 True\n{'TPU': 2}\nNone\nTrue True" in printed
    assert "OutOfReachError: strategy.experimental_run_v2 cannot run on JAX" in printed
    assert "model.compile(...) and model.fit(...)" in printed


@pytest.mark.parametrize(
    ("program", "text"),
    [
        (
            f"import os; os.environ['KERAS_BACKEND'] = 'tensorflow'; import keras\n{LINE}",
            "Make `import keras_tpu_ext",
        ),
        pytest.param("import keras_tpu_ext\n" + LINE, BEFORE, marks=pytest.mark.exhaustive),
        pytest.param("from keras_tpu_ext import dropin", BEFORE, marks=pytest.mark.exhaustive),
    ],
)
def test_too_late_is_an_error_with_the_line_to_move(program, text):
    assert text in run(program)


@pytest.mark.exhaustive
def test_a_backend_that_was_chosen_is_told():
    program = (
        f"import os; os.environ['KERAS_BACKEND'] = 'tensorflow'\n{LINE}import keras; print(keras.backend.backend())"
    )
    printed = run(program)
    assert "KERAS_BACKEND was 'tensorflow'; the drop-in runs Keras 3 on JAX." in printed
    assert printed.count("jax\n") == 1


@pytest.mark.parametrize("value", ["eight", "0", "-1"])
def test_a_wrong_number_of_replicas(value, monkeypatch):
    monkeypatch.setenv("KTE_REHEARSE", value)
    with pytest.raises(kte.errors.ArgumentError, match=f"KTE_REHEARSE.*a number of replicas; got '{value}'"):
        tpu.rehearsed_replicas()
