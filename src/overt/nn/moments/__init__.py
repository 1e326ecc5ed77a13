"""Moments of a recorded network: values, rules by family, and the way back to the noise."""
