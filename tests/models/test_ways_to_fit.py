"""Ways in which kernels call `fit`: a plain model in a scope of eight does what it does on one device."""

import contextlib
import gc
import resource

import keras
import numpy as np
import pytest

import sources
from closeness import assert_close
from kind_of_keras import IS_KERAS2

pytestmark = pytest.mark.exhaustive
KERAS3 = pytest.mark.runtimes("keras3_tf", "keras3_jax", reason="Keras 2 has it not")
WITH_TF = pytest.mark.skipif(not sources.HAS_TF_DATA, reason="tf.data is not installed")


def model(block, optimizer=lambda: keras.optimizers.Adam(0.05)):
    with block:
        keras.utils.set_random_seed(3)
        built = keras.Sequential(
            [keras.layers.InputLayer((6,)), keras.layers.Dense(8, activation="tanh"), keras.layers.Dense(1)]
        )
        built.compile(optimizer(), "mse", metrics=["mae"])
    return built


def fit(built, *data, **options):
    return built.fit(*data, **{"shuffle": False, "verbose": 0, "batch_size": 32, **options}).history


def numbered(parts):
    """Return the numbers of several histories, and of arrays, by name."""
    numbers = {}
    for place, part in enumerate(parts):
        named = part if isinstance(part, dict) else {"values": part}
        numbers |= {f"{place} {name}": np.asarray(values, "float64") for name, values in named.items()}
    return numbers


def callbacks(block, data, folder):
    """All callbacks that write or change something, in one fit."""
    built = model(block, lambda: keras.optimizers.SGD(0.05))
    best, log = folder / "best.keras", folder / "log.csv"
    used = [
        keras.callbacks.LearningRateScheduler(lambda epoch, rate: rate * 0.9),
        keras.callbacks.ReduceLROnPlateau(patience=1, factor=0.5),
        keras.callbacks.EarlyStopping(patience=2, restore_best_weights=True),
        keras.callbacks.ModelCheckpoint(str(best), save_best_only=True),
        keras.callbacks.BackupAndRestore(str(folder / "backup")),
        keras.callbacks.CSVLogger(str(log)),
        keras.callbacks.TerminateOnNaN(),
        keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: logs.update(twice=2 * logs["loss"])),
    ]
    history = fit(built, data.x, data.y, epochs=5, validation_data=(data.x[:75], -data.y[:75]), callbacks=used)
    rows = [line.split(",") for line in log.read_text().splitlines()[1:]]
    loaded = keras.models.load_model(str(best))
    return history, np.array(rows, "float64"), loaded.predict(data.x, verbose=0), *built.get_weights()


def averages(block, data, folder):
    built = model(block, lambda: keras.optimizers.SGD(0.05, use_ema=True, ema_momentum=0.9))
    swap = keras.callbacks.SwapEMAWeights(swap_on_epoch=True)
    history = fit(built, data.x, data.y, epochs=3, validation_data=(data.x[:75], data.y[:75]), callbacks=[swap])
    return history, *built.get_weights()


def steps_of_an_endless_source(block, data, folder):
    built = model(block)
    batches = sources.endless((data.x, data.y), 32)
    return fit(built, batches, batch_size=None, epochs=3, steps_per_epoch=3), *built.get_weights()


def later_epochs(block, data, folder):
    built = model(block)
    options = {"validation_data": (data.x[:75], data.y[:75]), "validation_freq": 2}
    return (
        fit(built, data.x, data.y, epochs=2, **options),
        fit(built, data.x, data.y, epochs=5, initial_epoch=2, **options),
        *built.get_weights(),
    )


def validation_split(block, data, folder):
    built = model(block)
    history = fit(built, data.x, data.y, epochs=2, validation_split=0.3, sample_weight=np.linspace(0, 2, len(data.x)))
    return history, *built.get_weights()


def workers(block, data, folder):
    batches = sources.Batches(sources.cut((data.x, data.y), 32))
    if not IS_KERAS2 and not isinstance(block, contextlib.nullcontext):
        # Without a scope Keras may train on some of them twice: see test_py_dataset_workers.py.
        batches._workers, batches._max_queue_size = 2, 4
    built = model(block)
    return fit(built, batches, batch_size=None, epochs=2), *built.get_weights()


def a_generator(block, data, folder):
    built = model(block)
    batches = (batch for batch in sources.cut((data.x, data.y), 32))
    return fit(built, batches, batch_size=None), *built.get_weights()


def another_rate(block, data, folder):
    built = model(block, lambda: keras.optimizers.SGD(0.1))
    first = fit(built, data.x, data.y)
    built.optimizer.learning_rate = 0.01
    second = fit(built, data.x, data.y)
    with block:
        built.compile(keras.optimizers.Adam(0.01), "mae")
    return first, second, fit(built, data.x, data.y), *built.get_weights()


class Stops(keras.callbacks.Callback):
    def __init__(self, error):
        super().__init__()
        self._error = error

    def on_train_batch_end(self, batch, logs=None):
        if batch == 1:
            raise self._error("here")


def interrupted_by(error):
    def interrupted(block, data, folder):
        built = model(block)
        with pytest.raises(error, match="here"):
            fit(built, data.x, data.y, callbacks=[Stops(error)])
        return fit(built, data.x, data.y, epochs=2), *built.get_weights()

    return interrupted


def by_name(block, data, folder):
    """Inputs, targets and losses in dicts, and an input that is a column of words."""
    with block:
        keras.utils.set_random_seed(3)
        inputs = {"numbers": keras.Input((6,), name="numbers"), "kind": keras.Input((1,), dtype="int32", name="kind")}
        kind = keras.layers.Flatten()(keras.layers.Embedding(5, 3)(inputs["kind"]))
        hidden = keras.layers.Dense(8, activation="tanh")(keras.layers.Concatenate()([inputs["numbers"], kind]))
        outputs = {
            "value": keras.layers.Dense(1, name="value")(hidden),
            "sign": keras.layers.Dense(1, activation="sigmoid", name="sign")(hidden),
        }
        built = keras.Model(inputs, outputs)
        losses = {"value": "mse", "sign": "binary_crossentropy"}
        built.compile(keras.optimizers.Adam(0.05), losses, loss_weights={"value": 0.5, "sign": 2.0})
    x = {"numbers": data.x, "kind": np.arange(len(data.x), dtype="int32")[:, None] % 5}
    y = {"value": data.y, "sign": (data.y > 0).astype("float32")}
    history = fit(built, x, y, epochs=2)
    return history, built.predict(x, batch_size=50, verbose=0), *built.get_weights()


def low_rank(block, data, folder):
    built = model(block)
    first = fit(built, data.x, data.y)
    with block:
        keras.utils.set_random_seed(4)
        built.layers[0].enable_lora(2)
        built.compile(keras.optimizers.Adam(0.05), "mse")
    return first, fit(built, data.x, data.y, epochs=2), *built.get_weights()


def quantized(block, data, folder):
    with block:
        keras.utils.set_random_seed(3)
        inputs = keras.Input((6,))
        hidden = keras.layers.Dense(8, activation="tanh")(inputs)
        built = keras.Model(inputs, keras.layers.Dense(1)(hidden))
        built.compile(keras.optimizers.Adam(0.05), "mse")
    first = fit(built, data.x, data.y)
    built.quantize("int8", filters=lambda layer: isinstance(layer, keras.layers.Dense))
    return first, built.predict(data.x, batch_size=50, verbose=0)


def a_recurrent_network(block, data, folder):
    lengths = np.arange(len(data.x)) % 6 + 1
    x = np.where(np.arange(6) < lengths[:, None], data.x, 0.0)[:, :, None]
    with block:
        keras.utils.set_random_seed(3)
        layers = [
            keras.layers.InputLayer((6, 1)),
            keras.layers.Masking(),
            keras.layers.Bidirectional(keras.layers.LSTM(4)),
        ]
        built = keras.Sequential([*layers, keras.layers.Dense(1)])
        built.compile(keras.optimizers.Adam(0.05), "mse")
    return fit(built, x, data.y, epochs=2), built.predict(x, batch_size=50, verbose=0)


WAYS = [
    callbacks,
    pytest.param(averages, marks=KERAS3),
    steps_of_an_endless_source,
    later_epochs,
    validation_split,
    workers,
    pytest.param(a_generator, marks=pytest.mark.filterwarnings("ignore:Your input ran out of data")),
    another_rate,
    interrupted_by(RuntimeError),
    interrupted_by(KeyboardInterrupt),
    by_name,
    pytest.param(low_rank, marks=KERAS3),
    pytest.param(quantized, marks=[KERAS3, pytest.mark.filterwarnings("ignore:.*have a `quantize` method")]),
    a_recurrent_network,
]


@pytest.mark.parametrize("way", WAYS)
def test_it_is_that_of_one_device(scope8, data, tmp_path, way):
    numbers = []
    for name, block in (("scope", scope8), ("plain", contextlib.nullcontext())):
        folder = tmp_path / name
        folder.mkdir()
        numbers.append(numbered(way(block, data, folder)))
    got, expected = numbers
    assert got.keys() == expected.keys()
    for name, values in expected.items():
        assert np.isfinite(values).all()
        assert_close(got[name], values, 1e-4 if way is quantized else 1e-5, message=name)


def test_fifty_epochs_need_no_more_memory_than_ten(scope8, data):
    built = model(scope8)
    fit(built, data.x, data.y, epochs=10)
    gc.collect()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for _ in range(4):
        fit(built, data.x, data.y, epochs=10)
    gc.collect()
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert grown < 40 * 1024, f"{grown / 1024:.0f} MiB"
