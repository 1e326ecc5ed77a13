"""Sections 4.2 and 4.5.1: matrix sensing and completion."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from itertools import combinations_with_replacement, product
from typing import Any

import numpy as np
from sklearn.base import clone

from overt import datasets, equalize, penalty, spectral
from overt._figures import COLORS, canvas
from overt._types import Floats
from overt.entries import Entries
from overt.papers import descent, oracles
from overt.papers.evidence import DESCENT, EXACT, MONTE_CARLO, relative, standard_errors
from overt.papers.figures import (
    Finding,
    Findings,
    Params,
    Row,
    Table,
    above,
    rows_with,
    values_of,
)
from overt.papers.records import Residuals, Rng, figure, item, statement


@statement("Section 4.2", "4.2", how="sampled")
def sensing_gaussian(scale: int, rng: Rng) -> Residuals:
    r"""Gaussian sensing.

    With Gaussian measurements the sensing penalty has the mean lam sum_i |u_i|^2 |v_i|^2, whose
    least value for a product is (lam/d) |UV'|_*^2.

    TeX: With Gaussian measurements the sensing penalty has the mean $\lambda \sum_i |u_i|^2
    |v_i|^2$, whose least value for a product is $(\lambda/d) |UV^\top |_*^2$.
    """
    U, V, prob, draws = (
        rng.normal(size=(3, 4)),
        rng.normal(size=(5, 4)),
        0.3,
        2000 * scale,
    )
    A = rng.normal(size=(draws, 3, 5))
    each = np.array([float(penalty.sensing(U, V, a[None], prob)) for a in A[:400]])
    stated = prob / (1 - prob) * float(np.sum(U**2, 0) @ np.sum(V**2, 0))
    flows = np.einsum("pi,npq,qi->ni", U, A, V, optimize=True)
    yield standard_errors(prob / (1 - prob) * np.sum(flows**2, axis=1), stated)
    yield standard_errors(each, stated)
    U, V = equalize.equalize_product(U @ V.T, 4)
    least = np.linalg.norm(U @ V.T, "nuc") ** 2 / 4
    yield relative(np.sum(U**2, 0) @ np.sum(V**2, 0), least) * 1e10
    return MONTE_CARLO, f"{draws} measurements, in s.e.; balanced factors exactly"


@statement("Proposition 4", "4.2", how="sampled")
def weighted_trace(scale: int, rng: Rng) -> Residuals:
    r"""The weighted trace norm.

    When entries (i, j) are observed with probability p_i q_j, the least completion penalty of a
    matrix M is (lam/d) |diag(sqrt p) M diag(sqrt q)|_*^2.

    Assumes: a width d of at least the rank of M, all p_i and q_j positive.

    TeX: When entries $(i, j)$ are observed with probability $p_i q_j$, the least completion
    penalty of a matrix $M$ is $(\lambda/d) |\operatorname{diag}(\sqrt{p}) M
    \operatorname{diag}(\sqrt{q})|_*^2$.
    \[\min_{UV^\top=M}R(U,V)=\frac{\lambda}{d}\,\left\|\mathrm{diag}(\sqrt
    p)\,M\,\mathrm{diag}(\sqrt q)\right\|_*^2\]
    """
    lam = 0.7
    for width in range(2, 4 + scale // 2):
        M = rng.normal(size=(2, 4))
        p, q = rng.dirichlet(np.full(2, 3.0)), rng.dirichlet(np.full(4, 3.0))
        U, V = equalize.equalize_weighted(M, p, q, width)
        reached = lam * float((p @ U**2) @ (q @ V**2))
        best = lam * descent.cheapest_factors(M, np.diag(p), np.diag(q), width, 3, rng)
        stated = lam / width * spectral.WeightedTrace(p, q).matrix_value(M)
        yield relative(U @ V.T, M)
        yield relative(reached, stated)
        yield relative(stated, best)
    return DESCENT, "overt's factors, and descent over all factors"


def _product_laws(rows: int, cols: int, n: int, rng: Rng) -> Iterator[Any]:
    """Yield the uniform law, and two as far from it as the theorem allows."""
    least = np.log(max(rows, cols)) / (n * np.sqrt(rows * cols))
    uniform = (np.full(rows, 1 / rows), np.full(cols, 1 / cols))
    yield uniform
    for _ in range(2):
        away = rng.dirichlet(np.ones(rows)), rng.dirichlet(np.ones(cols))
        for t in np.linspace(1, 0, 101):
            p, q = ((1 - t) * u + t * v for u, v in zip(uniform, away, strict=True))
            if p.min() * q.min() >= least:
                yield p, q
                break


def _needed_constant(p: Floats, q: Floats, n: int) -> float:
    """E|sum_j eps_j e_a e_b' / sqrt(p_a q_b)|_2 / sqrt(n d log d), all samples and signs."""
    P = np.outer(p, q).ravel()
    # Sampled places, signs included, in any order; how often each, and the chance of that.
    drawn = np.array(list(combinations_with_replacement(range(2 * len(P)), n)))
    counts = np.sum(drawn[:, :, None] == np.arange(2 * len(P)), axis=1)
    orders = math.factorial(n) / np.prod(
        np.cumprod([1, *range(1, n + 1)])[counts], axis=1
    )
    chance = orders * np.prod((np.r_[P, P] / 2) ** counts, axis=1)
    signed = (counts[:, : len(P)] - counts[:, len(P) :]) / np.sqrt(P)
    norms = np.linalg.norm(signed.reshape(-1, len(p), len(q)), 2, axis=(1, 2))
    d = max(len(p), len(q))
    return float(chance @ norms / np.sqrt(n * d * np.log(d)))


def _dual_norm(d: int, n: int, rng: Rng) -> float:
    """|diag(1/sqrt p) (sum_j eps_j e_a e_b') diag(1/sqrt q)|_2 for uniform p and q."""
    total = np.zeros((d, d))
    np.add.at(
        total,
        (rng.integers(0, d, n), rng.integers(0, d, n)),
        rng.choice([-1.0, 1.0], n),
    )
    return float(d * np.linalg.norm(total, 2))


@statement("Theorem 11", "4.2", how="enumerated", identity="constant")
def completion_bound(scale: int, rng: Rng) -> Residuals:
    r"""Completion generalizes.

    The ball {|diag(sqrt p) M diag(sqrt q)|_* <= sqrt(alpha)} has Rademacher complexity at most
    K sqrt(alpha d log d / n) with K = sqrt(2 L) + L/3, L = log(d0 + d2) / log d, d = max(d0,
    d2).

    Assumes: entries sampled from a product law with p q >= log(d) / (n sqrt(d2 d0)).

    Printed: The printed bound sets an unknown constant to 1; 2 x 2 with three uniform entries
    needs 1.558, over all samples and signs.

    TeX: The ball $\{|\operatorname{diag}(\sqrt{p}) M \operatorname{diag}(\sqrt{q})|_* \le
    \sqrt{\alpha}\}$ has Rademacher complexity at most $K \sqrt{\alpha d \log d / n}$ with $K =
    \sqrt{2 L} + L/3$, $L = \log(d_{0} + d_{2}) / \log d$, $d = \max(d_{0}, d_{2})$.
    """
    from overt.papers.thesis.completion_bound import (
        rademacher_constant,
    )  # which compiles

    printed = 0.0
    cases = [(2, 2, 3), (2, 2, 5), (1, 2, 4), (2, 3, 4), (3, 2, 3)]
    for rows, cols, n in cases:
        for p, q in _product_laws(rows, cols, n, rng):
            needed = _needed_constant(p, q, n)
            yield needed / rademacher_constant((rows, cols))
            printed = max(printed, needed)
    for d in (10, 20 * scale):
        n = int(np.ceil(2 * d * np.log(d))) + 1
        draws = np.array([_dual_norm(d, n, rng) for _ in range(200)])
        needed = float(draws.mean() - 5 * draws.std() / np.sqrt(len(draws))) / n
        needed /= np.sqrt(d * np.log(d) / n)
        yield needed / rademacher_constant((d, d))
    detail = f"all samples and signs of {len(cases)} sizes, 3 laws each: {printed:.3f} is needed"
    return 1.0, f"{detail}; {d} x {d} by sampling", printed


@statement("Proposition 3", "4.5.1", how="symbolic", identity="sensing")
def sensing_penalty(scale: int, rng: Rng) -> Residuals:
    r"""The sensing penalty.

    Dropping columns of the factors in matrix sensing adds lam sum_i mean_j (u_i'A_j v_i)^2 to
    the mean squared error.

    TeX: Dropping columns of the factors in matrix sensing adds $\lambda \sum_i
    \operatorname{mean}_j (u_i^\top A_j v_i)^2$ to the mean squared error.
    """
    U, V, _, _ = oracles.two_layers(rng, 3 + scale)
    A = rng.normal(size=(6, len(U), len(V)))
    prob = float(rng.uniform(0.1, 0.8))
    exact = oracles.sensing_added_loss(rng.normal(size=len(A)), U, V, A, prob)
    yield relative(penalty.sensing(U, V, A, prob), exact)
    return EXACT, "the error over all masks"


@statement("Proposition 3, entries", "4.5.1", how="symbolic", identity="sensing")
def completion_penalty(scale: int, rng: Rng) -> Residuals:
    r"""The completion penalty.

    In matrix completion dropout adds lam times the mean over observed entries (a, b) of sum_i
    U_ai^2 V_bi^2.

    TeX: In matrix completion dropout adds $\lambda$ times the mean over observed entries $(a,
    b)$ of $\sum_i U_{ai}^2 V_{bi}^2$.
    """
    U, V, _, _ = oracles.two_layers(rng, 3 + scale)
    rows, cols = rng.integers(len(U), size=9), rng.integers(len(V), size=9)
    A = np.zeros((9, len(U), len(V)))
    A[np.arange(9), rows, cols] = 1
    prob = float(rng.uniform(0.1, 0.8))
    exact = oracles.sensing_added_loss(rng.normal(size=len(A)), U, V, A, prob)
    yield relative(penalty.completion(U, V, rows, cols, prob), exact)
    return EXACT, "the error on observed entries over all masks"


REPORTED = {
    30: (0.8041, 0.7938, 0.7805, 0.7850, 0.7991, 0.8186),
    70: (0.8315, 0.7897, 0.7899, 0.7771, 0.7763, 0.7833),
    110: (0.8431, 0.7873, 0.7988, 0.7813, 0.7742, 0.7743),
    150: (0.8472, 0.7858, 0.8042, 0.7852, 0.7756, 0.7722),
    190: (0.8473, 0.7844, 0.8069, 0.7879, 0.7772, 0.7720),
}
"""Printed rows: plain SGD last, plain SGD best iterate, drop probability .1, .2, .3, .4."""


def load(name: str) -> Entries:
    """Return generated ratings, or MovieLens by size; where it is absent the error says so."""
    if name == "generated":
        return datasets.generate_ratings(300, 200, 8_000, rank=3, noise=0.5, seed=0)[0]
    return datasets.movielens(name)


def run_curves(params: Params, seed: int) -> dict[str, Any]:
    """Fit on nine tenths; return train and test RMSE after each sweep, with seconds."""
    from overt.completion import DropoutCompletion
    from overt.papers.thesis.completion_sgd import SGDCompletion

    ratings = load(params["data"])
    parts = dict(zip(("train", "test"), ratings.split(0.1, seed=0), strict=True))
    low, high = float(ratings.values.min()), float(ratings.values.max())
    curve: dict[str, list[float]] = {
        "times": [],
        "train": [],
        "test": [],
        "objective": [],
    }
    drop_prob = params["drop_prob"]
    train = parts["train"]
    spent, last = 0.0, time.perf_counter()

    def watch(center: float, means: Any) -> None:
        nonlocal spent, last
        spent += time.perf_counter() - last
        curve["times"].append(spent)
        for which, part in parts.items():
            predicted = np.clip(center + _dots(part, *means), low, high)
            curve[which].append(float(np.sqrt(np.mean((predicted - part.values) ** 2))))
        curve["objective"].append(
            objective(center, means, params["width"], train, drop_prob)
        )
        last = time.perf_counter()

    if params["method"] == "sgd":
        step = (params["learning_rate"], params["batch_size"])
        SGDCompletion(
            train, params["width"], drop_prob, *step, seed
        ).step()  # compilation
        sgd = SGDCompletion(train, params["width"], drop_prob, *step, seed)
        last = time.perf_counter()
        for _ in range(params["epochs"]):
            sgd.step()
            watch(sgd.center, sgd.means)
    else:
        model = DropoutCompletion(
            params["width"],
            drop_prob,
            max_sweeps=params["sweeps"],
            tol=0.0,
            seed=seed,
            n_jobs=1,
        )
        clone(model).set_params(max_sweeps=1).fit_entries(
            train
        )  # compilation is not timed
        last = time.perf_counter()
        model.fit_entries(
            train, on_step=lambda fit: watch(fit.problem.center, fit.means)
        )
    return {**curve, "entries": len(ratings), "tested": len(parts["test"])}


def objective(
    center: float, means: Any, n_factors: int, entries: Entries, drop_prob: float
) -> float:
    """Mean (y - u.v)^2 + lam sum_i U_ai^2 V_bi^2 over entries."""
    error = entries.values - center - _dots(entries, *means)
    squares = (w[:, :n_factors].astype(float) ** 2 for w in means)
    lam = drop_prob / (1 - drop_prob)
    return float(np.mean(error**2) + lam * np.mean(_dots(entries, *squares)))


def _dots(entries: Entries, U: Any, V: Any) -> Any:
    return np.einsum("ei,ei->e", U[entries.rows].astype(float), V[entries.cols])


def check_curves(rows: list[Row]) -> Findings:
    """More dropout fits less and generalizes with a smaller gap; exact solves get there first."""
    for method in ("sgd", "alternating"):
        chosen = sorted(
            rows_with(rows, method=method), key=lambda row: row["drop_prob"]
        )
        train = [row["train"][-1] for row in chosen]
        gap = [row["test"][-1] - row["train"][-1] for row in chosen]
        shown = ", ".join(
            f"{r['drop_prob']:g}: {g:.3f}" for r, g in zip(chosen, gap, strict=True)
        )
        yield Finding(
            f"{method}: more dropout, larger training error and smaller gap",
            train == sorted(train) and gap == sorted(gap, reverse=True),
            f"gap {shown}",
            "ordered by drop probability",
        )
    for drop_prob in values_of(rows, "drop_prob"):
        if drop_prob == 0:
            continue
        exact, sgd = (
            rows_with(rows, method=m, drop_prob=drop_prob)[0]
            for m in ("alternating", "sgd")
        )
        ratio, never = time_ratio(exact, sgd), np.isinf(sgd_time(exact, sgd))
        yield Finding(
            f"drop probability {drop_prob:g}: exact solves come within 1% of "
            "their final objective before SGD does",
            ratio > 1 or (never and "inconclusive"),
            f"SGD takes {'more than ' if never else ''}{ratio:.0f} times as long",
        )


def sgd_time(exact: Row, run: Row) -> float:
    """Return when a run first comes within 1% of the exact solver's last objective."""
    bar = 1.01 * exact["objective"][-1]
    reached = (
        t for t, f in zip(run["times"], run["objective"], strict=True) if f <= bar
    )
    return next(reached, float("inf"))


def time_ratio(exact: Row, sgd: Row) -> float:
    """Return SGD's time over the exact solver's; a lower bound where SGD never arrived."""
    return min(sgd_time(exact, sgd), sgd["times"][-1]) / sgd_time(exact, exact)


def plot_curves(rows: list[Row]) -> Any:
    """Plot train error, test error and gap against seconds."""
    from matplotlib.ticker import NullFormatter

    figure, axes = canvas(12, 4, 1, 3)
    probs = values_of(rows, "drop_prob")
    for row in rows:
        color = COLORS[probs.index(row["drop_prob"])]
        style = "-" if row["method"] == "alternating" else ":"
        train, test = np.array(row["train"]), np.array(row["test"])
        label = f"{row['method']}, drop {row['drop_prob']:g}"
        for panel, values in zip(axes, (train, test, test - train), strict=True):
            panel.plot(row["times"], values, style, color=color, label=label)
    for panel, title in zip(axes, ("training RMSE", "test RMSE", "gap"), strict=True):
        panel.set(title=title, xscale="log", xlabel="seconds")
        panel.xaxis.set_minor_formatter(NullFormatter())
    axes[0].legend()
    return figure


def run_table(params: Params, seed: int) -> dict[str, Any]:
    """Fit one cell; keep the last and the best test error."""
    curve = run_curves(params, seed)
    last = {name: curve[name][-1] for name in ("train", "objective")}
    return {
        "last": curve["test"][-1],
        "best": min(curve["test"]),
        **last,
        "fit_seconds": curve["times"][-1],
        "entries": curve["entries"],
        "tested": curve["tested"],
    }


def check_table(rows: list[Row]) -> Findings:
    """Compare plain SGD with dropout, and SGD with alternating minimization."""
    for data in values_of(rows, "data"):
        yield from _check_data(rows_with(rows, data=data), data)


def _check_data(rows: list[Row], data: str) -> Findings:
    widths = values_of(rows, "width")
    wide = widths[-1]
    cell = {(row["method"], row["width"], row["drop_prob"]): row for row in rows}
    probs = sorted({row["drop_prob"] for row in rows} - {0.0})
    for method in sorted({row["method"] for row in rows}, reverse=True):
        plain = cell[method, wide, 0.0]
        dropped = [cell[method, wide, p]["last"] for p in probs]
        gain = plain["last"] - min(dropped)
        # A root mean square of n errors is known to about 1 in sqrt(2 n), and here are two.
        half = 2 * plain["last"] / np.sqrt(plain["tested"])
        yield Finding(
            f"{data}, {method}: at the largest width, {wide}, dropout beats plain training",
            above((gain - half, gain + half), 0),
            f"plain {plain['last']:.4f}, best with dropout {min(dropped):.4f} at drop "
            f"probability {probs[int(np.argmin(dropped))]:g} (+- {half:.4f})",
            f"{REPORTED[wide][0]} and {min(REPORTED[wide][2:])} (10M)"
            if wide in REPORTED
            else "",
        )
    for width in widths:
        plain = cell["sgd", width, 0.0]
        dropped = min(cell["sgd", width, p]["last"] for p in probs)
        half = 2 * plain["best"] / np.sqrt(plain["tested"])
        gain = plain["best"] - dropped
        yield Finding(
            f"{data}, width {width}: dropout beats SGD's best iterate by more than .01",
            above((gain - half, gain + half), 0.01),
            f"best iterate {plain['best']:.4f}, dropout {dropped:.4f} (+- {half:.4f})",
            "by more than .01 (10M)",
        )
    grows = [cell["sgd", w, 0.0]["last"] for w in widths]
    half = 2 * grows[0] / np.sqrt(cell["sgd", wide, 0.0]["tested"])
    yield Finding(
        f"{data}: plain SGD is worse at the largest width than at the smallest",
        above((grows[-1] - grows[0] - half, grows[-1] - grows[0] + half), 0),
        ", ".join(f"{w}: {v:.4f}" for w, v in zip(widths, grows, strict=True)),
        "30: .8041, 190: .8473 (10M)",
    )
    if ("alternating", wide, probs[0]) not in cell:
        return
    gaps = [
        cell["alternating", *key]["objective"] / cell["sgd", *key]["objective"]
        for key in product(widths, probs)
    ]
    yield Finding(
        f"{data}: alternating minimization's objective is never above SGD's",
        max(gaps) <= 1 + 1e-6,
        f"largest ratio {max(gaps):.4f} over {len(gaps)} cells",
    )


def rmse_table(rows: list[Row]) -> Table:
    """Return test errors of SGD as the thesis's table, the printed ones (10M) in brackets."""
    probs = sorted({row["drop_prob"] for row in rows} - {0.0})
    printed_at = {0.1: 2, 0.2: 3, 0.3: 4, 0.4: 5}
    lines = []
    for data in values_of(rows, "data"):
        chosen = rows_with(rows, data=data, method="sgd")
        for width in values_of(chosen, "width"):
            (plain,) = rows_with(chosen, width=width, drop_prob=0.0)
            cells = [(plain["last"], 0), (plain["best"], 1)]
            for prob in probs:
                (row,) = rows_with(chosen, width=width, drop_prob=prob)
                cells.append((row["last"], printed_at.get(prob, -1)))
            lines.append(
                [data, width, *(_beside_print(*cell, width) for cell in cells)]
            )
    header = (
        "data",
        "width",
        "plain SGD, last",
        "plain SGD, best",
        *(f"drop {p:g}" for p in probs),
    )
    return header, lines


def _beside_print(measured: float, column: int, width: int) -> str:
    known = width in REPORTED and column >= 0
    return f"{measured:.4f}" + (f" ({REPORTED[width][column]:.4f})" if known else "")


def plot_table(rows: list[Row]) -> Any:
    """Plot test error against width, one line per drop probability, a row for each data set."""
    names, methods = values_of(rows, "data"), values_of(rows, "method")
    size = (4.6 * len(methods), 3.6 * len(names), len(names), len(methods))
    figure, axes = canvas(*size, sharey="row", squeeze=False)
    for (i, data), (j, method) in product(enumerate(names), enumerate(methods)):
        chosen = rows_with(rows, data=data, method=method)
        for drop_prob in values_of(chosen, "drop_prob"):
            part = rows_with(chosen, drop_prob=drop_prob)
            line = sorted((row["width"], row["last"]) for row in part)
            axes[i, j].plot(
                *zip(*line, strict=True), marker="o", label=f"drop {drop_prob:g}"
            )
        axes[i, j].set(title=f"{data}, {method}", xlabel="width", ylabel="test RMSE")
    axes[0, -1].legend()
    return figure


figure(
    "thesis-fig4-1",
    "Figure 4-1",
    "4.6",
    """Error during completion with dropout.

    A larger drop probability fits less and generalizes with a smaller gap.
    """,
    run=run_curves,
    check=check_curves,
    plot=plot_curves,
    hours={"reduced": 0.04},
    sizes={
        "toy": {
            "data": "generated",
            "method": ["sgd", "alternating"],
            "drop_prob": [0.0, 0.2, 0.4],
            "width": 15,
            "epochs": 25,
            "sweeps": 15,
            "learning_rate": 1.0,
            "batch_size": 100,
        },
        "reduced": {
            "data": "100k",
            "method": ["sgd", "alternating"],
            "drop_prob": [0.0, 0.2, 0.4],
            "width": 70,
            "epochs": 60,
            "sweeps": 30,
            "learning_rate": 1.0,
            "batch_size": 100,
        },
        "paper": {
            "data": "10m",
            "method": ["sgd", "alternating"],
            "drop_prob": [0.0, 0.1, 0.2, 0.3, 0.4],
            "width": 70,
            "epochs": 100,
            "sweeps": 100,
            "learning_rate": 1.0,
            "batch_size": 2000,
        },
    },
    differs={
        "toy": "generated ratings, which no printed number is about",
        "reduced": "MovieLens 100K and 1M for 10M, smaller batches and fewer epochs, one run",
        "paper": "one run in place of 50; the split is not printed: a random tenth",
    },
)

figure(
    "thesis-table4-1",
    "Table 4-I",
    "4.6",
    """Completion with dropout by width and drop probability.

    Plain SGD overfits as the width grows, and dropout beats its best iterate by more than .01.
    """,
    run=run_table,
    check=check_table,
    plot=plot_table,
    hours={"reduced": 0.5},
    table=rmse_table,
    sizes={
        "toy": {
            "data": "generated",
            "method": ["sgd", "alternating"],
            "width": [5, 20],
            "drop_prob": [0.0, 0.1, 0.4],
            "epochs": 25,
            "sweeps": 15,
            "learning_rate": 1.0,
            "batch_size": 100,
        },
        "reduced": {
            "data": ["100k", "1m"],
            "method": "sgd",
            "width": [30, 110, 190],
            "drop_prob": [0.0, 0.2, 0.4],
            "epochs": 40,
            "sweeps": 30,
            "learning_rate": 1.0,
            "batch_size": 400,
        },
        "paper": {
            "data": "10m",
            "method": ["sgd", "alternating"],
            "width": [30, 70, 110, 150, 190],
            "drop_prob": [0.0, 0.1, 0.2, 0.3, 0.4],
            "epochs": 100,
            "sweeps": 30,
            "learning_rate": 1.0,
            "batch_size": 2000,
        },
    },
    differs={
        "toy": "generated ratings, which no printed number is about",
        "reduced": "MovieLens 100K and 1M for 10M, smaller batches and fewer epochs, one run",
        "paper": "one run in place of 50; the split is not printed: a random tenth",
    },
)

item(
    "Section 4.2, optimistic bounds",
    "4.2",
    "Optimistic bounds, promised in the appendix",
    how="not checked",
    printed="they are not in the thesis",
    open="nothing to check",
)
