"""Two-layer ReLU networks x -> U sigma(V'x): their dropout penalty, flows and capacity."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from overt import penalty
from overt._check import Floats, InputError, bounded, doubles, factors, number
from overt.noise import Noise
from overt.relu.bounds import capacity, coadaptation, flows


@dataclass(frozen=True, eq=False)
class TwoLayer:
    """f(x) = U sigma(V'x), sigma(z) = max(z, 0), U outputs x width and V inputs x width."""

    U: Floats
    V: Floats

    def __post_init__(self) -> None:
        for name, value in zip("UV", factors(self.U, self.V), strict=True):
            object.__setattr__(self, name, doubles(name, value))

    @property
    def width(self) -> int:
        """Number of hidden units."""
        return int(self.U.shape[1])

    def activations(self, X: Floats) -> Floats:
        """Return sigma(V'x) for the rows x of X: samples x width."""
        return np.maximum(self._preactivations(X), 0)

    @bounded
    def predict(self, X: Floats) -> Floats:
        """Return f(x) for the rows x of X: samples x outputs."""
        return np.asarray(self.activations(X) @ self.U.T)

    @bounded
    def penalty(self, X: Floats, noise: Noise) -> float:
        """R = <Gamma, U'U o mean a(x) a(x)'>, lam sum_i psi_i^2 for Dropout (Proposition 5).

        What noise on the hidden units adds to the mean squared error, exactly.
        """
        return float(penalty.hidden(self.U, self.activations(X), noise))

    @bounded
    def objective(self, X: Floats, Y: Floats, noise: Noise) -> float:
        """E mean |y - U diag(z/mu) sigma(V'x)|^2 over the noise: squared error plus penalty."""
        Y, predicted = doubles("Y", Y, ndim=2), self.predict(X)
        if Y.shape != predicted.shape:
            raise InputError(
                f"Y must be {len(predicted)} x {self.U.shape[0]}, got {Y.shape}"
            )
        error = float(np.mean(np.sum((Y - predicted) ** 2, axis=1)))
        return error + self.penalty(X, noise)

    @bounded
    def flows(self, X: Floats, *, symmetrized: bool = False) -> Floats:
        """psi_i = |u_i| a_i, a_i^2 = E sigma(v_i.x)^2, or E(v_i.x)^2 / 2 with random signs."""
        if symmetrized:
            return np.asarray(flows(self.U, self._preactivations(X) / np.sqrt(2)))
        return np.asarray(flows(self.U, self.activations(X)))

    def capacity(self, X: Floats, *, symmetrized: bool = False) -> float:
        """alpha = sum_i psi_i <= sqrt(width R), R the penalty at drop_prob 1/2 (eq. 4.5)."""
        return capacity(self.flows(X, symmetrized=symmetrized))

    def coadaptation(self, X: Floats, *, symmetrized: bool = False) -> float | None:
        """phi = |psi|_1 / (sqrt(width) |psi|_2); 1 where all units contribute alike."""
        return coadaptation(self.flows(X, symmetrized=symmetrized))

    @bounded
    def clipped_error(self, X: Floats, y: Floats) -> float:
        """Mean squared error of the first output clipped to [-1, 1], as in Corollaries 2 and 3."""
        predicted = np.clip(self.predict(X)[:, 0], -1, 1)
        y = doubles("y", y, ndim=1)
        if len(y) != len(predicted):
            raise InputError(f"y must have {len(predicted)} entries, got {len(y)}")
        return float(np.mean((predicted - y) ** 2))

    @bounded
    def _preactivations(self, X: Floats) -> Floats:
        X = doubles("X", X, ndim=2)
        if X.shape[1] != self.V.shape[0]:
            raise InputError(f"X must have {self.V.shape[0]} columns, got {X.shape[1]}")
        return np.asarray(X @ self.V)


def escaping_weights(size: float) -> tuple[TwoLayer, Floats, Floats]:
    """Return (network, points, probabilities): dropout's penalty is 1, the weights exceed `size`.

    x = (1, 0) with probability delta, else (-delta, +-sqrt(1 - 2 delta)) / (1 - delta): mean 0,
    norm 1. The unit w = (1/sqrt(delta), 0) has E sigma(w.x)^2 = 1 and |w| = 1/sqrt(delta), which
    exceeds C as soon as delta < 1/C^2 (Proposition 2, which prints delta = C^2). So no bound on
    the penalty alone bounds the weights.
    """
    C = number("size", size, exclusive=True)
    if C > 1e100:
        raise InputError(
            f"size must be at most 1e100, got {size!r}: probabilities underflow"
        )
    delta = 0.5 / max(C**2, 2.0)
    up = np.sqrt(1 - 2 * delta)
    points = np.array([[1 - delta, 0.0], [-delta, up], [-delta, -up]]) / (1 - delta)
    probabilities = np.array([delta, (1 - delta) / 2, (1 - delta) / 2])
    return (
        TwoLayer(np.ones((1, 1)), np.array([[delta**-0.5], [0.0]])),
        points,
        probabilities,
    )
