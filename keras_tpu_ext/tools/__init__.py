"""The implementation of `doctor()`, `check_parity()` and `plan()`."""
