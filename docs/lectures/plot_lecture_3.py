"""
3. The optimum, and descent beside it
=====================================

Loss plus norm is a convex problem in the singular values: all of them shrink by one amount, and
the small ones vanish. Stochastic gradient descent, which knows nothing of this, arrives there.
"""

# %%
# **Shrink and threshold.** With h_j = s_1 + ... + s_j and rank rho the largest j with s_j (d +
# lam j) > lam h_j, the optimum keeps the top rho directions with
#
# .. math:: a_i = s_i - \frac{\lambda h_\rho}{d + \lambda \rho} .

import matplotlib.pyplot as plt
import numpy as np

import overt

s = np.array([4.0, 3.0, 2.0, 1.0, 0.5])
figure, left = plt.subplots(figsize=(6.5, 3.4), layout="constrained")
for p in (0.0, 0.5, 0.8):
    best = overt.LinearNetwork(np.diag(s), 6, overt.Dropout(p)).solve()
    values = np.linalg.svd(best.product, compute_uv=False)
    left.plot(range(1, 6), values, "o-", label=f"drop_prob {p}")
left.set(xlabel="index", ylabel="singular value", xticks=range(1, 6))
left.legend()

# %%
# **How do we know?** The certificate has a lower bound that holds for all weights, by weak
# duality. The solution reaches it, so it is optimal; descent comes down to it.

net = overt.LinearNetwork(np.diag(s), 6, overt.Dropout(0.5))
best = net.solve()
run = net.train(steps=30_000, learning_rate=lambda t: 0.01 / (1 + t / 3000), seeds=6)
figure, right = plt.subplots(figsize=(6.5, 3.4), layout="constrained")
right.loglog(
    np.maximum(run.steps, 1), (run.objective - best.objective).T, color="C0", lw=0.8
)
right.set(xlabel="step", ylabel="objective above the optimum")
print(best.certificate)

# %%
# **Exercises.**
#
# 1. Implement the formula and compare it with ``solve`` on twenty random spectra.
# 2. Which drop probability leaves rank 3? Find it by bisection, then ask ``drop_prob_for_rank``.
# 3. The landscape has no bad minima. Start descent from the best network of rank 1 and explain
#    what happens with and without noise.
#
# %%
# **Solutions.**


def shrunk(s, d, lam):
    """Return the optimal singular values."""
    h, j = np.cumsum(s), np.arange(1, len(s) + 1)
    rho = int(np.max(j[s * (d + lam * j) > lam * h], initial=0))
    alpha = lam * h[rho - 1] / (d + lam * rho) if rho else 0.0
    return np.where(j <= rho, s - alpha, 0.0)


rng = np.random.default_rng(0)
worst = 0.0
for _ in range(20):
    s = np.sort(rng.exponential(size=5))[::-1]
    found = overt.LinearNetwork(np.diag(s), 6, overt.Dropout(0.6)).solve().product
    worst = max(
        worst, np.abs(np.linalg.svd(found, compute_uv=False) - shrunk(s, 6, 1.5)).max()
    )
print("1.", worst)
print("2.", overt.drop_prob_for_rank(np.diag([4.0, 3.0, 2.0, 1.0, 0.5]), 6, 3))
points = (
    overt.TiedAutoencoder(np.diag([2.0, 1.0]), 2, overt.Dropout(0.3)).landscape().points
)
print(
    "3.",
    [(point.kind, round(point.objective, 3)) for point in points][:4],
    "saddles are strict",
)
