"""Proved lower bounds on the objective of a two-layer network, for any noise.

A noise costs a map A at least weight * norm(A L), or as much as units with individual costs do
(`UnitShares`): its envelope. Minimizing loss plus envelope over maps A of rank at most the width
bounds the objective from below. The bound is evaluated by weak duality at a reference point, so it
is valid whatever that point is: a mistake in the code that proposes the point can make the bound
loose, never wrong. What rounding may have added is taken off.

Noise with Gamma = diag(delta) + gamma 1 1' has the cost of a map, and the best map, exactly.
Dropout, with one probability or one per unit, has gamma = 0; noise that treats all units alike has
one delta. Let x_i = |u_i| |p_i| be the units' shares of A = U P', by increasing delta, and a the
spectrum of A. Removing k units leaves a map of nuclear norm at least a_(k+1) + a_(k+2) + ..., so
every tail of x sums to at least that tail of a; and every such x with the sum of a is realized by
some factors (Schur and Horn). The penalty is sum_i delta_i x_i^2 + gamma |a|^2, and the optimum is

    min_{a, x} |s - a|^2 + gamma |a|^2 + sum_i delta_i x_i^2,   tails of x at least those of a,

whose dual is an isotonic regression: over 0 <= y_1 <= y_2 <= ... it maximizes

    sum_i s_i^2 - (s_i - y_i)_+^2 / (1 + gamma) - y_i^2 / delta_i,

with a_i = (s_i - y_i)_+ / (1 + gamma), x_i = y_i / delta_i. Every such y bounds the objective.

For gamma <= -1 the cost is concave in a at a given sum t of it, so that all of it goes to the first
direction; units share t in proportion to 1 / delta_i. With w = 1 / sum_i 1 / delta_i >= -gamma,

    a_1 = t = s_1 / (1 + gamma + w),   s_1^2 (gamma + w) / (1 + gamma + w) + sum_(i>1) s_i^2.

Any other noise, with R = Gamma + 1 1', is bounded by sets of units. Let Z_S >= 0 (positive
semi-definite, zero outside S x S) for sets S with sum_S Z_S <= R, and let vectors c^S_p on S, in
the range of Z_S, satisfy sum_S c^S_p = s_p 1 for every singular value s_p of the target. Then

    objective >= |s|^2 - sum_S (sum of the |S| largest over p of c^S_p' Z_S^+ c^S_p).

Proof: with X_i = u_i p_i' the objective is |T|^2 - 2 sum_i <T, X_i> + sum_ij R_ij <X_i, X_j>. The
Gram matrix of the X_i is positive semi-definite, so Z_S may stand for R. The gain of a set S is at
most what matrices X_i with a common range of dimension |S| gain: complete the square, and use
Ky Fan. It is Eckart and Young's theorem with multipliers.

Circulant Gamma, with eigenvalues lam_w: averaging over rotations leaves one Z_j for each arc S_j,
sum_j f_w* Z_j f_w <= lam_w for the Fourier vectors f_w, w != 0, and c = sigma_jp Z_j 1 / (1'Z_j 1).

A conic program proposes (Z, c), solved by Clarabel; `completed` evaluates the inequality in
plain linear algebra, so a bad proposal is loose, never wrong. Without a program `pairs_below` has
the sets of one unit and the set of all units, in closed form.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations, pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from overt._check import Bools, Floats, bounded
from overt.spectral import SpectralNorm

if TYPE_CHECKING:
    from overt.linear.regression import Regression

EPS = float(np.finfo(float).eps)


@dataclass(frozen=True, eq=False)
class UnitShares:
    """The costs of units: `delta` >= 0, one entry per unit in any order, and `gamma`."""

    delta: Floats
    gamma: float = 0.0

    def shrink(self, s: Floats) -> Floats:
        """Return the spectrum a of the best map, for the leading values s of the target."""
        if self.one_direction:
            a = np.zeros(len(s))
            a[0] = s[0] / (1 + max(self.gamma + self.together, 0.0))
            return a
        return np.maximum(s - self.multipliers(s)[: len(s)], 0.0) / (1 + self.gamma)

    def bound(self, s: Floats) -> float:
        """Return the dual's value; where it cancels, less what rounding may have added."""
        if self.one_direction:
            cost = self.gamma + self.together * (1 - 8 * EPS)
            first = s[0] ** 2 * cost / (1 + cost) if cost > -1 else -np.inf
            return float(first + np.sum(s[1:] ** 2))
        delta, s, y = np.sort(self.delta), self._padded(s), self.multipliers(s)
        costs = y**2 / np.where(delta > 0, delta, 1.0)
        used = np.array([self.gamma * s**2, y * (2 * s - y)]) / (1 + self.gamma)
        terms = np.where(s > y, used, [s**2, 0 * s])
        rounding = (
            EPS * (np.sum(np.abs(terms)) + np.sum(costs)) if self.gamma < 0 else 0.0
        )
        return float(np.sum(terms[0] + terms[1] - costs) - 8 * rounding)

    def shares(self, a: Floats) -> Floats:
        """Return x, in the order of the units: their best shares of a map with spectrum a."""
        order = np.argsort(self.delta, kind="stable")
        delta = self.delta[order]
        x = self._padded(a)
        noisy = delta > 0
        tail = x[noisy]
        e = 1 / delta[noisy]
        x[noisy] = e * _pooled(
            delta[noisy], lambda i, j: np.sum(tail[i:j]) / np.sum(e[i:j])
        )
        units = np.empty(len(delta))
        units[order] = x
        return units

    @property
    def one_direction(self) -> bool:
        """Whether all of a map goes to one direction, as when a single unit survives."""
        return self.gamma <= -1 + 1e-12

    @property
    def together(self) -> float:
        """w, what a map costs whose units share it as they like."""
        if self.delta.min() == 0:
            return 0.0
        return 1 / float(np.sum(1 / self.delta))

    def _padded(self, s: Floats) -> Floats:
        return np.concatenate([s, np.zeros(len(self.delta) - len(s))])

    def multipliers(self, s: Floats) -> Floats:
        """Return y. A block i..j of noisy units has y = (s_i + ... + s_q) / (q - i + 1 + sum e).

        e = (1 + gamma) / delta, and s_q is the last of its values above y; found by bisection.
        """
        delta = np.sort(self.delta)
        y = np.zeros(len(self.delta))
        noisy = delta > 1e-290  # below, nothing is left of it beside 1
        s = self._padded(s)[noisy]
        e = (1 + self.gamma) / delta[noisy]
        h = np.concatenate([[0.0], np.cumsum(s)])

        def level(i: int, j: int) -> float:
            cost = np.sum(e[i:j])
            low = i
            high = j
            while low < high:
                q = (low + high) // 2
                above = s[q] * (q + 1 - i + cost) > h[q + 1] - h[i]
                low, high = (q + 1, high) if above else (low, q)
            return float(np.sum(s[i:low]) / (low - i + cost)) if low > i else 0.0

        y[noisy] = _pooled(delta[noisy], level)
        return y


def _pooled(delta: Floats, level: Callable[[int, int], float]) -> Floats:
    """Return the isotonic regression whose level on a block of units i..j-1 is level(i, j).

    Adjacent violators are pooled. Blocks start as runs of one delta, in which values decrease.
    """
    starts = np.flatnonzero(np.r_[len(delta) > 0, np.diff(delta) > 0]).tolist()
    blocks: list[tuple[int, int, float]] = []
    for i, j in pairwise([*starts, len(delta)]):
        first = i
        y = level(i, j)
        while blocks and blocks[-1][2] >= y:
            first = blocks.pop()[0]
            y = level(first, j)
        blocks.append((first, j, y))
    return np.concatenate([np.full(j - i, y) for i, j, y in blocks] or [np.zeros(0)])


class NormCost(NamedTuple):
    """An envelope weight * norm(A L)."""

    weight: float
    norm: SpectralNorm

    def shrink(self, s: Floats) -> Floats:
        """Return the spectrum a of the best map, for the leading values s of the target."""
        return np.asarray(self.norm.prox(s, self.weight))

    def bound(self, s: Floats) -> float:
        """Return a lower bound on |T - B|^2 + weight * norm(B) over all maps B.

        s are the leading singular values of T, as many as the width (or as can survive). By von
        Neumann's inequality the problem is one in these values; for any c,

            <c, 2 s - c> - dual(c) / weight     bounds it from below,

        with equality at c = s - a, which is not taken as a difference: nothing cancels.
        """
        if self.weight <= 0:
            return 0.0
        c = np.asarray(self.norm.shrinkage(s, self.weight))
        return float(c @ (2 * s - c) - self.norm.dual(c) / self.weight)


Envelope = NormCost | UnitShares

EXACT = 1e-9
"""Relative gap up to which a solution counts as a global optimum."""

NOTHING = 1e-14
"""Share of the largest singular value below which one is zero up to rounding."""


PAIRS = 32
"""Pairs (delta, gamma) that are tried on either side of the least eigenvalue of Gamma."""


@dataclass(frozen=True, eq=False)
class Leading:
    """Leading singular triplets of a target, and the sum of the other squared values."""

    left: Floats
    s: Floats
    right: Floats
    rest: float


def pairs_below(Gamma: Floats) -> list[UnitShares]:
    """Return costs of units with Gamma >= delta I + gamma 1 1': for each delta the largest gamma.

    With Gamma = Q diag(c) Q' and q = Q'1 that is gamma = 1 / sum_i q_i^2 / (c_i - delta), where
    delta < c_1, or delta < c_2 and the sum is negative: 1 1' lifts one direction at most.
    """
    values, Q = np.linalg.eigh(Gamma)
    ones = np.sum(Q, axis=0) ** 2
    slack = 1e-12 * values[-1]
    least = max(values[0] - 1e-13 * values[-1], 0.0)
    found = [UnitShares(np.full(len(Gamma), least))]
    for low, high in pairwise(np.maximum([0.0, *values[:2]], 0.0)):
        for delta in low + (high - low) * (np.arange(PAIRS) + 0.5) / PAIRS:
            away = values - delta
            if np.abs(away).min() <= slack:
                continue
            gamma = 1 / np.sum(ones / away)
            if away[0] > 0 or gamma < 0:
                # A little less of each makes up for rounding in the eigenvalues.
                lowered = np.full(len(Gamma), max(delta - slack, 0.0))
                found.append(UnitShares(lowered, float(gamma - 1e-9 * abs(gamma))))
    return found


@dataclass(frozen=True, eq=False)
class Relaxation:
    """Loss plus envelope in place of loss plus penalty: a convex problem that bounds it.

    `bound` holds for all weights; the map left diag(spectrum) right' attains it, in whitened
    coordinates. It is the only one, as the loss is strictly convex: `rank`, where the spectrum is
    known in closed form, is that of every optimum that reaches the bound. `multiplier`, where the
    problem was solved by iterations, is the dual point at which the bound was evaluated.
    """

    bound: float
    left: Floats
    spectrum: Floats
    right: Floats
    rank: int | None = None
    multiplier: Floats | None = None

    @property
    def kept(self) -> tuple[Floats, Floats, Floats]:
        """(left, a, right) of the directions with a > 0."""
        kept = positive(self.spectrum)
        return self.left[:, kept], self.spectrum[kept], self.right[:, kept]


@bounded
def relax(
    top: Leading,
    candidates: Sequence[Envelope],
    task: Regression,
    refined: Callable[[Floats], float] | None = None,
) -> Relaxation:
    """Return the relaxation by the envelope whose bound is highest.

    `refined`, a bound for the leading singular values of the target, raises it where it can.
    """
    bounds = [envelope.bound(top.s) for envelope in candidates]
    bound = task.residual + top.rest + max(bounds)
    a = candidates[int(np.argmax(bounds))].shrink(top.s)
    rank: int | None = int(np.sum(positive(a)))
    if refined is not None:
        raised = task.residual + top.rest + refined(top.s)
        if raised > bound:
            bound = raised
            rank = None  # the bound is not that of this map
    loss = float(np.sum((top.s - a) ** 2)) + top.rest
    bound -= task.rounding(bound, loss, float(np.sum(a)))
    return Relaxation(max(bound, 0.0), top.left, a, top.right, rank)


def positive(a: Floats) -> Bools:
    """Return which of the singular values in closed form are not zero, up to rounding."""
    return np.asarray(a > NOTHING * a[0])


def numerical_rank(s: Floats) -> int:
    """Return how many singular values are not zero up to rounding and descent's accuracy."""
    return int(np.sum(s > 1e-7 * s[0])) if s[0] > 0 else 0


ROOT2 = float(np.sqrt(2.0))

UNCORRELATED = 1e-9
"""Correlation below which two units count as independent."""

Units = tuple[int, ...]

SHRUNK = (1.0, *(1 - 10.0**-k for k in range(11, 0, -1)), 0.0)
"""Factors of all Z_S, tried in turn until what they leave of R is positive definite."""


@dataclass(frozen=True)
class ProgramOptions:
    """Sizes of the programs, chosen on rings, sliding blocks and random covariances."""

    max_width: int = 32
    """Above it a program takes minutes."""
    knots: int = 8
    """Singular values at which c is proposed; it is interpolated between them."""
    max_clique: int = 4
    """Units in sets of correlated units."""
    max_neighbors: int = 9
    """Units, itself included, that a unit may be correlated with for its pairs to be starts."""
    max_rays: int = 200
    """Sets on which Z has rank one: what one or two cliques leave."""
    max_priced_width: int = 16
    """Above it no further sets are looked for, as each round repeats the program."""
    max_rounds: int = 3
    """Programs solved, each with the sets that the one before asks for."""
    max_arc: int = 16
    """Units in the longest arc of a ring wider than 20, whose programs would be slow."""
    max_set: int = 6
    """Units in sets that are looked for."""
    rounding: float = 1e-12
    """Relative amount by which a gain is raised for rounding."""


OPTIONS = ProgramOptions()


@dataclass(frozen=True, eq=False)
class Piece:
    """Z_S = root root' on a set of units, and c^S_p = root loads_p for every direction p."""

    units: Units
    root: Floats
    loads: Floats

    @property
    def gain(self) -> float:
        """The sum of the |S| largest |loads_p|^2, at least c_p' Z^+ c_p each."""
        squares = np.sort(np.sum(self.loads**2, axis=0))[::-1]
        return float(np.sum(squares[: len(self.units)]))

    def scaled(self, kept: float, unit: float = 1.0) -> Piece:
        """Return kept times Z and c, for singular values in another unit."""
        size = np.sqrt(kept)
        return Piece(self.units, size * self.root, unit * size * self.loads)


def expected_tail(kept: float, s: Floats) -> float:
    """Return at most E sum_(p > K) s_p^2, what masks leave that keep `kept` = E K units on average.

    With a mask's K units the network has rank K (above: S the units that are kept, Z_S = P(S) r r'
    for their multipliers r). The sum is convex in K: Jensen. For equal s it is the optimum.
    """
    tails = np.append(np.cumsum(s[::-1] ** 2)[::-1], 0.0)
    rounding = 8 * len(tails) * EPS * tails[0]
    return float(np.interp(kept, np.arange(len(tails)), tails) - rounding)


def any_noise_bound(Gamma: Floats, kept: float, s: Floats) -> float:
    """Return the best bound found on |T - U P'|^2 plus the penalty.

    s are the singular values of the target, at most as many as units; masks keep `kept` units on
    average. Without Clarabel, and for widths whose programs would take minutes, only that counts.
    """
    gain = total_gain(best_pieces(Gamma, s)) * (1 + OPTIONS.rounding)
    return max(expected_tail(kept, s), float(np.sum(s**2)) - gain)


def best_pieces(Gamma: Floats, s: Floats, slack: float = 0.0) -> list[Piece]:
    """Return the best pieces found, with one on all units, such that R - sum Z >= slack I.

    There are none if no program can be solved, or if a slack is asked of a singular R.
    """
    small = 1 < len(Gamma) <= OPTIONS.max_width
    if not small or not np.any(s) or solver_package() is None:
        return []
    R = Gamma + 1
    if slack and np.linalg.eigvalsh(R)[0] < 10 * slack:
        return []
    scaled = s / s[0]
    found = [completed(R, scaled, pieces, slack) for pieces in proposals(Gamma, scaled)]
    return [piece.scaled(1.0, s[0]) for piece in min(found, key=total_gain)]


def total_gain(pieces: Sequence[Piece]) -> float:
    """Return the gain of all pieces, infinity if there are none."""
    return sum(piece.gain for piece in pieces) if pieces else np.inf


def completed(
    R: Floats, s: Floats, pieces: Sequence[Piece], slack: float = 0.0
) -> list[Piece]:
    """Return pieces with one on all units, which takes what they leave of R and of s.

    They are shrunk until what they leave is positive definite on the range of R, and larger than
    the slack. None are returned if they reach outside that range.
    """
    d = len(R)
    values, Q = np.linalg.eigh(R)
    live = values > 1e-12 * values[-1]
    dead = Q[:, ~live]
    for piece in pieces:
        outside = dead[list(piece.units)].T @ piece.root
        if np.abs(outside).max(initial=0.0) > 1e-12 * np.abs(piece.root).max():
            return []
    # Weak noise in these directions limits what they gain: they take part with what they have.
    weak = np.maximum(values[~live], d * EPS * values[-1])
    Q = Q[:, live]
    best: list[Piece] = []
    for kept in SHRUNK:
        scaled = [piece.scaled(kept) for piece in pieces]
        left = R.copy()
        rest = np.tile(s, (d, 1))
        for piece in scaled:
            left[np.ix_(piece.units, piece.units)] -= piece.root @ piece.root.T
            rest[list(piece.units)] -= piece.root @ piece.loads
        eigenvalues, vectors = np.linalg.eigh(Q.T @ left @ Q)
        eigenvalues = eigenvalues - max(2 * slack, 1e-13 * values[-1])
        if eigenvalues[0] > slack:
            axes = np.hstack([Q @ vectors, dead])
            size = np.sqrt(np.concatenate([eigenvalues, weak]))
            loads = axes.T @ rest / size[:, None]
            whole = Piece(tuple(range(d)), axes * size, loads)
            best = min(best, [*scaled, whole], key=total_gain)
    return best


def proposals(Gamma: Floats, s: Floats) -> Iterable[list[Piece]]:
    """Yield pieces for a fixed family of sets, then with sets that the duals select."""
    d = len(Gamma)
    yield []
    if is_circulant(Gamma):
        yield _cyclic_pieces(Gamma, s)
        return
    cliques, complete = _cliques(Gamma)
    inverse_mean = 1 + np.diag(Gamma)  # of 0/1 masks
    bases = [(units, np.eye(len(units))) for units in cliques]
    bases += [(units, inverse_mean[list(units), None]) for units in _rays(complete, d)]
    for _ in range(OPTIONS.max_rounds if d <= OPTIONS.max_priced_width else 1):
        pieces, duals = _solve(Gamma + 1, s, bases)
        yield pieces
        found = _priced(*duals, {units for units, _ in bases}, limit=2 * d)
        if not found:
            break
        bases += [(units, np.eye(len(units))) for units in found]


def is_circulant(Gamma: Floats) -> bool:
    """Return whether every row is the one before, moved by one."""
    moved = np.roll(np.roll(Gamma, 1, axis=0), 1, axis=1)
    return bool(np.abs(moved - Gamma).max() <= 1e-13 * np.abs(Gamma).max())


def _cyclic_pieces(Gamma: Floats, s: Floats) -> list[Piece]:
    """Propose pieces on all rotations of arcs for a circulant noise."""
    clarabel = solver_package()
    d = len(Gamma)
    lam = np.maximum(np.real(np.fft.fft(Gamma[0]))[: d // 2 + 1], 0.0)
    lam[lam < 1e-12 * lam.max()] = 0.0
    lam[0] += d
    live = np.flatnonzero(lam)
    frequencies = np.arange(len(lam))
    longest = d - 1 if d <= 20 else OPTIONS.max_arc
    program = Program()
    load: list[list[tuple[int, float]]] = [[] for _ in lam]
    total: list[list[tuple[int, float]]] = [[] for _ in s]
    made = []
    for size in [*range(1, longest + 1), d]:
        if size < d:
            F = np.exp(2j * np.pi * np.outer(frequencies, np.arange(size)) / d)
        else:  # all units: Z = gamma 1 1'
            F = np.eye(len(lam), 1, dtype=complex) * d
        basis = _kernel(F[lam == 0])
        m = basis.shape[1]
        if m == 0:
            continue
        F = F @ basis
        K = np.real(F[:, :, None] * F.conj()[:, None, :])
        Y = program.symmetric(m)
        c = program.new(len(s))
        e = program.new(len(s))
        gamma = program.new(1)
        program.add_semidefinite(Y)
        for w in live:
            load[w] += [(Y[i, j], -K[w, i, j] / lam[w]) for i, j in np.ndindex(m, m)]
        ones = [(Y[i, j], K[0, i, j] / d) for i, j in np.ndindex(m, m)]
        program.add([[(gamma[0], -1.0), *ones]], clarabel.ZeroConeT(1))
        for p in range(len(s)):  # [gamma c; c e] >= 0
            square = np.array([[gamma[0], c[p]], [c[p], e[p]]])
            program.add_semidefinite(square)
            total[p].append((c[p], -1.0))
        program.add_largest(e, size, np.eye(len(s)))
        if size < d:
            made.append((size, basis, Y, c))
    program.add(
        [load[w] for w in live], clarabel.NonnegativeConeT(len(live)), [1.0] * len(live)
    )
    program.add(total, clarabel.ZeroConeT(len(s)), s.tolist())
    x, _ = program.solve()
    pieces = []
    for size, basis, Y, c in made:
        values, vectors = np.linalg.eigh(x[Y])
        kept = values > 1e-9 * max(values[-1], 1e-12)
        root = basis @ vectors[:, kept] * np.sqrt(values[kept])
        along = np.sum(root, axis=0)
        weight = float(np.sum(along**2))  # 1'Z 1
        if weight > 1e-9:
            loads = np.outer(along / weight, x[c])
            for first in range(d):
                units = (np.arange(size) + first) % d
                order = np.argsort(units)
                pieces.append(Piece(tuple(units[order].tolist()), root[order], loads))
    return pieces


def _kernel(F: Any) -> Floats:
    """Return a basis of the vectors that complex rows F map to zero."""
    rows = np.vstack([F.real, F.imag, np.zeros((1, F.shape[1]))])
    rank = int(np.linalg.matrix_rank(rows, 1e-9))
    return np.asarray(np.linalg.svd(rows)[2][rank:].T)


def _cliques(Gamma: Floats) -> tuple[list[Units], list[Units]]:
    """Return sets of correlated units, grown from every unit, and those that no unit can join.

    Where a unit has few neighbors, sets that no unit can join are grown from all pairs: these are
    the blocks that are dropped together.
    """
    d = len(Gamma)
    size = np.sqrt(np.maximum(np.diag(Gamma), 1e-300))
    strength = np.abs(Gamma / np.outer(size, size))
    strength[strength < UNCORRELATED] = 0.0
    starts = [[first] for first in range(d)]
    for first in range(d):
        neighbors = np.flatnonzero(strength[first]).tolist()
        if len(neighbors) <= OPTIONS.max_neighbors:
            starts += [[first, other] for other in neighbors if other > first]
    found: dict[Units, bool] = {}
    for start in starts:
        units = start.copy()
        complete = False
        while not complete and len(units) <= min(OPTIONS.max_clique, d - 1):
            joining = strength[units].sum(axis=0)
            joining[strength[units].min(axis=0) == 0] = 0.0
            joining[units] = 0.0
            complete = not joining.any()
            if complete or len(start) == 1:
                found[tuple(sorted(units))] = complete
            units.append(int(np.argmax(joining)))
    return list(found), [units for units, complete in found.items() if complete]


def _rays(complete: list[Units], d: int) -> list[Units]:
    """Return what one or two of the sets leave, as blocks that are dropped do."""
    everything = set(range(d))
    one = [tuple(sorted(everything.difference(a))) for a in complete]
    two = [
        tuple(sorted(everything.difference(a, b))) for a, b in combinations(complete, 2)
    ]
    return [units for units in dict.fromkeys(one + two) if units][: OPTIONS.max_rays]


def solver_package() -> Any:
    """Return the package Clarabel, None if it is not installed."""
    try:
        import clarabel  # type: ignore[import-untyped]
    except ModuleNotFoundError:
        return None
    return clarabel


class Program:
    """A conic program: minimize cost.x with A x + slack = b, slack in cones."""

    def __init__(self) -> None:
        self.variables = 0
        self.rows = 0
        self.entries: list[tuple[int, int, float]] = []
        self.constants: list[float] = []
        self.cones: list[Any] = []
        self.cost: dict[int, float] = {}

    def new(self, *shape: int) -> Any:
        """Return the numbers of new variables."""
        count = int(np.prod(shape))
        self.variables += count
        return np.arange(self.variables - count, self.variables).reshape(shape)

    def symmetric(self, size: int) -> Any:
        """Return the numbers of the variables of a symmetric matrix."""
        Y = np.zeros((size, size), dtype=int)
        Y[np.triu_indices(size)] = self.new(size * (size + 1) // 2)
        return np.maximum(Y, Y.T)

    def add(
        self,
        rows: list[list[tuple[int, float]]],
        cone: Any,
        constants: Sequence[float] = (),
    ) -> int:
        """Require constants + rows.x to lie in the cone; return the number of the first row."""
        first = self.rows
        for i, row in enumerate(rows):
            self.entries += [(first + i, j, -value) for j, value in row]
        self.constants += list(constants) or [0.0] * len(rows)
        self.rows += len(rows)
        self.cones.append(cone)
        return first

    def add_semidefinite(self, block: Any) -> None:
        """Require a symmetric matrix of variables to be positive semi-definite."""
        rows = [[(block[i, j], factor)] for i, j, factor in _triangle(len(block))]
        self.add(rows, solver_package().PSDTriangleConeT(len(block)))

    def add_largest(self, e: Any, count: int, Theta: Floats) -> None:
        """Add the sum of the `count` largest entries of Theta e to the cost."""
        clarabel = solver_package()

        if count >= len(Theta):
            self.cost.update(zip(e.tolist(), Theta.sum(axis=0), strict=True))
            return
        rows, times = np.unique(Theta, axis=0, return_counts=True)
        level = int(self.new(1)[0])
        above = self.new(len(rows))
        self.cost[level] = float(count)
        self.cost.update(zip(above.tolist(), times.astype(float), strict=True))
        lines = [[(x, 1.0)] for x in above]
        for x, row in zip(above, rows, strict=True):
            used = [(j, -h) for j, h in zip(e, row, strict=True) if h]
            lines.append([(level, 1.0), (x, 1.0), *used])
        self.add(lines, clarabel.NonnegativeConeT(len(lines)))

    def solve(self) -> tuple[Floats, Floats]:
        """Return the variables and the dual variables of all rows."""
        from scipy import sparse

        clarabel = solver_package()

        i, j, values = zip(*self.entries, strict=True)
        cost = np.zeros(self.variables)
        cost[list(self.cost)] = list(self.cost.values())
        A = sparse.csc_matrix((values, (i, j)), shape=(self.rows, self.variables))
        settings = clarabel.DefaultSettings()
        settings.verbose = False
        settings.tol_gap_abs = settings.tol_gap_rel = settings.tol_feas = 1e-10
        quadratic = sparse.csc_matrix((self.variables, self.variables))
        solver = clarabel.DefaultSolver(
            quadratic, cost, A, np.array(self.constants), self.cones, settings
        )
        found = solver.solve()
        return np.array(found.x), np.array(found.z)


def _triangle(size: int) -> list[tuple[int, int, float]]:
    """Return (i, j, factor) of an upper triangle as Clarabel orders and scales it."""
    return [(i, j, 1.0 if i == j else ROOT2) for j in range(size) for i in range(j + 1)]


def _knots(s: Floats) -> tuple[Floats, Floats]:
    """Return (Theta, t) with s = Theta t, Theta >= 0 with rows that sum to one, t few values."""
    t = np.unique(s)[::-1]
    if len(t) > OPTIONS.knots:
        places = np.linspace(0, len(t) - 1, OPTIONS.knots)
        t = np.interp(places, np.arange(len(t)), t)
    if len(t) == 1:
        return np.ones((len(s), 1)), t
    return np.array([np.interp(-s, -t, row) for row in np.eye(len(t))]).T, t


def _solve(
    R: Floats, s: Floats, bases: list[tuple[Units, Floats]]
) -> tuple[list[Piece], tuple[Floats, Floats, Floats]]:
    """Propose Z_S = B Y B' and c^S = B g for every (S, B); the remainder goes to all units."""
    clarabel = solver_package()

    d = len(R)
    Theta, t = _knots(s)
    q = len(t)
    weight = np.sqrt(Theta.sum(axis=0))
    program = Program()
    of_Z: dict[tuple[int, int], list[tuple[int, float]]] = {}
    of_c: dict[tuple[int, int], list[tuple[int, float]]] = {}
    made = []
    for units, B in bases:
        m = B.shape[1]
        Y = program.symmetric(m)
        g = program.new(m, q)
        e = program.new(q)
        made.append((units, B, Y, g))
        for level in range(q):  # [Y g; g' e] >= 0: e is at least g' Y^-1 g
            block = np.block([[Y, g[:, [level]]], [g[:, [level]].T, e[[level], None]]])
            program.add_semidefinite(block)
        program.add_largest(e, len(units), Theta)
        for a, i in enumerate(units):
            for b, j in enumerate(units):
                if i <= j:
                    terms = [
                        (Y[x, y], -B[a, x] * B[b, y])
                        for x, y in np.ndindex(m, m)
                        if B[a, x] * B[b, y]
                    ]
                    of_Z.setdefault((i, j), []).extend(terms)
            for level in range(q):
                terms = [
                    (g[x, level], -B[a, x] * weight[level]) for x in range(m) if B[a, x]
                ]
                of_c.setdefault((i, level), []).extend(terms)
    # [R - sum Z, C; C', W] >= 0 with C what is left of s; tr W is the gain of all units.
    W = program.symmetric(q)
    rows = []
    constants = []
    for i, j, factor in _triangle(d + q):
        if j < d:
            terms = of_Z.get((i, j), [])
            constant = float(R[i, j])
        elif i < d:
            terms = of_c.get((i, j - d), [])
            constant = float(weight[j - d] * t[j - d])
        else:
            terms = [(W[i - d, j - d], 1.0)]
            constant = 0.0
        rows.append([(variable, factor * value) for variable, value in terms])
        constants.append(factor * constant)
    program.cost.update((W[i, i], 1.0) for i in range(q))
    first = program.add(rows, clarabel.PSDTriangleConeT(d + q), constants)
    x, z = program.solve()
    D = np.zeros((d + q, d + q))
    for (i, j, factor), value in zip(_triangle(d + q), z[first:], strict=True):
        D[i, j] = D[j, i] = value / factor
    pieces = [
        _piece(units, B @ x[Y] @ B.T, B @ x[g] @ Theta.T) for units, B, Y, g in made
    ]
    return [piece for piece in pieces if piece is not None], (
        D[:d, :d],
        D[:d, d:] * weight,
        weight**2,
    )


def _piece(units: Units, Z: Floats, c: Floats) -> Piece | None:
    """Return a piece with Z clipped at zero and c projected on its range."""
    values, vectors = np.linalg.eigh((Z + Z.T) / 2)
    kept = values > 1e-9 * max(values[-1], 1e-12)
    if not kept.any():
        return None
    root = vectors[:, kept] * np.sqrt(values[kept])
    loads = vectors[:, kept].T @ c / np.sqrt(values[kept])[:, None]
    return Piece(units, root, loads)


def _priced(
    T: Floats, Y: Floats, counts: Floats, known: set[Units], limit: int
) -> list[Units]:
    """Return new sets that can raise the bound, grown greedily from every unit by their score."""
    d = len(T)
    found: dict[Units, float] = {}
    for first in range(d):
        units: Units = (first,)
        while len(units) < min(OPTIONS.max_set, d - 1):
            grown = [tuple(sorted((*units, j))) for j in range(d) if j not in units]
            scores = [_score(candidate, T, Y, counts) for candidate in grown]
            best = int(np.argmax(scores))
            units = grown[best]
            if units not in known and scores[best] > 1.001:
                found[units] = scores[best]
    return sorted(found, key=lambda units: -found[units])[:limit]


def _score(units: Units, T: Floats, Y: Floats, counts: Floats) -> float:
    """Return max over z on S of |z'Y|^2 in the k-support norm over z'T z: above one, S helps."""
    k = len(units)
    rows = list(units)
    K = T[np.ix_(rows, rows)] + 1e-9 * np.trace(T) / len(T) * np.eye(k)
    whitened = np.linalg.solve(np.linalg.cholesky(K), Y[rows])
    occupancy = counts * min(1.0, k / counts.sum())
    best = 0.0
    for _ in range(4):  # z and the occupancies of the norm in turn
        z = np.linalg.svd(whitened / np.sqrt(occupancy), full_matrices=False)[0][:, 0]
        v = np.abs(z @ whitened) + 1e-15
        ends = np.r_[0.0, np.sort(counts / v)]
        if counts.sum() <= k:
            level = ends[-1]
        else:
            sums = [np.minimum(counts, end * v).sum() for end in ends]
            level = float(np.interp(k, sums, ends))
        filled = np.minimum(counts, level * v) + 1e-12
        best = max(best, float(np.sum(v**2 / filled)))
        occupancy = np.sqrt(occupancy * filled) + 1e-12
    return best
