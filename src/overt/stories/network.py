"""
PyTorch: what dropout did to a network
======================================

You have a classifier that was trained with dropout. How uncertain is it, what did dropout add to
its objective, and does it have to be this large?
"""

# %%
# **A model** in plain PyTorch, trained on scikit-learn's digits with a squared loss.

import matplotlib.pyplot as plt
import torch
from sklearn.datasets import load_digits

from overt.nn import audit, compress, explicit_penalty, mc_moments, predictive_moments

torch.manual_seed(0)
digits = load_digits()
x = torch.tensor(digits.data / 16, dtype=torch.float32)
y = torch.tensor(digits.target)
train = slice(0, 1200)
test = slice(1200, None)
model = torch.nn.Sequential(
    torch.nn.Linear(64, 256),
    torch.nn.ReLU(),
    torch.nn.Dropout(0.5),
    torch.nn.Linear(256, 10),
)
targets = torch.nn.functional.one_hot(y).float()
optimizer = torch.optim.Adam(model.parameters(), 3e-3)
for _ in range(300):
    optimizer.zero_grad()
    error = model(x[train]) - targets[train]
    (error**2).sum(1).mean().backward()
    optimizer.step()
model.eval()

# %%
# **Uncertainty without sampling.** The variance of the outputs under dropout, from one pass,
# beside the estimate from 1,000 passes with random masks; and the penalty that dropout adds to the
# squared loss.

with torch.no_grad():
    mean, variance = predictive_moments(model, x[test])
    moments = mc_moments(model, x[test], n=1000, seed=0)
    penalty = explicit_penalty(model, x[train]).value
ratio = (variance / moments.variance).sqrt()
ratio = float(ratio.mean())
print(f"standard deviation, one pass / 1,000 passes: {ratio:.3f}")
print(f"penalty: {penalty:.4f}")
assert abs(ratio - 1) < 0.05

# %%
# **Uncertain where it is wrong.** The standard deviation of the largest output, divided by its
# distance to the second largest, for digits that are classified correctly and incorrectly.

top = mean.topk(2, dim=1)
first, second = top.values.T
margin = first - second
variances = variance.gather(1, top.indices[:, :1])
std = variances[:, 0].sqrt()
uncertainty = std / margin.clamp(min=0.01)
uncertainty = uncertainty.clamp(max=3)
correct = top.indices[:, 0] == y[test]
figure, axes = plt.subplots(figsize=(6.5, 3.4), layout="constrained")
groups = [uncertainty[correct], uncertainty[~correct]]
axes.hist(groups, bins=25, density=True, label=["correct", "incorrect"])
axes.set_xlabel("standard deviation / margin")
axes.set_ylabel("density")
axes.legend()

# %%
# **An audit** compares the network with the optimum of a last layer under this dropout. The
# optimum holds for every choice of the layers before, and shrinks all singular values of the
# targets by the same amount.

data = (x[train], y[train])
report = audit(model, data, loss="squared")
head = report.head
print(
    f"training objective {report.objective:.4f}; no weights are below {head.lower_bound:.4f}"
)
gain = 1 - head.lower_bound / report.objective
print(f"so better weights can lower the objective by {gain:.0%} at most")
assert gain >= 0
figure, axes = plt.subplots(figsize=(6.5, 3.4), layout="constrained")
axes.plot(head.target_spectrum[:10], "s-", color="0.7", label="targets")
axes.plot(head.predicted_spectrum[:10], "o-", color="C1", label="optimum under dropout")
axes.plot(head.spectrum[:10], "x-", color="C0", label="this network")
axes.set_xlabel("index")
axes.set_ylabel("singular value")
axes.set_ylim(0, None)
axes.legend()

# %%
# **A smaller network**, without training again.

accuracy = float(correct.float().mean())
shares = (0.05, 0.1, 0.25, 0.5)
kept = []
for share in shares:
    small, _ = compress(model, share, x[:32], data)
    predicted = small(x[test]).argmax(1)
    right = predicted == y[test]
    kept.append(float(right.float().mean()))
figure, axes = plt.subplots(figsize=(6.5, 3.4), layout="constrained")
axes.plot(shares, kept, "o-", label="compressed")
axes.axhline(accuracy, ls="--", color="C1", label="whole network")
axes.set_xlabel("fraction kept")
axes.set_ylabel("test accuracy")
axes.legend()

headline = (
    f"one pass gives {ratio:.3f} of the standard deviation that 1,000 passes estimate"
)
