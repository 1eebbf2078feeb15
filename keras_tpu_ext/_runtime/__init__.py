"""The one seam for frameworks: what the package needs done, whichever Keras this process is on."""

from keras_tpu_ext._runtime.contract import OpenedStrategy as OpenedStrategy
from keras_tpu_ext._runtime.select import load as _load

_runtime = _load()

keras = _runtime.keras

examples_seen = _runtime.examples_seen
num_replicas = _runtime.num_replicas
train_steps = _runtime.train_steps
