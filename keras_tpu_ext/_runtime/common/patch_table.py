"""The attributes of Keras, TensorFlow and JAX that this package replaces: the only table, which `patches.py` reads.

docs/architecture.md prints it. `keras` is `tf_keras` where that is Keras 2, and attributes of modules move between
versions. "A layer's" and the like are attributes of one object; those of one `fit` are set by `override`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

LIFETIMES = {
    "trace": "while a step is traced",
    "call": "within a call, of `fit` or a layer for instance, or in an object that lives as long as one",
    "block": "within a block, of a scope for instance",
    "process": "for good",
}


class PatchedAttribute(NamedTuple):
    """An attribute that is patched."""

    name: str  # its full name
    reason: str  # why it is patched; for a lifetime of "process" also why it stays
    lifetime: str  # a key of `LIFETIMES`
    owner: str  # the file that patches, in `_runtime` or, of the drop-in, beside it


# Under each file its patches: lifetime, attributes and reason. An attribute without a full name is of the same object
# as the one before it.
_TABLE = """
training/exact_models.py
  block: keras.Model.__new__: a plain model takes the exact step
  block: keras.Model.compile, fit, evaluate, predict, train_on_batch, test_on_batch, predict_on_batch: a plain model
    that was made before the block takes the exact step
  block: keras.Sequential.build: the functional model inside stays plain
training/clear_session.py
  block: keras.backend.clear_session: the block stays open; in every module that has imported it
jax/scope.py
  block: keras.src.models.model.Trainer.__init__: a model keeps its distribution
  process: a plain model's fit, evaluate, predict, train_on_batch, test_on_batch, predict_on_batch: with `exact=False`
    it runs on its own distribution, also after the block
jax/sharded_parallel.py
  block: keras.layers.Layer.add_weight: a weight's layout depends on its layer
jax/exact_operations.py
  call: keras.src.backend.jax.nn.conv, depthwise_conv, conv_transpose: XLA sums gradients of partly replicated
    operands too often
  call: keras.layers.Layer.__call__: outputs stay split along the batch
jax/attention.py
  call: keras.src.backend.jax.nn.dot_product_attention: on a TPU Keras computes something else
  call: keras.layers.MultiHeadAttention._compute_attention_mask, _compute_attention,
    keras.layers.GroupQueryAttention._compute_attention_mask, _compute_attention: the kernel for a TPU needs to know
    what the mask means
jax/devices.py
  process: jax._src.compilation_cache.get_file_cache: programs are read from a folder, in which half of one is none
jax/interleave.py
  call: keras.src.backend.numpy.stack: a TPU is slow to move numbers between lanes
jax/traced_devices.py
  block: jax.devices, default_backend: Keras traces for a TPU that is not there
  block: jax.experimental.pallas.pallas_call: a CPU interprets kernels
jax/saved_programs.py
  process: jax._src.compiler.compile_or_get_cached: it takes programs that were compiled before, also for models that
    train after the block
jax/abstract.py
  call: keras.Variable.__init__: a variable has a shape but no value
jax/process_group.py
  call: keras.Variable.__array__: shards of other processes are gathered
tensorflow/custom_step.py
  call: a model's predict_step: a user's own gets a batch that it is written for
jax/program.py
  call: a model's optimizer: a model without one has a state too
compat/keras3_jax.py
  call: a model's _enforce_jax_state_sharding: Keras before 3.12 ties the state to devices
compat/keras3.py
  trace: a BatchNormalization's _moments, a layer's activity_regularizer: only examples count
keras3_tf/program.py
  trace: a layer's add_loss: another replica's call would clear its terms
  block: keras.src.backend.tensorflow.optimizer.TFOptimizer._all_reduce_sum_gradients: replicas that have the whole
    batch take the mean; also during a trace
  block: keras.src.losses.loss.scale_loss_for_distribution, unscale_loss_for_distribution: a loss of the whole batch
    is not divided by the replicas; also during a trace
  process: keras.Variable.__int__, __float__: a number that replicas share can be read; after the block too
  process: keras.Variable.handle: a loop of one's own is told what to write; after the block too
  process: a model's _distribute_strategy: a model made elsewhere moves to the block's
  process: an optimizer's _distribution_strategy, _trainable_variables_indices: a model made elsewhere moves to the
    block's strategy
compat/keras3_tensorflow.py
  process: keras.Variable._initialize: Keras before 3.10 sums when it writes; variables are made anywhere
tensorflow/scope.py
  call: a strategy's experimental_distribute_dataset: `None` and sparse batches are distributed too
tensorflow/batch.py
  trace: a metric's update_state: only examples count, or nothing at all
tensorflow/flops.py
  trace: a metric's variable's assign, assign_add: FLOPs are counted outside of replicas
tensorflow/rehearsal.py
  process: tensorflow.python.distribute.input_lib._SingleWorkerOwnedDatasetIterator._make_iterator, get_next_as_list,
    tensorflow.python.distribute.input_lib._SingleWorkerOwnedDatasetIterator.get_next_as_optional_list: iterators of
    virtual CPUs stall; a loop of the user's own runs anywhere
  process: tensorflow.python.distribute.input_lib._SingleWorkerDatasetIteratorSpec._component_specs: the specs of
    these iterators
training/progress.py
  process: keras.Model.fit: what accounts for its time needs its first line and its last
  process: keras.callbacks.CallbackList.on_train_begin: a callback's hooks are timed; Keras makes the list in `fit`
  process: keras.callbacks.ProgbarLogger.on_epoch_begin: short names of log keys; Keras makes the logger in `fit`
  process: a progress bar's update: short names of log keys
training/watches.py
  trace: keras.Operation.__call__, keras.src.engine.base_layer.Layer.__call__: a second forward pass finds the first
    layer that is not finite
training/compile_utils.py
  process: a loss tracker's update_state: the loss updates it itself, as long as the model has it
training/process_group.py
  call: a BackupAndRestore's on_train_begin: processes restore the same epoch
  call: a callback's verbose: only the chief prints
keras3/program.py
  call: a ModelCheckpoint's filepath, a BackupAndRestore's _save_model, on_train_end: only the chief writes
keras3/data_adapter.py
  call: keras.src.trainers.data_adapters.get_data_adapter: `fit` may start in the middle of the data
  call: a data adapter's _dataset: its position is remembered
  call: an epoch iterator's _enumerate_iterator: executions of varying length
  call: an enqueuer's ready_queue, a data adapter's on_epoch_begin: no batch is read twice
keras2/data_adapter.py
  call: keras.src.engine.data_adapter.get_data_handler: executions of varying length, also from the middle of the data
  call: a data adapter's get_size, on_epoch_end, should_recreate_iterator: `fit` may start in the middle of the data
keras2/program.py
  block: keras.src.optimizers.optimizer.Optimizer.aggregate_gradients,
    keras.optimizers.legacy.Optimizer._aggregate_gradients: replicas that have the whole batch take the mean; also
    during a trace
  block: keras.losses.Loss._get_reduction: Keras refuses a mean on replicas; also during a trace
  process: a model's _distribution_strategy: a model made elsewhere moves to the block's
keras2/batch_statistics.py
  trace: a BatchNormalization's _assign_new_value, _assign_moving_average, _calculate_mean_and_var, fused, a layer's
    _activity_regularizer: only examples count
keras3/tpu_operations.py
  call: keras.src.backend.random.dropout: a mask by a hash, the same on any number of replicas
  call: keras.src.ops.nn._layer_normalization: statistics in one pass
  call: keras.src.backend.nn.gelu, sparse_categorical_crossentropy: fewer operations, the same numbers
jax/program.py
  call: an epoch iterator's _get_iterator: batches in groups, or from the middle
common/executions.py
  call: a model's train_function, test_function: executions are measured
dropin/tensors.py
  process: keras.KerasTensor.shape, keras.Variable.shape, jax.core.Tracer.shape, jax.Array.shape: old programs read
    x.shape.as_list() and .rank
  process: keras.src.saving.serialization_lib.serialize_keras_object: a model with constants of TensorFlow is saved
  process: keras.KerasTensor.__getitem__: a slice may end at a size that is not known yet
dropin/dispatcher.py
  process: tensorflow.constant, print, tensorflow.signal.rfft, irfft, tensorflow.image.grayscale_to_rgb, psnr: these
    do not ask a dispatcher about JAX's values
dropin/tpu.py
  process: tensorflow.distribute.cluster_resolver.TPUClusterResolver: the TPU is JAX's
  process: tensorflow.distribute.TPUStrategy, MirroredStrategy, OneDeviceStrategy, Strategy, get_strategy,
    has_strategy, tensorflow.distribute.experimental.TPUStrategy: models train in a strategy_scope()
  process: tensorflow.tpu.experimental.initialize_tpu_system, shutdown_tpu_system: the TPU is JAX's
  process: tensorflow.config.experimental_connect_to_cluster, experimental_connect_to_host: the TPU is in this machine
  process: tensorflow.config.list_logical_devices, list_physical_devices,
    tensorflow.config.experimental.list_logical_devices, list_physical_devices: JAX's TPU cores are listed
dropin/keras_backend/__init__.py
  process: keras.src.legacy.backend.ctc_batch_cost, in_top_k, mean, moving_average_update, resize_images, rnn,
    softmax, sparse_categorical_crossentropy, std, switch, update, update_add, update_sub, var, foldl, foldr, map_fn:
    on JAX values they compute with JAX
  process: keras.src.legacy.backend.batch_get_value, batch_set_value, eye, get_value, ones, random_normal_variable,
    random_uniform_variable, set_value, variable, zeros: variables are Keras's, which JAX trains
  process: keras.src.legacy.backend.count_params, dtype, gradients, int_shape, ndim: they know JAX's values; there is
    no graph of TensorFlow
dropin/control.py
  process: tensorflow.case, cond, foldl, foldr, map_fn, scan, switch_case, vectorized_map, while_loop,
    custom_gradient, recompute_grad, tensorflow.compat.v1.case, cond, foldl, foldr, map_fn, scan, switch_case,
    vectorized_map, while_loop, custom_gradient, recompute_grad, tensorflow.compat.v2.case, cond, foldl, foldr,
    map_fn, scan, switch_case, vectorized_map, while_loop, custom_gradient, recompute_grad: on JAX values they compute
    with JAX
  process: tensorflow.random.gamma, normal, truncated_normal, uniform, tensorflow.compat.v1.random.gamma, normal,
    truncated_normal, uniform, tensorflow.compat.v1.random_gamma, random_normal, random_uniform, truncated_normal:
    each step of JAX draws anew
  process: tensorflow.python.eager.polymorphic_function.polymorphic_function.Function.__call__: on JAX values it is
    the Python function
  process: jax.core.Tracer.__bool__: the error says what to write instead of AutoGraph
dropin/tf_variables.py
  process: keras.Operation._setattr_hook: a layer's tf.Variable becomes Keras's
  process: tensorflow.python.ops.resource_variable_ops.BaseResourceVariable.handle: JAX would take one value for ever
dropin/old_keras/modules.py
  process: keras._tf_keras.keras.layers.AlphaDropout, ThresholdedReLU: these compute with TensorFlow
dropin/old_keras/optimizers.py
  process: keras.optimizers.legacy.Optimizer, Adagrad, Adam, Ftrl, RMSprop, SGD: Keras 3 has them as errors
  process: keras.optimizers.Optimizer.__init__, build, _backend_update_step, get_config: `lr=`, `decay=` and
    `epsilon=None` of Keras 2; an old program runs until the process ends
  process: keras.optimizers.Optimizer.learning_rate: a metric cannot read it, and a schedule gives the next rate
  process: keras.optimizers.RMSprop.update_step: that of `decay=` and legacy adds epsilon outside the root
  process: keras.optimizers.LossScaleOptimizer.__init__: the arguments of mixed_precision.experimental
dropin/old_keras/optimizer_files.py
  process: keras.src.legacy.saving.saving_utils.compile_args_from_training_config: "Custom>Adam" of Keras 2
  process: keras.src.legacy.saving.legacy_h5_format.load_optimizer_weights_from_hdf5_group: the order of Keras 2
dropin/old_keras/arguments.py
  process: keras.layers.Layer.__init__, _post_build: arguments of Keras 2, `weights=` among them
  process: keras.Operation.__init__: "/" in a name
  process: keras.applications.EfficientNetB0, EfficientNetB1, EfficientNetB2, EfficientNetB3, EfficientNetB4,
    EfficientNetB5, EfficientNetB6, EfficientNetB7: `drop_connect_rate=`
  process: keras.applications.efficientnet.EfficientNetB0, EfficientNetB1, EfficientNetB2, EfficientNetB3,
    EfficientNetB4, EfficientNetB5, EfficientNetB6, EfficientNetB7: the same
  process: keras.layers.InputLayer.__init__: a shape that is a number
  process: keras.layers.Embedding.__init__: `input_length=`, and a Sequential that is built at once
  process: keras.layers.BatchNormalization.__init__: `axis=[i]`
  process: keras.layers.Lambda.__init__: functions without a signature
  process: keras.layers.Dropout.__init__: `p=`
  process: keras.layers.AveragePooling1D.__init__, keras.layers.AveragePooling2D.__init__,
    keras.layers.AveragePooling3D.__init__: pools of two, the default of Keras 2
  process: keras.layers.LeakyReLU.__init__: `alpha=`
  process: keras.layers.ConvLSTM1D.__init__, keras.layers.ConvLSTM2D.__init__, keras.layers.ConvLSTM3D.__init__: the
    default of Keras 2
  process: keras.src.activations.get: the hard sigmoid of Keras 2, and custom objects by name
  process: keras.src.constraints.get, keras.src.losses.get, keras.src.metrics.get, keras.src.regularizers.get: custom
    objects by name
  process: keras.activations.get, hard_sigmoid: the hard sigmoid of Keras 2
  process: keras.DTypePolicy.__init__: `loss_scale=`
  process: keras.regularizers.L1.__init__, keras.regularizers.L2.__init__: `l=`
  process: keras.regularizers.l1_l2: the defaults of Keras 2
  process: keras.src.models.model.functional_init_arguments, keras.src.models.functional.Functional.__init__:
    `Model(input=, output=)`
  process: keras.Sequential.__init__, add, build: a name in the second place, `batch_input_shape=`, a second `build`
dropin/old_keras/layers.py
  process: keras.layers.Layer.add_weight: the arguments of Keras 2
  process: keras.layers.BatchNormalization.call: the moving variance of images over N - 1, as in Keras 2
  process: keras.layers.RNN._create_state_variables: stateful layers keep their states from step to step
  process: keras.layers.InputLayer.input: its tensor, which is its output
  process: keras.layers.Layer.trainable_variables, non_trainable_variables, trainable_weights, non_trainable_weights:
    what is below a frozen layer is frozen
  process: keras.layers.Layer.weights: in the order of Keras 2
  process: keras.Sequential.input, output: its own tensors, not those of its first call
  process: keras.Model.get_layer: "/" in a name
  process: keras.src.layers.layer.get_shapes_dict: `build` gets shapes that have `as_list`
dropin/old_keras/added.py
  process: keras.layers.Layer.add_loss, add_metric, _get_regularization_losses: of weights, of each example, means
  process: keras.src.models.functional.Functional.add_loss: tensors of the model
  process: keras.src.backend.jax.trainer.JAXTrainer.compute_loss_and_updates: collects these values
  process: keras.src.trainers.trainer.Trainer._compute_loss: updates the means
dropin/old_keras/calls.py
  process: keras.src.layers.layer.CallSpec.__init__: `training` without a default
  process: keras.Operation.__call__: `training` and `mask` by position
  process: keras.layers.Layer.__call__: layers without weights in an input pipeline
  process: keras.layers.Layer.build: `model.build(shape)` makes the weights of a subclassed model
  process: keras.layers.Layer.compute_output_spec: what a user's `call` returns, not what he said of it
dropin/old_keras/lambdas.py
  process: keras.layers.Lambda._serialize_function_to_config, from_config: lambdas that this program has saved
  process: keras.src.utils.python_utils.func_load: these, and not the code of a file
dropin/old_keras/merging.py
  process: keras.src.layers.merging.base_merge.Merge.compute_mask, _apply_merge_op_and_or_mask: masks as in Keras 2
  process: keras.layers.Multiply._merge_function: the product, masked or not
dropin/old_keras/logits.py
  process: keras.src.backend.jax.nn.softmax, sigmoid: remember what they were given
  process: keras.src.backend.jax.nn.categorical_crossentropy, sparse_categorical_crossentropy, binary_crossentropy:
    computed from that, as in Keras 2
dropin/old_keras/corners.py
  process: keras.src.backend.jax.numpy.maximum, minimum, absolute: the gradient of TensorFlow at a tie
  process: keras.src.backend.jax.nn.leaky_relu: the gradient of TensorFlow at 0
dropin/old_keras/losses.py
  process: keras.src.losses.loss.standardize_reduction: `Reduction.AUTO`
  process: keras.losses.Loss.__init__, __call__: the order of arguments, and the type of labels, of Keras 2
dropin/old_keras/metrics.py
  process: keras.metrics.Metric.__init__, add_weight, reset_state: arguments and `reset_states` of Keras 2
  process: keras.src.metrics.reduction_metrics.reduce_to_samplewise_values: one number of a weighted batch
  process: keras.src.trainers.compile_utils.get_metric: names, and the rank of labels, of Keras 2
dropin/old_keras/training.py
  process: keras.src.trainers.trainer.Trainer.compile, keras.src.backend.jax.trainer.JAXTrainer.fit, evaluate,
    predict, train_on_batch, test_on_batch: the arguments of Keras 2
  process: keras_tpu_ext._runtime.training.model.ExactModel.compile, fit, evaluate, predict: the arguments of Keras 2,
    before the exact step reads them
  process: keras.Variable.value: that of a weight which a callback has kept
dropin/old_keras/data.py
  process: keras.src.trainers.epoch_iterator.EpochIterator.reset: a `Sequence` hears of ends of epochs only
  process: keras.src.trainers.data_adapters.generator_data_adapter.GeneratorDataAdapter.__init__: inputs alone, lists
  process: keras.src.trainers.data_adapters.array_data_adapter.ArrayDataAdapter.__init__: weights of some outputs
  process: keras.src.trainers.compile_utils.CompileLoss.call,
    keras.src.trainers.compile_utils.CompileMetrics.update_state,
    keras_tpu_ext._runtime.keras3.compile_utils.ExactMetrics.update_state: targets, weights by name
dropin/old_keras/history.py
  process: keras.src.trainers.compile_utils.CompileLoss.build: a loss of one output of several has its name, too
  process: keras.src.utils.python_utils.pythonify_logs: the order of Keras 2
  process: keras.src.trainers.trainer.Trainer.get_metrics_result, _flatten_metrics_in_order, metrics_names: names and
    order of Keras 2
dropin/old_keras/callbacks.py
  process: keras.callbacks.ModelCheckpoint.__init__, on_epoch_end, _should_save_model: any file name, and `period=`
  process: keras.callbacks.EarlyStopping.on_train_end: the best weights come back if it has stopped
  process: keras.callbacks.ReduceLROnPlateau.__init__, on_epoch_end: `epsilon=`, and the rate as `lr`
  process: keras.callbacks.LearningRateScheduler.__init__, on_epoch_end: any number, and the rate as `lr`
  process: keras.callbacks.TensorBoard.__init__: arguments of Keras 2
  process: keras.callbacks.BackupAndRestore.__init__: an argument of Keras 2
  process: keras.callbacks.Callback.model: it can be set
  process: keras.src.callbacks.monitor_callback.MonitorCallback._set_monitor_op: what "auto" was in Keras 2
dropin/old_keras/files.py
  process: keras.Model.save, save_weights, load_weights: any file name
  process: keras.src.legacy.saving.saving_utils._deserialize_nested_config: short names of losses in HDF5 files
  process: keras.src.legacy.saving.saving_utils.try_build_compiled_arguments: an optimizer of all variables
  process: keras.models.load_model, save_model: any file name
  process: keras.models.model_from_json: no functions of `compile` are needed
  process: keras.saving.load_model, save_model: any file name
dropin/stand_ins/tensorflow_1.py
  process: tensorflow.compat.v1.disable_eager_execution, disable_v2_behavior, placeholder: programs for Keras begin
    with them; Keras is on JAX
  process: tensorflow.python.framework.ops.disable_eager_execution,
    tensorflow.python.compat.v2_compat.disable_v2_behavior: programs for Keras begin with it; Keras is on JAX
  process: tensorflow.python.ops.array_ops.placeholder: it is told that Keras is on JAX
  process: tensorflow.random.set_seed: Keras had its random numbers from TensorFlow
  process: keras.src.random.seed_generator.make_default_seed, keras.src.backend.jax.random.make_default_seed: the seed
    that tf.random.set_seed gave
dropin/out_of_reach.py
  process: tensorflow.GradientTape.gradient, jacobian, batch_jacobian, watch: a tape does not see what JAX computes
  process: keras.src.trainers.trainer.Trainer._assert_compile_called: steps for TensorFlow are told when fit begins
  process: tensorflow.python.ops.lookup_ops.InitializableLookupTableBase.lookup,
    tensorflow.python.ops.lookup_ops.StaticVocabularyTable.lookup,
    tensorflow.python.ops.lookup_ops.MutableHashTable.lookup, tensorflow.python.ops.lookup_ops.DenseHashTable.lookup:
    a table in a model
  process: tensorflow.random.Generator.normal, truncated_normal, uniform, binomial: a generator in a model
  process: tensorflow.python.saved_model.function_deserialization.RestoredFunction.__call__: a SavedModel in a model
"""


def _rows() -> Iterator[PatchedAttribute]:
    """Yield each attribute of the table."""
    owner = ""
    for row in re.sub(r"\n {4}", " ", _TABLE).strip().splitlines():
        if not row.startswith(" "):
            owner = row
            continue
        lifetime, names, reason = row.strip().split(": ", 2)
        of = ""
        for name in names.split(", "):
            last = re.split("[. ]", name)[-1]
            of = name[: -len(last)] or of
            yield PatchedAttribute(of + last, reason, lifetime, owner)


PATCHED: tuple[PatchedAttribute, ...] = tuple(_rows())
