"""How executions run on JAX: one program for all of them, buffers used again, and the same numbers at any length."""

from types import SimpleNamespace

import jax
import keras
import numpy as np
import pytest

import keras_tpu_ext as kte
import sources
from keras_tpu_ext._runtime.jax.batch import BATCH
from keras_tpu_ext._runtime.jax.data_adapter import first_execution
from keras_tpu_ext._runtime.jax.loop import CompiledLoop
from keras_tpu_ext._runtime.jax.update import step_variables

pytestmark = pytest.mark.runtimes("keras3_jax")


def data(rows=103):
    rng = np.random.default_rng(4)
    return rng.normal(size=(rows, 6)).astype("float32"), rng.normal(size=(rows, 1)).astype("float32")


def compiled(scope, steps=1, model_class=kte.TPUModel, **options):
    keras.utils.set_random_seed(3)
    with scope:
        inputs = keras.Input((6,))
        hidden = keras.layers.Dense(5, activation="tanh")(inputs)
        model = model_class(inputs, keras.layers.Dense(1)(hidden))
        model.compile(
            **{"optimizer": keras.optimizers.Adam(0.01), "loss": "mse", "metrics": ["mae"]} | options,
            steps_per_execution=steps,
        )
    return model


@pytest.fixture
def jitted(monkeypatch):
    """Return the jitted functions of every model that is trained: each knows how many programs it has."""
    made, original = [], CompiledLoop._compile

    def compile_and_keep(execution, *arguments):
        functions = original(execution, *arguments)
        made.extend(functions)
        return functions

    monkeypatch.setattr(CompiledLoop, "_compile", compile_and_keep)
    return made


class Compilations:
    """Within the block `count` is how many programs XLA compiles."""

    count = 0

    def __enter__(self):
        jax.monitoring.register_event_duration_secs_listener(self._heard)
        return self

    def __exit__(self, *error):
        jax.monitoring.unregister_event_duration_listener(self._heard)

    def _heard(self, event, seconds, **more):
        self.count += event == "/jax/core/compile/backend_compile_duration"


@pytest.mark.parametrize("steps", [1, 3])
def test_an_epoch_with_a_short_tail_is_one_program(scope8, jitted, steps):
    """Four batches of 32, 32, 32 and 7 rows; with three steps the last execution is short, too."""
    model = compiled(scope8, steps)
    x, y = data()
    model.fit(x, y, batch_size=32, epochs=1, shuffle=False, verbose=0)
    assert [function._cache_size() for function in jitted] == ([1, 0] if steps == 1 else [0, 1])
    with Compilations() as later:
        model.fit(x, y, batch_size=32, epochs=3, shuffle=False, verbose=0)
        model.fit(x[:71], y[:71], batch_size=32, verbose=0)  # another tail is no other program either
    assert later.count == 0


def test_what_counts_compilations_counts_them(scope8):
    with Compilations() as first:
        compiled(scope8).fit(*data(16), batch_size=8, verbose=0)
    assert first.count > 0


@pytest.mark.parametrize("method", ["evaluate", "predict"])
@pytest.mark.parametrize("steps", [1, 3])
def test_a_second_evaluate_or_predict_compiles_nothing(scope8, method, steps):
    model = compiled(scope8, steps)
    x, y = data()
    arguments = (x, y) if method == "evaluate" else (x,)
    getattr(model, method)(*arguments, batch_size=32, verbose=0)
    with Compilations() as later:
        getattr(model, method)(*arguments, batch_size=32, verbose=0)
    assert later.count == 0


@pytest.mark.parametrize("steps", [1, 3])
def test_the_state_before_an_execution_is_used_up(scope8, steps, monkeypatch):
    model = compiled(scope8, steps, loss_scale="dynamic", gradient_accumulation_steps=2)
    x, y = data(96)
    model.fit(x, y, batch_size=16, verbose=0)
    before, call = [], CompiledLoop.call

    def keeping(loop, state, group):
        steps, arguments = call(loop, state, group)
        before.extend(jax.tree.leaves(arguments[:2]))  # the state and our own
        return steps, arguments

    monkeypatch.setattr(CompiledLoop, "call", keeping)
    model.fit(x, y, batch_size=16, verbose=0)
    assert len(before) > len(step_variables(model._kte.state)) * 96 // 16 // steps
    assert all(array.is_deleted() for array in before)
    assert not any(variable.value.is_deleted() for variable in [*model.variables, *model.optimizer.variables])


def test_a_batch_of_the_users_own_arrays_is_not_used_up(scope8):
    x, y = (jax.numpy.asarray(array) for array in data(32))
    compiled(scope8).fit(x, y, batch_size=32, verbose=0)
    assert not x.is_deleted()
    assert not y.is_deleted()


@pytest.mark.parametrize(
    "source",
    ["arrays", *(pytest.param(source, marks=pytest.mark.exhaustive) for source in ("a dataset", "a generator"))],
)
def test_numbers_do_not_depend_on_the_length_of_executions(scope8, source):
    results = []
    for steps in (1, 4, "auto"):
        model = compiled(scope8, steps, loss_scale="dynamic")
        if steps == "auto":
            seconds = iter(range(10**6))
            model._kte.schedule._clock = lambda seconds=seconds: next(seconds) / 100
        histories = []
        for _ in range(3):
            x, y = data()
            if source == "a dataset":
                given = {"x": sources.Batches(sources.cut((x, y), 9))}
            elif source == "a generator":
                given = {"x": (batch for batch in sources.cut((x, y), 9)), "steps_per_epoch": 12}
            else:
                given = {"x": x, "y": y, "batch_size": 9}
            histories.append(model.fit(**given, shuffle=False, verbose=0).history)
        evaluated = model.evaluate(*data(), batch_size=9, verbose=0)
        predicted = model.predict(data()[0], batch_size=9, verbose=0)
        iterations = int(model.optimizer.iterations)
        results.append((histories, model.get_weights(), evaluated, predicted, iterations))
        if steps == "auto":
            assert model.steps_per_execution > 4
    expected, *others = results
    assert expected[-1] == 36
    for got in others:
        # Float32 in one compiled loop adds in another order than in programs of their own: 1e-7 of each sum.
        keras.tree.map_structure(lambda a, b: np.testing.assert_allclose(b, a, rtol=1e-5, atol=1e-6), expected, got)


def test_room_for_more_batches_changes_no_state_in_predict(scope8):
    """Five batches, with executions of four: in the second there are three that are none."""
    predicted = []
    for steps in (1, 4):
        model = compiled(scope8, steps)
        dropping = keras.Model(model.input, keras.layers.Dropout(0.5)(model.output, training=True))
        dropping.compile(steps_per_execution=steps)
        predicted.append([dropping.predict(data(40)[0], batch_size=8, verbose=0) for _ in range(2)])
    np.testing.assert_allclose(predicted[1], predicted[0], rtol=1e-5)


@pytest.mark.exhaustive
def test_eager_steps_are_the_same_steps(scope8):
    results = []
    for options in ({}, {"run_eagerly": True}, {"jit_compile": False}):
        model = compiled(scope8, 3, **options)
        x, y = data(40)
        history = model.fit(x, y, batch_size=16, shuffle=False, verbose=0).history
        results.append((history, model.get_weights(), model.predict(x, batch_size=16, verbose=0)))
    for got in results[1:]:
        keras.tree.map_structure(lambda a, b: np.testing.assert_allclose(b, a, rtol=1e-5, atol=1e-6), results[0], got)


@pytest.mark.parametrize(
    "options", [pytest.param({"run_eagerly": True}, marks=pytest.mark.exhaustive), {"jit_compile": False}]
)
def test_a_step_that_is_not_to_be_compiled_is_not(scope8, jitted, options):
    compiled(scope8, **options).fit(*data(16), batch_size=8, verbose=0)
    assert jitted == []


def centred(make):
    """Return a model whose user's code looks at a batch as a whole."""
    inputs = keras.Input((6,))
    return make(inputs, keras.layers.Lambda(lambda x: x - keras.ops.mean(x, axis=0))(inputs))


def test_code_of_the_users_own_sees_the_examples_of_a_batch_and_no_other_row(scope8):
    """With room for three batches in an execution, of which the last has one; and 7 rows for 8 devices."""
    x, _ = data(16 * 3 + 7)
    with scope8:
        model = centred(kte.TPUModel)
        model.compile(steps_per_execution=3)
    got = model.predict(x, batch_size=16, verbose=0)
    expected = np.concatenate([part - part.mean(axis=0) for part in np.split(x, [16, 32, 48])])
    np.testing.assert_allclose(got, expected, atol=1e-6)


class WithASecondOptimizer(kte.TPUModel):
    """Counts its steps with an optimizer that it was not compiled with."""

    def train_step(self, state, data):
        logs, state = super().train_step(state, data)
        self.second.iterations.assign(self.second.iterations + 1)
        return logs, state


@pytest.mark.parametrize("steps", [1, 3])
def test_an_optimizer_that_is_an_attribute_of_the_model_is_carried_from_step_to_step(scope8, steps):
    model = compiled(scope8, steps, WithASecondOptimizer)
    with scope8:
        model.second = keras.optimizers.SGD(0.1)
    model.fit(*data(), batch_size=32, verbose=0)
    assert int(model.second.iterations.value) == 4


def test_nothing_of_a_batch_outlives_its_step(scope8):
    model = compiled(scope8)
    model.fit(*data(), batch_size=32, verbose=0)
    assert (BATCH.examples, BATCH.valid) == (None, None)
    with pytest.raises(Exception, match="incompatible with the layer"):
        model.fit(np.ones((8, 7)), np.ones((8, 1)), verbose=0)
    assert (BATCH.examples, BATCH.valid) == (None, None)


def test_keras_builds_a_model_from_64_bit_data_as_jax_will_have_them():
    """JAX 0.12 warns of a shape of int64, and Keras asks for one with each dtype that it is given."""
    x, y = np.zeros((4, 6), "float64"), np.zeros(4, "int64")
    adapter = SimpleNamespace(get_numpy_iterator=lambda: iter([(x, y, None)]))
    read = []
    ((*_, batches),) = first_execution(adapter, read)
    shown = next(batches)
    assert [(leaf.shape, str(leaf.dtype)) for leaf in shown[:2]] == [((4, 6), "float32"), ((4,), "int32")]
    assert (shown[2], read[0][1].dtype) == (None, np.int64)  # what is trained on is as it was
