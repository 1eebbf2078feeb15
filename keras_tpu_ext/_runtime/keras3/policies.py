"""Keras 3's dtype policies."""

from __future__ import annotations

import keras


def get_dtype_policy() -> keras.DTypePolicy:
    """Return the global dtype policy."""
    return keras.config.dtype_policy()


def set_dtype_policy(policy: keras.DTypePolicy | str) -> None:
    """Set the global dtype policy."""
    keras.config.set_dtype_policy(policy)


def parse_dtype_policy(name: str) -> keras.DTypePolicy:
    """Return the floating-point policy called `name`; see `common/protocols.py`."""
    if not isinstance(name, str):
        raise TypeError(f"the name of a dtype policy must be a string; got {name!r}")
    policy = keras.dtype_policies.get(name)
    if "float" not in policy.compute_dtype:
        raise ValueError(f"{name!r} computes in {policy.compute_dtype}")
    return policy
