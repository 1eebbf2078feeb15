"""What stands behind `doctor()`."""
