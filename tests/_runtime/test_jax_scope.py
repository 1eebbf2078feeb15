"""What a block does to Keras's distribution, and which models keep theirs after it."""

import dataclasses
import threading

import jax
import keras
import numpy as np
import pytest
from keras.src.models.model import Trainer

import keras_tpu_ext as kte
from keras_tpu_ext import _runtime
from keras_tpu_ext._runtime.jax import scope as _jax_scope
from keras_tpu_ext.errors import ArgumentError, ScopeError

pytestmark = pytest.mark.runtimes("keras3_jax")

X, Y = np.ones((16, 3), "float32"), np.ones((16, 1), "float32")


@pytest.fixture
def scope8(scope8):
    """Leave the step of plain models to Keras: the others keep their scope by themselves."""
    return dataclasses.replace(scope8, exact=False)


def functional(model_class=keras.Model):
    inputs = keras.Input((3,))
    return model_class(inputs, keras.layers.Dense(1)(inputs))


def sequential():
    return keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])


class Subclassed(keras.Model):
    def __init__(self):
        super().__init__()
        self.dense = keras.layers.Dense(1)

    def call(self, x):
        return self.dense(x)


KINDS = {
    "functional": functional,
    "sequential": sequential,
    "unbuilt sequential": lambda: keras.Sequential([keras.layers.Dense(1)]),
    "subclassed": Subclassed,
    "TPUModel": lambda: functional(kte.TPUModel),
}


def fit(model, **options):
    return model.fit(X, Y, batch_size=16, shuffle=False, verbose=0, **options).history["loss"]


def devices_of(model):
    """Return on how many devices each variable lies, those of the optimizer too."""
    return {len(variable.value.sharding.device_set) for variable in [*model.variables, *model.optimizer.variables]}


# -- the distribution -----------------------------------------------------------------------------------------


def test_a_distribution_of_the_users_own_is_there_again_after_the_block(scope8):
    own = keras.distribution.DataParallel(devices=["cpu:0", "cpu:1"], auto_shard_dataset=False)
    keras.distribution.set_distribution(own)
    try:
        with scope8:
            assert keras.distribution.distribution() is scope8.strategy
        assert keras.distribution.distribution() is own
        with pytest.raises(KeyError), scope8:
            raise KeyError
        assert keras.distribution.distribution() is own
    finally:
        keras.distribution.set_distribution(None)


def test_without_one_there_is_none_afterwards_also_after_an_error(scope8):
    with scope8:
        pass
    assert keras.distribution.distribution() is None
    with pytest.raises(KeyError), scope8:
        raise KeyError
    assert keras.distribution.distribution() is None


@pytest.mark.parametrize("model_class", [keras.Model, kte.TPUModel])
def test_training_leaves_the_distribution_of_the_moment_alone(scope8, model_class):
    with scope8:
        model = functional(model_class)
        model.compile("sgd", "mse")
    own = keras.distribution.DataParallel(devices=["cpu:0", "cpu:1"], auto_shard_dataset=False)
    keras.distribution.set_distribution(own)
    try:
        fit(model)
        assert keras.distribution.distribution() is own
        with pytest.raises(Exception, match="nothing of the kind"):
            fit(model, callbacks=[Fails()])
        assert keras.distribution.distribution() is own
    finally:
        keras.distribution.set_distribution(None)


class Fails(keras.callbacks.Callback):
    def on_epoch_begin(self, epoch, logs=None):
        raise RuntimeError("nothing of the kind")


def test_keras_is_left_as_it_was(scope8):
    stock = Trainer.__init__
    with scope8:
        assert Trainer.__init__ is not stock
        with scope8:
            assert Trainer.__init__ is not stock
        assert Trainer.__init__ is not stock
    assert Trainer.__init__ is stock
    with pytest.raises(KeyError), scope8:
        raise KeyError
    assert Trainer.__init__ is stock


# -- models ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_a_model_built_inside_trains_distributed_after_the_block(scope8, kind):
    with scope8:
        model = KINDS[kind]()
        model.compile(keras.optimizers.Adam(0.01), "mse", metrics=["mae"])
    assert _runtime.devices.num_replicas(model) == 8
    first, second = fit(model, epochs=2)
    assert second < first
    assert devices_of(model) == {8}
    assert fit(model) < [second]  # a second fit goes on
    assert devices_of(model) == {8}
    single = [model.train_on_batch(X, Y), model.test_on_batch(X, Y), model.predict_on_batch(X)]
    assert np.isfinite(np.concatenate([np.ravel(value) for value in single])).all()
    assert model.evaluate(X, Y, batch_size=16, verbose=0)
    assert model.predict(X, batch_size=16, verbose=0).shape == (16, 1)
    assert devices_of(model) == {8}
    assert keras.distribution.distribution() is None


def rows_on_a_device(scope, model_class=keras.Model):
    """Return how the rows of a batch are shared, in a model that was built in a block and trains after it."""
    with scope:
        model = functional(model_class)
        model.compile("sgd", "mse")
    model.make_train_function()
    original, rows = model.train_function, set()

    def looking(state, batches):
        batches = list(batches)
        x = jax.tree.leaves(batches)[0]
        rows.add(x.sharding.shard_shape(x.shape)[0] if isinstance(x, jax.Array) else len(x))
        return original(state, iter(batches))

    model.train_function = looking
    fit(model)
    return rows


@pytest.mark.parametrize("model_class", [keras.Model, kte.TPUModel])
def test_after_the_block_each_device_has_its_part_of_a_batch(scope8, model_class):
    assert rows_on_a_device(scope8, model_class) == {2}


def test_without_this_package_each_device_computes_the_whole_batch():
    """Why all of this is there: Keras asks for the distribution of the moment, and then there is none."""
    distribution = keras.distribution.DataParallel(devices=[f"cpu:{i}" for i in range(8)], auto_shard_dataset=False)
    assert rows_on_a_device(distribution.scope()) == {16}


@pytest.mark.parametrize("model_class", [keras.Model, kte.TPUModel])
def test_a_model_built_outside_is_left_alone(scope8, model_class):
    before = functional(model_class)
    with scope8:
        functional(model_class)
    after = functional(model_class)
    for model in (before, after):
        model.compile("sgd", "mse")
        assert _jax_scope.distribution_of(model) is None
        assert not set(vars(model)) & set(_jax_scope._METHODS)
        assert _runtime.devices.num_replicas(model) == 1
        fit(model)
        assert devices_of(model) == {1}


def test_a_model_in_a_model_belongs_too_and_trains_by_itself(scope8):
    with scope8:
        inner = functional()
        inputs = keras.Input((3,))
        outer = keras.Model(inputs, keras.layers.Dense(1)(inner(inputs)))
        for model in (inner, outer):
            model.compile("sgd", "mse")
    for model in (outer, inner, outer):
        fit(model)
        assert devices_of(model) == {8}


def test_a_method_that_the_user_overrides_runs_within_the_models_own(scope8):
    seen = []

    class Own(keras.Sequential):
        def fit(self, *args, **kwargs):
            seen.append(keras.distribution.distribution())
            return super().fit(*args, **kwargs)

    with scope8:
        model = Own([keras.Input((3,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
    fit(model)
    assert seen == [scope8.strategy]


def test_a_batch_that_cannot_be_split_is_told_with_the_cure(scope8):
    with scope8:
        model = functional()
        model.compile("sgd", "mse")
    with pytest.raises(ValueError, match="should evenly divide the shape") as error:
        model.fit(X[:11], Y[:11], verbose=0)
    assert str(error.value).endswith(
        "Keras's own step on JAX needs batches that can be split evenly over the 8 devices, in validation_data too. "
        "Leave exact=False out of strategy_scope(), and the model trains on any batch"
    )


def test_what_was_made_elsewhere_is_put_where_the_model_is(scope8):
    """An optimizer and a metric, say: on JAX that is no error, for nothing would be lost."""
    optimizer, metric = keras.optimizers.Adam(0.01), keras.metrics.MeanAbsoluteError(name="mae")
    layer = keras.layers.Dense(1)
    layer.build((None, 3))
    with scope8:
        inputs = keras.Input((3,))
        model = kte.TPUModel(inputs, layer(inputs))
    model.compile(optimizer, "mse", metrics=[metric])
    plain = functional()
    plain.set_weights(model.get_weights())
    plain.compile(keras.optimizers.Adam(0.01), "mse", metrics=["mae"])
    got, expected = (m.fit(X, Y, batch_size=16, epochs=2, verbose=0).history for m in (model, plain))
    for name, values in expected.items():
        assert got[name] == pytest.approx(values, rel=1e-5)
    assert devices_of(model) == {8}


# -- nesting and threads --------------------------------------------------------------------------------------


def test_another_scope_inside_is_refused_and_the_outer_one_stays(scope8):
    two = kte.strategy_scope(require="cpu", replicas=2)
    with scope8:
        with pytest.raises(ScopeError) as error, two:
            pytest.fail("entered")
        assert keras.distribution.distribution() is scope8.strategy
        with dataclasses.replace(scope8):
            assert keras.distribution.distribution() is scope8.strategy
        model = functional()
    assert _runtime.devices.num_replicas(model) == 8
    assert str(error.value) == (
        "A block for 2 replicas (DataParallel) was opened inside a block for 8 replicas (DataParallel), and a model "
        "can belong to one strategy only. Leave the outer block first, or open the same scope again inside it."
    )
    with two:
        assert keras.distribution.distribution() is two.strategy


def test_a_model_of_another_thread_does_not_belong_to_this_ones_block(scope8):
    models = []
    stock = Trainer.__init__

    def build(scope):
        if scope is None:
            models.append(functional())
        else:
            with scope:
                models.append(functional())

    for scope in (None, kte.strategy_scope(require="cpu", replicas=2)):
        with scope8:
            thread = threading.Thread(target=build, args=[scope])
            thread.start()
            thread.join()
    assert [_runtime.devices.num_replicas(model) for model in models] == [1, 2]
    assert Trainer.__init__ is stock


def test_blocks_of_two_threads_that_overlap_restore_keras_when_the_last_one_is_left(scope8):
    stock = Trainer.__init__
    inside, leave = threading.Event(), threading.Event()

    def other():
        with scope8:
            inside.set()
            leave.wait(30)

    thread = threading.Thread(target=other)
    with scope8:
        thread.start()
        inside.wait(30)
    assert Trainer.__init__ is not stock  # the other one is inside still
    leave.set()
    thread.join()
    assert Trainer.__init__ is stock


# -- data -----------------------------------------------------------------------------------------------------


def test_distribute_splits_every_batch_and_loses_nothing(scope8):
    batches = [(np.arange(i, i + 16.0), {"a": np.arange(16)}) for i in (0, 16)]
    got = list(scope8.distribute(batches))
    for (x, y), (expected, _) in zip(got, batches, strict=True):
        np.testing.assert_array_equal(np.asarray(x), expected)
        assert {len(shard.data) for shard in x.addressable_shards} == {2}
        assert len(y["a"].sharding.device_set) == 8


def test_distribute_refuses_a_batch_that_would_lose_rows(scope8):
    with pytest.raises(ArgumentError) as error:
        list(scope8.distribute([np.ones((12, 2))]))
    assert str(error.value) == (
        "A batch of 12 rows cannot be split evenly over 8 replicas, and a loop of your own must not lose any. Write "
        "dataset.batch(scope.global_batch_size(32)) and take care of a short last batch, with pad_batches for "
        "instance."
    )


def test_distribute_wants_batches(scope8):
    with pytest.raises(ArgumentError) as error:
        scope8.distribute(5)
    assert str(error.value) == (
        "distribute needs an iterable of batches; got int. Write scope.distribute(dataset) with a tf.data.Dataset, a "
        "keras.utils.PyDataset or a list of batches."
    )
