"""Certificates that are proofs, and the stand-alone program that checks them."""

from __future__ import annotations

from overt.proofs.proofs import Proof, Question, prove

__all__ = ["Proof", "Question", "prove"]
