"""Enter a TensorFlow strategy, check what belongs to it, and split datasets over its replicas."""

from __future__ import annotations

import atexit
import functools
import gc
import sys
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from typing import Any

import tensorflow as tf

from keras_tpu_ext._runtime.common.types import Model, Nest, Optimizer
from keras_tpu_ext._runtime.compat import path_of
from keras_tpu_ext._runtime.tensorflow.compile_only import CompileOnlyStrategy
from keras_tpu_ext._runtime.tensorflow.replicas import is_none, native, part_of_batch
from keras_tpu_ext.errors import ArgumentError, ScopeError


def scope(strategy: tf.distribute.Strategy) -> AbstractContextManager[tf.distribute.Strategy]:
    """Return the context in which variables and models are made on `strategy`."""
    outer = tf.distribute.get_strategy()
    if tf.distribute.has_strategy() and outer is not strategy:
        raise ScopeError(
            f"A block for {_describe(strategy)} was opened inside a block for {_describe(outer)}, and a model can "
            "belong to one strategy only. Leave the outer block first, or open the same scope again inside it."
        )
    return strategy.scope()


def distribute(strategy: tf.distribute.Strategy, dataset: tf.data.Dataset) -> tf.distribute.DistributedDataset:
    """Return `dataset` with each batch split over the replicas of `strategy`."""
    if not isinstance(dataset, tf.data.Dataset):
        raise ArgumentError(
            f"distribute needs a tf.data.Dataset; got {type(dataset).__name__}. Write "
            "scope.distribute(tf.data.Dataset.from_tensor_slices(data).batch(scope.global_batch_size(32)))."
        )
    if any(getattr(spec, "shape", None) == () for spec in tf.nest.flatten(dataset.element_spec)):
        raise ArgumentError(
            f"distribute needs a dataset of batches; the elements of this one are {dataset.element_spec}. "
            "Write scope.distribute(dataset.batch(scope.global_batch_size(32)))."
        )
    return distributing_all(strategy.experimental_distribute_dataset)(dataset)


def distributing_all(stock: Any) -> Callable[..., tf.distribute.DistributedDataset]:
    """Return a strategy's `experimental_distribute_dataset` for `None`, numbers, sparse and ragged batches, too.

    TensorFlow cannot split a number, nor give a replica zero rows of a sparse or ragged batch, so it gets batches
    that are already split. `None` is left out; see `with_none`.
    """
    strategy = stock.__self__

    @functools.wraps(stock)
    def distribute(dataset: Any, options: Any = None) -> Iterable[Nest]:
        _free_iterators_at_exit()
        dataset = _without_none(dataset)
        replicas, specs = strategy.num_replicas_in_sync, getattr(dataset, "element_spec", None)
        kinds = [(type(spec), getattr(spec, "shape", None)) for spec in tf.nest.flatten(specs)]
        is_dense = all(
            kind not in (tf.SparseTensorSpec, tf.RaggedTensorSpec) and shape != () for kind, shape in kinds
        )
        if is_dense or replicas == 1 or not isinstance(strategy, tf.distribute.MirroredStrategy):
            return stock(dataset, options)

        def part_of(batch: Nest, index: tf.Tensor) -> Nest:
            return tf.nest.map_structure(lambda leaf: part_of_batch(leaf, index, replicas), batch)

        def parts(*batch: Nest) -> tf.data.Dataset:
            whole = batch if type(specs) is tuple else batch[0]  # a named one comes as it is
            return tf.data.Dataset.range(replicas).map(functools.partial(part_of, whole))

        of_replicas = dataset.flat_map(parts).prefetch(replicas)
        return strategy.distribute_datasets_from_function(lambda context: of_replicas, options)

    return distribute


@functools.cache
def _free_iterators_at_exit() -> None:
    """Free iterators over replicas while Python still runs: those of a `fit` that was interrupted or has failed.

    One that is freed later waits forever for its thread, if that thread reads batches in Python. They are in
    reference cycles, or in the frames of the error that Python keeps as the last one.
    """

    def free() -> None:
        sys.last_traceback = sys.last_value = None
        if hasattr(sys, "last_exc"):  # Python 3.12
            sys.last_exc = None
        gc.collect()

    atexit.register(free)


def _without_none(dataset: Any) -> Any:
    """Return `dataset` with `()` where its batches have `None`, or the empty optional that Keras puts there."""
    specs = getattr(dataset, "element_spec", None)
    if not any(is_none(spec) for spec in tf.nest.flatten(specs)):
        return dataset

    def leave_out(*batch: Nest) -> Nest:
        whole = batch if type(specs) is tuple else batch[0]  # a named one comes as it is
        return tf.nest.map_structure(lambda spec, leaf: () if is_none(spec) else leaf, specs, whole)

    return dataset.map(leave_out)


def in_order(strategy: tf.distribute.Strategy, data: Nest) -> Nest:
    """Shard `data` over processes by batches, not by files, unless its options say otherwise.

    Given files, TensorFlow would give each process some of them: every example once, but in a different order.
    """
    if not isinstance(data, tf.data.Dataset) or not isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy):
        return data
    policies = tf.data.experimental.AutoShardPolicy
    if data.options().experimental_distribute.auto_shard_policy != policies.AUTO:
        return data
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = policies.DATA
    return data.with_options(options)


def _describe(strategy: tf.distribute.Strategy) -> str:
    count = strategy.num_replicas_in_sync
    return f"{count} replica{'' if count == 1 else 's'} ({type(strategy).__name__.lstrip('_')})"


def check_optimizer_belongs(optimizer: Optimizer | None, strategy: tf.distribute.Strategy) -> None:
    """Reject an optimizer created outside the scope: its step counter would advance once for every replica."""
    if optimizer is None or _has_plain_variables(strategy):
        return
    inner = getattr(optimizer, "inner_optimizer", None)
    has_strategy = hasattr(optimizer, "_distribution_strategy")  # Keras 2's LossScaleOptimizer lacks it
    if (optimizer._distribution_strategy is strategy) if has_strategy else inner is not None:
        check_optimizer_belongs(inner, strategy)
        return
    name = type(optimizer).__name__
    raise ScopeError(
        f"The optimizer must be made inside the model's strategy_scope() so that its state is mirrored on all "
        f"{strategy.num_replicas_in_sync} replicas; this {name} was made outside. "
        f"Write: with scope: optimizer = {_module_of(optimizer)}{name}(...), or pass its name, "
        f"model.compile({name.lower()!r}, ...)."
    )


def check_variables_belong(model: Model, strategy: tf.distribute.Strategy) -> None:
    """Reject layers created outside the scope: their variables live on one device only."""
    if _has_plain_variables(strategy):
        return
    for variable in model.variables:
        if not hasattr(variable, "name"):  # Keras 2 lists the vocabulary of a TextVectorization, too
            continue
        name = path_of(variable)
        if not strategy.extended.variable_created_in_scope(native(variable)):
            raise ScopeError(
                f"All layers of {model.name!r} must be made inside its strategy_scope(), so that each of the "
                f"{strategy.num_replicas_in_sync} replicas has its copy; the variable {name!r} was made "
                "outside. Write: with scope: ... around the lines that make the layers."
            )


def _has_plain_variables(strategy: tf.distribute.Strategy) -> bool:
    """Return True if the variables of `strategy` are not mirrored."""
    return bool(strategy.num_replicas_in_sync == 1) or isinstance(strategy, CompileOnlyStrategy)


def _module_of(optimizer: Optimizer) -> str:
    """Return the public module of an optimizer's class, with a dot."""
    if type(optimizer).__module__.startswith("tensorflow_addons."):
        return "tfa.optimizers."
    return "keras.optimizers.legacy." if ".legacy." in type(optimizer).__module__ else "keras.optimizers."
