"""Hide the accelerators from TensorFlow when it is used beside JAX, for `tf.data` for instance.

Only one framework can hold a TPU chip (jax#13260), and TensorFlow takes all memory of a GPU with its first tensor.
"""

from __future__ import annotations

import sys
import warnings

from keras_tpu_ext.errors import HardwareUnusableWarning


def hide_accelerators() -> None:
    """Hide TPUs and GPUs from TensorFlow, now or as soon as it is imported."""
    if "tensorflow" in sys.modules:
        _hide()
    elif _HIDE_ON_IMPORT not in sys.meta_path:
        sys.meta_path.insert(0, _HIDE_ON_IMPORT)


def _hide() -> None:
    tensorflow = sys.modules["tensorflow"]
    for kind in ("TPU", "GPU"):
        try:
            tensorflow.config.set_visible_devices([], kind)
        except RuntimeError:
            held = tensorflow.config.get_visible_devices(kind)
            if held:
                warnings.warn(_HELD.format(kind=kind), HardwareUnusableWarning, stacklevel=2)


_HELD = (
    "TensorFlow has started the {kind}s of this machine, and Keras trains on JAX: only one framework can have them. "
    'Before the first line that uses TensorFlow, write: tf.config.set_visible_devices([], "{kind}"), or open '
    "strategy_scope() earlier."
)


class _HideOnImport:
    """An import finder that finds no module, but hides the accelerators at the first import after TensorFlow's.

    TensorFlow keeps importing modules lazily while it runs, so this happens before any device is started.
    """

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        tensorflow = sys.modules.get("tensorflow")
        if getattr(getattr(tensorflow, "__spec__", None), "_initializing", True) or not hasattr(tensorflow, "config"):
            return
        sys.meta_path.remove(self)
        _hide()


_HIDE_ON_IMPORT = _HideOnImport()
