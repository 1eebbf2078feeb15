"""A training that resumes after an interruption: its checkpoints, and when they are written and read."""
