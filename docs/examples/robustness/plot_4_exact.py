"""
Attack and proof
================

For small networks the truth can be computed. The attack finds the points that fail; the mixed-
integer program proves that the others do not.
"""

import matplotlib.pyplot as plt
import numpy as np
import torch

from overt.robust import Linf, exact_error, strongest

rng = np.random.default_rng(1)
W, b, a = rng.normal(size=(8, 2)), rng.normal(size=8), rng.normal(size=(1, 8))
x = rng.uniform(-2, 2, size=(60, 2))
y = (np.maximum(x @ W.T + b, 0) @ a[0] > 0).astype(int)
radii = np.linspace(0.05, 0.8, 8)

net = torch.nn.Sequential(
    torch.nn.Linear(2, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1)
).double()
state = {"0.weight": W, "0.bias": b, "2.weight": a, "2.bias": np.zeros(1)}
net.load_state_dict({name: torch.from_numpy(values) for name, values in state.items()})

found = [
    float(strongest(net, x, y, Linf(r), warn=False).success.double().mean())
    for r in radii
]
truth = [exact_error(net, x, y, Linf(r)).value for r in radii]
figure, axes = plt.subplots(figsize=(6.5, 3.5), layout="constrained")
axes.plot(radii, truth, "-", lw=4, alpha=0.4, label="exact")
axes.plot(radii, found, "o--", label="strongest attack")
axes.set(xlabel="radius (Linf)", ylabel="robust error")
axes.legend()
