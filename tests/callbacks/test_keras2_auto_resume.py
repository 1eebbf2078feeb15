"""What `AutoResume` meets on Keras 2 only; see test_auto_resume.py for the rest."""

import importlib.util
import time

import numpy as np
import pytest
import tensorflow as tf

import keras_tpu_ext as kte
from keras_tpu_ext.errors import ArgumentError, CheckpointError, ResumeWarning
from kind_of_keras import keras
from small_fits import Killed, KilledAt

pytestmark = [pytest.mark.runtimes("keras2_tf"), pytest.mark.gate_on("keras2_tf221")]
LATER = pytest.mark.exhaustive
HAS_ADDONS = importlib.util.find_spec("tensorflow_addons") is not None
X = np.random.default_rng(0).normal(size=(90, 4)).astype("float32")
Y = (X.sum(axis=1) > 0).astype("int64")
BATCH, BATCHES, EPOCHS = 16, 6, 3


@pytest.fixture
def layers_that_tell_their_state():
    keras.backend.experimental.enable_tf_random_generator()
    yield
    keras.backend.experimental.disable_tf_random_generator()


class Slow(keras.callbacks.Callback):
    """Trains and validates for so long that the thread of the workers of Keras 2 ends the epoch on its own."""

    def on_train_batch_begin(self, batch, logs=None):
        time.sleep(0.1)

    def on_test_end(self, logs=None):
        time.sleep(0.5)


def arrays():
    return {"x": X, "y": Y, "batch_size": BATCH}


def batches_of_other_lengths():
    class Batches(keras.utils.PyDataset):
        def __len__(self):
            return BATCHES

        def __getitem__(self, index):
            rows = slice(index * BATCH, (index + 1) * BATCH)
            return X[rows], Y[rows]

    return {"x": kte.data.pad_batches(Batches(), BATCH)}


def model(optimizer="adam", replicas=2, **options):
    with kte.strategy_scope(require="cpu", replicas=replicas):
        made = keras.Sequential([keras.Input((4,)), keras.layers.Dense(8, activation="relu")])
        made.add(keras.layers.Dropout(0.3))
        made.add(keras.layers.Dense(2))
        optimizer = optimizer if isinstance(optimizer, str) else optimizer()
        made.compile(optimizer, keras.losses.SparseCategoricalCrossentropy(from_logits=True), ["acc"], **options)
    return made


def unbuilt():
    class Subclassed(keras.Model):
        def __init__(self):
            super().__init__()
            self.hidden, self.out = keras.layers.Dense(8, activation="relu"), keras.layers.Dense(2)

        def call(self, inputs):
            return self.out(self.hidden(inputs))

    with kte.strategy_scope(require="cpu", replicas=2):
        made = Subclassed()
        made.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["acc"])
    return made


def averaging():
    tfa = kte.addons.tfa
    return tfa.optimizers.MovingAverage(tfa.optimizers.AdamW(1e-3, 0.01))


def scaling():
    return keras.mixed_precision.LossScaleOptimizer(keras.optimizers.SGD(0.01), initial_scale=2.0**40)


MODELS = {
    "an optimizer of Keras": model,
    "a legacy optimizer": lambda: model(lambda: keras.optimizers.legacy.Adam(0.01)),
    "a loss scale": lambda: model(scaling),
    "a subclassed model": unbuilt,
    "of TensorFlow Addons": lambda: model(averaging),
}
DATA = {
    "arrays": arrays,
    "class_weight": lambda: {**arrays(), "class_weight": {0: 1.0, 1: 3.0}},
    "padded batches": batches_of_other_lengths,
}


def shuffled_rows():
    class Shuffled(keras.utils.PyDataset):
        rows = np.arange(len(X))

        def __len__(self):
            return BATCHES

        def __getitem__(self, index):
            rows = self.rows[index * BATCH : (index + 1) * BATCH]
            return X[rows], Y[rows]

        def on_epoch_end(self):
            self.rows = np.random.permutation(self.rows)

    return {"x": Shuffled(), "workers": 2, "validation_data": (X, Y)}


def trained(directory, made=model, data=arrays, killed_at=None, others=()):
    keras.utils.set_random_seed(3)
    resume = [] if directory is None else [kte.callbacks.AutoResume(directory, every_s=0)]
    here = made()
    try:
        history = here.fit(**data(), epochs=EPOCHS, verbose=0, callbacks=[*resume, *others, KilledAt(killed_at)])
    except Killed:
        return None
    return [value.tobytes() for value in here.get_weights()], history.history


def check_goes_on(tmp_path, *kills, stock=True, **options):
    expected = trained(None if stock else tmp_path / "whole", **options)
    for kill in kills:
        assert trained(tmp_path / "resumed", killed_at=kill, **options) is None
    assert trained(tmp_path / "resumed", **options) == expected


@pytest.mark.usefixtures("layers_that_tell_their_state")
@pytest.mark.parametrize(
    "name", [name if name == "a legacy optimizer" else pytest.param(name, marks=LATER) for name in MODELS]
)
def test_models(name, tmp_path):
    if "Addons" in name and not HAS_ADDONS:
        pytest.skip("TensorFlow Addons is not here")
    check_goes_on(tmp_path, 8, 3, made=MODELS[name])


@LATER
@pytest.mark.usefixtures("layers_that_tell_their_state")
@pytest.mark.parametrize("name", DATA)
def test_data(name, tmp_path):
    check_goes_on(tmp_path, 5, 4, data=DATA[name])


@LATER
@pytest.mark.usefixtures("layers_that_tell_their_state")
@pytest.mark.parametrize("kills", [(10, 2), (5,)], ids=["at the begin of an epoch", "before its last batch"])
def test_workers_beside_slow_steps_and_validation(kills, tmp_path):
    """Keras 2 draws the order in a thread, once more where an epoch ends slowly: that of stock is by chance."""
    check_goes_on(tmp_path, *kills, data=shuffled_rows, stock=False, others=[Slow()])


class OwnStep(kte.TPUModel):
    """Makes the variables of its optimizer in its first step, and has no `call`."""

    def __init__(self):
        super().__init__()
        self.inner = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
        self.own = keras.optimizers.Adam(0.01)
        self.mean = keras.metrics.Mean(name="loss")

    @property
    def metrics(self):
        return [self.mean]

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((self.inner(x)[:, 0] - tf.cast(y, tf.float32)) ** 2) / 2
        weights = self.inner.trainable_variables
        self.own.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))
        self.mean.update_state(loss)
        return {"loss": self.mean.result()}


def own_step(is_built):
    with kte.strategy_scope(require="cpu", replicas=2):
        made = OwnStep()
        made.compile()
        if is_built:
            made.own.build(made.inner.trainable_variables)
    return made


@LATER
@pytest.mark.filterwarnings("ignore::keras_tpu_ext.errors.CustomStepWarning")
def test_a_train_step_of_its_own(tmp_path):
    expected = trained(None, made=lambda: own_step(is_built=True))
    assert trained(tmp_path / "built", killed_at=8, made=lambda: own_step(is_built=True)) is None
    assert trained(tmp_path / "built", made=lambda: own_step(is_built=True)) == expected
    assert trained(tmp_path / "not built", killed_at=8, made=lambda: own_step(is_built=False)) is None
    with pytest.raises(CheckpointError, match=r"Build the model and its optimizers before fit, such as self\.opt"):
        trained(tmp_path / "not built", made=lambda: own_step(is_built=False))


@LATER
@pytest.mark.usefixtures("layers_that_tell_their_state")
def test_random_numbers_of_replicas_are_not_for_another_number(tmp_path):
    assert trained(tmp_path, killed_at=8) is None
    with pytest.raises(CheckpointError, match=r"drew random numbers on 2 replicas, .*here are 4\. .*replicas=2"):
        trained(tmp_path, made=lambda: model(replicas=4))


def test_layers_that_do_not_tell_their_state_are_told(tmp_path):
    with pytest.warns(
        ResumeWarning, match=r"random numbers of dropout\w*\. .*write .*enable_tf_random_generator\(\)"
    ):
        trained(tmp_path)


def test_a_distributed_dataset_is_refused(tmp_path):
    made = model()
    dataset = tf.data.Dataset.from_tensor_slices((X, Y)).batch(BATCH)
    distributed = made.distribute_strategy.experimental_distribute_dataset(dataset)
    with pytest.raises(ArgumentError, match=r"fit got a DistributedDataset\. Write model\.fit\(dataset\)"):
        made.fit(distributed, steps_per_epoch=2, verbose=0, callbacks=[kte.callbacks.AutoResume(tmp_path)])
