"""The implementation of `check_parity`: two fresh processes that run the same checks, and their comparison."""
