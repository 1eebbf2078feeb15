"""Keras 3 on TensorFlow: the reference runtime."""

import keras as keras
