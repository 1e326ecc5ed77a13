"""
Robustness: an attack that still works on confident classifiers
===============================================================

Someone hands you a classifier and says that it is robust. Find out, with an interval for the
answer, and train a better one.
"""

# %%
# **The model** is a small network whose logits are multiplied by 300. That changes no prediction
# and no robustness, but cross-entropy is flat wherever such a model is right.

import copy

import matplotlib.pyplot as plt
import torch
from sklearn.datasets import make_moons

from overt.robust import L2, PGD, adversarial_train, robust_error

torch.manual_seed(0)
moons = make_moons(150, noise=0.12, random_state=0)
x, y = (torch.as_tensor(part) for part in moons)
x = x.float()
network = torch.nn.Sequential(
    torch.nn.Linear(2, 64), torch.nn.ReLU(), torch.nn.Linear(64, 2)
)
start = copy.deepcopy(network)
optimizer = torch.optim.Adam(network.parameters(), 1e-2)
for _ in range(200):
    optimizer.zero_grad()
    error = torch.nn.functional.cross_entropy(network(x), y)
    error.backward()
    optimizer.step()


def model(v):
    """Return the logits of the network, multiplied by 300."""
    return 300 * network(v)


# %%
# **Two attacks.** The same steps, first on cross-entropy, then on the reflected loss of the
# papers, which is steep where the model is confident.

threat = L2(0.3)
fooled = {}
for loss in ("cross_entropy", "reflected"):
    attack = PGD(threat, steps=20, loss=loss)
    found = attack(model, x, y, warn=False)
    success = found.success.float()
    fooled[loss] = float(success.mean())
    print(f"{loss:<14}{fooled[loss]:.1%} fooled")
assert fooled["reflected"] >= fooled["cross_entropy"]

# %%
# **Measure.** The strongest attacks in turn, with an interval for the error on new data.

measured = robust_error(model, x, y, threat)
low, high = measured.interval
print(
    f"robust error at least {measured.value:.1%}, 95 % interval {low:.1%} to {high:.1%}"
)

# %%
# **Improve.** Train on attacked points, and compare at several radii. The price of fewer errors at
# large radii is more errors at the smallest.

better = copy.deepcopy(start)
optimizer = torch.optim.Adam(better.parameters(), 1e-2)
attack = PGD(L2(0.25), steps=7)
adversarial_train(better, (x, y), attack, epochs=40, optimizer=optimizer)
figure, axes = plt.subplots(figsize=(6.5, 3.6), layout="constrained")
for name, net in (("as handed over", model), ("trained on attacks", better)):
    curve = robust_error(net, x, y, threat, radii=[0.1, 0.2, 0.3])
    axes.plot(curve.radii, curve.errors, "o-", label=name)
axes.set_xlabel("radius")
axes.set_ylabel("robust error found")
axes.set_ylim(0, None)
axes.legend()

headline = (
    f"an attack on cross-entropy fools {fooled['cross_entropy']:.0%}, "
    f"one on the reflected loss {fooled['reflected']:.0%}"
)
