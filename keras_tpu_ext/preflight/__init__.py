"""Compile a train step with the TPU compiler before any quota is spent, on a machine without a TPU."""

from keras_tpu_ext.preflight.api import preflight as preflight
from keras_tpu_ext.preflight.report import PreflightReport as PreflightReport
