"""
Depth decides how far rank can last
===================================

The largest weight decay at which a minimum of rank 2 exists, for several depths and targets.
Deeper networks lose it sooner: the implicit pressure toward low rank grows with depth.
"""

import matplotlib.pyplot as plt
import numpy as np

from overt.decay import existence, two_by_two

targets = np.linspace(0.05, 0.6, 8)
figure, axes = plt.subplots(figsize=(6.5, 3.5), layout="constrained")
for depth, marker in ((3, "s"), (4, "^"), (5, "D")):
    limits = [existence(two_by_two(e), depth, 2) for e in targets]
    axes.plot(targets, limits, marker=marker, ms=4, label=f"depth {depth}")
axes.set(xlabel="epsilon in [[1, *], [epsilon, 1]]", ylabel="largest decay with rank 2")
axes.set(yscale="log")
axes.legend()
