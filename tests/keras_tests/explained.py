"""Tests of Keras that need not pass here: a part of the name, from how many replicas on, and why."""

EXPLAINED: tuple[tuple[str, int, str], ...] = ()
