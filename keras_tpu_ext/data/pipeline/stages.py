"""The stages of a `tf.data` pipeline: reading them, and making one again on another input.

A stage is made from its own attributes and the function that TensorFlow has traced for it already. The methods of
`tf.data.Dataset` would trace the function once more and draw new seeds, and that can change what a pipeline gives.

Imports TensorFlow only, so that it works beside any Keras; import it where TensorFlow is there.

Private names of TensorFlow that this leans on: those of `_tf_stage_kinds.KINDS`, on any stage those of `_BASE` and
`_INPUTS`, `_inputs`, `_functions`, `_common_args` and `_variant_tensor`, `_tensors` of a source, and `_func` of a
traced function.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf

from keras_tpu_ext.data.pipeline.stage_kinds import (
    CACHE,
    CONCATENATE,
    KINDS,
    OPTIONS,
    PADDED_BATCH,
    PREFETCH,
    SHUFFLE,
    ZIP,
    Kind,
)

_MODULE = "tensorflow.python.data.ops."
_BASE = frozenset({"_variant_tensor_attr", "_graph_attr", "_options_attr", "_name"})
_INPUTS = frozenset({"_input_dataset", "_datasets", "_dataset_to_concatenate", "_input_datasets"})


def name_of(stage: Any) -> str:
    """Return the name of a stage's class, as in `KINDS`; empty for a class that is not TensorFlow's."""
    kind = type(stage)
    return f"{kind.__module__.removeprefix(_MODULE)}.{kind.__name__}" if kind.__module__.startswith(_MODULE) else ""


def word_of(stage: Any) -> str:
    """Return what a stage is called, such as `"map"`, or the name of its class."""
    known = KINDS.get(name_of(stage))
    return known.word if known else type(stage).__name__


def kind_of(stage: Any) -> Kind | None:
    """Return the kind of a stage that can be made again, and `None` of one that cannot.

    A stage with a private attribute that the table lacks is one that another TensorFlow has given an option to.
    """
    kind = KINDS.get(name_of(stage))
    if kind is None:
        return None
    there = {name for name in vars(stage) if name.startswith("_")}
    function = {kind.function} if kind.function else set()
    structure = {"_structure"} if kind.has_structure else set()
    known = _BASE | _INPUTS | kind.own | kind.optional | function | structure
    needed = _BASE | (kind.own - kind.optional) | function | structure
    return kind if there <= known and needed <= there else None


def inputs_of(stage: Any) -> list[Any]:
    """Return the stages that a stage reads from."""
    return list(stage._inputs())


def stages_of(dataset: Any) -> Iterator[Any]:
    """Yield every stage of a pipeline once, from its end to its sources."""
    waiting, seen = [dataset], set()
    while waiting:
        stage = waiting.pop(0)
        if id(stage) not in seen:
            seen.add(id(stage))
            waiting += inputs_of(stage)
            yield stage


def value_of(stage: Any, name: str) -> Any:
    """Return an attribute of a stage as a Python value; `None` where it has none."""
    value: Any = getattr(stage, name, None)
    value = value.numpy() if isinstance(value, tf.Tensor) else value
    return value.item() if hasattr(value, "item") and not value.shape else value


def tensors_of(stage: Any) -> list[Any]:
    """Return the tensors whose slices a source gives."""
    return [tensor for tensor in getattr(stage, "_tensors", ()) if isinstance(tensor, tf.Tensor)]


def own_names(stage: Any) -> dict[str, Any]:
    """Return what was put on a dataset from outside, such as Keras's `class_names`."""
    return {name: value for name, value in vars(stage).items() if not name.startswith("_")}


def functions_of(stage: Any) -> list[Any]:
    """Return the traced functions of a stage."""
    traced = [getattr(wrapper, "function", None) for wrapper in stage._functions()]
    return [function for function in traced if hasattr(function, "graph")]


def function_name(stage: Any) -> str:
    """Return what the user calls the function of a stage."""
    names = [getattr(getattr(wrapper, "_func", None), "__name__", "") for wrapper in stage._functions()]
    return names[0] if names and names[0].isidentifier() else "function"


def transformed(
    dataset: Any, change: Callable[[Any, list[Any]], Any], is_closed: Callable[[Any], bool] = lambda stage: False
) -> Any:
    """Return `dataset` with `change` applied to each of its stages, and those above made again.

    Args:
        dataset: The dataset.
        change: Called from the sources to the end with a stage and what its inputs have become; returns what takes
            its place, or `None` to leave it as it is. A stage that must keep its inputs comes with none.
        is_closed: Whether a stage must keep its inputs, as one that cannot be made again does anyway.
    """
    done: dict[int, Any] = {}

    def become(stage: Any) -> Any:
        if id(stage) not in done:
            before = [] if is_closed(stage) or kind_of(stage) is None else inputs_of(stage)
            inputs = [become(one) for one in before]
            made = change(stage, inputs)
            if made is None:
                is_same = all(old is new for old, new in zip(before, inputs, strict=True))
                made = stage if is_same else remade(stage, inputs)
            done[id(stage)] = made
        return done[id(stage)]

    return become(dataset)


def remade(stage: Any, inputs: list[Any], into: str = "", **changed: Any) -> Any:
    """Return a stage like `stage` that reads from `inputs`.

    Args:
        stage: A stage that `kind_of` knows.
        inputs: What the new one reads from, as many as the stage does.
        into: Name of the class of the new one in `KINDS`; the same by default.
        changed: Attributes that are other ones.
    """
    if name_of(stage) == OPTIONS:
        made = inputs[0].with_options(stage.options())
        vars(made).update(own_names(stage))
        return made
    into = into or name_of(stage)
    kind = KINDS[into]
    module, _, name = into.rpartition(".")
    cls = getattr(sys.modules.get(_MODULE + module) or importlib.import_module(_MODULE + module), name)
    made = object.__new__(cls)
    keep = kind.own | kind.optional | {kind.function, "_name"} | ({"_structure"} if kind.has_structure else set())
    vars(made).update({key: value for key, value in vars(stage).items() if key in keep or key[:1] != "_"})
    vars(made).update({key: value for key, value in changed.items() if key in keep})
    _connect(made, stage, inputs)
    variant = getattr(tf.raw_ops, kind.op)(**_arguments(made, into, kind, inputs))
    tf.data.Dataset.__init__(made, variant)  # the constructors between would trace the function again
    return made


def _connect(made: Any, stage: Any, inputs: list[Any]) -> None:
    """Set the attributes that hold the inputs."""
    own = vars(made)
    if name_of(stage) == ZIP:
        own["_datasets"] = tf.nest.pack_sequence_as(stage._datasets, inputs)
        return
    own["_input_dataset"] = inputs[0]
    if name_of(stage) == CONCATENATE:
        own.update(_dataset_to_concatenate=inputs[1], _input_datasets=list(inputs))


def _arguments(stage: Any, name: str, kind: Kind, inputs: list[Any]) -> dict[str, Any]:
    """Return the arguments of the operation that makes a stage."""
    variants = [one._variant_tensor for one in inputs]
    own = {key: vars(stage)[key] for key in kind.own | kind.optional if key in vars(stage)}
    arguments = {key[1:]: value for key, value in own.items()}
    arguments.update(stage._common_args)
    if name == ZIP:
        return {**arguments, "input_datasets": variants}
    arguments["input_dataset"] = variants[0]
    if name == CONCATENATE:
        arguments["another_dataset"] = variants[1]
    if kind.function:
        function = vars(stage)[kind.function].function
        arguments["f" if kind.function == "_map_func" else "predicate"] = function
        arguments["other_arguments"] = function.captured_inputs
    return _special(stage, name, arguments)


def _special(stage: Any, name: str, arguments: dict[str, Any]) -> dict[str, Any]:
    """Add what some operations take besides the attributes of their stages."""
    if name == CACHE:
        arguments["cache"] = tf.raw_ops.DummyMemoryCache()
    elif name == SHUFFLE:
        arguments["seed_generator"] = tf.raw_ops.DummySeedGenerator()
    elif name == PREFETCH:
        arguments["legacy_autotune"] = value_of(stage, "_buffer_size") == tf.data.AUTOTUNE
    elif name == PADDED_BATCH:
        arguments["padded_shapes"] = tf.nest.flatten(arguments["padded_shapes"])
        arguments["padding_values"] = tf.nest.flatten(arguments["padding_values"])
        arguments.pop("output_types")
    return arguments
