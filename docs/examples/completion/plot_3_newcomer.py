"""
A newcomer rates one thing after another
========================================

A row that was not there when the model was fitted is folded in without fitting again. With each
rating its other predictions move, and their intervals shrink.
"""

import matplotlib.pyplot as plt
import numpy as np

from overt.completion import DropoutCompletion
from overt.datasets import generate_ratings

entries, truth = generate_ratings(300, 40, 6000, rank=3, noise=0.4, seed=2)
newcomer, others = 0, entries.rows != 0
model = DropoutCompletion(n_factors=8).fit(entries.take(np.flatnonzero(others)))
own = np.flatnonzero(~others)[:12]

mean, low, high = [], [], []
watched = int(np.setdiff1d(np.arange(40), entries.cols[own])[0])
for count in range(1, len(own) + 1):
    given = dict(
        zip(entries.cols[own[:count]], entries.values[own[:count]], strict=True)
    )
    row = model.fold_in({int(col): float(value) for col, value in given.items()})
    value, std = row.predict([watched], return_std=True)
    mean.append(value[0]), low.append(value[0] - std[0]), high.append(value[0] + std[0])

figure, axes = plt.subplots(figsize=(6.5, 3.4), layout="constrained")
steps = np.arange(1, len(own) + 1)
axes.fill_between(steps, low, high, alpha=0.25, label="one standard deviation")
axes.plot(steps, mean, "o-", label="prediction")
axes.set(xlabel="ratings given", ylabel=f"item {watched}")
axes.legend()
