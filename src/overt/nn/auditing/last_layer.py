"""The last layers: their noise, their spectra, a lower bound, and the best drop probability.

`Head` is the affine map behind the last noise and what that noise induces; `LastLayer` sums over
the data and compares the network with its optimum, by `overt.nn.auditing.lower_bounds`.
"""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from overt._check import Floats
from overt.linear.bounds import NormCost, numerical_rank
from overt.nn.auditing import lower_bounds as theory
from overt.nn.auditing.lower_bounds import LastLayerProblem, Target, norm_cost
from overt.nn.auditing.measurements import Mean, Seen
from overt.nn.auditing.report import HeadFindings, LowerBound, Suggestion
from overt.nn.auditing.structure import (
    Inspection,
    Point,
    Structure,
    drop_prob_of,
    is_linear_map,
    only_moves,
)
from overt.nn.data.losses import Loss, is_squared, unit
from overt.nn.layers.masks import MaskCovariance
from overt.nn.layers.recognized import (
    is_unit_noise,
    is_weight_noise,
    known_noise,
    mask_covariance_of,
    plain_dropout,
)
from overt.spectral import nu

MAX_UNITS = 2048
"""The widest last layer whose second moments are stored (200 MB), or whose noise has its covariance
matrix decomposed."""

MAX_INPUTS = 2048
"""The most inputs whose second moments are stored: 34 MB."""

CANDIDATES = np.round(np.arange(0, 0.96, 0.05), 2)
"""Drop probabilities among which one is suggested."""

FOLDS = 6
"""Parts of the rows: the best last layer is computed on part 0 and tested on the other five."""


@dataclass(frozen=True, eq=False)
class TailPart:
    """A part of the tail that gives a bound: what its noise costs a map, and what lies before it.

    `centered` says that a bias is added behind the noise. `trunk` is what lies before it: "fixed"
    (the inputs themselves), "affine" or "any"; `shifted` says that a bias is added there.
    """

    centered: bool
    rank: int
    trunk: str
    shifted: bool
    envelopes: list[NormCost]
    source: str


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
        return float(self.covariance.penalty(h.double(), self.R.to(h.device)))


class Head:
    """The units before the last layers, the noise that multiplies them, the map J behind them.

    `name` is that of the noise layer, or of the linear layer where there is no noise (`noisy` is
    False); `centered` says that a bias is added behind it. `shape` is that of a sample's units.
    `parts` are the parts of the tail that give
    bounds, and `noises` the noises in it whose penalties are exact for the squared loss; those of
    the nearest noise come first.
    """

    def __init__(
        self, structure: Structure, tail: list[Point], names: dict[Any, str], J: Tensor
    ) -> None:
        point = tail[0]
        module: Any = point.module
        self.name = names[module]
        self.noisy = known_noise(module)
        self.centered = point.shifted
        self.shape = point.features.shape[1:]
        self.units = math.prod(self.shape)
        self._noise = _noise_on_units(module)
        self.drop_prob = drop_prob_of(self._noise)
        self.covariance = mask_covariance_of(self._noise, (1, *self.shape))
        source = (
            "Structured dropout, Theorem 2.7; Implicit bias of dropout, Theorem 3.6"
        )
        costs = unit_envelopes(self.covariance)
        self.parts = [_tail_part(structure, point, costs, source)]
        plain = [q for q in tail if q.module and plain_dropout(q.module) is not None]
        used_once = len({q.module for q in plain}) == len(plain)
        if len(plain) > 1 and used_once and not is_weight_noise(module):
            # What all plain dropout layers in the tail cost together.
            widths = [structure.units(q.features) for q in plain]
            probs: list[Any] = [plain_dropout(q.module) for q in plain]
            costs = [norm_cost(nu(widths, probs), 1)]
            source = "Thesis, Theorem 9 and Lemma 9"
            self.parts.append(_tail_part(structure, plain[-1], costs, source))
        self.noises = _tail_noises(structure, tail, names, J) if self.noisy else []

    def Gamma(self, p: float | None = None) -> Floats:
        """Return the covariance of the flattened units' multipliers, at a drop probability."""
        covariance = self.covariance
        if p is not None:
            noise = copy.deepcopy(self._noise)
            noise.p = p
            covariance = mask_covariance_of(noise, (1, *self.shape))
        return np.asarray(covariance.dense(torch.zeros(1, dtype=torch.float64)))


def _noise_on_units(module: Any) -> Any:
    """Return the noise on the units before a layer: its own, or that of the weights it drops.

    A dropped weight of the last layer adds what a dropped input adds.
    """
    if is_unit_noise(module):
        return module
    return nn.Dropout(module.drop_prob if known_noise(module) else 0.0)


def _copies(covariance: MaskCovariance) -> int:
    """Return how many units share a multiplier."""
    return math.prod(covariance.shape[axis] for axis in covariance.shared)


def _tail_part(
    structure: Structure, point: Point, envelopes: list[NormCost], source: str
) -> TailPart:
    """Return the part of the tail behind a noise."""
    before, stopped = structure.walk_back(point.features)
    trunk = "any"
    if not stopped:
        trunk = "fixed" if all(only_moves(q.call) for q in before) else "affine"
    rank = min(q.narrowest for q in (point, *before))
    shifted = bool(before) and before[-1].shifted
    return TailPart(point.shifted, rank, trunk, shifted, envelopes, source)


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
        if module is None or not known_noise(module):
            continue
        if found:
            previous = found[-1].covariance
            if not is_unit_noise(module) or R.shape[1] > MAX_UNITS:
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
    values, vectors = torch.linalg.eigh(covariance.dense(R) * (R.T @ R))
    return values.clamp(min=0).sqrt()[:, None] * vectors.T


def is_affine(h: Tensor, f: Tensor, J: Tensor, *, centered: bool = True) -> bool:
    """Return whether f is J h; if `centered`, whether it differs by J times the difference of h."""
    if len(h) != len(f):
        return False
    predicted = h.double().flatten(1).cpu() @ J.T
    actual = f.double().reshape(len(f), -1).cpu()
    largest = float(predicted.abs().max())
    rounding = 100 * torch.finfo(h.dtype).eps * (largest + float(actual.abs().max()))
    if centered:
        actual = actual - actual.mean(0)
        predicted = predicted - predicted.mean(0)
    slack = rounding + 1e-2 * float(predicted.abs().max())
    return torch.allclose(predicted, actual, rtol=0.0, atol=slack)


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
    copies = _copies(covariance)
    if covariance.matrix is None:
        return [norm_cost(covariance.strength * copies / units, copies)]
    Gamma = covariance.matrix.double().cpu().numpy()
    if len(Gamma) > MAX_UNITS:
        return []
    from scipy.sparse import csr_array
    from scipy.sparse.csgraph import reverse_cuthill_mckee

    order = reverse_cuthill_mckee(csr_array(Gamma), symmetric_mode=True)
    groups = units // len(Gamma) // copies
    found = theory.envelopes(Gamma[np.ix_(order, order)])
    return [norm_cost(w / groups, copies * k) for w, k in found]


def find_head(
    model: nn.Module, structure: Structure, noises: Inspection, loss: Loss
) -> Head | str:
    """Return the head, or the reason why there is none."""
    output = structure.output
    if loss == "cross_entropy":
        output = structure.before_log_softmax()
    tail, stopped = structure.walk_back(output)
    start = _first_place(tail)
    if start is None:
        if any(is_linear_map(q.call) for q in tail):
            return "the last linear map is not a torch.nn.Linear layer: no bound is taken from it"
        return (
            f"the output comes from {stopped or 'the input'}, which is not known to be affine in "
            "one input: no bound, and no prediction of its spectrum"
        )
    tail = tail[start:]
    point = tail[0]
    module: Any = point.module
    names = {part: path for path, part in model.named_modules()}
    name = names[module]
    uses = structure.uses(module)
    if uses[-1] is not point.call or noises.calls(name) != len(uses):
        return f"{name} is called again behind its place: no bound is taken from it"
    if point.features.shape[0] != len(structure.output):
        return f"the rows that {name} takes differ from the batch's: no bound is taken from it"
    inputs = structure.units(point.features)
    if is_weight_noise(module) and inputs != module.weight[0].numel():
        return f"the weights that {name} drops meet several positions: no bound is taken from it"
    if noises.unknown_noise_behind(name):
        return (
            f"noise whose law is not known is sampled behind {name}: no bound is taken"
        )
    J = structure.jacobian(point.features, output)
    if not is_affine(point.features, output, J, centered=point.shifted):
        return f"what lies behind {name} is not affine"
    return Head(structure, tail, names, J)


def _first_place(tail: list[Point]) -> int | None:
    """Return the number of the point with the noise nearest the output, or of the last layer."""
    linear = next((i for i, q in enumerate(tail) if is_linear_map(q.call)), None)
    for i, point in enumerate(tail):
        module: Any = point.module
        if module is None or not known_noise(module):
            continue
        if is_unit_noise(module):
            return i
        if i == linear:
            return i if module.weight.ndim == 2 else None
    last = None if linear is None else tail[linear].module
    return linear if isinstance(last, nn.Linear) else None


class RowSums:
    """Sums over rows: memory does not depend on their number.

    Rows (1, y, x, f) of targets, inputs (or none) and outputs of the training data are stored as R
    of a decomposition Q R. R'R is the Gram matrix, but small singular values keep their digits.
    Because the first column is constant, the rows of R below the first belong to the centered data.

    Rows (1, h, y) of units and targets are stored as second moments, in disjoint folds.
    """

    def __init__(self, units: int, outputs: int, inputs: int) -> None:
        self._units = units
        self.y = slice(1, 1 + outputs)
        self.x = slice(1 + outputs, 1 + outputs + inputs)
        self.f = slice(self.x.stop, self.x.stop + outputs)
        self._R: Floats = np.empty((0, self.f.stop))
        self._rows = 0
        self.counts = np.zeros(FOLDS)
        self._moments = np.zeros((FOLDS, 1 + units + outputs, 1 + units + outputs))
        self._pending: list[Floats] = []

    def add(self, fold: Tensor, training: bool, *columns: Tensor) -> None:
        """Add rows (h, y, x, f), each to its fold."""
        ones = torch.ones(len(fold))
        parts = [fold, ones * training, ones, *columns]
        rows = [part.detach().double().cpu().reshape(len(fold), -1) for part in parts]
        self._pending.append(torch.cat(rows, 1).numpy())
        # A reduction costs as much as some thousand rows.
        enough = max(1024, 3 * (self._units + self.f.stop))
        if sum(map(len, self._pending)) >= enough:
            self.reduce()

    def reduce(self) -> None:
        """Add up the rows that are waiting."""
        if not self._pending:
            return
        rows = np.concatenate(self._pending)
        self._pending = []
        fold = rows[:, 0].astype(int)
        training = rows[rows[:, 1] == 1, 2:]
        table = np.delete(training, slice(1, 1 + self._units), 1)
        R = np.linalg.qr(np.concatenate([self._R, table]), mode="r")
        self._R = np.asarray(R)
        self._rows += len(training)
        self.counts += np.bincount(fold, minlength=FOLDS)
        for i in np.unique(fold):
            part = rows[fold == i, 2 : 2 + self._moments.shape[1]]
            self._moments[i] += part.T @ part

    @property
    def R(self) -> Floats:
        """R / sqrt(rows), with two rows at least, so that something is left to center."""
        missing = np.zeros((max(0, 2 - len(self._R)), self.f.stop))
        return np.concatenate([self._R, missing]) / math.sqrt(self._rows)

    def problem(self, folds: list[int], *, bias: bool) -> LastLayerProblem:
        """Return the regression on the rows of some folds."""
        moments = self._moments[folds].sum(0) / self.counts[folds].sum()
        return LastLayerProblem(moments, self._units, bias=bias)


class LastLayer:
    """Sums over the data at the units that feed the last layers, and what follows from them.

    `own_rows` says that there is no holdout data: some rows of the training data then test.
    """

    def __init__(
        self,
        head: Head,
        loss: Loss,
        outputs: int,
        x: Tensor | None,
        skipped: list[tuple[str, str]],
        *,
        own_rows: bool,
    ) -> None:
        self.head = head
        self._loss = loss
        self._outputs = outputs
        self._skipped = skipped
        self._own_rows = own_rows
        self._seen = 0
        self._entropy = Mean()
        inputs = 0
        if x is not None and any(part.trunk != "any" for part in head.parts):
            inputs = math.prod(x.shape[1:])
        if inputs > MAX_INPUTS:
            why = (
                f"{inputs} are more than the {MAX_INPUTS} whose moments are stored: the bound does "
                "not use that the network is linear"
            )
            skipped.append(("the inputs", why))
            inputs = 0
        self._has_inputs = inputs > 0
        self._has_units = head.units <= MAX_UNITS
        self._sums = RowSums(head.units if self._has_units else 0, outputs, inputs)

    def add(self, seen: Seen, is_holdout: bool) -> None:
        """Add a batch of the training data, or rows that the network was not trained on."""
        n = len(seen.output)
        index = torch.arange(self._seen, self._seen + n)
        self._seen += n
        fold = torch.zeros(n)
        if is_holdout:
            fold = 1 + index % (FOLDS - 1)
        elif self._own_rows:  # every fifth row tests
            fold = torch.where(index % 5 == 4, 1 + index // 5 % (FOLDS - 1), 0)
        if not (is_holdout or is_squared(self._loss)):
            self._entropy.add(seen.targets.entropies(self._loss))
        h = [seen.units[self.head.name]] if self._has_units else []
        x = [seen.inputs.tensors[0]] if self._has_inputs else []
        columns = (*h, seen.targets.rows, *x, seen.output)
        self._sums.add(fold, not is_holdout, *columns)

    def finish(self, objective: float, error: float) -> HeadFindings:
        """Return what the layer does beside what theory says."""
        head = self.head
        self._sums.reduce()
        R = self._sums.R
        found = []
        for part in head.parts:
            target = self._target(part, R)
            bound, predicted = theory.squared_bound(target, part.rank, part.envelopes)
            found.append((bound, part, target.spectrum, predicted))
        bound, part, target_spectrum, predicted = max(found, key=lambda item: item[0])
        F = R[1 if part.centered else 0 :, self._sums.f]
        bounds = [self._floor()]
        if is_squared(self._loss):
            bounds = self._squared_bounds(bound, part)
        gap = objective - bounds[0].value
        return HeadFindings(
            name=head.name,
            width=head.units,
            rank_limit=part.rank,
            centered=part.centered,
            trunk=self._trunk(part),
            target_spectrum=target_spectrum,
            predicted_spectrum=predicted,
            spectrum=theory.singular_values(F),
            predicted_rank=numerical_rank(predicted),
            lower_bounds=tuple(bounds),
            gap=gap,
            gap_error=error,
            relative_gap=gap / objective if objective else 0.0,
        )

    def suggest(self) -> Suggestion | None:
        """Return the drop probability with the least holdout error; None is said in `skipped`."""
        sums = self._sums
        head = self.head
        why = ""
        if not self._has_units:
            why = (
                f"{head.units} units feed the last layer, and {MAX_UNITS} is the most whose second "
                "moments are stored"
            )
        elif head.drop_prob is None or sums.counts[0] < 2 or sums.counts.min() < 1:
            why = "too few rows to hold out, or no probability to choose"
        if why:
            self._skipped.append(("suggestion", why))
            return None
        problem = sums.problem([0], bias=head.centered)
        if head.covariance.independent:
            U, b = problem.solve_path(CANDIDATES / (1 - CANDIDATES))
        else:
            solved = [problem.solve(head.Gamma(float(p))) for p in CANDIDATES]
            U, b = (np.stack(parts) for parts in zip(*solved, strict=True))
        tests = [sums.problem([i], bias=head.centered) for i in range(1, FOLDS)]
        scale = unit(self._loss, self._outputs)
        errors = np.stack([test.error(U, b) for test in tests]) * scale
        holdout = errors.mean(0)
        deviation = errors.std(0, ddof=1) / math.sqrt(len(errors))
        best = int(np.argmin(holdout))
        near = CANDIDATES[holdout <= holdout[best] + deviation[best]]
        return Suggestion(
            drop_prob=float(CANDIDATES[best]),
            current=head.drop_prob or 0.0,
            drop_probs=CANDIDATES.copy(),
            holdout=holdout,
            holdout_error=deviation,
            plausible=(float(near.min()), float(near.max())),
            evidence=self._evidence(),
        )

    def _evidence(self) -> str:
        evidence = "judged on the holdout data"
        if self._own_rows:
            evidence = (
                "judged on a fifth of the rows given. The features before the last layer were "
                "trained on them too, so that the curve favors little dropout; pass holdout for a "
                "fair one"
            )
        if not is_squared(self._loss):
            evidence += ". The error is the squared one (classes as one-hot targets), not this loss"
        return evidence

    def _trunk(self, part: TailPart) -> str:
        """Return what is known and used of the way from the inputs to the noise."""
        return part.trunk if self._has_inputs else "any"

    def _target(self, part: TailPart, R: Floats) -> Target:
        sums = self._sums
        if self._trunk(part) == "any":
            return theory.free_target(R, sums.y, centered=part.centered)
        return theory.affine_target(
            R, sums.x, sums.y, centered=part.centered, shifted=part.shifted
        )

    def _squared_bounds(self, bound: float, part: TailPart) -> list[LowerBound]:
        """Return the bound over all weights, and the best last layer for the units as they are."""
        head = self.head
        scale = unit(self._loss, self._outputs)
        over = "all weights of this architecture"
        if self._trunk(part) == "any":
            place = "this noise" if head.noisy else "the last one"
            over = f"all weights, and any layers before {place}"
        bounds = [LowerBound(bound * scale, over, part.source)]
        if not self._has_units:
            return bounds
        training = list(range(FOLDS)) if self._own_rows else [0]
        problem = self._sums.problem(training, bias=head.centered)
        fixed_units = LowerBound(
            problem.objective(head.Gamma()) * scale,
            "the last layer, its inputs as they are (this noise only)",
            "Structured dropout, Lemma 3.1",
        )
        # Units that are the inputs themselves are the same for all weights.
        fixed = head.parts[0].trunk == "fixed"
        if fixed and fixed_units.value > bounds[0].value:
            bounds.insert(0, LowerBound(fixed_units.value, over, fixed_units.source))
        return [*bounds, fixed_units]

    def _floor(self) -> LowerBound:
        """Return what is proved of cross-entropy and of the logistic loss."""
        over = "all outputs: what uncertain targets cost, 0 for classes; there is no other floor"
        return LowerBound(self._entropy.value, over, "Gibbs' inequality")
