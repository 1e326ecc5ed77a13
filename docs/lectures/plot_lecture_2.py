"""
2. The norm behind the penalty
==============================

A product A = U V' has many factors, and the penalty depends on which one is used. Training will
find the cheapest. What is left, once the factors are chosen best, is a norm of A.
"""

# %%
# **Cauchy and Schwarz.** With d units and x_i the norm of u_i times that of v_i,
#
# .. math::
#
#    \lambda \sum_i x_i^2 \ge \frac{\lambda}{d} (\sum_i x_i)^2 \ge \frac{\lambda}{d} \|A\|_*^2 ,
#
# since A is the sum of the matrices u_i v_i', whose nuclear norms are x_i. Both are equalities if
# all units have the same share and the factors are aligned with the singular vectors.

import matplotlib.pyplot as plt
import numpy as np

import overt

rng = np.random.default_rng(0)
A = rng.standard_normal((8, 3)) @ rng.standard_normal((3, 6))
noise = overt.Dropout(0.5)
U, V = overt.equalize.equalize_product(A, width=10)
print("product kept:", np.allclose(U @ V.T, A))
print("shares:", (np.linalg.norm(U, axis=0) * np.linalg.norm(V, axis=0)).round(4))
print("penalty:", float(overt.penalty.shallow(U, V, noise)))
print("norm:   ", noise.strength / 10 * np.linalg.norm(A, "nuc") ** 2)

# %%
# **The rotation.** A matrix with any spectrum can be rotated so that its diagonal is constant:
# one plane rotation after another sets an entry to the mean.

S = np.diag([5.0, 3.0, 1.0, 0.5, 0.0, 0.0])
Q = overt.equalize.equalizer(np.sqrt(S))
figure, axes = plt.subplots(1, 2, figsize=(7, 3), layout="constrained")
for axis, (name, values) in zip(
    axes, {"before": S, "after": Q.T @ S @ Q}.items(), strict=True
):
    drawn = axis.imshow(values, cmap="RdBu", vmin=-5, vmax=5)
    axis.set(title=name, xticks=[], yticks=[])
figure.colorbar(drawn, ax=axes, shrink=0.8)
print("diagonal after:", np.diag(Q.T @ S @ Q).round(4))

# %%
# **Exercises.**
#
# 1. Width d grows without bound at a fixed drop probability. What happens to the norm, and why do
#    the papers let the drop probability grow with d?
# 2. Blocks of two units are dropped together. Compare the induced norm of the spectra (1, 1, 0,
#    0) and (1, 0, 0, 0) with that of Dropout at the same number of blocks.
# 3. Find factors of the identity of size 2 with width 2 whose penalty is twice the least.
#
# %%
# **Solutions.**

for d in (10, 100, 1000):  # 1. it vanishes like 1/d; at_width keeps lam / d fixed
    print(d, noise.strength / d, noise.at_width(d).strength / d)

for s in (
    [1.0, 1.0, 0.0, 0.0],
    [1.0, 0.0, 0.0, 0.0],
):  # 2. a block takes two directions for free
    blocks, units = overt.spectral.KSupport(2), overt.spectral.KSupport(1)
    print(blocks.value(np.array(s)), units.value(np.array(s)))

U = np.array(
    [[1.0, 0.0], [0.0, 1.0]]
)  # 3. x = (1, 1) is balanced: 2; scale a pair of equal units
W = np.array([[1.0, 1.0], [0.0, 1.0]])
print(
    overt.penalty.shallow(U, U, noise),
    overt.penalty.shallow(W, np.linalg.inv(W).T, noise),
)
