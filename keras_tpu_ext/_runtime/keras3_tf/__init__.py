"""Keras 3 on TensorFlow: the reference runtime."""

import keras as keras
from keras import ops as ops

from keras_tpu_ext._runtime.compat.keras3 import add_count as add_count
from keras_tpu_ext._runtime.compat.keras3 import asks_for_shapes as asks_for_shapes
from keras_tpu_ext._runtime.compat.keras3 import own_dtypes as own_dtypes
from keras_tpu_ext._runtime.compat.keras3 import path_of as path_of
from keras_tpu_ext._runtime.keras3.addons import import_addons as import_addons
from keras_tpu_ext._runtime.keras3.audit import losses as losses
from keras_tpu_ext._runtime.keras3.audit import metrics as metrics
from keras_tpu_ext._runtime.keras3.audit import softmaxes as softmaxes
from keras_tpu_ext._runtime.keras3.graph import calls as calls
from keras_tpu_ext._runtime.keras3.graph import clone as clone
from keras_tpu_ext._runtime.keras3.graph import draws_random_numbers as draws_random_numbers
from keras_tpu_ext._runtime.keras3.graph import expects_logits as expects_logits
from keras_tpu_ext._runtime.keras3.graph import flatten_layers as flatten_layers
from keras_tpu_ext._runtime.keras3.graph import inputs_and_outputs as inputs_and_outputs
from keras_tpu_ext._runtime.keras3.graph import is_compiled as is_compiled
from keras_tpu_ext._runtime.keras3.graph import output_activations as output_activations
from keras_tpu_ext._runtime.keras3.policies import get_dtype_policy as get_dtype_policy
from keras_tpu_ext._runtime.keras3.policies import parse_dtype_policy as parse_dtype_policy
from keras_tpu_ext._runtime.keras3.policies import set_dtype_policy as set_dtype_policy
from keras_tpu_ext._runtime.keras3.probes import loss_scale as loss_scale
from keras_tpu_ext._runtime.keras3.probes import record_gradients as record_gradients
from keras_tpu_ext._runtime.keras3.progress import show_as_they_are as show_as_they_are
from keras_tpu_ext._runtime.keras3_tf.batch_statistics import sees_its_replica_only as sees_its_replica_only
from keras_tpu_ext._runtime.keras3_tf.flops import count_flops as count_flops
from keras_tpu_ext._runtime.keras3_tf.lowering import lower_step as lower_step
from keras_tpu_ext._runtime.keras3_tf.step import TrainStep as TrainStep
from keras_tpu_ext._runtime.tensorflow.batch import place_in_batch as place_in_batch
from keras_tpu_ext._runtime.tensorflow.batch import row_weights as row_weights
from keras_tpu_ext._runtime.tensorflow.batch import sum_over_replicas as sum_over_replicas
from keras_tpu_ext._runtime.tensorflow.devices import count_gpus as count_gpus
from keras_tpu_ext._runtime.tensorflow.devices import is_chief as is_chief
from keras_tpu_ext._runtime.tensorflow.devices import num_workers as num_workers
from keras_tpu_ext._runtime.tensorflow.devices import open_cpu as open_cpu
from keras_tpu_ext._runtime.tensorflow.devices import open_gpus as open_gpus
from keras_tpu_ext._runtime.tensorflow.event_file import scalar_files as scalar_files
from keras_tpu_ext._runtime.tensorflow.executions import intercept_executions as intercept_executions
from keras_tpu_ext._runtime.tensorflow.messages import words as words
from keras_tpu_ext._runtime.tensorflow.overflow import skipped_steps as skipped_steps
from keras_tpu_ext._runtime.tensorflow.overflow import unwatch_overflow as unwatch_overflow
from keras_tpu_ext._runtime.tensorflow.overflow import watch_overflow as watch_overflow
from keras_tpu_ext._runtime.tensorflow.process_group import open_workers as open_workers
from keras_tpu_ext._runtime.tensorflow.products import exact_product as exact_product
from keras_tpu_ext._runtime.tensorflow.products import pick as pick
from keras_tpu_ext._runtime.tensorflow.progress import device_name as device_name
from keras_tpu_ext._runtime.tensorflow.progress import examples_seen as examples_seen
from keras_tpu_ext._runtime.tensorflow.progress import num_replicas as num_replicas
from keras_tpu_ext._runtime.tensorflow.progress import train_steps as train_steps
from keras_tpu_ext._runtime.tensorflow.scope import distribute as distribute
from keras_tpu_ext._runtime.tensorflow.scope import scope as scope
from keras_tpu_ext._runtime.tensorflow.tpu import open_tpu as open_tpu
from keras_tpu_ext._runtime.tensorflow.values import value_of as value_of
from keras_tpu_ext._runtime.tensorflow.values import with_shape as with_shape

PyDataset = keras.utils.PyDataset
tree = keras.tree
