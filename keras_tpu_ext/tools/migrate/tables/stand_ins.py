"""Packages that old programs import, Keras 3 has not, and the drop-in stands in for."""

from __future__ import annotations

from keras_tpu_ext.tools.migrate.tables.rows import read_rows

_EFFICIENTNETS = " ".join(f"EfficientNetB{size}" for size in range(8))

# A module's old name, the names in it, and the file of the drop-in that has these.
_TABLE = read_rows(f"""
efficientnet: preprocess_input = efficientnet
efficientnet.tfkeras, efficientnet.keras: {_EFFICIENTNETS} preprocess_input = efficientnet
kaggle_datasets: KaggleDatasets = kaggle
tensorflow_addons:
tensorflow_addons.optimizers: AdamW RectifiedAdam LAMB = addons_optimizers; Lookahead SWA = addons_averaging
tensorflow_addons.losses: SigmoidFocalCrossEntropy sigmoid_focal_crossentropy TripletSemiHardLoss
  triplet_semihard_loss TripletHardLoss triplet_hard_loss = addons_losses
tensorflow_addons.metrics: F1Score FBetaScore CohenKappa = addons_metrics
tensorflow_addons.layers: GroupNormalization InstanceNormalization WeightNormalization = addons_layers
tensorflow_addons.activations: mish gelu = addons_activations
tensorflow_addons.image: rotate transform cutout random_cutout = addons_image
tensorflow_addons.callbacks:
""")

STAND_INS: dict[str, dict[str, str]] = {
    module: {name: file for part in row.split("; ") for names, file in [part.split("= ")] for name in names.split()}
    if row
    else {}
    for module, row in _TABLE.items()
}

# What to write for a name that has no stand-in; of others, what is said of the whole package.
_INSTEAD = read_rows("""
tensorflow_addons: the same in keras.ops, in a class of your own
tensorflow_addons.optimizers.MovingAverage: use_ema=True in the optimizer of Keras
tensorflow_addons.optimizers.LazyAdam: keras.optimizers.Adam
tensorflow_addons.callbacks.TQDMProgressBar: verbose=1 in fit, whose bar Keras draws
tensorflow_addons.callbacks.TimeStopping: keras_tpu_ext.callbacks.AutoResume(folder, deadline_s=seconds)
tensorflow_addons.layers.GELU: keras.layers.Activation(tfa.activations.gelu)
tensorflow_addons.layers.SpectralNormalization: keras.layers.SpectralNormalization
tensorflow_addons.layers.MultiHeadAttention: keras.layers.MultiHeadAttention, which has other arguments
tensorflow_addons.layers.AdaptiveAveragePooling2D: GlobalAveragePooling2D or keras.ops.image.resize
efficientnet.tfkeras.EfficientNetL2: EfficientNetB7, the largest one there is here
efficientnet: keras.applications.EfficientNetB0 and its like
kaggle_datasets: the folder, /kaggle/input/<name>
""")


def instead(name: str) -> str:
    """Return what to write for a name of these packages that has no stand-in."""
    return _INSTEAD.get(name, _INSTEAD[name.partition(".")[0]])
