"""Section 3: noise on the last layer of any network."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from overt import noise, penalty, spectral
from overt._check import Floats
from overt._figures import BLUE, ORANGE, canvas
from overt.linear.bounds import NormCost
from overt.papers import descent, oracles
from overt.papers.evidence import DESCENT, EXACT, relative
from overt.papers.figures import Finding, Findings, Params, Rows
from overt.papers.records import Residuals, Rng, figure, statement
from overt.papers.trajectories import log_steps


@statement("Equation 16", "3", identity="any law")
def characteristic_matrix(rng: Rng) -> Residuals:
    r"""The characteristic matrix.

    A noise acts on the squared loss through its characteristic matrix alone, so two noises that
    share it cost a network the same.

    Assumes: no unit's mask has mean zero.

    TeX: A noise acts on the squared loss through its characteristic matrix alone, so two noises
    that share it cost a network the same. \[\mathbb{E}_m\|y-U\,\mathrm{diag}(m)V^\top
    x\|^2=\|y-UV^\top x\|^2+\langle\Gamma,\,U^\top U\odot V^\top xx^\top V\rangle\]
    """
    d = 3
    z, _ = oracles.masks(np.ones(d))
    for _ in range(4):
        p = rng.dirichlet(np.ones(len(z)))
        mu, Gamma = oracles.moments(z, p)
        other = rng.uniform(0.5, 2, d)
        covariance = Gamma * np.outer(other, other)
        gaussian = noise.CovarianceNoise(other, covariance)
        U = rng.standard_normal((2, d))
        A = rng.standard_normal((5, d))
        Y = rng.standard_normal((5, 2))
        exact = oracles.added_loss(Y, U, A, z / mu, p)
        yield relative(penalty.hidden(U, A, gaussian), exact)
    detail = (
        f"random laws over all {2**d} masks against Gaussian noise with equal Gamma"
    )
    return EXACT, detail


@statement("Corollary 3.2", "3", identity="units")
def last_layer_dropout(rng: Rng) -> Residuals:
    r"""Dropout on the last layer.

    Dropout on the last hidden layer of any network adds lam sum_j |u_j|^2 E[a_j(x)^2], with a_j
    the activation of unit j.

    Printed: The factor lam = drop_prob / (1 - drop_prob) is missing in print.

    TeX: Dropout on the last hidden layer of any network adds $\lambda \sum_j |u_j|^2
    \mathbb{E}[a_j(x)^2]$, with $a_j$ the activation of unit $j$.
    """
    d = 5
    drop = noise.Dropout(0.3)
    U = rng.standard_normal((2, d))
    A = oracles.relu_layer(rng, d)
    Y = rng.standard_normal((12, 2))
    z, p = oracles.multipliers(d, 0.3)
    exact = oracles.added_loss(Y, U, A, z, p)
    stated = penalty.hidden(U, A, drop)
    yield relative(stated, exact)
    without_lam = stated / drop.strength
    detail = f"a tanh-ReLU network, its loss over all {2**d} masks"
    return EXACT, detail, relative(without_lam, exact)


@statement("Proposition 3.3", "3")
def dropout_norm(rng: Rng) -> Residuals:
    r"""Dropout induces the squared nuclear norm.

    The least dropout penalty among all width-d factors of a map A is (lam/d) |A C^(1/2)|_*^2.

    Assumes: a fixed drop probability and a width of at least the rank of A.

    Printed: The factor 1/d is missing in print; it cancels only for the width-adjusted
    probability of eq. 7.

    TeX: The least dropout penalty among all width-d factors of a map $A$ is $(\lambda/d) |A
    C^{1/2}|_*^2$.
    """
    printed = math.inf
    drop = noise.Dropout(0.4)
    for width in range(2, 4):
        A = rng.standard_normal((2, 3))
        C = oracles.second_moment(rng, 3)
        identity = np.eye(2)
        least = descent.cheapest_factors(A, identity, C, width, 3, rng)
        best = drop.strength * least
        weight, norm = spectral.induced(drop, width)
        weighed = A @ oracles.power(C, 0.5)
        value = norm.matrix_value(weighed)
        yield relative(weight * value, best)
        without_width = relative(drop.strength * value, best)
        printed = min(printed, without_width)
    return DESCENT, "descent over all factors of A", printed


UNITS, BLOCK = 80, 5


def run(params: Params, seed: int) -> dict[str, Any]:
    """Train one network; record the exact objective, and the final spectrum beside the bound's."""
    import torch
    from torch import nn
    from torch.nn.functional import one_hot

    from overt.nn import DropBlock1d
    from overt.papers import models

    data = models.load(params["data"])
    samples = params["samples"]
    x = data.x[:samples]
    x = (x - x.mean()) / x.std()
    Y = one_hot(data.y[:samples], 10).float()
    target = Y.numpy().astype(float) / np.sqrt(samples)
    block = noise.DropBlock(params["drop_prob"], BLOCK)
    envelope = NormCost(*spectral.induced(block, UNITS))
    m = np.linalg.svd(target, compute_uv=False)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        # Batch normalization uses the statistics of the whole data set, which every step sees.
        trunk = models.residual_trunk(x.shape[1], params["blocks"], params["width"])
        hidden = nn.Sequential(trunk, nn.Linear(models.features(trunk), UNITS))
        last = nn.Linear(UNITS, 10, bias=False)

        def exact_objective() -> tuple[float, Floats]:
            """Return the exact objective, and the predictions divided by sqrt(n)."""
            with torch.no_grad():
                g = hidden(x).double().numpy()
                U = last.weight.double().numpy()
            A = g @ U.T / np.sqrt(samples)
            error = float(np.sum((target - A) ** 2))
            return error + float(penalty.hidden(U, g, block)), A

        drop = DropBlock1d(params["drop_prob"], BLOCK, placement="grid")
        weights = [*hidden.parameters(), *last.parameters()]
        optimizer = torch.optim.Adam(weights, lr=params["rate"])
        steps = params["steps"]
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
        records = log_steps(steps, 24)
        exact = [exact_objective()[0]]
        for step in range(1, steps + 1):
            optimizer.zero_grad()
            predicted = last(drop(hidden(x)[:, None])[:, 0])
            ((Y - predicted) ** 2).sum(1).mean().backward()
            optimizer.step()
            schedule.step()
            if step in records:
                exact.append(exact_objective()[0])
        objective, predictions = exact_objective()
    return {
        "steps_seen": records,
        "exact": exact,
        "objective": objective,
        "bound": envelope.bound(m),
        "spectrum": np.linalg.svd(predictions, compute_uv=False).tolist(),
        "best_spectrum": envelope.shrink(m).tolist(),
        "target_spectrum": m.tolist(),
    }


def check(rows: Rows) -> Findings:
    """Check that training ends near the bound and never passes it."""
    for row in rows:
        name = row["data"]
        bound = row["bound"]
        gap = row["objective"] / bound - 1
        lowest = min(row["exact"]) / bound - 1
        yield Finding(
            f"{name}: training ends within 5% of the lower bound, and never below it",
            lowest >= -1e-6 and gap <= 0.05,
            f"objective {row['objective']:.4f}, bound {bound:.4f}: {100 * gap:+.2f}%",
            "very close",
        )
        found = np.array(row["spectrum"])
        best = np.array(row["best_spectrum"])
        error = np.linalg.norm(found - best)
        distance = float(error / np.linalg.norm(best))
        yield Finding(
            f"{name}: predicted and found singular values agree to a tenth",
            distance <= 0.1,
            f"relative distance {distance:.3f}; least value {found[-1]:.3f}, predicted "
            f"{best[-1]:.3f}",
            "closely match, but for the least one",
        )


def plot(rows: Rows) -> Any:
    """Plot the objective over the steps and the final spectrum, a row for each data set."""
    count = len(rows)
    picture, axes = canvas(8.4, 3.1 * count, count, 2, squeeze=False)
    for panels, row in zip(axes, rows, strict=True):
        left, right = panels
        left.plot(row["steps_seen"], row["exact"], color=BLUE, label="exact objective")
        left.axhline(row["bound"], color="0.4", ls="--", label="lower bound")
        left.set(
            xlabel="step",
            ylabel="objective",
            yscale="log",
        )
        left.set_title(row["data"])
        left.set_xscale("symlog", linthresh=10)
        left.set_xlim(left=0)
        left.legend()
        places = np.arange(1, len(row["spectrum"]) + 1)
        target = row["target_spectrum"]
        right.plot(places, target, "o", mfc="none", color="0.6", label="targets")
        right.plot(places, row["best_spectrum"], "k_", ms=14, label="predicted")
        right.plot(places, row["spectrum"], "o", ms=4, color=ORANGE, label="trained")
        right.set_xlabel("place")
        right.set_ylabel("singular value")
        right.set_ylim(0, None)
        right.set_xticks(places)
        right.legend()
    return picture


figure(
    "structured-fig2",
    "Figure 2",
    "3",
    """A residual network with DropBlock on its last layer against the bound.

    A deep network trained with DropBlock on its last layer ends close to the minimum that
    Theorem 2.7 predicts, in objective and in spectrum.
    """,
    run=run,
    check=check,
    plot=plot,
)
