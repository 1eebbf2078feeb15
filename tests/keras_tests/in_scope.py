"""A pytest plugin under which Keras's own tests run: on one device with the exact step, or in a scope of replicas."""

import contextlib
import importlib
import os

import keras
import pytest

import keras_tpu_ext as kte
from keras_tpu_ext import _runtime

REPLICAS = int(os.environ.get("KTE_KERAS_TESTS_REPLICAS", "0"))  # 0: as Keras is; 1: the exact step on one device


def context():
    if REPLICAS == 0:
        return contextlib.nullcontext()
    if REPLICAS == 1:
        return _runtime.models.exact_models(_runtime.TrainStep)
    return kte.strategy_scope(require="cpu", replicas=REPLICAS)


def make_trainers_exact():
    """Give the models of Keras's tests the exact step where they are made of a layer and Keras's own trainer."""
    module = importlib.import_module(f"keras.src.backend.{keras.backend.backend()}.trainer")
    name = {"jax": "JAXTrainer", "tensorflow": "TensorFlowTrainer"}[keras.backend.backend()]
    stock = getattr(module, name)
    # What a model has, and a trainer alone has not: the mixin looks whether Keras still has what it overrides.
    of_models = {one: getattr(keras.Model, one) for one in ("save", "save_weights") if not hasattr(stock, one)}
    setattr(module, name, type(name, (_runtime.TrainStep, type(name, (stock,), of_models)), {}))


CONTEXT = context()  # before a test starts the framework's devices
if REPLICAS:
    make_trainers_exact()


@pytest.fixture(autouse=True)
def in_scope():
    with CONTEXT:
        yield
