"""Implicit Bias of SGD in L2-Regularized Linear DNNs: One-Way Jumps (Wang, Jacot 2024)."""
