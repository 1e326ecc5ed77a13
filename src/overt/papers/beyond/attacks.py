"""Where attacks by gradient ascent succeed, and where they do not."""

from __future__ import annotations

import math

import numpy as np

from overt._types import Floats
from overt.papers.evidence import Evidence
from overt.papers.records import statement


@statement(how="bound evaluated")
def one_sided_drift(scale: int, rng: np.random.Generator) -> Evidence:
    r"""Only units that vote against the label count.

    In Lemma 18 the gradient's drift is at most 2 nu (1 - alpha) kappa sqrt(m_y) |W_y|, where m_y
    units with weights W_y have y a_r < 0; so beta >= 4 nu (1 - alpha) kappa sqrt(m_y) |W_y|/|W|
    suffices, and 0 where y f is convex.

    TeX: In Lemma 18 the gradient's drift is at most $2 \nu (1 - \alpha) \kappa \sqrt{m_y} |W_y|$,
    where $m_y$ units with weights $W_y$ have $y a_r < 0$; so $\beta \ge 4 \nu (1 - \alpha) \kappa
    \sqrt{m_y} |W_y|/|W|$ suffices, and $0$ where $y f$ is convex.
    """
    over = {"against": -math.inf, "for": -math.inf}
    trials = 2000 * scale
    for _ in range(trials):
        m, d = int(rng.integers(1, 8)), int(rng.integers(1, 5))
        slope, nu = rng.uniform(0, 1, 2)
        W, a, x = (
            rng.normal(size=(m, d)),
            rng.choice((-1.0, 1.0), m),
            rng.normal(size=d),
        )
        steps = rng.normal(size=(2, d))
        ends = x + nu * steps / np.linalg.norm(steps, axis=1, keepdims=True)
        slopes = np.where(W @ ends.T > 0, 1.0, slope)
        drift = (a * (slopes[:, 0] - slopes[:, 1])) @ (W @ ends[1])
        for name, chosen in (("against", a < 0), ("for", a > 0)):
            bound = (
                2
                * nu
                * (1 - slope)
                * math.sqrt(chosen.sum())
                * np.linalg.norm(W[chosen])
            )
            over[name] = max(over[name], float(drift - bound))
    detail = f"{trials} random networks, y = 1; null: the units that vote for the label"
    return Evidence(over["against"], 1e-12, detail, null=over["for"])


@statement(how="enumerated")
def attack_misses(scale: int, rng: np.random.Generator) -> Evidence:
    r"""Some attack exists and none is found.

    Without a condition on beta, projected gradient ascent can fail for ever: for the weights below,
    x = (1, 0) and nu = .5 it keeps y f >= .005, while y f = -.46 in the ball.

    Assumes: two-layer leaky networks of slope .01, Euclidean balls, steps of .24 or less.

    TeX: \[W=\begin{pmatrix}.01&0\\0&.02\\0&-.02\\-.02&1\end{pmatrix},\quad a=(1,1,1,-1),\quad
    x=(1,0),\ \nu=.5:\qquad \min_t y f(d_t)\ge .005,\quad \min_{|d-x|\le\nu}y f(d)<-.46\]
    """
    W, a = (
        np.array([[0.01, 0], [0, 0.02], [0, -0.02], [-0.02, 1]]),
        np.array([1.0, 1, 1, -1]),
    )
    x, nu = np.array([1.0, 0.0]), 0.5

    def value(point: Floats) -> float:
        z = W @ point
        return float(a @ np.maximum(z, 0.01 * z))

    def attacked(point: Floats, step: float) -> float:
        """Return the least y f that the attack meets from a start in the ball."""
        least = value(point)
        for _ in range(2000 * scale):
            gradient = (a * np.where(W @ point > 0, 1, 0.01)) @ W
            moved = point - step * gradient / (1 + math.exp(-value(point))) - x
            point = x + moved * min(1, nu / float(np.linalg.norm(moved)))
            least = min(least, value(point))
        return least

    ends = [attacked(x, step) for step in (0.24, 0.05)]
    circle = [
        x + nu * np.array([math.cos(t), math.sin(t)])
        for t in np.linspace(0, 6.28, 1000)
    ]
    exists = min(map(value, circle))
    detail = (
        f"y f stays at {min(ends):.4f}, its minimum is below {exists:.3f}; null: a start beyond "
        "the ridge"
    )
    residual = max(0.005 - min(ends), exists + 0.46)
    return Evidence(
        residual, 0.0, detail, null=0.005 - attacked(np.array([1.0, 0.05]), 0.24)
    )
