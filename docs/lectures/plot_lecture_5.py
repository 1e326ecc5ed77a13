"""
5. Matrices with holes
======================

Two ways in which noise completes a matrix: dropout on factors, whose penalty is a weighted trace
norm, and SGD with weight decay, which jumps from rank to rank.
"""

# %%
# **Dropout on factors.** With one side fixed, a row solves a ridge problem whose ridge is
# dropout's, lam times the squared partners. Alternate, and the objective goes down without a
# learning rate.

import matplotlib.pyplot as plt
import numpy as np
from scipy.optimize import minimize

from overt.completion import DropoutCompletion
from overt.datasets import generate_ratings
from overt.decay import Schedule, existence, minima, simulate, two_by_two

entries, _ = generate_ratings(200, 100, 5000, rank=3, noise=0.5, seed=0)
train, holdout = entries.split(0.2, seed=0)
figure, left = plt.subplots(figsize=(6.5, 3.4), layout="constrained")
probs = [0.1, 0.3, 0.5, 0.7, 0.9]
fits = [DropoutCompletion(8, drop_prob=p, max_sweeps=25).fit(train) for p in probs]
errors = [-fit.score(holdout) for fit in fits]
learned = DropoutCompletion(8).fit(train)
left.plot(probs, errors, "o-", label="fixed noise")
left.axhline(-learned.score(holdout), ls="--", color="C1", label="learned noise")
left.set(xlabel="drop_prob", ylabel="held-out RMSE")
left.legend()

# %%
# **Weight decay** on a product of L matrices is a penalty on the singular values to the power
# 2/L: the deeper, the closer to counting them. Every rank has its minimum, and noise moves SGD
# down, not up.

for minimum in minima(two_by_two(0.25), depth=3, weight_decay=0.0025):
    print(
        f"rank {minimum.rank}: fills in {minimum.matrix[0, 1]:.2f}, loss {minimum.loss:.4f}"
    )
schedule = Schedule.of([(500, 0.03, 0.1), (6000, 0.2, 0.1)], convention="pytorch")
runs = simulate(
    two_by_two(0.25), depth=3, width=50, schedule=schedule, seeds=6, records=60
)
figure, right = plt.subplots(figsize=(6.5, 3.4), layout="constrained")
for values in runs.singular_values:
    right.plot(runs.steps, values[:, 1], lw=0.8, color="C0")
right.set(xlabel="step", ylabel="second singular value")

# %%
# **Exercises.**
#
# 1. Write the row update of dropout and check it against a numerical minimizer.
# 2. How do intervals change for rows with few entries?
# 3. At which weight decay does the minimum of rank 2 cease to exist at depth 3 and 4?
#
# %%
# **Solutions.**

rng = np.random.default_rng(0)
partners, y, lam = rng.standard_normal((9, 3)), rng.standard_normal(9), 1.5
ridge = partners.T @ partners + lam * np.diag(np.sum(partners**2, axis=0))
row = np.linalg.solve(ridge, partners.T @ y)
check = minimize(
    lambda u: np.sum((y - partners @ u) ** 2) + lam * np.sum((partners * u) ** 2),
    np.zeros(3),
)
print("1.", np.abs(row - check.x).max())
_, std = learned.predict(holdout.rows, holdout.cols, return_std=True)
few = np.bincount(train.rows, minlength=200)[holdout.rows] < 12
print(
    "2.",
    std[few].mean().round(3),
    "with few entries,",
    std[~few].mean().round(3),
    "with many",
)
print("3.", [round(existence(two_by_two(0.25), depth, 2), 4) for depth in (3, 4)])
