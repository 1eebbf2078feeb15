"""Lay out a model that exists already: each variable moves between the devices."""

from __future__ import annotations

import jax
import keras

from keras_tpu_ext._runtime.common.types import Nest
from keras_tpu_ext._runtime.compat.keras3_jax import SLOTS_FOLLOW_WEIGHTS, devices_of_layout, layout_of
from keras_tpu_ext._runtime.jax.layouts import (
    specs_under,
    variables_of,
    warn_again_of_layouts,
    without_layout_warning,
)
from keras_tpu_ext._runtime.jax.scope import distribution_of, keep
from keras_tpu_ext._runtime.jax.sharded_parallel import ShardedParallel
from keras_tpu_ext._runtime.keras3.models import optimizers_of


def choose_layout(model: keras.Model, batch: Nest) -> None:
    """Lay out a model of `shard="auto"` once, for its first batch; with several processes it keeps its layout."""
    distribution = distribution_of(model)
    if not isinstance(distribution, ShardedParallel) or distribution.choose is None:
        return
    if model._kte.layout_asked == distribution:
        return
    model._kte.set_untracked(layout_asked=distribution)
    if jax.process_count() > 1:
        return
    with without_layout_warning(model):
        mesh = distribution.choose(model, batch)
    if mesh is not None and mesh != distribution.axes.sizes:
        relayout(model, distribution.over(mesh))


def lay_out_what_has_no_layout(model: keras.Model) -> None:
    """Move variables that were created elsewhere to where the model is, laid out by their layers like all others."""
    distribution = distribution_of(model)
    if distribution is None:
        return
    is_ours = isinstance(distribution, ShardedParallel)
    slots = _slots_of_their_own(model) if is_ours else set()
    moving = [one for one in variables_of(model) if is_elsewhere(one, distribution) or id(one) in slots]
    has_specs = is_ours or isinstance(distribution, keras.distribution.DataParallel)
    specs = specs_under(model, distribution) if has_specs and moving else {}
    for variable in moving:
        if has_specs:
            variable._layout = keras.distribution.TensorLayout(specs[id(variable)], distribution.device_mesh)
        else:
            variable._layout = distribution.get_variable_layout(variable)
        variable.assign(variable.value)


def _slots_of_their_own(model: keras.Model) -> set[int]:
    """Return the optimizers' variables, by `id`, that were not laid out like the weights that they belong to."""
    if SLOTS_FOLLOW_WEIGHTS:
        return set()
    return {id(variable) for optimizer in optimizers_of(model) for variable in optimizer.variables}


def is_elsewhere(variable: keras.Variable, distribution: keras.distribution.Distribution) -> bool:
    """Return whether a variable is not on the devices of a distribution."""
    layout = layout_of(variable)
    return layout is None or devices_of_layout(layout) != set(distribution.device_mesh.devices.flat)


def move_to(model: keras.Model, distribution: keras.distribution.Distribution | None) -> None:
    """Move a model of one scope to the block of another; the layout that its own scope has chosen stays."""
    own = distribution_of(model)
    if None in (own, distribution) or distribution in (own, model._kte.layout_asked):
        return
    model._kte.set_untracked(layout_asked=None)
    warn_again_of_layouts(model)
    relayout(model, distribution)


def relayout(model: keras.Model, distribution: keras.distribution.Distribution) -> None:
    """Bind a model to another distribution, and move its variables."""
    specs = specs_under(model, distribution)
    keep(model, distribution)
    for variable in variables_of(model):
        variable._layout = keras.distribution.TensorLayout(specs[id(variable)], distribution.device_mesh)
        variable.assign(variable.value)
