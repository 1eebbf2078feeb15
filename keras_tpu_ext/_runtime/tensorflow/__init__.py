"""TensorFlow, whichever Keras is on it."""
