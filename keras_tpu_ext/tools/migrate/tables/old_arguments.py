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
keras.layers.*: dynamic=- implementation=- fused=- time_major=? virtual_batch_size=? batch_input_shape=? weights=?
keras.layers.Embedding: input_length=input_shape weights=weights
keras.layers.BatchNormalization: synchronized=?
keras.layers.LeakyReLU: alpha=negative_slope
keras.layers.Dropout: p=rate
keras.layers.InputLayer: input_shape=shape batch_input_shape=batch_shape
keras.regularizers.l1, keras.regularizers.L1: l=l1
keras.regularizers.l2, keras.regularizers.L2: l=l2
keras.models.Model, keras.Model: input=inputs output=outputs
keras.callbacks.ModelCheckpoint: period=? options=- load_weights_on_restart=?
keras.callbacks.ReduceLROnPlateau: epsilon=min_delta
keras.callbacks.TensorBoard: write_grads=- batch_size=- profile_batch=profile_batch
keras.losses.*: reduction=reduction
""")

# By the method's name, on any value: too special to be anything else's.
METHOD_ARGUMENTS: dict[str, dict[str, str]] = _arguments("""
fit, evaluate, predict: workers=- use_multiprocessing=- max_queue_size=-
compile: experimental_run_tf_function=- experimental_steps_per_execution=steps_per_execution
  sample_weight_mode=? target_tensors=?
""")

# The new name, and the old parameters in their order, with their new names where these are others.
METHODS: dict[str, str] = read_rows("""
fit_generator: fit generator=x steps_per_epoch epochs verbose callbacks validation_data validation_steps
  validation_freq class_weight max_queue_size=- workers=- use_multiprocessing=- shuffle initial_epoch
evaluate_generator: evaluate generator=x steps callbacks max_queue_size=- workers=- use_multiprocessing=- verbose
predict_generator: predict generator=x steps callbacks max_queue_size=- workers=- use_multiprocessing=- verbose
reset_states: reset_state
""")

# Modules of optimizers that Keras 3 has under another name, with the same classes.
OPTIMIZER_MODULES = {
    "keras.optimizers.legacy": "keras.optimizers",
    "keras.experimental": "keras.optimizers.schedules",
}
