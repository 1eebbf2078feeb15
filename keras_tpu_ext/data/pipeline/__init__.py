"""Advice on a `tf.data` pipeline, and the rewriting that follows it."""
