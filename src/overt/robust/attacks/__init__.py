"""Attacks, the losses that they ascend, and the criteria of their success."""
