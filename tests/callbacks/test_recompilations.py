import json
import sys

import keras
import numpy as np
import pytest

import keras_tpu_ext as kte
import sources

pytestmark = [pytest.mark.gate_on("keras3_tf", "keras3_jax", "keras2_tf221")]

ROWS = "Give every batch 8 rows: kte.data.pad_batches(dataset, 8), or dataset.batch(8, drop_remainder=True)"


class Augment(keras.layers.Layer):
    """Adds a Python number, which is in the program as it was when the step was traced."""

    def __init__(self, strength=0.1, **kwargs):
        super().__init__(**kwargs)
        self.strength = strength

    def call(self, inputs):
        return inputs + self.strength


def batches(rows, dtype="float32", length=4, count=2):
    """Return batches of exactly so many rows, which `tf.data` knows."""
    x = np.arange(rows * count * length * 2).reshape(-1, length, 2).astype(dtype)
    y = np.ones((rows * count, 1), "float32")
    return sources.batched((x, y), rows, drop_remainder=True)


@pytest.fixture(params=["plain", "in a scope"])
def model(request):
    def build():
        layers = [Augment(name="augment"), keras.layers.GlobalAveragePooling1D(), keras.layers.Dense(1)]
        made = keras.Sequential([keras.Input((None, 2)), *layers])
        made.compile(keras.optimizers.SGD(1e-6), "mse")
        return made

    if request.param == "plain":
        return build()
    with kte.strategy_scope(require="cpu", replicas=2):
        return build()


def fit(model, callback, *more, rows=8, epochs=1, **options):
    data = batches(rows, **options)
    return model.fit(data, epochs=epochs, verbose=0, shuffle=False, callbacks=[callback, *more]).history


def ignoring():
    return kte.callbacks.Recompilations(on_recompile="ignore")


def again(callback):
    return [(one.step, one.epoch, one.batch, one.reason) for one in callback.report().recompilations]


def test_equal_batches_are_compiled_once(model):
    callback = kte.callbacks.Recompilations(on_recompile="raise")
    history = fit(model, callback, epochs=3, count=4)
    assert history["recompilations/count"] == [0, 0, 0]
    assert history["recompilations/seconds"] == [0, 0, 0]
    report = callback.report()
    assert report.ok
    (first,) = report.compilations
    assert (first.step, first.epoch, first.batch, first.reason) == ("train", 0, 0, "")
    assert first.seconds > 0.01
    fit(model, callback)
    assert callback.report().compilations == ()


def test_another_number_of_rows_is_named(model):
    callback = ignoring()
    fit(model, callback)
    fit(model, callback)
    assert again(callback) == []
    for rows in (6, 4):  # TensorFlow's first graph is for 8, its second for any number
        fit(model, callback, rows=rows)
        if again(callback):
            break
    assert again(callback) == [("train", 0, 0, f"x, y: rows 8 to {rows}")]
    assert callback.report().recompilations[0].cure == ROWS
    assert callback.report().seconds > 0.01


def test_another_length_is_named(model):
    callback = ignoring()
    fit(model, callback)
    fit(model, callback, length=7)
    assert again(callback) == [("train", 0, 0, "x: axis 1 4 to 7")]


def test_another_dtype_is_named(model):
    callback = ignoring()
    fit(model, callback)
    history = fit(model, callback, dtype="int32")
    assert again(callback) == [("train", 0, 0, "x: dtype float32 to int32")]
    assert history["recompilations/count"] == [1]
    assert history["recompilations/seconds"][0] == pytest.approx(callback.report().seconds, rel=0.5)


class Changes(keras.callbacks.Callback):
    """Has the step traced again before the second epoch, perhaps with another constant."""

    def __init__(self, strength, *, clears=True):
        super().__init__()
        self.strength, self.clears = strength, clears

    def on_epoch_begin(self, epoch, logs=None):
        if epoch == 1:
            self.model.get_layer("augment").strength = self.strength
            function = self.model.make_train_function(force=True)
            if function is not None:  # Keras 2
                self.model.train_function = function
            if "jax" in sys.modules and self.clears:
                sys.modules["jax"].clear_caches()  # else it finds the program of the same method of a plain model


def test_another_python_constant_is_named(model):
    callback = ignoring()
    history = fit(model, callback, Changes(0.2), epochs=2)
    assert again(callback) == [("train", 1, 0, "a Python constant changed: augment.strength 0.1 to 0.2")]
    (found,) = callback.report().recompilations
    assert "Make it a variable" in found.cure
    assert found.seconds > 0.01
    assert history["recompilations/count"] == [0, 1]


@pytest.mark.runtimes("keras3_jax")
def test_a_function_that_is_made_again_but_finds_its_program_does_not_count(model):
    callback = ignoring()
    fit(model, callback, Changes(0.2, clears=False), epochs=2)
    assert callback.report().count == int(hasattr(model, "_kte"))  # the exact step is a new function each time


def test_a_step_that_is_made_again_for_nothing_is_told(model):
    callback = ignoring()
    fit(model, callback, Changes(0.1), epochs=2)
    ((_, epoch, _, reason),) = again(callback)
    assert (epoch, reason) == (1, "the function of the step was made again, for equal batches and constants")


class Counts(keras.callbacks.Callback):
    """Counts the executions after which the step is still intercepted."""

    intercepted = 0

    def on_train_batch_end(self, batch, logs=None):
        self.intercepted += hasattr(self.model.train_function, "by")


class ChangesWithin(Counts):
    """Has the step traced again in the middle of an epoch."""

    def on_train_batch_begin(self, batch, logs=None):
        if batch == 50:
            self.model.get_layer("augment").strength += 1.0
            function = self.model.make_train_function(force=True)
            if function is not None:  # Keras 2
                self.model.train_function = function


@pytest.mark.runtimes("keras3_tf", "keras2_tf", reason="on JAX each execution may be compiled")
def test_a_graph_is_watched_as_an_epoch_begins_and_where_it_is_made_again(model):
    callback, changes = ignoring(), ChangesWithin()
    fit(model, changes, callback, rows=1, count=60)
    reason = "a Python constant changed: augment.strength 0.1 to 1.1"
    assert again(callback) == [("train", 0, 50, reason)]
    assert 0 < changes.intercepted < 25


class MakesItsOwn(keras.Sequential):
    """Its step may compile in any execution."""

    def make_train_function(self, force=False):
        return super().make_train_function(force)


@pytest.mark.parametrize(("kind", "options"), [(MakesItsOwn, {}), (keras.Sequential, {"run_eagerly": True})])
def test_a_step_that_need_not_be_one_graph_is_watched_all_the_time(kind, options):
    model = kind([keras.Input((None, 2)), keras.layers.GlobalAveragePooling1D(), keras.layers.Dense(1)])
    model.compile("sgd", "mse", **options)
    counts = Counts()
    fit(model, ignoring(), counts, rows=1, count=60)
    assert counts.intercepted == 60


def test_it_raises_after_the_execution_that_was_compiled_again(model):
    callback = kte.callbacks.Recompilations(on_recompile="raise")
    fit(model, callback)
    before = model.train_function
    with pytest.raises(kte.errors.RecompilationError) as raised:
        fit(model, callback, dtype="int32", count=4)
    assert str(raised.value).startswith(
        "Recompilations: the train step was compiled again in epoch 1 at batch 0, in "
    )
    assert str(raised.value).endswith(" s: x: dtype float32 to int32. Cast the data to one dtype before fit")
    assert model.train_function is before
    fit(model, callback, dtype="int32")  # the model is as it was
    assert callback.report().ok


def test_it_warns(model):
    callback = kte.callbacks.Recompilations()
    fit(model, callback)
    with pytest.warns(UserWarning, match="compiled again in epoch 1 at batch 0, in .* x: dtype float32 to int32"):
        fit(model, callback, dtype="int32")


@pytest.mark.runtimes("keras3_jax")
def test_a_short_last_batch_is_told_once(model):
    x = np.ones((21, 4, 2), "float32")
    callback = ignoring()
    history = model.fit(
        x,
        x[:, :1, 0],
        batch_size=8,
        epochs=2,
        verbose=0,
        validation_data=(x[:19], x[:19, :1, 0]),
        validation_batch_size=8,
        callbacks=[callback],
    ).history
    in_scope = type(model).__module__.startswith("keras_tpu_ext") or hasattr(model, "_kte")
    expected = [("train", 0, 2, "x, y: rows 8 to 5"), ("test", 0, 2, "x, y: rows 8 to 3")]
    assert again(callback) == ([] if in_scope else expected)  # the exact step pads
    assert history["recompilations/count"] == [0 if in_scope else 2] * 2


@pytest.mark.runtimes("keras3_jax")
def test_what_the_data_compile_does_not_count(model):
    import jax

    class Sorted(sources.Batches):
        def __getitem__(self, index):
            jax.numpy.sort(jax.numpy.arange(1000.0 + index))  # a program for each batch, in the thread of fit
            return super().__getitem__(index)

    x = np.ones((8, 4, 2), "float32")
    callback = kte.callbacks.Recompilations(on_recompile="raise")
    model.fit(Sorted([(x, x[:, 0, :1])] * 4), verbose=0, callbacks=[callback])
    assert callback.report().ok


@pytest.mark.runtimes("keras3_tf")
@pytest.mark.parametrize("rows", [21, 24])
def test_a_short_last_batch_is_found_under_xla(rows):
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse", jit_compile=True)
    x = np.ones((rows, 4), "float32")
    callback = ignoring()
    options = {"batch_size": 8, "verbose": 0, "validation_data": (x, x[:, :1]), "validation_batch_size": 8}
    history = model.fit(x, x[:, :1], epochs=2, callbacks=[callback], **options).history
    told = [("train", 0, 2, "x, y: rows 8 to 5"), ("test", 0, 2, "x, y: rows 8 to 5")]
    assert again(callback) == (told if rows == 21 else [])
    assert history["recompilations/count"] == ([2, 2] if rows == 21 else [0, 0])
    assert rows == 24 or callback.report().seconds > 0.01


def test_a_model_that_is_compiled_before_fit_begins_anew(model):
    callback = kte.callbacks.Recompilations(on_recompile="raise")
    fit(model, callback)
    model.compile("sgd", "mae")
    fit(model, callback, dtype="int32")
    assert len(callback.report().compilations) == 1


@pytest.mark.parametrize("what", ["train", "evaluate"])
def test_it_leaves_the_model_as_it_was(model, what):
    fit(model, ignoring())
    name = f"{'train' if what == 'train' else 'test'}_function"
    before = getattr(model, name)
    fit(model, ignoring())
    assert getattr(model, name) is before
    model.evaluate(batches(8), verbose=0, callbacks=[ignoring()])


def test_report_and_repr():
    callback = kte.callbacks.Recompilations()
    assert repr(callback) == 'Recompilations(on_recompile="warn")'
    with pytest.raises(kte.errors.NothingMeasuredError, match="nothing measured yet"):
        callback.report()
    with pytest.raises(kte.errors.ArgumentError, match='Recompilations: `on_recompile` must be "warn", "raise" or'):
        kte.callbacks.Recompilations(on_recompile="stop")


def test_the_report_reads_well():
    first = kte.callbacks.Compilation("train", 0, 0, 4.0)
    second = kte.callbacks.Compilation("test", 1, 390, 3.25, "x: rows 8 to 5", "Give every batch 8 rows")
    report = kte.callbacks.RecompilationsReport((first, second))
    assert not report.ok
    assert json.loads(json.dumps(report.to_dict()))["count"] == 1
    assert str(report) == (
        "2 compilations in 7.25 s, 1 of them again, in 3.25 s\n"
        "- the train step was compiled in epoch 1 at batch 0, in 4 s\n"
        "- the evaluate step was compiled again in epoch 2 at batch 390, in 3.25 s: x: rows 8 to 5. "
        "Give every batch 8 rows"
    )
    assert "3.25 s: x: rows 8 to 5" in report._repr_html_()


def test_the_report_counts_the_cache():
    report = kte.callbacks.RecompilationsReport((), 3, 1, 12.34)
    assert str(report).splitlines()[-1] == "compile cache: hits: 3, misses: 1, 12.3 s of compiling saved"
    assert report.to_dict()["cache_seconds_saved"] == 12.34
    assert "cache" not in str(kte.callbacks.RecompilationsReport(()))
