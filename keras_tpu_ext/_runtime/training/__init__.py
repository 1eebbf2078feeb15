"""What the step of any Keras shares."""
