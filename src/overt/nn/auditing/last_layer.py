"""The last layers: their noise, their spectra, lower bounds, and the best drop probability.

`Head` is the affine map behind the last noise and what that noise induces; `LastLayer` sums over
the data and compares the network with its optimum.
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

from overt._types import Floats, Ints
from overt.linear import last_layer as theory
from overt.linear.bounds import Envelope, envelopes, numerical_rank
from overt.linear.last_layer import LastLayerProblem, Target, WeighUnits
from overt.nn.auditing.noises import FoundNoises, drop_prob_of, with_drop_prob
from overt.nn.auditing.report import HeadFindings, LowerBound, Suggestion
from overt.nn.auditing.streaming import Folds, Mean, Table, coadaptation
from overt.nn.auditing.structure import Point, Structure, Tail, Trunk, is_unit_noise
from overt.nn.data.losses import Loss, Targets, is_squared, unit
from overt.nn.layers.dropconnect import DropConnectLinear
from overt.nn.layers.masks import MaskCovariance
from overt.nn.layers.recognized import (
    is_weight_noise,
    known_noise,
    mask_covariance_of,
    plain_dropout,
)
from overt.noise import CovarianceNoise
from overt.spectral import KSupport, Schatten, SpectralNorm, SquaredNuclear, nu

MAX_COVARIANCE = 2048
"""The most units whose covariance matrix is decomposed (seconds, 32 MB)."""


@dataclass(frozen=True, eq=False)
class TailPart:
    """A part of the tail that gives a bound: its noise has `envelopes(drop_prob)`."""

    centered: bool
    rank: int
    trunk: Trunk
    envelopes: Callable[[float | None], list[Envelope]]
    source: str


class Head:
    """The units before the last layers, the noise that multiplies them, the map J behind them.

    `name` and `module` are the noise layer, or the linear layer where there is no noise (`noisy` is
    False); `centered` says that a bias is added behind it. `shape` is that of a sample's units, J
    (outputs x units) the linear part behind them. `parts` are the parts of the tail that give
    bounds, that of the nearest noise first.
    """

    def __init__(
        self, structure: Structure, tail: Tail, name: str, point: Point, output: Tensor
    ) -> None:
        self.name = name
        self.noisy = point.module is not None and known_noise(point.module)
        self.module: Any = copy.deepcopy(point.module) if self.noisy else None
        self.drops_weights = isinstance(self.module, DropConnectLinear)
        self.centered = point.shifted
        self.shape = point.features.shape[1:]
        self.units = math.prod(self.shape)
        weight = structure.only_weight(point, output)
        if weight is None:
            self.J = structure.jacobian(point.features, output)
        else:
            self.J = weight.detach().to("cpu", torch.float64, copy=True)
        trunk = structure.trunk(point)
        rank = min(point.narrowest, self.units, trunk.narrowest)
        source = (
            "Structured dropout, Theorem 2.7; Implicit bias of dropout, Theorem 3.6"
        )
        self.parts = [
            TailPart(point.shifted, rank, trunk, self._nearest_envelopes, source)
        ]
        self._nearest = point.module
        self._add_joint_part(structure, tail)

    def _add_joint_part(self, structure: Structure, tail: Tail) -> None:
        """Add the bound of several plain dropout layers in a row, if there are any."""
        plain: list[Point] = []
        self._probs: dict[Any, float] = {}
        for point in tail.noises:
            prob = plain_dropout(point.module)
            if prob is not None:
                plain.append(point)
                self._probs[point.module] = prob
        used_once = len(plain) == len(self._probs)
        if self.drops_weights or not used_once or len(plain) < 2:
            return
        self._widths = [structure.units(point.features) for point in plain]
        first = plain[-1]
        trunk = structure.trunk(first)
        rank = min(first.narrowest, trunk.narrowest)
        source = "Thesis, Theorem 9 and Lemma 9"
        self.parts.append(
            TailPart(first.shifted, rank, trunk, self._joint_envelopes, source)
        )

    def fits(self, h: Tensor, f: Tensor) -> bool:
        """Return whether outputs f differ between samples by J times the difference of units h."""
        predicted = h.double().flatten(1).cpu().numpy() @ self.J.numpy().T
        actual = f.double().reshape(len(f), -1).cpu().numpy()
        largest = np.abs(predicted).max()
        rounding = 100 * torch.finfo(h.dtype).eps * (largest + np.abs(actual).max())
        if self.centered:
            actual = actual - actual.mean(0)
            predicted = predicted - predicted.mean(0)
            largest = np.abs(predicted).max()
        return bool((np.abs(predicted - actual) <= rounding + 1e-2 * largest).all())

    @property
    def affine_trunk(self) -> bool:
        """Whether a bound can use that what comes before is affine in the inputs."""
        return any(part.trunk.kind != "any" for part in self.parts)

    @property
    def shares_multipliers(self) -> bool:
        """Whether several units have one multiplier, so that a mask's unit is a group of them."""
        covariance = self.covariance()
        return covariance is not None and any(
            self.shape[axis] > 1 for axis in covariance.shared
        )

    @property
    def drop_prob(self) -> float:
        """The drop probability, 0 without noise or for noise that has none."""
        return float(drop_prob_of(self.module) or 0.0) if self.noisy else 0.0

    @property
    def all_dropped(self) -> float:
        """The probability that every unit is dropped, 0 where it is not known."""
        p = drop_prob_of(self.module) if self.noisy else None
        if p is None:
            return 0.0
        if is_weight_noise(self.module):
            return float(p ** self.module.weight.numel())
        covariance = mask_covariance_of(self.module, (1, *self.shape))
        if covariance.matrix is not None:
            return 0.0
        return float(
            p ** (self.units // math.prod(self.shape[a] for a in covariance.shared))
        )

    @property
    def adjustable(self) -> bool:
        """Whether the noise, if there is any, has a drop probability."""
        return self.covariance(0.5) is not None

    def covariance(self, p: float | None = None) -> MaskCovariance | None:
        """Return the second moments of the multipliers, at another drop probability if given.

        None for a noise that has no drop probability to change.
        """
        if not self.noisy or self.drops_weights:
            current = self.module.strength if self.noisy else 0.0
            return MaskCovariance(self.shape, current if p is None else p / (1 - p))
        module = self._at(p)
        return None if module is None else mask_covariance_of(module, (1, *self.shape))

    def strengths(self, probs: Floats) -> Floats | None:
        """Return Gamma_ii at some drop probabilities, None where Gamma is not a multiple of I."""
        plain = (
            not self.noisy
            or self.drops_weights
            or plain_dropout(self.module) is not None
        )
        here = self.covariance()
        independent = here is not None and here.independent
        return probs / (1 - probs) if plain and independent else None

    def penalty(self, h: Tensor) -> float:
        """Return <Gamma, J'J o mean(h h')>, exact for the squared loss summed over outputs."""
        covariance = self.covariance()
        assert covariance is not None  # noqa: S101 (without p there is always one)
        return float(covariance.penalty(h.double(), self.J.to(h.device)))

    def flow(self, squares: Floats) -> Floats:
        """Return |u_j| sqrt(mean(h_j^2)), u_j the columns of J."""
        return np.sqrt(np.sum(self.J.numpy() ** 2, 0) * squares.ravel())

    def weigh(self, p: float | None) -> WeighUnits | None:
        """Return C -> Gamma o C over the flattened units, None without a p to change."""
        covariance = self.covariance(p)
        if covariance is None:
            return None
        if covariance.independent and covariance.matrix is None:
            return lambda C: covariance.strength * np.diag(np.diag(C))
        Gamma = covariance.dense(torch.zeros(1, dtype=torch.float64)).numpy()
        return lambda C: Gamma * C

    def _at(self, p: float | None) -> Any:
        """Return the noise, at another drop probability if given; None if it has none."""
        return self.module if p is None else with_drop_prob(self.module, p)

    def _nearest_envelopes(self, p: float | None) -> list[Envelope]:
        """Return the envelopes of the noise nearest the output."""
        if not self.noisy or self.drops_weights:
            covariance = self.covariance(p)
            assert covariance is not None  # noqa: S101 (for the type checker)
            return [(covariance.strength / self.units, SquaredNuclear())]
        module = self._at(p)
        return unit_envelopes(module, self.shape) if module is not None else []

    def _joint_envelopes(self, p: float | None) -> list[Envelope]:
        """Return the envelope of all plain dropout layers in the tail."""
        probs = dict(self._probs)
        if p is not None and self._nearest in probs:
            probs[self._nearest] = p
        return [(nu(self._widths, list(probs.values())), SquaredNuclear())]


def unit_envelopes(module: Any, shape: tuple[int, ...]) -> list[Envelope]:
    """Return pairs (w, N) with <Gamma, U'U o G'G> >= w N(G U') for all U and G.

    Three steps lead from the noises of `overt.linear` to masks over a sample's axes:

    - units that share a mask in groups of s act as one block, G_i U_i' of rank at most s, whose
      cost is |.|_F^2: the squared nuclear norm gives way to the squared s-support norm;
    - c groups of units with independent noise have penalties that add, and convexity of N gives
      sum_g w N(A_g) >= (w / c) N(sum_g A_g);
    - blocks of a grid that the border cuts are smaller, hence of smaller rank, than whole ones.
    """
    covariance = mask_covariance_of(module, (1, *shape))
    units = math.prod(shape)
    copies = math.prod(shape[axis] for axis in covariance.shared)
    if covariance.matrix is None:
        return [(covariance.strength * copies / units, _support(copies))]
    if getattr(module, "placement", None) == "grid":  # DropBlock on a grid
        sizes = shape[1:]
        blocks = [min(b, n) for b, n in zip(module.block_size, sizes, strict=True)]
        cells = math.prod(-(-n // b) for n, b in zip(sizes, blocks, strict=True))
        strength = module.drop_prob / (1 - module.drop_prob)
        groups = units // math.prod(sizes) // copies
        return [(strength / (cells * groups), _support(math.prod(blocks) * copies))]
    inner = covariance.matrix.shape[0]
    if inner > MAX_COVARIANCE:
        return []
    groups = units // inner // copies
    noise = CovarianceNoise(np.ones(inner), covariance.matrix.double().cpu().numpy())
    return [(w / groups, _widen(norm, copies)) for w, norm in envelopes(noise, inner)]


def _widen(norm: SpectralNorm, copies: int) -> SpectralNorm:
    if isinstance(norm, Schatten):
        return norm
    return _support(copies * (norm.k if isinstance(norm, KSupport) else 1))


def _support(k: int) -> SpectralNorm:
    """Return the squared k-support norm, which for k = 1 is the squared nuclear norm."""
    return SquaredNuclear() if k == 1 else KSupport(k)


def find_head(
    model: nn.Module, structure: Structure, noises: FoundNoises, *, log_softmax: bool
) -> Head | str:
    """Return the head, or the reason why there is none."""
    output = structure.logits(log_softmax=log_softmax)
    tail = structure.tail(output)
    point = _nearest_place(tail)
    if point is None and tail.linear is None:
        return (
            f"the output comes from {tail.stopped}, which is not known to be affine in one input: "
            "no bound, and no prediction of its spectrum"
        )
    if point is None:
        return "the last linear map is not a torch.nn.Linear layer: no bound is taken from it"
    name = next(
        path for path, module in model.named_modules() if module is point.module
    )
    uses = structure.uses(point.module)
    if uses[-1] is not point.call or noises.training.calls[name] != len(uses):
        return f"{name} is called again behind its place: no bound is taken from it"
    if point.features.shape[0] != len(structure.output):
        return f"the rows that {name} takes differ from the batch's: no bound is taken from it"
    module: Any = point.module
    if (
        is_weight_noise(module)
        and structure.units(point.features) != module.weight[0].numel()
    ):
        return f"the weights that {name} drops meet several positions: no bound is taken from it"
    if noises.unknown_noise_behind(name):
        return (
            f"noise whose law is not known is sampled behind {name}: no bound is taken"
        )
    head = Head(structure, tail, name, point, output)
    fits = head.fits(point.features, output)
    return head if fits else f"what lies behind {name} is not affine"


def _nearest_place(tail: Tail) -> Point | None:
    """Return the place of the noise nearest the output, or of the last layer."""
    last = tail.linear
    for point in tail.noises:
        if point.module is not None and is_unit_noise(point.module):
            return point
        if last is not None and last.call is point.call:
            return last if isinstance(point.module, DropConnectLinear) else None
    return last if last is not None and isinstance(last.module, nn.Linear) else None


MAX_UNITS = 2048
"""The widest last layer whose second moments are stored: 200 MB."""

MAX_INPUTS = 2048
"""The most inputs whose second moments are stored: 34 MB."""

CANDIDATES = np.round(np.arange(0, 0.96, 0.05), 2)
"""Drop probabilities among which one is suggested."""


class LastLayer:
    """Sums over the data at the units that feed the last layers, and what follows from them."""

    def __init__(self, head: Head, loss: Loss, outputs: int, x: Tensor | None) -> None:
        self.head = head
        self.skipped: list[tuple[str, str]] = []
        self._loss = loss
        self._outputs = outputs
        self._unit = unit(loss, outputs)
        self._table = Table(self._input_columns(x), outputs)
        self._folds = Folds(head.units, outputs) if head.units <= MAX_UNITS else None
        self._penalty = Mean()
        self._entropy = Mean()

    def _input_columns(self, x: Tensor | None) -> int:
        """Return how many inputs the table stores: all where a bound needs them, or none."""
        if x is None or not self.head.affine_trunk:
            return 0
        size = math.prod(x.shape[1:])
        if size <= MAX_INPUTS:
            return size
        why = (
            f"{size} are more than the {MAX_INPUTS} whose moments are stored: the bound does not "
            "use that the network is linear"
        )
        self.skipped.append(("the inputs", why))
        return 0

    @property
    def penalty(self) -> float:
        """The exact amount that the noise adds to a squared loss."""
        return self._penalty.value * self._unit

    def add(
        self,
        h: Tensor,
        x: Tensor | None,
        targets: Targets,
        output: Tensor,
        *,
        split: bool,
    ) -> None:
        """Add a batch: units, inputs, targets and outputs; `split` holds a fifth of it out."""
        self._table.add(x, targets.rows, output)
        self._entropy.add(targets.entropies(self._loss))
        if is_squared(self._loss) and self.head.noisy:
            self._penalty.add(
                torch.full((len(h),), self.head.penalty(h), dtype=torch.float64)
            )
        if self._folds is not None:
            self._folds.add(h.flatten(1), targets.rows, split=split)

    def add_holdout(self, h: Tensor, targets: Targets) -> None:
        """Add rows that the network was not trained on."""
        if self._folds is not None:
            self._folds.add_holdout(h.flatten(1), targets.rows)

    def findings(self, objective: float, squares: Floats | None) -> HeadFindings:
        """Return what the layer does beside what theory says; `squares` are E h_j^2."""
        head = self.head
        bound, predicted, target, part = self._best_part()
        if is_squared(self._loss):
            bounds = self._squared_bounds(bound, part)
        else:
            bounds = self._curved_bounds(part.centered)
        outputs = self._table.rows(self._table.f, centered=part.centered)
        gap = objective - bounds[0].value
        return HeadFindings(
            name=head.name,
            width=head.units,
            rank_limit=part.rank,
            centered=part.centered,
            trunk=self._trunk(part),
            target_spectrum=target.spectrum,
            predicted_spectrum=predicted,
            spectrum=theory.singular_values(outputs),
            predicted_rank=numerical_rank(predicted),
            coadaptation=None if squares is None else coadaptation(head.flow(squares)),
            lower_bounds=tuple(bounds),
            gap=gap,
            relative_gap=gap / objective if objective else 0.0,
        )

    def suggest(self, *, own_rows: bool) -> Suggestion | str:
        """Return the drop probability with the least holdout error, or why there is none."""
        folds = self._folds
        if folds is None:
            return (
                f"{self.head.units} units feed the last layer, and {MAX_UNITS} is the most whose "
                "second moments are stored"
            )
        if folds.counts[0] < 2 or folds.counts.min() < 1 or not self.head.adjustable:
            return "too few rows to hold out, or no probability to choose"
        U, b = self._candidates(folds)
        errors = np.stack(
            [
                LastLayerProblem(
                    folds.moments([i]), folds.units, bias=self.head.centered
                ).error(U, b)
                for i in range(1, folds.COUNT)
            ]
        )
        holdout = errors.mean(0) * self._unit
        deviation = errors.std(0, ddof=1) / math.sqrt(len(errors)) * self._unit
        best = int(np.argmin(holdout))
        near = CANDIDATES[holdout <= holdout[best] + deviation[best]]
        return Suggestion(
            drop_prob=float(CANDIDATES[best]),
            current=self.head.drop_prob,
            drop_probs=CANDIDATES.copy(),
            holdout=holdout,
            holdout_error=deviation,
            predicted_rank=self._predicted_ranks(),
            plausible=(float(near.min()), float(near.max())),
            evidence=self._evidence(own_rows),
        )

    def _candidates(self, folds: Folds) -> tuple[Floats, Floats]:
        """Return the best last layer at each candidate, on the training fold."""
        problem = LastLayerProblem(
            folds.moments([0]), folds.units, bias=self.head.centered
        )
        strengths = self.head.strengths(CANDIDATES)
        if strengths is not None:
            return problem.solve_path(strengths)
        noises = [self.head.weigh(float(p)) for p in CANDIDATES]
        solved = [problem.solve(weigh) for weigh in noises if weigh is not None]
        return np.stack([U for U, _ in solved]), np.stack([b for _, b in solved])

    def _predicted_ranks(self) -> Ints:
        """Return the rank of the optimum at each candidate."""
        spectra = [self._best_part(float(p))[1] for p in CANDIDATES]
        return np.array([numerical_rank(spectrum) for spectrum in spectra])

    def _evidence(self, own_rows: bool) -> str:
        evidence = "judged on the holdout data"
        if own_rows:
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
        return part.trunk.kind if self._table.has_inputs else "any"

    def _target(self, part: TailPart) -> Target:
        table = self._table
        if self._trunk(part) == "any":
            return theory.free_target(table.R, table.y, centered=part.centered)
        return theory.affine_target(
            table.R,
            table.x,
            table.y,
            centered=part.centered,
            shifted=part.trunk.shifted,
        )

    def _best_part(
        self, p: float | None = None
    ) -> tuple[float, Floats, Target, TailPart]:
        """Return the largest squared bound, its spectrum and target, and where it is from."""
        found = []
        for part in self.head.parts:
            target = self._target(part)
            bound, predicted = theory.squared_bound(
                target, part.rank, part.envelopes(p)
            )
            found.append((bound, predicted, target, part))
        return max(found, key=lambda item: item[0])

    def _squared_bounds(self, bound: float, part: TailPart) -> list[LowerBound]:
        """Return the bound over all weights, and the best last layer for the units as they are."""
        over = "all weights of this architecture"
        if self._trunk(part) == "any":
            place = "this noise" if self.head.noisy else "the last one"
            over = f"all weights, and any layers before {place}"
        bounds = [LowerBound(bound * self._unit, over, part.source)]
        folds = self._folds
        weigh = self.head.weigh(None)
        if folds is None or weigh is None:
            return bounds
        moments = folds.moments(folds.training)
        problem = LastLayerProblem(moments, folds.units, bias=self.head.centered)
        fixed_units = LowerBound(
            problem.objective(weigh) * self._unit,
            "the last layer, its inputs as they are (this noise only)",
            "Structured dropout, Lemma 3.1",
        )
        # Units that are the inputs themselves are the same for all weights.
        fixed = self.head.parts[0].trunk.kind == "fixed"
        if fixed and fixed_units.value > bounds[0].value:
            bounds.insert(0, LowerBound(fixed_units.value, over, fixed_units.source))
        return [*bounds, fixed_units]

    def _curved_bounds(self, centered: bool) -> list[LowerBound]:
        """Return what is proved of cross-entropy and of the logistic loss."""
        R = self._table.R
        means = R[0, self._table.y] / R[0, 0]
        classes = self._loss == "cross_entropy"
        outputs = self._table.rows(self._table.f, centered=centered)
        if (
            classes
        ):  # cross-entropy does not change with a constant added to all logits of a row
            outputs = outputs - outputs.mean(1, keepdims=True)
        size = float(theory.singular_values(outputs).sum())
        middle = np.full(self._outputs, 1 / self._outputs if classes else 0.5)
        targets = self._table.rows(self._table.y, centered=centered)
        if not centered:
            targets = targets - R[:, :1] * middle
        top = float(np.linalg.norm(targets, 2))
        entropy = (
            self._entropy.value
        )  # the least loss that any outputs can have, 0 for classes
        if classes:
            constant = (
                theory.class_entropy(means) if centered else math.log(self._outputs)
            )
            at_size = theory.class_bound(
                means, top, size, centered=centered, entropy=entropy
            )
        else:
            pi = means if centered else middle
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
