"""Certificates: proofs that no allowed perturbation changes a prediction."""
