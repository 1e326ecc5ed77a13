"""
A minimum for every rank
========================

A deep linear network that has seen three of four entries, with weight decay. Each rank has a
minimum of its own up to some decay; they disagree about the fourth entry.
"""

import matplotlib.pyplot as plt
import numpy as np

from overt.decay import existence, minima, two_by_two

problem = two_by_two(0.25)
decays = np.geomspace(2e-4, 0.1, 25)
figure, axes = plt.subplots(figsize=(6.5, 3.6), layout="constrained")
found = [
    (decay, m) for decay in decays for m in minima(problem, depth=3, weight_decay=decay)
]
for rank, marker in ((0, "o"), (1, "s"), (2, "^")):
    points = [(decay, m.matrix[0, 1]) for decay, m in found if m.rank == rank]
    axes.plot(*zip(*points, strict=True), marker=marker, ms=4, label=f"rank {rank}")
    if rank:
        axes.axvline(existence(problem, 3, rank), ls=":", color="0.6")
axes.axhline(4, color="0.8", zorder=0)
axes.set(xscale="log", xlabel="weight decay", ylabel="entry that was not seen")
axes.legend()
