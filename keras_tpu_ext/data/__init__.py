"""Helpers for `tf.data` input pipelines."""

from keras_tpu_ext.data.advice import Advice as Advice
from keras_tpu_ext.data.advice import Finding as Finding
from keras_tpu_ext.data.advising import advise as advise
from keras_tpu_ext.data.image_files import images as images
from keras_tpu_ext.data.optimizing import OptimizationReport as OptimizationReport
from keras_tpu_ext.data.optimizing import optimization_report as optimization_report
from keras_tpu_ext.data.optimizing import optimize as optimize
from keras_tpu_ext.data.padding import pad_batches as pad_batches
from keras_tpu_ext.data.skipped import SkippedRecords as SkippedRecords
from keras_tpu_ext.data.skipped import skipped as skipped
from keras_tpu_ext.data.tfrecord_shards import tfrecords as tfrecords
from keras_tpu_ext.data.tfrecord_writer import write_tfrecords as write_tfrecords
from keras_tpu_ext.data.written_records import WrittenRecords as WrittenRecords
