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
tf.contrib: the same in keras.layers or keras.ops
tf.saved_model: model.save("model.keras") and keras.models.load_model
tensorflow_hub: {_HUB}
tensorflow_probability: the distribution's formula in keras.ops
tensorflow_text: a tokenizer in the input pipeline, or keras_hub
tensorflow_recommenders: keras_rs, or a keras.Model of your own
transformers.TF*: the same network from keras_hub
segmentation_models: keras_hub.models, or the decoder in keras.layers
""")

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
