"""The attributes of Keras, TensorFlow and JAX that this package replaces: the only table, which `patches.py` reads.

docs/architecture.md prints it. `keras` is `tf_keras` where that is Keras 2, and attributes of modules move between
versions. "A layer's" and the like are attributes of one object; those of one `fit` are set by `override`.
"""

from __future__ import annotations

import re
from typing import NamedTuple

LIFETIMES = {
    "trace": "while a step is traced",
    "call": "within a call, of `fit` or a layer for instance, or in an object that lives as long as one",
    "block": "within a block, of a scope for instance",
    "process": "for good",
}


class Place(NamedTuple):
    """A place that is patched.

    Attributes:
        name: The full name, which ends with the attribute's.
        reason: Why it is patched; for a lifetime of "process" also why it stays.
        lifetime: A key of `LIFETIMES`.
        owner: The file in `_runtime` that patches.
    """

    name: str
    reason: str
    lifetime: str
    owner: str


def _places(names: str, reason: str, lifetime: str, owner: str) -> list[Place]:
    """Return a place for each of several attributes, of which the first has its full name."""
    first, *others = names.split(", ")
    of = first[: -len(re.split("[. ]", first)[-1])]
    return [Place(name, reason, lifetime, owner) for name in [first, *(of + other for other in others)]]


PLACES: tuple[Place, ...] = (
    *_places("keras.Model.__new__", "a plain model takes the exact step", "block", "training/exact_models.py"),
    *_places(
        "keras.Model.compile, fit, evaluate, predict, train_on_batch, test_on_batch, predict_on_batch",
        "a plain model that was made before the block takes the exact step",
        "block",
        "training/exact_models.py",
    ),
    *_places(
        "keras.Sequential.build", "the functional model inside stays plain", "block", "training/exact_models.py"
    ),
    *_places(
        "keras.backend.clear_session",
        "the block stays open; in every module that has imported it",
        "block",
        "training/clear_session.py",
    ),
    *_places("keras.src.models.model.Trainer.__init__", "a model keeps its distribution", "block", "jax/scope.py"),
    *_places(
        "a plain model's fit, evaluate, predict, train_on_batch, test_on_batch, predict_on_batch",
        "with `exact=False` it runs on its own distribution, also after the block",
        "process",
        "jax/scope.py",
    ),
    *_places(
        "keras.layers.Layer.add_weight", "a weight's layout depends on its layer", "block", "jax/sharded_parallel.py"
    ),
    *_places(
        "keras.src.backend.jax.nn.conv, depthwise_conv, conv_transpose",
        "XLA sums gradients of partly replicated operands too often",
        "call",
        "jax/sharded_operations.py",
    ),
    *_places(
        "keras.layers.Layer.__call__", "outputs stay split along the batch", "call", "jax/sharded_operations.py"
    ),
    *_places(
        "keras.src.backend.jax.nn.dot_product_attention",
        "on a TPU Keras computes something else",
        "call",
        "jax/attention.py",
    ),
    *_places(
        "keras.layers.MultiHeadAttention._compute_attention_mask, _compute_attention",
        "the kernel for a TPU needs to know what the mask means",
        "call",
        "jax/attention.py",
    ),
    *_places(
        "keras.layers.GroupQueryAttention._compute_attention_mask, _compute_attention",
        "the kernel for a TPU needs to know what the mask means",
        "call",
        "jax/attention.py",
    ),
    *_places("jax.devices, default_backend", "Keras traces for a TPU that is not there", "block", "jax/as_on_tpu.py"),
    *_places("jax.experimental.pallas.pallas_call", "a CPU interprets kernels", "block", "jax/as_on_tpu.py"),
    *_places("keras.Variable.__init__", "a variable has a shape but no value", "call", "jax/abstract.py"),
    *_places("keras.Variable.__array__", "shards of other processes are gathered", "call", "jax/gather.py"),
    *_places("a model's optimizer", "a model without one has a state too", "call", "jax/program.py"),
    *_places(
        "a model's _enforce_jax_state_sharding",
        "Keras before 3.12 ties the state to devices",
        "call",
        "compat/keras3_jax.py",
    ),
    *_places("a BatchNormalization's _moments", "only examples count", "trace", "compat/keras3.py"),
    *_places("a layer's activity_regularizer", "only examples count", "trace", "compat/keras3.py"),
    *_places("a layer's add_loss", "another replica's call would clear its terms", "trace", "keras3_tf/adapter.py"),
    *_places(
        "keras.src.backend.tensorflow.optimizer.TFOptimizer._all_reduce_sum_gradients",
        "replicas that have the whole batch take the mean; also during a trace",
        "block",
        "keras3_tf/adapter.py",
    ),
    *_places(
        "keras.src.losses.loss.scale_loss_for_distribution, unscale_loss_for_distribution",
        "a loss of the whole batch is not divided by the replicas; also during a trace",
        "block",
        "keras3_tf/adapter.py",
    ),
    *_places(
        "keras.Variable.__int__, __float__",
        "a number that replicas share can be read; after the block too",
        "process",
        "keras3_tf/adapter.py",
    ),
    *_places(
        "keras.Variable._initialize",
        "Keras before 3.10 sums when it writes; variables are made anywhere",
        "process",
        "compat/keras3_tensorflow.py",
    ),
    *_places(
        "a strategy's experimental_distribute_dataset",
        "`None` and sparse batches are distributed too",
        "call",
        "tensorflow/scope.py",
    ),
    *_places(
        "a metric's update_state", "only examples count, or nothing at all", "trace", "tensorflow/batch_statistics.py"
    ),
    *_places(
        "a metric's variable's assign, assign_add",
        "FLOPs are counted outside of replicas",
        "trace",
        "tensorflow/flops.py",
    ),
    *_places(
        "tensorflow.python.distribute.input_lib._SingleWorkerOwnedDatasetIterator._make_iterator, get_next_as_list, "
        "get_next_as_optional_list",
        "iterators of virtual CPUs stall; a loop of the user's own runs anywhere",
        "process",
        "tensorflow/rehearsal.py",
    ),
    *_places(
        "tensorflow.python.distribute.input_lib._SingleWorkerDatasetIteratorSpec._component_specs",
        "the specs of these iterators",
        "process",
        "tensorflow/rehearsal.py",
    ),
    *_places(
        "keras.callbacks.ProgbarLogger.on_epoch_begin",
        "short names of log keys; Keras makes the logger in `fit`",
        "process",
        "training/progress_bar.py",
    ),
    *_places("a progress bar's update", "short names of log keys", "process", "training/progress_bar.py"),
    *_places(
        "a loss tracker's update_state",
        "the loss updates it itself, as long as the model has it",
        "process",
        "training/compile_utils.py",
    ),
    *_places(
        "a BackupAndRestore's on_train_begin", "processes restore the same epoch", "call", "training/process_group.py"
    ),
    *_places("a callback's verbose", "only the chief prints", "call", "training/process_group.py"),
    *_places("a ModelCheckpoint's filepath", "only the chief writes", "call", "keras3/adapter.py"),
    *_places("a BackupAndRestore's _save_model, on_train_end", "only the chief writes", "call", "keras3/adapter.py"),
    *_places(
        "keras.src.trainers.data_adapters.get_data_adapter",
        "`fit` may start in the middle of the data",
        "call",
        "keras3/resumable_data.py",
    ),
    *_places(
        "keras.src.engine.data_adapter.get_data_handler",
        "executions of varying length, also from the middle of the data",
        "call",
        "keras2/execution_schedule.py",
    ),
    *_places(
        "keras.src.optimizers.optimizer.Optimizer.aggregate_gradients",
        "replicas that have the whole batch take the mean; also during a trace",
        "block",
        "keras2/adapter.py",
    ),
    *_places(
        "keras.optimizers.legacy.Optimizer._aggregate_gradients",
        "replicas that have the whole batch take the mean; also during a trace",
        "block",
        "keras2/adapter.py",
    ),
    *_places(
        "keras.losses.Loss._get_reduction",
        "Keras refuses a mean on replicas; also during a trace",
        "block",
        "keras2/adapter.py",
    ),
    *_places(
        "a BatchNormalization's _assign_new_value, _assign_moving_average, _calculate_mean_and_var, fused",
        "only examples count",
        "trace",
        "keras2/batch_statistics.py",
    ),
    *_places("a layer's _activity_regularizer", "only examples count", "trace", "keras2/batch_statistics.py"),
    *_places(
        "tensorflow_addons.utils.resource_loader.LazySO.ops",
        "it says why it is missing; Addons load anywhere",
        "process",
        "keras2/addons.py",
    ),
    # Set by `override`, by an `Interception`, or in the list of callbacks that a user has given.
    *_places("a callback list's callbacks", "only the chief writes", "call", "training/process_group.py"),
    *_places("an enqueuer's ready_queue", "no batch is read twice", "call", "keras3/enqueuer.py"),
    *_places("a data adapter's on_epoch_begin", "no batch is read twice", "call", "keras3/enqueuer.py"),
    *_places(
        "an epoch iterator's _enumerate_iterator",
        "executions of varying length",
        "call",
        "keras3/execution_schedule.py",
    ),
    *_places("an epoch iterator's _get_iterator", "batches in groups, or from the middle", "call", "jax/program.py"),
    *_places("a data adapter's _dataset", "its position is remembered", "call", "keras3/resumable_data.py"),
    *_places(
        "a data adapter's get_size, on_epoch_end, should_recreate_iterator",
        "`fit` may start in the middle of the data",
        "call",
        "keras2/resumable_data.py",
    ),
    *_places("a model's train_function", "executions are measured", "call", "common/executions.py"),
    *_places(
        "a model's _distribute_strategy",
        "a model made elsewhere moves to the block's",
        "process",
        "keras3_tf/program.py",
    ),
    *_places(
        "an optimizer's _distribution_strategy, _trainable_variables_indices",
        "a model made elsewhere moves to the block's strategy",
        "process",
        "keras3_tf/program.py",
    ),
    *_places(
        "a model's _distribution_strategy",
        "a model made elsewhere moves to the block's",
        "process",
        "keras2/program.py",
    ),
)
_ATTRIBUTES = {place.name: re.split("[. ]", place.name)[-1] for place in PLACES}


def attribute_of(name: str) -> str:
    """Return the attribute of a place.

    Raises:
        LookupError: If the place is not in the table.
    """
    if name not in _ATTRIBUTES:
        raise LookupError(f"{name!r} is to be patched, and is not in {__name__}: write it there, with the reason")
    return _ATTRIBUTES[name]
