"""
6. Networks that people use
===========================

Non-linear networks: what stays exact, what is propagated approximately, what cannot be beaten, and
why an attack must climb another loss than training descends.
"""

# %%
# **Exact before the last layer.** The lemma of the first lecture does not ask where activations
# come from, so the variance of the outputs is a formula.

import matplotlib.pyplot as plt
import torch

from overt.nn import explicit_penalty, mc_moments, predictive_moments
from overt.robust import L2, PGD

torch.manual_seed(0)
model = torch.nn.Sequential(
    torch.nn.Linear(4, 64),
    torch.nn.ReLU(),
    torch.nn.Dropout(0.5),
    torch.nn.Linear(64, 2),
)
x = torch.randn(200, 4)
mean, variance = predictive_moments(model, x)
sampled = mc_moments(model, x, n=2000, seed=0)
with torch.no_grad():
    a = torch.relu(model[0](x))
    formula = (a**2) @ (model[3].weight ** 2).T
print("formula against the library:", float((formula - variance).abs().max().detach()))
print(
    "2,000 samples are off by",
    float((sampled.variance / variance - 1).abs().mean().detach()),
)

# %%
# **Through non-linearities** a normal input becomes E f + E f' (z - m) plus what is left. With
# noise on two layers this is no longer exact, and the sampled moments say by how much.

deep = torch.nn.Sequential(
    torch.nn.Linear(4, 64),
    torch.nn.GELU(),
    torch.nn.Dropout(0.3),
    torch.nn.Linear(64, 64),
    torch.nn.GELU(),
    torch.nn.Dropout(0.3),
    torch.nn.Linear(64, 1),
)
propagated = predictive_moments(deep, x)
many = mc_moments(deep, x, n=2000, seed=0)
figure, left = plt.subplots(figsize=(6.5, 3.4), layout="constrained")
left.loglog(many.variance.sqrt(), propagated.variance.sqrt().detach(), ".", ms=4)
ends = [float(many.variance.min().sqrt()), float(many.variance.max().sqrt())]
left.plot(ends, ends, color="0.7", zorder=0)
left.set(xlabel="sampled standard deviation", ylabel="propagated")

# %%
# **Attacks.** Training descends an upper bound of the error; an attack that climbs it is blind
# where the network is sure. Multiply the logits by a number and watch.

y = (x[:, 0] * x[:, 1] > 0).long()
optimizer = torch.optim.Adam(model.parameters(), 1e-2)
for _ in range(150):
    optimizer.zero_grad()
    torch.nn.functional.cross_entropy(model(x), y).backward()
    optimizer.step()
model.eval()
figure, right = plt.subplots(figsize=(6.5, 3.4), layout="constrained")
for loss in ("cross_entropy", "reflected"):
    errors = []
    for scale in (1, 10, 100, 1000):
        attack = PGD(L2(0.5), steps=15, loss=loss)
        found = attack(lambda v, scale=scale: scale * model(v), x, y, warn=False)
        errors.append(float(found.success.float().mean()))
    right.semilogx((1, 10, 100, 1000), errors, "o-", label=loss)
right.set(xlabel="factor of the logits", ylabel="error found", ylim=(0, None))
right.legend()

# %%
# **Exercises.**
#
# 1. Dropout on the hidden layer of a ReLU network: show that the penalty of ``explicit_penalty``
#    is linear in lam.
# 2. Which activation has the slope E f' = Phi(m / sqrt(v)) at N(m, v)?
# 3. Why does the reflected loss need no rescaling of the logits?
#
# %%
# **Solutions.**

for p in (0.2, 0.5, 0.8):  # 1. the ratio does not change
    model[2].p = p
    print("1.", float(explicit_penalty(model, x).value) / (p / (1 - p)))
z = 0.4 + 0.7 * torch.randn(200_000)
normal = torch.distributions.Normal(0.0, 1.0)
print(
    "2. ReLU:",
    float((z > 0).float().mean()),
    float(normal.cdf(torch.tensor(0.4 / 0.7))),
)
print(
    "3. its slope -sigmoid(z) is near -1 wherever the point is not fooled yet, at any scale"
)
