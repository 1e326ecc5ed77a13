"""
4. Blocks, weights, depth
=========================

The same three steps, noise to penalty to norm, for DropBlock, DropConnect and deep linear
networks. Each brings one new thing.
"""

# %%
# **Blocks** of b units carry b directions at the price of one: the norm is the k-support norm,
# between the nuclear norm (b = 1) and the Frobenius norm (b large).

import matplotlib.pyplot as plt
import numpy as np

import overt

s = np.array([3.0, 2.5, 2.0, 1.0, 0.5, 0.2])
figure, left = plt.subplots(figsize=(6.5, 3.4), layout="constrained")
for b in (1, 2, 3, 6):
    left.plot(range(1, 7), overt.spectral.KSupport(b).prox(s, 0.5), "o-", label=f"blocks of {b}")
left.plot(range(1, 7), s, color="0.7", label="target")
left.set(xlabel="index", ylabel="singular value")
left.legend()

# %%
# **Weights** instead of units: DropConnect on the first layer penalizes with the *diagonal* of
# the inputs' second moment. For uncorrelated inputs it is Dropout; the papers say it always is.

C = np.array([[1.0, 0.8], [0.8, 1.0]])
rng = np.random.default_rng(0)
U, V = rng.standard_normal((2, 3)), rng.standard_normal((2, 3))
print("DropConnect:", overt.penalty.dropconnect(U, V, 0.5, second_moment=C))
print("Dropout:    ", overt.penalty.shallow(U, V, overt.Dropout(0.5), second_moment=C))

# %%
# **Depth.** Noise on k layers multiplies: nu = prod (1 + lam / d_j) - 1. The bound, nu times
# the squared nuclear norm, is reached by rank one only, and the optimum's rank *jumps* as the
# second singular value grows.

seconds = np.linspace(0.5, 1.0, 11)
figure, right = plt.subplots(figsize=(6.5, 3.4), layout="constrained")
for widths, marker in (((8,), "o"), ((2, 2), "s")):
    ratio = []
    for second in seconds:
        net = overt.DeepLinearNetwork(np.diag([1.0, second]), widths, 0.5)
        ratio.append(np.linalg.svd(net.solve().product, compute_uv=False)[1])
    right.plot(seconds, ratio, marker=marker, label=f"hidden widths {widths}")
right.set(xlabel="second singular value of the target", ylabel="of the optimum")
right.legend()

# %%
# **Exercises.**
#
# 1. Show that the k-support norm with b at least the rank is the Frobenius norm.
# 2. For which inputs does DropConnect penalize less than Dropout?
# 3. Compute nu for ten layers of width 100 at drop_prob .5. Is deep dropout stronger or weaker
#    than dropout on one layer?
#
# %%
# **Solutions.**

print("1.", overt.spectral.KSupport(6).value(s), np.sum(s**2))
signs = np.array([[1.0, -0.8], [-0.8, 1.0]])
positive = np.abs(U), np.abs(V)
print("2.", overt.penalty.dropconnect(*positive, 0.5, second_moment=C), "<",
      overt.penalty.shallow(*positive, overt.Dropout(0.5), second_moment=C))  # fmt: skip
print("   where the weighted inputs of a unit are positively correlated; else more:",
      overt.penalty.dropconnect(*positive, 0.5, second_moment=signs), ">",
      overt.penalty.shallow(*positive, overt.Dropout(0.5), second_moment=signs))  # fmt: skip
print("3.", overt.spectral.nu([100] * 10, 0.5), "against", overt.spectral.nu([100], 0.5))
