"""Advice on a `tf.data` pipeline, and what follows of it that changes no element."""
