"""Lambda layers in files that the same program has written, full checkpoints above all.

Keras 2 ran the code that stands in the file. Here no file's code runs: where it is the code of a lambda that this
program has saved, the layer gets that lambda; where it is not, Keras 3 refuses, and says how to trust a file.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from keras_tpu_ext.dropin.patching import Function, wrap

_SAVED: dict[str, Callable[..., Any]] = {}


def install() -> None:
    """Remember lambdas that are saved, and find them again."""
    wrap(
        {
            "keras.layers.Lambda._serialize_function_to_config": _remembering,
            "keras.layers.Lambda.from_config": _of_this_program,
            "keras.src.utils.python_utils.func_load": _found,
        }
    )


def _key(code: Any, defaults: Any = None, closure: Any = None) -> str:
    return repr((code, *(None if values is None else list(values) for values in (defaults, closure))))


def _remembering(stock: Function, self: Any, function: Any) -> Any:
    config = stock(self, function)
    if _is_lambda(config):
        _SAVED[_key(**config["config"])] = function
    return config


def _is_lambda(config: Any) -> bool:
    return isinstance(config, dict) and config.get("class_name") == "__lambda__"


def _of_this_program(
    stock: Function, cls: Any, config: dict[str, Any], custom_objects: Any = None, safe_mode: Any = None
) -> Any:
    lambdas = [value for value in config.values() if _is_lambda(value)]
    if lambdas and all(_key(**value["config"]) in _SAVED for value in lambdas):
        safe_mode = False
    return stock(cls, config, custom_objects, safe_mode)


def _found(stock: Function, code: Any, defaults: Any = None, closure: Any = None, globs: Any = None) -> Any:
    return _SAVED.get(_key(code, defaults, closure)) or stock(code, defaults, closure, globs)
