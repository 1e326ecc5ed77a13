"""Thesis, Lemma 19, equation 6.7 and Theorem 16 with leaky units and all the attack steps."""

from __future__ import annotations

import math

import numpy as np

from overt.theorems.base import Residuals, theorem


@theorem(
    "adversarial-iterates",
    source="Thesis, Lemma 19, equation 6.7 and Theorem 16 (alpha < 1)",
    claim="Along Algorithm 6 |W_t|^2 <= |W_1|^2 + 3 eta t; within 4 (1 + |W_1| gamma alpha kappa "
    "sqrt(m) eps)/(eta (gamma - nu)^2 alpha^2 kappa^2 m eps^2) steps the mean of -l'(y f) at the "
    "attacks is at most eps, and the beta-robust error is then at most 2 eps",
    assumes="margin gamma > nu, |a_r| = kappa, eta = 1/(m kappa^2 (R + nu)^2), leaky slope .9, as "
    "many attack steps as Theorem 16 asks; ends as soon as eps is reached",
)
def _iterates(scale: int, rng: np.random.Generator) -> Residuals:
    from overt.robust.certificates import guarantees, leaky

    m, n, epsilon, slope = 2, 10, 0.25, 0.9
    x = rng.normal(size=(n, 2))
    y = np.where(x[:, 0] > 0, 1, -1)
    x[:, 0] += 1.5 * y
    x /= np.linalg.norm(x, axis=1).max()
    gamma, v = leaky.separation(x, y)
    nu, a = gamma / 4, np.array([1.0, -1.0]) / math.sqrt(2)
    net = leaky.LeakyNetwork(-np.sign(a)[:, None] * v / 2, a, slope)  # everything wrong at first
    plan = guarantees.training_plan(
        epsilon=epsilon, margin=gamma, radius=nu, reach=1.0, width=m,
        slope=slope, kappa=net.kappa, omega=net.norm,
    )  # fmt: skip

    def attack(net: leaky.LeakyNetwork, point: np.ndarray, label: int) -> np.ndarray:
        steps = plan.attack_steps(net.norm)
        return leaky.reflected_ascent(net, point, label, nu, net.attack_step_size(), steps)

    def slopes(net: leaky.LeakyNetwork) -> float:
        found = [attack(net, p, int(q)) for p, q in zip(x, y, strict=True)]
        return float(np.mean([1 / (1 + math.exp(q * float(net.value(p))))
                              for p, q in zip(found, y, strict=True)]))  # fmt: skip

    eta, first = plan.train_step_size, net.norm
    scaled = slope * net.kappa * math.sqrt(m)
    limit = 4 * (1 + first * gamma * scaled * epsilon)
    limit /= eta * (gamma - nu) ** 2 * scaled**2 * epsilon**2
    yield 2 * epsilon - slopes(net) - epsilon  # far from it at first
    draws = ((x[i], int(y[i])) for i in rng.integers(0, n, 3000))
    last, t, reached = net, 0, 1.0
    for t, last in enumerate(leaky.train_online(net, draws, eta, attack)):
        yield last.norm**2 - first**2 - 3 * eta * t
        if t % 20 == 19:
            reached = slopes(last)
            if reached <= epsilon:
                break
    yield reached - epsilon
    yield t - limit
    yield leaky.beta_robust_error(last, x, y, nu).value - 2 * epsilon
    return 1e-9, f"slope {reached:.2f} after {t + 1} of {limit:.0f} steps"
