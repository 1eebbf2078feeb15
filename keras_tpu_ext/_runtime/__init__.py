"""The only interface to the frameworks: functions in namespaces, for whichever Keras this process uses.

`common/protocols.py` documents each namespace.
"""

from typing import TYPE_CHECKING, Any

from keras_tpu_ext._runtime.common import protocols
from keras_tpu_ext._runtime.common.select import load as _load

_runtime: Any = _load()

if TYPE_CHECKING:
    import keras as keras  # so that type checkers know what `TPUModel` and the layers inherit

    from keras_tpu_ext._runtime.training.loss_scale import LossScale as LossScale
else:
    keras = _runtime.keras
    LossScale = _runtime.LossScale
tree: Any = _runtime.tree
PyDataset: Any = _runtime.PyDataset
TrainStep: Any = _runtime.TrainStep
import_addons: Any = _runtime.import_addons
message_terms: protocols.MessageTerms = _runtime.message_terms

batch: protocols.Batch = _runtime.batch
devices: protocols.Devices = _runtime.devices
models: protocols.Models = _runtime.models
ops: protocols.Ops = _runtime.ops
policies: protocols.Policies = _runtime.policies
probes: protocols.Probes = _runtime.probes
progress: protocols.Progress = _runtime.progress
training_state: protocols.TrainingState = _runtime.training_state
