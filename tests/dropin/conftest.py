"""Every test here runs with the drop-in, but for those of what old programs give on Keras 2."""

from kind_of_keras import RUNTIMES

if "keras3_jax" in RUNTIMES:
    import keras_tpu_ext.dropin  # noqa: F401
