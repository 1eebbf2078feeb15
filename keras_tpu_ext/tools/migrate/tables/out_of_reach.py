"""What cannot run on JAX, and what to write: names of functions and classes, or of packages whose names end so."""

from __future__ import annotations

from keras_tpu_ext.tools.migrate.tables.rows import read_rows

_FIT = "model.compile(...) and model.fit(...), or a keras_tpu_ext.TPUModel with its own train_step"

# Packages: what a program is to write that imports them.
PACKAGES: dict[str, str] = read_rows("""
tensorflow_hub: the same network from keras.applications or keras_hub.models
tensorflow_probability: keras.ops and keras.random
tensorflow_text: the tokenizers of keras_hub, in the tf.data pipeline
tensorflow_recommenders: keras_rs, or a keras.Model of your own
segmentation_models: the network in keras.layers, on the outputs of layers of keras.applications
classification_models, keras_applications: keras.applications
keras_contrib: keras, or tensorflow_addons, which has a stand-in
keras_radam: tfa.optimizers.RectifiedAdam, which has a stand-in
adabelief_tf: keras.optimizers.Adam
vit_keras: keras_hub.models.ViTImageClassifier
tf_explain: the program without it
official, bert, keras_bert: keras_hub.models
""")

# Functions on values of JAX: the size of their results depends on the data.
_PIPELINE, _AFTER = "the call in the tf.data pipeline", "the call after predict, on the arrays that it returns"
OF_DATA: dict[str, str] = read_rows(f"""
boolean_mask: tf.where(mask, x, 0.0), and divide by the sum of the mask
dynamic_partition: tf.where(partitions == i, x, 0.0) for each i
unique, unique_with_counts: {_PIPELINE}
image.non_max_suppression, image.combined_non_max_suppression: {_AFTER}
""")

# Names of TensorFlow 1, in `tf`, that have another one today, and those that are gone.
_OF_V1 = ("logging", "ConfigProto", "GPUOptions", "Session", "get_default_graph", "reset_default_graph", "gfile")
TF1_NAMES = {
    "set_random_seed": "random.set_seed",
    "log": "math.log",
    **{name: f"compat.v1.{name}" for name in _OF_V1},
}
TF1_GONE: dict[str, str] = read_rows("""
contrib: the layer, loss or optimizer of tf.keras
layers: tf.keras.layers
estimator: a tf.keras model, compile and fit
placeholder: tf.keras.Input(shape)
get_variable: self.add_weight(...) in a layer
variable_scope: a layer, which has its variables
global_variables_initializer: nothing: variables have their values when they are made
losses: tf.keras.losses
metrics: tf.keras.metrics
""")

OUT_OF_REACH: dict[str, str] = {
    **read_rows(f"""
tf.GradientTape, tf.gradients: {_FIT}
tf.saved_model.save: model.save("model.keras")
tf.saved_model.load: keras.models.load_model of a file of model.save
keras.backend.gradients: jax.grad of a function of arrays
keras.backend.get_session: K.get_value(x), or model(x)
keras.backend.local_conv1d, keras.backend.local_conv2d: keras.ops.einsum of the windows of x and the kernel
keras.backend.normalize_batch_in_training: keras.layers.BatchNormalization, or keras.ops.moments
transformers.TF*: the same network from keras_hub.models
"""),
    **{f"tf.{name}": write for name, write in TF1_GONE.items()},
    **PACKAGES,
}

# Methods of a model that are written for TensorFlow.
STEPS: dict[str, str] = dict.fromkeys(
    ("train_step", "test_step"), "the loss in compute_loss(self, x, y, y_pred, sample_weight), and fit"
)

# Of a strategy.
LOOPS: dict[str, str] = dict.fromkeys(
    ("run", "experimental_run_v2", "experimental_run", "reduce", "gather", "make_dataset_iterator"), _FIT
)


def out_of_reach(name: str) -> str | None:
    """Return what to write for a name that cannot run; `None` for any other."""
    name = name.replace("tf.compat.v1.", "tf.", 1)
    for key, write in OUT_OF_REACH.items():
        if name == key or name.startswith(f"{key}.") or (key.endswith("*") and name.startswith(key[:-1])):
            return write
    return None
