"""
Every minimum of a matrix that is fully observed
================================================

With weight decay a deep linear network has one local minimum per rank, in closed form. Each exists
up to its own weight decay (circles) and ceases to be the lowest at a smaller one (crosses).
"""

import matplotlib.pyplot as plt
import numpy as np

import overt
from overt.decay import minima, rank_thresholds

problem = overt.Entries.from_matrix(np.diag([3.0, 2.0, 1.0]))
thresholds = rank_thresholds(problem, depth=3)

figure, axes = plt.subplots(figsize=(6.5, 3.6), layout="constrained")
decays = np.linspace(1e-3, 0.13, 261)
losses = {rank: [] for rank in range(4)}
for decay in decays:
    for minimum in minima(problem, 3, decay):
        losses[minimum.rank].append((decay, minimum.loss))
for rank, curve in losses.items():
    axes.plot(*zip(*curve, strict=True), label=f"rank {rank}")
for values, marker in ((thresholds.exists, "o"), (thresholds.optimal, "x")):
    for decay in values:
        lowest = [m.loss for m in minima(problem, 3, 0.9999 * decay)]
        loss = lowest[-1] if marker == "o" else min(lowest)
        axes.plot(decay, loss, marker, color="0.3", ms=7, mfc="none")
axes.set(xlabel="weight decay", ylabel="loss of the local minimum")
axes.legend()
