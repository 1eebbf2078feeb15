"""Layers for models that train on TPUs."""

from keras_tpu_ext.layers.batch_normalization import BatchNormalization as BatchNormalization
from keras_tpu_ext.layers.device_normalization import DeviceNormalization as DeviceNormalization
from keras_tpu_ext.layers.dropout import Dropout as Dropout
from keras_tpu_ext.layers.for_tpu import for_tpu as for_tpu
from keras_tpu_ext.layers.mixing import CutMix as CutMix
from keras_tpu_ext.layers.mixing import MixUp as MixUp
from keras_tpu_ext.layers.one_hot_embedding import OneHotEmbedding as OneHotEmbedding
from keras_tpu_ext.layers.random_affine import RandomAffine as RandomAffine
from keras_tpu_ext.layers.random_erasing import RandomErasing as RandomErasing
from keras_tpu_ext.layers.random_flip_crop import RandomFlipCrop as RandomFlipCrop
from keras_tpu_ext.layers.remat import remat as remat

__all__ = [
    "BatchNormalization",
    "CutMix",
    "DeviceNormalization",
    "Dropout",
    "for_tpu",
    "MixUp",
    "OneHotEmbedding",
    "RandomAffine",
    "RandomErasing",
    "RandomFlipCrop",
    "remat",
]


def __dir__() -> list[str]:
    return __all__
