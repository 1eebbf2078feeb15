"""The attributes of Keras 3's objects on JAX that are private and used; see test_private_names.py."""

import jax
import jax.numpy as jnp
import keras
import numpy as np
import pytest
from keras.src.backend.jax.trainer import JAXEpochIterator
from keras.src.models.model import Trainer

import private_name_table
from jax_processes import free_port
from keras_tpu_ext._runtime.compat.keras3 import VERSION, execution
from keras_tpu_ext._runtime.jax.scope import _METHODS
from private_names import attributes, check_attribute, mend, model

pytestmark = pytest.mark.runtimes("keras3_jax")


def in_scope(scope, name):
    with scope:
        return getattr(keras.Variable(np.zeros(2, "float32")), name)


def epochs():
    return JAXEpochIterator(x=np.ones((4, 2)), batch_size=2)


def client_of_service():
    from jax._src import distributed

    # JAX before 0.6 has it in `xla_extension`.
    return (getattr(distributed, "_jax", None) or distributed.xla_extension).DistributedRuntimeClient


def attention():
    layer = keras.layers.MultiHeadAttention(1, 4)
    layer.build((2, 3, 4), (2, 3, 4))
    return layer


def state_of_a_fit():
    kept, made = [], model()
    keep = keras.callbacks.LambdaCallback(on_train_batch_end=lambda batch, logs: kept.append(made._jax_state))
    made.fit(np.ones((4, 2)), np.ones((4, 1)), verbose=0, callbacks=[keep])
    return kept[0]["trainable_variables"]


ATTRIBUTES = {
    "DistributedRuntimeClient.key_value_dir_get": lambda: client_of_service().key_value_dir_get,
    "DistributedRuntimeClient.key_value_set": lambda: client_of_service().key_value_set,
    "GroupQueryAttention._inverse_sqrt_head_dim": lambda: (
        keras.layers.GroupQueryAttention(4, 1, 1)._inverse_sqrt_head_dim == 0.5
    ),
    "GroupQueryAttention._return_attention_scores": lambda: hasattr(
        keras.layers.GroupQueryAttention(4, 1, 1), "_return_attention_scores"
    ),
    "JAXEpochIterator.data_adapter": lambda: epochs().data_adapter.get_numpy_iterator,
    "LossFunctionWrapper.fn": lambda: keras.losses.MeanSquaredError().fn,
    "Layer._loss_ids": lambda: isinstance(keras.layers.Dense(1)._loss_ids, set),
    "Layer._remat_mode": lambda: VERSION < (3, 9) or hasattr(keras.layers.Dense(1), "_remat_mode"),
    "Lowered._lowering": lambda: jax.jit(jnp.sin).lower(1.0)._lowering.compile_args["in_shardings"],
    "MeshComputation._compiler_options_kvs": lambda: (
        jax.jit(jnp.sin).lower(1.0)._lowering._compiler_options_kvs == ()
    ),
    "MultiHeadAttention._attention_axes": lambda: attention()._attention_axes == (1,),
    "MultiHeadAttention._dropout_layer": lambda: isinstance(attention()._dropout_layer, keras.layers.Dropout),
    "MultiHeadAttention._flash_attention": lambda: hasattr(attention(), "_flash_attention"),
    "MultiHeadAttention._inverse_sqrt_key_dim": lambda: attention()._inverse_sqrt_key_dim == 0.5,
    "Trainer._jax_state": state_of_a_fit,
    "Trainer._losses_override": lambda: isinstance(model()._losses_override, list),
    "Variable._layout": lambda: hasattr(keras.Variable(np.zeros(2, "float32")), "_layout"),
    "Variable._value": lambda: keras.Variable(np.zeros(2, "float32"))._value,
}


def test_every_attribute_of_the_table_is_tried():
    assert attributes(private_name_table.KERAS3_JAX) == ATTRIBUTES.keys()


@pytest.mark.skipif(VERSION < (3, 15), reason="this Keras has no windows")
def test_attention_shows_its_window():
    layer = keras.layers.MultiHeadAttention(1, 1, sliding_window=7)
    assert layer._sliding_window == 7, mend("MultiHeadAttention._sliding_window")
    grouped = keras.layers.GroupQueryAttention(1, 1, 1, sliding_window=7)
    assert grouped.sliding_window == 7


@pytest.mark.parametrize("name", ATTRIBUTES)
def test_an_object_still_carries_it(name):
    check_attribute(name, ATTRIBUTES[name])


def test_the_distributed_service_shows_its_client():
    from jax._src import distributed

    assert distributed.global_state.client is None, mend("global_state.client")
    assert distributed.global_state.process_id == 0, mend("global_state.process_id")


def test_the_distributed_service_keeps_values_by_folders():
    from jax._src import distributed

    library = getattr(distributed, "_jax", None) or distributed.xla_extension
    address = f"127.0.0.1:{free_port()}"
    service = library.get_distributed_runtime_service(address, 1)
    client = library.get_distributed_runtime_client(address, 0)
    client.connect()
    try:
        assert client.key_value_dir_get("folder/") == []
        client.key_value_set("folder/0", "text")
        client.key_value_set("folder2/0", "text")
        assert client.key_value_dir_get("folder/") == [("folder/0", "text")], mend("Client.key_value_dir_get")
    finally:
        client.shutdown()
        service.shutdown()


def test_a_variable_shows_its_layout(scope8):
    assert in_scope(scope8, "_layout") is not None, mend("Variable._layout")
    assert keras.Variable(np.zeros(2, "float32"))._layout is None, mend("Variable._layout")


def test_every_model_is_made_through_the_trainers_init(monkeypatch):
    made, original = [], Trainer.__init__

    def noting(self, *args, **kwargs):
        made.append(self)
        original(self, *args, **kwargs)

    class Subclassed(keras.Model):
        pass

    monkeypatch.setattr(Trainer, "__init__", noting)
    models = [model(), keras.Sequential([keras.layers.Dense(1)]), Subclassed()]
    assert [any(one is other for other in made) for one in models] == [True] * 3, mend("Trainer")


@pytest.mark.parametrize("name", _METHODS)
def test_a_method_is_found_on_the_class(name):
    assert callable(getattr(keras.Model, name)), mend("keras:Model._METHODS")


def test_an_epoch_takes_its_batches_from_a_replaced_iterator():
    iterator = JAXEpochIterator(x=np.ones((4, 2)), batch_size=2)
    iterator._get_iterator = lambda: iter(["first", "second"])
    assert [next(batches) for *_, batches in iterator] == ["first", "second"], mend("EpochIterator._get_iterator")


def test_a_model_is_built_from_an_iterator_of_iterators():
    """As `PeekIterator` is one: of its items the first batch is looked at."""
    made = model()
    batch = (np.ones((2, 2), "float32"), np.ones((2, 1), "float32"))
    made._symbolic_build(iterator=iter([execution(0, 0, iter([batch]))]))
    assert made.optimizer.built, mend("Trainer._symbolic_build")


def test_normalisation_takes_its_moments_from_a_method():
    layer = keras.layers.BatchNormalization(momentum=0.0)
    layer.build((None, 2))
    layer._moments = lambda inputs, mask: (jnp.full(2, 3.0), jnp.full(2, 5.0))
    layer(jnp.ones((4, 2)), training=True)
    assert np.asarray(layer.moving_mean).tolist() == [3, 3], mend("BatchNormalization._moments")
    assert list(layer._reduction_axes) == [0], mend("BatchNormalization._reduction_axes")
