"""What the runtimes share without a framework."""
