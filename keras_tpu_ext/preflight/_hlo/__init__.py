"""Reading what the TPU compiler prints: instructions, shapes, costs, memory, and the layers that they come from."""
