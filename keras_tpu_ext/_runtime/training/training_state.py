"""Check that saved variables are those of a model."""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence

from keras_tpu_ext._runtime.common.types import Variable
from keras_tpu_ext._runtime.common.values import SavedVariable
from keras_tpu_ext._runtime.compat import dtype_of, path_of
from keras_tpu_ext.checks.schema import plain
from keras_tpu_ext.errors import CheckpointError

_ROLES = {
    "weight": "weights",
    "optimizer": "variables of its optimizer",
    "metric": "variables of its metrics",
    "step": "variables of its loss scale and of its accumulated gradients",
    "random": "random generators",
}


def check_same(saved: Sequence[SavedVariable], variables: Sequence[tuple[str, Variable]]) -> None:
    """Check that `saved` are values of `variables`, in their order."""
    for role, words in _ROLES.items():
        were = [one for one in saved if one.role == role]
        are = [variable for its_role, variable in variables if its_role == role]
        if len(were) != len(are):
            raise CheckpointError(f"it has {len(were)} {words}, and this model has {len(are)}")
        old, new = [one.path for one in were], [path_of(variable) for variable in are]
        # Those of an optimizer are in the order of the weights, and their names end in several counts.
        names_of = _without_any_counts if role == "optimizer" else _without_counts
        names = zip(names_of(old), names_of(new), strict=True)
        for one, variable, (was, now) in zip(were, are, names, strict=True):
            path, shape = plain(one.path), one.value.shape[1:] if one.per_replica else one.value.shape
            if was != now:
                raise CheckpointError(f"it has {path} where this model has {path_of(variable)}")
            if tuple(shape) != tuple(variable.shape):
                raise CheckpointError(
                    f"its {path} has the shape {tuple(shape)}, where this model has {path_of(variable)} of the "
                    f"shape {tuple(variable.shape)}"
                )
            if one.value.dtype.name != dtype_of(variable):
                raise CheckpointError(
                    f"its {path} is of {one.value.dtype.name}, where this model has {path_of(variable)} of "
                    f"{dtype_of(variable)}"
                )


_COUNT = re.compile(r"_(\d{1,9})(?=[_/]|$)")


def _without_any_counts(paths: Sequence[str]) -> list[str]:
    return [_COUNT.sub("", path) for path in paths]


def _without_counts(paths: Sequence[str]) -> list[str]:
    """Return paths in which the numbers by which Keras tells equal names apart begin at 0.

    Keras counts names through a whole process: the first `dense` of one may be `dense_4` in another. A name that
    comes with other numbers gets the position of its number among these.
    """
    parts = [[_parted(part) for part in path.split("/")] for path in paths]
    counts: dict[str, set[tuple[int, ...]]] = {}
    for name, count in itertools.chain.from_iterable(parts):
        counts.setdefault(name, set()).add(count)
    order = {name: sorted(numbers) for name, numbers in counts.items()}
    return ["/".join(f"{name}_{order[name].index(count)}" for name, count in path) for path in parts]


def _parted(part: str) -> tuple[str, tuple[int, ...]]:
    return _COUNT.sub("", part), tuple(map(int, _COUNT.findall(part)))
