"""The audit of a network: one pass over data, findings as data, words and pictures."""

from overt.nn.auditing.report import (
    AuditReport,
    HeadFindings,
    LayerFindings,
    LowerBound,
    NoiseFindings,
    Suggestion,
)
from overt.nn.auditing.run import audit

__all__ = [
    "AuditReport",
    "HeadFindings",
    "LayerFindings",
    "LowerBound",
    "NoiseFindings",
    "Suggestion",
    "audit",
]
