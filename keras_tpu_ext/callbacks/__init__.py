"""Callbacks for `model.fit`."""

from keras_tpu_ext.callbacks.auto_resume import AutoResume as AutoResume
from keras_tpu_ext.callbacks.device_memory import DeviceMemory as DeviceMemory
from keras_tpu_ext.callbacks.device_memory_report import DeviceMemoryReport as DeviceMemoryReport
from keras_tpu_ext.callbacks.goodput import Goodput as Goodput
from keras_tpu_ext.callbacks.goodput_report import GoodputReport as GoodputReport
from keras_tpu_ext.callbacks.host_bottleneck import HostBottleneck as HostBottleneck
from keras_tpu_ext.callbacks.input_verdict import InputVerdict as InputVerdict
from keras_tpu_ext.callbacks.live_view import LiveView as LiveView
from keras_tpu_ext.callbacks.loss_scale_monitor import LossScaleMonitor as LossScaleMonitor
from keras_tpu_ext.callbacks.recompilations import Recompilations as Recompilations
from keras_tpu_ext.callbacks.recompilations_report import Compilation as Compilation
from keras_tpu_ext.callbacks.recompilations_report import RecompilationsReport as RecompilationsReport
from keras_tpu_ext.callbacks.run_log import RunLog as RunLog
from keras_tpu_ext.callbacks.run_report import RunReport as RunReport
from keras_tpu_ext.callbacks.throughput import Throughput as Throughput
from keras_tpu_ext.callbacks.trace import Trace as Trace
from keras_tpu_ext.callbacks.trace_report import TraceReport as TraceReport
from keras_tpu_ext.callbacks.watch import Watch as Watch
from keras_tpu_ext.callbacks.watch_report import WatchReport as WatchReport

__all__ = [
    "AutoResume",
    "Compilation",
    "Goodput",
    "GoodputReport",
    "DeviceMemory",
    "DeviceMemoryReport",
    "HostBottleneck",
    "InputVerdict",
    "LiveView",
    "LossScaleMonitor",
    "Recompilations",
    "RecompilationsReport",
    "RunLog",
    "RunReport",
    "Throughput",
    "Trace",
    "TraceReport",
    "Watch",
    "WatchReport",
]


def __dir__() -> list[str]:
    return __all__
