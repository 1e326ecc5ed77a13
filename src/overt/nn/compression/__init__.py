"""Smaller networks: sub-networks that dropout draws, units with flow, low-rank maps."""

from overt.nn.compression.report import Change, Compression, Size, loading
from overt.nn.compression.run import compress

__all__ = ["Change", "Compression", "Size", "compress", "loading"]
