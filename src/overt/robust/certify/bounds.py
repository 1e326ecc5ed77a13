"""Decide whether a network can be fooled: by linear bounds, then by a mixed-integer program.

    max(a z, z) >= alpha z,   max(a z, z) <= s z + t     for z between its bounds l < 0 < u

with s = (u - a l) / (u - l), t = u - s u and alpha 1 or a, whichever lies nearer (CROWN, Zhang et
al. 2018). A linear function of a layer is bounded by one of the layers that feed it, and so on back
to the inputs, where its least value over the region is known exactly. The bounds of hidden units
come from the same pass, layer by layer. In double precision; rounding is not bounded.

The program, for scipy's HiGHS, has a binary for each hidden unit that the perturbation can switch:

    maximize f_j - f_y  over  h_0 = x + d,  d allowed,
    z_i = sum over k < i of W_ik h_k + b_i,  h_i = max(slope_i z_i, z_i),  f the last z
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor, nn

from overt._check import Bools, Floats, InputError
from overt._running import meter
from overt.results import Status
from overt.robust.certify.network import ReluNetwork
from overt.robust.models import SINGLE_POINTS, ModelAdapter
from overt.robust.threats import L1, L2, Region

MAX_UNITS = 1500
"""Inputs and hidden units above which the mixed-integer program is not tried."""

ROUNDING = 1e-9
"""Share of the largest difference of logits that rounding may add to a lead."""

MAX_DIFFERENCE = 1e4
"""Machine epsilons of the largest logit by which model and modelled network may differ."""

RANDOM_POINTS = 4
"""Random points of each ball at which the model is compared with the modelled network."""

TIGHT = 1e-7
"""How far, relative to the radius, tangent planes may leave a Euclidean ball."""

MOST_PLANES = 400
"""Tangent planes of a ball after which a point is left undecided."""

SLACK = 1e-7
"""The solver's tolerance of dual feasibility, by which its bound may be off."""


@dataclass(frozen=True, eq=False)
class Decision:
    """What a wrong class leads by at `x`, a proved bound on any lead, per point.

    The lead is -inf where nothing was searched.
    """

    lead: Floats
    bound: Floats
    x: Floats
    scale: Floats  # the largest difference of two logits that the inputs allow
    status: Status

    def below(self, level: float) -> Bools:
        """Return where no wrong class can lead by the level, rounding allowed for."""
        return np.asarray(self.bound < level - ROUNDING * self.scale)


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
    _refuse_mixing(network, adapter.x[:SINGLE_POINTS].cpu().double())
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
        modelled = modelled.clamp(min=lowest)
        given = given.clamp(min=lowest)
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
    scale = 2 * network.logits(x).abs().amax(1).numpy() if n else np.zeros(0)
    lead = np.full(n, -np.inf)
    bound = np.full(n, np.inf)
    found = Decision(lead, bound, region.x.numpy().copy(), scale, Status.FINISHED)
    hidden_units = sum(shape.numel() for shape, _ in network.units)
    small = hidden_units <= MAX_UNITS - region.x.shape[1]
    programmed = level is not None or (seconds > 0 and small)
    least = 0.0 if level is None else level
    try:
        with meter("certify", n) as bar:
            for i, own in enumerate(y.tolist()):
                around = region.take(torch.tensor([i]))
                bounds = LinearBounds(network, around)
                bound[i], best = bounds.best_lead(own)
                if hidden_units == 0:  # the bound is reached
                    lead[i] = bound[i]
                    found.x[i] = best
                elif programmed and (level is not None or not found.below(0.0)[i]):
                    reached = _search(bounds, own, least, seconds)
                    lead[i], upper, found.x[i] = reached
                    bound[i] = max(min(bound[i], upper), lead[i])
                bar.advance()
    except KeyboardInterrupt:
        return replace(found, status=Status.INTERRUPTED)
    return found


class LinearBounds:
    """Linear bounds around one point; `hidden` bounds the units, (low, high) a layer."""

    def __init__(self, network: ReluNetwork, region: Region) -> None:
        self.network = network
        self.region = region
        self.hidden: list[tuple[Tensor, Tensor]] = []
        for k, (shape, _) in enumerate(network.units):
            eye = torch.eye(shape.numel()).double()
            low, _ = self.least(k, eye)
            high, _ = self.least(k, -eye)
            self.hidden.append((low, -high))

    def best_lead(self, own: int) -> tuple[float, Floats]:
        """Return a proved upper bound on the lead of any wrong class, and where it is taken."""
        eye = torch.eye(self.network.classes).double()
        others = [j for j in range(len(eye)) if j != own]
        margins = eye[own] - eye[others]
        least, where = self.least(len(self.network.units), margins)
        rival = int(least.argmin())
        return -float(least[rival]), where[rival].numpy()

    def least(self, depth: int, weights: Tensor) -> tuple[Tensor, Tensor]:
        """Return lower bounds on weights . z over the region, and the inputs that they come from.

        z are the units of layer `depth`.
        """
        total, first, rest = self.network.transposed(depth, weights)
        for k in reversed(range(depth)):
            below, shift = self._relax(k, rest[k])
            constant, of_inputs, of_hidden = self.network.transposed(k, below)
            total = total + shift + constant
            first = first + of_inputs
            for j, more in enumerate(of_hidden):
                rest[j] = rest[j] + more
        everywhere = self.region.take(torch.zeros(len(first), dtype=torch.long))
        worst = everywhere.x + everywhere.linear_argmax(-first)
        return total + (first * worst).sum(1), worst

    def _relax(self, k: int, weights: Tensor) -> tuple[Tensor, Tensor]:
        """Return weights of z_k below those of h_k, and what must be added."""
        low, high = self.hidden[k]
        _, a = self.network.units[k]
        mixed = (low < 0) & (high > 0)
        steep = torch.where(mixed, (high - a * low) / (high - low), 1.0)
        steep = torch.where(high <= 0, a, steep)
        offset = torch.where(mixed, high - steep * high, 0.0)
        under = torch.where(mixed, torch.where(high >= -low, 1.0, a), steep)
        up = weights.clamp(min=0)
        down = weights.clamp(max=0)
        below = up * under + down * steep
        return below, (down * offset).sum(1)


def _search(
    bounds: LinearBounds, own: int, level: float, seconds: float
) -> tuple[float, float, Floats]:
    """Return (lead reached, proved upper bound, the input that reaches it) over wrong classes.

    Classes and tangent planes are gone through only until the level is decided, or time is over;
    the bound is infinite where classes were not searched.
    """
    network = bounds.network
    threat = bounds.region.threat
    x = bounds.region.x[0].numpy()
    best = -np.inf
    bound = -np.inf
    where = x
    end = time.monotonic() + seconds
    rivals = [j for j in range(network.classes) if j != own]
    for j in rivals:
        program = _Program(bounds, own, j)
        upper = np.inf
        for _ in range(MOST_PLANES):
            proved, delta = program.solve(end - time.monotonic())
            upper = min(upper, proved)
            if delta is None:  # time was over before any solution was found
                break
            length = float(np.linalg.norm(delta))
            outside = isinstance(threat, L2) and length > threat.radius
            moved = x + delta
            if outside:
                moved = x + delta * (threat.radius / length)
            point = torch.from_numpy(moved).view(1, *network.shape)
            f = network.logits(point)[0]
            lead = float(f[j] - f[own])
            if lead > best:
                best = lead
                where = moved
            if upper < level or best > max(level, 0.0):  # decided
                break
            # In a tie more planes cannot decide.
            tie = upper - lead <= 2 * SLACK * program.scale
            if tie or not outside or length <= threat.radius * (1 + TIGHT):
                break
            program.cut(delta / length)
        bound = max(bound, upper, best)
        if best > max(level, 0.0) and j != rivals[-1]:
            return best, np.inf, where
    return best, bound, where


class _Program:
    """The mixed-integer program for one point and one wrong class.

    Variables v: d (inputs), |d| (inputs, for L1), and for each layer h (width) and s (width, 1
    where z >= 0). The solver's tolerances are absolute, so it is given d in units of the radius,
    the z and h of each unit in units of the largest |z| it can reach, and an objective whose
    coefficients have the sum 1.
    """

    def __init__(self, bounds: LinearBounds, own: int, j: int) -> None:
        region = bounds.region
        x = region.x[0].numpy()
        absolute = isinstance(region.threat, L1)
        self.inputs = len(x)
        self.radius = region.threat.radius or 1.0
        first = self.inputs * (2 if absolute else 1)
        total = first + 2 * sum(len(low) for low, _ in bounds.hidden)
        self._variables = np.eye(total)
        self._rows: list[Floats] = []  # rows . v <= limits
        self._limits: list[Floats] = []
        self._integral = np.zeros(total)
        self._least = np.zeros(total)
        self._most = np.ones(total)
        low, high = _reach(region)
        self._least[: self.inputs] = low / self.radius
        self._most[: self.inputs] = high / self.radius
        d = self._variables[: self.inputs]
        if absolute:
            size = self._variables[self.inputs : first]
            none = np.zeros(self.inputs)
            self._add(d - size, none)
            self._add(-d - size, none)
            reach = region.threat.radius / self.radius
            self._add(size.sum(0, keepdims=True), np.array([reach]))
        maps, offsets = bounds.network.dense
        # What feeds layers, each base + rows . v.
        sources = [(x, self.radius * d)]
        for k, (_, slope) in enumerate(bounds.network.units):
            low, high = (part.numpy() for part in bounds.hidden[k])
            unit = np.maximum(np.abs(low), np.abs(high))
            unit[unit == 0] = 1.0
            z0, z = _combined(offsets[k], maps[k], sources)
            z0 = z0 / unit
            z = z / unit[:, None]
            h = self._rectify(first, slope, z0, z, low / unit, high / unit)
            sources.append((np.zeros(len(unit)), unit[:, None] * h))
            first += 2 * len(unit)
        lead = {source: (W[j] - W[own])[None] for source, W in maps[-1].items()}
        b = offsets[-1]
        base, cost = _combined(b[[j]] - b[[own]], lead, sources)
        self.offset = float(base[0])
        self.scale = float(np.abs(cost).sum()) or 1.0
        self._cost = -cost[0] / self.scale

    def _rectify(
        self, first: int, a: float, z0: Floats, z: Floats, low: Floats, high: Floats
    ) -> Floats:
        """Add h = max(a z, z) of z0 + z . v; return h, from `first` on, with s after it."""
        switch = first + len(z0)
        end = switch + len(z0)
        h = self._variables[first:switch]
        s = self._variables[switch:end]
        # h >= z and h >= a z
        self._add(z - h, -z0)
        self._add(a * z - h, -a * z0)
        # h <= z - (1 - a) low (1 - s) and h <= a z + (1 - a) high s
        below = (1 - a) * np.maximum(-low, 0.0)
        above = (1 - a) * np.maximum(high, 0.0)
        self._add(h - z + below[:, None] * s, z0 + below)
        self._add(h - a * z - above[:, None] * s, a * z0)
        self._integral[switch:end] = 1
        self._least[first:switch] = np.maximum(a * low, low)
        self._most[first:switch] = np.maximum(a * high, high)
        self._least[switch:end] = low >= 0
        self._most[switch:end] = (high > 0) | (low >= 0)
        return h

    def _add(self, rows: Floats, limits: Floats) -> None:
        self._rows.append(rows)
        self._limits.append(limits)

    def cut(self, direction: Floats) -> None:
        """Add the ball's tangent plane with this unit normal."""
        plane = direction @ self._variables[: self.inputs]
        self._add(plane[None], np.ones(1))

    def solve(self, seconds: float) -> tuple[float, Floats | None]:
        """Return a proved upper bound on the lead, and the best perturbation, if one was found."""
        # On first use: scipy.optimize takes longer to load than all of overt.robust.
        from scipy.optimize import Bounds, LinearConstraint, milp
        from scipy.sparse import csr_array

        rows = csr_array(np.vstack(self._rows))
        limits = np.concatenate(self._limits)
        options = {"mip_rel_gap": 0.0, "disp": False}
        limited = bool(np.isfinite(seconds))
        if limited:
            options["time_limit"] = max(seconds, 1e-3)
        answer = milp(
            self._cost,
            constraints=LinearConstraint(rows, -np.inf, limits),
            bounds=Bounds(self._least, self._most),
            integrality=self._integral,
            options=options,
        )
        if answer.x is None and not limited:
            raise RuntimeError(f"the mixed-integer solver failed: {answer.message}")
        dual = answer.mip_dual_bound
        proved = np.inf
        if dual is not None and np.isfinite(dual):
            proved = self.scale * (SLACK - float(dual)) + self.offset
        if answer.x is None:
            return proved, None
        inside = np.clip(answer.x, self._least, self._most)
        return proved, inside[: self.inputs] * self.radius


def _reach(region: Region) -> tuple[Floats, Floats]:
    """Return the smallest and the largest perturbation of each input of one point."""
    radius = region.threat.radius
    high = np.full(region.x.shape[1], radius)
    if region.delta_bounds is None:
        return -high, high
    smallest, largest = (part[0].numpy() for part in region.delta_bounds)
    return np.maximum(-high, smallest), np.minimum(high, largest)


def _combined(
    offset: Floats, maps: dict[int, Floats], sources: list[tuple[Floats, Floats]]
) -> tuple[Floats, Floats]:
    """Return base and rows of offset + the sum of W h over the sources h = base + rows . v."""
    base: Floats = offset
    rows: Floats = np.zeros((len(offset), sources[0][1].shape[1]))
    for source, W in maps.items():
        before, of_variables = sources[source]
        base = base + W @ before
        rows = rows + W @ of_variables
    return base, rows
