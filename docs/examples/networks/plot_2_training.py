"""
Training on the penalty instead of the noise
============================================

Dropout before the last layer adds a penalty to the expected loss that can be written down.
Descending loss plus penalty goes where dropout goes, without its noise.
"""

import copy

import matplotlib.pyplot as plt
import torch
from sklearn.datasets import load_digits

from overt.nn import explicit_penalty, without_noise

torch.manual_seed(0)
digits = load_digits()
x = torch.tensor(digits.data / 16, dtype=torch.float32)
y = torch.nn.functional.one_hot(torch.tensor(digits.target), 10).float()
start = torch.nn.Sequential(
    torch.nn.Linear(64, 128),
    torch.nn.ReLU(),
    torch.nn.Dropout(0.5),
    torch.nn.Linear(128, 10),
)

figure, axes = plt.subplots(figsize=(6.5, 3.5), layout="constrained")
for name in ("sampled dropout", "penalty"):
    model = copy.deepcopy(start)
    net = without_noise(model) if name == "penalty" else model
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    curve = []
    for step in range(301):
        rows = torch.randint(len(x), (64,))
        if step % 10 == 0:
            with torch.no_grad():
                loss = ((copy.deepcopy(model).eval()(x) - y) ** 2).sum(1).mean()
                curve.append((step, float(loss + explicit_penalty(model, x).value)))
        net.train()
        optimizer.zero_grad()
        loss = ((net(x[rows]) - y[rows]) ** 2).sum(1).mean()
        (loss + net.penalty if name == "penalty" else loss).backward()
        optimizer.step()
    axes.plot(*zip(*curve, strict=True), label=name)
axes.set(xlabel="step", ylabel="dropout objective, exact", yscale="log")
axes.legend()
