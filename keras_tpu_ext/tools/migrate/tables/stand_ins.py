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
tensorflow_addons.optimizers: AdamW SGDW DecoupledWeightDecayExtension extend_with_decoupled_weight_decay
  RectifiedAdam LAMB NovoGrad LazyAdam Yogi AdaBelief Lookahead SWA MovingAverage AveragedOptimizerWrapper
  CyclicalLearningRate TriangularCyclicalLearningRate Triangular2CyclicalLearningRate
  ExponentialCyclicalLearningRate
tensorflow_addons.losses: SigmoidFocalCrossEntropy sigmoid_focal_crossentropy TripletSemiHardLoss
  triplet_semihard_loss TripletHardLoss triplet_hard_loss ContrastiveLoss contrastive_loss PinballLoss pinball_loss
  WeightedKappaLoss
tensorflow_addons.metrics: F1Score FBetaScore CohenKappa MatthewsCorrelationCoefficient RSquare HammingLoss
  MultiLabelConfusionMatrix
tensorflow_addons.layers: GroupNormalization InstanceNormalization FilterResponseNormalization WeightNormalization
  Maxout GELU StochasticDepth
tensorflow_addons.activations: mish gelu hardshrink softshrink lisht snake tanhshrink sparsemax rrelu
tensorflow_addons.image: rotate transform translate translate_xy shear_x shear_y cutout random_cutout blend sharpness
  equalize mean_filter2d gaussian_filter2d median_filter2d compose_transforms angles_to_projective_transforms
  translations_to_projective_transforms
tensorflow_addons.callbacks: TQDMProgressBar TimeStopping AverageModelCheckpoint
""").items()
}
