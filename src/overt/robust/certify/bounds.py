"""Decide whether a network can be fooled: by linear bounds, then by a mixed-integer program.

    max(a z, z) >= alpha z,   max(a z, z) <= s z + t     for z between its bounds l < 0 < u

with s = (u - a l) / (u - l), t = u - s u and alpha 1 or a, whichever lies nearer (CROWN, Zhang et
al. 2018). A linear function of a layer is bounded by one of the layers that feed it, and so on back
to the inputs, where its least value over the region is known exactly. The bounds of hidden units
come from the same pass, layer by layer. In double precision; rounding is not bounded.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor, nn

from overt._check import InputError
from overt._progress import meter
from overt._types import Bools, Floats
from overt.results import Status
from overt.robust.certify.milp import DenseNetwork, best_lead
from overt.robust.certify.network import ReluNetwork
from overt.robust.models import ModelAdapter
from overt.robust.threats import Region

MAX_UNITS = 1500
"""Inputs and hidden units above which the mixed-integer program is not tried."""

ROUNDING = 1e-9
"""Share of the largest logit that rounding in double precision may add to a lead."""

MAX_DIFFERENCE = 1e4
"""Machine epsilons of the largest logit by which model and modelled network may differ."""

MIXING_POINTS = 8
"""Points whose logits are computed alone and in a batch."""

RANDOM_POINTS = 4
"""Random points of each ball at which the model is compared with the modelled network."""


@dataclass(frozen=True, eq=False)
class Decision:
    """What a wrong class leads by at `x`, a proved bound on any lead, per point.

    The lead is -inf where nothing was searched.
    """

    lead: Floats
    bound: Floats
    x: Floats
    scale: Floats  # the largest logits at the inputs
    status: Status

    @property
    def proved(self) -> Bools:
        """Which points are robust, rounding allowed for."""
        return np.asarray(self.bound < -ROUNDING * self.scale)


def read_network(adapter: ModelAdapter, region: Region, batch_size: int) -> ReluNetwork:
    """Return the model as a network, or refuse what is not modelled.

    The modelled logits are compared with the model's at the inputs and at random points of each
    ball, by turns inside and at its extreme points.
    """
    single = isinstance(adapter.model, nn.Module)
    if not single or len(adapter.inputs.given) > 1:
        raise InputError("certify needs one torch module with one input")
    if adapter.output is not None:
        raise InputError(
            "certify does not model output=: pass a model that returns logits"
        )
    mean, std = adapter.scale or (None, None)
    network = ReluNetwork.trace(adapter.model, adapter.x, mean, std)
    if (adapter.outputs == "probabilities") != network.probabilities:
        raise InputError(
            'certify models outputs="probabilities" of models that end in a softmax, and no others'
        )
    _refuse_mixing(network, adapter.x[:MIXING_POINTS].cpu().double())
    compare(network, adapter, adapter.x, batch_size)
    for seed in range(RANDOM_POINTS):
        moved = region.perturbed(region.draw(seed, extreme=seed % 2 == 1))
        compare(network, adapter, moved.view_as(adapter.x), batch_size)
    return network


def _refuse_mixing(network: ReluNetwork, x: Tensor) -> None:
    """Refuse a network whose logits of a point depend on the other points of its batch."""
    among = torch.cat([x, torch.rand_like(x)])
    together = network.logits(among)
    alone = torch.cat([network.logits(point[None]) for point in among])
    scale = max(float(alone.abs().max()), 1e-30)
    if not float((together - alone).abs().max()) <= ROUNDING * scale:
        raise InputError(
            "certify needs a model that treats the points of a batch separately; the logits of "
            "this one depend on the other points"
        )


def compare(
    network: ReluNetwork, adapter: ModelAdapter, x: Tensor, batch_size: int
) -> None:
    """Compare the modelled logits with the model's at some inputs; refuse any difference."""
    modelled = network.outputs(x.cpu().double())
    given = adapter.all_logits(x, batch_size).cpu().double()
    lowest = float(np.log(torch.finfo(adapter.x.dtype).tiny))
    if network.normalized:  # probabilities may round to 0
        modelled, given = modelled.clamp(min=lowest), given.clamp(min=lowest)
    scale = max(float(network.logits(x.cpu().double()).abs().max()), 1e-30)
    difference = float((modelled - given).abs().max())
    if not difference <= MAX_DIFFERENCE * adapter.precision * scale:
        raise InputError(
            f"certify models a network whose logits differ from the model's by {difference:.3g}: "
            "it computes something that its layers do not show"
        )


def decide(
    network: ReluNetwork,
    region: Region,
    y: Tensor,
    seconds: float,
    *,
    level: float | None = None,
) -> Decision:
    """Decide the points of a region in double precision, with classes y (points,).

    The mixed-integer program gets at most `seconds` a point, and none for large networks or where
    linear bounds prove the point robust. With a `level` every point gets it, until it is known
    whether a wrong class can lead by that much. Ctrl-C keeps what was decided.
    """
    n = len(y)
    x = region.x.view(n, *network.shape)
    scale = network.logits(x).abs().amax(1).numpy() if n else np.zeros(0)
    lead, bound = np.full(n, -np.inf), np.full(n, np.inf)
    found = Decision(lead, bound, region.x.numpy().copy(), scale, Status.FINISHED)
    hidden_units = sum(shape.numel() for shape, _ in network.units)
    small = 0 < hidden_units <= MAX_UNITS - region.x.shape[1]
    program = None
    if level is not None or (seconds > 0 and small):
        program = DenseNetwork(*network.dense(), network.slopes)
    try:
        with meter("certify", n) as bar:
            for i in range(n):
                around = region.take(torch.tensor([i]))
                bounds = LinearBounds(network, around)
                bound[i] = bounds.best_lead(int(y[i]))
                if program is not None and (level is not None or not found.proved[i]):
                    hidden = [
                        (low.numpy(), high.numpy()) for low, high in bounds.hidden
                    ]
                    lead[i], upper, found.x[i] = best_lead(
                        program, int(y[i]), around, hidden, level or 0.0, seconds
                    )
                    bound[i] = max(min(bound[i], upper), lead[i])
                bar.advance()
    except KeyboardInterrupt:
        return replace(found, status=Status.INTERRUPTED)
    return found


class LinearBounds:
    """Linear bounds around one point; `hidden` bounds the units, (low, high) a layer."""

    def __init__(self, network: ReluNetwork, region: Region) -> None:
        self._network = network
        self._region = region
        self.hidden: list[tuple[Tensor, Tensor]] = []
        for k, (shape, _) in enumerate(network.units):
            eye = torch.eye(shape.numel()).double()
            self.hidden.append((self.least(k, eye), -self.least(k, -eye)))

    def best_lead(self, own: int) -> float:
        """Return a proved upper bound on the lead of any wrong class."""
        eye = torch.eye(self._network.classes).double()
        others = [j for j in range(len(eye)) if j != own]
        margins = eye[own] - eye[others]
        return -float(self.least(len(self._network.units), margins).min())

    def least(self, depth: int, weights: Tensor) -> Tensor:
        """Return lower bounds on weights . z over the region, z the units of layer `depth`."""
        total, first, rest = self._network.transposed(depth, weights)
        for k in reversed(range(depth)):
            weights_k = rest[k]
            if weights_k is None:
                continue
            below, shift = self._relax(k, weights_k)
            constant, of_inputs, of_hidden = self._network.transposed(k, below)
            total = total + shift + constant
            first = first + of_inputs
            for j, more in enumerate(of_hidden):
                known = rest[j]
                if more is not None:
                    rest[j] = more if known is None else known + more
        everywhere = self._region.take(torch.zeros(len(first), dtype=torch.long))
        worst = everywhere.linear_argmax(-first)
        return total + (first * (everywhere.x + worst)).sum(1)

    def _relax(self, k: int, weights: Tensor) -> tuple[Tensor, Tensor]:
        """Return weights of z_k below those of h_k, and what must be added."""
        low, high = self.hidden[k]
        a = self._network.slopes[k]
        mixed = (low < 0) & (high > 0)
        steep = torch.where(mixed, (high - a * low) / (high - low), 1.0)
        steep = torch.where(high <= 0, a, steep)
        offset = torch.where(mixed, high - steep * high, 0.0)
        under = torch.where(mixed, torch.where(high >= -low, 1.0, a), steep)
        up, down = weights.clamp(min=0), weights.clamp(max=0)
        return up * under + down * steep, (down * offset).sum(1)
