"""Helpers for `tf.data` input pipelines."""

from keras_tpu_ext.data.advice import Advice as Advice
from keras_tpu_ext.data.advice import Finding as Finding
from keras_tpu_ext.data.advising import advise as advise
from keras_tpu_ext.data.optimizing import OptimizationReport as OptimizationReport
from keras_tpu_ext.data.optimizing import optimization_report as optimization_report
from keras_tpu_ext.data.optimizing import optimize as optimize
from keras_tpu_ext.data.padding import pad_batches as pad_batches
