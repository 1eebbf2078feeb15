"""The private names of JAX, and of Keras on it, that `_runtime` leans on; see test_keras3_private_names.py."""

import inspect

import jax.numpy as jnp
import keras
import numpy as np
import pytest
from keras.src.backend.jax.trainer import JAXEpochIterator, JAXTrainer

from keras_tpu_ext._runtime.jax.scope import _METHODS
from private_names import RUNTIME, check_attribute, check_import, model

pytestmark = pytest.mark.runtimes("keras3_jax")

IMPORTED = {
    "jax._src.xla_bridge:backends_are_initialized": "jax/devices.py",
    "jax._src.distributed:global_state": "jax/devices.py",
    "jax._src.interpreters.mlir:module_to_bytecode": "jax/lowering.py",
    "keras.src.backend.jax.distribution_lib:initialize_rng": "jax/devices.py",
    "keras.src.backend.jax.trainer:JAXTrainer.__init__": "jax/scope.py",
    "keras.src.backend.jax.trainer:JAXTrainer._symbolic_build": "jax/step.py",
    "keras.src.trainers.data_adapters.data_adapter:DataAdapter": "jax/data_adapter.py",
    "keras.src.trainers.data_adapters:get_data_adapter": "jax/data_adapter.py",
}


@pytest.mark.parametrize("path", IMPORTED)
def test_it_is_still_there(path):
    check_import(path, IMPORTED[path])


def in_scope(scope, name):
    with scope:
        return getattr(keras.Variable(np.zeros(2, "float32")), name)


ATTRIBUTES = {
    "Trainer.compute_loss_and_updates": (
        lambda: "optimizer_variables" in inspect.signature(model().compute_loss_and_updates).parameters,
        "jax/flops.py",
    ),
    "Variable._value": (lambda: keras.Variable(np.zeros(2, "float32"))._value, "jax/ops.py"),
    "LossFunctionWrapper.fn": (lambda: keras.losses.MeanSquaredError().fn, "jax/per_example.py"),
    "JAXEpochIterator.data_adapter": (
        lambda: JAXEpochIterator(x=np.ones((4, 2)), batch_size=2).data_adapter.get_numpy_iterator,
        "jax/step.py",
    ),
    "TFDatasetAdapter": (
        lambda: keras.src.trainers.data_adapters.tf_dataset_adapter.TFDatasetAdapter.__name__ == "TFDatasetAdapter",
        "jax/step.py",
    ),
}


@pytest.mark.parametrize("name", ATTRIBUTES)
def test_an_object_still_carries_it(name):
    check_attribute(name, *ATTRIBUTES[name])


def test_the_distributed_service_shows_its_client():
    from jax._src import distributed

    assert distributed.global_state.client is None, f"mend {RUNTIME}jax/devices.py"


def test_a_variable_shows_its_layout(scope8):
    assert in_scope(scope8, "_layout") is not None, f"mend {RUNTIME}jax/scope.py"
    assert keras.Variable(np.zeros(2, "float32"))._layout is None, f"mend {RUNTIME}jax/scope.py"


def test_every_model_is_made_through_the_trainers_init(monkeypatch):
    made, original = [], JAXTrainer.__init__

    def noting(self, *args, **kwargs):
        made.append(self)
        original(self, *args, **kwargs)

    class Subclassed(keras.Model):
        pass

    monkeypatch.setattr(JAXTrainer, "__init__", noting)
    models = [model(), keras.Sequential([keras.layers.Dense(1)]), Subclassed()]
    assert [any(one is other for other in made) for one in models] == [True] * 3, f"mend {RUNTIME}jax/scope.py"


@pytest.mark.parametrize("name", _METHODS)
def test_a_method_is_found_on_the_class(name):
    assert callable(getattr(keras.Model, name)), f"mend {RUNTIME}jax/scope.py"


def test_an_epoch_takes_its_batches_from_a_replaced_iterator():
    iterator = JAXEpochIterator(x=np.ones((4, 2)), batch_size=2)
    iterator._get_iterator = lambda: iter(["first", "second"])
    assert [next(batches) for _, _, batches in iterator] == ["first", "second"], f"mend {RUNTIME}jax/step.py"


def test_a_model_is_built_from_an_iterator_of_iterators():
    """As `PeekIterator` is one: of its items the first batch is looked at."""
    made = model()
    batch = (np.ones((2, 2), "float32"), np.ones((2, 1), "float32"))
    made._symbolic_build(iterator=iter([(0, 0, iter([batch]))]))
    assert made.optimizer.built, f"mend {RUNTIME}jax/step.py"


def test_normalisation_takes_its_moments_from_a_method():
    layer = keras.layers.BatchNormalization(momentum=0.0)
    layer.build((None, 2))
    layer._moments = lambda inputs, mask: (jnp.full(2, 3.0), jnp.full(2, 5.0))
    layer(jnp.ones((4, 2)), training=True)
    assert np.asarray(layer.moving_mean).tolist() == [3, 3], f"mend {RUNTIME}jax/batch.py"
    assert list(layer._reduction_axes) == [0], f"mend {RUNTIME}jax/batch.py"
