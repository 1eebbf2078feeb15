"""The layouts of a model's variables on its devices, and likely mistakes in them."""

from __future__ import annotations

import contextlib
import math
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TypeAlias

import jax
import keras

from keras_tpu_ext._runtime.common.layouts import LayerFacts, ModelLayout, Role, Spec, VariableLayout
from keras_tpu_ext._runtime.common.user_frame import user_stack_level
from keras_tpu_ext._runtime.compat.keras3 import path_of
from keras_tpu_ext._runtime.compat.keras3_jax import layout_of, spec_of_layout
from keras_tpu_ext._runtime.jax.scope import distribution_of, mesh_sizes
from keras_tpu_ext._runtime.jax.sharded_parallel import ShardedParallel, facts_of, facts_of_variable
from keras_tpu_ext._runtime.jax.update import step_variables
from keras_tpu_ext._runtime.keras3.models import optimizers_of
from keras_tpu_ext._runtime.training.models import flatten_layers
from keras_tpu_ext._runtime.training.step_state import step_state_of
from keras_tpu_ext.errors import LayoutWarning

_Distribution: TypeAlias = "keras.distribution.Distribution | None"


def layout(model: keras.Model) -> ModelLayout:
    """Return the layout of a built model."""
    distribution = distribution_of(model)
    rows = _rows(model, distribution, _spec_of_created)
    mesh = mesh_sizes(distribution) if isinstance(distribution, ShardedParallel) else {}
    has_slots = all(optimizer.built for optimizer in optimizers_of(model))
    return ModelLayout(mesh, tuple(rows), tuple(complaints_of(rows, distribution)), has_slots)


def layouts_under(
    model: keras.Model, distribution: keras.distribution.Distribution, specs: Mapping[int, Spec]
) -> list[VariableLayout]:
    """Return the layout of each variable of a model under a distribution, by its `specs_under`, weights first."""
    sizes = mesh_sizes(distribution)
    return _rows(model, distribution, lambda variable: (specs[id(variable)], sizes))


def complaints_of(rows: Sequence[VariableLayout], distribution: _Distribution) -> list[str]:
    """Return likely mistakes in layouts, such as a pattern that matches nothing or a large weight in one piece."""
    if not isinstance(distribution, ShardedParallel):
        return []
    unmatched = distribution.unmatched([row.path for row in rows])
    found = [f"the pattern {pattern!r} of `shard` matches no variable" for pattern in unmatched]
    weights = [row for row in rows if row.role == "weight"]
    found += [f"{row.path} {row.shape}: {row.note}" for row in weights if row.note]
    if distribution.axes.devices > 1:
        found += [
            f"{row.path} {row.shape}, {row.bytes / 2**20:.1f} MiB, is not sharded"
            for row in weights
            if row.is_large and row.is_replicated and not distribution.names(row.path)
        ]
    return found


def warn_of_layouts(model: keras.Model) -> None:
    """Warn once about a model with likely mistakes in its layouts."""
    program = model._kte
    if program.layout_is_told:
        return
    program.layout_is_told = True
    found = layout(model).complaints
    if found:
        warnings.warn(
            f"The layout of {model.name!r} has likely mistakes: {'; '.join(found)}. "
            "print(scope.layout(model)) shows all of it.",
            LayoutWarning,
            stacklevel=user_stack_level(),
        )


def warn_again_of_layouts(model: keras.Model) -> None:
    """Let `warn_of_layouts` warn again: the model has other layouts."""
    model._kte.layout_is_told = False


@contextlib.contextmanager
def without_layout_warning(model: keras.Model) -> Iterator[None]:
    """Within the block, keep the warning about a model's layouts for later."""
    program = getattr(model, "_kte", None)
    if program is None:  # Keras's own step warns of nothing
        yield
        return
    told, program.layout_is_told = program.layout_is_told, True
    try:
        yield
    finally:
        program.layout_is_told = told


def specs_under(model: keras.Model, distribution: keras.distribution.Distribution) -> dict[int, Spec]:
    """Return, by `id`, the axes along which each variable would be sharded if created under a distribution."""
    variables = _by_role(model)
    if not isinstance(distribution, ShardedParallel):
        return {id(one): (None,) * len(one.shape) for some in variables.values() for one in some}
    facts = _facts_of_weights(model)
    targets = _weights_of_slots(variables["optimizer"], variables["weight"])
    specs = {
        id(one): distribution.spec_of(one, facts.get(id(one)))
        for some in variables.values()
        for one in some
        if id(one) not in targets
    }
    specs |= {slot: specs[id(weight)] for slot, weight in targets.items()}
    state = step_state_of(model)
    for window in [] if state is None else state.accumulators():
        specs |= {id(total): specs[id(weight)] for total, weight in zip(window.sums, window.targets, strict=False)}
    return specs


def _facts_of_weights(model: keras.Model) -> dict[int, LayerFacts]:
    """Return, by `id` of each weight, the facts about the layer that has added it, not one that only uses it."""
    found: dict[int, LayerFacts] = {}
    for layer in flatten_layers(model):  # an inner layer comes after its outer one
        for weight in layer.weights:
            is_its_own = path_of(weight).split("/")[-2:-1] == [layer.name]
            if is_its_own or id(weight) not in found:
                found[id(weight)] = facts_of_variable(weight) or facts_of(layer)
    return found


def _weights_of_slots(
    slots: Sequence[keras.Variable], weights: Sequence[keras.Variable]
) -> dict[int, keras.Variable]:
    """Return, by `id` of each optimizer's variable such as a momentum, the weight that it belongs to.

    Keras puts the path of the weight into its name. Weights may have equal paths: their slots are in the same order.
    """
    by_name: dict[tuple[str, tuple[int, ...]], list[keras.Variable]] = {}
    for weight in sorted(weights, key=lambda weight: not weight.trainable):
        by_name.setdefault((path_of(weight).replace("/", "_"), tuple(weight.shape)), []).append(weight)
    seen: Counter[tuple[str, tuple[int, ...]]] = Counter()
    found = {}
    for slot in slots:
        path, shape = path_of(slot), tuple(slot.shape)
        name = path.rpartition("/")[2]
        while name and (name, shape) not in by_name:
            name = name.rpartition("_")[0]
        if name:
            named = by_name[name, shape]
            found[id(slot)] = named[min(seen[path, shape], len(named) - 1)]
            seen[path, shape] += 1
    return found


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
    model: keras.Model,
    distribution: _Distribution,
    spec_of: Callable[[keras.Variable], tuple[Spec, Mapping[str, int]]],
) -> list[VariableLayout]:
    """Return the layout of each variable, by a function that returns its spec and the size of each axis."""
    own = {} if distribution is None else mesh_sizes(distribution)
    rows = []
    for role, variables in _by_role(model).items():
        for variable in variables:
            path, shape, (spec, sizes) = path_of(variable), tuple(map(int, variable.shape)), spec_of(variable)
            size = math.prod(shape) * jax.numpy.dtype(variable.dtype).itemsize
            parts = math.prod(sizes.get(name, 1) for name in spec if name is not None)
            note = distribution.note_of(path, shape) if isinstance(distribution, ShardedParallel) else ""
            if any(spec) and dict(sizes) != own:
                other = " x ".join(f"{name} {size}" for name, size in sizes.items())
                note = f"it is on another mesh, {other}: make its layer in this scope"
            rows.append(VariableLayout(path, role, shape, str(variable.dtype), spec, size, size // parts, note))
    return rows


def _spec_of_created(variable: keras.Variable) -> tuple[Spec, Mapping[str, int]]:
    """Return how a variable is laid out, and the size of each axis of its own mesh."""
    axes, sizes = spec_of_layout(layout_of(variable))
    return (*axes, *[None] * (len(variable.shape) - len(axes))), sizes
