"""Linear networks: the solver against its SVD, training against a PyTorch loop, scaling."""

from __future__ import annotations

import os
import re
from functools import partial
from pathlib import Path

import numpy as np
from scipy.optimize import minimize
from threadpoolctl import threadpool_limits

import overt
from benchmarks.harness import Table, exponent, seconds, verdict


def run() -> list[Table]:
    return [
        solver(),
        iterated(),
        training(),
        scaling(),
        deep(),
        any_noise(),
    ]


def solver() -> Table:
    M = np.random.default_rng(0).standard_normal((2000, 1500))
    ours, svd = seconds(
        lambda: overt.LinearNetwork(M, 100, overt.Dropout(0.5)).solve(),
        lambda: np.linalg.svd(M, full_matrices=False),
        repeat=3,
    )
    table = Table("Exact solution", ("what", "measured", "bar", "holds"))
    table.rows.append(
        (
            "dense 2000 x 1500, width 100: cost in SVDs",
            ours / svd,
            "<= 1.3",
            verdict(ours <= 1.3 * svd),
        )
    )
    return table


def iterated() -> Table:
    """What has no closed form, or had none: cost in decompositions of the target, and how far."""
    rng = np.random.default_rng(0)
    A = rng.standard_normal((100, 100))
    chances = rng.uniform(0.1, 0.7, 40)
    nearby = 0.98 ** np.abs(np.subtract.outer(range(100), range(100)))
    networks = {
        "DropConnect 100 x 100, correlated inputs": lambda M: overt.LinearNetwork(
            M, 100, overt.DropConnect(0.3), second_moment=A @ A.T / 100
        ),
        "DropConnect 100 x 100, weak noise, nearly dependent inputs": lambda M: (
            overt.LinearNetwork(M, 100, overt.DropConnect(0.05), second_moment=nearby)
        ),
        "deep 100 x 80, widths 60-60": lambda M: overt.DeepLinearNetwork(
            M, (60, 60), 0.3
        ),
        "sliding DropBlock 60 x 40, width 32": lambda M: overt.LinearNetwork(
            M, 32, overt.DropBlock(0.5, 4, "sliding")
        ),
        "DropBlock 200 x 150, width 60": lambda M: overt.LinearNetwork(
            M, 60, overt.DropBlock(0.3, 4)
        ),
        "one probability per unit, 60 x 40, width 40": lambda M: overt.LinearNetwork(
            M, 40, overt.Dropout(chances)
        ),
    }
    table = Table(
        "Solvers that iterate",
        ("problem", "seconds", "in SVDs", "status", "relative gap"),
    )
    with threadpool_limits(1):
        for name, build in networks.items():
            size = re.search(r"(\d+) x (\d+)", name)
            assert size is not None
            M = rng.standard_normal((int(size[1]), int(size[2])))
            best = build(M).solve()  # which warms up, too
            took, svd = seconds(
                lambda build=build, M=M: build(M).solve(),
                lambda M=M: np.linalg.svd(M, full_matrices=False),
                repeat=2,
                warm_up=0,
            )
            row = (
                name,
                took,
                took / svd,
                str(best.status),
                best.certificate.relative_gap,
            )
            table.rows.append(row)
    return table


def deep() -> Table:
    """Deep networks against descents; OVERT_PROBLEMS networks, OVERT_DESCENTS descents each."""
    networks = int(os.environ.get("OVERT_PROBLEMS", "30"))
    descents = int(os.environ.get("OVERT_DESCENTS", "10"))
    rng = np.random.default_rng(0)
    above, gaps, plain, optimal, ranked, contradicted = -np.inf, [], 0, 0, 0, 0
    for i in range(networks):
        net = _deep_network(rng, mixed=i % 3 == 2)
        best = net.solve()
        reached, ranks = _descents(net, descents, rng)
        above = max(above, best.objective / reached.min() - 1)
        if i % 3 == 2:
            continue
        plain += 1
        optimal += best.status == "optimal"
        gaps.append(best.certificate.relative_gap)
        certificate = best.rank_certificate
        ranked += certificate.least == certificate.most
        equal = ranks[reached <= best.objective * (1 + 1e-9)]
        contradicted += int(
            np.sum((equal < certificate.least) | (equal > certificate.most))
        )
    M = rng.standard_normal((1000, 1000))
    wide = overt.DeepLinearNetwork(M, (1000,) * 5, 0.2)
    ours, svd = seconds(
        wide.solve, lambda: np.linalg.svd(M, full_matrices=False), repeat=1
    )
    table = Table(f"{networks} deep networks", ("what", "measured", "bar", "holds"))
    table.rows += [
        ("objective over the best descent", above, "<= 1e-9", verdict(above <= 1e-9)),
        ("dropout: optimal", f"{optimal} of {plain}", "all", verdict(optimal == plain)),
        (
            "dropout: largest relative gap",
            max(gaps),
            "<= 1e-9",
            verdict(max(gaps) <= 1e-9),
        ),
        (
            "dropout: ranks decided",
            f"{ranked} of {plain}",
            "all",
            verdict(ranked == plain),
        ),
        (
            "ranks contradicted by a descent",
            contradicted,
            "0",
            verdict(contradicted == 0),
        ),
        (
            "rank 1000, 5 layers: seconds beyond an SVD",
            ours - svd,
            "<= 1",
            verdict(ours < svd + 1),
        ),
    ]
    return table


def _deep_network(rng: np.random.Generator, mixed: bool) -> overt.DeepLinearNetwork:
    layers = int(rng.integers(2, 6))
    widths = tuple(rng.integers(1, 41, layers).tolist())
    outputs, inputs = rng.integers(1, 41, 2)
    A = rng.standard_normal((inputs, 2 * inputs))
    noises: list[overt.noise.Noise] = [
        overt.Dropout(p) for p in rng.uniform(0.05, 0.9, layers)
    ]
    if mixed:
        kinds = [
            lambda d: overt.KeepExactly(int(rng.integers(1, d + 1))),
            lambda d: overt.Dropout(tuple(rng.uniform(0.05, 0.9, d))),
            lambda d: overt.Dropout(float(rng.uniform(0.05, 0.5)), gaussian=True),
        ]
        noises = [kinds[int(rng.integers(3))](d) for d in widths]
    target = rng.standard_normal((outputs, inputs))
    return overt.DeepLinearNetwork(
        target, widths, noise=noises, second_moment=A @ A.T / inputs
    )


def _descents(
    net: overt.DeepLinearNetwork, count: int, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Return where L-BFGS ends from random weights: objectives and ranks of the maps."""
    shapes = net.shapes
    cuts = np.cumsum([rows * columns for rows, columns in shapes])

    def unpack(theta: np.ndarray) -> list[np.ndarray]:
        parts = np.split(theta, cuts[:-1])
        return [part.reshape(shape) for part, shape in zip(parts, shapes, strict=True)]

    def value(theta: np.ndarray) -> tuple[float, np.ndarray]:
        found, gradients = net.effect.value(*unpack(theta))
        return found, np.concatenate([G.ravel() for G in gradients])

    reached, ranks = [], []
    for _ in range(count):
        scale = 10 ** rng.uniform(-1, 0) / np.sqrt(np.mean(net.widths))
        start = scale * rng.standard_normal(cuts[-1])
        options = {"maxiter": 2000, "ftol": 1e-15, "gtol": 1e-11}
        end = minimize(value, start, jac=True, method="L-BFGS-B", options=options)
        W = np.linalg.multi_dot(unpack(end.x)[::-1])
        reached.append(net.objective(unpack(end.x)))
        ranks.append(np.linalg.matrix_rank(W, tol=1e-4 * np.linalg.norm(W, 2)))
    return np.array(reached), np.array(ranks)


def any_noise() -> Table:
    """Noises with correlated units: the gap of the best network that is known."""
    table = Table("Any noise over units", ("noise", "relative gap", "bar", "holds"))
    ring = [
        np.mean([(t >= 2) and ((t + k) % 8 >= 2) for t in range(8)]) for k in range(8)
    ]
    shift = (np.arange(8)[:, None] - np.arange(8)) % 8
    arcs = np.array(ring)[shift] / ring[0] ** 2 - 1
    decaying = 0.6 ** np.abs(np.subtract.outer(np.arange(12), np.arange(12)))
    cases = [
        (
            "one arc of 2 of a ring of 8",
            overt.CovarianceNoise(np.ones(8), arcs),
            8,
            1e-6,
        ),
        ("sliding blocks of 2, 9 units", overt.DropBlock(0.5, 2, "sliding"), 9, 0.039),
        (
            "sliding blocks of 3, 16 units",
            overt.DropBlock(0.3, 3, "sliding"),
            16,
            0.118,
        ),
        (
            "autoregressive .6, 12 units",
            overt.CovarianceNoise(np.ones(12), decaying),
            12,
            0.0143,
        ),
    ]
    for name, noise, width, bar in cases:
        target = np.diag(np.arange(width, 0, -1) / width)
        gap = overt.LinearNetwork(target, width, noise).solve().certificate.relative_gap
        table.rows.append((name, gap, f"<= {bar}", verdict(gap <= bar)))
    return table


def training() -> Table:
    import torch

    torch.set_num_threads(1)
    m, n, d, steps = 120, 80, 20, 20_000
    rng = np.random.default_rng(0)
    M = rng.standard_normal((m, n)) / 10
    noise = overt.Dropout(0.5)
    Ut, Vt = 0.1 * rng.standard_normal((d, m)), 0.1 * rng.standard_normal((d, n))
    net, rates = overt.LinearNetwork(M, d, noise), np.full(steps, 1e-4)
    advance, weights = net.effect.steps(rng), [Ut.T.copy(), Vt.T.copy()]
    target = torch.tensor(M)
    U = torch.tensor(Ut.T.copy(), requires_grad=True)
    V = torch.tensor(Vt.T.copy(), requires_grad=True)
    optimizer = torch.optim.SGD([U, V], lr=1e-4)

    def torch_steps(count: int = 500) -> None:
        for _ in range(count):
            x = torch.randn(n, dtype=torch.float64)
            hidden = torch.nn.functional.dropout(V.T @ x, 0.5)
            loss = ((U @ hidden - target @ x) ** 2).sum() / 2
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

    with threadpool_limits(1):
        ours, theirs = seconds(
            lambda: advance(weights, rates),
            torch_steps,
            repeat=5,
        )
        train = partial(net.train, 20_000, 1e-4, 4, records=4)
        one, two = seconds(partial(train, n_jobs=1), partial(train, n_jobs=2), repeat=3)
    ratio = (theirs / 500) / (ours / steps)
    table = Table(
        "Training, M 120 x 80, width 20, one sample a step",
        ("what", "measured", "bar", "holds"),
    )
    table.rows += [
        (
            "steps per second against a plain PyTorch loop, one thread each",
            ratio,
            ">= 40",
            verdict(ratio >= 40),
        ),
        ("microseconds per step", ours / steps * 1e6, "", ""),
        ("speed-up of 4 seeds from 2 threads", one / two, "", ""),
    ]
    return table


def scaling() -> Table:
    rng = np.random.default_rng(0)
    sizes = (128, 256, 512, 1024)
    widths = (16, 32, 64, 128, 256)
    curves: dict[str, tuple[tuple[int, ...], list[float]]] = {}
    with threadpool_limits(1):
        targets = {n: rng.standard_normal((n, n)) for n in sizes}
        curves["solve, against size"] = (
            sizes,
            [
                seconds(
                    lambda n=n: overt.LinearNetwork(
                        targets[n], 32, overt.Dropout(0.5)
                    ).solve(),
                    repeat=3,
                )[0]
                for n in sizes
            ],
        )
        factors = {
            d: (rng.standard_normal((400, d)), rng.standard_normal((400, d)))
            for d in widths
        }
        curves["penalty (Dropout), against width"] = (
            widths,
            [
                seconds(
                    partial(overt.penalty.shallow, *factors[d], overt.Dropout(0.5))
                )[0]
                for d in widths
            ],
        )
        curves["penalty (DropBlock), against width"] = (
            widths,
            [
                seconds(
                    partial(overt.penalty.shallow, *factors[d], overt.DropBlock(0.5, 4))
                )[0]
                for d in widths
            ],
        )
        curves["training step, against width"] = (
            widths,
            [_step_time(rng, 100, d) for d in widths],
        )
        curves["training step, against size"] = (
            sizes,
            [_step_time(rng, n, 16) for n in sizes],
        )
    table = Table("Scaling", ("what", "from", "to", "exponent"), plot="scaling.png")
    for name, (values, times) in curves.items():
        table.rows.append((name, values[0], values[-1], exponent(values, times)))
    _plot(curves)
    return table


def _step_time(rng: np.random.Generator, size: int, width: int) -> float:
    M = rng.standard_normal((size, size)) / size
    weights = [0.1 * rng.standard_normal((size, width)) for _ in range(2)]
    advance = overt.LinearNetwork(M, width, overt.Dropout(0.5)).effect.steps(rng)
    return seconds(lambda: advance(weights, np.full(300, 1e-6)), repeat=5)[0] / 300


def _plot(curves: dict[str, tuple[tuple[int, ...], list[float]]]) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4.5), layout="constrained")
    axes = figure.subplots()
    for name, (values, times) in curves.items():
        axes.loglog(
            values, times, "o-", ms=4, label=f"{name}: {exponent(values, times):.2f}"
        )
    axes.set_xlabel("size or width")
    axes.set_ylabel("seconds")
    axes.legend(frameon=False, fontsize=8, title="exponent")
    figure.savefig(Path(__file__).with_name("scaling.png"), dpi=110)
