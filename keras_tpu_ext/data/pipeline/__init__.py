"""Advice on a `tf.data` pipeline, and the rewriting that it can be followed by."""
