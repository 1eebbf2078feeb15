"""Arguments and methods of old Keras, and what they are called today.

A value holds, for each old argument, its new name; `-` where it is left out, since it changes no number; `?` where
only the drop-in knows what it meant.
"""

from __future__ import annotations

from keras_tpu_ext.tools.migrate.tables.rows import read_rows


def _arguments(text: str) -> dict[str, dict[str, str]]:
    return {name: dict(pair.split("=") for pair in value.split()) for name, value in read_rows(text).items()}


# By the class or function; `*` is any in its module.
ARGUMENTS: dict[str, dict[str, str]] = _arguments("""
keras.optimizers.*: lr=learning_rate decay=? is_legacy_optimizer=- jit_compile=- gradient_aggregator=-
  schedule_decay=-
keras.layers.*: dynamic=- implementation=- fused=- time_major=? virtual_batch_size=? batch_input_shape=? weights=?
keras.layers.Embedding: input_length=input_shape weights=weights
keras.layers.BatchNormalization: synchronized=?
keras.layers.LeakyReLU: alpha=negative_slope
keras.layers.Dropout: p=rate
keras.layers.InputLayer: input_shape=shape batch_input_shape=batch_shape
keras.regularizers.l1, keras.regularizers.L1: l=l1
keras.regularizers.l2, keras.regularizers.L2: l=l2
keras.models.Model, keras.Model: input=inputs output=outputs
keras.applications.*, keras.applications.efficientnet.*: drop_connect_rate=?
keras.callbacks.ModelCheckpoint: period=? options=- load_weights_on_restart=?
keras.callbacks.ReduceLROnPlateau: epsilon=min_delta
keras.callbacks.EarlyStopping: restore_best_weights=?
keras.callbacks.TensorBoard: write_grads=- batch_size=- embeddings_layer_names=- embeddings_data=-
keras.callbacks.BackupAndRestore: save_before_preemption=-
keras.losses.*: reduction=reduction
keras.mixed_precision.Policy: loss_scale=-
keras.models.load_model: options=-
""")

# By the method's name, on any value: too special to be anything else's.
METHOD_ARGUMENTS: dict[str, dict[str, str]] = _arguments("""
fit, evaluate, predict: workers=- use_multiprocessing=- max_queue_size=- max_q_size=- pickle_safe=- nb_worker=-
  nb_epoch=epochs
compile: experimental_run_tf_function=- experimental_steps_per_execution=steps_per_execution
  sample_weight_mode=- target_tensors=- options=- run_metadata=- distribute=- pss_evaluation_shards=-
save_weights: options=- save_format=?
load_weights: options=- by_name=?
add_weight: use_resource=- synchronization=- partitioner=- getter=- collections=- experimental_autocast=autocast
""")

# By the class or function: parameters in their order, `-` any; those that are named had another default.
DEFAULTS: dict[str, str] = read_rows("""
keras.regularizers.l1_l2: l1 l2
keras.layers.AveragePooling1D, keras.layers.AveragePooling2D, keras.layers.AveragePooling3D: pool_size
keras.layers.ConvLSTM1D, keras.layers.ConvLSTM2D, keras.layers.ConvLSTM3D: - - - - - - - recurrent_activation
""")

# Methods whose parameters had another order, in that order.
ORDERS: dict[str, str] = read_rows("""
compile: optimizer loss metrics loss_weights weighted_metrics run_eagerly steps_per_execution jit_compile
add_weight: name shape dtype initializer regularizer trainable constraint
""")

# The new name, and the old parameters in their order, with their new names where these are others; only the drop-in
# has one without a name.
METHODS: dict[str, str] = read_rows("""
fit_generator: fit generator=x steps_per_epoch epochs verbose callbacks validation_data validation_steps
  validation_freq class_weight max_queue_size=- workers=- use_multiprocessing=- shuffle initial_epoch
evaluate_generator: evaluate generator=x steps callbacks max_queue_size=- workers=- use_multiprocessing=- verbose
predict_generator: predict generator=x steps callbacks max_queue_size=- workers=- use_multiprocessing=- verbose
reset_states: reset_state
add_metric, predict_classes, _make_predict_function, _make_train_function, _make_test_function:
""")
