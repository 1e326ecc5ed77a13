"""The findings of an audit as data; `presentation` turns them into words and pictures."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

from overt._types import Floats, Ints
from overt.results import Result, Status


@dataclass(frozen=True, repr=False, eq=False)
class NoiseFindings(Result):
    """What one source of noise does: a noise layer, or a module that draws in its forward pass.

    Attributes
    ----------
    name, kind
        The layer's name in the model, and how it prints.
    units
        Entries of a sample that it acts on (weights, for DropConnect); None if that changes from
        batch to batch.
    drop_prob
        Its nominal drop probability, None for noise that has none.
    realized, realized_error
        The share of zeros in masks drawn from it, and the standard error of that; None for
        what draws in another way than by multiplying units or weights.
    penalty, penalty_error, exact
        What its noise adds to the loss when the noise of all layers behind it is on: exact, or
        from sampled masks with this standard error.
    share
        The penalty as a share of the training objective.
    flows
        psi_j, psi_j^2 = mean |df/dh_j|^2 h_j^2, what unit j contributes to the outputs; for noise
        before the last layer |u_j| sqrt(mean(h_j^2)), as in the thesis. A unit is what one entry of
        the mask multiplies. Estimated from random directions of the output unless `exact_flows`.
    flows_error, coadaptation_error
        Standard errors (jackknife over eight parts of the rows), 0 where they are exact.
    coadaptation
        phi = |psi|_1 / (sqrt(d) |psi|_2): 1 if all units contribute alike, 1/sqrt(d) if one does
        everything.
    dead
        Units that were 0 on every sample.
    """

    name: str
    kind: str
    units: int | None
    drop_prob: float | None
    realized: float | None
    realized_error: float | None
    penalty: float
    penalty_error: float
    exact: bool
    share: float
    flows: Floats | None
    flows_error: Floats | None
    exact_flows: bool
    coadaptation: float | None
    coadaptation_error: float | None
    dead: int | None


@dataclass(frozen=True, repr=False, eq=False)
class LayerFindings(Result):
    """A linear or convolutional layer: its norms, and which of its inputs were always 0.

    Kernels are taken as matrices, outputs x everything else. `dead` counts the units (channels, for
    a convolution) that feed the layer and were 0 on every sample; `from_data` says that they are
    the model's own inputs.
    """

    name: str
    shape: tuple[int, ...]
    spectral: float
    frobenius: float
    stable_rank: float
    inputs: int
    dead: int
    from_data: bool


@dataclass(frozen=True, repr=False, eq=False)
class LowerBound(Result):
    """No setting of the weights in `over` has a smaller training objective than `value`."""

    value: float
    over: str
    source: str


@dataclass(frozen=True, repr=False, eq=False)
class HeadFindings(Result):
    """The last layer: what it does beside what theory says about it.

    Attributes
    ----------
    name
        The noise layer before it, or the layer itself if there is none.
    width, rank_limit
        The units that feed it, and the largest rank its map can have.
    centered
        Whether biases behind the noise make the theory one of centered targets and outputs.
    trunk
        What comes before: "fixed" (the units are the inputs), "affine", or "any".
    target_spectrum
        Singular values of the (centered) targets as samples x outputs, divided by sqrt(samples).
    predicted_spectrum
        What the optimum under this noise makes of them for the squared loss: Theorem 2.7 of
        structured dropout, 3.6 of Implicit bias of dropout.
    spectrum
        Singular values of the (centered) outputs, divided by sqrt(samples).
    predicted_rank
        The number of non-zero predicted values.
    coadaptation
        phi of the units that feed it, as for a noise layer.
    lower_bounds
        Proved bounds on the objective, the one over all weights first.
    gap, relative_gap
        Objective minus the first of them, and that divided by the objective.
    """

    name: str
    width: int
    rank_limit: int
    centered: bool
    trunk: str
    target_spectrum: Floats
    predicted_spectrum: Floats
    spectrum: Floats
    predicted_rank: int
    coadaptation: float | None
    lower_bounds: tuple[LowerBound, ...]
    gap: float
    relative_gap: float

    @property
    def lower_bound(self) -> float:
        """The proved bound over all weights."""
        return self.lower_bounds[0].value


@dataclass(frozen=True, repr=False, eq=False)
class Measure(Result):
    """A complexity measure, such as a path norm: it ranks networks, and bounds nothing."""

    name: str
    value: float
    formula: str


@dataclass(frozen=True, repr=False, eq=False)
class Suggestion(Result):
    """A drop probability for the units before the last layer, and what speaks for it.

    Attributes
    ----------
    drop_prob
        Where the held-out error is least.
    current
        The model's own, 0 without dropout there.
    drop_probs
        The candidates.
    holdout, holdout_error
        For each, the squared error on held-out rows of the last layer that is best on the other
        rows under that dropout, the features kept as they are; and its standard error over five
        groups of rows.
    predicted_rank
        For each, the rank of the optimal outputs.
    plausible
        Smallest and largest candidate within one standard error of the best.
    evidence
        What was held out, and what that is worth.
    """

    drop_prob: float
    current: float
    drop_probs: Floats
    holdout: Floats
    holdout_error: Floats
    predicted_rank: Ints
    plausible: tuple[float, float]
    evidence: str

    def __str__(self) -> str:
        best = self.holdout.argmin()
        now = abs(self.drop_probs - self.current).argmin()
        return (
            f"suggested drop probability before the last layer: {self.drop_prob:g} (now "
            f"{self.current:g}; within one standard error {self.plausible[0]:g} to "
            f"{self.plausible[1]:g})\n"
            f"  held-out error {self.holdout[best]:.5g} ± {self.holdout_error[best]:.1g}, rank "
            f"{self.predicted_rank[best]}; at {self.drop_probs[now]:g}: {self.holdout[now]:.5g}, "
            f"rank {self.predicted_rank[now]}\n"
            f"  {self.evidence}"
        )


@dataclass(frozen=True, repr=False, eq=False)
class AuditReport(Result):
    """What noise does to a network on some data, and what theory promises. See `audit`.

    Attributes
    ----------
    model, loss, samples, outputs, parameters
        What was audited, on how many rows.
    plain_loss
        The mean loss without noise, all layers in evaluation mode.
    objective, objective_error
        The mean loss with noise, which training descends; the error is standard, 0 if it is exact.
    accuracy, holdout_loss
        Share of classes predicted right, and mean loss on held-out data, where there are any.
    noises, layers, head, measures, suggestion
        The findings.
    skipped
        (name, reason) of what was not understood or not done.
    status
        "finished", or "interrupted": the findings are then those on the rows seen so far.
    """

    model: str
    loss: str
    samples: int
    outputs: int
    parameters: int
    plain_loss: float
    objective: float
    objective_error: float
    accuracy: float | None
    holdout_loss: float | None
    noises: tuple[NoiseFindings, ...]
    layers: tuple[LayerFindings, ...]
    head: HeadFindings | None
    measures: tuple[Measure, ...]
    suggestion: Suggestion | None
    skipped: tuple[tuple[str, str], ...]
    status: Status
    seconds: float

    def __str__(self) -> str:
        from overt.nn.auditing.presentation import text

        return text(self)

    def plot(self) -> Any:
        """Draw the flow through units, the last layer's spectra and the curve of the suggestion."""
        from overt.nn.auditing.presentation import plot

        return plot(self)

    def to_html(self, path: str | os.PathLike[str] | None = None) -> str:
        """Return the report as one HTML page with pictures; write it to `path` if given."""
        from overt.nn.auditing.presentation import html

        return html(self, path)

    def to_dict(self) -> dict[str, Any]:
        """Return the report as plain dicts, lists, numbers and strings, ready for JSON."""
        plain = super().to_dict()
        if self.head is not None:
            plain["head"]["lower_bound"] = self.head.lower_bound
        return plain
