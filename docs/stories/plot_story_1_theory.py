"""
The theorist: a conjecture, run to its end
==========================================

You suspect that dropout prefers networks whose hidden units all do the same amount of work. Here
is the conjecture made precise, confirmed by exact computation, and watched in training.
"""

# %%
# **What dropout minimizes.** A linear network maps x to U V'x. Average its squared error over all
# masks of four hidden units, by brute force, and compare with the formula.

from itertools import product

import matplotlib.pyplot as plt
import numpy as np

import overt

rng = np.random.default_rng(0)
M = rng.standard_normal((6, 5))
U, V = rng.standard_normal((6, 4)), rng.standard_normal((5, 4))
drop_prob, total = 0.3, 0.0
for mask in product((0, 1), repeat=4):
    chance = np.prod([1 - drop_prob if kept else drop_prob for kept in mask])
    network = U @ np.diag(np.array(mask) / (1 - drop_prob)) @ V.T
    total += chance * np.sum((M - network) ** 2)
noise = overt.Dropout(drop_prob)
formula = np.sum((M - U @ V.T) ** 2) + overt.penalty.shallow(U, V, noise)
print(f"all 16 masks: {total:.10f}\nloss + penalty: {formula:.10f}")

# %%
# **What that prefers.** Among all factors of one product the penalty is least where every unit
# has the same share, and then it is the squared nuclear norm. Rotate the factors of a product at
# random: the penalty moves, the product does not, and no rotation is below the balanced factors.

A = U @ V.T
balanced = overt.equalize.equalize_product(A, width=4)
least = overt.penalty.shallow(*balanced, noise)
left, s, right = np.linalg.svd(A, full_matrices=False)
root_left, root_right = left[:, :4] * np.sqrt(s[:4]), right[:4].T * np.sqrt(s[:4])
turned = []
for _ in range(500):
    Q, _ = np.linalg.qr(rng.standard_normal((4, 4)))
    turned.append(overt.penalty.shallow(root_left @ Q, root_right @ Q, noise))
print(f"least of 500 rotations {min(turned):.4f}, balanced {least:.4f}")
print(f"(lam / d) |A|_*^2 = {noise.strength / 4 * s.sum() ** 2:.4f}")

# %%
# **The optimum, and proof that it is one.** The certificate's lower bound holds for all weights,
# and the solution reaches it.

net = overt.LinearNetwork(target=M, width=4, noise=noise)
best = net.solve()
print(f"{best.status}: rank {best.rank}, objective {best.objective:.6f}")
print(f"no weights are below {best.certificate.lower_bound:.6f}")

# %%
# **Watch it happen.** Plain stochastic gradient descent, one mask a step, from ten starting
# points: the objective goes to the optimum, and the imbalance of the units to zero.

run = net.train(steps=40_000, learning_rate=lambda t: 0.01 / (1 + t / 4000), seeds=10)
figure, (top, bottom) = plt.subplots(1, 2, figsize=(9.5, 3.5), layout="constrained")
top.loglog(np.maximum(run.steps, 1), run.objective.T, lw=0.8, color="C0")
top.axhline(best.objective, ls="--", color="C1", label="exact optimum")
top.set(xlabel="step", ylabel="objective")
top.legend()
bottom.loglog(np.maximum(run.steps, 1), run.imbalance.T, lw=0.8, color="C0")
bottom.set(xlabel="step", ylabel="imbalance of the units")

# %%
# From here: :doc:`/theory/index` has the proofs, and ``overt verify`` checks every statement.
