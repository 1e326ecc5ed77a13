"""The last layer: spectra, proved bounds, and the drop probability that data speak for."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from overt._types import Floats, Ints
from overt.linear.bounds import numerical_rank
from overt.nn.auditing import lower
from overt.nn.auditing.head import Head, Stretch
from overt.nn.auditing.report import HeadFindings, LowerBound, Suggestion
from overt.nn.auditing.sums import Columns, Mean, Parts, Table
from overt.nn.data.losses import Loss, Targets, is_squared, unit
from overt.relu.bounds import coadaptation

MAX_UNITS = 2048
"""The widest last layer whose second moments are kept."""


class LastLayer:
    """Sums over the data at the units that feed the last layers, and what follows from them."""

    def __init__(self, head: Head, loss: Loss, outputs: int) -> None:
        self.head, self._loss, self._outputs = head, loss, outputs
        self._parts = Parts(head.units, outputs) if head.units <= MAX_UNITS else None
        self._penalty, self._entropy = Mean(), Mean()

    @property
    def penalty(self) -> float:
        """What the noise adds to a squared loss, exactly."""
        return self._penalty.value * unit(self._loss, self._outputs)

    def add(self, h: Tensor, targets: Targets, *, hold: bool) -> None:
        """Take in the units and targets of a batch; with `hold` some rows are kept apart."""
        self._entropy.add(targets.entropies(self._loss))
        if is_squared(self._loss) and self.head.noisy:
            self._penalty.add(torch.full((len(h),), self.head.penalty(h), dtype=torch.float64))
        if self._parts is not None:
            self._parts.add(h.flatten(1), targets.rows, hold=hold)

    def add_holdout(self, h: Tensor, targets: Targets) -> None:
        """Take in rows that the network was not trained on."""
        if self._parts is not None:
            self._parts.add_holdout(h.flatten(1), targets.rows)

    def findings(self, table: Table, objective: float, squares: Floats | None) -> HeadFindings:
        """Return what the layer does beside what theory says; `squares` are its units' means."""
        head, columns = self.head, table.columns()
        bound, predicted, target, stretch = self._best_stretch(self._targets(columns))
        bounds = (
            self._squared_bounds(columns, bound, stretch)
            if is_squared(self._loss)
            else self._curved_bounds(columns, stretch.centered)
        )
        gap = objective - bounds[0].value
        return HeadFindings(
            name=head.name, width=head.units, rank_limit=stretch.rank, centered=stretch.centered,
            trunk=_kind(columns, stretch), target_spectrum=target.spectrum,
            predicted_spectrum=predicted,
            spectrum=lower.singular_values(columns.rows(columns.f, centered=stretch.centered)),
            predicted_rank=numerical_rank(predicted),
            coadaptation=None if squares is None else coadaptation(head.flows(squares)),
            lower_bounds=tuple(bounds), gap=gap, relative_gap=gap / objective if objective else 0.0,
        )  # fmt: skip

    @property
    def size(self) -> int:
        """How many numbers are kept."""
        return 0 if self._parts is None else self._parts.size

    def unsuggested(self) -> str | None:
        """Return why no drop probability can be suggested, None if one can."""
        if self._parts is None:
            return (
                f"{self.head.units} units feed the last layer, and {MAX_UNITS} is the most whose "
                "second moments are kept"
            )
        some = self._parts.counts[0] > 1 and min(self._parts.counts) > 0 and self.head.adjustable
        return None if some else "too few rows to hold out, or no probability to choose"

    def suggestion(self, table: Table, *, own_data: bool) -> Suggestion:
        """Return the drop probability with the least held-out error."""
        head, columns = self.head, table.columns()
        assert self._parts is not None  # noqa: S101 (for the type checker)
        strengths = head.strengths(lower.CANDIDATES)
        curve = lower.holdout_curve(self._parts, head.weigh, strengths, bias=head.centered)
        assert curve is not None  # noqa: S101 (for the type checker)
        error, deviation = (part * unit(self._loss, self._outputs) for part in curve)
        best = int(np.argmin(error))
        near = lower.CANDIDATES[error <= error[best] + deviation[best]]
        ranks = self._predicted_ranks(self._targets(columns), strengths)
        evidence = (
            "held out: a fifth of the rows given. The features before the last layer were trained "
            "on them too, so that the curve favors little dropout; pass holdout for a fair one"
            if own_data
            else "held out: data given as such"
        )
        if not is_squared(self._loss):
            evidence += ". The error is the squared one (classes as one-hot targets), not this loss"
        return Suggestion(
            drop_prob=float(lower.CANDIDATES[best]), current=head.drop_prob,
            drop_probs=lower.CANDIDATES.copy(), holdout=error, holdout_error=deviation,
            predicted_rank=ranks, plausible=(float(near.min()), float(near.max())),
            evidence=evidence,
        )  # fmt: skip

    def _targets(self, columns: Columns) -> list[lower.Target]:
        return [_target(columns, stretch) for stretch in self.head.stretches]

    def _predicted_ranks(self, targets: list[lower.Target], strengths: Floats | None) -> Ints:
        """Return the rank of the optimum at each candidate."""
        stretch, *others = self.head.stretches
        if strengths is not None and not others:
            return lower.surviving(targets[0].spectrum[: stretch.rank], strengths / self.head.units)
        spectra = (self._best_stretch(targets, float(p))[1] for p in lower.CANDIDATES)
        return np.array([numerical_rank(spectrum) for spectrum in spectra])

    def _best_stretch(
        self, targets: list[lower.Target], p: float | None = None
    ) -> tuple[float, Floats, lower.Target, Stretch]:
        """Return the tightest squared bound, its spectrum and target, and where it is from."""
        found = []
        for stretch, target in zip(self.head.stretches, targets, strict=True):
            bound, predicted = lower.squared_bound(target, stretch.rank, stretch.envelopes(p))
            found.append((bound, predicted, target, stretch))
        return max(found, key=lambda item: item[0])

    def _squared_bounds(self, columns: Columns, bound: float, stretch: Stretch) -> list[LowerBound]:
        """Return the bound over all weights, and the best last layer for the units as they are."""
        scale, over = unit(self._loss, self._outputs), "all weights of this architecture"
        if _kind(columns, stretch) == "any":
            place = "this noise" if self.head.noisy else "the last one"
            over = f"all weights, and any layers before {place}"
        bounds = [LowerBound(bound * scale, over, stretch.source)]
        if self._parts is not None:
            where = LowerBound(
                self._best_head(self._parts) * scale,
                "the last layer, its inputs as they are (this noise only)",
                "Structured dropout, Lemma 3.1",
            )
            fixed = self.head.stretches[0].trunk.kind == "fixed"
            if fixed and where.value > bounds[0].value:
                bounds.insert(0, LowerBound(where.value, over, where.source))
            bounds.append(where)
        return bounds

    def _best_head(self, parts: Parts) -> float:
        weigh = self.head.weigh(None)
        assert weigh is not None  # noqa: S101 (for the type checker)
        total, n = parts.moments(parts.training)
        problem = lower.Ridge(total, n, self.head.units, bias=self.head.centered)
        U, b = problem.best(weigh)
        return float(problem.objective(U, b) + np.sum((U @ weigh(problem.C)) * U))

    def _curved_bounds(self, columns: Columns, centered: bool) -> list[LowerBound]:
        """Return what is proved of cross-entropy and of the logistic loss."""
        R = columns.R
        means = R[0, columns.y] / R[0, 0]
        classes = self._loss == "cross_entropy"
        outputs = columns.rows(columns.f, centered=centered)
        if classes:  # cross-entropy does not see what is added to all logits of a sample
            outputs = outputs - outputs.mean(1, keepdims=True)
        size = float(lower.singular_values(outputs).sum())
        middle = np.full(self._outputs, 1 / self._outputs if classes else 0.5)
        targets = columns.rows(columns.y, centered=centered)
        top = float(np.linalg.norm(targets if centered else targets - R[:, :1] * middle, 2))
        own = self._entropy.value  # the least loss that any outputs can have, 0 for classes
        if classes:
            constant = lower.class_entropy(means) if centered else float(np.log(self._outputs))
            at_size = lower.class_bound(means, top, size, centered=centered, entropy=own)
        else:
            pi = means if centered else middle
            constant = lower.binary_entropy(pi)
            at_size = lower.logistic_bound(means, pi, own, top, size)
        uncertain = ", and what uncertain targets cost" if own else ""
        return [
            LowerBound(
                own + self.head.all_dropped * (constant - own),
                f"all weights: what it costs when every unit is dropped{uncertain}; the loss has "
                "no other floor",
                "no output then depends on the input",
            ),
            LowerBound(
                at_size,
                f"networks whose {'centered ' if centered else ''}mean logits have a nuclear norm "
                f"of at most {size:.4g} (that of this one without noise), divided by sqrt(samples)",
                "weak duality and Jensen's inequality",
            ),
        ]


def _kind(columns: Columns, stretch: Stretch) -> str:
    """Return what is known and used of the way from the inputs to the noise."""
    return stretch.trunk.kind if columns.has_inputs else "any"


def _target(columns: Columns, stretch: Stretch) -> lower.Target:
    if _kind(columns, stretch) == "any":
        return lower.free_target(columns.R, columns.y, centered=stretch.centered)
    return lower.affine_target(
        columns.R, columns.x, columns.y, centered=stretch.centered, shifted=stretch.trunk.shifted
    )
