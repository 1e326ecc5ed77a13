"""
Theory: the line that SGD comes down to
=======================================

Dropout changes the objective. For a linear network the new objective has a closed form, its
minimum can be computed exactly, and a proof of that minimum can be checked by anyone.
"""

# %%
# **SGD comes down to the exact minimum.** A network maps x to U V'x and drops each of its four
# hidden units with probability 0.3. The dashed line is the global minimum of the expected loss,
# computed exactly. Stochastic gradient descent with a random mask in every step comes down to it
# from ten random starts, and the hidden units end up doing nearly equal amounts of work.

import matplotlib.pyplot as plt
import numpy as np

import overt

rng = np.random.default_rng(0)
M = rng.standard_normal((6, 5))
net = overt.LinearNetwork(target=M, width=4, noise=overt.Dropout(drop_prob=0.3))
best = net.solve()
run = net.train(steps=40_000, learning_rate=lambda t: 0.01 / (1 + t / 4000), seeds=10)
above = run.objective[:, -1].mean() / best.objective - 1
print(f"{best.status}: rank {best.rank}, objective {best.objective:.6f}")
print(f"SGD ends {above:.1%} above it on average")
assert run.objective.min() >= best.objective

figure, (left, right) = plt.subplots(1, 2, figsize=(9.5, 3.5), layout="constrained")
steps = run.steps[1:]
objective = run.objective[:, 1:].T
left.semilogx(steps, objective, lw=0.8, color="C0")
left.axhline(best.objective, ls="--", color="C1", label="exact minimum")
left.set_xlabel("step")
left.set_ylabel("expected loss")
left.legend()
imbalance = run.imbalance[:, 1:].T
right.loglog(steps, imbalance, lw=0.8, color="C0")
right.set_xlabel("step")
right.set_ylabel("imbalance: variance of |u||v|")

# %%
# **The objective behind it.** The loss averaged over all 16 masks is the loss without dropout plus
# a penalty on the weights, which has a closed form.

from itertools import product

U = rng.standard_normal((6, 4))
V = rng.standard_normal((5, 4))
average = 0.0
masks = product((0, 1), repeat=4)
for mask in masks:
    kept = sum(mask)
    probability = 0.7**kept * 0.3 ** (4 - kept)
    dropped = U * mask / 0.7
    error = M - dropped @ V.T
    average += probability * np.sum(error**2)
formula = np.sum((M - U @ V.T) ** 2)
formula += overt.penalty.shallow(U, V, overt.Dropout(0.3))
print(f"average over all masks  {average:.10f}\nloss + penalty          {formula:.10f}")
assert abs(average - formula) < 1e-10 * formula

# %%
# **Deep networks.** Their exact optimum is not in the papers. With more hidden layers, the same
# noise leaves a map of lower rank.

figure, axes = plt.subplots(figsize=(6.5, 3.4), layout="constrained")
drop_probs = np.linspace(0.01, 0.6, 60)
for depth in (1, 2, 4):
    nets = [overt.DeepLinearNetwork(M, (8,) * depth, p) for p in drop_probs]
    ranks = [net.solve().rank for net in nets]
    axes.step(drop_probs, ranks, label=f"hidden: {depth}")
axes.set_xlabel("drop probability")
axes.set_ylabel("rank of the optimum")
axes.set_yticks(range(1, 6))
axes.legend()

# %%
# **A proof that anyone can check.** The solution is written to a file as a proof in exact
# arithmetic. The checker is one Python file that uses integers only and imports nothing of overt.

import subprocess
import sys
import tempfile
from pathlib import Path

folder = Path(tempfile.mkdtemp())
proof = net.certify(best.U, best.V, rigorous=True)
proof.save(folder / "proof.json")
command = [sys.executable, "-m", "overt.proofs.checker", "proof.json"]
checked = subprocess.run(
    command, cwd=folder, capture_output=True, text=True, check=True
)
print(checked.stdout.strip())

# %%
# **Corrections of the papers.** ``overt verify`` compares every statement of the papers with an
# independent computation, and where a formula had to be corrected, the printed form as well. Four
# of these:

from overt import papers

CORRECTED = [
    "shallow-optimum",
    "dropconnect",
    "dropblock-optimum",
    "deep-single-output",
]
for verdict in papers.verify(CORRECTED):
    print(f"{verdict.id} ({verdict.source})\n  {verdict.claim}")
    print(f"  Correction: {verdict.correction}")
    print(
        f"  Error: {verdict.residual:.1e}; as printed: {verdict.printed_residual:.1e}\n"
    )
    assert verdict.verdict == "holds"

headline = f"SGD with dropout ends {above:.1%} above the minimum, and a file proves that minimum"
