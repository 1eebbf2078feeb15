"""What the steps of all Keras versions share."""
