"""Packages that old kernels import and that Keras 3 has not: under their names, from a fixed table."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from keras_tpu_ext.dropin import imports, report
from keras_tpu_ext.dropin.errors import out_of_reach
from keras_tpu_ext.dropin.stand_ins import tensorflow_1

# A module's old name, the names in it, and the file here that has them. These come before an installed package of
# that name: it was written for Keras 2.
_TABLE = """
efficientnet: preprocess_input center_crop_and_resize = efficientnet
efficientnet.tfkeras: EfficientNetB0 EfficientNetB1 EfficientNetB2 EfficientNetB3 EfficientNetB4 EfficientNetB5
    EfficientNetB6 EfficientNetB7 preprocess_input center_crop_and_resize = efficientnet
efficientnet.keras: EfficientNetB0 EfficientNetB1 EfficientNetB2 EfficientNetB3 EfficientNetB4 EfficientNetB5
    EfficientNetB6 EfficientNetB7 preprocess_input center_crop_and_resize = efficientnet
kaggle_datasets: KaggleDatasets = kaggle
tensorflow_addons: =
tensorflow_addons.optimizers: AdamW RectifiedAdam LAMB LazyAdam = addons_optimizers
tensorflow_addons.optimizers: Lookahead SWA = addons_averaging
tensorflow_addons.losses: SigmoidFocalCrossEntropy sigmoid_focal_crossentropy TripletSemiHardLoss
    triplet_semihard_loss TripletHardLoss triplet_hard_loss ContrastiveLoss contrastive_loss PinballLoss pinball_loss
    = addons_losses
tensorflow_addons.metrics: F1Score FBetaScore CohenKappa = addons_metrics
tensorflow_addons.layers: GroupNormalization InstanceNormalization WeightNormalization = addons_layers
tensorflow_addons.activations: mish gelu = addons_activations
tensorflow_addons.image: rotate transform translate cutout random_cutout = addons_image
tensorflow_addons.callbacks: TQDMProgressBar TimeStopping = addons_callbacks
"""

# What a package's names are here, as it is told.
_NEW = {
    "efficientnet": "the network of keras.applications without preprocessing inside: its inputs are as before",
    "kaggle_datasets": "the input folder",
    "tensorflow_addons": "the mathematics of TensorFlow Addons 0.23, on Keras 3",
}

# What to write for a name that has no stand-in; of others, what is said of the whole package.
_INSTEAD = {
    "tensorflow_addons": "the same in keras.ops, in a class of your own",
    "tensorflow_addons.optimizers.MovingAverage": "use_ema=True in the optimizer of Keras",
    "tensorflow_addons.layers.GELU": "keras.layers.Activation(tfa.activations.gelu)",
    "tensorflow_addons.layers.SpectralNormalization": "keras.layers.SpectralNormalization",
    "tensorflow_addons.layers.MultiHeadAttention": "keras.layers.MultiHeadAttention, which has other arguments",
    "tensorflow_addons.layers.AdaptiveAveragePooling2D": "GlobalAveragePooling2D or keras.ops.image.resize",
    "efficientnet.tfkeras.EfficientNetL2": "EfficientNetB7, the largest one there is here",
    "efficientnet": "keras.applications.EfficientNetB0 and its like",
    "kaggle_datasets": "the folder, /kaggle/input/<name>",
}


def _tables() -> dict[str, dict[str, str]]:
    """Return, for each module, the file here of each name in it."""
    modules: dict[str, dict[str, str]] = {}
    for row in _TABLE.replace("\n    ", " ").strip().splitlines():
        module, _, entry = row.partition(":")
        names, _, file = entry.partition("=")
        modules.setdefault(module, {}).update(dict.fromkeys(names.split(), file.strip()))
    return modules


MODULES = _tables()


@functools.cache
def _stand_in(name: str) -> ModuleType | None:
    """Return a module of the table, whose names are looked up there when they are used."""
    if name not in MODULES:
        return None
    module = ModuleType(name, "A stand-in of keras_tpu_ext.dropin.")
    vars(module).update(
        __all__=[*MODULES[name]],
        __path__=[],  # it has modules inside
        __spec__=ModuleSpec(name, imports.AnotherName(module), is_package=True),
        __version__="0.23.0" if name == "tensorflow_addons" else "1.1.1",
        __getattr__=_getter(name, MODULES[name]),
    )
    return module


def _getter(module: str, names: dict[str, str]) -> Callable[[str], Any]:
    """Return a module's `__getattr__`."""

    def get(name: str) -> Any:
        if f"{module}.{name}" in MODULES:
            return importlib.import_module(f"{module}.{name}")
        if name in names:
            report.told(f"{module}.{name}", _NEW[module.partition(".")[0]])
            return getattr(importlib.import_module(f"{__name__}.{names[name]}"), name)
        if name.startswith("_"):
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        package = module.partition(".")[0]
        raise out_of_reach(
            what=f"{module}.{name}",
            why=f"{package} is not here, and its stand-in has only {', '.join(sorted([*names, *_inside(module)]))}",
            write=_INSTEAD.get(f"{module}.{name}", _INSTEAD[package]),
        )

    return get


def _inside(module: str) -> list[str]:
    """Return the names of the modules inside a module."""
    return [name.rpartition(".")[2] for name in MODULES if name.rpartition(".")[0] == module]


def install() -> None:
    """Provide the packages of the table under their names, and TensorFlow 1's names."""
    tensorflow_1.install()
    imports.provide(_stand_in, first=True)
