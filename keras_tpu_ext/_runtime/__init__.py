"""The one seam for frameworks: what the package needs done, whichever Keras this process is on."""

from keras_tpu_ext._runtime.contract import OpenedStrategy as OpenedStrategy
from keras_tpu_ext._runtime.select import load as _load

_runtime = _load()

keras = _runtime.keras
