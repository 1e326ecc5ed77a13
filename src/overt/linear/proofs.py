"""Certificates that are proofs: an objective enclosed in balls, a bound by weak duality below it.

Inputs are the float64 numbers as they are stored, and lam = p/(1-p) is formed exactly. Here are
the question and the answer; `enclosures.py` computes, and `checker.py` verifies it all, alone.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from decimal import ROUND_CEILING, ROUND_FLOOR, Context, Decimal
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from overt._check import InputError, MissingExtraError, bounded
from overt._files import write_whole
from overt._types import Floats
from overt.linear.checker import FORMAT, digest
from overt.linear.effect import NoiseEffect
from overt.noise import DropBlock, DropConnect, Dropout, Noise

if TYPE_CHECKING:
    from overt.linear.enclosures import Problem


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
        """Write the proof as JSON, for `python -m overt.linear.checker FILE`."""
        return write_whole(path, json.dumps(self.document))


@bounded
def prove(
    network: str,
    noise: Noise,
    weights: Sequence[Floats],
    effect: NoiseEffect,
    witness: Mapping[str, Any] | None = None,
) -> Proof:
    """Return what can be proved; `witness` holds proposals in place of overt's own."""
    try:
        from overt.linear import enclosures
    except ModuleNotFoundError:
        raise MissingExtraError("python-flint", "proofs") from None
    if effect.weight_decay:
        raise InputError("nothing is proved yet about networks with weight decay")
    problem = _problem(network, effect.regression.given, noise, tuple(weights))
    used = dict(witness or {})
    return _proof(problem, *enclosures.enclose(problem, effect, used), used)


def _problem(
    network: str, given: Mapping[str, Any], noise: Noise, weights: tuple[Floats, ...]
) -> Problem:
    """Return the numbers as they are stored, or say what cannot be proved yet."""
    from overt.linear.enclosures import Problem

    if not given:
        raise InputError("a proof needs a dense target or data, and no noise on the inputs")
    kind, block, Gamma = "dropout", 1, None
    match noise:
        case Dropout(drop_prob=p, gaussian=False):
            units = weights[0].shape[1]
            chances = p if isinstance(p, tuple) else (p,) * units
        case DropBlock(drop_prob=p, block_size=block, placement="grid"):
            kind, chances = "dropblock", (p,)
        case DropConnect(drop_prob=p):
            kind, chances = "dropconnect", (p,)
        case _:
            kind, chances = "matrix", ()
            Gamma = np.array(noise.characteristic(weights[0].shape[1]), dtype=float)
    arrays: dict[str, Any] = {}
    for name, value in given.items():
        stored = value.detach().cpu() if hasattr(value, "detach") else value
        arrays[name] = np.array(stored, dtype=float)
    M, C = arrays.get("target"), arrays.get("C")
    return Problem(
        network, arrays["Y"].T if M is None else M, None if C is None else (C + C.T) / 2,
        arrays.get("X"), kind, tuple(map(float, chances)), block, Gamma, weights,
    )  # fmt: skip


def _proof(problem: Problem, above: Fraction, below: Fraction, witness: dict[str, Any]) -> Proof:
    gap = above - below
    if problem.X is None:
        stored = {"target": problem.M, "second_moment": problem.C}
    else:
        stored = {"X": problem.X, "Y": problem.M.T}
    document: dict[str, Any] = {
        "format": FORMAT,
        "network": problem.network,
        "noise": {
            "kind": problem.kind,
            "drop_prob": [p.hex() for p in problem.drop_prob],
            "block_size": problem.block,
            "characteristic": _hex(problem.Gamma),
        },
        "problem": {name: _hex(value) for name, value in stored.items()},
        "weights": [_hex(W) for W in problem.weights],
        "claim": {"at_most": _text(above), "at_least": _text(below), "gap": _text(gap)},
        "witness": {name: _hex(value) for name, value in witness.items()},
    }
    document["sha256"] = digest(document)
    scale = Fraction(float(np.sum(problem.M**2))) / problem.samples
    least = max(below, scale / 10**10)  # as for other certificates
    relative = _up(gap / least) if least > 0 else 0.0
    unsure = problem.C is not None and "positive" not in witness
    statement = (
        f"Proved: the objective of these weights is at most {_decimal(above, 17, ROUND_CEILING)}, "
        f"that of no weights of these shapes is below {_decimal(below, 17, ROUND_FLOOR)}, and so "
        f"they are within {_decimal(gap, 3, ROUND_CEILING)} of the global optimum"
        + (", provided that the second moment is positive semi-definite" if unsure else "")
        + (
            ", for the noise whose characteristic matrix is as stored."
            if problem.kind == "matrix"
            else "."
        )
    )
    return Proof(_up(above), -_up(-below), _up(gap), relative, statement, document)


def _decimal(x: Fraction, digits: int, rounding: str) -> str:
    """Return the number in decimals, rounded to the safe side."""
    value = Context(digits, rounding).divide(Decimal(x.numerator), Decimal(x.denominator))
    return f"{value.normalize(Context(digits)):g}" if value else "0"


def _up(x: Fraction) -> float:
    """Return the least float that is not below x."""
    value = float(x)
    return value if Fraction(value) >= x else math.nextafter(value, math.inf)


def _text(x: Fraction) -> str:
    """Return a dyadic fraction as a hexadecimal number."""
    sign = "-" if x < 0 else ""
    return f"{sign}0x{abs(x.numerator):x}p{1 - x.denominator.bit_length()}"


def _hex(value: Any) -> Any:
    """Return a matrix, exact balls or integers, as the proof file holds it."""
    if value is None or isinstance(value, (list, int)):
        return value
    if isinstance(value, float):
        return value.hex()
    if isinstance(value, np.ndarray):
        return np.vectorize(float.hex, otypes=[object])(value).tolist()
    from overt.linear.balls import fraction

    return [[_text(fraction(x)) for x in row] for row in value.tolist()]
