"""Rademacher complexities and risks that are bounded with known constants, and what they assume.

Every bound takes the size of its class from the network itself, as is usual; strictly, the size
must be fixed before the data are seen (a union bound over sizes costs a logarithm).

The theorems are for networks without biases. A bias is a weight of a constant: inputs get a 1
and each hidden layer a unit that hands it on, which a ReLU does, W becomes [[W, b], [0, 1]].
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from overt._types import Floats
from overt.nn.auditing.report import CapacityBound
from overt.relu.bounds import rademacher_upper, risk_bound, symmetrized_bound

DELTA = 0.05


@dataclass(frozen=True, eq=False)
class Facts:
    """What the bounds need to know of a network and its data.

    Attributes
    ----------
    n, outputs
        Samples and outputs.
    weights
        W_1, ... of a chain of linear layers, None for other networks.
    homogeneous
        Whether all its activations are positively homogeneous with slopes of at most 1.
    biases
        b_1, ... of the chain, zeros where a layer has none.
    input_rank, input_square
        Rank of the inputs' second moment (with the constant 1, if there are biases), and the mean
        of |x|^2.
    activations, preactivations
        For two-layer ReLU networks, mean squares of the hidden units behind and before the ReLU.
    clipped, clipped_symmetrized
        Mean squared error of predictions clipped to [-1, 1], on the inputs and on inputs with
        random signs; None unless there is one output and targets lie in [-1, 1].
    """

    n: int
    outputs: int
    weights: list[Floats] | None
    homogeneous: bool
    biases: list[Floats]
    input_rank: int | None
    input_square: float
    activations: Floats | None
    preactivations: Floats | None
    clipped: float | None
    clipped_symmetrized: float | None


def capacity_bounds(facts: Facts) -> list[CapacityBound]:
    """Return all bounds that are defined for the network."""
    found: list[CapacityBound] = []
    if facts.weights is None:
        return []
    if facts.activations is not None and facts.preactivations is not None:
        found += _two_layers(facts, facts.weights, facts.activations, facts.preactivations)
    if facts.homogeneous:
        found += _frobenius(facts, facts.weights)
    return found


def _two_layers(
    facts: Facts, weights: list[Floats], after: Floats, before: Floats
) -> list[CapacityBound]:
    """Thesis, Theorem 12 and Corollaries 2 and 3, output by output, the largest taken."""
    n, rank = facts.n, facts.input_rank
    if rank is None:
        return []
    U, norm = np.abs(weights[1]), math.sqrt(n * rank)
    constant = np.abs(facts.biases[1])  # from a hidden unit that is 1, and random under signs
    alpha = float((U @ np.sqrt(after) + constant).max())
    symmetrized = float((U @ np.sqrt(before / 2) + constant * math.sqrt(0.5)).max())
    bounds = [
        _rademacher(
            "two-layer ReLU, inputs with random signs",
            rademacher_upper(symmetrized, norm, n, 0.5),
            "Thesis, Theorem 12 with beta = 1/2",
            "inputs multiplied by random signs; each output by itself",
            [],
        ),
        _rademacher(
            "two-layer ReLU, these inputs at best",
            rademacher_upper(alpha, norm, n, 0.5),
            "Thesis, Theorem 12 with beta = 1/2",
            "retentivity 1/2, the largest there is; each output by itself",
            ["the inputs' retentivity, which may be far below 1/2"],
        ),
    ]
    if facts.clipped is None or facts.clipped_symmetrized is None:
        return bounds
    second = risk_bound(facts.clipped, alpha, norm, n, 0.5, DELTA)
    third = symmetrized_bound(facts.clipped_symmetrized, symmetrized, norm, n, DELTA)
    for bound, source, extra in (
        (third, "Thesis, Corollary 3", ["trained on inputs with random signs"]),
        (second, "Thesis, Corollary 2 with beta = 1/2", ["the inputs' retentivity"]),
    ):
        bounds.append(
            CapacityBound(
                "expected squared error, clipped", bound.value, source,
                f"{bound.assumes}; with probability {1 - DELTA:.0%}",
                tuple(extra), bound.vacuous,
            )
        )  # fmt: skip
    return bounds


def _frobenius(facts: Facts, weights: list[Floats]) -> list[CapacityBound]:
    """R <= prod |W_i|_F (sqrt(2 L log 2) + 1) sqrt(sum |x_i|^2) / n, L layers."""
    n, layers = facts.n, len(weights)
    shifted = any(b.any() for b in facts.biases)
    norms = [
        math.sqrt(np.sum(W**2) + np.sum(b**2) + shifted)
        for W, b in zip(weights[:-1], facts.biases[:-1], strict=True)
    ]
    last = np.sqrt(np.sum(weights[-1] ** 2, 1) + facts.biases[-1] ** 2)  # one output at a time
    growth = math.sqrt(2 * math.log(2) * layers) + 1
    value = math.prod(norms) * float(last.max()) * growth
    value *= math.sqrt((facts.input_square + shifted) / n)
    found = [
        _rademacher(
            "product of Frobenius norms", value,
            "Golowich, Rakhlin and Shamir 2018, Theorem 1 (eq. 1.4 with its constant)",
            "homogeneous activations; each output by itself", [],
        )
    ]  # fmt: skip
    if facts.clipped is not None:
        risk = facts.clipped + 8 * value + 12 * math.sqrt(math.log(2 / DELTA) / (2 * n))
        found.append(
            CapacityBound(
                "expected squared error, clipped", risk,
                "Thesis, proof of Corollary 2, with the Frobenius complexity",
                "labels in [-1, 1], one output, independent samples; with probability "
                f"{1 - DELTA:.0%}", (), risk >= 1,
            )
        )  # fmt: skip
    return found


def _rademacher(
    name: str, value: float, source: str, assumes: str, unmet: list[str]
) -> CapacityBound:
    return CapacityBound(
        f"Rademacher complexity, {name}", value, source, assumes, tuple(unmet), value >= 1
    )
