"""Record a forward pass as a list of functional operations, and leave the model as it was."""
