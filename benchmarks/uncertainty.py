"""What dropout's uncertainty is good for: likelihood, calibration, errors found, shifted data.

The plain network, Monte Carlo dropout, `Predictive` as it is and recalibrated, last-layer Laplace
(the full Gauss-Newton matrix, its prior chosen on the same held-out data) and ensembles of five.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from benchmarks.harness import Table
from overt.nn import Predictive, mc_moments

SEEDS, MEMBERS = 5, 5
TRAIN, HOLDOUT, TEST, EPOCHS = 3000, 600, 600, 6


def run() -> list[Table]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        tables = [regression()]
        if (Path(os.environ.get("OVERT_DATA", "")) / "fashion-mnist.npz").exists():
            tables.insert(0, images())
        else:
            tables[0].notes.append(
                "Without fashion-mnist.npz in OVERT_DATA images are left out."
            )
        return tables
    finally:
        torch.set_num_threads(threads)


def trained(
    model: nn.Module, x: Any, y: Any, loss: Any, seed: int, epochs: int
) -> nn.Module:
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    torch.manual_seed(seed)
    for _ in range(epochs):
        model.train()
        for rows in torch.randperm(len(x)).split(64):
            optimizer.zero_grad()
            loss(model(x[rows]), y[rows]).backward()
            optimizer.step()
    return model.eval()


def cnn(seed: int) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(8, 16, 3, padding=1),
        nn.ReLU(),
        nn.AvgPool2d(2),
        nn.Flatten(),
        nn.Dropout(0.25),
        nn.Linear(784, 64),
        nn.ReLU(),
        nn.Dropout(0.5),
        nn.Linear(64, 10),
    )


def images() -> Table:
    data = np.load(Path(os.environ["OVERT_DATA"]) / "fashion-mnist.npz")
    order = np.random.default_rng(0).permutation(60_000)[: TRAIN + HOLDOUT]
    x = torch.tensor(data["x_train"][order] / 255.0, dtype=torch.float32)[:, None]
    y = torch.tensor(data["y_train"][order].astype(int))
    test = torch.tensor(data["x_test"][:TEST] / 255.0, dtype=torch.float32)[:, None]
    labels = torch.tensor(data["y_test"][:TEST].astype(int))
    shifted = test + 0.25 * torch.randn(
        test.shape, generator=torch.Generator().manual_seed(0)
    )
    held = x[TRAIN:], y[TRAIN:]
    nets = [
        trained(cnn(s), x[:TRAIN], y[:TRAIN], functional.cross_entropy, s, EPOCHS)
        for s in range(SEEDS + MEMBERS - 1)
    ]
    scores: dict[str, list[list[float]]] = {}
    for seed in range(SEEDS):
        for name, predict in predictors(nets, seed, held, x[:TRAIN], y[:TRAIN]).items():
            with torch.no_grad():
                clean, noisy = predict(test), predict(shifted)
            row = [*judged(clean, labels), *judged(noisy, labels)[1:3]]
            scores.setdefault(name, []).append(row)
    table = Table(
        f"Fashion-MNIST, a small CNN on {TRAIN} images, {SEEDS} seeds: what uncertainty is for",
        (
            "method",
            "accuracy",
            "neg. log-likelihood",
            "ECE",
            "AUROC of errors",
            "shifted: likelihood",
            "shifted: ECE",
        ),
    )
    for name, rows in scores.items():
        mean, sd = np.mean(rows, 0), np.std(rows, 0, ddof=1)
        table.rows.append(
            (name, *(f"{m:.3f} ± {s:.3f}" for m, s in zip(mean, sd, strict=True)))
        )
    table.notes.append(
        f"{HOLDOUT} held-out images choose the temperature and Laplace's prior; {TEST} test them; "
        "shifted: Gaussian noise of .25 added. Ensembles share members between seeds."
    )
    return table


def predictors(nets: Any, seed: int, held: Any, x: Any, y: Any) -> dict[str, Any]:
    model = nets[seed]
    sampled = nn.Sequential(model, nn.Softmax(-1))
    ours = Predictive(model, loss="cross_entropy").eval()
    again = Predictive(model, loss="cross_entropy").eval().recalibrate(held)
    members = nets[seed : seed + MEMBERS]
    return {
        "plain": lambda t: torch.softmax(model.eval()(t), -1),
        "MC dropout, 10": lambda t: mc_moments(sampled, t, 10, seed=seed).mean,
        "MC dropout, 100": lambda t: mc_moments(sampled, t, 100, seed=seed).mean,
        "ours": ours.probabilities,
        "ours, recalibrated": again.probabilities,
        "last-layer Laplace": laplace(model, x, y, held),
        "ensemble of 5": lambda t: (
            sum(torch.softmax(m.eval()(t), -1) for m in members) / MEMBERS
        ),
    }


def laplace(model: nn.Sequential, x: Any, y: Any, held: Any) -> Any:
    """Return the predictions of a normal law around the last layer's weights."""
    body, last = model[:-1].eval(), model[-1]

    def features(t: Any) -> Any:
        h = body(t)
        return torch.cat([h, torch.ones(len(h), 1)], 1).double()

    with torch.no_grad():
        phi = features(x)
        p = torch.softmax(last(body(x)), -1).double()
        H = torch.diag_embed(p) - p[:, :, None] * p[:, None]
        G = torch.einsum("nkl,ni,nj->kilj", H, phi, phi).reshape(10 * phi.shape[1], -1)
        values, vectors = torch.linalg.eigh(G)

        def predict(t: Any, prior: float) -> Any:
            f = features(t)
            V = vectors.reshape(10, f.shape[1], -1)
            J = torch.einsum("ni,kia->nka", f, V) / (values.clamp(min=0) + prior).sqrt()
            covariance = J @ J.mT
            root = torch.linalg.cholesky(covariance + 1e-9 * torch.eye(10).double())
            net = Predictive(model, loss="cross_entropy")
            return net._expected(last(body(t)), root.float(), 1.0)

        priors = [0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0]
        best = min(priors, key=lambda a: judged(predict(held[0], a), held[1])[1])
    return lambda t: predict(t, best)


def judged(p: Any, y: Any) -> list[float]:
    """Return accuracy, negative log-likelihood, calibration error, AUROC of finding errors."""
    p = p.detach().double().clamp(min=1e-12)
    confidence, guess = p.max(1)
    right = (guess == y).double()
    edges = torch.linspace(0, 1, 16)[1:-1].double()
    bins = torch.bucketize(confidence, edges)
    ece = sum(
        float(
            (bins == b).double().mean() * (right - confidence)[bins == b].mean().abs()
        )
        for b in bins.unique()
    )
    good, bad = confidence[right == 1], confidence[right == 0]
    wins = (good[:, None] > bad).double() + 0.5 * (good[:, None] == bad)
    nll = -p.gather(1, y[:, None]).log().mean()
    return [float(right.mean()), float(nll), ece, float(wins.mean())]


def tables() -> dict[str, tuple[Any, Any]]:
    from sklearn.datasets import load_diabetes, make_friedman1

    diabetes = load_diabetes()
    friedman = make_friedman1(600, noise=1.0, random_state=0)
    return {"diabetes": (diabetes.data, diabetes.target), "Friedman 1": friedman}


def regression() -> Table:
    table = Table(
        f"Regression, 64-64 with dropout .1, {SEEDS} splits: neg. log-likelihood, coverage of 90 %",
        (
            "data",
            "plain",
            "MC dropout, 100",
            "ours",
            "ours, recalibrated",
            "ensemble of 5",
        ),
    )
    for name, (X, Y) in tables().items():
        found = np.array(
            [splits(X, Y, seed) for seed in range(SEEDS)]
        )  # seeds, methods, 2
        cells = [f"{nll:.3f}, {cover:.2f}" for nll, cover in found.mean(0)]
        table.rows.append((name, *cells))
    table.notes.append(
        "Targets have mean 0 and variance 1. All but 'ours' add the residual variance on held-out "
        "data to theirs; 'ours' alone shows what dropout's variance is worth by itself."
    )
    return table


def splits(X: Any, Y: Any, seed: int) -> list[tuple[float, float]]:
    order = np.random.default_rng(seed).permutation(len(X))
    x = torch.tensor((X - X.mean(0)) / X.std(0), dtype=torch.float32)[order]
    y = torch.tensor((Y - Y.mean()) / Y.std(), dtype=torch.float32)[order][:, None]
    n = len(x)
    a, b = int(0.6 * n), int(0.8 * n)

    def net(s: int) -> Any:
        torch.manual_seed(s)
        parts = nn.Sequential(
            nn.Linear(x.shape[1], 64),
            nn.ReLU(),
            nn.Dropout(0.1),
            nn.Linear(64, 64),
            nn.ReLU(),
            nn.Dropout(0.1),
            nn.Linear(64, 1),
        )
        return trained(parts, x[:a], y[:a], functional.mse_loss, s, 40)

    models = [net(100 * seed + i) for i in range(MEMBERS)]
    held, test, target = x[a:b], x[b:], y[b:]

    def added(
        mean: Any, variance: Any
    ) -> Any:  # what is left of the residuals on held-out data
        return ((y[a:b] - mean) ** 2 - variance).mean().clamp(min=1e-3)

    with torch.no_grad():
        plain = models[0](test), added(models[0](held), 0.0).expand_as(target)
        h, t = (mc_moments(models[0], z, 100, seed=seed) for z in (held, test))
        sampled = t.mean, t.variance + added(h.mean, h.variance)
        ours = Predictive(models[0]).eval()
        alone = ours.mean(test), ours.std(test) ** 2
        ours.recalibrate((held, y[a:b]))
        again = ours.mean(test), ours.std(test) ** 2
        h, t = (torch.stack([m(z) for m in models]) for z in (held, test))
        joined = t.mean(0), t.var(0) + added(h.mean(0), h.var(0))
    return [fit(*pair, target) for pair in (plain, sampled, alone, again, joined)]


def fit(mean: Any, variance: Any, y: Any) -> tuple[float, float]:
    v = variance.clamp(min=1e-6)
    nll = 0.5 * (torch.log(2 * torch.pi * v) + (y - mean) ** 2 / v).mean()
    return float(nll), float(((y - mean).abs() <= 1.6449 * v.sqrt()).float().mean())
