"""The implementation of `doctor()` and `check_parity()`."""
