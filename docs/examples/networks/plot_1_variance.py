"""
Variance without sampling
=========================

How sure is a network with dropout? Usually one samples masks. Propagating means and variances
through the network approximates the limit of infinitely many samples at the price of a few passes;
it is exact where only affine layers follow the noise, and approximate in this network.
"""

import matplotlib.pyplot as plt
import numpy as np
import torch

from overt.nn import mc_moments, predictive_moments

torch.manual_seed(0)
model = torch.nn.Sequential(
    torch.nn.Linear(1, 128),
    torch.nn.GELU(),
    torch.nn.Dropout(0.2),
    torch.nn.Linear(128, 128),
    torch.nn.GELU(),
    torch.nn.Dropout(0.2),
    torch.nn.Linear(128, 1),
)
x = torch.linspace(-1.5, 1.5, 120)[:, None]
seen = x[(x[:, 0].abs() > 0.2) & (x[:, 0].abs() < 1.0)]
optimizer = torch.optim.Adam(model.parameters(), 5e-3)
for _ in range(400):
    optimizer.zero_grad()
    torch.nn.functional.mse_loss(model(seen), torch.sin(4 * seen)).backward()
    optimizer.step()

found = predictive_moments(model, x)
mean, std = found.mean[:, 0].detach(), found.variance[:, 0].sqrt().detach()
many = mc_moments(model, x, n=2000, seed=0).variance[:, 0].sqrt()
few = mc_moments(model, x, n=10, seed=1).variance[:, 0].sqrt()

figure, (left, right) = plt.subplots(1, 2, figsize=(9.5, 3.5), layout="constrained")
left.fill_between(x[:, 0], mean - 2 * std, mean + 2 * std, alpha=0.25, label="2 sd")
left.plot(x[:, 0], mean, label="mean")
left.plot(seen[:, 0], torch.sin(4 * seen[:, 0]), "k.", ms=3, label="data")
left.set(xlabel="x", ylabel="output")
left.legend()
right.plot(x[:, 0], few, lw=1, color="0.7", label="10 samples")
right.plot(x[:, 0], many, lw=2.5, alpha=0.5, label="2,000 samples")
right.plot(x[:, 0], std, "--", label="propagated")
right.set(xlabel="x", ylabel="standard deviation")
right.legend()
print(f"largest difference: {np.abs(std / many - 1).max():.1%}")
