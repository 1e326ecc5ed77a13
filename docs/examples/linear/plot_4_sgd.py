"""
Stochastic gradient descent reaches the exact optimum
=====================================================

Ten runs of dropout as it is practiced, one sample and one mask per step, beside the optimum that
was computed without any sampling. The hidden units come to share the work equally, although
nothing asks them to.
"""

import matplotlib.pyplot as plt
import numpy as np

import overt
from overt.linear import inverse_decay

rng = np.random.default_rng(0)
M = rng.standard_normal((30, 5)) @ rng.standard_normal((5, 20)) / 5
net = overt.LinearNetwork(target=M, width=10, noise=overt.Dropout(0.5))
best = net.solve()
run = net.train(steps=60_000, learning_rate=inverse_decay(2e-3, 6_000), seeds=10)

figure, (left, right) = plt.subplots(1, 2, figsize=(9.5, 3.6), layout="constrained")
steps = run.steps[1:]
left.loglog(steps, run.objective[:, 1:].T, color="#1f6f8b", lw=0.7, alpha=0.6)
left.axhline(best.objective, color="#c8553d", ls="--", label="exact optimum")
left.set(xlabel="step", ylabel="objective")
left.legend()
right.loglog(steps, run.imbalance[:, 1:].T, color="#1f6f8b", lw=0.7, alpha=0.6)
right.set(xlabel="step", ylabel="imbalance of the hidden units")

# %%
# How far is each run from the best possible network?

gaps = [net.certify(U, V).relative_gap for U, V in zip(run.U, run.V, strict=True)]
print(
    f"optimum {best.objective:.4f}; runs are {min(gaps):.2%} to {max(gaps):.2%} above it"
)
