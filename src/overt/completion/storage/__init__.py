"""What is kept on disk: ratings files, models, checkpoints."""
