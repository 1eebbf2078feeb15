"""The one seam for frameworks: what the package needs done, whichever Keras this process is on."""

from keras_tpu_ext._runtime.contract import OpenedStrategy as OpenedStrategy
from keras_tpu_ext._runtime.select import load as _load

_runtime = _load()

keras = _runtime.keras
TrainStep = _runtime.TrainStep
count_gpus = _runtime.count_gpus
distribute = _runtime.distribute
open_cpu = _runtime.open_cpu
open_gpus = _runtime.open_gpus
open_tpu = _runtime.open_tpu
scope = _runtime.scope
