"""Results of our own, in no paper."""
