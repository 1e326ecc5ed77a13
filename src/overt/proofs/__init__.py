"""Certificates that are proofs, and the stand-alone program that checks them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from overt.proofs.proofs import Proof, prove

__all__ = ["Proof", "prove"]


def __getattr__(name: str) -> Any:
    # On first use: `python -m overt.proofs.checker` imports this package before the checker.
    if name not in __all__:
        raise AttributeError(f"module 'overt.proofs' has no attribute {name!r}")
    from overt.proofs import proofs

    return getattr(proofs, name)
