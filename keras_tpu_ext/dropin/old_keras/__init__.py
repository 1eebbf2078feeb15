"""What old Keras (Keras 2, TensorFlow 2.1 to 2.15) had, with the meaning that it had then, on Keras 3."""
