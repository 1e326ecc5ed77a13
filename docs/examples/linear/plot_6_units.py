"""
One drop probability per unit
=============================

Units that are dropped rarely are cheap, so the best network loads them more. How much more is a
small convex program: here the shares fall smoothly with the drop probability, and the certificate
says that nothing is better.
"""

import matplotlib.pyplot as plt
import numpy as np

import overt

rng = np.random.default_rng(3)
target = rng.standard_normal((30, 8)) @ rng.standard_normal((8, 20)) / 4
drop_probs = tuple(np.linspace(0.05, 0.8, 12))
net = overt.LinearNetwork(target, width=12, noise=overt.Dropout(drop_probs))
best = net.solve()
print(best.status, f"gap {best.certificate.relative_gap:.1e}")

figure, axes = plt.subplots(figsize=(6.5, 3.4), layout="constrained")
shares = np.linalg.norm(best.U, axis=0) * np.linalg.norm(best.V, axis=0)
axes.bar(drop_probs, shares, width=0.045, label="optimal share |u||v|")
equal = overt.LinearNetwork(target, 12, overt.Dropout(np.mean(drop_probs))).solve()
share = np.linalg.norm(equal.U[:, 0]) * np.linalg.norm(equal.V[:, 0])
axes.axhline(share, ls="--", color="C1", label="one probability for all")
axes.set(xlabel="drop probability of the unit", ylabel="share of the unit")
axes.legend()
