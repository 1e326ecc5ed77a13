"""The audit of a network: one pass over data, findings as data and in words."""

from overt.nn.auditing.report import (
    AuditReport,
    HeadFindings,
    NoiseFindings,
)
from overt.nn.auditing.run import audit

__all__ = [
    "AuditReport",
    "HeadFindings",
    "NoiseFindings",
    "audit",
]
