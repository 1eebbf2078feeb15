"""The layouts of a model's variables on its devices, likely mistakes in them, and moves to other layouts."""

from __future__ import annotations

import contextlib
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

import jax
import keras

from keras_tpu_ext._runtime.common.layouts import (
    LayerFacts,
    ModelLayout,
    Role,
    Spec,
    VariableLayout,
)
from keras_tpu_ext._runtime.common.patches import temporarily
from keras_tpu_ext._runtime.common.types import Nest
from keras_tpu_ext._runtime.common.user_frame import warn
from keras_tpu_ext._runtime.compat.keras3 import path_of
from keras_tpu_ext._runtime.compat.keras3_jax import (
    SLOTS_FOLLOW_WEIGHTS,
    devices_of_layout,
    layout_of,
    mesh_sizes,
    spec_of_layout,
)
from keras_tpu_ext._runtime.jax.scope import bind, distribution_of
from keras_tpu_ext._runtime.jax.sharded_parallel import ShardedParallel, facts_of, facts_of_variable
from keras_tpu_ext._runtime.jax.update import step_variables
from keras_tpu_ext._runtime.keras3.models import optimizers_of
from keras_tpu_ext._runtime.training.models import flatten_layers
from keras_tpu_ext._runtime.training.step_state import step_state_of
from keras_tpu_ext.errors import LayoutWarning
from keras_tpu_ext.output.display import mesh_text

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
    if program.layout_warned:
        return
    program.layout_warned = True
    found = layout(model).complaints
    if found:
        warn(
            f"The layout of {model.name!r} has likely mistakes: {'; '.join(found)}. "
            "print(scope.layout(model)) shows all of it.",
            LayoutWarning,
        )


def without_layout_warning(model: keras.Model) -> contextlib.AbstractContextManager[None]:
    """Return a context that keeps the warning about a model's layouts for later; Keras's own step gives none."""
    program = getattr(model, "_kte", None)
    return contextlib.nullcontext() if program is None else temporarily(program, layout_warned=True)


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
    """Return, by `id` of each slot, the weight in its name; of weights with equal paths the slots are in order."""
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
    accumulators = [total for window in windows for total in window.own_variables()]
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
                note = f"it is on another mesh, {mesh_text(sizes)}: make its layer in this scope"
            rows.append(VariableLayout(path, role, shape, str(variable.dtype), spec, size, size // parts, note))
    return rows


def _spec_of_created(variable: keras.Variable) -> tuple[Spec, Mapping[str, int]]:
    """Return how a variable is laid out, and the size of each axis of its own mesh."""
    axes, sizes = spec_of_layout(layout_of(variable))
    return (*axes, *[None] * (len(variable.shape) - len(axes))), sizes


def choose_layout(model: keras.Model, batch: Nest) -> None:
    """Lay out a model of `shard="auto"` once, for its first batch; with several processes it keeps its layout."""
    distribution = distribution_of(model)
    if not isinstance(distribution, ShardedParallel) or distribution.choose is None:
        return
    if model._kte.layout_chosen_by == distribution:
        return
    model._kte.set_untracked(layout_chosen_by=distribution)
    if jax.process_count() > 1:
        return
    with without_layout_warning(model):
        mesh = distribution.choose(model, batch)
    if mesh is not None and mesh != distribution.axes.sizes:
        relayout(model, distribution.over(mesh))


def lay_out_variables(model: keras.Model) -> None:
    """Move variables that were created elsewhere to where the model is, laid out by their layers like all others."""
    distribution = distribution_of(model)
    if distribution is None:
        return
    is_ours = isinstance(distribution, ShardedParallel)
    optimizers = optimizers_of(model) if is_ours and not SLOTS_FOLLOW_WEIGHTS else ()
    slots = {id(variable) for optimizer in optimizers for variable in optimizer.variables}
    moving = [one for one in variables_of(model) if _is_elsewhere(one, distribution) or id(one) in slots]
    has_specs = is_ours or isinstance(distribution, keras.distribution.DataParallel)
    specs = specs_under(model, distribution) if has_specs and moving else {}
    for variable in moving:
        if has_specs:
            _lay_out(variable, keras.distribution.TensorLayout(specs[id(variable)], distribution.device_mesh))
        else:
            _lay_out(variable, distribution.get_variable_layout(variable))


def _is_elsewhere(variable: keras.Variable, distribution: keras.distribution.Distribution) -> bool:
    """Return whether a variable is not on the devices of a distribution."""
    layout = layout_of(variable)
    return layout is None or devices_of_layout(layout) != set(distribution.device_mesh.devices.flat)


def move_to(model: keras.Model, distribution: keras.distribution.Distribution | None) -> None:
    """Move a model of one scope to the block of another; the layout that its own scope has chosen stays."""
    own = distribution_of(model)
    if None in (own, distribution) or distribution in (own, model._kte.layout_chosen_by):
        return
    model._kte.set_untracked(layout_chosen_by=None)
    model._kte.layout_warned = False  # the model has other layouts
    relayout(model, distribution)


def relayout(model: keras.Model, distribution: keras.distribution.Distribution) -> None:
    """Bind a model to another distribution, and move its variables."""
    specs = specs_under(model, distribution)
    bind(model, distribution)
    for variable in variables_of(model):
        _lay_out(variable, keras.distribution.TensorLayout(specs[id(variable)], distribution.device_mesh))


def _lay_out(variable: keras.Variable, layout: keras.distribution.TensorLayout) -> None:
    variable._layout = layout
    variable.assign(variable.value)
