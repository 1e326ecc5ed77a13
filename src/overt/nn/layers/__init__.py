"""Layers that drop what they say: each samples its masks and knows their second moments."""
