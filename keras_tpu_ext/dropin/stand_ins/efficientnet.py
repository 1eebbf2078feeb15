"""`efficientnet.tfkeras`: EfficientNets without preprocessing inside, from keras.applications.

The weights of https://github.com/qubvel/efficientnet fit: its layers with weights are those of keras.applications, in
the same order.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import keras
import numpy as np

from keras_tpu_ext.errors import KteError

_MEAN = np.array([0.485, 0.456, 0.406], "float32")
_STD = np.array([0.229, 0.224, 0.225], "float32")

# Where the package downloads the weights that have a name, and what their files are called.
_FILES = {
    "imagenet": (
        "https://github.com/Callidior/keras-applications/releases/download/efficientnet/",
        "{name}_weights_tf_dim_ordering_tf_kernels_autoaugment{top}.h5",
    ),
    "noisy-student": (
        "https://github.com/qubvel/efficientnet/releases/download/v0.0.1/",
        "{name}_noisy-student{top}.h5",
    ),
}
_BLOCKS = 16  # of B0; the package counts these when it says how often a block of any of them is dropped


def preprocess_input(x: Any, **kwargs: Any) -> Any:
    """Return pixels of 0 to 255 as the weights want them: of 0 to 1, without ImageNet's mean, over its deviation."""
    del kwargs  # modules of Keras
    x = x.astype("float32") if isinstance(x, np.ndarray) else x
    return (x / 255.0 - _MEAN) / _STD


def _network(number: int) -> Callable[..., Any]:
    """Return the function that makes one of the networks."""
    name = f"efficientnet-b{number}"

    def make(
        include_top: bool = True,
        weights: str | None = "imagenet",
        input_tensor: Any = None,
        input_shape: Any = None,
        pooling: str | None = None,
        classes: int = 1000,
        drop_connect_rate: float | None = None,
        **kwargs: Any,
    ) -> Any:
        del kwargs  # modules of Keras
        if weights == "imagenet" and include_top and classes != 1000:
            raise ValueError(
                'If using `weights` as `"imagenet"` with `include_top` as true, `classes` should be 1000'
            )
        rate = {} if drop_connect_rate is None else {"drop_connect_rate": drop_connect_rate}
        model = _without_preprocessing(number, include_top, input_shape, pooling, classes, **rate)
        if weights is not None:
            model.load_weights(_file(weights, name, include_top))
        if input_tensor is not None:
            output = model._run_through_graph(input_tensor, operation_fn=lambda operation: operation)
            model = keras.Model(keras.utils.get_source_inputs(input_tensor), output)
        model.name = name
        return model

    make.__name__ = make.__qualname__ = f"EfficientNetB{number}"
    make.__doc__ = f"Return EfficientNet-B{number} for preprocessed inputs, as the package does."
    return make


def _without_preprocessing(
    number: int, include_top: bool, input_shape: Any, pooling: Any, classes: int, **rate: float
) -> Any:
    """Return the network of keras.applications, from the layer after its preprocessing on, with random weights."""
    whole = getattr(keras.applications, f"EfficientNetB{number}")(
        include_top=include_top, weights=None, input_shape=input_shape, pooling=pooling, classes=classes, **rate
    )
    drops = [layer for layer in whole.layers if layer.name.startswith("block") and layer.name.endswith("_drop")]
    blocks = sum(layer.name.endswith("_dwconv") for layer in whole.layers)
    for layer in drops:
        layer.rate *= blocks / _BLOCKS
    first = whole.get_layer("stem_conv_pad")
    return keras.Model(first.input, whole.output)


def _file(weights: str, name: str, include_top: bool) -> str:
    """Return the path of a file of weights; those with a name are downloaded, if they were not before."""
    if weights not in _FILES:
        if not os.path.exists(weights):
            known = ", ".join(map(repr, _FILES))
            raise ValueError(
                f"`weights` needs to be None, {known} or the path of a file; there is no file {weights!r}"
            )
        return str(weights)
    place, file = _FILES[weights]
    file = file.format(name=name, top="" if include_top else "_notop")
    try:
        return str(keras.utils.get_file(file, place + file, cache_subdir="models"))
    except Exception as error:  # urllib's, or one of a proxy
        raise KteError(
            f"The weights {weights!r} of {name} need the file {file}, and it cannot be downloaded ({error}). Attach "
            f"a data set that has it and write weights='/kaggle/input/<data set>/{file}', or switch the internet on."
        ) from error


EfficientNetB0, EfficientNetB1, EfficientNetB2, EfficientNetB3 = map(_network, range(4))
EfficientNetB4, EfficientNetB5, EfficientNetB6, EfficientNetB7 = map(_network, range(4, 8))
