"""The last layer: spectra, proved bounds, and the drop probability that data speak for."""

from __future__ import annotations

import numpy as np

from overt._types import Floats
from overt.linear.bounds import numerical_rank
from overt.nn.auditing import lower
from overt.nn.auditing.examination import Examination
from overt.nn.auditing.head import Head, Stretch
from overt.nn.auditing.losses import is_squared, unit
from overt.nn.auditing.noises import all_dropped, drop_prob
from overt.nn.auditing.report import HeadFindings, LowerBound, Suggestion
from overt.nn.auditing.suggest import CANDIDATES, MAX_UNITS, Ridge, held_out_curve
from overt.relu.bounds import coadaptation


def head_findings(e: Examination, head: Head, R: Floats, objective: float) -> HeadFindings:
    """Return what the last layer does beside what theory says; R is the triangle of the data."""
    bound, predicted, target, stretch = _best_stretch(e, head, R)
    kind = _kind(e, stretch)
    rows = R[1:] if stretch.centered else R
    spectrum = lower.singular_values(rows[:, e.output_slice])
    per_unit, bounds = unit(e.loss, e.outputs), []
    if is_squared(e.loss):
        over = "all weights of this architecture"
        if kind == "any":
            over = "all weights, and any layers before this noise" if head.noisy else (
                "all weights, and any layers before the last one"
            )  # fmt: skip
        bounds.append(LowerBound(bound * per_unit, over, stretch.source))
        if e.parts is not None:
            best = _best_head(e, head)
            where = LowerBound(
                best * per_unit, "the last layer, its inputs as they are (this noise only)",
                "Structured dropout, Lemma 3.1",
            )  # fmt: skip
            if head.stretches[0].trunk.kind == "fixed" and where.value > bounds[0].value:
                bounds.insert(0, LowerBound(where.value, over, where.source))
            bounds.append(where)
    else:
        bounds = _curved_bounds(e, head, R, stretch.centered)
    average = e.squares[head.name]
    squares = None if average is None else average.value
    psi = None if squares is None else head_flows(head, squares)
    gap = objective - bounds[0].value
    return HeadFindings(
        name=head.name,
        width=head.units,
        rank_limit=stretch.rank,
        centered=stretch.centered,
        trunk=kind,
        target_spectrum=target.spectrum,
        predicted_spectrum=predicted,
        spectrum=spectrum,
        predicted_rank=numerical_rank(predicted),
        coadaptation=None if psi is None else coadaptation(psi),
        lower_bounds=tuple(bounds),
        gap=gap,
        relative_gap=gap / objective if objective else 0.0,
    )


def _best_stretch(
    e: Examination, head: Head, R: Floats, p: float | None = None
) -> tuple[float, Floats, lower.Target, Stretch]:
    """Return the tightest squared bound, its spectrum and target, and the stretch it is from."""
    found = []
    for stretch in head.stretches:
        target = _target(e, R, stretch)
        envelopes = stretch.envelopes(p)
        bound, predicted, _ = lower.squared_bound(target, stretch.rank, envelopes)
        found.append((bound, predicted, target, stretch))
    return max(found, key=lambda item: item[0])


def _target(e: Examination, R: Floats, stretch: Stretch) -> lower.Target:
    if _kind(e, stretch) == "any":
        return lower.free_target(R, e.target_slice, centered=stretch.centered)
    return lower.affine_target(
        R, e.input_slice, e.target_slice, centered=stretch.centered, shifted=stretch.trunk.shifted
    )


def _kind(e: Examination, stretch: Stretch) -> str:
    """Return what is known and used of the way from the inputs to the noise."""
    return stretch.trunk.kind if e.inputs else "any"


def _best_head(e: Examination, head: Head) -> float:
    assert e.parts is not None  # noqa: S101 (for the type checker)
    weigh = head.weigh(None)
    assert weigh is not None  # noqa: S101 (for the type checker)
    total, n = e.parts.moments(e.parts.training)
    problem = Ridge(total, n, head.units, bias=head.centered)
    return problem.objective(*problem.best(weigh), weigh)


def _curved_bounds(e: Examination, head: Head, R: Floats, centered: bool) -> list[LowerBound]:
    means = R[0, e.target_slice] / R[0, 0]
    classes = e.loss == "cross_entropy"
    outputs = R[1:, e.output_slice] if centered else R[:, e.output_slice]
    if classes:  # cross-entropy does not see what is added to all logits of a sample
        outputs = outputs - outputs.mean(1, keepdims=True)
    size = float(lower.singular_values(outputs).sum())
    middle = np.full(e.outputs, 1 / e.outputs if classes else 0.5)
    targets = R[1:, e.target_slice] if centered else R[:, e.target_slice] - R[:, :1] * middle
    top = float(np.linalg.norm(targets, 2))
    own = e.entropy.value  # the least loss that any outputs can have, 0 for classes
    empty = all_dropped(head.module, head.shape) if head.noisy else 0.0
    if classes:
        constant = lower.class_entropy(means) if centered else float(np.log(e.outputs))
        at_size = lower.class_bound(means, top, size, centered=centered, entropy=own)
    else:
        pi = means if centered else middle
        constant = lower.binary_entropy(pi)
        at_size = lower.logistic_bound(means, pi, own, top, size)
    uncertain = ", and what uncertain targets cost" if own else ""
    return [
        LowerBound(
            own + empty * (constant - own),
            f"all weights: what it costs when every unit is dropped{uncertain}; the loss has no "
            "other floor",
            "no output then depends on the input",
        ),
        LowerBound(
            at_size,
            f"networks whose {'centered ' if centered else ''}mean logits have a nuclear norm of "
            f"at most {size:.4g} (that of this one without noise), divided by sqrt(samples)",
            "weak duality and Jensen's inequality",
        ),
    ]


def suggestion_for(e: Examination, head: Head, R: Floats, *, own_data: bool) -> Suggestion | None:
    """Return the drop probability with the least held-out error, None where there is no curve."""
    if e.parts is None:
        e.skipped.append(
            ("suggestion", f"{head.units} units feed the last layer, and {MAX_UNITS} is the most "
             "whose second moments are kept")
        )  # fmt: skip
        return None
    curve = held_out_curve(e.parts, head.weigh, bias=head.centered)
    if curve is None:
        e.skipped.append(("suggestion", "too few rows to hold out, or no probability to choose"))
        return None
    error, deviation = (part * unit(e.loss, e.outputs) for part in curve)
    best = int(np.argmin(error))
    near = CANDIDATES[error <= error[best] + deviation[best]]
    ranks = [numerical_rank(_best_stretch(e, head, R, float(p))[1]) for p in CANDIDATES]
    evidence = (
        "held out: a fifth of the rows given. The features before the last layer were trained on "
        "them too, so that the curve favors little dropout; pass held_out for a fair one"
        if own_data
        else "held out: data given as such"
    )
    if not is_squared(e.loss):
        evidence += ". The error is the squared one (classes as one-hot targets), not this loss"
    return Suggestion(
        drop_prob=float(CANDIDATES[best]),
        current=float(drop_prob(head.module) or 0.0) if head.noisy else 0.0,
        drop_probs=CANDIDATES.copy(),
        held_out=error,
        held_out_error=deviation,
        predicted_rank=np.array(ranks),
        plausible=(float(near.min()), float(near.max())),
        evidence=evidence,
    )


def head_flows(head: Head, squares: Floats) -> Floats:
    """Return |u_j| sqrt(mean(h_j^2)), u_j the columns of the map behind the units."""
    return np.sqrt(np.sum(head.J.numpy() ** 2, 0) * squares.ravel())
