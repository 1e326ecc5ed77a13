"""
1. Noise is a regularizer
=========================

Drop hidden units at random and minimize the expected loss: what is really minimized? One lemma
answers it for every noise, and this lecture checks it by counting.
"""

# %%
# **The lemma.** A mask z has mean mu and covariance K; the network multiplies unit i by m_i = z_i
# / mu_i. For a squared loss, with activations h and output weights U,
#
# .. math::
#
#    \mathbb{E}\|y - U (m \circ h)\|^2 = \|y - U h\|^2
#        + \sum_{ij} \frac{K_{ij}}{\mu_i \mu_j} h_i h_j u_i^\top u_j .
#
# The proof is one line: an expected square is the square of the mean plus the total variance.

from itertools import product

import matplotlib.pyplot as plt
import numpy as np

import overt

rng = np.random.default_rng(0)
U, h, y = rng.standard_normal((3, 6)), rng.standard_normal(6), rng.standard_normal(3)
noise = overt.DropBlock(0.4, block_size=2)

masks = noise.multipliers(6, 200_000, seed=0)
sampled = np.mean(np.sum((y - (masks * h) @ U.T) ** 2, axis=1))
exact = np.sum((y - U @ h) ** 2) + overt.penalty.hidden(U, h[None], noise)
print(f"200,000 masks: {sampled:.3f}   the lemma: {exact:.3f}")

# %%
# **Only the characteristic matrix counts.** Two noises that share it are the same regularizer,
# however different their masks look. Three of them:

figure, axes = plt.subplots(1, 3, figsize=(9.5, 2.9), layout="constrained")
noises = (
    overt.Dropout(0.5),
    overt.DropBlock(0.5, 3),
    overt.DropBlock(0.5, 3, placement="sliding"),
)
for axis, noise, name in zip(
    axes, noises, ("Dropout", "blocks", "sliding blocks"), strict=True
):
    drawn = axis.imshow(noise.characteristic(12), vmin=0, vmax=2)
    axis.set(title=name, xticks=[], yticks=[])
figure.colorbar(drawn, ax=axes, shrink=0.8)

# %%
# **For Dropout** the matrix is lam I with lam = p / (1 - p), and the penalty of a linear network
# is lam times the sum over hidden units of the squared norms of what goes in and what comes out.
#
# **Exercises.**
#
# 1. Enumerate all masks of five units and check the lemma for Dropout to ten digits.
# 2. What is the characteristic matrix of a noise that multiplies *all* units by the same random
#    number of mean 1 and variance v? What does it penalize?
# 3. Let exactly k of d units survive. Show that no unit's survival is independent of the others',
#    and read off the off-diagonal entry from ``overt.KeepExactly(k).characteristic(d)``.
#
# %%
# **Solutions.**

noise, total = overt.Dropout(0.3), 0.0
U, h = rng.standard_normal((3, 5)), rng.standard_normal(5)
for mask in product((0, 1), repeat=5):
    chance = np.prod(np.where(mask, 0.7, 0.3))
    total += chance * np.sum((y - U @ (np.array(mask) / 0.7 * h)) ** 2)
print(total - np.sum((y - U @ h) ** 2) - overt.penalty.hidden(U, h[None], noise))  # 1.

common = overt.CovarianceNoise(
    np.ones(5), 0.2 * np.ones((5, 5))
)  # 2. v times all ones:
print(overt.penalty.hidden(U, h[None], common) / np.sum((U @ h) ** 2))  # v |U h|^2

print(
    overt.KeepExactly(2).characteristic(5)[0].round(3)
)  # 3. -lam / (d - 1) off the diagonal
