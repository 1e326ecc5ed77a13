"""The names that signatures use for arrays and seeds."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = Any
"""A NumPy array of any type of number or, where documented, a PyTorch tensor."""

Bools = NDArray[np.bool_]
Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

Seed = int | np.random.Generator | None
"""An int, a numpy Generator, or None for fresh entropy."""
