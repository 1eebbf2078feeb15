"""Keras 3 on JAX, which today's TPU images offer; TensorFlow need not be installed."""

import functools

from keras_tpu_ext._runtime.common.values import MessageTerms
from keras_tpu_ext._runtime.jax import batch, devices, ops, probes, saved_programs, training_state
from keras_tpu_ext._runtime.jax.event_file import event_file_class
from keras_tpu_ext._runtime.jax.program import TrainStep
from keras_tpu_ext._runtime.jax.remat import remat
from keras_tpu_ext._runtime.keras3 import import_addons
from keras_tpu_ext._runtime.keras3.tpu_operations import tpu_operations
from keras_tpu_ext._runtime.training.protocols import Runtime

message_terms = MessageTerms(
    framework="JAX",
    no_gpu="check that `nvidia-smi` shows one and that this JAX was installed with CUDA, pip install 'jax[cuda12]'",
    plain_model="Keras gives every device an equal part of a batch, and fails on one that cannot be split evenly",
    why_compiled="Set JAX_EXPLAIN_CACHE_MISSES=1 in the environment: JAX then logs what differed",
)
runtime = Runtime(
    batch=batch,
    devices=devices,
    ops=ops,
    probes=probes,
    training_state=training_state,
    TrainStep=TrainStep,
    import_addons=import_addons,
    event_file_class=event_file_class,
    tpu_operations=functools.partial(tpu_operations, batch),
    remat=remat,
    saved_programs=saved_programs,
    message_terms=message_terms,
)
