"""What the panels ask of the library: all of it, and nothing else.

A page shows the source of these functions as the lines to copy, so they use public names only. Long
ones yield frames: the share that is done, and what was found since the last frame.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

import overt
from overt import decay
from overt.completion import DropoutCompletion
from overt.completion import read_ratings as read_ratings
from overt.datasets import generate_ratings
from overt.linear import inverse_decay


def make_noise(noise: str, drop_prob: float, block_size: int) -> Any:
    """Return the noise of this name."""
    if noise == "DropBlock":
        return overt.DropBlock(drop_prob, block_size)
    return overt.Dropout(drop_prob) if noise == "Dropout" else overt.DropConnect(drop_prob)


def shrink(values: Any, noise: str, block_size: int, width: int, drop_probs: Any) -> Any:
    """Return spectra, losses and penalties of the least objective at each drop probability.

    It is a lower bound for every network; `attained` says whether one reaches it.
    """
    s, found = np.array(values), []
    for drop_prob in drop_probs:
        weight, norm = overt.spectral.induced(make_noise(noise, drop_prob, block_size), width)
        a = np.zeros(len(s))
        a[:width] = norm.prox(s[:width], weight)
        found.append((a, np.sum((s - a) ** 2), weight * norm.value(a)))
    spectra, losses, penalties = (np.array(part) for part in zip(*found, strict=True))
    return spectra, losses, penalties


def attained(values: Any, noise: str, block_size: int, width: int, drop_prob: float) -> bool:
    """Return whether a network is proved to reach the least objective of the spectrum."""
    drop = make_noise(noise, drop_prob, block_size)
    return bool(overt.LinearNetwork(np.diag(values), width, drop).solve().status == "optimal")


def needed_drop_prob(values: Any, width: int, rank: int) -> float:
    """Return the smallest drop probability whose optimum has this rank."""
    return overt.drop_prob_for_rank(np.diag(values), width, rank)


def survey(target: float, drop_prob: float, extent: float) -> Any:
    """Return the surface over two tied units, and the critical points: u1, u2, objective, kind.

    The balanced points are those of this network; where one unit is off, those of a single one.
    """
    M, noise = np.array([[target]]), overt.Dropout(drop_prob)
    land = overt.TiedAutoencoder(M, 2, noise).landscape()
    first, second = np.eye(2)[:, None, :]
    axis, f = land.slice(np.zeros((1, 2)), first, second, extent, points=61)
    points = [(*np.abs(p.U[0]).tolist(), p.objective, p.kind) for p in land.points]
    for p in overt.TiedAutoencoder(M, 1, noise).landscape().points:
        if p.directions:
            kind = "strict saddle" if p.objective > land.points[0].objective + 1e-9 else "minimum"
            points.append((abs(p.U[0, 0]), 0.0, p.objective, kind))
    return axis, f, points


def descend(
    target: float, drop_prob: float, starts: Any, steps: int, learning_rate: float, seed: int
) -> Iterator[Any]:
    """Train with dropout from every starting point, and say where the runs are 40 times."""
    net = overt.TiedAutoencoder(np.array([[target]]), 2, overt.Dropout(drop_prob))
    places = [np.array([start]) for start in starts]
    for k in range(40):
        for i, U in enumerate(places):
            run_seed = seed + 1_000_000 * (i + 1) + 1000 * k
            run = net.train(steps // 40, learning_rate, [run_seed], init=U, records=2)
            places[i] = run.weights[0][0]
        objective = [net.objective(U) for U in places]
        yield (k + 1) / 40, {"places": [U[0].tolist() for U in places], "objective": objective}


def train(
    outputs: int, inputs: int, rank: int, width: int, noise: str, drop_prob: float, block_size: int,
    learning_rate: float, halving: int, steps: int, seeds: int, seed: int,
) -> Iterator[Any]:  # fmt: skip
    """Train networks on a random matrix, beside the optimum; measure on a logarithmic grid."""
    rng = np.random.default_rng(seed)
    M = rng.standard_normal((outputs, rank)) @ rng.standard_normal((rank, inputs)) / rank
    net = overt.LinearNetwork(M, width, make_noise(noise, drop_prob, block_size))
    best = net.solve()
    scores = overt.equalize.importance(best.U, best.V)
    yield 0.0, {"optimum": best.certificate.lower_bound, "rank": best.rank, "importance": scores}
    rate = inverse_decay(learning_rate, halving or 1e300)  # 1e300 steps: constant
    weights: list[Any] = [None] * seeds
    grid = np.unique(np.geomspace(1, steps, 40).round().astype(int)).tolist()
    for first, last in pairwise([0, *grid]):
        rates = rate(np.arange(first, last))
        objective = np.empty(seeds)
        for s in range(seeds):
            start, run_seed = weights[s], 1000 * first + s
            run = net.train(last - first, rates.take, [run_seed], init=start, records=2)
            weights[s], objective[s] = (run.U[0], run.V[0]), run.objective[0, -1]
            if run.diverged[0]:
                raise overt.InputError("learning_rate is too large: the runs diverge")
        scores = overt.equalize.importance(*weights[0])
        yield last / steps, {"step": last, "objective": objective, "importance": scores}


def make_schedule(
    schedule: str, steps: int, quiet_steps: int, periods: int, learning_rate: float,
    weight_decay: float,
) -> Any:  # fmt: skip
    """Return learning rates and weight decays over time, as PyTorch counts them."""
    noisy = (learning_rate, weight_decay)
    if schedule == "annealing":
        return decay.Schedule.annealing(steps, quiet_steps, noisy=noisy)
    if schedule == "periodic":
        return decay.Schedule.periodic(periods, steps, noisy=noisy)
    return decay.Schedule.constant(steps, *noisy, convention="pytorch")


def jump(epsilon: float, depth: int, width: int, seeds: int, seed: int, **schedule: Any) -> Any:
    """Yield the minima by rank, then one run of SGD after another, each with its jump to rank 1."""
    problem, plan = decay.two_by_two(epsilon), make_schedule(**schedule)
    lam = decay.effective(schedule["learning_rate"], schedule["weight_decay"], "pytorch")[1]
    minima = decay.minima(problem, depth, lam, starts=2)
    exists = [decay.existence(problem, depth, rank) for rank in (1, 2)]
    yield 0.02, {"lam": lam, "minima": minima, "exists": exists}
    for k in range(seeds):
        runs = decay.simulate(
            problem, depth, width, plan, [k], records=251, seed=seed,
            balance=False,
        )  # fmt: skip
        found = {"steps": runs.steps, "s": runs.singular_values[0], "jump": runs.jump_step[0]}
        yield (k + 1) / seeds, found | {"diverged": bool(runs.diverged[0])}


def complete(entries: Any, n_factors: int, holdout: float, seed: int) -> Iterator[Any]:
    """Learn the noise, predict every entry, then try fixed drop probabilities."""
    entries = overt.Entries(entries.rows, entries.cols, entries.values, entries.shape)
    train, held = entries.split(holdout, seed=seed)
    model = DropoutCompletion(n_factors, seed=seed).fit(train)
    rows, cols = np.indices(entries.shape).reshape(2, -1)
    mean, std = model.predict(rows, cols, return_std=True)
    mean, std = mean.reshape(entries.shape), std.reshape(entries.shape)
    error = held.values - mean[held.rows, held.cols]
    inside = np.abs(error) <= 1.6449 * std[held.rows, held.cols]
    yield 0.1, {
        "drop_prob": model.drop_prob_, "each": model.learned_drop_prob_,
        "noise": np.sqrt(model.noise_variance_), "rmse": -model.score(held),
        "mean_only": np.std(held.values), "coverage": np.mean(inside), "held": len(held),
        "mean": mean, "std": std,
    }  # fmt: skip
    for p in (0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9):
        fixed = DropoutCompletion(n_factors, p, max_sweeps=30, seed=seed).fit(train)
        yield 0.1 + p, {"path": (p, -fixed.score(held))}


def sample_ratings() -> overt.Entries:
    """Return generated ratings: 120 people, 50 things, stars from 1 to 5."""
    return generate_ratings(120, 50, 2000, rank=3, noise=0.5, scale=(1, 5), seed=0)[0]


def script(call: str, *functions: Callable[..., Any]) -> str:
    """Return a script: the imports that it needs, these functions as they stand here, the call."""
    body = "\n\n".join(inspect.getsource(function) for function in functions)
    body = re.sub(r" *# fmt: skip", "", body)
    imports = []
    for line in Path(__file__).read_text(encoding="utf-8").splitlines():
        names = re.findall(r"\w+", line.partition("import ")[2])
        used = "|".join(names[-1:] if " as " in line else names)
        if re.match(r"(from|import) ", line) and re.search(rf"\b({used})\b", body + call):
            imports.append(line)
    return "\n".join(["from __future__ import annotations", "", *imports, "", "", body, "", call])
