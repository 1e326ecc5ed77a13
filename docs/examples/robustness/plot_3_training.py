"""
Training on attacked points
===========================

A network that is trained on attacked points keeps its distance from the data; one that is trained
on clean points does not.
"""

import copy

import matplotlib.pyplot as plt
import numpy as np
import torch
from sklearn.datasets import make_moons

from overt.robust import L2, PGD, adversarial_train, robust_error

torch.manual_seed(0)
x, y = (torch.as_tensor(part) for part in make_moons(300, noise=0.1, random_state=0))
x = x.float()
plain = torch.nn.Sequential(
    torch.nn.Linear(2, 64), torch.nn.ReLU(), torch.nn.Linear(64, 2)
)
robust = copy.deepcopy(plain)
for model, radius in ((plain, 0.0), (robust, 0.25)):
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    if radius:
        adversarial_train(
            model, (x, y), PGD(L2(radius), steps=7), epochs=20, optimizer=optimizer
        )
    else:
        for _ in range(100):
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()

figure, axes = plt.subplots(1, 3, figsize=(11, 3.4), layout="constrained")
side = np.linspace(-1.6, 2.6, 120), np.linspace(-1.1, 1.6, 120)
grid = torch.tensor(np.stack(np.meshgrid(*side), -1), dtype=torch.float32)
radii = np.linspace(0.05, 0.4, 6)
for axis, (name, model) in zip(
    axes, {"plain": plain, "adversarial": robust}.items(), strict=False
):
    axis.contourf(
        *side, model(grid).detach().argmax(-1), levels=1, cmap="cividis", alpha=0.5
    )
    axis.scatter(*x.T, c=y, s=6, cmap="cividis", edgecolors="k", linewidths=0.2)
    axis.set(title=name, xlabel="x1", ylabel="x2")
    curve = robust_error(model, x, y, L2(0.4), radii=radii.tolist())
    axes[2].plot(curve.radii, curve.errors, "o-", label=name)
axes[2].set(xlabel="radius", ylabel="robust error", ylim=(0, None))
axes[2].legend()
