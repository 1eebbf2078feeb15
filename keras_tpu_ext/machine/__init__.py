"""What this machine is: its files, its packages and its TPU. No framework."""
