"""No status is contradicted: problems of every kind, and restarts of descent that try to do better.

`OVERT_PROBLEMS=2000 OVERT_SEED=7 python -m pytest tests/linear/test_contradictions.py` tries many
others; each problem is made from seed and number alone, so that one can be looked at by itself.
"""

import os
import warnings

import numpy as np
import pytest
from scipy.optimize import minimize

import overt

PROBLEMS = int(os.environ.get("OVERT_PROBLEMS", "24"))
SEED = int(os.environ.get("OVERT_SEED", "24"))
RESTARTS = 20 if PROBLEMS > 100 else 4
KINDS = (
    "dropout",
    "per unit",
    "keep exactly",
    "exchangeable",
    "grid",
    "sliding",
    "any",
    "dropconnect",
    "tied",
    "deep",
    "tied any",
)


def drop_prob(rng):
    """Usual, tiny, huge or no probability."""
    kind = rng.integers(6)
    if kind == 0:
        return float(10 ** -rng.uniform(3, 13))
    if kind == 1:
        return float(1 - 10 ** -rng.uniform(1, 7))
    return 0.0 if kind == 2 and rng.random() < 0.3 else float(rng.uniform(0.05, 0.9))


def target(rng, m, n):
    """Random, of low rank, with repeated values, or with values of very different sizes."""
    kind, k = rng.integers(6), min(m, n)
    if kind == 0:
        return np.eye(m, n)[rng.permutation(m)] * rng.choice([-1.0, 1.0], n)
    left, right = (np.linalg.qr(rng.standard_normal((size, k)))[0] for size in (m, n))
    values = {
        1: np.ones(k),
        2: np.sort(rng.integers(0, 3, k))[::-1].astype(float),
        3: np.geomspace(1, 10 ** -rng.uniform(0, 9), k),
        4: np.r_[np.ones(1), np.zeros(k - 1)],
    }.get(int(kind))
    return rng.standard_normal((m, n)) if values is None else left * values @ right.T


def covariance(rng, d):
    """Any covariance of multipliers: of full or low rank, weak or strong, some units noise-free."""
    kind, rank = rng.integers(4), int(rng.integers(1, d + 1))
    B = rng.standard_normal((d, rank if kind else d))
    if kind == 1:
        B[rng.random(d) < 0.3] = 0.0
    K = B @ B.T / d
    if kind == 2:
        K = 0.8 ** np.abs(np.subtract.outer(range(d), range(d)))
    return K * 10 ** (rng.uniform(-9, 6) if rng.random() < 0.4 else rng.uniform(-1, 1))


def noise_of(rng, kind, d):
    """A noise of this kind at width d."""
    if kind == "per unit":
        some = [0.0, 0.5, drop_prob(rng), drop_prob(rng)]
        return overt.Dropout(
            rng.choice(some, d) if rng.random() < 0.7 else rng.uniform(0, 0.9, d)
        )
    if kind == "keep exactly":
        return overt.KeepExactly(int(rng.integers(1, d + 1)))
    if kind == "exchangeable":
        delta = 10 ** rng.uniform(-6, 3)
        gamma = (
            rng.uniform(-delta / d, 1)
            if rng.random() < 0.5
            else 10 ** rng.uniform(-6, 3)
        )
        mean = rng.choice([-1, 1]) * rng.uniform(0.3, 3)
        return overt.CovarianceNoise(
            np.full(d, mean), mean**2 * (delta * np.eye(d) + gamma)
        )
    if kind in ("grid", "sliding"):
        sizes = [b for b in range(1, d + 1) if kind == "sliding" or d % b == 0]
        return overt.DropBlock(drop_prob(rng), int(rng.choice(sizes)), kind)
    if kind in ("any", "tied any"):
        return overt.CovarianceNoise(
            rng.uniform(0.5, 2, d) * rng.choice([-1, 1], d), covariance(rng, d)
        )
    return (
        overt.DropConnect(drop_prob(rng))
        if kind == "dropconnect"
        else overt.Dropout(drop_prob(rng))
    )


def problem(number):
    """Return the kind and the network of this number."""
    rng = np.random.default_rng([SEED, number])
    kind = KINDS[number % len(KINDS)]
    m, n, d = (int(x) for x in rng.integers(1, 8, 3))
    m = n if kind.startswith("tied") else m
    scale = 10 ** (rng.uniform(-60, 60) if rng.random() < 0.2 else rng.uniform(-3, 3))
    M, given = scale * target(rng, m, n), {}
    inputs = rng.integers(3)
    spread = np.geomspace(1, 10 ** -rng.uniform(0, 5 if inputs == 2 else 3), n)
    units = 10 ** rng.uniform(-4, 4, n)
    if inputs == 0:
        given = {"target": M}
    elif inputs == 1:
        A = rng.standard_normal((n, n if rng.random() < 0.8 else max(1, n - 1)))
        given = {
            "target": M / units,
            "second_moment": (A @ A.T) * np.outer(units, units),
        }
        if rng.random() < 0.2:
            given["second_moment"] = np.diag(units**2)
    else:
        samples = int(rng.integers(1, 15))
        X = (
            rng.standard_normal((samples, n))
            * spread
            @ rng.standard_normal((n, n))
            * units
        )
        Y = (X / units) @ M.T + scale * rng.choice([0, 0.3]) * rng.standard_normal(
            (samples, m)
        )
        given = {"X": X, "Y": Y}
    if kind == "deep":
        widths = tuple(int(x) for x in rng.integers(1, 6, rng.integers(1, 4)))
        probs = [
            drop_prob(rng) if rng.random() < 0.3 else rng.uniform(0, 0.8)
            for _ in widths
        ]
        return kind, overt.DeepLinearNetwork(widths=widths, drop_prob=probs, **given)
    noise = noise_of(rng, kind, d)
    if kind.startswith("tied"):
        given.pop("Y", None)
        return kind, overt.TiedAutoencoder(width=d, noise=noise, **given)
    return kind, overt.LinearNetwork(width=d, noise=noise, **given)


def descents(net, best, count, rng):
    """Yield weights that descent reaches: from the solution, and from random ones of many sizes."""
    effect, task = net.effect, net.effect.regression
    tied, first = len(effect.shapes) == 1, effect.shapes[0]
    deep = hasattr(net, "widths")
    rank = task.T.shape[1]
    shapes = [(first[0], rank) if deep else first, *effect.shapes[1:]]
    if len(shapes) == 2 and not deep:
        shapes[1] = (rank, shapes[1][1])
    size = max(float(np.linalg.norm(task.T)), 1e-300) ** (1 / max(len(shapes), 2))

    def back(W):
        """Weights from whitened ones: in P = L'V descent does not see the inputs' conditioning."""
        if tied:
            return W
        if deep:
            return [task.unwhiten(W[0].T).T, *W[1:]]
        return [W[0], task.unwhiten(W[1])]

    cuts = np.cumsum([int(np.prod(s)) for s in shapes])[:-1]

    def unpack(theta):
        parts = np.split(theta * size, cuts)
        return [part.reshape(s) for part, s in zip(parts, shapes, strict=True)]

    def value(theta):
        found, gradients = effect.value(*back(unpack(theta)))
        if not tied:
            first_or_last = 0 if deep else 1
            gradients = list(gradients)
            G = gradients[first_or_last]
            pulled = (
                task.L_inverse @ (G.T if deep else G)
                if task.L_inverse is not None
                else None
            )
            if pulled is not None:
                gradients[first_or_last] = pulled.T if deep else pulled
        flat = np.concatenate([np.ravel(G) for G in gradients]) * size
        return found / task.scale, flat / task.scale

    solution = [best.U] if tied else list(best.weights) if deep else [best.U, best.V]
    if not tied:
        which = 0 if deep else 1
        W = solution[which]
        solution[which] = task.whiten(W.T).T if deep else task.whiten(W)
    for trial in range(count):
        if trial == 0:
            start = np.concatenate([np.ravel(W) for W in solution]) / size
            start = start + 0.03 * np.sqrt(np.mean(start**2)) * rng.standard_normal(
                start.shape
            )
        else:
            start = 10 ** rng.uniform(-1.5, 0.5) * rng.standard_normal(
                sum(np.prod(s) for s in shapes)
            )
        with np.errstate(all="ignore"):
            found = minimize(
                value,
                start,
                jac=True,
                method="L-BFGS-B",
                options={"maxiter": 400, "ftol": 1e-15, "gtol": 1e-13, "maxcor": 20},
            ).x
        yield back(unpack(found))


def cancelling(net, weights):
    """The penalty with absolute values for terms: descent finds what their rounding leaves."""
    if hasattr(net, "widths") or net.noise.masks == "weights":
        return 0.0
    U, H = weights[0], net.effect.regression.hidden(weights[-1])
    sizes = np.sqrt(np.sum(U**2, axis=0) * np.sum(H**2, axis=0))
    return float(sizes @ np.abs(net.noise.characteristic(net.width)) @ sizes)


def contradiction(number):
    """Return what is wrong with the answer to a problem, None if nothing is."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        kind, net = problem(number)
        if not net.effect.regression.scale > 0:
            return None
        best = net.solve()
    bound, reached = best.certificate.lower_bound, best.objective
    floor = 1e-14 * net.effect.regression.scale  # what rounding leaves of a perfect fit
    name = f"{number} {kind} {best.status}"
    if (
        kind in ("dropout", "per unit", "keep exactly", "exchangeable")
        and best.status != "optimal"
    ):
        return f"{name}: gap {best.certificate.relative_gap:.2g} where theory closes it"
    if not (np.isfinite(reached) and bound <= reached):
        return f"{name}: bound {bound!r} above objective {reached!r}"
    for weights in descents(net, best, RESTARTS, np.random.default_rng(number)):
        try:
            lower = (
                net.objective(weights) if kind == "deep" else net.objective(*weights)
            )
        except overt.InputError:  # the descent left the range of floating point
            continue
        rounding = floor + 1e-15 * cancelling(net, weights)
        if lower < bound * (1 - 1e-12) - rounding:
            return f"{name}: {lower!r} is below the bound {bound!r}"
        if lower < reached * (1 - 1e-8) - rounding:
            if best.status == "optimal":
                return f"{name}: {lower!r} is below the optimum {reached!r}"
            if lower < reached * (1 - 1e-6) - floor:
                return f"{name} better: {lower!r} is below the solution {reached!r}"
    return None


@pytest.mark.parametrize("number", range(PROBLEMS))
def test_no_status_is_contradicted(number):
    found = contradiction(number)
    assert found is None or " better: " in found, found
