"""What cannot run on JAX, and what to write: names of functions and classes, or of packages whose names end so."""

from __future__ import annotations

from keras_tpu_ext.tools.migrate.tables.rows import read_rows

_FIT = "model.compile(...) and model.fit(...), or a keras_tpu_ext.TPUModel with its own train_step"
_HUB = "the same network from keras.applications or keras_hub"

OUT_OF_REACH: dict[str, str] = read_rows(f"""
tf.GradientTape: {_FIT}
tf.gradients: {_FIT}
tf.Session, tf.placeholder, tf.get_variable, tf.global_variables_initializer: eager code, or keras.layers
tf.compat.v1: eager code, or keras.layers
tf.estimator: {_FIT}
tf.contrib: the layer, loss or optimizer of keras
tf.saved_model: model.save("model.keras") and keras.models.load_model
tensorflow_hub: {_HUB}
tensorflow_probability: keras.ops and keras.random
tensorflow_text: the tokenizers of keras_hub, in the tf.data pipeline
tensorflow_recommenders: keras_rs, or a keras.Model of your own
transformers.TF*: the same network from keras_hub
segmentation_models: the network in keras.layers, on the outputs of layers of keras.applications
classification_models, keras_applications: keras.applications
keras_contrib: keras, or tensorflow_addons, which has a stand-in
keras_radam: tfa.optimizers.RectifiedAdam, which has a stand-in
adabelief_tf: keras.optimizers.Adam
vit_keras: keras_hub.models.ViTImageClassifier
tf_explain: the program without it
official, bert, keras_bert: keras_hub.models
""")

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
    for key, write in OUT_OF_REACH.items():
        if name == key or name.startswith(f"{key}.") or (key.endswith("*") and name.startswith(key[:-1])):
            return write
    return None
