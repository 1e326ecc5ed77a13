"""How long SGD stays at a minimum, from theory: log(T eta) = c + S / eta (Freidlin and Wentzell).

In time t = eta * step SGD on single entries is d theta = -grad L dt + sqrt(eta) G dW, column k of G
the centred gradient of entry k over sqrt(N). Balanced weights stay balanced, so the product moves
by itself, with P_A(X) = sum_l (AA')^((L-l)/L) X (A'A)^((l-1)/L):

    A' = b(A) = -P_A(C'(A)) - 2 lam L A,   columns of G(A): P_A(r_k E_k - C'(A)) / sqrt(N).

S, the least of (1/2) int |u|^2 dt over A' = b + G u from the minimum to the saddle, is attained on
a path of H(A, p) = p.b + |G'p|^2 / 2 = 0 that leaves the one at t = -inf and reaches the other at
+inf. Both ends are linear: A - A_0 = Sigma p with Sigma the stationary covariance, and p along the
left unstable direction v; in between a boundary value problem is solved, down from the largest lam
for which the minimum exists, where the two points meet. (As G is singular, there is no geometric
form in A alone.)
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.integrate import solve_bvp
from scipy.linalg import solve_continuous_lyapunov

from overt._check import InputError, number, whole
from overt._types import Floats
from overt.decay import family, layers
from overt.entries import Entries
from overt.results import Result
from overt.spectral import factorization_cost

_ENDS = 0.02  # share of the way at which the linear ends begin
_STEP = 1e-6  # of central differences


@dataclass(frozen=True, repr=False, eq=False)
class Escape(Result):
    """The least action of a jump.

    Attributes
    ----------
    action
        S: the log of the mean jump time, in t = eta * step, grows like S / eta.
    minimum, saddle
        Where the jump starts, and the point of no return.
    barrier
        Difference of the regularized loss between them.
    path
        Matrices on the most likely way, (points, outputs, inputs).
    weight_decay
        lam.
    residual
        Largest relative residual of the boundary value problem.
    """

    action: float
    minimum: Floats
    saddle: Floats
    barrier: float
    path: Floats
    weight_decay: float
    residual: float


def escape(problem: Entries, depth: int = 3, weight_decay: float = 0.02) -> Escape:
    """Return the least action from the rank-2 minimum of [[1, *], [epsilon, 1]] to its saddle.

    Only this family is accepted: its saddle is known in closed form.
    """
    layers.check_entries(problem)
    depth, lam = whole("depth", depth, 3), number("weight_decay", weight_decay, exclusive=True)
    epsilon = family.epsilon_of(problem)
    if epsilon is None:
        raise InputError("problem must be [[1, *], [epsilon, 1]] (overt.decay.two_by_two)")
    most = family.existence(epsilon, depth, 2)
    if lam >= 0.995 * most:
        raise InputError(
            f"weight_decay must be below {0.995 * most:.4g} (almost {most:.4g}, up to which rank 2 "
            f"has a minimum), got {lam:g}"
        )
    # The way from the fold grows like z = sqrt(1 - lam / most), in which steps are even.
    goal, growth = np.sqrt(1 - lam / most), 1.15
    z, path = min(0.1, goal), None
    while True:
        try:
            path = _Path(problem, epsilon, depth, most * (1 - z**2), path)
        except ArithmeticError:
            growth = growth**0.5
            if path is None or growth < 1.005:
                raise
        reached = np.sqrt(1 - path.lam / most)
        if reached >= goal * (1 - 1e-9):
            return path.result()
        z = min(goal, reached * growth)


class _Path:
    """The optimal path at one lam, from that at a larger one or, near the fold, from a line."""

    t: Floats
    y: Floats

    def __init__(
        self, problem: Entries, epsilon: float, depth: int, lam: float, before: _Path | None
    ) -> None:
        self.problem, self.depth, self.lam = problem, depth, lam
        self.low, self.high = self._ends(family.critical_points(epsilon, depth, lam, 2))
        J_low, J_high = self._jacobian(self.low), self._jacobian(self.high)
        G = self._fields(self.low[None])[1][0]
        self.Sigma = solve_continuous_lyapunov(J_low, -G @ G.T)
        rates, left = np.linalg.eig(J_high.T)
        k = int(np.argmax(rates.real))
        self.mu, v = float(rates[k].real), left[:, k].real
        nu = -float(np.linalg.eigvals(J_low).real.max())
        way = self.high - self.low
        self.v = v * np.sign(v @ way) / np.linalg.norm(v)
        G = self._fields(self.high[None])[1][0]
        self.noise = float(np.sum((G.T @ self.v) ** 2))
        self.T = np.log(1 / _ENDS) * (1 / self.mu + 1 / nu)
        if before is None:
            t = np.linspace(0, 1, 81)
            s = 1 / (1 + np.exp(-(self.T * (t - 1) * self.mu + np.log(1 / _ENDS))))
            x = self.low[:, None] + way[:, None] * s
            p = self.v[:, None] * 2 * self.mu * s * (1 - s) * (self.v @ way) / self.noise
        else:
            t, y = before.t, before.y
            old, new = before.high - before.low, way
            stretch = np.linalg.norm(new) / np.linalg.norm(old)
            s = ((y[:4].T - before.low) @ old) / (old @ old)
            x = y[:4] + (self.low - before.low)[:, None] + np.outer(new - old, s)
            p = y[4:] * stretch * self.mu / before.mu
        solution = solve_bvp(
            self._flow, self._boundary, t, np.vstack([x, p]), tol=1e-3, max_nodes=2500
        )
        if solution.status != 0:
            raise ArithmeticError(f"no path found at weight_decay {lam:g}: {solution.message}")
        self.t, self.y = solution.x, solution.y
        self.residual = float(solution.rms_residuals.max())

    def _loss(self, x: Floats) -> float:
        A = x.reshape(2, 2)
        s = np.linalg.svd(A, compute_uv=False)
        return layers.cost(self.problem, A) + self.lam * float(factorization_cost(s, self.depth))

    def _ends(self, points: list[Floats]) -> list[Floats]:
        return sorted((A.ravel() for A in points), key=self._loss)[:2]

    def _fields(self, x: Floats) -> tuple[Floats, Floats]:
        """Return b (n, 4) and G (n, 4, N) at n points."""
        A = x.reshape(-1, 2, 2)
        U, s, Vt = np.linalg.svd(A)
        q = s ** (2 / self.depth)
        K = np.zeros((len(A), 2, 2))
        for k in range(self.depth):
            K += q[:, :, None] ** (self.depth - 1 - k) * q[:, None, :] ** k
        rows, cols, N = self.problem.rows, self.problem.cols, len(self.problem)
        r = A[:, rows, cols] - self.problem.values
        # P_A(E_k) = U (K o (U[i]' V[j])) V' for entry k = (i, j)
        V = np.swapaxes(Vt, 1, 2)
        inner = U[:, rows, :, None] * V[:, cols, None, :]
        moved = U[:, None] @ (K[:, None] * inner) @ Vt[:, None]
        g = (r[..., None, None] * moved).reshape(len(A), N, 4)
        mean = g.mean(axis=1)
        b = -mean - 2 * self.lam * self.depth * A.reshape(-1, 4)
        return b, np.swapaxes(g - mean[:, None], 1, 2) / np.sqrt(N)

    def _jacobian(self, x: Floats) -> Floats:
        shifts = _STEP * np.eye(4)
        return ((self._fields(x + shifts)[0] - self._fields(x - shifts)[0]) / (2 * _STEP)).T

    def _hamiltonian(self, x: Floats, p: Floats) -> Floats:
        b, G = self._fields(x)
        return np.sum(p * b, axis=1) + 0.5 * np.sum(np.einsum("nik,ni->nk", G, p) ** 2, axis=1)

    def _flow(self, t: Floats, y: Floats) -> Floats:
        x, p = y[:4].T, y[4:].T
        b, G = self._fields(x)
        dx = b + np.einsum("nik,njk,nj->ni", G, G, p)
        dp = np.empty_like(p)
        for i in range(4):
            h = np.zeros(4)
            h[i] = _STEP
            dp[:, i] = -(self._hamiltonian(x + h, p) - self._hamiltonian(x - h, p)) / (2 * _STEP)
        return self.T * np.hstack([dx, dp]).T

    def _boundary(self, first: Floats, last: Floats) -> Floats:
        across = np.linalg.svd(self.v[None])[2][1:]  # the directions orthogonal to v
        gap = self.v @ (last[:4] - self.high) + _ENDS * self.v @ (self.high - self.low)
        start = first[:4] - self.low - self.Sigma @ first[4:]
        return np.concatenate([start, across @ last[4:], [gap]])

    def action(self) -> float:
        """Return (1/2) int |G'p|^2 dt, with both linear ends."""
        p = self.y[4:].T
        G = self._fields(self.y[:4].T)[1]
        density = 0.5 * np.sum(np.einsum("nik,ni->nk", G, p) ** 2, axis=1)
        start = 0.5 * p[0] @ self.Sigma @ p[0]
        end = float(self.v @ p[-1]) ** 2 * self.noise / (4 * self.mu)
        return float(start + self.T * np.trapezoid(density, self.t) + end)

    def result(self) -> Escape:
        """Return what is known about the jump."""
        return Escape(
            self.action(),
            self.low.reshape(2, 2),
            self.high.reshape(2, 2),
            self._loss(self.high) - self._loss(self.low),
            self.y[:4].T.reshape(-1, 2, 2),
            self.lam,
            self.residual,
        )
