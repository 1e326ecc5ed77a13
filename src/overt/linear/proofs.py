"""Certificates that are proofs: an exact objective, and a bound by weak duality below it.

Inputs are the float64 numbers as they are stored, and lam = p/(1-p) is formed exactly. Here are the
question and the answer; `proposals.py` finds a witness, and `checker.py`, which stands alone and
verifies it again, computes what follows from it.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import ROUND_CEILING, ROUND_FLOOR, Context, Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np

from overt._check import InputError, MissingExtraError, bounded, plain_array
from overt._io import write_whole
from overt._types import Floats
from overt.linear.checker import FORMAT, RefusedError, digest
from overt.linear.effect import NoiseEffect
from overt.noise import DropBlock, DropConnect, Dropout, Noise

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
        """Write the proof as JSON, for `python -m overt.linear.checker FILE`."""
        return write_whole(path, json.dumps(self.document))


@bounded
def prove(
    network: str,
    noise: Noise | Sequence[Noise],
    weights: Sequence[Floats],
    effect: NoiseEffect,
    witness: Mapping[str, Any] | None = None,
) -> Proof:
    """Return what can be proved; `witness` holds proposals in place of overt's own."""
    try:
        from overt.linear.proposals import complete, stored
    except ModuleNotFoundError:
        raise MissingExtraError("python-flint", "proofs") from None
    given = _given(effect)
    names = {"X": "X", "Y": "Y", "target": "target", "C": "second_moment"}
    document: dict[str, Any] = {
        "format": FORMAT,
        "network": network,
        "noise": {
            name: stored(value) for name, value in _noise(noise, weights).items()
        },
        "problem": {names[name]: stored(value) for name, value in given.items()},
        "weights": [stored(W) for W in weights],
        "witness": {name: stored(value) for name, value in (witness or {}).items()},
    }
    try:
        exact = complete(document, given, effect)
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
    relative = _up(gap / least) if least > 0 else 0.0
    statement = _statement(above, below, document)
    return Proof(_up(above), -_up(-below), _up(gap), relative, statement, document)


def _given(effect: NoiseEffect) -> dict[str, Floats]:
    """Return the numbers as they are stored, or say what cannot be proved yet."""
    if not effect.regression.given:
        raise InputError(
            "a proof needs a dense target or data, and no noise on the inputs"
        )
    given = effect.regression.given.items()
    arrays = {
        name: np.array(plain_array(name, value), dtype=float) for name, value in given
    }
    if "C" in arrays:
        arrays["C"] = (arrays["C"] + arrays["C"].T) / 2
    return arrays


def _noise(noise: Noise | Sequence[Noise], weights: Sequence[Floats]) -> dict[str, Any]:
    """Return what the file says of a noise: probabilities, or else its characteristic matrix."""
    units, block, kind, Gamma = weights[0].shape[1], 1, "dropout", None
    chances: tuple[float, ...] = ()
    if not isinstance(noise, Noise):
        noise = Dropout(tuple(map(_one_probability, noise)))
    match noise:
        case Dropout(drop_prob=p, gaussian=False):
            chances = p if isinstance(p, tuple) else (p,) * units
        case DropBlock(drop_prob=p, block_size=block, placement="grid"):
            kind, chances = "dropblock", (p,)
        case DropConnect(drop_prob=p):
            kind, chances = "dropconnect", (p,)
        case _:
            kind, Gamma = "matrix", np.array(noise.characteristic(units), dtype=float)
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


def _statement(above: Fraction, below: Fraction, document: dict[str, Any]) -> str:
    assumed = (
        document["problem"].get("second_moment")
        and "positive" not in document["witness"]
    )
    statement = (
        f"Proved: the objective of these weights is at most {_decimal(above, 17, ROUND_CEILING)}, "
        f"that of no weights of these shapes is below {_decimal(below, 17, ROUND_FLOOR)}, and so "
        f"they are within {_decimal(above - below, 3, ROUND_CEILING)} of the global optimum"
    )
    if assumed:
        statement += ", provided that the second moment is positive semi-definite"
    if document["noise"]["kind"] == "matrix":
        statement += ", for the noise whose characteristic matrix is as stored"
    return f"{statement}."


def _dyadic(x: Fraction, rounding: Callable[[Fraction], int]) -> Fraction:
    """Return a whole number of some 2^-k, rounded up or down to BITS bits."""
    unit = Fraction(2) ** (x.numerator.bit_length() - x.denominator.bit_length() - BITS)
    return rounding(x / unit) * unit


def _text(x: Fraction) -> str:
    """Return a dyadic fraction as a hexadecimal number."""
    sign = "-" if x < 0 else ""
    return f"{sign}0x{abs(x.numerator):x}p{1 - x.denominator.bit_length()}"


def _decimal(x: Fraction, digits: int, rounding: str) -> str:
    """Return the number in decimals, rounded to the safe side."""
    value = Context(digits, rounding).divide(
        Decimal(x.numerator), Decimal(x.denominator)
    )
    return f"{value.normalize(Context(digits)):g}" if value else "0"


def _up(x: Fraction) -> float:
    """Return the least float that is not below x."""
    value = float(x)
    return value if Fraction(value) >= x else math.nextafter(value, math.inf)
