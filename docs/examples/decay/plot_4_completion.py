"""
Completing a matrix by shedding rank
====================================

From few entries of a matrix of rank 2: weight decay and noise shed rank step by step, and held-
out entries say which rank is enough.
"""

import matplotlib.pyplot as plt
import numpy as np

import overt
from overt.decay import DeepLinearCompletion, test_error

rng = np.random.default_rng(0)
truth = rng.standard_normal((30, 2)) @ rng.standard_normal((2, 30))
seen = overt.Entries.sample(truth, 360, seed=1)
model = DeepLinearCompletion(seed=0).fit(seen)
print(
    f"rank {model.rank_}, error on the entries not seen {test_error(seen, model.complete()):.1e}"
)

figure, axes = plt.subplots(1, 3, figsize=(10, 3.2), layout="constrained")
holes = np.full(truth.shape, np.nan)
holes[seen.rows, seen.cols] = seen.values
spread = np.abs(truth).max()
for axis, (name, values) in zip(
    axes,
    {"seen": holes, "completed": model.complete(), "truth": truth}.items(),
    strict=True,
):
    drawn = axis.imshow(values, cmap="RdBu", vmin=-spread, vmax=spread)
    axis.set(title=name, xticks=[], yticks=[])
figure.colorbar(drawn, ax=axes, shrink=0.8)
