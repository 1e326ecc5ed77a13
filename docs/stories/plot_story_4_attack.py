"""
The robustness engineer: can it be trusted?
===========================================

Someone hands you a classifier and says that it is robust. Find out, prove what can be proved, and
make it better.
"""

# %%
# **The model**, trained in the usual way, with logits that are very sure of themselves.

import copy
import warnings

import matplotlib.pyplot as plt
import torch
from sklearn.datasets import make_moons

from overt.robust import L2, PGD, adversarial_train, robust_error

torch.manual_seed(0)
x, y = (torch.as_tensor(part) for part in make_moons(150, noise=0.12, random_state=0))
x = x.float()
network = torch.nn.Sequential(torch.nn.Linear(2, 64), torch.nn.ReLU(), torch.nn.Linear(64, 2))
start = copy.deepcopy(network)
optimizer = torch.optim.Adam(network.parameters(), 1e-2)
for _ in range(200):
    optimizer.zero_grad()
    torch.nn.functional.cross_entropy(network(x), y).backward()
    optimizer.step()


def model(v):
    """Return what was handed over: the network, its logits multiplied by 300."""
    return 300 * network(v)


# %%
# **The usual attack is impressed**, and says why one should not be: where the model is sure,
# cross-entropy is flat. The reflected loss is steep there.

threat = L2(0.3)
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    blind = PGD(threat, steps=20, loss="cross_entropy")(model, x, y)
seeing = PGD(threat, steps=20, loss="reflected")(model, x, y)
print(f"cross-entropy: {float(blind.success.float().mean()):.1%} fooled")
print(f"reflected:     {float(seeing.success.float().mean()):.1%} fooled")
print("warning:", str(caught[0].message)[:100] if caught else "none", "...")

# %%
# **Measure**: the strongest attacks in turn, with an interval for the error on new data.

found = robust_error(model, x, y, threat)
low, high = found.interval
print(f"robust error {found.value:.1%}, 95% interval {low:.1%} to {high:.1%}")

# %%
# **Improve**: train on attacked points, and compare over radii.

better = copy.deepcopy(start)
optimizer = torch.optim.Adam(better.parameters(), 1e-2)
adversarial_train(better, (x, y), PGD(L2(0.25), steps=7), epochs=15, optimizer=optimizer)
radii = [0.1, 0.2, 0.3]
figure, axes = plt.subplots(figsize=(6.5, 3.6), layout="constrained")
for name, net in (("as handed over", model), ("trained on attacks", better)):
    curve = robust_error(net, x, y, threat, radii=radii)
    axes.plot(curve.radii, curve.errors, "o-", label=name)
axes.set(xlabel="radius", ylabel="robust error found", ylim=(0, None))
axes.legend()

# %%
# From here: :doc:`/howto/robustness`, and :doc:`/theory/robustness` for what is proved.
