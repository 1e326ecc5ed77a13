"""Random networks against descents: what no descent may contradict.

    python -m benchmarks.descents deep FILE     300 deep networks, 100 descents each
    python -m benchmarks.descents noises FILE   2,000 noises over units, 3 descents each
    python -m benchmarks.descents report FILE   solve or bound them with this version, and compare

Descents know nothing of overt's solver: the objective is written again below. FILE holds a line of
JSON for each problem that is done, after a first one with the seed, so that a run can be stopped
and resumed, and a new version can be compared with the same descents.
"""

from __future__ import annotations

import json
import secrets
import sys
import time
from pathlib import Path

import numpy as np
from scipy.optimize import minimize

import overt

COUNTS = {"deep": 300, "noises": 2000}
DESCENTS = 100
FIRST_STEPS = 60
"""Steps of every descent of a deep network."""
FINISHED = 4
"""The best descents of a deep network, which are continued until they end."""
TOLERANCE = 1e-9


def descend(value, start, steps):
    options = {"maxiter": steps, "maxfun": 2 * steps, "ftol": 1e-15, "gtol": 1e-12}
    return minimize(value, start, jac=True, method="L-BFGS-B", options=options)


def deep_problem(seed: int, number: int):
    """Return (network, root of the inputs' second moment); every third mixes noises."""
    rng = np.random.default_rng([seed, number])
    layers = int(rng.integers(2, 6))
    widths = tuple(rng.integers(1, 41, layers).tolist())
    outputs, inputs = rng.integers(1, 41, 2)
    A = rng.standard_normal((inputs, 2 * inputs)) / np.sqrt(inputs)
    noises = [overt.Dropout(p) for p in rng.uniform(0.05, 0.9, layers)]
    if number % 3 == 2:
        kinds = [
            lambda d: overt.KeepExactly(int(rng.integers(1, d + 1))),
            lambda d: overt.Dropout(tuple(rng.uniform(0.05, 0.9, d))),
            lambda d: overt.Dropout(float(rng.uniform(0.05, 0.5)), gaussian=True),
        ]
        noises = [kinds[int(rng.integers(3))](d) for d in widths]
    target = rng.standard_normal((outputs, inputs))
    C = A @ A.T
    network = overt.DeepLinearNetwork(target, widths, noise=noises, second_moment=C)
    return network, target, np.linalg.cholesky(C)


def deep_descents(seed: int, number: int) -> dict:
    """Return the least objective of 100 descents, and the ranks of those that reach it."""
    network, target, root = deep_problem(seed, number)
    T = target @ root
    pairs = zip(network.noise, network.widths, strict=True)
    moments = [1 + noise.characteristic(width) for noise, width in pairs]
    sizes = [T.shape[1], *network.widths, T.shape[0]]
    shapes = list(zip(sizes[1:], sizes[:-1], strict=True))
    cuts = np.cumsum([rows * columns for rows, columns in shapes])

    def unpack(theta):
        parts = np.split(theta, cuts[:-1])
        return [part.reshape(shape) for part, shape in zip(parts, shapes, strict=True)]

    def value(theta):
        """E|T - W|^2 by the second moments of what reaches each layer, backward by hand."""
        weights = unpack(theta)
        maps = [weights[0]]
        seconds = [weights[0] @ weights[0].T]
        for W, R in zip(weights[1:], moments, strict=True):
            maps.append(W @ maps[-1])
            seconds.append(W @ (R * seconds[-1]) @ W.T)
        total = np.sum(T**2) - 2 * np.sum(T * maps[-1]) + np.trace(seconds[-1])
        of_map, of_second = -2 * T, np.eye(len(T))
        gradients = []
        for layer in range(len(weights) - 1, 0, -1):
            W, R = weights[layer], moments[layer - 1]
            own = of_map @ maps[layer - 1].T
            own += 2 * of_second @ W @ (R * seconds[layer - 1])
            gradients.append(own)
            of_map = W.T @ of_map
            of_second = R * (W.T @ of_second @ W)
        gradients.append(of_map + 2 * of_second @ weights[0])
        return total, np.concatenate([G.ravel() for G in gradients[::-1]])

    rng = np.random.default_rng([seed, number, 1])
    ends = []
    for _ in range(DESCENTS):
        scale = 10 ** rng.uniform(-1, 0) / np.sqrt(np.mean(network.widths))
        start = scale * rng.standard_normal(cuts[-1])
        ends.append(descend(value, start, FIRST_STEPS))
    ends.sort(key=lambda end: end.fun)
    ends[:FINISHED] = [descend(value, end.x, 5000) for end in ends[:FINISHED]]
    least = min(end.fun for end in ends)
    ranks = set()
    for end in ends[:FINISHED]:
        if end.fun <= least * (1 + TOLERANCE):
            W = np.linalg.multi_dot(unpack(end.x)[::-1])
            rank = np.linalg.matrix_rank(W, tol=1e-4 * np.linalg.norm(W, 2))
            ranks.add(int(rank))
    return {"least": float(least), "ranks": sorted(ranks)}


def noise_problem(seed: int, number: int):
    """Return (Gamma, s): correlated, singular, circulant or autoregressive noise; any scale."""
    rng = np.random.default_rng([seed, number])
    d = int(rng.integers(2, 9))
    kind = number % 4
    if kind < 2:
        A = rng.standard_normal((d, d + 2 if kind == 0 else max(1, d - 1)))
        Gamma = A @ A.T / d
    elif kind == 2:
        powers = np.abs(np.fft.fft(rng.standard_normal(d))) ** 2
        row = np.real(np.fft.ifft(powers)) / d
        Gamma = np.array([np.roll(row, i) for i in range(d)])
        Gamma = (Gamma + Gamma.T) / 2
    else:
        distance = np.abs(np.subtract.outer(np.arange(d), np.arange(d)))
        Gamma = rng.uniform(0.1, 0.9) ** distance
    s = np.sort(rng.exponential(1, d))[::-1] * 10 ** rng.uniform(-1, 1)
    return Gamma * 10 ** rng.uniform(-2, 1), s


def noise_descents(seed: int, number: int) -> dict:
    """Return the least objective of three descents."""
    Gamma, s = noise_problem(seed, number)
    d = len(s)
    rng = np.random.default_rng([seed, number, 1])

    def value(theta):
        U, V = theta.reshape(2, d, d)
        E = np.diag(s) - U @ V.T
        UU, VV = U.T @ U, V.T @ V
        gradients = U @ (Gamma * VV) - E @ V, V @ (Gamma * UU) - E.T @ U
        return np.sum(E * E) + np.sum(Gamma * UU * VV), 2 * np.ravel(gradients)

    starts = 0.5 * np.sqrt(s[0]) * rng.standard_normal((3, 2 * d * d))
    return {"least": float(min(descend(value, x, 3000).fun for x in starts))}


def report_deep(seed: int, found: list[dict]) -> None:
    above, gap, plain, optimal, ranked, contradicted, mixed = (
        -np.inf,
        0.0,
        0,
        0,
        0,
        0,
        0,
    )
    for number, line in enumerate(found):
        best = deep_problem(seed, number)[0].solve()
        above = max(above, best.objective / line["least"] - 1)
        if number % 3 == 2:
            mixed += best.status == "optimal"
            continue
        plain += 1
        optimal += best.status == "optimal"
        gap = max(gap, best.certificate.relative_gap)
        certificate = best.rank_certificate
        ranked += certificate.least == certificate.most
        if line["least"] <= best.objective * (1 + TOLERANCE):
            between = range(certificate.least, certificate.most + 1)
            contradicted += sum(rank not in between for rank in line["ranks"])
    print(f"{len(found)} deep networks, {DESCENTS * len(found)} descents, seed {seed}")
    print(f"largest objective over the best descent, less 1: {above:.2e}")
    print(f"dropout: {optimal} of {plain} optimal, largest relative gap {gap:.2e}")
    print(f"dropout: ranks decided {ranked} of {plain}, contradicted {contradicted}")
    print(f"mixtures of noises: {mixed} of {len(found) - plain} optimal")


def report_noises(seed: int, found: list[dict]) -> None:
    below, margin, optimal, beaten, solved = 0, np.inf, 0, 0, 0
    for number, line in enumerate(found):
        Gamma, s = noise_problem(seed, number)
        noise = overt.CovarianceNoise(np.ones(len(s)), Gamma)
        network = overt.LinearNetwork(np.diag(s), len(s), noise)
        room = (line["least"] - network.bound()) / np.sum(s**2)
        margin = min(margin, room)
        below += room < -TOLERANCE
        if number % 10 == 0:
            solved += 1
            best = network.solve()
            optimal += best.status == "optimal"
            reached = line["least"] < best.objective - TOLERANCE * np.sum(s**2)
            beaten += best.status == "optimal" and reached
    print(f"{len(found)} noises, {3 * len(found)} descents, seed {seed}")
    print(f"networks below a bound: {below}; least margin {margin:.1e} of |s|^2")
    print(f"solved {solved}: {optimal} optimal, of which a descent beats {beaten}")


def main(command: str, name: str) -> None:
    path = Path(name)
    if not path.exists():
        path.write_text(
            json.dumps({"kind": command, "seed": secrets.randbits(32)}) + "\n"
        )
    first, *found = [json.loads(line) for line in path.read_text().splitlines()]
    kind, seed = first["kind"], first["seed"]
    if command == "report":
        (report_deep if kind == "deep" else report_noises)(seed, found)
        return
    run = deep_descents if kind == "deep" else noise_descents
    start = time.perf_counter()
    for number in range(len(found), COUNTS[kind]):
        line = run(seed, number)
        with path.open("a") as file:
            file.write(json.dumps(line) + "\n")
    print(f"done in {time.perf_counter() - start:.0f} s")


if __name__ == "__main__":
    main(*sys.argv[1:])
