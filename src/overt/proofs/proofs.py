"""Certificates that are proofs: an exact objective, and a bound by weak duality below it.

Inputs are the float64 numbers as they are stored, and lam = p/(1-p) is formed exactly. Here are the
question and the answer. `checker.py`, which stands alone, computes what follows from a witness:
singular vectors, thresholds, multipliers. These are float64 proposals; a bad one makes the bound
loose, never wrong. docs/howto/proofs.md derives the inequalities.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np

from overt._check import Floats, InputError, bounded, plain_array
from overt._io import write_whole
from overt.noise import DropBlock, DropConnect, Dropout, Noise
from overt.proofs.checker import (
    FORMAT,
    Matrix,
    Problem,
    RefusedError,
    digest,
    dominated,
    float_above,
)

BITS = 192
"""Bits of what is claimed."""


@dataclass(frozen=True, repr=False, eq=False)
class Proof:
    """What has been proved about given weights.

    Attributes
    ----------
    objective
        A number that the objective of the weights does not exceed.
    lower_bound
        A number that the objective of no weights of these shapes goes below.
    gap, relative_gap
        No weights are better than the given ones by more than this; relative to the lower bound,
        or to a ten-thousand-millionth of |M|^2 if that is more.
    statement
        The theorem, in one sentence.
    document
        All numbers, exactly, as `save` writes them for the independent checker.
    """

    objective: float
    lower_bound: float
    gap: float
    relative_gap: float
    statement: str
    document: dict[str, Any] = field(repr=False)

    def __repr__(self) -> str:
        return f"Proof({self.statement!r})"

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the proof as JSON, for `python -m overt.proofs.checker FILE`."""
        return write_whole(path, json.dumps(self.document))


@bounded
def prove(
    network: str,
    noise: Noise | Sequence[Noise],
    weights: Sequence[Floats],
    given: Mapping[str, Any],
    propose: Callable[[Floats], Mapping[str, Any]],
) -> Proof:
    """Return what can be proved about weights of a network.

    Parameters
    ----------
    network
        "two-layer", "tied" or "deep".
    noise
        One noise, or one for each hidden layer.
    weights
        As the network's `certify` takes them.
    given
        target, C = E[x x'], X and Y: those that were given.
    propose
        propose(s) returns the rest of the witness for a target with singular values s.
    """
    arrays = _arrays(given)
    names = {"X": "X", "Y": "Y", "target": "target", "C": "second_moment"}
    document: dict[str, Any] = {
        "format": FORMAT,
        "network": network,
        "noise": stored(_noise(noise, weights)),
        "problem": {names[name]: stored(value) for name, value in arrays.items()},
        "weights": [stored(W) for W in weights],
        "witness": {},
    }
    try:
        exact = Problem(document)
        _complete(exact, arrays, propose)
        above = _dyadic(exact.objective() / exact.samples, math.ceil)
        below = _dyadic(exact.bound() / exact.samples, math.floor)
    except RefusedError as error:
        raise InputError(f"nothing could be proved: {error}") from None
    gap = above - below
    document["claim"] = {
        "at_most": _text(above),
        "at_least": _text(below),
        "gap": _text(gap),
    }
    document["sha256"] = digest(document)
    scale = exact.M.dot(exact.M) / exact.samples
    least = max(below, scale / 10**10)  # as for other certificates
    relative = float_above(gap / least) if least > 0 else 0.0
    statement = f"Proved: {exact.sentence(above, below, gap)}."
    return Proof(
        float_above(above),
        -float_above(-below),
        float_above(gap),
        relative,
        statement,
        document,
    )


def _arrays(given: Mapping[str, Any]) -> dict[str, Floats]:
    """Return the numbers as they are stored."""
    if not given:
        raise InputError(
            "a proof needs a dense target or data, and no noise on the inputs"
        )
    arrays = {
        name: np.array(plain_array(name, value), dtype=float)
        for name, value in given.items()
    }
    if "C" in arrays:
        arrays["C"] = (arrays["C"] + arrays["C"].T) / 2
    return arrays


def stored(value: Any) -> Any:
    """Return numbers as the proof file holds them."""
    if isinstance(value, float):
        return value.hex()
    if isinstance(value, np.ndarray):
        return np.vectorize(float.hex, otypes=[object])(value).tolist()
    if isinstance(value, dict):
        return {name: stored(part) for name, part in value.items()}
    if isinstance(value, list):
        return [stored(part) for part in value]
    return value


def _complete(
    problem: Problem,
    given: Mapping[str, Floats],
    propose: Callable[[Floats], Mapping[str, Any]],
) -> None:
    """Add the witness to a problem."""
    witness = problem.witness
    if problem.C is not None:
        scale = np.sqrt(np.maximum(np.diag(given["C"]), 1e-300))
        Z = dominating(given["C"] / np.outer(scale, scale)) / scale[:, None]
        if np.isfinite(Z).all() and dominated(problem.C, Matrix.read(stored(Z))):
            witness["positive"] = stored(Z)
    if problem.correlated:
        witness |= stored(dict(propose(np.zeros(0))))
        witness["basis"] = _basis(problem.operator[1])
        return
    if problem.X is not None and not np.array_equal(given["X"], given["Y"]):
        witness["inverse_root"] = stored(_inverse_root(given["X"]))
    try:
        K = problem.gram[0]
    except RefusedError:  # the target itself bounds its part in the span of the inputs
        del witness["inverse_root"]
        K = problem.gram[0]
    witness["basis"] = _basis(K)
    s = np.zeros(problem.width)
    found = problem.singular_values[: problem.width]
    s[: len(found)] = [float(x) for x in found]
    proposed = dict(propose(s[: len(found)]))
    costs = problem.Gamma is not None and "gamma" in proposed
    if problem.Gamma is not None and costs:
        left = _floats(problem.Gamma) - np.diag(proposed["delta"]) - proposed["gamma"]
        diagonal = np.array_equal(left, np.diag(np.diag(left)))
        proposed["dominated"] = np.eye(len(left)) if diagonal else dominating(left)
    witness |= stored(proposed)
    if problem.Gamma is not None and costs:
        try:
            problem.below(problem.Gamma)
        except RefusedError:  # without costs the bound is that without noise
            for name in proposed:
                del witness[name]


def dominating(D: Floats) -> Floats:
    """Propose Z with Z'D Z = I."""
    values, vectors = np.linalg.eigh((D + D.T) / 2)
    return np.asarray(vectors / np.sqrt(np.maximum(values, 1e-300)))


def _floats(K: Matrix) -> Floats:
    unit = Fraction(2) ** K.exponent
    return np.array([[float(x * unit) for x in row] for row in K.rows])


def _basis(K: Matrix) -> Any:
    """Propose eigenvectors of a symmetric matrix."""
    return stored(np.linalg.eigh(_floats(K))[1])


def _inverse_root(X: Floats) -> Floats:
    """Propose R with (X R)'X R = I."""
    scale = np.maximum(np.linalg.norm(X, axis=0), 1e-300)
    _, sigma, right = np.linalg.svd(X / scale, full_matrices=False)
    return (right / np.maximum(sigma, 1e-300)[:, None]).T / scale[:, None]


def _noise(noise: Noise | Sequence[Noise], weights: Sequence[Floats]) -> dict[str, Any]:
    """Return what the file says of a noise: probabilities, or else its characteristic matrix."""
    units = weights[0].shape[1]
    block = 1
    kind = "dropout"
    Gamma = None
    chances: tuple[float, ...] = ()
    if not isinstance(noise, Noise):
        noise = Dropout(tuple(map(_one_probability, noise)))
    match noise:
        case Dropout(drop_prob=p, gaussian=False):
            chances = p if isinstance(p, tuple) else (p,) * units
        case DropBlock(drop_prob=p, block_size=block, placement="grid"):
            kind = "dropblock"
            chances = (p,)
        case DropConnect(drop_prob=p):
            kind = "dropconnect"
            chances = (p,)
        case _:
            kind = "matrix"
            Gamma = np.array(noise.characteristic(units), dtype=float)
    drop_prob = [float(chance).hex() for chance in chances]
    return {
        "kind": kind,
        "drop_prob": drop_prob,
        "block_size": block,
        "characteristic": Gamma,
    }


def _one_probability(noise: Noise) -> float:
    """Return the drop probability of a deep network's layer."""
    match noise:
        case Dropout(drop_prob=float(p), gaussian=False):
            return p
    raise InputError(
        "deep networks are proved about with Dropout at one drop_prob per layer, got "
        f"{noise!r}; `certify` without rigorous=True knows other noises"
    )


def _dyadic(x: Fraction, rounding: Callable[[Fraction], int]) -> Fraction:
    """Return a whole number of some 2^-k, rounded up or down to BITS bits."""
    unit = Fraction(2) ** (x.numerator.bit_length() - x.denominator.bit_length() - BITS)
    return rounding(x / unit) * unit


def _text(x: Fraction) -> str:
    """Return a dyadic fraction as a hexadecimal number."""
    sign = "-" if x < 0 else ""
    return f"{sign}0x{abs(x.numerator):x}p{1 - x.denominator.bit_length()}"
