"""TensorFlow's functions on JAX values, through TensorFlow's own dispatcher.

A TensorFlow function that gets a value it cannot convert asks the registered dispatchers, as it did for the tensors
of Keras 2. Functions that do not ask are replaced by argument: on TensorFlow's tensors they stay what they are.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from tensorflow.python.util import dispatch, tf_export

from keras_tpu_ext.dropin.patching import replace
from keras_tpu_ext.dropin.tensors import call, has_jax_value

# Functions that do not ask a dispatcher.
_DIRECT = (
    "constant",
    "print",
    "image.grayscale_to_rgb",
    "image.psnr",
    "signal.irfft",
    "signal.rfft",
)


class _OnJax(dispatch.GlobalOpDispatcher):
    def handle(self, op: Any, args: Any, kwargs: Any) -> Any:
        if not has_jax_value((args, kwargs)):
            return self.NOT_SUPPORTED
        return call(_name_of(op), args, kwargs)


@functools.cache
def _name_of(op: Any) -> str:
    name = tf_export.get_canonical_name_for_symbol(op)
    return str(name or getattr(op, "__name__", op))


def by_argument(
    name: str, is_chosen: Callable[[Any], bool] = has_jax_value, run: Callable[..., Any] = call
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return a decorator that sends a TensorFlow function to the table where it gets a JAX value.

    Args:
        name: Its name in the table.
        is_chosen: Whether it goes there, if that is not for its arguments.
        run: What runs it then, as `call` does.
    """

    def decorate(original: Callable[..., Any]) -> Callable[..., Any]:
        def function(*args: Any, **kwargs: Any) -> Any:
            return run(name, args, kwargs) if is_chosen((args, kwargs)) else original(*args, **kwargs)

        return function

    return decorate


def install() -> None:
    """Register the dispatcher, and replace what does not ask one."""
    _OnJax().register()
    replace({f"tensorflow.{name}": by_argument(name) for name in _DIRECT})
