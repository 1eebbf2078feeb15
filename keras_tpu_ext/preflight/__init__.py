"""Know before you spend quota: what the real TPU compiler makes of a train step, on a machine without a TPU."""

from keras_tpu_ext.preflight.api import preflight as preflight
from keras_tpu_ext.preflight.report import PreflightReport as PreflightReport
