"""How a model is sharded: the arguments, and the report."""
