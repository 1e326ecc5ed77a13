"""
The same network under five noises
==================================

All five noises drop the same share of units or weights. On this target Dropout, DropBlock of 3
and DropConnect have the same optimal spectrum; keeping exactly half of the units shrinks less. The
legend says which curves are proved optimal and which come from a search below a lower bound.
"""

import matplotlib.pyplot as plt
import numpy as np

import overt

rng = np.random.default_rng(0)
left, _ = np.linalg.qr(rng.standard_normal((30, 10)))
right, _ = np.linalg.qr(rng.standard_normal((20, 10)))
target = left @ np.diag(np.linspace(3, 0.3, 10)) @ right.T
noises = {
    "Dropout": overt.Dropout(0.5),
    "6 of 12 units kept": overt.KeepExactly(6),
    "DropBlock of 3": overt.DropBlock(0.5, 3),
    "DropConnect": overt.DropConnect(0.5),
    "DropBlock, sliding": overt.DropBlock(0.5, 3, placement="sliding"),
}
figure, axes = plt.subplots(figsize=(7, 3.6), layout="constrained")
axes.plot(range(1, 11), np.linspace(3, 0.3, 10), "o-", color="0.6", label="target")
for (name, noise), marker in zip(noises.items(), "s^Dvx", strict=True):
    best = overt.LinearNetwork(target, width=12, noise=noise).solve()
    spectrum = np.linalg.svd(best.product, compute_uv=False)[:10]
    axes.plot(range(1, 11), spectrum, marker=marker, label=f"{name} ({best.status})")
axes.set(xlabel="index", ylabel="singular value", xticks=range(1, 11))
axes.legend(fontsize="small")
