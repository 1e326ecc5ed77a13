"""
4. Blocks, weights, depth
=========================

The same three steps, noise to penalty to norm, for DropBlock, DropConnect and deep linear
networks. Each brings one new thing.
"""

# %%
# **Blocks** of b units take b directions at the price of one: the norm is the k-support norm,
# between the nuclear norm (b = 1) and the Frobenius norm (b large).

import matplotlib.pyplot as plt
import numpy as np

import overt

s = np.array([3.0, 2.5, 2.0, 1.0, 0.5, 0.2])
figure, left = plt.subplots(figsize=(6.5, 3.4), layout="constrained")
for b in (1, 2, 3, 6):
    left.plot(
        range(1, 7),
        overt.spectral.KSupport(b).prox(s, 0.5),
        "o-",
        label=f"blocks of {b}",
    )
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
# **Depth.** Dropout on k layers is solved exactly too: the least objective is
# :math:`\|s\|^2` less the maximum of
# :math:`\sum_p s_p^2 \prod_l \pi^l_p / (\pi^l_p + \lambda_l / d_l)`, where layer l's units are
# shared among the directions, :math:`\sum_p \pi^l_p = 1`. The optimum's rank *jumps* as
# the second singular value grows, where a closed form says it does. Dots are the
# best of four descents.

widths = (2, 2)
jump = overt.linear.rank_jump(widths, 0.5)
seconds = np.r_[np.linspace(0.5, jump - 1e-6, 8), np.linspace(jump + 1e-6, 1.0, 5)]
figure, right = plt.subplots(figsize=(6.5, 3.4), layout="constrained")
exact, reached = [], []
for second in seconds:
    net = overt.DeepLinearNetwork(np.diag([1.0, second]), widths, 0.5)
    exact.append(net.solve().spectrum[1])
    run = net.train(2000, 0.05, seeds=4, gradient="expected", init_scale=0.7, records=2)
    best = np.argmin(run.objective[:, -1])
    W = run.weights[2][best] @ run.weights[1][best] @ run.weights[0][best]
    reached.append(np.linalg.svd(W, compute_uv=False)[1])
right.plot(seconds, exact, label="exact optimum")
right.plot(seconds, reached, "o", fillstyle="none", label="best of four descents")
right.axvline(jump, color="0.7", linestyle=":", label=f"jump at {jump:.4f}")
right.set(xlabel="second singular value of the target", ylabel="of the optimum")
right.legend()

# %%
# **Deep networks have spurious minima.** The best network of rank one is a local minimum over all
# weights, also where rank two is better. So does descent end in it? With widths 2-2, drop
# probability 1/3 and the target diag(1, .9) it is 1.17 against 1.0026.

net = overt.DeepLinearNetwork(np.diag([1.0, 0.9]), (2, 2), 1 / 3)
landscape = net.landscape()
for minimum in landscape.minima:
    print(
        f"rank {minimum.rank}: {minimum.objective:.6f}",
        "spurious" if minimum.spurious else "",
    )
print(f"every way out of rank one climbs {landscape.barrier:.6f}")
spurious = landscape.minima[0]
for rate in (0.01, 0.1):
    run = net.train(
        10_000, rate, seeds=8, batch_size=8, init=spurious.weights, records=2
    )
    left_it = int(np.sum(run.rank[:, -1] > 1))
    print(f"SGD with sampled dropout, rate {rate}: {left_it} of 8 runs left it")

# %%
# **Exercises.**
#
# 1. Show that the k-support norm with b at least the rank is the Frobenius norm.
# 2. For which inputs does DropConnect penalize less than Dropout?
# 3. Compute nu for ten layers of width 100 at drop_prob .5. Is deep dropout stronger or weaker
#    than dropout on one layer? What does it do to the second singular value?
#
# %%
# **Solutions.**

print("1.", overt.spectral.KSupport(6).value(s), np.sum(s**2))
signs = np.array([[1.0, -0.8], [-0.8, 1.0]])
positive = np.abs(U), np.abs(V)
print(
    "2.",
    overt.penalty.dropconnect(*positive, 0.5, second_moment=C),
    "<",
    overt.penalty.shallow(*positive, overt.Dropout(0.5), second_moment=C),
)
print(
    "   where the weighted inputs of a unit are positively correlated; else more:",
    overt.penalty.dropconnect(*positive, 0.5, second_moment=signs),
    ">",
    overt.penalty.shallow(*positive, overt.Dropout(0.5), second_moment=signs),
)
print(
    "3.", overt.spectral.nu([100] * 10, 0.5), "against", overt.spectral.nu([100], 0.5)
)
print("   rank two only if s_2 / s_1 is above", overt.linear.rank_jump([100] * 10, 0.5))
