"""The error for what has no counterpart on JAX."""

from __future__ import annotations

from typing import Any

from keras_tpu_ext.errors import KteError

OWN_VARIABLE = "self.add_weight(...) in the layer, or keras.Variable(...)"


class OutOfReachError(KteError, NotImplementedError, TypeError):
    """An old program needs something that the drop-in cannot run on JAX; the message has the line to write.

    It is a `TypeError`, too, as JAX's own is: TensorFlow answers this one, raised by a function inside another, by
    asking the dispatcher for the outer function.
    """


def out_of_reach(*, what: str, why: str, write: str, page: str = "docs/dropin.md") -> OutOfReachError:
    """Return the error for `what`.

    Args:
        what: The old name, as users write it.
        why: Why it cannot run on JAX; a clause.
        write: What to write instead.
        page: Where more is said.
    """
    return OutOfReachError(f"{what} cannot run on JAX: {why}. Write instead: {write}. See {page}.")


def variable_in_model(variable: Any) -> OutOfReachError:
    """Return the error for a `tf.Variable` that a model uses."""
    return out_of_reach(
        what=f"the tf.Variable {variable.name!r} in a model",
        why="a JAX step would neither train it nor see a new value",
        write=OWN_VARIABLE,
    )
