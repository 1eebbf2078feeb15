"""Keras 3's dtype policies."""

from __future__ import annotations

from typing import Any

import keras


def get_dtype_policy() -> Any:
    """Return the global dtype policy."""
    return keras.config.dtype_policy()


def set_dtype_policy(policy: Any) -> None:
    """Set the global dtype policy, given by name or as `get_dtype_policy` returned it."""
    keras.config.set_dtype_policy(policy)


def parse_dtype_policy(name: str) -> Any:
    """Return the policy of that name.

    Raises:
        ValueError: If there is none.
    """
    return keras.dtype_policies.DTypePolicy(name)
