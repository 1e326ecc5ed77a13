"""Sections 4.2 and 4.5.1: matrix sensing and completion."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Iterator
from itertools import combinations_with_replacement, product
from typing import Any

import numpy as np

from overt import datasets, equalize, penalty, spectral
from overt.entries import Entries
from overt.noise import Dropout
from overt.papers import descent, oracles
from overt.papers.evidence import DESCENT, EXACT, relative
from overt.papers.figures import (
    Finding,
    Findings,
    Params,
    Row,
    Rows,
    Table,
    above,
    plot_curves,
    rows_with,
    values_of,
)
from overt.papers.records import Residuals, Rng, figure, read_table, statement


@statement("Section 4.2", "4.2", how="enumerated")
def sensing_gaussian(rng: Rng) -> Residuals:
    r"""Gaussian sensing.

    With Gaussian measurements, or any of the same second moments, the sensing penalty has the mean
    lam sum_i |u_i|^2 |v_i|^2, whose least value for a product is (lam/d) |UV'|_*^2.

    TeX: With Gaussian measurements, or any of the same second moments, the sensing penalty has
    the mean $\lambda \sum_i |u_i|^2 |v_i|^2$, whose least value for a product is $(\lambda/d)
    |UV^\top |_*^2$.
    """
    U = rng.standard_normal((3, 4))
    V = rng.standard_normal((5, 4))
    drop = Dropout(0.3)
    # All matrices with a single entry have the second moments of a Gaussian one.
    A = np.eye(15).reshape(15, 3, 5)
    A *= np.sqrt(15)
    norms = np.sum(U**2, axis=0)
    others = np.sum(V**2, axis=0)
    stated = norms @ others
    found = penalty.sensing(U, V, A, 0.3)
    yield relative(found, drop.strength * stated)
    A = U @ V.T
    U, V = equalize.equalize_product(A, 4)
    nuclear = np.linalg.norm(A, "nuc")
    least = nuclear**2 / 4
    norms = np.sum(U**2, axis=0)
    others = np.sum(V**2, axis=0)
    stated = norms @ others
    yield relative(stated, least)
    return EXACT, "all matrices with a single entry; balanced factors"


@statement("Proposition 4", "4.2")
def weighted_trace(rng: Rng) -> Residuals:
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
    for width in (2, 3):
        M = rng.standard_normal((2, 4))
        p = rng.dirichlet(np.full(2, 3.0))
        q = rng.dirichlet(np.full(4, 3.0))
        left = np.sqrt(p)[:, None]
        right = np.sqrt(q)[:, None]
        weighed = left * M * right.T
        U, V = equalize.equalize_product(weighed, width)
        U /= left
        V /= right
        yield relative(U @ V.T, M)
        stated = spectral.SquaredNuclear().matrix_value(weighed) / width
        left_norms = p @ U**2
        reached = left_norms @ (q @ V**2)
        yield relative(reached, stated)
        P = np.diag(p)
        Q = np.diag(q)
        best = descent.cheapest_factors(M, P, Q, width, 3, rng)
        yield relative(stated, best)
    return DESCENT, "overt's factors, and descent over all factors"


def _product_laws(rows: int, cols: int, n: int, rng: Rng) -> Iterator[Any]:
    """Yield the uniform law, and another one that the theorem allows."""
    least = np.log(max(rows, cols))
    least /= n * np.sqrt(rows * cols)
    p = np.full(rows, 1 / rows)
    q = np.full(cols, 1 / cols)
    yield p, q
    p_move = rng.dirichlet(np.ones(rows)) - p
    q_move = rng.dirichlet(np.ones(cols)) - q
    for t in np.linspace(1, 0, 101):
        far_p = p + t * p_move
        far_q = q + t * q_move
        if far_p.min() * far_q.min() >= least:
            yield far_p, far_q
            return


def _needed_constant(p: Any, q: Any, n: int) -> float:
    """E|sum_j eps_j e_a e_b' / sqrt(p_a q_b)|_2 / sqrt(n d log d), all samples and signs."""
    shape = (len(p), len(q))
    places = list(product(np.ndindex(*shape), (-1, 1)))
    total = 0.0
    for drawn in combinations_with_replacement(places, n):
        S = np.zeros(shape)
        chance = float(math.factorial(n))
        for (a, b), sign in drawn:
            law = p[a] * q[b]
            S[a, b] += sign / math.sqrt(law)
            chance *= law / 2
        for count in Counter(drawn).values():
            chance /= math.factorial(count)
        norm = np.linalg.norm(S, 2)
        total += chance * float(norm)
    d = max(shape)
    size = n * d * math.log(d)
    total /= math.sqrt(size)
    return total


def rademacher_constant(shape: tuple[int, int]) -> float:
    """K = sqrt(2 L) + L / 3 with L = log(d0 + d2) / log(max(d0, d2)): 2.7 for 2 x 2, at least 1.7.

    The complexity of {|diag(sqrt p) M diag(sqrt q)|_* <= sqrt(alpha)} is sqrt(alpha) / n times
    E|sum_j eps_j e_a e_b' / sqrt(p_a q_b)|_2. Its terms are independent with mean 0, norms of at
    most sqrt(n d / log d) where p q >= log(d) / (n sqrt(d0 d2)), and variances that sum to
    n d, d = max(d0, d2): Bernstein's inequality for matrices (Tropp 2015, Theorem 6.1.1) gives
    sqrt(2 n d log(d0 + d2)) + sqrt(n d / log d) log(d0 + d2) / 3. No smaller K than 1.558 can hold
    for every size: 2 x 2, three entries, uniform, over all samples and signs.
    """
    d = max(*shape, 2)
    inside = max(sum(shape), 3)
    L = math.log(inside) / math.log(d)
    return math.sqrt(2 * L) + L / 3


@statement("Theorem 11", "4.2", how="enumerated")
def completion_bound(rng: Rng) -> Residuals:
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
    printed = 0.0
    cases = [(2, 2, 3), (2, 2, 4), (1, 2, 4), (2, 3, 3)]
    for rows, cols, n in cases:
        for p, q in _product_laws(rows, cols, n, rng):
            needed = _needed_constant(p, q, n)
            yield needed / rademacher_constant((rows, cols))
            printed = max(printed, needed)
    detail = f"all samples and signs of {len(cases)} sizes, 2 laws each: {printed:.3f} is needed"
    return 1.0, detail, printed


@statement("Proposition 3", "4.5.1", identity="sensing")
def sensing_penalty(rng: Rng) -> Residuals:
    r"""The sensing penalty.

    Dropping columns of the factors in matrix sensing adds lam sum_i mean_j (u_i'A_j v_i)^2 to
    the mean squared error; in completion A_j has a single one, at an observed entry.

    TeX: Dropping columns of the factors in matrix sensing adds $\lambda \sum_i
    \operatorname{mean}_j (u_i^\top A_j v_i)^2$ to the mean squared error; in completion $A_j$ has a
    single one, at an observed entry.
    """
    U, V, _, _ = oracles.two_layers(rng, 4)
    m = len(U)
    n = len(V)
    A = rng.standard_normal((6, m, n))
    y = rng.standard_normal(6)
    exact = oracles.sensing_added_loss(y, U, V, A, 0.3)
    stated = penalty.sensing(U, V, A, 0.3)
    yield relative(stated, exact)
    rows = rng.integers(m, size=6)
    cols = rng.integers(n, size=6)
    A = np.zeros((6, m, n))
    A[np.arange(6), rows, cols] = 1
    exact = oracles.sensing_added_loss(y, U, V, A, 0.3)
    stated = penalty.completion(U, V, rows, cols, 0.3)
    yield relative(stated, exact)
    # Sensing is a convolution (section 4.4): rows, stacked, are vec of the transpose.
    stacked = np.kron(np.eye(m), V.T)
    network = U.ravel() @ stacked @ A[0].ravel()
    products = U @ V.T * A[0]
    measured = products.sum()
    yield abs(network - measured)
    return EXACT, "the error over all masks, of random measurements and of entries"


REPORTED = read_table("thesis", "printed")["table4-1"]

COLUMNS = ("last", "best", 0.1, 0.2, 0.3, 0.4)
"""What the printed rows by width hold: plain SGD's last and best iterate, and dropout."""


def load(name: str) -> Entries:
    """Return generated ratings, or MovieLens by size; where it is absent the error says so."""
    if name == "generated":
        return datasets.generate_ratings(300, 200, 8_000, rank=3, noise=0.5, seed=0)[0]
    return datasets.movielens(name)


ERRORS = ("train", "test", "objective")
"""What is measured after each pass over the entries."""


def run_curves(params: Params, seed: int) -> dict[str, Any]:
    """Fit on nine tenths; return train and test RMSE after each sweep, with seconds."""
    from overt.completion import DropoutCompletion
    from overt.papers.thesis.completion_sgd import descend

    ratings = load(params["data"])
    train, test = ratings.split(0.1, seed=0)
    low = ratings.values.min()
    high = ratings.values.max()
    width = params["width"]
    drop_prob = params["drop_prob"]
    curve: dict[str, list[float]] = {name: [] for name in ("times", *ERRORS)}
    start = time.perf_counter()

    def watch(center: float, means: Any) -> None:
        curve["times"].append(time.perf_counter() - start)
        for name, part in (("train", train), ("test", test)):
            error = np.clip(center + _dots(part, *means), low, high) - part.values
            curve[name].append(float(np.sqrt(np.mean(error**2))))
        error = center + _dots(train, *means) - train.values
        penalized = _dots(train, *(w[:, :width] ** 2 for w in means))
        lam = drop_prob / (1 - drop_prob)
        curve["objective"].append(float(np.mean(error**2 + lam * penalized)))

    if params["method"] == "sgd":
        steps = (params["learning_rate"], params["batch_size"], params["epochs"])
        for center, means in descend(train, width, drop_prob, *steps, seed):
            watch(center, means)
    else:
        sweeps = params["sweeps"]
        model = DropoutCompletion(
            width, drop_prob, max_sweeps=sweeps, tol=0.0, seed=seed, n_jobs=1
        )
        model.fit_entries(
            train, on_step=lambda fit: watch(fit.problem.center, fit.means)
        )
    return {**curve, "entries": len(ratings), "tested": len(test)}


def _dots(entries: Entries, U: Any, V: Any) -> Any:
    return np.einsum("ei,ei->e", U[entries.rows].astype(float), V[entries.cols])


def check_curves(rows: Rows) -> Findings:
    """More dropout fits less and generalizes with a smaller gap; exact solves get there first."""
    for method in values_of(rows, "method"):
        chosen = rows_with(rows, method=method)
        train = [row["train"][-1] for row in chosen]
        test = [row["test"][-1] for row in chosen]
        gap = np.subtract(test, train).tolist()
        rises = train == sorted(train)
        shrinks = gap == sorted(gap, reverse=True)
        yield Finding(
            f"{method}: more dropout, larger training error and smaller gap",
            rises and shrinks,
            "gap " + ", ".join(f"{value:.3f}" for value in gap),
            "ordered by drop probability",
        )


def plot_errors(rows: Rows) -> Any:
    """Plot train error, test error and gap against passes over the entries."""
    panels: dict[str, Any] = {"training RMSE": [], "test RMSE": [], "gap": []}
    training, testing, gap = panels.values()
    for row in rows:
        train = np.array(row["train"])
        test = np.array(row["test"])
        label = f"{row['method']}, drop {row['drop_prob']:g}"
        passes = np.arange(1, len(train) + 1)
        training.append((label, passes, train))
        testing.append((label, passes, test))
        gap.append((label, passes, test - train))
    return plot_curves(panels, xlabel="passes")


def run_table(params: Params, seed: int) -> dict[str, Any]:
    """Fit one cell; keep the last and the best test error."""
    curve = run_curves(params, seed)
    return {
        "last": curve["test"][-1],
        "best": min(curve["test"]),
        "train": curve["train"][-1],
        "tested": curve["tested"],
    }


def _beats(row: Row, worse: float, better: float, limit: float = 0.0) -> str:
    """Return whether a test error is by more than the limit below another.

    A root mean square of n errors is known to about 1 in sqrt(2 n), and here are two.
    """
    half = 2 * worse / np.sqrt(row["tested"])
    gain = worse - better
    return above((gain - half, gain + half), limit)


def check_table(rows: Rows) -> Findings:
    """Compare plain training with dropout, by data and method."""
    for data in values_of(rows, "data"):
        for method in values_of(rows, "method"):
            chosen = rows_with(rows, data=data, method=method)
            if chosen:
                yield from _check_method(chosen, f"{data}, {method}")


def _check_method(rows: Rows, label: str) -> Findings:
    widths = values_of(rows, "width")
    plain = rows_with(rows, drop_prob=0.0)
    dropped: dict[int, float] = {}
    for row in rows:
        if row["drop_prob"]:
            best = dropped.get(row["width"], np.inf)
            best = min(best, row["last"])
            dropped[row["width"]] = best
    narrow = plain[0]
    wide = plain[-1]
    most = widths[-1]
    yield Finding(
        f"{label}: at the largest width, {most}, dropout beats plain training",
        _beats(wide, wide["last"], dropped[most]),
        f"plain {wide['last']:.4f}, best with dropout {dropped[most]:.4f}",
        ".8473 and .7720 at width 190 (10M)",
    )
    for row in plain:
        best = row["best"]
        width = row["width"]
        yield Finding(
            f"{label}, width {width}: dropout beats the best iterate by more than .01",
            _beats(row, best, dropped[width], 0.01),
            f"best iterate {best:.4f}, dropout {dropped[width]:.4f}",
            "by more than .01 (10M)",
        )
    yield Finding(
        f"{label}: plain training is worse at the largest width than at the smallest",
        _beats(wide, wide["last"], narrow["last"]),
        ", ".join(f"{row['width']}: {row['last']:.4f}" for row in plain),
        "30: .8041, 190: .8473 (10M)",
    )


def rmse_table(rows: Rows) -> Table:
    """Return test errors of SGD as the thesis's table, the printed ones (10M) in brackets."""
    probs = values_of(rows, "drop_prob")[1:]
    lines = []
    cells = product(values_of(rows, "data"), values_of(rows, "width"))
    for data, width in cells:
        chosen = rows_with(rows, data=data, method="sgd", width=width)
        plain, *_ = rows_with(chosen, drop_prob=0.0)
        errors = {"last": plain["last"], "best": plain["best"]}
        for prob in probs:
            (dropped,) = rows_with(chosen, drop_prob=prob)
            errors[prob] = dropped["last"]
        in_print = REPORTED.get(str(width), ())
        printed = dict(zip(COLUMNS, in_print, strict=False))
        shown = [f"{e:.4f} ({printed.get(name, '-')})" for name, e in errors.items()]
        lines.append([data, width, *shown])
    names = ("plain SGD, last", "plain SGD, best", *(f"drop {p:g}" for p in probs))
    return ("data", "width", *names), lines


figure(
    "thesis-fig4-1",
    "Figure 4-1",
    "4.6",
    """Error during completion with dropout.

    A larger drop probability fits less and generalizes with a smaller gap.
    """,
    run=run_curves,
    check=check_curves,
    plot=plot_errors,
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
    table=rmse_table,
)
