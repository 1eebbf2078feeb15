"""Files under the names that old programs give them.

`.h5` and `.hdf5` are Keras 2's HDF5 files. A name without these endings was a TensorFlow checkpoint, or a folder of a
SavedModel: weights go into `<name>.index`, an HDF5 file where TensorFlow has its own, so that
`tf.train.latest_checkpoint` finds it; a model goes into `<folder>/model.keras`. Checkpoints of TensorFlow are read.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import keras
import tensorflow as tf
from keras.src import layers, losses, metrics
from keras.src.legacy.saving import legacy_h5_format
from keras.src.utils import io_utils

from keras_tpu_ext.dropin.errors import out_of_reach
from keras_tpu_ext.dropin.old_keras import checkpoints, history, old_layers
from keras_tpu_ext.dropin.patching import Function, add, wrap
from keras_tpu_ext.dropin.report import mapped, means_old, told

h5py: Any = legacy_h5_format.h5py

_IN_FOLDER = "model.keras"
_ENDINGS = (".h5", ".hdf5", ".keras")
_LATER = ("dice", "tversky", "circle")  # losses of Keras 3, whose names old programs gave to their own
_WITHOUT_MEANING = ("options", "signatures", "save_traces", "save_format")


class Loaded:
    """What `load_weights` returned for a checkpoint: all of it has been found, or an error has been raised."""

    def expect_partial(self) -> Loaded:
        """Return this object."""
        return self

    assert_consumed = assert_existing_objects_matched = expect_partial


def install() -> None:
    """Make old names of files work."""
    saving_utils = "keras.src.legacy.saving.saving_utils"
    wrap(
        {
            "keras.Model.save": _save,
            "keras.Model.save_weights": _save_weights,
            "keras.Model.load_weights": _load_weights,
            f"{saving_utils}._deserialize_nested_config": _leaving_known_names,
            f"{saving_utils}.try_build_compiled_arguments": _with_optimizer,
            "keras.models.model_from_json": _model_from_json,
            **{f"keras.{where}.load_model": _load_model for where in ("models", "saving")},
            **{f"keras.{where}.save_model": _save_model for where in ("models", "saving")},
        }
    )
    add(layers, "ThresholdedReLU", old_layers.ThresholdedReLU)  # where HDF5 files find layers


def _model_from_json(stock: Function, json_string: str, custom_objects: Any = None) -> Any:
    """Leave a model uncompiled, as Keras 2 always did, if its JSON names functions that are not given."""
    try:
        return stock(json_string, custom_objects)
    except TypeError:
        config = json.loads(json_string)
        if config.pop("compile_config", None) is None:
            raise
        told("model_from_json", "a model that is not compiled, since its loss or metrics are not known")
        return stock(json.dumps(config), custom_objects)


def _with_optimizer(stock: Function, model: Any) -> None:
    """Build a loaded optimizer for all variables; Keras 3 does for those that the model has beside its layers."""
    stock(model)
    if model.optimizer is not None and not model.optimizer.built:
        model.optimizer.build(model.trainable_variables)
    history.know_names(model)


def _leaving_known_names(stock: Function, deserialize: Function, config: Any) -> Any:
    """Leave names of Keras's losses and metrics in HDF5 files to `compile`; Keras 3 fails at "mse" and the like."""
    if not isinstance(config, str) or keras.saving.get_registered_object(config) is not None:
        return stock(deserialize, config)
    if config in _LATER:
        raise ValueError(
            f"The file has a loss or metric {config!r}, which Keras 2 did not have: "
            f"write load_model(..., custom_objects={{{config!r}: {config}}}), or compile=False."
        )
    module = losses if deserialize is losses.deserialize else metrics
    return config if config in module.ALL_OBJECTS_DICT else stock(deserialize, config)


def _save_model(_: Function, model: Any, filepath: Any, *args: Any, **kwargs: Any) -> None:
    """Save a model, as its method does."""
    model.save(filepath, *args, **kwargs)


def _save(
    stock: Function, self: Any, filepath: Any, overwrite: bool = True, zipped: Any = None, **kwargs: Any
) -> None:
    path, wants = os.fspath(filepath), kwargs.get("save_format")
    for name in _WITHOUT_MEANING:
        if kwargs.pop(name, None) is not None:
            mapped(f"model.save({name}=)", "nothing: the name says the format")
    if path.endswith(_ENDINGS) and wants != "tf":
        if path.endswith(".keras"):
            kwargs.pop("include_optimizer", None)
        stock(self, path, overwrite, **({} if zipped is None else {"zipped": zipped}), **kwargs)
    elif wants == "h5":
        legacy_h5_format.save_model_to_hdf5(self, path, overwrite, kwargs.get("include_optimizer", True))
    else:
        Path(path).mkdir(parents=True, exist_ok=True)
        told("model.save(a folder)", f"{_IN_FOLDER} in that folder")
        stock(self, str(Path(path) / _IN_FOLDER), overwrite)


def _save_weights(
    stock: Function, self: Any, filepath: Any, overwrite: bool = True, *args: Any, **kwargs: Any
) -> None:
    path, wants = os.fspath(filepath), kwargs.pop("save_format", None)
    kwargs.pop("options", None)
    if path.endswith((".weights.h5", ".weights.json")) and wants != "tf":
        stock(self, path, overwrite, *args, **kwargs)
        return
    _check_built(self, "save_weights")
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    if path.endswith((".h5", ".hdf5", ".keras")) or wants == "h5":
        mapped("save_weights(.h5)", "an HDF5 file as of Keras 2")
        _write_hdf5(self, path, overwrite)
    else:
        told("save_weights(a checkpoint)", "an HDF5 file under the name of its index")
        _write_hdf5(self, f"{path}.index", overwrite)
        tf.compat.v1.train.update_checkpoint_state(os.path.dirname(path) or ".", os.path.basename(path))


def _check_built(model: Any, method: str) -> None:
    if not model.built:
        raise ValueError(
            f"{model.name} has no weights yet: call it on data, or write {model.name}.build((None, ...)) with the "
            f"shape of its inputs, before {method}."
        )


def _write_hdf5(model: Any, path: str, overwrite: bool) -> None:
    if not overwrite and os.path.exists(path) and not io_utils.ask_to_proceed_with_overwrite(path):
        return
    with h5py.File(path, "w") as file:
        legacy_h5_format.save_weights_to_hdf5_group(file, model)


def _load_weights(
    stock: Function, self: Any, filepath: Any, *args: Any, by_name: bool = False, options: Any = None, **kwargs: Any
) -> Loaded:
    path, kept = os.fspath(filepath), {"by_name": True} if by_name else {}
    if args:
        means_old(
            f"load_weights(path, {args[0]})", f"skip_mismatch={args[0]}; before Keras 2.12 it was by_name={args[0]}"
        )
    skip_mismatch = kwargs.pop("skip_mismatch", *args or (False,))
    if os.path.isdir(path) and (Path(path) / _IN_FOLDER).exists():
        path = str(Path(path) / _IN_FOLDER)
    _check_built(self, "load_weights")
    found = path if os.path.isfile(path) else f"{path}.index"
    if not _is_hdf5(found):
        if path.endswith(_ENDINGS) or not os.path.isfile(f"{path}.index"):
            stock(self, path, skip_mismatch, **kept, **kwargs)
        elif by_name:
            raise ValueError("load_weights(by_name=True) needs an HDF5 file; this is a checkpoint of TensorFlow.")
        else:
            checkpoints.read(self, path)
        return Loaded()
    with h5py.File(found, "r") as file:
        group = legacy_h5_format.safe_get_h5_group(file, "model_weights") if "model_weights" in file else file
        if "layer_names" not in group.attrs and "layer_names0" not in group.attrs:
            stock(self, path, skip_mismatch, **kept, **kwargs)  # Keras 3's own
        elif by_name:
            legacy_h5_format.load_weights_from_hdf5_group_by_name(group, self, skip_mismatch)
        else:
            legacy_h5_format.load_weights_from_hdf5_group(group, self, skip_mismatch)
    return Loaded()


def _is_hdf5(path: str) -> bool:
    return os.path.isfile(path) and bool(h5py.is_hdf5(path))


def _load_model(
    stock: Function, filepath: Any, custom_objects: Any = None, compile: bool = True, **kwargs: Any
) -> Any:
    path = os.fspath(filepath)
    kwargs.pop("options", None)
    if (Path(path) / _IN_FOLDER).exists():
        path = str(Path(path) / _IN_FOLDER)
    elif (Path(path) / "saved_model.pb").exists():
        raise out_of_reach(
            what=f"load_model({path!r})",
            why="a SavedModel is a TensorFlow graph",
            write="keras.layers.TFSMLayer on the CPU, or the model's code and its weights in a .h5 file",
        )
    elif not path.endswith(_ENDINGS) and _is_hdf5(path):
        return legacy_h5_format.load_model_from_hdf5(path, custom_objects, compile, **kwargs)
    return stock(path, custom_objects=custom_objects, compile=compile, **kwargs)
