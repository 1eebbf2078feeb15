"""The implementation of `plan`: what each part of a training costs, measured here or estimated for a TPU."""
