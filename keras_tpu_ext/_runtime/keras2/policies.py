"""Keras 2's dtype policies."""

from __future__ import annotations

import tensorflow as tf

from keras_tpu_ext._runtime.compat.keras2 import keras


def get_dtype_policy() -> tf.keras.mixed_precision.Policy:
    """Return the global dtype policy."""
    return keras.mixed_precision.global_policy()


def set_dtype_policy(policy: tf.keras.mixed_precision.Policy | str) -> None:
    """Set the global dtype policy."""
    keras.mixed_precision.set_global_policy(policy)


def parse_dtype_policy(name: str) -> tf.keras.mixed_precision.Policy:
    """Return the floating-point policy called `name`; see `common/protocols.py`."""
    if not isinstance(name, str):
        raise TypeError(f"the name of a dtype policy must be a string; got {name!r}")
    policy = keras.mixed_precision.Policy(name)
    if not policy.compute_dtype or "float" not in policy.compute_dtype:
        raise ValueError(f"{name!r} computes in {policy.compute_dtype}")
    return policy
