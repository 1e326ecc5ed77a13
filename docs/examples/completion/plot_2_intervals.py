"""
How sure is a prediction?
=========================

Every prediction comes with a standard deviation: little for rows with many entries, more for rows
with few. The share of held-out entries inside the intervals is what the intervals promise.
"""

import matplotlib.pyplot as plt
import numpy as np
from scipy.stats import norm

from overt.completion import DropoutCompletion
from overt.datasets import generate_ratings

entries, _ = generate_ratings(400, 250, 12_000, rank=4, noise=0.6, seed=1)
train, holdout = entries.split(0.2, seed=0)
model = DropoutCompletion(n_factors=10).fit(train)
mean, std = model.predict(holdout.rows, holdout.cols, return_std=True)
z = np.abs(holdout.values - mean) / std

figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.4), layout="constrained")
promised = np.linspace(0.05, 0.99, 30)
reached = [(z <= norm.ppf((1 + share) / 2)).mean() for share in promised]
left.plot([0, 1], [0, 1], color="0.7")
left.plot(promised, reached, "o-", ms=4)
left.set(xlabel="promised coverage", ylabel="held-out coverage")
seen = np.bincount(train.rows, minlength=400)[holdout.rows]
right.plot(seen, std, ".", ms=3, alpha=0.4)
right.set(xlabel="entries of the row in training", ylabel="standard deviation")
