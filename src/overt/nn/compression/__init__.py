"""Smaller networks: sub-networks that dropout draws, units with flow, low-rank maps."""

from __future__ import annotations

from overt.nn.compression.entry import compress
from overt.nn.compression.report import Change, Compression, Size, loading

__all__ = ["Change", "Compression", "Size", "compress", "loading"]
