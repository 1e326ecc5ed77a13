"""What users give with a model: examples, in whatever form they have them, and a loss."""
