"""Packages that old programs import, Keras 3 has not, and the drop-in stands in for: their modules and names."""

from __future__ import annotations

from keras_tpu_ext.tools.migrate.tables.rows import read_rows

_EFFICIENTNETS = " ".join(f"EfficientNetB{size}" for size in range(8))

STAND_INS: dict[str, frozenset[str]] = {
    module: frozenset(names.split())
    for module, names in read_rows(f"""
efficientnet: preprocess_input center_crop_and_resize
efficientnet.tfkeras, efficientnet.keras: {_EFFICIENTNETS} preprocess_input center_crop_and_resize
kaggle_datasets: KaggleDatasets
tensorflow_addons:
tensorflow_addons.optimizers: AdamW RectifiedAdam LAMB LazyAdam Lookahead SWA
tensorflow_addons.losses: SigmoidFocalCrossEntropy sigmoid_focal_crossentropy TripletSemiHardLoss
  triplet_semihard_loss TripletHardLoss triplet_hard_loss ContrastiveLoss contrastive_loss PinballLoss pinball_loss
tensorflow_addons.metrics: F1Score FBetaScore CohenKappa
tensorflow_addons.layers: GroupNormalization InstanceNormalization WeightNormalization
tensorflow_addons.activations: mish gelu
tensorflow_addons.image: rotate transform translate cutout random_cutout
tensorflow_addons.callbacks: TQDMProgressBar TimeStopping
""").items()
}
