"""
The regularization path of dropout
==================================

The covariance of handwritten digits as a map to be learned by 64 hidden units. One singular value
decomposition gives the exact optimum at every drop probability: all singular values are shrunk by
the same amount, and directions leave one after another.
"""

import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_digits

import overt

covariance = np.cov(load_digits().data.T)
drop_probs = np.linspace(0.0, 0.99, 100)
path = overt.path(covariance, width=64, drop_probs=drop_probs)

figure, (left, right) = plt.subplots(1, 2, figsize=(9.5, 3.6), layout="constrained")
left.plot(drop_probs, path.spectrum[:, :12], color="#1f6f8b", lw=1.2)
left.set(xlabel="drop_prob", ylabel="singular values of the optimum", ylim=(0, None))
kept = (path.spectrum > 1e-9 * path.spectrum[:, :1]).sum(axis=1)
right.step(drop_probs, kept, color="#c8553d", where="post")
right.set(xlabel="drop_prob", ylabel="rank of the optimum", ylim=(0, None))

# %%
# The relation can be read backwards: which noise gives the rank that you want?

for rank in (30, 20, 10, 5):
    p = overt.drop_prob_for_rank(covariance, width=64, rank=rank)
    best = overt.LinearNetwork(covariance, 64, overt.Dropout(p)).solve()
    print(f"rank {best.rank:2d}: drop_prob = {p:.4f}, objective {best.objective:9.1f}")
