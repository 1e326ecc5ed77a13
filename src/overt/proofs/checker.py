"""Check a proof file of overt in exact integer arithmetic: `python checker.py FILE`.

This file stands alone: the standard library, no floating point, nothing from overt. It reads the
problem, the weights, the claim and the witness, recomputes everything, and trusts none of it. The
inequalities it relies on are derived in docs/howto/proofs.md. About 120 x 80 takes half a
second, 500 x 400 minutes. The exit code is 0 if the claim holds, else 1.
"""

from __future__ import annotations

import hashlib
import json
import re
import sys
from fractions import Fraction
from functools import cached_property
from itertools import pairwise
from math import inf, isqrt, nextafter, prod
from operator import mul
from pathlib import Path
from typing import Any

FORMAT = "overt proof 1"
HEX = re.compile(r"(-?)0x([0-9a-f]+)(?:\.([0-9a-f]+))?p([+-]?[0-9]{1,5})")


class RefusedError(Exception):
    """The file does not prove what it claims."""


def require(condition: bool, what: str) -> None:
    """Refuse the file unless the condition holds."""
    if not condition:
        raise RefusedError(what)


def parts(text: Any) -> tuple[int, int]:
    """Return (mantissa, exponent) of a hexadecimal floating-point number of any length."""
    match = HEX.fullmatch(text) if isinstance(text, str) else None
    if match is None:
        raise RefusedError(f"not a hexadecimal number: {text!r}")
    sign, whole, fraction, exponent = match.groups(default="")
    return int(sign + whole + fraction, 16), int(exponent) - 4 * len(fraction)


def number(text: Any) -> Fraction:
    """Return the exact value of a hexadecimal number."""
    mantissa, exponent = parts(text)
    return mantissa * Fraction(2) ** exponent


def root_above(x: Fraction) -> Fraction:
    """Return a number that is at least the square root of x >= 0, to 400 bits."""
    bits = 400 + max(
        0, (x.denominator.bit_length() - x.numerator.bit_length()) // 2 + 1
    )
    scaled = -((-x.numerator << 2 * bits) // x.denominator)
    return Fraction(isqrt(scaled - 1) + 1 if scaled else 0, 1 << bits)


def root_below(x: Fraction) -> Fraction:
    """Return a number that is at most the square root of x >= 0, to 400 bits."""
    bits = 400 + max(
        0, (x.denominator.bit_length() - x.numerator.bit_length()) // 2 + 1
    )
    return Fraction(isqrt((x.numerator << 2 * bits) // x.denominator), 1 << bits)


def float_above(x: Fraction) -> float:
    """Return the least float that is not below x."""
    value = float(x)
    return value if Fraction(value) >= x else nextafter(value, inf)


class Matrix:
    """A matrix of integers times a power of two."""

    def __init__(self, rows: Any, exponent: int) -> None:
        self.rows = [tuple(row) for row in rows]
        self.exponent = exponent
        self.shape = len(self.rows), len(self.rows[0])

    @classmethod
    def read(cls, rows: Any) -> Matrix:
        """Return the exact matrix in the file."""
        entries = [[parts(text) for text in row] for row in rows]
        require(
            {len(row) for row in entries} == {len(entries[0]) or 1},
            "a misshapen matrix",
        )
        low = min(exponent for row in entries for _, exponent in row)
        return cls([[m << (e - low) for m, e in row] for row in entries], low)

    @property
    def T(self) -> Matrix:
        """The transpose."""
        return Matrix(zip(*self.rows, strict=True), self.exponent)

    @property
    def diagonal(self) -> list[Fraction]:
        """The diagonal, exactly."""
        return [
            row[i] * Fraction(2) ** self.exponent for i, row in enumerate(self.rows)
        ]

    def __matmul__(self, other: Matrix) -> Matrix:
        require(self.shape[1] == other.shape[0], "matrices whose shapes do not fit")
        columns = list(zip(*other.rows, strict=True))
        rows = [[sum(map(mul, row, column)) for column in columns] for row in self.rows]
        return Matrix(rows, self.exponent + other.exponent)

    def plus(self, other: Matrix, factor: int = 1) -> Matrix:
        """Return self + factor * other."""
        low = min(self.exponent, other.exponent)
        a = 1 << (self.exponent - low)
        b = factor << (other.exponent - low)
        pairs = zip(self.rows, other.rows, strict=True)
        return Matrix(
            [[a * x + b * y for x, y in zip(*r, strict=True)] for r in pairs], low
        )

    def dot(self, other: Matrix) -> Fraction:
        """Return the sum of the products of entries."""
        require(self.shape == other.shape, "matrices whose shapes do not fit")
        total = sum(
            sum(map(mul, *pair)) for pair in zip(self.rows, other.rows, strict=True)
        )
        return total * Fraction(2) ** (self.exponent + other.exponent)


def identity(n: int) -> Matrix:
    """Return the identity."""
    return Matrix([[int(i == j) for j in range(n)] for i in range(n)], 0)


def diagonal_part(A: Matrix) -> Matrix:
    """Return A with zeros off its diagonal."""
    rows = [[x * (i == j) for j, x in enumerate(row)] for i, row in enumerate(A.rows)]
    return Matrix(rows, A.exponent)


def distance(A: Matrix, B: Matrix) -> Fraction:
    """Return at least |A - B|_F."""
    E = A.plus(B, -1)
    return root_above(E.dot(E))


def eigenvalues_below(K: Matrix, X: Matrix) -> list[Fraction]:
    """Return, decreasing, upper bounds on the positive eigenvalues of K: Ostrowski and Weyl."""
    require(X.shape == K.shape, "a basis of the wrong size")
    S = X.T @ (K @ X)
    off = distance(S, diagonal_part(S))
    delta = distance(X.T @ X, identity(X.shape[1]))
    require(delta < 1, "a basis that is too far from orthogonal")
    return sorted(
        (max(x + off, Fraction(0)) / (1 - delta) for x in S.diagonal), reverse=True
    )


def dominated(D: Matrix, Z: Matrix) -> bool:
    """Return whether Z'D Z is dominated by its diagonal: D has no x'D x below 0.

    Strictly, which shows that Z is not singular; Z = I is known not to be.
    """
    S = Z.T @ (D @ Z)
    spare = [2 * row[i] - sum(map(abs, row)) for i, row in enumerate(S.rows)]
    if Z.shape != S.shape:
        return False
    unit = not any(map(any, Z.plus(identity(len(Z.rows)), -1).rows))
    return min(spare) >= (0 if unit else 1)


def _tangent(
    s2: Fraction, point: list[Fraction], mu: list[Fraction], beta: list[Fraction]
) -> Fraction:
    """Return at least s^2 F(x) - mu.x for all shares x in C: a tangent plane at a point of C."""
    pairs = list(zip(point, beta, strict=True))
    inside = min(point) > 0 and sum(b / (b + 2 * x) for x, b in pairs) <= 1
    require(inside, "a point of tangency outside C")
    gain = s2 * prod(x / (x + b) for x, b in pairs)
    bound = gain - sum(map(mul, mu, point))
    roots = Fraction(0)
    for (x, b), m in zip(pairs, mu, strict=True):
        slope = gain * b / (x * (x + b)) - m
        if slope >= 0:
            bound += slope * (1 - x)
        else:  # the least of -slope.x over C is (sum of roots)^2 - sum of -slope b / 2
            bound -= slope * (x + b / 2)
            roots += root_below(-slope * b / 2)
    return bound - roots * roots


class Problem:
    """The objective of a proof file and its lower bound; everything times the number of samples."""

    def __init__(self, file: dict[str, Any]) -> None:
        given = file["problem"]
        self.network = file["network"]
        self.witness = file["witness"]
        self.X = Matrix.read(given["X"]) if "X" in given else None
        self.M = (
            Matrix.read(given["target"])
            if self.X is None
            else Matrix.read(given["Y"]).T
        )
        self.samples = 1 if self.X is None else self.X.shape[0]
        C = given.get("second_moment")
        self.C = None if C is None else Matrix.read(C)
        require(self.X is None or self.C is None, "both data and a second moment")
        require(
            self.C is None or self.C.rows == self.C.T.rows,
            "an unsymmetric second moment",
        )
        self.weights = weights = [Matrix.read(W) for W in file["weights"]]
        count = {"two-layer": 2, "tied": 1, "deep": max(len(weights), 2)}[self.network]
        require(len(weights) == count, "a wrong number of weights")
        # The map is U V'; its rank is at most the width.
        self.U = weights[0]
        self.V = weights[-1]
        self.width = weights[0].shape[1]
        if self.network == "deep":
            self.U = weights[1]
            self.V = weights[0].T
            for W in weights[2:]:
                self.U = W @ self.U
            self.width = min(W.shape[0] for W in weights[:-1])
        self._read_noise(**file["noise"])

    def _read_noise(
        self,
        kind: str,
        drop_prob: list[str],
        block_size: int,
        characteristic: Any = None,
    ) -> None:
        deep = self.network == "deep"
        tied = self.network == "tied"
        known = (
            ("dropout",) if deep else ("dropout", "dropblock", "matrix", "dropconnect")
        )
        require(kind in known and not (tied and kind == "dropconnect"), "unknown noise")
        self.kind = kind
        self.block = block_size
        chances = [number(text) for text in drop_prob]
        units = len(self.weights) - 1 if deep else self.width
        known_count = len(chances) == {"dropout": units, "matrix": 0}.get(kind, 1)
        require(
            (kind == "matrix") == (characteristic is not None),
            "a matrix that is not wanted",
        )
        self.Gamma = None if characteristic is None else Matrix.read(characteristic)
        if self.Gamma is not None:
            symmetric = self.Gamma.rows == self.Gamma.T.rows
            require(symmetric and self.Gamma.shape == (units, units), "a wrong matrix")
        require(
            known_count and all(0 <= p < 1 for p in chances), "wrong drop probabilities"
        )
        self.strengths = [p / (1 - p) for p in chances]
        blocks = (
            type(block_size) is int and block_size > 0 and self.width % block_size == 0
        )
        require(
            blocks and (block_size == 1 or kind == "dropblock"), "a wrong block size"
        )

    def moment(self, V: Matrix) -> Matrix:
        """Return V'C V, C = E[x x']."""
        if self.X is not None:
            return (self.X @ V).T @ (self.X @ V)
        return V.T @ (V if self.C is None else self.C @ V)

    def variances(self) -> Matrix:
        """Return the diagonal part of C."""
        C = self.C if self.C is not None else self.moment(identity(self.V.shape[0]))
        return diagonal_part(C)

    @property
    def correlated(self) -> bool:
        """Whether DropConnect differs from Dropout."""
        plain = self.X is None and (
            self.C is None or self.C.rows == diagonal_part(self.C).rows
        )
        return self.kind == "dropconnect" and not plain

    def objective(self) -> Fraction:
        """Return E|y - A x|^2 plus what the noise adds, exactly."""
        A = self.U @ (self.V if self.X is None else self.X @ self.V).T
        R = self.M.plus(A, -1)
        value = R.dot(R if self.C is None else R @ self.C)
        if self.network == "deep":
            return value + self._deep_penalty()
        cost = Fraction(0)
        G = self.U.T @ self.U
        b = self.block
        masked = self.kind == "dropconnect"
        P = self.V.T @ (self.variances() @ self.V) if masked else self.moment(self.V)
        if self.Gamma is not None:
            terms = [map(mul, *rows) for rows in zip(G.rows, P.rows, strict=True)]
            return value + Matrix(terms, G.exponent + P.exponent).dot(self.Gamma)
        for i, (g, p) in enumerate(zip(G.rows, P.rows, strict=True)):
            block = slice(i - i % b, i - i % b + b)
            lam = self.strengths[i if self.kind == "dropout" else 0]
            cost += lam * sum(map(mul, g[block], p[block]))
        return value + cost * Fraction(2) ** (G.exponent + P.exponent)

    def _deep_penalty(self) -> Fraction:
        """Second moments from layer to layer: T = S + lam diag(S), S = W T W'."""
        S = self.moment(self.V)
        divisor = 1
        plain = sum((self.U @ S @ self.U.T).diagonal)
        for lam, W in zip(self.strengths, self.weights[1:], strict=True):
            n = lam.numerator
            d = lam.denominator
            T = [
                [d * x + n * x * (i == j) for j, x in enumerate(r)]
                for i, r in enumerate(S.rows)
            ]
            S = W @ Matrix(T, S.exponent) @ W.T
            divisor = divisor * d
        return Fraction(sum(S.diagonal)) / divisor - plain

    def bound(self) -> Fraction:
        """Return a number that no weights of these shapes go below."""
        if self.C is not None and self.witness.get("positive") is not None:
            shown = dominated(self.C, Matrix.read(self.witness["positive"]))
            require(shown, "a second moment not shown to be positive")
        if "multiplier" in self.witness:
            return self._operator_bound()
        require(
            not self.correlated, "DropConnect with correlated inputs needs a multiplier"
        )
        square = self.M.dot(self.M if self.C is None else self.M @ self.C)
        return square - self._gain(self.singular_values[: self.width])

    @property
    def trusts_noise(self) -> bool:
        """Whether the bound rests on a penalty that is not negative, without a proof of it."""
        shown = "sets" in self.witness or self.witness.get("gamma") is not None
        return self.Gamma is not None and not shown

    def sentence(self, above: Fraction, below: Fraction, gap: Fraction) -> str:
        """Return what is claimed and what it rests on; numbers are rounded to the safe side."""
        text = (
            f"the objective of these weights is at most {float_above(above)!r}, that of no weights "
            f"of these shapes is below {-float_above(-below)!r}, and so they are within "
            f"{float_above(gap)!r} of the global optimum"
        )
        if self.Gamma is not None:
            text += ", for the noise whose characteristic matrix is stored"
        if self.C is not None and self.witness.get("positive") is None:
            text += ", provided that the second moment is positive semi-definite"
        if self.trusts_noise:
            text += (
                ", provided that the characteristic matrix is positive semi-definite"
            )
        return text

    def _gain(self, s: list[Fraction]) -> Fraction:
        """Return at least |M|^2 less any objective, for a map with singular values below s."""
        if self.Gamma is not None and "sets" in self.witness:
            return self._sets_gain(self.Gamma, s)
        if self.trusts_noise:
            return sum((x * x for x in s), Fraction(0))
        if "shares" in self.witness:
            return self._deep_gain([x * x for x in s])
        if self.kind == "dropblock":
            return self._block_gain(s)
        delta, gamma = self.costs() if self.Gamma is None else self.below(self.Gamma)
        if gamma <= -1:
            require(min(delta) > 0, "a cost without noise")
            left = 1 + gamma + 1 / sum((1 / x for x in delta), Fraction(0))
            require(left > 0, "costs that bound nothing")
            return s[0] * s[0] / left
        g, used = self._thresholds(s)
        require(all(x <= y for x, y in pairwise(g)), "thresholds that decrease")
        pairs = list(zip(g, sorted(delta), strict=True))
        require(all(y == 0 for y, c in pairs if c == 0), "a cost without noise")
        return used / (1 + gamma) + sum((y * y / c for y, c in pairs if c), Fraction(0))

    def _thresholds(self, s: list[Fraction]) -> tuple[list[Fraction], Fraction]:
        """Return g and the sum of (s_i - g_i)_+^2."""
        g = [number(text) for text in self.witness["thresholds"]]
        require(len(g) == self.width and min(g) >= 0, "wrong thresholds")
        pairs = zip(s, g, strict=False)
        return g, sum((max(x - y, Fraction(0)) ** 2 for x, y in pairs), Fraction(0))

    def _block_gain(self, s: list[Fraction]) -> Fraction:
        g, used = self._thresholds(s)
        weight = self.strengths[0] * self.block / self.width
        top = sum((y * y for y in sorted(g)[-self.block :]), Fraction(0))
        require(weight > 0 or top == 0, "a cost without noise")
        return used + (top / weight if top else 0)

    def _sets_gain(self, Gamma: Matrix, s: list[Fraction]) -> Fraction:
        """Return at least what any noise allows, by sets of units S with Z_S = root root'.

        What their loads leave of s goes to single units, each with Z = slack.
        """
        d = self.width
        slack = number(self.witness["slack"])
        require(slack > 0, "sets without slack")
        spare = Matrix.read([[self.witness["slack"]]])
        unit = [[spare.rows[0][0] * (i == j) for j in range(d)] for i in range(d)]
        left = Gamma.plus(Matrix([[1] * d] * d, 0)).plus(
            Matrix(unit, spare.exponent), -1
        )
        gain = Fraction(0)
        given = [[Fraction(0)] * len(s) for _ in range(d)]
        for piece in self.witness["sets"]:
            units = piece["units"]
            root = Matrix.read(piece["root"])
            loads = Matrix.read(piece["loads"])
            inside = all(type(i) is int and 0 <= i < d for i in units)
            require(
                inside and all(i < j for i, j in pairwise(units)),
                "a wrong set of units",
            )
            fits = root.shape[0] == len(units) and loads.shape == (
                root.shape[1],
                len(s),
            )
            require(fits, "a set whose matrices do not fit")
            placed = dict(zip(units, root.rows, strict=True))
            rows = [placed.get(i, (0,) * root.shape[1]) for i in range(d)]
            whole = Matrix(rows, root.exponent)
            left = left.plus(whole @ whole.T, -1)
            carried = root @ loads
            for i, row in zip(units, carried.rows, strict=True):
                for p, x in enumerate(row):
                    given[i][p] += x * Fraction(2) ** carried.exponent
            squares = sorted((loads.T @ loads).diagonal, reverse=True)
            gain += sum(squares[: len(units)], Fraction(0))
        require(
            dominated(left, identity(d)),
            "sets that are not shown to be below the noise",
        )
        for reached in given:
            gain += max((x - y) ** 2 for x, y in zip(s, reached, strict=True)) / slack
        return gain

    def _deep_gain(self, s2: list[Fraction]) -> Fraction:
        """Return at least the maximum over shares of sum_p s_p^2 F(pi_p), by dual points.

        With two or more active directions all of them lie in C, where F is concave.
        """
        require(self.network == "deep", "shares without a deep network")
        layers = zip(self.strengths, self.weights, strict=False)
        beta = [lam / W.shape[0] for lam, W in layers if lam]
        require(len(beta) > 1, "shares without two noisy layers")
        best = s2[0] / prod(1 + b for b in beta)
        bounds: dict[int, Fraction] = {}
        for dual in self.witness["shares"]:
            mu = [number(text) for text in dual["multipliers"]]
            points = [[number(text) for text in row] for row in dual["points"]]
            fits = len(mu) == len(beta) and all(len(row) == len(beta) for row in points)
            require(fits and min(mu) >= 0, "shares that do not fit the layers")
            gain = sum(mu, Fraction(0))
            for q, (x, row) in enumerate(zip(s2, points, strict=False), 1):
                gain += _tangent(x, row, mu, beta)
                bounds[q] = min(gain, bounds.get(q, gain))
        for q in range(2, len(s2) + 1):
            # C is convex: with q directions in C their mean shares, 1/q, lie in C too.
            if sum(b / (b + Fraction(2, q)) for b in beta) >= 1:
                break
            require(q in bounds, "a rank without a bound")
            best = max(best, bounds[q])
        return best

    def costs(self) -> tuple[list[Fraction], Fraction]:
        """Return (delta, gamma): the penalty is at least sum_i delta_i x_i^2 + gamma |A|^2.

        x_i is the share of unit i.
        """
        lam = self.strengths
        d = self.width
        if self.network == "deep":
            layers = zip(lam, self.weights, strict=False)
            nu = prod((1 + c / W.shape[0] for c, W in layers), start=Fraction(1)) - 1
            lam = [nu * d]
        return (lam if len(lam) == d else lam * d), Fraction(0)

    def below(self, Gamma: Matrix) -> tuple[list[Fraction], Fraction]:
        """Return the witness's costs, verified to be below the characteristic matrix."""
        d = self.width
        gamma = number(self.witness["gamma"])
        delta = [number(text) for text in self.witness["delta"]]
        require(len(delta) == d and min(delta) >= 0, "wrong costs")
        row = Matrix.read([self.witness["delta"]])
        ones = Matrix.read([[self.witness["gamma"]] * d] * d)
        spread = [[x * (i == j) for j in range(d)] for i, x in enumerate(row.rows[0])]
        D = Gamma.plus(Matrix(spread, row.exponent), -1).plus(ones, -1)
        shown = dominated(D, Matrix.read(self.witness["dominated"]))
        require(shown, "costs not shown to be below")
        return delta, gamma

    @cached_property
    def singular_values(self) -> list[Fraction]:
        """Upper bounds on the singular values of the target, or on eigenvalues if tied."""
        K, shrink = self.gram
        below = eigenvalues_below(K, Matrix.read(self.witness["basis"]))
        return (
            [x / 2 for x in below]
            if shrink is None
            else [root_above(x / shrink) for x in below]
        )

    @cached_property
    def gram(self) -> tuple[Matrix, Fraction | None]:
        """(K, c): the squared singular values of the target are at most the eigenvalues of K / c.

        Tied weights with isotropic inputs have M + M', and no c.
        """
        M = self.M
        if self.network == "tied" and self.C is None and self.X is None:
            return M.plus(M.T), None
        if self.C is not None:
            return M @ (self.C @ M.T), Fraction(1)
        shrink = Fraction(1)
        if self.witness.get("inverse_root") is not None:
            if self.X is None:
                raise RefusedError("an inverse root without data")
            XR = self.X @ Matrix.read(self.witness["inverse_root"])
            # Nearly orthonormal columns, as many as X has, span what X spans.
            require(XR.shape[1] >= self.X.shape[1], "an inverse root of low rank")
            shrink = 1 - distance(XR.T @ XR, identity(XR.shape[1]))
            M = M @ XR
            require(shrink > 0, "an inverse root that is too far from one")
        return M.T @ M if M.shape[1] <= M.shape[0] else M @ M.T, shrink

    def _operator_bound(self) -> Fraction:
        """DropConnect: 2 <Y C, M> - <Y C, Y> - lambda_max(Y C D^-1 C Y') d / lam."""
        require(self.kind == "dropconnect", "a multiplier without DropConnect")
        Y = Matrix.read(self.witness["multiplier"])
        lam = self.strengths[0]
        YC, K = self.operator
        flat = Y if self.X is not None else YC
        bound = 2 * flat.dot(self.M) - flat.dot(Y)
        top = eigenvalues_below(K, Matrix.read(self.witness["basis"]))[0]
        require(lam > 0 or top == 0, "a cost without noise")
        return bound - (top * self.width / lam if top else 0)

    @cached_property
    def operator(self) -> tuple[Matrix, Matrix]:
        """Y C (Y X for data) and what bounds Y C D^-1 C Y' from above."""
        Y = Matrix.read(self.witness["multiplier"])
        C = self.C if self.C is not None else identity(self.V.shape[0])
        YC = Y @ (C if self.X is None else self.X)
        pairs = zip(self.variances().diagonal, YC.T.rows, strict=True)
        D = [d if any(y) else Fraction(1) for d, y in pairs]
        require(min(D) > 0, "an input without variance that the multiplier uses")
        high = max(D)
        bits = 400 + max(0, high.numerator.bit_length() - high.denominator.bit_length())
        above = [
            -(-(d.denominator << bits) // d.numerator) for d in D
        ]  # 1/D, rounded up
        return YC, Matrix(
            [map(mul, y, above) for y in YC.rows], YC.exponent - bits
        ) @ YC.T


def digest(file: dict[str, Any]) -> str:
    """Return the checksum of everything but the checksum."""
    content = {name: value for name, value in file.items() if name != "sha256"}
    text = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def check(file: dict[str, Any]) -> str:
    """Return what the file proves, in one sentence; raise RefusedError if it does not."""
    try:
        require(file["format"] == FORMAT, "an unknown format")
        require(
            file["sha256"] == digest(file),
            "a checksum that does not fit: it was changed",
        )
        above, below, gap = (
            number(file["claim"][name]) for name in ("at_most", "at_least", "gap")
        )
        problem = Problem(file)
        require(above - below <= gap, "a gap that is larger than claimed")
        require(
            problem.objective() <= above * problem.samples,
            "an objective above the claim",
        )
        require(
            problem.bound() >= below * problem.samples, "a lower bound below the claim"
        )
        require(above >= below, "a lower bound above an objective")
    except (
        KeyError,
        TypeError,
        ValueError,
        IndexError,
        AttributeError,
        ArithmeticError,
    ) as error:
        raise RefusedError(
            f"not a proof file: {type(error).__name__} {error}"
        ) from None
    return problem.sentence(above, below, gap)


def main(paths: list[str]) -> int:
    """Check each file and print the verdict."""
    if not paths or paths[0].startswith("-"):
        print("usage: checker.py FILE [FILE ...]; prints accepted (0) or refused (1)")
        return 2
    for path in paths:
        try:
            print(f"accepted: {path}: {check(json.loads(Path(path).read_text()))}")
        except (RefusedError, OSError, ValueError, RecursionError) as error:
            print(f"refused: {path}: {error}")
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
