"""The implementation of `doctor()`."""
