"""Layers that drop what they say: each draws its masks and knows their second moments."""
