"""Code that the runtimes share, free of frameworks."""
