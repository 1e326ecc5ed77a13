"""
Deep networks equalize
======================

A deep linear network with one output and dropout in each of its three hidden layers. Its best map
is the least-squares solution divided by 1 + nu, and its best weights are equalized: every term of
the penalty is as small as the map allows.
"""

import matplotlib.pyplot as plt
import numpy as np

import overt

rng = np.random.default_rng(0)
target = rng.standard_normal((1, 5))
net = overt.DeepLinearNetwork(target=target, widths=(5, 5, 5), drop_prob=0.4)
best = net.solve()
print(f"nu = {net.nu:.4f}, {best.status}")
print(
    "optimal map / target",
    (best.product / target).round(4),
    f"1 / (1 + nu) = {1 / (1 + net.nu):.4f}",
)

# %%
# 1,500 steps with sampled masks lower the objective and the equalization gap, which is the penalty
# divided by the least penalty of a network with the same map, minus one. Neither has reached its
# limit by then: the lines printed below say how far each run still is.

run = net.train(steps=1500, learning_rate=1e-2, seeds=3, batch_size=50)
figure, (left, right) = plt.subplots(1, 2, figsize=(9.5, 3.6), layout="constrained")
steps = run.steps[1:]
left.loglog(steps, run.objective[:, 1:].T, color="#1f6f8b", lw=1)
left.axhline(best.objective, color="#c8553d", ls="--", label="exact optimum")
left.set(xlabel="step", ylabel="objective")
left.legend()
right.loglog(steps, run.imbalance[:, 1:].T, color="#1f6f8b", lw=1)
right.set(xlabel="step", ylabel="equalization gap")
above = ", ".join(f"{ratio - 1:.0%}" for ratio in run.objective[:, -1] / best.objective)
print(f"objective above the optimum after 1,500 steps: {above}")
gaps = overt.equalize.equalization_gaps(best.weights)
print("gaps by order, of the exact optimum:", [f"{gap:.0e}" for gap in gaps])
