"""The private names of Keras, TensorFlow and JAX that this package uses.

They may disappear in any version. `tests/_runtime/test_private_names.py` checks that every private import and every
foreign attribute with an underscore in the package is listed here, and that the installed versions still have it.
`module:name` can be looked up without an object; `Class.name` is an attribute that only an instance has. Each line of
a table has what several names begin with, and how each goes on.
"""


def _names(table: str) -> tuple[str, ...]:
    """Return the names of a table."""
    rows = (line.split() for line in table.strip().splitlines())
    return tuple(begin + name for begin, *names in rows for name in names)


# Under every backend.
KERAS3 = _names("""
keras.callbacks:EarlyStopping. _set_monitor_op
keras.layers:BatchNormalization. _moments
keras.src.api_export: REGISTERED_OBJS_TO_NAMES
keras.src.backend.common.variables: AutocastScope
keras.src.backend.common.global_state: get_global_attribute
keras.src.backend.common.masking: get_keras_mask set_keras_mask
keras.src.backend: get_stateless_scope in_stateless_scope in_symbolic_scope
keras.src.callbacks.backup_and_restore:BackupAndRestore. _save_model
keras.src.layers.layer:Layer. _flatten_layers
keras.src.models.functional: Functional
keras.src.ops: nn
keras.src.optimizers.base_optimizer:BaseOptimizer. _get_variable_index _track_variable
keras.src.saving.keras_saveable:KerasSaveable. _unpickle_model
keras.src.saving.object_registration: GLOBAL_CUSTOM_NAMES
keras.src.trainers.compile_utils: CompileLoss
keras.src.trainers.compile_utils:CompileMetrics. _flatten_y
keras.src.trainers.data_adapters: get_data_adapter
keras.src.trainers.data_adapters.array_data_adapter: ArrayDataAdapter
keras.src.trainers.data_adapters.tf_dataset_adapter: TFDatasetAdapter
keras.src.trainers.epoch_iterator:EpochIterator. _enumerate_iterator _get_iterator _interrupted_warning
keras.src.models.model:Trainer. _get_metrics_result_or_logs _symbolic_build
keras.src.utils.file_utils: File exists
BackupAndRestore. _training_metadata_path
BatchNormalization. _reduction_axes
CallbackList. _futures
CompileLoss. _flat_losses _user_loss _user_loss_weights
CompileMetrics. _flat_metrics _flat_weighted_metrics _user_metrics _user_weighted_metrics
EpochIterator. _current_iterator _num_batches _steps_seen
Functional. _inputs_struct _nodes_by_depth _outputs_struct
KerasTensor. _keras_history
LossScaleOptimizer. inner_optimizer
MeanMetricWrapper. _fn _fn_kwargs
MultiHeadAttention. _softmax
Operation. _inbound_nodes
Optimizer. _iterations
PyDatasetAdapter. enqueuer
PyDatasetEnqueuer. ready_queue
Sequential. _functional
TensorBoard. _should_trace
Trainer. _compile_config _compile_loss _compile_metrics _loss_tracker
""")

KERAS3_TENSORFLOW = _names("""
keras:Variable. _initialize
keras.src.backend.tensorflow.optimizer:TFOptimizer. _all_reduce_sum_gradients _apply_weight_decay
keras.src.backend.tensorflow.optimizer:TFOptimizer. _backend_apply_gradients _backend_update_step _clip_gradients
keras.src.backend.tensorflow.optimizer:TFOptimizer. _update_model_variables_moving_average _var_key
keras.src.models.model:Trainer. _maybe_symbolic_build _compute_loss
keras.src.layers.layer:Layer. _get_own_losses _get_regularization_losses
keras.src.losses.loss: scale_loss_for_distribution unscale_loss_for_distribution
Layer. _losses
Optimizer. _accumulated_gradients _distribution_strategy _model_variables_moving_average _trainable_variables
Optimizer. _trainable_variables_indices
TFDatasetAdapter. _dataset
TFEpochIterator. _distributed_dataset
Trainer. _call_has_training_arg _distribute_strategy
""")

KERAS3_JAX = _names("""
jax._src.compiler: CompileOptions compile_or_get_cached
jax._src.compilation_cache: get_file_cache
jax._src.distributed:global_state. client process_id
jax._src.interpreters.mlir: contains_unconstrained make_ir_context module_to_bytecode
jax._src.lib: tpu
jax._src.lib.mlir: ir
jax._src.interpreters.pxla: create_compile_options
jax._src.source_info_util: summarize
jax._src.xla_bridge: backends_are_initialized
keras.layers:GroupQueryAttention. _compute_attention _compute_attention_mask _masked_softmax
keras.layers:MultiHeadAttention. _compute_attention _compute_attention_mask _masked_softmax
keras.src.backend.common.global_state: set_global_attribute
keras.src.models.model:Trainer. _get_jax_state compute_loss_and_updates
keras.src.trainers.data_adapters.data_adapter:DataAdapter. batch_size get_numpy_iterator has_partial_batch
keras.src.trainers.data_adapters.data_adapter:DataAdapter. num_batches
keras.src.trainers.data_adapters.data_adapter_utils: is_jax_sparse is_scipy_sparse is_tensorflow_sparse
keras.src.trainers.data_adapters.data_adapter_utils: scipy_sparse_to_jax_sparse tf_sparse_to_jax_sparse
DistributedRuntimeClient. key_value_dir_get key_value_set
GroupQueryAttention. _inverse_sqrt_head_dim _return_attention_scores
JAXEpochIterator. data_adapter
Layer. _loss_ids _remat_mode
Lowered. _lowering
LossFunctionWrapper. fn
MeshComputation. _compiler_options_kvs
MultiHeadAttention. _attention_axes _dropout_layer _flash_attention _inverse_sqrt_key_dim
Variable. _layout _value
Trainer. _jax_state _losses_override
""")

FROM_KERAS_3_11 = ("keras.src.ops.nn:_layer_normalization",)

# On JAX; see `compat/keras3_jax.py`.
BEFORE_KERAS_3_10 = ("keras.src.backend.jax.distribution_lib:_to_jax_mesh",)

FROM_KERAS_3_10 = ("keras.src.backend.jax.distribution_lib:initialize_rng",)

BEFORE_KERAS_3_16 = ("keras.src.backend.jax.nn:dot_product_attention",)

FROM_KERAS_3_16 = ("keras.src.backend.jax.ops.nn:dot_product_attention",)

FROM_KERAS_3_15 = ("MultiHeadAttention._sliding_window",)

# `keras.src` on TensorFlow 2.15, and `tf_keras.src` on newer ones.
KERAS2 = (
    "BackupAndRestore's file",  # the name of the epoch in it, and of its folder
    *_names("""
keras.src.engine.base_layer: BaseRandomLayer
keras.src.engine.base_layer:Layer. _flatten_layers
keras.src.engine.compile_utils:LossesContainer. _conform_to_outputs
keras.src.engine.compile_utils:MetricsContainer. _conform_to_outputs
keras.src.engine.compile_utils: match_dtype_and_rank
keras.src.engine.data_adapter:DataHandler. _configure_dataset_and_inferred_steps enumerate_epochs steps
keras.src.engine.data_adapter: GeneratorDataAdapter TensorLikeDataAdapter get_data_handler
keras.src.engine.functional: Functional
keras.src.engine.keras_tensor: KerasTensor
keras.src.engine.training:Model. _get_optimizer _validate_and_get_metrics_result _validate_compile
keras.src.engine.training:Model. _validate_target_and_loss
keras.src.layers.normalization.batch_normalization:BatchNormalizationBase. _assign_moving_average _assign_new_value
keras.src.layers.normalization.batch_normalization:BatchNormalizationBase. _calculate_mean_and_var
keras.src.losses:Loss. _get_reduction
keras.src.mixed_precision.autocast_variable: enable_auto_cast_variables
keras.src.mixed_precision.loss_scale_optimizer: BaseLossScaleOptimizer
keras.src.optimizers.optimizer:Optimizer. aggregate_gradients
keras.src.optimizers.optimizer:_BaseOptimizer. _var_key
keras.src.saving.object_registration: _GLOBAL_CUSTOM_NAMES
keras.src.utils.losses_utils: apply_mask cast_losses_to_common_dtype
keras.src.utils: tf_utils
DataHandler. _adapter _current_step _dataset _inferred_steps _initial_epoch _initial_step _insufficient_data _model
DataHandler. _step_increment
Functional. _nested_inputs _nested_outputs _nodes_by_depth
KerasTensor. _keras_history
Layer. _activity_regularizer _callable_losses _eager_losses _random_generator
Loss. _fn_kwargs
LossScale. _current_loss_scale
LossScaleOptimizer. _loss_scale
LossesContainer. _built _loss_weights _losses _output_names _per_output_metrics _total_loss_mean _user_loss_weights
LossesContainer. _user_losses
MeanMetricWrapper. _fn _fn_kwargs
MetricsContainer. _built _metrics _user_metrics _user_weighted_metrics _weighted_metrics
Model. _compile_config _distribution_strategy _keras_api_names _steps_per_execution _test_counter
Model. _train_counter compiled_loss compiled_metrics
MultiHeadAttention. _softmax
Optimizer. _create_all_weights _distribution_strategy _hyper _index_dict _iterations
RandomGenerator. _generator
Tensor. _keras_mask
TensorLikeDataAdapter. _shuffle
"""),
)

# Under any Keras. The nodes of tf.data are tried one by one in tests/data.
TENSORFLOW = _names("""
tensorflow.compiler.tf2xla.ops.gen_xla_ops: xla_all_reduce xla_dynamic_update_slice xla_replica_id
tensorflow.python.autograph.core.ag_ctx: ControlStatusCtx Status
tensorflow.python.data.ops.iterator_ops: IteratorSpec
tensorflow.python.distribute.distribute_lib:_DefaultDistributionExtended. _gather_to_implementation
tensorflow.python.distribute.distribute_lib: _get_default_strategy
tensorflow.python.distribute.input_lib: _SingleWorkerDatasetIteratorSpec
tensorflow.python.distribute.input_lib:_SingleWorkerOwnedDatasetIterator. _make_iterator
tensorflow.python.eager.context: context global_seed
tensorflow.python.eager.polymorphic_function.tracing_compilation: _graph_building_time_counter
tensorflow.python.framework.ops: gradient_registry
tensorflow.python.framework.kernels: get_registered_kernels_for_op
tensorflow.python.saved_model.save_context: save_context
DistributedVariable. _primary
tensorflow:Graph. _get_function
tensorflow:data.Dataset. _functions _inputs
Dataset. _variant_tensor
OwnedIterator. _iterator_resource
PerReplicaSpec. _value_specs
StructuredFunctionWrapper. _func
_SingleWorkerDatasetIteratorSpec. _element_spec
_SingleWorkerOwnedDatasetIterator. _worker
_TensorSliceDataset. _tensors
""")

# Names that older TensorFlow versions lack and are not asked for.
NEWER_TENSORFLOW = _names("""
tensorflow.python.data.experimental.ops.iterator_model_ops: get_model_proto
""")

BEFORE_TENSORFLOW_2_19 = ("tensorflow.tsl.protobuf.coordination_config_pb2:CoordinatedJob",)

FROM_TENSORFLOW_2_19 = ("tensorflow.compiler.xla.tsl.protobuf.coordination_config_pb2:CoordinatedJob",)

# In the process that runs the TPU compiler.
COMPILER = _names("""
jax._src.compiler: get_compile_options
jax._src.interpreters.mlir: make_ir_context
jax._src.lib:xla_client. DeviceList
jax.experimental.topologies: get_topology_desc
jaxlib.mlir.ir:Module. parse
""")

# Of the drop-in.
DROPIN = _names("""
jax._src.array: ArrayImpl
keras.src: activations constraints layers metrics regularizers
keras.src.backend.jax: random
keras.src.backend.jax.trainer: JAXTrainer
keras.src.callbacks.monitor_callback: MonitorCallback
keras.src.layers.merging: base_merge
keras.src.legacy: backend
keras.src.legacy.losses: Reduction
keras.src.legacy.saving: legacy_h5_format saving_utils
keras.src.ops.function: map_graph
keras.src.random: seed_generator
keras.src.saving: serialization_lib
keras.src.trainers.compile_utils: CompileMetrics
keras.src.trainers.trainer: Trainer
keras.src.utils: io_utils jax_utils python_utils tracking
keras.src.utils.jax_utils: is_in_jax_tracing_scope
keras.src.utils.python_utils: is_default
tensorflow.python.compat: v2_compat
tensorflow.python.eager.polymorphic_function: polymorphic_function
tensorflow.python.ops: array_ops lookup_ops
tensorflow.python.ops.resource_variable_ops: BaseResourceVariable
tensorflow.python.saved_model: function_deserialization
tensorflow.python.util: dispatch tf_export
Adam. _momentums _velocities _velocity_hats
Dense. _kernel
Function. _nodes _operations_by_depth _outputs _run_through_graph
Layer. _seed_generators
""")

EVERY = (
    *KERAS3,
    *KERAS3_TENSORFLOW,
    *KERAS3_JAX,
    *BEFORE_KERAS_3_10,
    *FROM_KERAS_3_10,
    *FROM_KERAS_3_11,
    *FROM_KERAS_3_15,
    *BEFORE_KERAS_3_16,
    *FROM_KERAS_3_16,
    *KERAS2,
    *TENSORFLOW,
    *NEWER_TENSORFLOW,
    *BEFORE_TENSORFLOW_2_19,
    *FROM_TENSORFLOW_2_19,
    *COMPILER,
    *DROPIN,
)
