"""The private names of Keras, TensorFlow and JAX that this package uses: the one table that tests and errors read.

Nobody promises that they stay. `tests/_runtime/test_private_names.py` holds that every private import and every
foreign attribute with an underscore in the package stands here, and that the installed versions still have it.
`module:name` can be looked up without an object; `Class.name` is an attribute that only an instance has.

Where one is gone, the import of this package goes on: `private` returns what raises when it is used.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import os
import re
import traceback
import types
from collections.abc import Iterator
from typing import Any, NoReturn

from keras_tpu_ext._versions import NEWEST_TESTED, find_versions
from keras_tpu_ext.errors import RuntimeNotSupportedError

# Under every backend.
KERAS3 = (
    "keras.layers:BatchNormalization._moments",
    "keras.src.api_export:REGISTERED_OBJS_TO_NAMES",
    "keras.src.backend.common.variables:AutocastScope",
    "keras.src.backend.common.masking:get_keras_mask",
    "keras.src.backend:in_symbolic_scope",
    "keras.src.backend.common.masking:set_keras_mask",
    "keras.src.callbacks.backup_and_restore:BackupAndRestore._save_model",
    "keras.src.layers.layer:Layer._flatten_layers",
    "keras.src.losses.loss:apply_mask",
    "keras.src.models.functional:Functional",
    "keras.src.models.model:functional_init_arguments",
    "keras.src.ops.nn:LogSoftmax",
    "keras.src.ops.nn:Softmax",
    "keras.src.optimizers.base_optimizer:BaseOptimizer._get_variable_index",
    "keras.src.optimizers.base_optimizer:BaseOptimizer._track_variable",
    "keras.src.saving.keras_saveable:KerasSaveable._unpickle_model",
    "keras.src.saving.object_registration:GLOBAL_CUSTOM_NAMES",
    "keras.src.trainers.compile_utils:CompileLoss",
    "keras.src.trainers.compile_utils:CompileMetrics._flatten_y",
    "keras.src.trainers.epoch_iterator:EpochIterator._enumerate_iterator",
    "keras.src.trainers.epoch_iterator:EpochIterator._get_iterator",
    "keras.src.trainers.epoch_iterator:EpochIterator._interrupted_warning",
    "keras.src.models.model:Trainer._get_metrics_result_or_logs",
    "keras.src.models.model:Trainer._symbolic_build",
    "keras.src.utils.file_utils:File",
    "keras.src.utils.file_utils:exists",
    "BackupAndRestore._training_metadata_path",
    "BatchNormalization._reduction_axes",
    "CompileLoss._flat_losses",
    "CompileLoss._user_loss",
    "CompileLoss._user_loss_weights",
    "CompileMetrics._flat_metrics",
    "CompileMetrics._flat_weighted_metrics",
    "CompileMetrics._user_metrics",
    "CompileMetrics._user_weighted_metrics",
    "EpochIterator._current_iterator",
    "EpochIterator._num_batches",
    "EpochIterator._steps_seen",
    "Functional._inputs_struct",
    "Functional._nodes_by_depth",
    "Functional._outputs_struct",
    "KerasTensor._keras_history",
    "LossScaleOptimizer.inner_optimizer",
    "MeanMetricWrapper._fn",
    "MeanMetricWrapper._fn_kwargs",
    "MultiHeadAttention._softmax",
    "Operation._inbound_nodes",
    "Optimizer._iterations",
    "Sequential._functional",
    "TensorBoard._should_trace",
    "Trainer._compile_config",
    "Trainer._compile_loss",
    "Trainer._compile_metrics",
    "Trainer._loss_tracker",
)

KERAS3_TENSORFLOW = (
    "keras:Variable._initialize",
    "keras.src.backend.tensorflow.optimizer:TFOptimizer._all_reduce_sum_gradients",
    "keras.src.backend.tensorflow.optimizer:TFOptimizer._apply_weight_decay",
    "keras.src.backend.tensorflow.optimizer:TFOptimizer._backend_apply_gradients",
    "keras.src.backend.tensorflow.optimizer:TFOptimizer._backend_update_step",
    "keras.src.backend.tensorflow.optimizer:TFOptimizer._clip_gradients",
    "keras.src.backend.tensorflow.optimizer:TFOptimizer._update_model_variables_moving_average",
    "keras.src.backend.tensorflow.optimizer:TFOptimizer._var_key",
    "keras.src.models.model:Trainer._maybe_symbolic_build",
    "keras.src.layers.layer:Layer._get_own_losses",
    "keras.src.layers.layer:Layer._get_regularization_losses",
    "keras.src.losses.loss:scale_loss_for_distribution",
    "keras.src.losses.loss:unscale_loss_for_distribution",
    "keras.src.models.model:Trainer._compute_loss",
    "Layer._losses",
    "Optimizer._accumulated_gradients",
    "Optimizer._distribution_strategy",
    "Optimizer._model_variables_moving_average",
    "Optimizer._trainable_variables",
    "Optimizer._trainable_variables_indices",
    "TFEpochIterator._distributed_dataset",
    "Trainer._call_has_training_arg",
    "Trainer._distribute_strategy",
)

KERAS3_JAX = (
    "jax._src.distributed:global_state.client",
    "jax._src.interpreters.mlir:module_to_bytecode",
    "jax._src.xla_bridge:backends_are_initialized",
    "keras.src.models.model:Trainer._get_jax_state",
    "keras.src.models.model:Trainer.compute_loss_and_updates",  # not private, and not documented either
    "keras.src.trainers.data_adapters:get_data_adapter",
    "keras.src.trainers.data_adapters.data_adapter:DataAdapter.batch_size",
    "keras.src.trainers.data_adapters.data_adapter:DataAdapter.get_numpy_iterator",
    "keras.src.trainers.data_adapters.data_adapter:DataAdapter.has_partial_batch",
    "keras.src.trainers.data_adapters.data_adapter:DataAdapter.num_batches",
    "keras.src.trainers.data_adapters.data_adapter_utils:is_jax_sparse",
    "keras.src.trainers.data_adapters.data_adapter_utils:is_scipy_sparse",
    "keras.src.trainers.data_adapters.data_adapter_utils:is_tensorflow_sparse",
    "keras.src.trainers.data_adapters.data_adapter_utils:scipy_sparse_to_jax_sparse",
    "keras.src.trainers.data_adapters.data_adapter_utils:tf_sparse_to_jax_sparse",
    "keras.src.trainers.data_adapters.tf_dataset_adapter:TFDatasetAdapter",
    "JAXEpochIterator.data_adapter",
    "LossFunctionWrapper.fn",
    "Variable._layout",
    "Variable._value",
)

# On JAX; see `compat/keras3_jax.py`.
BEFORE_KERAS_3_10 = (
    "keras.src.backend.common.global_state:get_global_attribute",
    "keras.src.backend.jax.distribution_lib:_to_jax_mesh",
)
FROM_KERAS_3_10 = ("keras.src.backend.jax.distribution_lib:initialize_rng",)

# `keras.src` on TensorFlow 2.15, and `tf_keras.src` on newer ones.
KERAS2 = (
    "keras.src.engine.base_layer:BaseRandomLayer",
    "keras.src.engine.base_layer:Layer._flatten_layers",
    "keras.src.engine.compile_utils:LossesContainer._conform_to_outputs",
    "keras.src.engine.compile_utils:MetricsContainer._conform_to_outputs",
    "keras.src.engine.compile_utils:match_dtype_and_rank",
    "keras.src.engine.data_adapter:DataHandler.steps",
    "keras.src.engine.data_adapter:get_data_handler",
    "keras.src.engine.functional:Functional",
    "keras.src.engine.keras_tensor:KerasTensor",
    "keras.src.engine.training:Model._get_optimizer",
    "keras.src.engine.training:Model._validate_and_get_metrics_result",
    "keras.src.engine.training:Model._validate_compile",
    "keras.src.engine.training:Model._validate_target_and_loss",
    "keras.src.engine.training:is_functional_model_init_params",
    "keras.src.layers.normalization.batch_normalization:BatchNormalizationBase._assign_moving_average",
    "keras.src.layers.normalization.batch_normalization:BatchNormalizationBase._assign_new_value",
    "keras.src.layers.normalization.batch_normalization:BatchNormalizationBase._calculate_mean_and_var",
    "keras.src.losses:Loss._get_reduction",
    "keras.src.mixed_precision.autocast_variable:enable_auto_cast_variables",
    "keras.src.mixed_precision.loss_scale_optimizer:BaseLossScaleOptimizer",
    "keras.src.optimizers.optimizer:Optimizer.aggregate_gradients",
    "keras.src.optimizers.optimizer:_BaseOptimizer._build_learning_rate",
    "keras.src.optimizers.optimizer:_BaseOptimizer._var_key",
    "keras.src.saving.object_registration:_GLOBAL_CUSTOM_NAMES",
    "keras.src.utils.losses_utils:apply_mask",
    "keras.src.utils.losses_utils:cast_losses_to_common_dtype",
    "keras.src.utils:tf_utils",
    "BackupAndRestore's file",  # the name of the epoch in it, and of its folder
    "DataHandler._current_step",
    "DataHandler._inferred_steps",
    "DataHandler._initial_step",
    "DataHandler._insufficient_data",
    "DataHandler._model",
    "DataHandler._step_increment",
    "Functional._nested_inputs",
    "Functional._nested_outputs",
    "Functional._nodes_by_depth",
    "KerasTensor._keras_history",
    "Layer._activity_regularizer",
    "Layer._callable_losses",
    "Layer._eager_losses",
    "Loss._fn_kwargs",
    "LossesContainer._built",
    "LossesContainer._loss_weights",
    "LossesContainer._losses",
    "LossesContainer._output_names",
    "LossesContainer._per_output_metrics",
    "LossesContainer._total_loss_mean",
    "LossesContainer._user_loss_weights",
    "LossesContainer._user_losses",
    "MeanMetricWrapper._fn",
    "MeanMetricWrapper._fn_kwargs",
    "MetricsContainer._built",
    "MetricsContainer._metrics",
    "MetricsContainer._user_metrics",
    "MetricsContainer._user_weighted_metrics",
    "MetricsContainer._weighted_metrics",
    "Model._compile_config",
    "Model._distribution_strategy",
    "Model._is_compiled",
    "Model._keras_api_names",
    "Model._steps_per_execution",
    "Model._test_counter",
    "Model._train_counter",
    "Model.compiled_loss",
    "Model.compiled_metrics",
    "MultiHeadAttention._softmax",
    "Optimizer._distribution_strategy",
    "Optimizer._index_dict",
    "Optimizer._iterations",
    "Tensor._keras_mask",
)

# Under any Keras. The nodes of tf.data are tried one by one in tests/data.
TENSORFLOW = (
    "tensorflow.compiler.tf2xla.ops.gen_xla_ops:xla_all_reduce",
    "tensorflow.compiler.tf2xla.ops.gen_xla_ops:xla_dynamic_update_slice",
    "tensorflow.compiler.tf2xla.ops.gen_xla_ops:xla_replica_id",
    "tensorflow.python.autograph.core.ag_ctx:ControlStatusCtx",
    "tensorflow.python.autograph.core.ag_ctx:Status",
    "tensorflow.python.data.ops.iterator_ops:IteratorSpec",
    "tensorflow.python.distribute.distribute_lib:_DefaultDistributionExtended._gather_to_implementation",
    "tensorflow.python.distribute.distribute_lib:_get_default_strategy",
    "tensorflow.python.distribute.input_lib:_SingleWorkerDatasetIteratorSpec",
    "tensorflow.python.distribute.input_lib:_SingleWorkerOwnedDatasetIterator._make_iterator",
    "tensorflow.python.eager.context:context",
    "tensorflow.python.eager.context:global_seed",
    "tensorflow.python.framework.kernels:get_registered_kernels_for_op",
    "tensorflow.python.framework.op_def_registry:get",
    "tensorflow:Graph._get_function",
    "tensorflow:data.Dataset._common_args",
    "tensorflow:data.Dataset._functions",
    "tensorflow:data.Dataset._inputs",
    "Dataset._variant_tensor",
    "OwnedIterator._iterator_resource",
    "PerReplicaSpec._value_specs",
    "StructuredFunctionWrapper._func",
    "_ConcatenateDataset._dataset_to_concatenate",
    "_ConcatenateDataset._input_datasets",
    "_MapDataset._input_dataset",
    "_ParallelMapDataset._deterministic",
    "_ShuffleDataset._reshuffle_each_iteration",
    "_SingleWorkerDatasetIteratorSpec._element_spec",
    "_SingleWorkerOwnedDatasetIterator._worker",
    "_TensorSliceDataset._tensors",
    "_ZipDataset._datasets",
)

# What older TensorFlows have not, and are not asked for.
NEWER_TENSORFLOW = (
    "tensorflow.python.data.experimental.ops.iterator_model_ops:get_model_proto",
    "_ParallelMapDataset._force_synchronous",
)
BEFORE_TENSORFLOW_2_19 = ("tensorflow.tsl.protobuf.coordination_config_pb2:CoordinatedJob",)
FROM_TENSORFLOW_2_19 = ("tensorflow.compiler.xla.tsl.protobuf.coordination_config_pb2:CoordinatedJob",)

# In the process that runs the TPU compiler.
COMPILER = (
    "jax._src.compiler:get_compile_options",
    "jax._src.interpreters.mlir:make_ir_context",
    "jax._src.lib:xla_client.DeviceList",
    "jax.experimental.topologies:get_topology_desc",
    "jaxlib.mlir.ir:Module.parse",
)

EVERY = (
    *KERAS3,
    *KERAS3_TENSORFLOW,
    *KERAS3_JAX,
    *BEFORE_KERAS_3_10,
    *FROM_KERAS_3_10,
    *KERAS2,
    *TENSORFLOW,
    *NEWER_TENSORFLOW,
    *BEFORE_TENSORFLOW_2_19,
    *FROM_TENSORFLOW_2_19,
    *COMPILER,
)
_PACKAGE = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


def private(path: str) -> Any:
    """Return what a private name stands for; where it is gone, an object that raises when it is used.

    Args:
        path: `"package.module:Class.name"`, or `"package.module"` for the module.
    """
    module, _, names = path.partition(":")
    try:
        found = importlib.import_module(module)
        for name in filter(None, names.split(".")):
            found = getattr(found, name)
    except (AttributeError, ImportError) as error:
        return _Missing(path, error)
    return found


def override(thing: Any, name: str, value: Any) -> None:
    """Set a private attribute that Keras reads.

    Raises:
        RuntimeNotSupportedError: If `thing` has none of this name: Keras would not read it.
    """
    if not hasattr(thing, name):
        raise RuntimeNotSupportedError(_gone(f"{type(thing).__name__}.{name}"))
    setattr(thing, name, value)


def check_overrides(cls: type) -> None:
    """Check that Keras still has the private methods of a model that this package overrides in `cls`.

    Raises:
        RuntimeNotSupportedError: If one is gone: Keras would not call ours.
    """
    ours = [vars(base) for base in cls.__mro__ if _is_of_package(base)]
    theirs = [vars(base) for base in cls.__mro__ if not _is_of_package(base)]
    for path in EVERY:
        owner, _, name = re.split(":", path)[-1].rpartition(".")
        overrides = owner in ("Trainer", "Model") and any(name in members for members in ours)
        if overrides and not any(name in members for members in theirs):
            raise RuntimeNotSupportedError(_gone(path))


def _is_of_package(cls: type) -> bool:
    return cls.__module__.partition(".")[0] == __name__.partition(".")[0]


class _Missing:
    """Stands where a private name is gone, and raises `RuntimeNotSupportedError` when it is used.

    That is where it is called, read, compared or given to `isinstance`, and where a class that inherits from it is.
    """

    def __init__(self, path: str, error: Exception) -> None:
        self.__dict__.update(path=path, error=error)

    def _raise(self, *args: object, **kwargs: object) -> NoReturn:
        raise RuntimeNotSupportedError(_gone(self.__dict__["path"])) from self.__dict__["error"]

    __call__ = __getattr__ = __setattr__ = __getitem__ = __setitem__ = __contains__ = __iter__ = _raise
    __instancecheck__ = __subclasscheck__ = __eq__ = __hash__ = _raise

    def __mro_entries__(self, bases: tuple[Any, ...]) -> tuple[type, ...]:
        # A class that inherits from it can be defined; making an object of it, and using one, raises.
        def raise_(*args: object, **kwargs: object) -> NoReturn:
            self._raise()

        return (type("_Missing", (), {"__new__": raise_, "__getattr__": raise_}),)


@contextlib.contextmanager
def explain_missing_names() -> Iterator[None]:
    """Say what to install where the block fails because a private name is gone from the installed version.

    Raises:
        RuntimeNotSupportedError: In place of the `AttributeError` or `ImportError`, which is its cause.
    """
    try:
        yield
    except (AttributeError, ImportError) as error:
        name = missing_name(error)
        if name is None:
            raise
        raise RuntimeNotSupportedError(_gone(name, f" in {_place(error)}")) from error


def _gone(name: str, place: str = "") -> str:
    return (
        f"`{name}` is gone, a private name that keras_tpu_ext uses{place}. Installed: {_versions()}. This release "
        f"was tested up to {_listed(NEWEST_TESTED)}. Go back to one of these, or upgrade this package. Write: "
        f"pip install --upgrade keras-tpu-ext"
    )


def missing_name(error: AttributeError | ImportError) -> str | None:
    """Return the name of the table that is gone; `None` where the error is about something else.

    Args:
        error: Of an import or an attribute. Only code of this package uses the table, so an error that comes from
            other code is none of ours, whatever it is about.
    """
    if not _place(error):
        return None
    if isinstance(error, AttributeError):
        if isinstance(error.obj, types.ModuleType):
            module = re.sub("^tf_keras", "keras", error.obj.__name__)
            return next((path for path in EVERY if path == f"{module}:{error.name}"), None)
        # Names such as `get` may be missing from what the user gave, too.
        private = error.name if (error.name or "").startswith("_") else None
        return next((path for path in EVERY if re.split("[.:]", path)[-1] == private), None)
    imported = re.search(r"cannot import name '(\w+)'", str(error))
    wanted = ".".join(filter(None, [error.name, imported and imported[1]]))
    return next((path for path in EVERY if (path.replace(":", ".") + ".").startswith(wanted + ".")), None)


def _place(error: BaseException) -> str:
    """Return the file and line of this package that raised; empty where other code did."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if "importlib" not in frame.filename]
    if not frames or not frames[-1].filename.startswith(_PACKAGE + os.sep):
        return ""
    return f"{os.path.relpath(frames[-1].filename, os.path.dirname(_PACKAGE))}, line {frames[-1].lineno}"


def _versions() -> str:
    there = dataclasses.asdict(find_versions())
    return _listed({package: there[package] for package in NEWEST_TESTED if there[package]})


def _listed(versions: dict[str, str]) -> str:
    return ", ".join(f"{package} {version}" for package, version in versions.items())
