"""Optimizers in HDF5 files of Keras 2: their arguments and their state, which Keras 3 leaves behind.

Keras 2.11 to 2.15 wrote "Custom>Adam", for which Keras 3 takes an Adam with default arguments. Of the state they
wrote the step and then the slots, variable by variable; older versions and `optimizers.legacy` slot by slot. Keras 3
has the learning rate between the step and the slots.
"""

from __future__ import annotations

import json
from typing import Any

import numpy as np
from keras.src import optimizers
from keras.src.legacy.saving import legacy_h5_format

from keras_tpu_ext.dropin.patching import Function, wrap
from keras_tpu_ext.dropin.report import mapped


def install() -> None:
    """Read optimizers of Keras 2."""
    saving = "keras.src.legacy.saving"
    wrap(
        {
            f"{saving}.saving_utils.compile_args_from_training_config": _with_arguments,
            f"{saving}.legacy_h5_format.load_optimizer_weights_from_hdf5_group": _in_order,
        }
    )


def _with_arguments(stock: Function, training_config: dict[str, Any], custom_objects: Any = None) -> Any:
    given = training_config["optimizer_config"]
    name = given["class_name"].removeprefix("Custom>")
    if name != given["class_name"]:
        mapped(f"{given['class_name']} in a file", name)
        name = name if name.lower() in optimizers.ALL_OBJECTS_DICT else given["class_name"]
    config = {key: _without_none_as_name(value) for key, value in given["config"].items()}
    optimizer = {**given, "class_name": name, "config": config}
    return stock({**training_config, "optimizer_config": optimizer}, custom_objects)


def _without_none_as_name(value: Any) -> Any:
    """Leave out that a schedule has no name: Keras 3 insists on its default."""
    if not isinstance(value, dict) or value.get("config", {}).get("name", "") is not None:
        return value
    return {**value, "config": {key: of for key, of in value["config"].items() if key != "name"}}


def _in_order(stock: Function, file: Any) -> list[Any]:
    """Return the state in the order of Keras 3's variables."""
    values = stock(file)
    group = file["optimizer_weights"]
    names = [str(name) for name in legacy_h5_format.load_attributes_from_hdf5_group(group, "weight_names")]
    if not names or not names[0].endswith(("iteration:0", "iter:0")):
        return list(values)  # Keras 3's
    slots = values[1:]
    if names[0].endswith("iter:0"):
        slots = _variable_by_variable(names[1:], slots)
    rate = json.loads(file.attrs["training_config"])["optimizer_config"]["config"]["learning_rate"]
    mapped("an optimizer's state in a file of Keras 2", "the same in the order of Keras 3")
    return [values[0], *([] if isinstance(rate, dict) else [np.float32(rate)]), *slots]


def _variable_by_variable(names: list[str], values: list[Any]) -> list[Any]:
    """Order what is written slot by slot; a name ends with that of its slot."""
    slots = dict.fromkeys(name.rpartition("/")[2] for name in names)
    each = len(values) // max(len(slots), 1)
    return [value for i in range(each) for value in values[i::each]]
