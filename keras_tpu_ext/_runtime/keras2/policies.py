"""Keras 2's dtype policies."""

from __future__ import annotations

from typing import Any

from keras_tpu_ext._runtime.compat.keras2 import keras


def get_dtype_policy() -> Any:
    """Return the global dtype policy."""
    return keras.mixed_precision.global_policy()


def set_dtype_policy(policy: Any) -> None:
    """Set the global dtype policy, given by name or as `get_dtype_policy` returned it."""
    keras.mixed_precision.set_global_policy(policy)


def parse_dtype_policy(name: str) -> Any:
    """Return the floating-point policy of that name.

    Raises:
        TypeError: If `name` is no string.
        ValueError: If there is none, or one that a model cannot train in, such as "bool" or "int8".
    """
    if not isinstance(name, str):
        raise TypeError(f"the name of a dtype policy must be a string; got {name!r}")
    policy = keras.mixed_precision.Policy(name)
    if not policy.compute_dtype or "float" not in policy.compute_dtype:
        raise ValueError(f"{name!r} computes in {policy.compute_dtype}")
    return policy
