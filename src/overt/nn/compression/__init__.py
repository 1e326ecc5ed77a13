"""Smaller networks: sub-networks that dropout samples, units with flow, low-rank maps."""

from overt.nn.compression.report import Change, Compression, Size
from overt.nn.compression.run import compress
from overt.nn.compression.serialization import load_compressed, save_compressed

__all__ = [
    "Change",
    "Compression",
    "Size",
    "compress",
    "load_compressed",
    "save_compressed",
]
