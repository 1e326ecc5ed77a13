"""The last layer: spectra, lower bounds, and the drop probability that held-out data favor."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from overt._types import Floats, Ints
from overt.linear import last_layer as theory
from overt.linear.bounds import numerical_rank
from overt.linear.last_layer import LastLayerProblem, Target
from overt.nn.auditing.head import Head, TailPart
from overt.nn.auditing.report import HeadFindings, LowerBound, Suggestion
from overt.nn.auditing.streaming import Folds, Mean, Table
from overt.nn.data.losses import Loss, Targets, is_squared, unit
from overt.relu.bounds import coadaptation

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
            f"{size} are more than the {MAX_INPUTS} whose moments are kept: the bound does not use "
            "that the network is linear"
        )
        self.skipped.append(("the inputs", why))
        return 0

    @property
    def penalty(self) -> float:
        """What the noise adds to a squared loss, exactly."""
        return self._penalty.value * self._unit

    def add(
        self, h: Tensor, x: Tensor | None, targets: Targets, output: Tensor, *, split: bool
    ) -> None:
        """Add a batch: units, inputs, targets and outputs; `split` holds a fifth of it out."""
        self._table.add(x, targets.rows, output)
        self._entropy.add(targets.entropies(self._loss))
        if is_squared(self._loss) and self.head.noisy:
            self._penalty.add(torch.full((len(h),), self.head.penalty(h), dtype=torch.float64))
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
        """Return the drop probability with the least held-out error, or why there is none."""
        folds = self._folds
        if folds is None:
            return (
                f"{self.head.units} units feed the last layer, and {MAX_UNITS} is the most whose "
                "second moments are kept"
            )
        if folds.counts[0] < 2 or folds.counts.min() < 1 or not self.head.adjustable:
            return "too few rows to hold out, or no probability to choose"
        U, b = self._candidates(folds)
        errors = np.stack(
            [
                LastLayerProblem(folds.moments([i]), folds.units, bias=self.head.centered).error(
                    U, b
                )
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
        problem = LastLayerProblem(folds.moments([0]), folds.units, bias=self.head.centered)
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
        evidence = "held out: data given as such"
        if own_rows:
            evidence = (
                "held out: a fifth of the rows given. The features before the last layer were "
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
            table.R, table.x, table.y, centered=part.centered, shifted=part.trunk.shifted
        )

    def _best_part(self, p: float | None = None) -> tuple[float, Floats, Target, TailPart]:
        """Return the largest squared bound, its spectrum and target, and where it is from."""
        found = []
        for part in self.head.parts:
            target = self._target(part)
            bound, predicted = theory.squared_bound(target, part.rank, part.envelopes(p))
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
        if classes:  # cross-entropy does not change with a constant added to all logits of a row
            outputs = outputs - outputs.mean(1, keepdims=True)
        size = float(theory.singular_values(outputs).sum())
        middle = np.full(self._outputs, 1 / self._outputs if classes else 0.5)
        targets = self._table.rows(self._table.y, centered=centered)
        if not centered:
            targets = targets - R[:, :1] * middle
        top = float(np.linalg.norm(targets, 2))
        entropy = self._entropy.value  # the least loss that any outputs can have, 0 for classes
        if classes:
            constant = theory.class_entropy(means) if centered else math.log(self._outputs)
            at_size = theory.class_bound(means, top, size, centered=centered, entropy=entropy)
        else:
            pi = means if centered else middle
            constant = theory.binary_entropy(pi)
            at_size = theory.logistic_bound(means, pi, entropy, top, size)
        uncertain = ", and what uncertain targets cost" if entropy else ""
        everything_dropped = LowerBound(
            entropy + self.head.all_dropped * (constant - entropy),
            f"all weights: what it costs when every unit is dropped{uncertain}; the loss has no "
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
