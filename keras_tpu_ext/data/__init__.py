"""Helpers for `tf.data` input pipelines."""

from keras_tpu_ext.data.image_files import images as images
from keras_tpu_ext.data.padding import pad_batches as pad_batches
from keras_tpu_ext.data.pipeline.advise import advise as advise
from keras_tpu_ext.data.pipeline.findings import Advice as Advice
from keras_tpu_ext.data.pipeline.findings import Finding as Finding
from keras_tpu_ext.data.pipeline.optimize import OptimizationReport as OptimizationReport
from keras_tpu_ext.data.pipeline.optimize import optimization_report as optimization_report
from keras_tpu_ext.data.pipeline.optimize import optimize as optimize
from keras_tpu_ext.data.skipped import SkippedRecords as SkippedRecords
from keras_tpu_ext.data.skipped import skipped as skipped
from keras_tpu_ext.data.tfrecords.manifest import WrittenRecords as WrittenRecords
from keras_tpu_ext.data.tfrecords.reader import tfrecords as tfrecords
from keras_tpu_ext.data.tfrecords.writer import write_tfrecords as write_tfrecords

__all__ = [
    "images",
    "pad_batches",
    "Advice",
    "Finding",
    "advise",
    "OptimizationReport",
    "optimization_report",
    "optimize",
    "SkippedRecords",
    "skipped",
    "WrittenRecords",
    "tfrecords",
    "write_tfrecords",
]


def __dir__() -> list[str]:
    return __all__
