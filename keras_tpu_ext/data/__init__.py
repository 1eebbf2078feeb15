"""Helpers for `tf.data` input pipelines."""

from keras_tpu_ext.data.image_files import images as images
from keras_tpu_ext.data.padding import pad_batches as pad_batches
from keras_tpu_ext.data.skipped import SkippedRecords as SkippedRecords
from keras_tpu_ext.data.skipped import skipped as skipped
from keras_tpu_ext.data.tfrecord_shards import tfrecords as tfrecords
from keras_tpu_ext.data.tfrecord_writer import WrittenRecords as WrittenRecords
from keras_tpu_ext.data.tfrecord_writer import write_tfrecords as write_tfrecords
