"""Rademacher complexities and risks that are bounded with known constants, and what they assume.

Every bound takes the size of its class from the network itself, as is usual; strictly, the size
must be fixed before the data are seen (a union bound over sizes costs a logarithm).

The theorems are for networks without biases. A bias is a weight of a constant: inputs get a 1
and each hidden layer a unit that hands it on, which a ReLU does, W becomes [[W, b], [0, 1]].
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from overt._types import Floats
from overt.nn.auditing.report import CapacityBound
from overt.nn.auditing.sums import Average, Mean, Table
from overt.nn.auditing.trace import Chain
from overt.nn.data.losses import Loss, Targets, is_squared
from overt.relu.bounds import rademacher_upper, risk_bound, symmetrized_bound

DELTA = 0.05


class Capacity:
    """What the bounds need to know of a chain of linear layers and its data, and the bounds.

    Risks are bounded for squared losses with one output and targets in [-1, 1], of predictions that
    are clipped to that interval; for two-layer ReLU networks also on inputs with random signs.
    """

    def __init__(self, chain: Chain, loss: Loss, outputs: int) -> None:
        self._outputs = outputs
        self._shifted = any(b.any() for b in chain.biases)
        self._size = _frobenius(chain, self._shifted) if chain.homogeneous else None
        self._last = (chain.weights[-1], chain.biases[-1])
        self._usable = is_squared(loss) and outputs == 1
        self._input_square, self._clipped, self._symmetrized = Mean(), Mean(), Mean()
        self._before, self._after = Average(), Average()  # of the ReLU, mean squares

    def add(self, x: Tensor | None, z: Tensor | None, f: Tensor, targets: Targets) -> None:
        """Take in inputs, the first layer's outputs for two layers, outputs and targets."""
        self._usable &= bool(targets.rows.abs().max() <= 1)
        if x is not None:
            self._input_square.add(x.double().reshape(len(x), -1).square().sum(1))
        if self._outputs == 1:
            self._clipped.add(_clipped_error(f, targets))
        if z is None:
            return
        self._before.add(z.square().sum(0, dtype=torch.float64), len(z))
        self._after.add(torch.relu(z).square_().sum(0, dtype=torch.float64), len(z))
        if self._outputs != 1:
            return
        z = z.double()
        signs = torch.randint(0, 2, (len(z), 1), device=z.device).double() * 2 - 1
        U, b = (torch.from_numpy(part).to(z) for part in self._last)
        # The bias is the weight of a constant hidden unit.
        turned = torch.relu(signs * z) @ U.T + torch.relu(signs) * b
        self._symmetrized.add(_clipped_error(turned, targets))

    def bounds(self, n: int, table: Table | None) -> tuple[CapacityBound, ...]:
        """Return all bounds that are defined for the network, from n samples."""
        found: list[CapacityBound] = []
        columns = None if table is None else table.columns()
        before, after = self._before.value, self._after.value
        if after is not None and before is not None and columns is not None and columns.has_inputs:
            first, last = 0 if self._shifted else columns.x.start, columns.x.stop
            found += self._two_layers(n, _rank(columns.R, first, last), after, before)
        if self._size is not None:
            found += self._frobenius(n, self._size)
        return tuple(found)

    def _two_layers(self, n: int, rank: int, after: Floats, before: Floats) -> list[CapacityBound]:
        """Thesis, Theorem 12 and Corollaries 2 and 3, output by output, the largest taken."""
        # The constant is of a hidden unit that is 1, random under signs.
        norm, (U, constant) = math.sqrt(n * rank), map(np.abs, self._last)
        alpha = float((U @ np.sqrt(after) + constant).max())
        symmetrized = float((U @ np.sqrt(before / 2) + constant * math.sqrt(0.5)).max())
        source = "Thesis, Theorem 12 with beta = 1/2"
        bounds = [
            _rademacher(
                "two-layer ReLU, inputs with random signs",
                rademacher_upper(symmetrized, norm, n, 0.5), source,
                "inputs multiplied by random signs; each output by itself", [],
            ),
            _rademacher(
                "two-layer ReLU, these inputs at best",
                rademacher_upper(alpha, norm, n, 0.5), source,
                "retentivity 1/2, the largest there is; each output by itself",
                ["the inputs' retentivity, which may be far below 1/2"],
            ),
        ]  # fmt: skip
        if not self._usable:
            return bounds
        second = risk_bound(self._clipped.value, alpha, norm, n, 0.5, DELTA)
        third = symmetrized_bound(self._symmetrized.value, symmetrized, norm, n, DELTA)
        for bound, source, extra in (
            (third, "Thesis, Corollary 3", ["trained on inputs with random signs"]),
            (second, "Thesis, Corollary 2 with beta = 1/2", ["the inputs' retentivity"]),
        ):
            bounds.append(CapacityBound(
                "expected squared error, clipped", bound.value, source,
                f"{bound.assumes}; with probability {1 - DELTA:.0%}", tuple(extra), bound.vacuous,
            ))  # fmt: skip
        return bounds

    def _frobenius(self, n: int, size: float) -> list[CapacityBound]:
        """R <= prod |W_i|_F (sqrt(2 L log 2) + 1) sqrt(sum |x_i|^2) / n, L layers."""
        value = size * math.sqrt((self._input_square.value + self._shifted) / n)
        found = [
            _rademacher(
                "product of Frobenius norms", value,
                "Golowich, Rakhlin and Shamir 2018, Theorem 1 (eq. 1.4 with its constant)",
                "homogeneous activations; each output by itself", [],
            )
        ]  # fmt: skip
        if self._usable:
            risk = self._clipped.value + 8 * value + 12 * math.sqrt(math.log(2 / DELTA) / (2 * n))
            found.append(CapacityBound(
                "expected squared error, clipped", risk,
                "Thesis, proof of Corollary 2, with the Frobenius complexity",
                "labels in [-1, 1], one output, independent samples; with probability "
                f"{1 - DELTA:.0%}", (), risk >= 1,
            ))  # fmt: skip
        return found


def _frobenius(chain: Chain, shifted: bool) -> float:
    """Return prod |W_i|_F (sqrt(2 L log 2) + 1), of the last layer one output at a time."""
    *weights, U = chain.weights
    *biases, constant = chain.biases
    norms = [
        math.sqrt(np.sum(W**2) + np.sum(b**2) + shifted)
        for W, b in zip(weights, biases, strict=True)
    ]
    last = np.sqrt(np.sum(U**2, 1) + constant**2)
    growth = math.sqrt(2 * math.log(2) * len(chain.weights)) + 1
    return math.prod(norms) * float(last.max()) * growth


def _rank(R: Floats, first: int, last: int) -> int:
    """Return the rank of columns of a triangle, that of all where its condition is good."""
    from scipy.linalg.lapack import dtrcon

    if len(R) >= last and dtrcon(R[:last, :last])[0] > 1e-10:
        return last - first
    return int(np.linalg.matrix_rank(R[:, first:last]))


def _clipped_error(f: Tensor, targets: Targets) -> Tensor:
    return ((f.double().clamp(-1, 1) - targets.rows) ** 2).sum(1)


def _rademacher(
    name: str, value: float, source: str, assumes: str, unmet: list[str]
) -> CapacityBound:
    return CapacityBound(
        f"Rademacher complexity, {name}", value, source, assumes, tuple(unmet), value >= 1
    )
