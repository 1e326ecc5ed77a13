"""
Dropping blocks: the k-support norm
===================================

Dropout shrinks all singular values by the same amount. DropBlock with blocks of b units is kinder
to the largest: they are scaled, those in the middle are shrunk, the small ones are cut. Larger
blocks bring it closer to plain weight decay, which scales everything.
"""

import matplotlib.pyplot as plt
import numpy as np

import overt

spectrum = 4.0 * 0.8 ** np.arange(16)
weight = 0.5

figure, panel = plt.subplots(figsize=(7, 4), layout="constrained")
index = np.arange(1, 17)
panel.plot(index, spectrum, "o-", color="black", label="target")
for b, color in ((1, "#c8553d"), (2, "#e09f3e"), (4, "#1f6f8b"), (16, "#8a97a3")):
    kept = overt.spectral.KSupport(b).prox(spectrum, weight)
    name = {1: "blocks of 1 (Dropout)", 16: "blocks of 16"}.get(b, f"blocks of {b}")
    panel.plot(index, kept, "o-", color=color, label=name, ms=4)
panel.set(xlabel="singular value", ylabel="size")
panel.legend()

# %%
# The proximal map is what the best network does, if there are enough blocks. Here eight blocks of
# two fit a matrix with three strong directions; the certificate confirms that nothing is better.

rng = np.random.default_rng(0)
Q = np.linalg.qr(rng.standard_normal((6, 6)))[0]
target = Q @ np.diag([3.0, 2.5, 2.0, 0.4, 0.2, 0.1]) @ Q.T
noise = overt.DropBlock(drop_prob=0.5, block_size=2)
best = overt.LinearNetwork(target, width=16, noise=noise).solve()
expected = overt.spectral.KSupport(2).prox(
    np.array([3.0, 2.5, 2.0, 0.4, 0.2, 0.1]), 2 / 16
)
print(best.status, f"gap {abs(best.certificate.relative_gap):.0e}")
print("learned  ", np.linalg.svd(best.product, compute_uv=False).round(4))
print("predicted", expected.round(4))
