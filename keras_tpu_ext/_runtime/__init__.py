"""The only interface to the frameworks: functions in namespaces, for whichever Keras this process uses.

`common/protocols.py` documents each namespace.
"""

from typing import TYPE_CHECKING

from keras_tpu_ext._runtime import compat
from keras_tpu_ext._runtime.common.select import load
from keras_tpu_ext._runtime.training.loss_scale import LossScale as LossScale

if TYPE_CHECKING:
    import keras as keras  # so that type checkers know what `TPUModel` and the layers inherit
else:
    keras = compat.keras
tree = compat.tree
PyDataset = compat.PyDataset

_runtime = load()
TrainStep = _runtime.TrainStep
import_addons = _runtime.import_addons
message_terms = _runtime.message_terms
remat = _runtime.remat
saved_programs = _runtime.saved_programs
tpu_operations = _runtime.tpu_operations

batch = _runtime.batch
devices = _runtime.devices
models = _runtime.models
ops = _runtime.ops
policies = _runtime.policies
probes = _runtime.probes
progress = _runtime.progress
training_state = _runtime.training_state
