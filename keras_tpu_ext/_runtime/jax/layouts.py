"""The layouts of a model's variables on its devices, and likely mistakes in them."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

import jax
import keras

from keras_tpu_ext._runtime.common.layouts import LayerFacts, Role, Spec, VariableLayout
from keras_tpu_ext._runtime.compat.keras3 import path_of
from keras_tpu_ext._runtime.compat.keras3_jax import layout_of
from keras_tpu_ext._runtime.jax.scope import distribution_of, mesh_sizes
from keras_tpu_ext._runtime.jax.sharded_parallel import ShardedParallel, facts_of
from keras_tpu_ext._runtime.jax.update import step_variables
from keras_tpu_ext._runtime.keras3.models import flatten_layers, optimizers_of
from keras_tpu_ext._runtime.training.step_state import step_state_of
from keras_tpu_ext.errors import LayoutWarning

_TOLD = "_kte_layout_told"
_Distribution: TypeAlias = "keras.distribution.Distribution | None"


def layouts(model: keras.Model) -> list[VariableLayout]:
    """Return the layout of each variable of a model, weights first."""
    distribution = distribution_of(model)
    return _rows(model, distribution, _spec_of_made)


def layouts_under(
    model: keras.Model, distribution: keras.distribution.Distribution, specs: Mapping[int, Spec]
) -> list[VariableLayout]:
    """Return the layout of each variable of a model under a distribution, by its `specs_under`, weights first."""
    return _rows(model, distribution, lambda variable: specs[id(variable)])


def layout_complaints(model: keras.Model) -> list[str]:
    """Return likely mistakes: patterns that match nothing, and large weights that are not sharded."""
    return complaints_of(layouts(model), distribution_of(model))


def complaints_of(rows: Sequence[VariableLayout], distribution: _Distribution) -> list[str]:
    """Return likely mistakes in the layouts of a model under a distribution."""
    found = []
    if isinstance(distribution, ShardedParallel):
        unmatched = distribution.unmatched([row.path for row in rows])
        found += [f"the pattern {pattern!r} of `shard` matches no variable" for pattern in unmatched]
    is_named = distribution.names if isinstance(distribution, ShardedParallel) else lambda path: False
    weights = [row for row in rows if row.role == "weight"]
    found += [f"{row.path} {row.shape}: {row.note}" for row in weights if row.note]
    found += [
        f"{row.path} {row.shape}, {row.bytes / 2**20:.1f} MiB, is not sharded"
        for row in weights
        if row.is_large and row.is_replicated and not is_named(row.path)
    ]
    return found


def warn_of_layouts(model: keras.Model) -> None:
    """Warn once about a model with likely mistakes in its layouts."""
    if not isinstance(distribution_of(model), ShardedParallel) or vars(model).get(_TOLD):
        return
    vars(model)[_TOLD] = True
    found = layout_complaints(model)
    if found:
        warnings.warn(
            f"The layout of {model.name!r} is surely not meant: {'; '.join(found)}. "
            "print(scope.layout(model)) shows all of it.",
            LayoutWarning,
            stacklevel=2,
        )


def specs_under(model: keras.Model, distribution: keras.distribution.Distribution) -> dict[int, Spec]:
    """Return, by `id`, the axes along which each variable would be sharded if created under a distribution."""
    variables = _by_role(model)
    if not isinstance(distribution, ShardedParallel):
        return {id(one): (None,) * len(one.shape) for some in variables.values() for one in some}
    facts: dict[int, LayerFacts] = {}
    for layer in flatten_layers(model):  # an inner layer comes after its outer one
        facts |= {id(weight): facts_of(layer) for weight in layer.weights}
    specs = {id(one): distribution.spec_of(one, facts.get(id(one))) for some in variables.values() for one in some}
    weights = {path_of(weight).replace("/", "_"): weight for weight in variables["weight"]}
    for slot in variables["optimizer"]:
        weight = _weight_of(slot, weights)
        if weight is not None:
            specs[id(slot)] = specs[id(weight)]
    state = step_state_of(model)
    for window in [] if state is None else state.accumulators():
        specs |= {id(total): specs[id(weight)] for total, weight in zip(window.sums, window.targets, strict=False)}
    return specs


def _weight_of(slot: keras.Variable, weights: Mapping[str, keras.Variable]) -> keras.Variable | None:
    """Return the weight that an optimizer's variable, such as a momentum, belongs to, by its name from Keras."""
    name = path_of(slot).rpartition("/")[2]
    while name:
        name = name.rpartition("_")[0]
        weight = weights.get(name)
        if weight is not None and tuple(weight.shape) == tuple(slot.shape):
            return weight
    return None


def variables_of(model: keras.Model) -> list[keras.Variable]:
    """Return every variable of a model and of its training, once."""
    return [variable for variables in _by_role(model).values() for variable in variables]


def _by_role(model: keras.Model) -> dict[Role, list[keras.Variable]]:
    optimizer = [variable for one in optimizers_of(model) for variable in one.variables]
    metrics = list(model.metrics_variables)
    state = step_state_of(model)
    windows = [] if state is None else state.accumulators()
    accumulators = [total for window in windows for total in window.sum_variables()]
    known = {id(variable) for variable in (*optimizer, *metrics, *accumulators)}
    own = [] if state is None else step_variables(state)
    others = [variable for variable in (*model.variables, *own) if id(variable) not in known]
    weights = {id(variable) for variable in model.weights}
    return {
        "weight": [variable for variable in others if id(variable) in weights],
        "optimizer": optimizer,
        "accumulator": accumulators,
        "metric": metrics,
        "other": [variable for variable in others if id(variable) not in weights],
    }


def _rows(
    model: keras.Model, distribution: _Distribution, spec_of: Callable[[keras.Variable], Spec]
) -> list[VariableLayout]:
    sizes = {} if distribution is None else mesh_sizes(distribution)
    rows = []
    for role, variables in _by_role(model).items():
        for variable in variables:
            path, shape, spec = path_of(variable), tuple(map(int, variable.shape)), spec_of(variable)
            size = math.prod(shape) * jax.numpy.dtype(variable.dtype).itemsize
            parts = math.prod(sizes.get(name, 1) for name in spec if name is not None)
            note = distribution.note_of(path, shape) if isinstance(distribution, ShardedParallel) else ""
            rows.append(VariableLayout(path, role, shape, str(variable.dtype), spec, size, size // parts, note))
    return rows


def _spec_of_made(variable: keras.Variable) -> Spec:
    layout = layout_of(variable)
    # Keras before 3.10 keeps JAX's sharding.
    axes: Sequence[str | None] = getattr(layout, "axes", ()) or getattr(layout, "spec", ())
    return (*axes, *[None] * (len(variable.shape) - len(axes)))
