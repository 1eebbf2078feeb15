"""Probes of a train step, on JAX."""

from keras_tpu_ext._runtime.compat import watch_end_of_data as watch_end_of_data
from keras_tpu_ext._runtime.jax.abstract import call_abstractly as call_abstractly
from keras_tpu_ext._runtime.jax.executions import intercept_executions as intercept_executions
from keras_tpu_ext._runtime.jax.flops import count_flops as count_flops
from keras_tpu_ext._runtime.jax.lowering import lower_step as lower_step
from keras_tpu_ext._runtime.training.gradients import record_gradients as record_gradients
from keras_tpu_ext._runtime.training.overflow import unwatch_overflow as unwatch_overflow
from keras_tpu_ext._runtime.training.overflow import watch_overflow as watch_overflow
