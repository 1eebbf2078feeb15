from keras_tpu_ext import _runtime


@_runtime.keras.saving.register_keras_serializable(package="keras_tpu_ext")
class TPUModel(_runtime.TrainStep, _runtime.keras.Model):
    """x."""
