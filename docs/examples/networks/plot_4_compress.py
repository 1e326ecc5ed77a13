"""
Smaller networks, without training again
========================================

How much accuracy is left when a trained network is made smaller, by which way?
"""

import matplotlib.pyplot as plt
import torch
from sklearn.datasets import load_digits

from overt.nn import compress

torch.manual_seed(0)
digits = load_digits()
x, y = torch.tensor(digits.data / 16, dtype=torch.float32), torch.tensor(digits.target)
train, test = slice(0, 1200), slice(1200, None)
model = torch.nn.Sequential(
    torch.nn.Linear(64, 256),
    torch.nn.ReLU(),
    torch.nn.Dropout(0.5),
    torch.nn.Linear(256, 10),
)
optimizer = torch.optim.Adam(model.parameters(), 3e-3)
for _ in range(120):
    optimizer.zero_grad()
    torch.nn.functional.cross_entropy(model(x[train]), y[train]).backward()
    optimizer.step()
model.eval()

figure, axes = plt.subplots(figsize=(6.5, 3.5), layout="constrained")
shares = [0.05, 0.1, 0.2, 0.35, 0.5, 1.0]
for by, marker in (("flow", "s"), ("spectrum", "^")):
    accuracy = []
    for keep in shares:
        small, _ = compress(model, keep, x[:32], (x[train], y[train]), by=by)
        accuracy.append(float((small(x[test]).argmax(1) == y[test]).float().mean()))
    axes.plot(shares, accuracy, marker=marker, label=by)
axes.set(xlabel="share kept", ylabel="test accuracy", xscale="log")
axes.legend()
