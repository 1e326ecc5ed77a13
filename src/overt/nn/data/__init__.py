"""What users give to `overt.nn`: data, models, losses, modes and RNG states."""
