"""Make the pictures of the README and the first page of the documentation into docs/_static."""

from pathlib import Path

import matplotlib as mpl

mpl.use("agg")
import matplotlib.pyplot as plt
import numpy as np

import overt
from overt import stories
from overt._figures import style

STATIC = Path(__file__).parent / "_static"
FIGURES = {
    "matrix": 0,
    "network": 1,
    "attack": 0,
}  # which figure of a story stands for it

mpl.rcParams.update(style())
rng = np.random.default_rng(0)
M = rng.standard_normal((30, 5)) @ rng.standard_normal((5, 20)) / 5

net = overt.LinearNetwork(M, 10, overt.Dropout(0.5))
run = net.train(40_000, lambda t: 2e-3 / (1 + t / 6000), seeds=8)
figure, axes = plt.subplots(figsize=(7.5, 3.2), layout="constrained")
axes.loglog(run.steps[1:], run.objective[:, 1:].T, color="C0", lw=0.8)
axes.plot([], [], color="C0", label="SGD with dropout, 8 starts")
axes.axhline(
    net.solve().objective, color="C1", ls="--", label="exact minimum, computed"
)
axes.set(xlabel="step", ylabel="expected loss")
axes.set_yticks([40, 60, 100, 200, 400], ["40", "60", "100", "200", "400"])
axes.yaxis.set_minor_locator(mpl.ticker.NullLocator())
axes.legend()
figure.savefig(STATIC / "readme.png", dpi=110)

figure, axes = plt.subplots(figsize=(6.5, 3.4), layout="constrained")
drop_probs = np.linspace(0, 0.97, 80)
axes.plot(drop_probs, overt.path(M, 10, drop_probs).spectrum[:, :5], color="C0")
axes.set(xlabel="drop probability", ylabel="singular values of the optimum")
figure.savefig(STATIC / "story-theorist.png", dpi=80)

for name, index in FIGURES.items():
    plt.close("all")
    names = {"__name__": "__main__"}
    for _, code in stories.read_story(name)[2]:
        exec(compile(code, name, "exec"), names)  # noqa: S102
    plt.figure(plt.get_fignums()[index]).savefig(STATIC / f"story-{name}.png", dpi=80)
