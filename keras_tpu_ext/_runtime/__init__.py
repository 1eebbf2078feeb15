"""The only interface to the frameworks: functions in namespaces, for whichever Keras this process uses.

`training/protocols.py` documents those that each runtime implements; the others are modules of `training`.
"""

from typing import TYPE_CHECKING

from keras_tpu_ext._runtime import compat
from keras_tpu_ext._runtime.common.select import load
from keras_tpu_ext._runtime.training import models as models
from keras_tpu_ext._runtime.training import progress as progress
from keras_tpu_ext._runtime.training import watches as watches
from keras_tpu_ext._runtime.training.fit_call import FitCall as FitCall
from keras_tpu_ext._runtime.training.protocols import Runtime
from keras_tpu_ext._runtime.training.resumable_data import ResumablePasses as ResumablePasses
from keras_tpu_ext._runtime.training.step_state import LossScale as LossScale

if TYPE_CHECKING:
    import keras as keras  # so that type checkers know what `TPUModel` and the layers inherit
else:
    keras = compat.keras
tree = compat.tree
PyDataset = compat.PyDataset

_runtime: Runtime = load()
TrainStep = _runtime.TrainStep
event_file_class = _runtime.event_file_class
import_addons = _runtime.import_addons
message_terms = _runtime.message_terms
remat = _runtime.remat
saved_programs = _runtime.saved_programs
tpu_operations = _runtime.tpu_operations

batch = _runtime.batch
devices = _runtime.devices
ops = _runtime.ops
probes = _runtime.probes
training_state = _runtime.training_state
