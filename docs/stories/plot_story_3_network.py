"""
The engineer: a network with dropout
====================================

You have a classifier that was trained with dropout. What did dropout do to it, how sure is it,
and does it have to be this large?
"""

# %%
# **A model** as anyone has it: nothing of overt in it.

import matplotlib.pyplot as plt
import torch
from sklearn.datasets import load_digits

from overt.nn import audit, compress, explicit_penalty, mc_moments, predictive_moments

torch.manual_seed(0)
digits = load_digits()
x, y = torch.tensor(digits.data / 16, dtype=torch.float32), torch.tensor(digits.target)
train, test = slice(0, 1200), slice(1200, None)
model = torch.nn.Sequential(
    torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Dropout(0.5), torch.nn.Linear(256, 10)
)
optimizer = torch.optim.Adam(model.parameters(), 3e-3)
for _ in range(150):
    optimizer.zero_grad()
    torch.nn.functional.cross_entropy(model(x[train]), y[train]).backward()
    optimizer.step()
model.eval()

# %%
# **What dropout adds** to the squared loss of its logits, in closed form, and what noise leaves
# in the outputs, in a few passes instead of a thousand.

print(f"penalty: {explicit_penalty(model, x[test]).value.item():.3f}")
mean, variance = predictive_moments(model, x[test])
sampled = mc_moments(model, x[test], n=1000, seed=0)
ratio = (variance.sqrt() / sampled.variance.sqrt()).mean()
print(f"propagated / sampled standard deviation: {ratio.item():.3f}")

# %%
# **Doubt goes where the errors are.** The spread of the leading logit, relative to its lead, for
# digits that are read right and wrong.

top = mean.topk(2, dim=1)
lead = (top.values[:, 0] - top.values[:, 1]).detach()
doubt = (variance.gather(1, top.indices[:, :1])[:, 0].sqrt() / lead.clamp(min=0.1)).detach()
right = top.indices[:, 0] == y[test]
figure, first = plt.subplots(figsize=(6.5, 3.4), layout="constrained")
first.hist([doubt[right].clamp(max=3), doubt[~right].clamp(max=3)], bins=25, density=True,
           label=["read right", "read wrong"])  # fmt: skip
first.set(xlabel="doubt: standard deviation / lead", ylabel="density")
first.legend()

# %%
# **An audit** compares the spectrum of the outputs with what theory predicts, and says how far
# the objective is from what no network can beat.

report = audit(model, (x[train], y[train]), loss="cross_entropy")
print(report)

# %%
# **A smaller network** that computes nearly the same.

accuracy = float(right.float().mean())
shares = (0.05, 0.1, 0.25, 0.5)
kept = []
for keep in shares:
    small, _ = compress(model, keep, x[:32], (x[train], y[train]))
    kept.append(float((small(x[test]).argmax(1) == y[test]).float().mean()))
figure, second = plt.subplots(figsize=(6.5, 3.4), layout="constrained")
second.plot(shares, kept, "o-", label="compressed")
second.axhline(accuracy, ls="--", color="C1", label="whole network")
second.set(xlabel="share kept", ylabel="test accuracy", xscale="log")
second.legend()

# %%
# From here: :doc:`/howto/pytorch`, :doc:`/howto/audit`, :doc:`/howto/compress`.
