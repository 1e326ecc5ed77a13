"""Moments of a network under its noise: carried forward, and brought back from the outputs."""
