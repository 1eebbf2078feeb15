"""Callbacks for `model.fit`."""

from keras_tpu_ext.callbacks.auto_resume import AutoResume as AutoResume
from keras_tpu_ext.callbacks.host_bottleneck import HostBottleneck as HostBottleneck
from keras_tpu_ext.callbacks.input_verdict import InputVerdict as InputVerdict
from keras_tpu_ext.callbacks.loss_scale_monitor import LossScaleMonitor as LossScaleMonitor
from keras_tpu_ext.callbacks.throughput import Throughput as Throughput
from keras_tpu_ext.callbacks.watch import Watch as Watch
from keras_tpu_ext.callbacks.watch_report import WatchReport as WatchReport

__all__ = [
    "AutoResume",
    "HostBottleneck",
    "InputVerdict",
    "LossScaleMonitor",
    "Throughput",
    "Watch",
    "WatchReport",
]


def __dir__() -> list[str]:
    return __all__
