"""Keras's dtype policies."""

from __future__ import annotations

from keras_tpu_ext._runtime.common.types import Policy
from keras_tpu_ext._runtime.compat import keras, policy_of


def get_dtype_policy() -> Policy:
    """Return the global dtype policy."""
    return keras.mixed_precision.global_policy()


def set_dtype_policy(policy: Policy | str) -> None:
    """Set the global dtype policy to a name, or to what `get_dtype_policy` returned."""
    keras.mixed_precision.set_global_policy(policy)


def parse_dtype_policy(name: str) -> Policy:
    """Return the floating-point policy called `name`.

    Raises:
        TypeError: If `name` is not a string.
        ValueError: If no model can train in it, or there is no such policy.
    """
    if not isinstance(name, str):
        raise TypeError(f"the name of a dtype policy must be a string; got {name!r}")
    policy = policy_of(name)
    if "float" not in (policy.compute_dtype or ""):
        raise ValueError(f"{name!r} computes in {policy.compute_dtype}")
    return policy
