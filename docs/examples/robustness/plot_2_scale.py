"""
The same network, a hundred times as sure
=========================================

Multiplying the logits changes no prediction, so it changes no robustness either. An attack on
cross-entropy is fooled; one on the reflected loss is not.
"""

import warnings

import matplotlib.pyplot as plt
import torch
from sklearn.datasets import make_moons

from overt.robust import L2, PGD

torch.manual_seed(0)
x, y = (torch.as_tensor(part) for part in make_moons(400, noise=0.15, random_state=0))
x = x.float()
model = torch.nn.Sequential(
    torch.nn.Linear(2, 64), torch.nn.ReLU(), torch.nn.Linear(64, 2)
)
optimizer = torch.optim.Adam(model.parameters(), 1e-2)
for _ in range(200):
    optimizer.zero_grad()
    torch.nn.functional.cross_entropy(model(x), y).backward()
    optimizer.step()

scales = [1, 3, 10, 30, 100, 300, 1000]
figure, axes = plt.subplots(figsize=(6.5, 3.5), layout="constrained")
for loss, marker in (("cross_entropy", "o"), ("reflected", "s")):
    errors = []
    for scale in scales:
        attack = PGD(L2(0.3), steps=20, loss=loss)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the blind attack warns that it is
            found = attack(lambda v, scale=scale: scale * model(v), x, y)
        errors.append(float(found.success.float().mean()))
    axes.plot(scales, errors, marker=marker, label=loss)
axes.set(
    xscale="log",
    xlabel="factor of the logits",
    ylabel="robust error found",
    ylim=(0, None),
)
axes.legend()
