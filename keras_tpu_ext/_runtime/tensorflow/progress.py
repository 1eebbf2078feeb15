"""Counters of a model, and its progress bar, on TensorFlow."""

from keras_tpu_ext._runtime.compat import end_names_last_batch as end_names_last_batch
from keras_tpu_ext._runtime.tensorflow.event_file import event_file_class as event_file_class
from keras_tpu_ext._runtime.training.fit_watch import watch_fits as watch_fits
from keras_tpu_ext._runtime.training.overflow import loss_scale as loss_scale
from keras_tpu_ext._runtime.training.overflow import skipped_steps as skipped_steps
from keras_tpu_ext._runtime.training.progress import counts_examples as counts_examples
from keras_tpu_ext._runtime.training.progress import examples_seen as examples_seen
from keras_tpu_ext._runtime.training.progress import show_in_progress_bar as show_in_progress_bar
from keras_tpu_ext._runtime.training.progress import train_steps as train_steps
