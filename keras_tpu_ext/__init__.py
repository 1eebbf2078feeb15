"""Take an existing Keras model to TPUs: exact at any number of replicas, with live throughput."""

import sys as _sys

# `python -m keras_tpu_ext` imports this file first; help and usage errors are handled before Keras is imported.
if _sys.argv[:1] == ["-m"] and _sys.orig_argv[-len(_sys.argv)] == __name__:
    from keras_tpu_ext_command.arguments import parse_arguments as _parse_arguments

    _parse_arguments(_sys.argv[1:])

# `import keras_tpu_ext.dropin` imports this file first, and Keras with it: so the backend is chosen here.
from keras_tpu_ext.machine.dropin import choose_jax as _choose_jax

_choose_jax()

from keras_tpu_ext import addons as addons
from keras_tpu_ext import callbacks as callbacks
from keras_tpu_ext import data as data
from keras_tpu_ext import errors as errors
from keras_tpu_ext import hardware as hardware
from keras_tpu_ext import layers as layers
from keras_tpu_ext import precision as precision
from keras_tpu_ext import testing as testing
from keras_tpu_ext.batch_statistics import batch_mean as batch_mean
from keras_tpu_ext.batch_statistics import batch_sum as batch_sum
from keras_tpu_ext.doctor import DoctorReport as DoctorReport
from keras_tpu_ext.doctor import doctor as doctor
from keras_tpu_ext.errors import KteError as KteError
from keras_tpu_ext.models import LossScale as LossScale
from keras_tpu_ext.models import TPUModel as TPUModel
from keras_tpu_ext.parity import ParityReport as ParityReport
from keras_tpu_ext.parity import check_parity as check_parity
from keras_tpu_ext.plan import PlanReport as PlanReport
from keras_tpu_ext.plan import plan as plan
from keras_tpu_ext.preflight import PreflightReport as PreflightReport
from keras_tpu_ext.preflight import preflight as preflight
from keras_tpu_ext.sharding.layout_report import LayoutReport as LayoutReport
from keras_tpu_ext.strategy import Scope as Scope
from keras_tpu_ext.strategy import strategy_scope as strategy_scope

__version__ = "0.2.0"

__all__ = [
    "addons",
    "callbacks",
    "data",
    "errors",
    "hardware",
    "layers",
    "precision",
    "testing",
    "batch_mean",
    "batch_sum",
    "DoctorReport",
    "doctor",
    "KteError",
    "LossScale",
    "TPUModel",
    "ParityReport",
    "check_parity",
    "PlanReport",
    "plan",
    "PreflightReport",
    "preflight",
    "LayoutReport",
    "Scope",
    "strategy_scope",
    "__version__",
]


def __dir__() -> list[str]:
    return __all__
