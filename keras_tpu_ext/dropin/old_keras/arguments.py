"""Arguments of layers, models, regularizers and inputs that Keras 2 took and Keras 3 does not."""

from __future__ import annotations

import functools
import inspect
import warnings
from collections.abc import Mapping
from typing import Any

import keras
import numpy as np
from keras.src import activations, constraints, losses, metrics, regularizers

from keras_tpu_ext.dropin.errors import out_of_reach
from keras_tpu_ext.dropin.patching import Function, replace, wrap
from keras_tpu_ext.dropin.report import mapped, means_old, told
from keras_tpu_ext.tools.migrate.tables.old_arguments import ARGUMENTS

_DROPPING = """EfficientNetB0 EfficientNetB1 EfficientNetB2 EfficientNetB3 EfficientNetB4 EfficientNetB5
    EfficientNetB6 EfficientNetB7"""
_DROP_CONNECT = 0.2  # the rate of keras.applications
_OF_LAYERS = {**ARGUMENTS["keras.layers.*"], "input_length": "-"}
_RENAMED = ("keras.layers.Dropout", "keras.layers.LeakyReLU", "keras.regularizers.L1", "keras.regularizers.L2")
# What Keras 2 knew by other names than Keras 3.
_IDENTIFIERS: Mapping[object, object] = {
    "maxnorm": "max_norm",
    "nonneg": "non_neg",
    "unitnorm": "unit_norm",
    "logcosh": "log_cosh",
    "huber_loss": "huber",
    "kullback_leibler_divergence": "kl_divergence",
}


def install() -> None:
    """Take old arguments."""
    layers = "keras.layers"
    wrap(
        {
            f"{layers}.Layer.__init__": _layer,
            f"{layers}.Layer._post_build": _setting_weights,
            "keras.Operation.__init__": _without_slash,
            f"{layers}.InputLayer.__init__": _input_layer,
            f"{layers}.Embedding.__init__": _embedding,
            f"{layers}.BatchNormalization.__init__": _batch_normalization,
            f"{layers}.Lambda.__init__": _lambda,
            "keras.DTypePolicy.__init__": functools.partial(renamed, ARGUMENTS["keras.mixed_precision.Policy"]),
            "keras.src.models.model.functional_init_arguments": _knows_input,
            "keras.src.models.functional.Functional.__init__": functools.partial(renamed, ARGUMENTS["keras.Model"]),
            "keras.Sequential.__init__": _sequential,
            "keras.Sequential.add": _with_batch_size,
            **{f"{layers}.AveragePooling{rank}D.__init__": _pool_of_two for rank in (1, 2, 3)},
            **{f"{layers}.ConvLSTM{rank}D.__init__": _conv_lstm for rank in (1, 2, 3)},
            "keras.src.activations.get": _get_activation,
            **{f"{of}.__init__": functools.partial(renamed, ARGUMENTS[of]) for of in _RENAMED},
        }
    )
    kinds = (activations, constraints, losses, metrics, regularizers)
    modules = ("keras.applications", "keras.applications.efficientnet")
    wrap({f"{module}.{name}": _dropping for name in _DROPPING.split() for module in modules})
    wrap({f"{kind.__name__}.get": functools.partial(_by_own_name, kind.ALL_OBJECTS_DICT) for kind in kinds})
    replace(
        {
            "keras.activations.get": lambda _: activations.get,
            "keras.activations.hard_sigmoid": lambda _: hard_sigmoid,
            "keras.regularizers.l1_l2": lambda _: l1_l2,
            "keras.Sequential.build": lambda stock: functools.partialmethod(_built_once, stock),
        }
    )


def l1_l2(*args: Any, **kwargs: Any) -> Any:
    """Return a regularizer with the defaults of Keras 2, 0.01; those of Keras 3's `l1_l2` are 0."""
    given = {**dict(zip(("l1", "l2"), args, strict=False)), **kwargs}
    if len(given) < 2 and means_old("l1_l2 without l1 or l2", "0.01, as in Keras 2"):
        given = {"l1": 0.01, "l2": 0.01, **given}
    return keras.regularizers.L1L2(**given)


@functools.wraps(activations.hard_sigmoid)  # it is saved by its name
def hard_sigmoid(x: Any) -> Any:
    """Return Keras 2's hard sigmoid, whose slope is 0.2; that of Keras 3 is 1/6."""
    if means_old("hard_sigmoid", "clip(0.2 * x + 0.5, 0, 1), as in Keras 2; that of Keras 3 has the slope 1/6"):
        return keras.ops.clip(0.2 * x + 0.5, 0.0, 1.0)
    return hard_sigmoid.__wrapped__(x)


def _dropping(stock: Function, *args: Any, drop_connect_rate: float | None = None, **kwargs: Any) -> Any:
    """Take `drop_connect_rate`: how often the last block is dropped, and those before it less."""
    model = stock(*args, **kwargs)
    if drop_connect_rate is not None:
        mapped("drop_connect_rate=", "rates of the network's dropout layers")
        drops = [layer for layer in model.layers if layer.name.startswith("block") and layer.name.endswith("_drop")]
        for layer in drops:
            layer.rate *= drop_connect_rate / _DROP_CONNECT
    return model


def _get_activation(stock: Function, identifier: Any) -> Any:
    if isinstance(identifier, dict) and identifier.get("module") == "builtins":  # a saved tf.nn.swish
        name = str(identifier.get("config"))
        identifier = name if name in activations.ALL_OBJECTS_DICT else identifier
    found = stock(identifier)
    return hard_sigmoid if found is hard_sigmoid.__wrapped__ else found


def _by_own_name(todays: Mapping[str, object], stock: Function, identifier: Any) -> Any:
    """Look among the program's custom objects first, of which Keras 3 finds only some by a plain name."""
    own = keras.saving.get_registered_object(identifier) if isinstance(identifier, str) else None
    if own is None:
        return stock(_as_then(identifier) if isinstance(identifier, str) else identifier)
    if identifier in todays and not means_old(f"a custom object {identifier!r}", "it, by name"):
        return stock(identifier)
    mapped("get_custom_objects().update(...)", "its objects, by name")
    return own() if inspect.isclass(own) else own


def _as_then(identifier: str) -> Any:
    """Return what Keras 3 has for an identifier of Keras 2."""
    if identifier == "l1_l2" and means_old("l1_l2", "0.01 for what is not given, as in Keras 2; in Keras 3 it is 0"):
        return {"class_name": "L1L2", "config": {"l1": 0.01, "l2": 0.01}}
    return _IDENTIFIERS.get(identifier, identifier)


def _conv_lstm(init: Function, self: Any, *args: Any, **kwargs: Any) -> None:
    """Give ConvLSTM layers the default of Keras 2."""
    if len(args) < 8 and "recurrent_activation" not in kwargs and means_old("ConvLSTM", "with hard_sigmoid"):
        kwargs["recurrent_activation"] = "hard_sigmoid"
    init(self, *args, **kwargs)


def _layer(init: Function, self: Any, *args: Any, **kwargs: Any) -> None:
    kwargs.update(zip(("trainable", "name", "dtype", "dynamic"), args, strict=False))  # Keras 2's order
    rename(_OF_LAYERS, kwargs)
    for name in ("sparse", "time_major", "virtual_batch_size"):
        if value := kwargs.pop(name, None):
            raise out_of_reach(
                what=f"{type(self).__name__}({name}={value!r})",
                why="Keras 3 has no such argument",
                write=f"the layer without {name}, on inputs that need none",
            )
    shape = kwargs.pop("batch_input_shape", None)
    if shape is not None:
        mapped("batch_input_shape=", "input_shape=, or an Input(batch_shape=)")
        kwargs["input_shape"] = tuple(shape)[1:]
    if isinstance(kwargs.get("input_shape"), (int, np.integer)):
        mapped("input_shape=n", "input_shape=(n,)")
        kwargs["input_shape"] = (int(kwargs["input_shape"]),)
    weights = kwargs.pop("weights", None)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Do not pass an `input_shape`")
        init(self, **kwargs)
    self._allow_non_tensor_positional_args = True  # `layer(x, training, mask)`
    if shape is not None and shape[0] is not None:
        vars(self)["_kte_batch_shape"] = tuple(shape)
    if weights is not None:
        mapped("weights=", "set_weights")
        vars(self)["_kte_weights"] = weights


def _setting_weights(post_build: Function, self: Any) -> None:
    """Set the weights that a layer was made with, when it has variables."""
    weights = vars(self).pop("_kte_weights", None)
    if weights is not None:
        self.set_weights(list(weights))
    post_build(self)


def _without_slash(init: Function, self: Any, name: Any = None) -> None:
    """Take "/" in a name, which Keras 3 refuses."""
    if isinstance(name, str) and "/" in name:
        told(f"the name {name!r}", repr(name.replace("/", "_")))
        name = name.replace("/", "_")
    init(self, name=name)


def _input_layer(init: Function, self: Any, *args: Any, **kwargs: Any) -> None:
    rename(ARGUMENTS["keras.layers.InputLayer"], kwargs)
    kwargs.pop("type_spec", None)
    shape = args[0] if args else kwargs.get("shape")
    if isinstance(shape, (int, np.integer)):
        mapped("Input(shape=n)", "Input(shape=(n,))")
        kwargs["shape"] = (int(shape),)
        args = ()
    init(self, *args, **kwargs)


def _embedding(init: Function, self: Any, input_dim: Any, output_dim: Any, *args: Any, **kwargs: Any) -> None:
    length = kwargs.pop("input_length", None)
    if length is not None:
        mapped("Embedding(input_length=)", "input_shape=")
    if not {"input_shape", "batch_input_shape"} & kwargs.keys():  # a Sequential was built at once
        kwargs["input_shape"] = tuple(length) if isinstance(length, (tuple, list)) else (length,)
    init(self, _whole(input_dim), _whole(output_dim), *args, **kwargs)


def _whole(size: Any) -> Any:
    return int(size) if isinstance(size, (np.integer, float)) and int(size) == size else size


def _batch_normalization(init: Function, self: Any, axis: Any = -1, *args: Any, **kwargs: Any) -> None:
    if isinstance(axis, (list, tuple)):
        if len(axis) != 1:
            raise out_of_reach(
                what=f"BatchNormalization(axis={list(axis)})",
                why="Keras 3 normalises along one axis",
                write="a Reshape that joins the axes before the layer",
            )
        mapped("BatchNormalization(axis=[i])", "axis=i")
        axis = axis[0]
    if kwargs.pop("synchronized", False):
        mapped("BatchNormalization(synchronized=)", "the exact step's statistics, which are of the whole batch")
    vars(self)["_kte_fused"] = kwargs.get("fused") is not False
    init(self, axis, *args, **kwargs)


def _lambda(init: Function, self: Any, function: Any, *args: Any, **kwargs: Any) -> None:
    """Take functions without a signature, `int` for instance."""
    try:
        inspect.getfullargspec(function)
    except TypeError:
        mapped("Lambda(function without signature)", "Lambda(lambda x: function(x))")
        made = function if function is not int else functools.partial(keras.ops.cast, dtype="int32")
        init(self, lambda x: made(x), *args, **kwargs)
    else:
        init(self, function, *args, **kwargs)


def rename(names: Mapping[str, str], kwargs: dict[str, Any]) -> None:
    """Give arguments their names of today, or leave them out where the table says `-`: they change no number."""
    for old in [one for one in kwargs if names.get(one, "?") not in ("?", one)]:
        value, new = kwargs.pop(old), names[old]
        mapped(f"{old}=", "nothing" if new == "-" else f"{new}=")
        if new != "-":
            kwargs[new] = value


def renamed(names: Mapping[str, str], init: Function, self: Any, *args: Any, **kwargs: Any) -> None:
    """Make an object with arguments under their old names."""
    rename(names, kwargs)
    init(self, *args, **kwargs)


def _with_batch_size(add: Function, self: Any, layer: Any, *args: Any, **kwargs: Any) -> None:
    """Make the input of the whole `batch_input_shape=`: layers with a state need its batch size."""
    shape = vars(layer).get("_kte_batch_shape") if not self._layers else None
    if shape is not None:
        add(self, keras.layers.InputLayer(batch_shape=shape), *args, **kwargs)
    add(self, layer, *args, **kwargs)


def _built_once(self: Any, build: Function, input_shape: Any = None) -> None:
    """Leave a model as it is that knows its inputs; Keras 3 wants the same shape again."""
    if self._functional is None:
        build(self, input_shape)


def _pool_of_two(init: Function, self: Any, pool_size: Any = 2, *args: Any, **kwargs: Any) -> None:
    init(self, pool_size, *args, **kwargs)


def _knows_input(stock: Function, args: Any, kwargs: Any) -> bool:
    return bool(stock(args, kwargs)) or bool({"input", "output"} & kwargs.keys())


def _sequential(init: Function, self: Any, layers: Any = None, *args: Any, **kwargs: Any) -> None:
    if args and isinstance(args[0], str):  # Keras 2's order
        mapped("Sequential(layers, name)", "name=")
        kwargs["name"], args = args[0], ()
    init(self, layers, *args, **kwargs)
