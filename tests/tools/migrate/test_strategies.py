"""The code that sets up a TPU, in the ways of public kernels."""

import pytest

from tools.migrate.migrating import HEAD, found, migrated

pytestmark = pytest.mark.gate_on("keras3_jax")

TF = "import tensorflow as tf\n"
KTE = "import keras_tpu_ext as kte\n"
RESOLVER = "tf.distribute.cluster_resolver.TPUClusterResolver"
START = "tf.config.experimental_connect_to_cluster(tpu)\n    tf.tpu.experimental.initialize_tpu_system(tpu)\n"
TWO_STEPS = f"""
# Detect hardware
try:
    tpu = {RESOLVER}()
    print('Running on TPU ', tpu.master())
except ValueError:
    tpu = None

if tpu:
    {START}    strategy = tf.distribute.experimental.TPUStrategy(tpu)
else:
    strategy = tf.distribute.get_strategy()
"""
ONE_STEP = f"""
# Detect hardware
try:
    tpu = {RESOLVER}.connect()
    strategy = tf.distribute.TPUStrategy(tpu)
except Exception as e:
    print(e)
    strategy = tf.distribute.MirroredStrategy()
"""
PLAIN = f"""
# Detect hardware
tpu = {RESOLVER}(tpu="local")
tf.tpu.experimental.initialize_tpu_system(tpu)
strategy = tf.distribute.TPUStrategy(tpu)
"""
FLAG = f"""
# Detect hardware
if 'COLAB_TPU_ADDR' in os.environ:
    address = 'grpc://' + os.environ['COLAB_TPU_ADDR']
    tpu = {RESOLVER}(address)
    device = "TPU"
    strategy = tf.distribute.TPUStrategy(tpu)
else:
    device = "CPU"
    strategy = tf.distribute.get_strategy()
"""
USE = """
print(strategy.num_replicas_in_sync)
ds = strategy.experimental_distribute_dataset(ds)
with strategy.scope():
    model = make()
"""
NEW_USE = """
print(strategy.num_replicas)
ds = ds
with strategy:
    model = make()
"""


@pytest.mark.parametrize("setup", [TWO_STEPS, ONE_STEP, PLAIN, FLAG])
def test_a_setup_becomes_one_line(setup, tmp_path):
    report, made = migrated(TF + setup + USE, tmp_path)
    assert made == HEAD + KTE + "\n# Detect hardware\nstrategy = kte.strategy_scope()\n" + NEW_USE
    assert report.ok
    assert not report.on_dropin


def test_a_setup_that_insists_on_a_tpu_still_does(tmp_path):
    text = (
        f"try:\n    s = tf.distribute.TPUStrategy({RESOLVER}())\nexcept ValueError:\n    raise BaseException('no')\n"
    )
    assert 's = kte.strategy_scope(require="tpu")\n' in migrated(TF + text, tmp_path)[1]


def test_lists_of_other_devices_stay(tmp_path):
    text = "gpus = tf.config.list_physical_devices('GPU')\n"
    made = migrated(TF + text + PLAIN + USE, tmp_path)[1]
    assert text in made
    assert "strategy = kte.strategy_scope()" in made


def test_a_function_that_returns_a_strategy(tmp_path):
    text = (
        f"def connect():\n    try:\n        tpu = {RESOLVER}()\n        return tf.distribute.TPUStrategy(tpu)\n"
        "    except ValueError:\n        return tf.distribute.get_strategy()\n\n"
        "def batch(strategy):\n    return 8 * strategy.num_replicas_in_sync\n\n"
        "s = connect()\nprint(batch(s))\nwith s.scope():\n    pass\n"
    )
    made = migrated(TF + text, tmp_path)[1]
    assert made == HEAD + KTE + (
        "def connect():\n    return kte.strategy_scope()\n\n"
        "def batch(strategy):\n    return 8 * strategy.num_replicas\n\n"
        "s = connect()\nprint(batch(s))\nwith s:\n    pass\n"
    )


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ("print(tpu.cluster_spec())\n", "uses `tpu.cluster_spec`"),
        ("if tpu:\n    batch = 8\n", "uses `if tpu: batch = 8`"),
        ("values = strategy.extended.value\n", "uses `strategy.extended`"),
        ("f = tf.distribute.TPUStrategy\n", "tf.distribute.TPUStrategy is used without a call"),
    ],
)
def test_all_stays_on_the_dropin_where_a_use_is_not_understood(more, why, tmp_path):
    report, made = migrated(TF + PLAIN + USE + more, tmp_path)
    assert any(why in line for line in found(report))
    assert PLAIN in made
    assert "with strategy.scope():" in made
    assert made.startswith("import keras_tpu_ext.dropin.old_program  # ")


def test_a_setup_that_does_more_stays(tmp_path):
    text = TWO_STEPS.replace("else:", "    policy = make_policy()\nelse:")
    report, made = migrated(TF + text + USE, tmp_path)
    assert any("kte.strategy_scope(), by the drop-in: line" in line for line in found(report)), found(report)
    assert "policy = make_policy()" in made


def test_a_strategy_that_a_function_makes_keeps_its_name_there(tmp_path):
    body = ONE_STEP.strip().replace("\n", "\n    ")
    made = migrated(
        TF + f"def start():\n    {body}\n    return strategy\n\nstrategy = start()\n"
        "print(strategy.num_replicas_in_sync)\n",
        tmp_path,
    )[1]
    assert "    strategy = kte.strategy_scope()\n    return strategy\n\nstrategy = start()\n" in made
    assert made.endswith("print(strategy.num_replicas)\n")


@pytest.mark.parametrize("text", [TF + TWO_STEPS + USE, TF + PLAIN + USE + "print(strategy.extended)\n"])
def test_what_was_written_is_read_again_and_stays(text, tmp_path):
    made = migrated(text, tmp_path)[1]
    assert migrated(made, tmp_path, "again.py")[1] == made
