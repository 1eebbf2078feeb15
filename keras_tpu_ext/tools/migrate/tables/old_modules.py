"""Modules and names of old Keras that Keras 3 has elsewhere, or not at all: plain data, read without Keras.

`keras` stands for all its spellings: `tf.keras`, `tensorflow.keras`, `tensorflow.python.keras`, `keras.api`. A name
of an old module is looked up in `OLD_NAMES`, then in `OUT_OF_REACH`, then in the module that `OLD_MODULES` gives.
"""

from __future__ import annotations

from keras_tpu_ext.tools.migrate.tables.rows import read_rows

OURS = "keras_tpu_ext.dropin.old_keras"  # Keras 3 has nothing like what is mapped to a name in here

# Where a spelling of Keras begins, and what it is called here; the first that fits counts.
ROOTS = {
    **dict.fromkeys(("tensorflow.keras", "tensorflow.python.keras"), "keras"),
    **{f"tensorflow.compat.{version}.keras": "keras" for version in ("v1", "v2")},
    **{f"tensorflow.{part}": f"keras.{part}" for part in ("initializers", "losses", "metrics", "optimizers")},
    **dict.fromkeys(("keras._tf_keras.keras", "keras.api._v1.keras", "keras.api._v2.keras"), "keras"),
    **dict.fromkeys(("keras.api", "keras.src"), "keras"),
}

# Old modules, behind the module of today that has their names.
_MODULES = read_rows(f"""
keras: engine engine.base_layer engine.base_layer_v1 engine.functional engine.input_layer engine.input_spec
  engine.keras_tensor engine.network engine.node engine.sequential engine.topology engine.training engine.training_v1
  estimator api api._v1 api._v2
keras.models: engine.saving saving.save saving.legacy saving.legacy.save saving.model_config models.cloning
  models.experimental
keras.backend: backend.tensorflow_backend backend.common backend.load_backend backend_config
keras.losses: objectives
keras.callbacks: callbacks.callbacks callbacks.experimental callbacks_v1 callbacks.tensorboard_v2
keras.initializers: initializers.initializers initializers.initializers_v1 initializers.initializers_v2
keras.metrics: metrics.base_metric metrics.metrics metrics.experimental
keras.mixed_precision: mixed_precision.experimental mixed_precision.policy mixed_precision.loss_scale_optimizer
  mixed_precision.loss_scale
keras.optimizers: optimizer_v1 optimizer_v2 optimizer_v2.adadelta optimizer_v2.adagrad optimizer_v2.adam
  optimizer_v2.adamax optimizer_v2.ftrl optimizer_v2.gradient_descent optimizer_v2.nadam optimizer_v2.optimizer_v2
  optimizer_v2.rmsprop optimizers.adadelta optimizers.adadelta_v2 optimizers.adagrad optimizers.adagrad_v2
  optimizers.adam optimizers.adam_v2 optimizers.adamax optimizers.adamax_v2 optimizers.adamw optimizers.ftrl
  optimizers.gradient_descent_v2 optimizers.nadam optimizers.nadam_v2 optimizers.optimizer optimizers.optimizer_v2
  optimizers.rmsprop optimizers.rmsprop_v2 optimizers.sgd optimizers.experimental
  optimizers.optimizer_experimental
keras.optimizers.schedules: experimental optimizer_v2.learning_rate_schedule optimizers.learning_rate_schedule
  optimizers.schedules.learning_rate_schedule
keras.layers: layers.activation layers.advanced_activations layers.attention layers.attention.multi_head_attention
  layers.convolutional layers.convolutional_recurrent layers.core layers.cudnn_recurrent layers.dense_attention
  layers.einsum_dense layers.embeddings layers.experimental layers.experimental.preprocessing layers.kernelized
  layers.local layers.locally_connected layers.merge layers.merging layers.merging.base_merge
  layers.multi_head_attention layers.noise layers.normalization layers.normalization.batch_normalization
  layers.normalization.batch_normalization_v1 layers.normalization.layer_normalization layers.normalization_v2
  layers.pooling layers.preprocessing layers.preprocessing.category_encoding layers.preprocessing.discretization
  layers.preprocessing.hashing layers.preprocessing.image_preprocessing layers.preprocessing.integer_lookup
  layers.preprocessing.normalization layers.preprocessing.string_lookup layers.preprocessing.text_vectorization
  layers.recurrent layers.recurrent_v2 layers.regularization layers.reshaping layers.rnn layers.rnn.gru
  layers.rnn.lstm layers.serialization layers.wrappers
keras.preprocessing: keras_preprocessing
keras.preprocessing.image: keras_preprocessing.image
keras.preprocessing.sequence: keras_preprocessing.sequence
keras._tf_keras.keras.preprocessing.text: preprocessing.text keras_preprocessing.text
keras.utils: preprocessing.dataset_utils preprocessing.image_dataset preprocessing.text_dataset
  preprocessing.timeseries saving.object_registration utils.all_utils utils.conv_utils utils.data_utils
  utils.dataset_utils utils.generic_utils utils.image_dataset utils.image_utils utils.io_utils utils.layer_utils
  utils.losses_utils utils.multi_gpu_utils utils.np_utils utils.text_dataset utils.tf_utils utils.timeseries_dataset
  utils.training_utils utils.vis_utils utils.visualize_util utils.experimental
keras.applications: applications.regnet applications.resnet_rs applications.resnext
keras.applications.mobilenet_v2: applications.mobilenetv2
keras.src.legacy.saving.legacy_h5_format: saving.hdf5_format saving.legacy.hdf5_format
{OURS}.old_names: legacy.interfaces
keras.wrappers: wrappers.scikit_learn
""")

# Old names, each with what it is now; one that ends with a dot is the module that has the name.
_NAMES = read_rows(f"""
engine, engine.topology: Container=keras.Model Functional=keras.src.models.functional. InputLayer=keras.layers.
  Network=keras.Model Node=keras.src.ops.node. Wrapper=keras.layers. get_source_inputs=keras.utils.
engine.base_layer: Node=keras.src.ops.node.
engine.functional: Functional=keras.src.models.functional.
engine.input_layer: InputLayer=keras.layers.
engine.network: Container=keras.Model Network=keras.Model get_source_inputs=keras.utils.
engine.node: Node=keras.src.ops.node.
models: Input=keras. Layer=keras. model_from_config=keras.src.legacy.saving.saving_utils.
layers: AbstractRNNCell=keras.Layer CuDNNGRU=keras.layers.GRU CuDNNLSTM=keras.layers.LSTM
  Deconvolution2D=keras.layers.Conv2DTranspose Deconvolution3D=keras.layers.Conv3DTranspose
  RandomHeight=keras._tf_keras.keras.layers. RandomWidth=keras._tf_keras.keras.layers.
  ThresholdedReLU={OURS}.old_layers. merge._Merge=keras.src.layers.merging.base_merge.Merge
  merging.base_merge._Merge=keras.src.layers.merging.base_merge.Merge
  normalization.BatchNormalizationV1=keras.layers.BatchNormalization
  normalization.BatchNormalizationV2=keras.layers.BatchNormalization
  experimental.SyncBatchNormalization=keras.layers.BatchNormalization
  experimental.preprocessing.PreprocessingLayer=keras.Layer
losses, metrics: cosine=keras.losses.cosine_similarity cosine_proximity=keras.losses.cosine_similarity
initializers: normal=keras.initializers.random_normal uniform=keras.initializers.random_uniform
  one=keras.initializers.ones zero=keras.initializers.zeros
regularizers: l1l2=keras.regularizers.l1_l2
constraints: maxnorm=keras.constraints.max_norm nonneg=keras.constraints.non_neg unitnorm=keras.constraints.unit_norm
optimizers: adadelta=keras.optimizers.Adadelta adagrad=keras.optimizers.Adagrad adam=keras.optimizers.Adam
  adamax=keras.optimizers.Adamax nadam=keras.optimizers.Nadam rmsprop=keras.optimizers.RMSprop
  sgd=keras.optimizers.SGD
experimental: CosineDecay=keras.optimizers.schedules. CosineDecayRestarts=keras.optimizers.schedules.
mixed_precision.experimental: LossScaleOptimizer={OURS}.old_names. set_policy=keras.mixed_precision.set_global_policy
saving: load=keras.models.load_model
utils: multi_gpu_model={OURS}.old_names. print_summary={OURS}.old_names. to_ordinal={OURS}.old_names.
  conv_utils.conv_input_length={OURS}.old_names. conv_utils.conv_output_length={OURS}.old_names.
  conv_utils.deconv_output_length={OURS}.old_names.
  conv_utils.normalize_data_format=keras.src.backend.config.standardize_data_format
  conv_utils.normalize_padding=keras.src.utils.argument_validation.standardize_padding
  conv_utils.normalize_tuple=keras.src.utils.argument_validation.standardize_tuple
  generic_utils.func_dump=keras.src.utils.python_utils. generic_utils.func_load=keras.src.utils.python_utils.
  generic_utils.to_list=keras.src.utils.python_utils. io_utils.ask_to_proceed_with_overwrite=keras.src.utils.io_utils.
  io_utils.print_msg=keras.src.utils.io_utils. layer_utils.count_params=keras.src.utils.summary_utils.
  losses_utils.ReductionV2=keras.losses.Reduction tf_utils.shape_type_conversion={OURS}.old_names.
  visualize_util.plot=keras.utils.plot_model vis_utils.plot=keras.utils.plot_model
applications: imagenet_utils._obtain_input_shape=keras.src.applications.imagenet_utils.obtain_input_shape
  mobilenet.DepthwiseConv2D=keras.layers. mobilenet.relu6=keras.activations.
""")
_IMAGE = """DataFrameIterator DirectoryIterator ImageDataGenerator Iterator NumpyArrayIterator apply_affine_transform
    apply_brightness_shift apply_channel_shift flip_axis random_brightness random_channel_shift random_rotation
    random_shear random_shift random_zoom transform_matrix_offset_center"""
_LEGACY = {"image": _IMAGE, "sequence": "TimeseriesGenerator make_sampling_table skipgrams"}  # of preprocessing
_SHORT = {  # short names that `tf.keras` still has and `keras` has no more
    "MSE mse": "mean_squared_error",
    "MAE mae": "mean_absolute_error",
    "MAPE mape": "mean_absolute_percentage_error",
    "MSLE msle": "mean_squared_logarithmic_error",
    "KLD kld kullback_leibler_divergence": "kl_divergence",
    "logcosh": "log_cosh",
}

_REGNETS, _RESNETS = (2, 4, 6, 8, 16, 32, 40, 64, 80, 120, 160, 320), (50, 101, 152, 200, 270, 350, 420)
_DATASET = "a tf.data.Dataset, given to `fit`"
_TRAIN_TF1 = "it belongs to estimators of TensorFlow 1"
# (why, what to write): names that cannot be mapped
_OUT_OF_REACH = {
    ("YAML files of models were removed, since reading one can run code", "model_from_json(model.to_json())"): """
        models.model_from_yaml""",
    (_TRAIN_TF1, "model.fit(...)"): """
        estimator.model_to_estimator experimental.LinearModel experimental.WideDeepModel models.LinearModel
        models.WideDeepModel experimental.export_saved_model experimental.load_from_saved_model""",
    ("Keras 3 has no feature columns", "keras.utils.FeatureSpace, or one input for each column"): """
        layers.DenseFeatures experimental.SequenceFeatures""",
    ("Keras 3 has no such layer", "a `keras.Layer` of your own, with its formula"): """
        layers.Highway layers.MaxoutDense layers.Merge layers.Recurrent layers.ConvRecurrent2D
        layers.LocallyConnected1D layers.LocallyConnected2D
        layers.experimental.RandomFourierFeatures layers.kernelized.RandomFourierFeatures
        experimental.PeepholeLSTMCell""",
    ("Keras 3 has wrappers with other arguments", "keras.wrappers.SKLearnClassifier(model) or SKLearnRegressor"): """
        wrappers.scikit_learn.KerasClassifier wrappers.scikit_learn.KerasRegressor""",
    ("Keras 3 has no functions that make layers of Keras 1", "keras.layers.concatenate, add or multiply"): """
        layers.merge.merge""",
    ("Keras 3 has no such metric", "a `keras.metrics.Metric` of your own"): """
        metrics.MeanRelativeError metrics.MeanTensor metrics.experimental.PyMetric metrics.fbeta_score
        metrics.matthews_correlation metrics.fmeasure""",
    ("Keras 3 has no such schedule", "a `keras.optimizers.schedules.LearningRateSchedule` of your own"): """
        experimental.LinearCosineDecay experimental.NoisyLinearCosineDecay""",
    ("Keras 3 has no such constraint", "a `keras.constraints.Constraint` of your own"): """
        constraints.RadialConstraint constraints.radial_constraint""",
    ("keras.applications has no such network", "keras.applications.ResNet50V2 or EfficientNetV2S"): " ".join(
        ["applications.resnext.ResNeXt50", "applications.resnext.ResNeXt101"]
        + [
            f"applications.{part}RegNet{kind}{size:03}"
            for part in ("", "regnet.")
            for kind in "XY"
            for size in _REGNETS
        ]
        + [f"applications.{part}ResNetRS{depth}" for part in ("", "resnet_rs.") for depth in _RESNETS]
    ),
    ("Keras 3 reads data itself", _DATASET): """
        utils.GeneratorEnqueuer utils.OrderedEnqueuer utils.SequenceEnqueuer utils.experimental.DatasetCreator""",
    ("Keras 3 has no reader of HDF5 files", 'h5py.File(path)["x"][start:end], or ' + _DATASET): """
        utils.HDF5Matrix utils.io_utils.HDF5Matrix""",
    ("it needs a second program of a cluster", "validation_data=, given to `fit`"): """
        experimental.SidecarEvaluator utils.SidecarEvaluator callbacks.SidecarEvaluatorModelExport""",
    ("Keras 3 averages in its metrics", "nothing: `logs` has the averages"): "callbacks.BaseLogger",
    ("its training loop is TensorFlow's", "model.fit(...)"): "models.experimental.SharpnessAwareMinimization",
    ("Keras 3 runs on no Theano", "nothing: kernels of Theano were flipped, and TensorFlow's are not"): """
        utils.convert_all_kernels_in_model utils.layer_utils.convert_all_kernels_in_model
        utils.np_utils.convert_kernel utils.conv_utils.convert_kernel""",
    ("Keras 3 keeps weights of layers elsewhere", "model.load_weights(path)"): """
        engine.saving.load_weights_from_hdf5_group engine.saving.load_weights_from_hdf5_group_by_name
        engine.saving.preprocess_weights_for_loading engine.topology.load_weights_from_hdf5_group
        engine.topology.load_weights_from_hdf5_group_by_name saving.hdf5_format.preprocess_weights_for_loading""",
    ("XLA chooses nothing at run time", "steps_per_execution=, given to `compile`"): """
        utils.StepsPerExecutionTuner""",
}


def _full(name: str) -> str:
    return name if name.startswith("keras_preprocessing") else f"keras.{name}"


OLD_MODULES: dict[str, str] = {_full(old): new for new, olds in _MODULES.items() for old in olds.split()}
"""Each old module, and the module that has its names now."""

OLD_NAMES: dict[str, str] = {
    **{
        f"keras.{module}.{old}": new + old.rpartition(".")[2] if new.endswith(".") else new
        for module, names in _NAMES.items()
        for old, new in (pair.split("=") for pair in names.split())
    },
    **{
        f"keras.preprocessing.{module}.{name}": f"keras.src.legacy.preprocessing.{module}.{name}"
        for module, names in _LEGACY.items()
        for name in names.split()
    },
    **{
        f"keras.{module}.{old}": f"keras.{module}.{new}"
        for module in ("losses", "metrics")
        for olds, new in _SHORT.items()
        for old in olds.split()
    },
}
"""Each old name of a module, old or of today, and where it is now."""

OUT_OF_REACH: dict[str, tuple[str, str]] = {
    f"keras.{old}": reason for reason, olds in _OUT_OF_REACH.items() for old in olds.split()
}
"""Each name that cannot be mapped: why, and what to write instead."""
