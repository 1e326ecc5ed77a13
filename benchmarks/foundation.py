"""The closed forms against the papers' algorithms, enumeration and physical limits."""

from __future__ import annotations

import subprocess
import sys
from functools import partial
from itertools import combinations, pairwise, product

import numpy as np
from threadpoolctl import threadpool_limits

from benchmarks.harness import Table, exponent, seconds, verdict
from overt import equalize, penalty, spectral
from tests.helpers import paper_equalizer


def run() -> list[Table]:
    with threadpool_limits(1):
        return [import_cost(), equalizer(), deep_penalty(), ksupport_prox()]


def import_cost() -> Table:
    def start(code: str) -> None:
        subprocess.run([sys.executable, "-c", code], check=True)

    nothing, numpy, overt = seconds(
        partial(start, "pass"),
        partial(start, "import numpy"),
        partial(start, "import overt"),
    )
    ratio = (overt - nothing) / (numpy - nothing)
    table = Table("Import", ("what", "measured", "bar", "holds"))
    table.rows.append(
        ("`import overt` / `import numpy`", ratio, "<= 2.5", verdict(ratio <= 2.5))
    )
    return table


def equalizer() -> Table:
    rng = np.random.default_rng(0)
    U = rng.standard_normal((400, 400))
    ours, svd = seconds(lambda: equalize.equalizer(U), lambda: np.linalg.svd(U))
    (paper,) = seconds(lambda: paper_equalizer(U), repeat=1, warm_up=0)
    Q = equalize.equalizer(U)
    norms = np.linalg.norm(U @ Q, axis=0)
    spread, orthogonality = (
        np.ptp(norms) / norms.mean(),
        np.abs(Q.T @ Q - np.eye(400)).max(),
    )
    widths = (400, 800, 1600, 3200)
    rotations = [
        seconds(partial(equalize._equalizing_rotation, rng.random(r)), repeat=3)[0]
        for r in widths
    ]
    growth = exponent(widths, rotations)
    table = Table("Equalizer, r = 400", ("what", "measured", "bar", "holds"))
    table.rows += [
        (
            "faster than the paper's Algorithm 2",
            paper / ours,
            ">= 50",
            verdict(paper >= 50 * ours),
        ),
        ("cost in SVDs of the same matrix", ours / svd, "", ""),
        ("spread of the norms", spread, "<= 1e-10", verdict(spread <= 1e-10)),
        ("Q'Q - I", orthogonality, "<= 1e-12", verdict(orthogonality <= 1e-12)),
        ("growth beyond the SVD, exponent of r", growth, "2", verdict(growth <= 2.1)),
    ]
    return table


def deep_penalty() -> Table:
    rng = np.random.default_rng(0)
    widths = (10, 60, 60, 1)
    weights = [rng.standard_normal((b, a)) / np.sqrt(a) for a, b in pairwise(widths)]
    ours = seconds(lambda: penalty.deep(weights, 0.5))[0]
    pivots = seconds(lambda: enumerate_pivots(weights), repeat=1, warm_up=0)[0]
    error = abs(penalty.deep(weights, 0.5) / enumerate_pivots(weights) - 1)
    square = [rng.standard_normal((500, 500)) / np.sqrt(500) for _ in range(11)]
    ten, one = seconds(
        lambda: penalty.deep(square, 0.5), lambda: square[0] @ square[1], repeat=5
    )
    products = ten / one / 10
    table = Table("Deep penalty", ("what", "measured", "bar", "holds"))
    table.rows += [
        (
            "faster than enumerating pivots, widths (10, 60, 60, 1)",
            pivots / ours,
            ">= 1000",
            verdict(pivots >= 1000 * ours),
        ),
        (
            "relative difference from the enumeration",
            error,
            "<= 1e-12",
            verdict(error <= 1e-12),
        ),
        (
            "10 layers of width 500: matrix products per layer",
            products,
            "<= 30",
            verdict(products <= 30),
        ),
    ]
    return table


def enumerate_pivots(weights: list[np.ndarray]) -> float:
    """Sum Proposition 8 of the thesis term by term, as it is printed, for lam = 1 and C = I."""

    def chain(first: int, last: int) -> np.ndarray:
        result = weights[first]
        for W in weights[first + 1 : last]:
            result = W @ result
        return result

    k, total = len(weights) - 1, 0.0
    for order in range(1, k + 1):
        for layers in combinations(range(1, k + 1), order):
            for units in product(*(range(weights[j - 1].shape[0]) for j in layers)):
                head = chain(0, layers[0])[units[0]]
                tail = chain(layers[-1], k + 1)[:, units[-1]]
                term = np.sum(head**2) * np.sum(tail**2)
                for (i, j), (a, b) in zip(
                    pairwise(layers), pairwise(units), strict=True
                ):
                    term *= chain(i, j)[b, a] ** 2
                total += term
    return float(total)


def ksupport_prox() -> Table:
    s = np.random.default_rng(0).random(1_000_000)
    table = Table(
        "k-support norm, a million values",
        ("k", "prox / sort", "value / sort", "holds"),
    )
    for k in (1, 10, 1000):
        norm = spectral.KSupport(k)
        prox, value, sort = seconds(
            partial(norm.prox, s, 0.5), partial(norm.value, s), partial(np.sort, s)
        )
        table.rows.append((k, prox / sort, value / sort, verdict(prox <= 5 * sort)))
    table.notes.append("Bar: the proximal map costs at most 5 times the sort.")
    return table
