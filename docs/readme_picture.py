"""Draw the picture of the README into docs/_static/readme.png."""

from pathlib import Path

import numpy as np

import overt
from overt._figures import BLUE, GREEN, ORANGE, subplots
from overt.decay import Schedule, simulate, two_by_two

rng = np.random.default_rng(0)
M = rng.standard_normal((30, 5)) @ rng.standard_normal((5, 20)) / 5
figure, axes = subplots(1, 3, (3.9, 3.0))
path, descent, jumps = axes[0]

drop_probs = np.linspace(0, 0.97, 80)
path.plot(drop_probs, overt.path(M, 10, drop_probs).spectrum[:, :5], color=BLUE)
path.set(title="what noise leaves", xlabel="drop probability", ylabel="optimal singular values")

net = overt.LinearNetwork(M, 10, overt.Dropout(0.5))
run = net.train(40_000, lambda t: 2e-3 / (1 + t / 6000), seeds=8)
descent.loglog(np.maximum(run.steps, 1), run.objective.T, color=BLUE, lw=0.8)
descent.axhline(net.solve().objective, color=ORANGE, ls="--", label="exact optimum")
descent.set(title="where training goes", xlabel="step", ylabel="objective")
descent.legend()

plan = Schedule.of([(500, 0.03, 0.1), (7000, 0.2, 0.1)], convention="pytorch")
runs = simulate(two_by_two(0.25), depth=3, width=50, schedule=plan, seeds=10, records=75)
jumps.plot(runs.steps, runs.singular_values[:, :, 1].T, color=GREEN, lw=0.8)
jumps.set(title="rank that is lost for good", xlabel="step", ylabel="second singular value")

figure.savefig(Path(__file__).parent / "_static" / "readme.png", dpi=110)
