"""The last layers: their noise, their spectra, and a lower bound on the squared objective.

Let the output be f = U (m o g(x)) + b: m the multipliers of a noise, U and b the affine map behind
them, g(x) the units before the noise. Y holds targets as rows over the n samples, divided by
sqrt(n), and P subtracts means over samples. For the squared loss

    objective >= min over A of rank at most r: |P Y - A|^2 + w N(A),

(w, N) an envelope of the penalty and r the fewest units on the way. With units h fixed and
C = E[h h'], the best last layer is a ridge regression, U (Cov(h) + Gamma o C) = Cov(y, h). The
guide on auditing has the proofs.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from scipy.linalg import solve_triangular
from torch import Tensor, nn

from overt._check import Floats
from overt.linear.bounds import NormCost, numerical_rank
from overt.nn.auditing.measurements import Seen
from overt.nn.auditing.report import HeadFindings
from overt.nn.auditing.structure import (
    Inspection,
    Point,
    Structure,
    drop_prob_of,
    is_linear_map,
    module_of,
)
from overt.nn.graph.record import op_info
from overt.nn.layers.masks import MaskCovariance
from overt.nn.layers.recognized import (
    is_silent,
    is_unit_noise,
    is_weight_noise,
    known_noise,
    mask_covariance_of,
)
from overt.spectral import KSupport

MAX_UNITS = 2048
"""The widest last layer whose second moments are stored (34 MB), or whose noise has its covariance
matrix decomposed."""

UNUSED = 1e-12
"""A unit whose root mean square is this fraction of the largest one counts as zero."""

SINGULAR = 1e-11
"""Eigenvalues below this fraction of the trace are rounding errors of zero."""

ROUNDING = 1e-14
"""Squared singular values below this fraction of their sum are rounding errors of zero."""


@dataclass(frozen=True, eq=False)
class TailNoise:
    """A noise in the tail: R with E|R ((m - 1) o h)|^2 what it adds to the squared loss.

    h are the units before the noise layer `name`, m the multipliers with this covariance.
    """

    name: str
    covariance: MaskCovariance
    R: Tensor

    def penalty(self, h: Tensor) -> float:
        """Return <Gamma, R'R o mean(h h')>, with the noise of all layers behind it on."""
        rows = self.R.to(h.device)
        return float(self.covariance.penalty(h.double(), rows))


@dataclass(frozen=True, eq=False)
class Head:
    """The units before the last layers, and the noise that multiplies them.

    `name` is that of the noise layer, or of the linear layer where there is no noise. `centered`
    says that a bias is added behind it; `rank` is the fewest units on the way to the output.
    `noises` have exact penalties, the nearest comes first.
    """

    name: str
    centered: bool
    units: int
    rank: int
    covariance: MaskCovariance
    noises: list[TailNoise]


def _noise_on_units(module: Any) -> Any:
    """Return the noise on the units before a layer: its own, or that of the weights it drops.

    A dropped weight of the last layer adds what a dropped input adds.
    """
    if is_unit_noise(module):
        return module
    return nn.Dropout(module.drop_prob if known_noise(module) else 0.0)


def _tail_noises(
    structure: Structure, tail: list[Point], names: dict[Any, str], J: Tensor
) -> list[TailNoise]:
    """Return the noises of the tail whose penalties are exact, nearest first.

    Let E|R x|^2 be what a deviation x of some units adds. Where they are multiplied by a noise,
    E|R (m o x)|^2 = |S x|^2 with S'S = R'R + Gamma o R'R, and where an affine map with the linear
    part A leads from other units to these, theirs have R = S A.
    """
    found: list[TailNoise] = []
    behind = tail[0].features
    R = J
    for point in tail:
        module: Any = point.module
        if not _is_noise(module):
            continue
        if found:
            previous = found[-1].covariance
            if not is_unit_noise(module) or R.shape[1] > MAX_UNITS:
                break
            if drop_prob_of(module) == 1:
                break
            A = structure.jacobian(point.features, behind)
            if not is_affine(point.features, behind, A):
                break
            R = torch.cat([R, _root(previous, R)]) @ A
            behind = point.features
        shape = (1, *point.features.shape[1:])
        covariance = mask_covariance_of(_noise_on_units(module), shape)
        found.append(TailNoise(names[module], covariance, R))
    return found


def _root(covariance: MaskCovariance, R: Tensor) -> Tensor:
    """Return S with S'S = Gamma o R'R."""
    if covariance.independent:
        return torch.diag(covariance.strength**0.5 * R.norm(dim=0))
    gram = covariance.dense(R) * (R.T @ R)
    values, vectors = torch.linalg.eigh(gram)
    return values.clamp(min=0).sqrt()[:, None] * vectors.T


def is_affine(h: Tensor, f: Tensor, J: Tensor, *, centered: bool = True) -> bool:
    """Return whether f is J h; if `centered`, whether it differs by J times the difference of h."""
    if len(h) != len(f):
        return False
    predicted = h.double().flatten(1).cpu() @ J.T
    actual = f.double().reshape(len(f), -1).cpu()
    largest = float(predicted.abs().max())
    largest += float(actual.abs().max())
    rounding = 100 * torch.finfo(h.dtype).eps * largest
    if centered:
        actual = actual - actual.mean(0)
        predicted = predicted - predicted.mean(0)
    slack = rounding + 1e-2 * float(predicted.abs().max())
    return torch.allclose(predicted, actual, rtol=0.0, atol=slack)


def _is_noise(module: Any) -> bool:
    """Return whether a module is noise whose moments are known, and not switched off."""
    return module is not None and known_noise(module) and not is_silent(module)


def unit_envelopes(covariance: MaskCovariance) -> list[NormCost]:
    """Return pairs (w, N) with <Gamma, U'U o G'G> >= w N(G U') for all U and G.

    Three steps lead from the noises of `overt.linear` to masks over a sample's axes:

    - units that share a mask in groups of s act as one block, G_i U_i' of rank at most s, whose
      cost is |.|_F^2: the k-support norm gives way to the (s k)-support norm;
    - c groups of units with independent noise have penalties that add, and convexity of N gives
      sum_g w N(A_g) >= (w / c) N(sum_g A_g);
    - the order of the units does not matter: one in which Gamma has a narrow band is taken.
    """
    units = math.prod(covariance.shape)
    # Units that share a multiplier.
    copies = math.prod(covariance.shape[axis] for axis in covariance.shared)
    if covariance.matrix is None:
        weight = covariance.strength * copies / units
        return [NormCost(weight, KSupport(copies))]
    Gamma = covariance.matrix.double().cpu().numpy()
    if len(Gamma) > MAX_UNITS:
        return [NormCost(0.0, KSupport(1))]
    from scipy.sparse import csr_array
    from scipy.sparse.csgraph import reverse_cuthill_mckee

    order = reverse_cuthill_mckee(csr_array(Gamma), symmetric_mode=True)
    groups = units // len(Gamma) // copies
    found = _envelopes(Gamma[np.ix_(order, order)])
    return [NormCost(w / groups, KSupport(copies * k)) for w, k in found]


def _envelopes(Gamma: Floats) -> list[tuple[float, int]]:
    """Return pairs (w, k) with <Gamma, U'U o G'G> >= w |U G'|^2 in the k-support norm.

    Gamma >= delta I in the positive semi-definite order, and U'U o G'G is positive semi-definite,
    so it is at least (delta/d) |U G'|_*^2, which is k = 1. Moreover, if Gamma_ij = 0 for
    |i - j| >= k, it is a sum of z z' with at most k entries of z not zero; each adds
    |sum_i z_i u_i g_i'|_F^2, the square of a map of rank at most k, and these maps combine to
    U G', whence

        <Gamma, U'U o G'G> >= w ksupport_k(U G')^2,  w = 1 / (1' Gamma^-1 1).
    """
    d = len(Gamma)
    values, vectors = np.linalg.eigh(Gamma)
    smallest = max(0.0, values[0] - 1e-13 * values[-1])
    live = values > 1e-10 * values[-1]
    ones = np.sum(vectors, axis=0)
    weight = 0.0
    if np.allclose(ones[~live], 0.0, atol=1e-8):
        inverse = np.sum(ones[live] ** 2 / values[live])
        weight = (1 - 1e-9) / float(inverse)
    i, j = np.nonzero(Gamma)
    farthest = np.max(np.abs(i - j), initial=0)
    band = int(farthest) + 1
    return [(smallest / d, 1), (weight, band)]


def find_head(model: nn.Module, structure: Structure, noises: Inspection) -> Head | str:
    """Return the head, or the reason why there is none."""
    tail, stop = structure.walk_back(structure.output)
    names = {part: path for path, part in model.named_modules()}
    if stop is not None and module_of(stop) is not None:
        why = (
            "in training it normalizes by each batch: no bound counts the noise before it, and "
            "the objective here is that with its running statistics"
        )
        noises.skipped.append((names[module_of(stop)], why))
    start = _first_place(tail)
    if start is None:
        if any(is_linear_map(q.call) for q in tail):
            return "the last linear map is not a torch.nn.Linear layer: no bound is taken from it"
        stopped = "the input" if stop is None else op_info(stop.func).name.lstrip("_")
        return (
            f"the output comes from {stopped}, which is not known to be affine in "
            "one input: no bound, and no prediction of its spectrum"
        )
    tail = tail[start:]
    point = tail[0]
    module: Any = point.module
    noisy = known_noise(module)
    name = names[module]
    if noises.unknown_noise_behind(name, module):
        return (
            f"noise whose law is not known is sampled behind {name}: no bound is taken"
        )
    if drop_prob_of(module) == 1:
        return f"{name} drops everything: no bound is taken from it"
    uses = structure.uses(module)
    calls = {noises.called[module]}
    if noisy:
        calls.add(noises.samples(name))
    if uses[-1] is not point.call or calls != {len(uses)}:
        return f"{name} is called again behind its place: no bound is taken from it"
    if point.features.shape[0] != len(structure.output):
        return f"the rows that {name} takes differ from the batch's: no bound is taken from it"
    inputs = structure.units(point.features)
    if is_weight_noise(module) and inputs != module.weight[0].numel():
        return f"the weights that {name} drops meet several positions: no bound is taken from it"
    J = structure.jacobian(point.features, structure.output)
    if not is_affine(point.features, structure.output, J, centered=point.shifted):
        return f"what lies behind {name} is not affine"
    shape = (1, *point.features.shape[1:])
    return Head(
        name=name,
        centered=point.shifted,
        units=inputs,
        rank=tail[-1].narrowest,
        covariance=mask_covariance_of(_noise_on_units(module), shape),
        noises=_tail_noises(structure, tail, names, J) if noisy else [],
    )


def _first_place(tail: list[Point]) -> int | None:
    """Return the number of the point with the noise nearest the output, or of the last layer."""
    linear = next((i for i, q in enumerate(tail) if is_linear_map(q.call)), None)
    for i, point in enumerate(tail):
        module: Any = point.module
        if not _is_noise(module):
            continue
        if is_unit_noise(module):
            return i
        if i == linear:
            return i if module.weight.ndim == 2 else None
    last = None if linear is None else tail[linear].module
    return linear if isinstance(last, nn.Linear) else None


class LastLayer:
    """Second moments of the units that feed the last layers, and what follows from them.

    Rows are (1, h, y, f): units (unless there are many), targets and outputs.
    """

    def __init__(self, head: Head, outputs: int) -> None:
        self.head = head
        self._has_units = head.units <= MAX_UNITS
        units = head.units if self._has_units else 0
        self._h = slice(1, 1 + units)
        self._y = slice(self._h.stop, self._h.stop + outputs)
        self._f = slice(self._y.stop, self._y.stop + outputs)
        self._total: Any = 0.0
        self._rows = 0
        self._origin: Any = None

    def add(self, seen: Seen) -> None:
        """Add a batch."""
        n = len(seen.output)
        both = torch.stack([seen.targets.rows, seen.output.double()])
        if self._origin is None:
            # Numbers far from 0 would lose their digits in centered moments.
            self._origin = both.mean(1, keepdim=True) * self.head.centered
        columns = [both.new_ones(n, 1), *(both - self._origin)]
        if self._has_units:
            units = seen.units[self.head.name]
            columns.insert(1, units.double().reshape(n, -1))
        rows = torch.cat(columns, 1)
        self._total = self._total + rows.T @ rows
        self._rows += n

    def finish(self, objective: float, error: float, scale: float) -> HeadFindings:
        """Return what the layer does beside what theory says of `scale` times a squared error."""
        head = self.head
        moments = self._total.cpu().numpy() / self._rows
        second = moments
        if head.centered:
            second = moments - np.outer(moments[0], moments[0])
        target = _singular_values(second[self._y, self._y])
        bound, predicted = _squared_bound(target, head)
        best = None
        if self._has_units:
            best = scale * self._best_last_layer(moments, second)
        gap = objective - scale * bound
        return HeadFindings(
            name=head.name,
            width=head.units,
            rank_limit=head.rank,
            centered=head.centered,
            target_spectrum=target,
            predicted_spectrum=predicted,
            spectrum=_singular_values(second[self._f, self._f]),
            predicted_rank=numerical_rank(predicted),
            lower_bound=scale * bound,
            best_last_layer=best,
            gap=gap,
            gap_error=error,
            relative_gap=gap / objective if objective else 0.0,
        )

    def _best_last_layer(self, moments: Floats, second: Floats) -> float:
        """Return the least objective of a ridge regression on the units."""
        like = torch.zeros(1, dtype=torch.float64)
        Gamma = self.head.covariance.dense(like).numpy()
        h = self._h
        A = second[h, h] + Gamma * moments[h, h]
        B = second[h, self._y]
        explained = _explained(A, B)
        total = float(np.trace(second[self._y, self._y]))
        return max(total - explained, 0.0)


def _singular_values(gram: Floats) -> Floats:
    """Return singular values, in decreasing order, from products of all pairs of columns."""
    squares = np.linalg.eigvalsh(gram)[::-1]
    is_zero = squares <= ROUNDING * squares.sum()
    return np.sqrt(np.where(is_zero, 0.0, squares))


def _squared_bound(target: Floats, head: Head) -> tuple[float, Floats]:
    """Return the largest bound, and the spectrum that would attain it."""
    m = target[: head.rank]
    costs = unit_envelopes(head.covariance)
    bounds = [cost.bound(m) for cost in costs]
    best = int(np.argmax(bounds))
    rest = float(np.sum(target[head.rank :] ** 2))
    return bounds[best] + rest, costs[best].shrink(m)


def _explained(A: Floats, B: Floats) -> float:
    """Return the trace of B' A^+ B for a positive semi-definite A."""
    size = np.sqrt(np.maximum(np.diag(A), 0.0))
    used = size > UNUSED * size.max(initial=0.0)
    scale = size[used, None]
    A = A[np.ix_(used, used)] / scale / scale.T
    B = B[used] / scale
    try:
        L = np.linalg.cholesky(A)
        if np.diag(L).min(initial=1.0) ** 2 > SINGULAR * len(A):
            return float(np.sum(solve_triangular(L, B, lower=True) ** 2))
    except np.linalg.LinAlgError:
        pass
    values, vectors = np.linalg.eigh(A)
    live = values > SINGULAR * len(A)
    images = vectors[:, live].T @ B
    return float(np.sum(images**2 / values[live, None]))
