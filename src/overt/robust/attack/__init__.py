"""Attacks: searches for perturbations that change a model's predictions."""
