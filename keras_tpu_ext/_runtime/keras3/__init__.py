"""Keras 3, whatever its backend is."""
