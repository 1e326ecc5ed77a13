"""The last layers: their noise, their spectra, lower bounds, and the best drop probability.

`Head` is the affine map behind the last noise and what that noise induces; `LastLayer` sums over
the data and compares the network with its optimum, by `overt.nn.auditing.lower_bounds`.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from overt._types import Floats
from overt.linear.bounds import Envelope, NormCost, numerical_rank
from overt.nn.auditing import lower_bounds as theory
from overt.nn.auditing.lower_bounds import LastLayerProblem, Target, WeighUnits
from overt.nn.auditing.measurements import Mean, Seen, coadaptation
from overt.nn.auditing.report import HeadFindings, LowerBound, Suggestion
from overt.nn.auditing.structure import (
    FoundNoises,
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
from overt.spectral import KSupport, Schatten, SpectralNorm, SquaredNuclear, nu

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
    """A part of the tail that gives a bound: its noise has `envelopes(drop_prob)`.

    `centered` says that a bias is added behind the noise. `trunk` is what lies before it: "fixed"
    (the inputs themselves), "affine" or "any"; `shifted` says that a bias is added there.
    """

    centered: bool
    rank: int
    trunk: str
    shifted: bool
    envelopes: Callable[[float | None], list[Envelope]]
    source: str


class Head:
    """The units before the last layers, the noise that multiplies them, the map J behind them.

    `name` is that of the noise layer, or of the linear layer where there is no noise (`noisy` is
    False); `centered` says that a bias is added behind it. `shape` is that of a sample's units, J
    (outputs x units) the linear part behind them. `parts` are the parts of the tail that give
    bounds, that of the nearest noise first.
    """

    def __init__(
        self,
        structure: Structure,
        tail: list[Point],
        name: str,
        point: Point,
        output: Tensor,
    ) -> None:
        module: Any = point.module
        self.name = name
        self.noisy = known_noise(module)
        self.centered = point.shifted
        self.shape = point.features.shape[1:]
        self.units = math.prod(self.shape)
        self.J = structure.jacobian(point.features, output)
        if is_unit_noise(module):
            self._noise = copy.deepcopy(module)
        else:
            # A dropped weight of the last layer adds what a dropped input adds.
            self._noise = nn.Dropout(module.drop_prob if self.noisy else 0.0)
        self._other = copy.deepcopy(self._noise)  # at other drop probabilities
        self.drop_prob = drop_prob_of(self._noise)
        shared = self.covariance().shared
        self._multipliers = self.units // math.prod(self.shape[i] for i in shared)
        if is_weight_noise(module):
            self._multipliers = module.weight.numel()
        self.parts = [
            _tail_part(
                structure,
                point,
                lambda p: unit_envelopes(self._at(p), self.shape),
                "Structured dropout, Theorem 2.7; Implicit bias of dropout, Theorem 3.6",
            )
        ]
        plain = [q for q in tail if q.module and plain_dropout(q.module) is not None]
        used_once = len({q.module for q in plain}) == len(plain)
        if len(plain) > 1 and used_once and not is_weight_noise(module):
            widths = [structure.units(q.features) for q in plain]

            def joint_envelopes(p: float | None) -> list[Envelope]:
                """Return the envelope of all plain dropout layers in the tail."""
                probs: list[Any] = [plain_dropout(q.module) for q in plain]
                if p is not None and plain[0] is point:
                    probs[0] = p
                return [NormCost(nu(widths, probs), SquaredNuclear())]

            source = "Thesis, Theorem 9 and Lemma 9"
            self.parts.append(_tail_part(structure, plain[-1], joint_envelopes, source))

    def fits(self, h: Tensor, f: Tensor) -> bool:
        """Return whether outputs f differ between samples by J times the difference of units h."""
        predicted = h.double().flatten(1).cpu() @ self.J.T
        actual = f.double().reshape(len(f), -1).cpu()
        rounding = (
            100
            * torch.finfo(h.dtype).eps
            * float(predicted.abs().max() + actual.abs().max())
        )
        if self.centered:
            actual = actual - actual.mean(0)
            predicted = predicted - predicted.mean(0)
        slack = rounding + 1e-2 * float(predicted.abs().max())
        return torch.allclose(predicted, actual, rtol=0.0, atol=slack)

    @property
    def all_dropped(self) -> float:
        """The probability that every unit is dropped, 0 where it is not known."""
        known = self.drop_prob is not None and self.covariance().matrix is None
        return float(self.drop_prob**self._multipliers) if known else 0.0

    def covariance(self, p: float | None = None) -> MaskCovariance:
        """Return the second moments of the multipliers, at another drop probability if given."""
        return mask_covariance_of(self._at(p), (1, *self.shape))

    def penalty(self, h: Tensor) -> float:
        """Return <Gamma, J'J o mean(h h')>, exact for the squared loss summed over outputs."""
        return float(self.covariance().penalty(h.double(), self.J.to(h.device)))

    def weigh(self, p: float | None) -> WeighUnits:
        """Return C -> Gamma o C over the flattened units."""
        Gamma = self.covariance(p).dense(torch.zeros(1, dtype=torch.float64)).numpy()
        return lambda C: Gamma * C

    def _at(self, p: float | None) -> Any:
        """Return the noise, at another drop probability if given."""
        if p is None:
            return self._noise
        self._other.p = p
        return self._other


def _tail_part(
    structure: Structure, point: Point, envelopes: Any, source: str
) -> TailPart:
    """Return the part of the tail behind a noise."""
    before, stopped = structure.walk_back(point.features)
    trunk = "any"
    if not stopped:
        trunk = "fixed" if all(only_moves(q.call) for q in before) else "affine"
    last = before[-1] if before else None
    rank = point.narrowest if last is None else min(point.narrowest, last.narrowest)
    shifted = last is not None and last.shifted
    return TailPart(point.shifted, rank, trunk, shifted, envelopes, source)


def unit_envelopes(module: Any, shape: tuple[int, ...]) -> list[Envelope]:
    """Return pairs (w, N) with <Gamma, U'U o G'G> >= w N(G U') for all U and G.

    Three steps lead from the noises of `overt.linear` to masks over a sample's axes:

    - units that share a mask in groups of s act as one block, G_i U_i' of rank at most s, whose
      cost is |.|_F^2: the squared nuclear norm gives way to the squared s-support norm;
    - c groups of units with independent noise have penalties that add, and convexity of N gives
      sum_g w N(A_g) >= (w / c) N(sum_g A_g);
    - the order of the units does not matter: one in which Gamma has a narrow band is taken.
    """
    covariance = mask_covariance_of(module, (1, *shape))
    units = math.prod(shape)
    copies = math.prod(shape[axis] for axis in covariance.shared)
    if covariance.matrix is None:
        return [NormCost(covariance.strength * copies / units, _support(copies))]
    Gamma = covariance.matrix.double().cpu().numpy()
    inner = len(Gamma)
    if inner > MAX_UNITS:
        return []
    from scipy.sparse import csr_array
    from scipy.sparse.csgraph import reverse_cuthill_mckee

    order = reverse_cuthill_mckee(csr_array(Gamma), symmetric_mode=True)
    groups = units // inner // copies
    found = theory.envelopes(Gamma[np.ix_(order, order)])
    return [NormCost(w / groups, _widen(norm, copies)) for w, norm in found]


def _widen(norm: SpectralNorm, copies: int) -> SpectralNorm:
    if isinstance(norm, Schatten):
        return norm
    return _support(copies * (norm.k if isinstance(norm, KSupport) else 1))


def _support(k: int) -> SpectralNorm:
    """Return the squared k-support norm, which for k = 1 is the squared nuclear norm."""
    return SquaredNuclear() if k == 1 else KSupport(k)


def find_head(
    model: nn.Module, structure: Structure, noises: FoundNoises, loss: Loss
) -> Head | str:
    """Return the head, or the reason why there is none."""
    output = structure.output
    if loss == "cross_entropy":
        output = structure.before_log_softmax()
    tail, stopped = structure.walk_back(output)
    linear = next((q for q in tail if is_linear_map(q.call)), None)
    point = _nearest_place(tail, linear)
    if point is None and linear is None:
        return (
            f"the output comes from {stopped or 'the input'}, which is not known to be affine in "
            "one input: no bound, and no prediction of its spectrum"
        )
    if point is None:
        return "the last linear map is not a torch.nn.Linear layer: no bound is taken from it"
    module: Any = point.module
    name = next(path for path, part in model.named_modules() if part is module)
    uses = structure.uses(module)
    if uses[-1] is not point.call or noises.calls[name] != len(uses):
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
    head = Head(structure, tail, name, point, output)
    fits = head.fits(point.features, output)
    return head if fits else f"what lies behind {name} is not affine"


def _nearest_place(tail: list[Point], linear: Point | None) -> Point | None:
    """Return the place of the noise nearest the output, or of the last layer."""
    for point in tail:
        module: Any = point.module
        if module is None or not known_noise(module):
            continue
        if is_unit_noise(module):
            return point
        if point is linear:
            return point if module.weight.ndim == 2 else None
    return linear if linear and isinstance(linear.module, nn.Linear) else None


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
        self._unit = unit(loss, outputs)
        self._skipped = skipped
        self._own_rows = own_rows
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
        self._seen = 0
        self._penalty = Mean()
        self._entropy = Mean()

    @property
    def penalty(self) -> float:
        """The exact amount that the noise adds to a squared loss."""
        return self._penalty.value * self._unit

    def add(self, seen: Seen) -> None:
        """Add a batch of the training data."""
        h = seen.units[self.head.name]
        self._entropy.add(seen.targets.entropies(self._loss))
        if is_squared(self._loss) and self.head.noisy:
            self._penalty.add(
                torch.full((len(h),), self.head.penalty(h), dtype=torch.float64)
            )
        fold = torch.zeros(len(h))
        if self._own_rows:  # every fifth row tests
            index = self._next_indices(len(h))
            fold = torch.where(index % 5 == 4, 1 + index // 5 % (FOLDS - 1), 0)
        self._add_rows(seen, fold, training=True)

    def add_holdout(self, seen: Seen) -> None:
        """Add rows that the network was not trained on."""
        fold = 1 + self._next_indices(len(seen.output)) % (FOLDS - 1)
        self._add_rows(seen, fold, training=False)

    def _add_rows(self, seen: Seen, fold: Tensor, *, training: bool) -> None:
        h = [seen.units[self.head.name]] if self._has_units else []
        x = [seen.inputs.tensors[0]] if self._has_inputs else []
        self._sums.add(fold, training, *h, seen.targets.rows, *x, seen.output)

    def _next_indices(self, n: int) -> Tensor:
        self._seen += n
        return torch.arange(self._seen - n, self._seen)

    def flows(self, squares: Floats | None) -> Floats | None:
        """Return |u_j| sqrt(mean(h_j^2)), u_j the columns of J; `squares` are E h_j^2."""
        if squares is None:
            return None
        return np.sqrt(np.sum(self.head.J.numpy() ** 2, 0) * squares.ravel())

    def finish(
        self, objective: float, squares: Floats | None
    ) -> tuple[HeadFindings, Suggestion | None]:
        """Return what the layer does beside what theory says; `squares` are E h_j^2."""
        head = self.head
        self._sums.reduce()
        R = self._sums.R
        targets = [self._target(part, R) for part in head.parts]
        bound, predicted, i = self._best_part(targets, None)
        part = head.parts[i]
        first = 1 if part.centered else 0
        F = R[first:, self._sums.f]
        if is_squared(self._loss):
            bounds = self._squared_bounds(bound, part)
        else:
            bounds = self._curved_bounds(R, F, part.centered)
        gap = objective - bounds[0].value
        found = HeadFindings(
            name=head.name,
            width=head.units,
            rank_limit=part.rank,
            centered=part.centered,
            trunk=self._trunk(part),
            target_spectrum=targets[i].spectrum,
            predicted_spectrum=predicted,
            spectrum=theory.singular_values(F),
            predicted_rank=numerical_rank(predicted),
            coadaptation=coadaptation(self.flows(squares)),
            lower_bounds=tuple(bounds),
            gap=gap,
            relative_gap=gap / objective if objective else 0.0,
        )
        return found, self._suggest(targets)

    def _suggest(self, targets: list[Target]) -> Suggestion | None:
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
        U, b = self._candidates(sums.problem([0], bias=head.centered))
        tests = [sums.problem([i], bias=head.centered) for i in range(1, FOLDS)]
        errors = np.stack([test.error(U, b) for test in tests]) * self._unit
        holdout = errors.mean(0)
        deviation = errors.std(0, ddof=1) / math.sqrt(len(errors))
        best = int(np.argmin(holdout))
        near = CANDIDATES[holdout <= holdout[best] + deviation[best]]
        spectra = [self._predicted(targets, float(p)) for p in CANDIDATES]
        return Suggestion(
            drop_prob=float(CANDIDATES[best]),
            current=head.drop_prob or 0.0,
            drop_probs=CANDIDATES.copy(),
            holdout=holdout,
            holdout_error=deviation,
            predicted_rank=np.array([numerical_rank(s) for s in spectra]),
            plausible=(float(near.min()), float(near.max())),
            evidence=self._evidence(),
        )

    def _candidates(self, problem: LastLayerProblem) -> tuple[Floats, Floats]:
        """Return the best last layer at each candidate."""
        if self.head.covariance().independent:
            return problem.solve_path(CANDIDATES / (1 - CANDIDATES))
        solved = [problem.solve(self.head.weigh(float(p))) for p in CANDIDATES]
        return np.stack([U for U, _ in solved]), np.stack([b for _, b in solved])

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

    def _best_part(
        self, targets: list[Target], p: float | None
    ) -> tuple[float, Floats, int]:
        """Return the largest squared bound, its spectrum and the number of its part."""
        found = []
        for i, (part, target) in enumerate(zip(self.head.parts, targets, strict=True)):
            envelopes = part.envelopes(p)
            found.append((*theory.squared_bound(target, part.rank, envelopes), i))
        return max(found, key=lambda item: item[0])

    def _predicted(self, targets: list[Target], p: float) -> Floats:
        """Return the spectrum of the best part; where there is but one, no bound is needed."""
        part = self.head.parts[0]
        found = part.envelopes(p)
        if len(self.head.parts) > 1 or len(found) != 1:
            return self._best_part(targets, p)[1]
        return found[0].shrink(targets[0].spectrum[: part.rank])

    def _squared_bounds(self, bound: float, part: TailPart) -> list[LowerBound]:
        """Return the bound over all weights, and the best last layer for the units as they are."""
        over = "all weights of this architecture"
        if self._trunk(part) == "any":
            place = "this noise" if self.head.noisy else "the last one"
            over = f"all weights, and any layers before {place}"
        bounds = [LowerBound(bound * self._unit, over, part.source)]
        if not self._has_units:
            return bounds
        training = list(range(FOLDS)) if self._own_rows else [0]
        problem = self._sums.problem(training, bias=self.head.centered)
        fixed_units = LowerBound(
            problem.objective(self.head.weigh(None)) * self._unit,
            "the last layer, its inputs as they are (this noise only)",
            "Structured dropout, Lemma 3.1",
        )
        # Units that are the inputs themselves are the same for all weights.
        fixed = self.head.parts[0].trunk == "fixed"
        if fixed and fixed_units.value > bounds[0].value:
            bounds.insert(0, LowerBound(fixed_units.value, over, fixed_units.source))
        return [*bounds, fixed_units]

    def _curved_bounds(self, R: Floats, F: Floats, centered: bool) -> list[LowerBound]:
        """Return what is proved of cross-entropy and of the logistic loss."""
        classes = self._loss == "cross_entropy"
        if classes:  # a constant added to all logits of a row changes nothing
            F = F - F.mean(1, keepdims=True)
        size = float(theory.singular_values(F).sum())
        means = R[0, self._sums.y] / R[0, 0]
        middle = np.full(self._outputs, 1 / self._outputs if classes else 0.5)
        pi = means if centered else middle
        targets = R[:, self._sums.y] - R[:, :1] * pi
        top = float(np.linalg.norm(targets, 2))
        # The least loss that any outputs can have, 0 for classes.
        entropy = self._entropy.value
        if classes:
            constant = theory.class_entropy(pi)
            at_size = theory.class_bound(
                means, top, size, centered=centered, entropy=entropy
            )
        else:
            constant = theory.binary_entropy(pi)
            at_size = theory.logistic_bound(means, pi, entropy, top, size)
        uncertain = ", and what uncertain targets cost" if entropy else ""
        everything_dropped = LowerBound(
            entropy + self.head.all_dropped * (constant - entropy),
            f"all weights: the loss when every unit is dropped{uncertain}; the loss has no "
            "other floor",
            "no output then depends on the input",
        )
        bounded_logits = LowerBound(
            at_size,
            f"networks whose {'centered ' if centered else ''}mean logits have a nuclear norm of "
            f"at most {size:.4g} (that of this one without noise), divided by sqrt(samples)",
            "weak duality and Jensen's inequality",
        )
        return [everything_dropped, bounded_logits]
