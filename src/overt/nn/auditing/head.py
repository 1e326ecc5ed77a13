"""The last layers: where they begin, what they map, and which norms their noise induces."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from overt._types import Floats
from overt.linear.bounds import Envelope, envelopes
from overt.linear.last_layer import WeighUnits
from overt.nn.auditing.noises import drop_prob_of, with_drop_prob
from overt.nn.auditing.structure import Point, Structure, Tail, Trunk
from overt.nn.data.batches import Inputs, first_line
from overt.nn.layers.dropblock import DropBlock1d, DropBlock2d, DropBlock3d
from overt.nn.layers.dropconnect import DropConnectLinear
from overt.nn.layers.mask_covariance import MaskCovariance
from overt.nn.layers.recognized import is_weight_noise, mask_covariance_of, plain_dropout
from overt.nn.recording.watching import hooked, watch
from overt.noise import CovarianceNoise
from overt.spectral import KSupport, Schatten, SpectralNorm, SquaredNuclear, nu

MAX_COVARIANCE = 2048
"""The most units whose covariance matrix is decomposed (seconds, 32 MB)."""


@dataclass(frozen=True, eq=False)
class TailPart:
    """A part of the tail that gives a bound: `envelopes(drop_prob)` are those of its noise."""

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
        self, model: nn.Module, structure: Structure, tail: Tail, name: str, point: Point
    ) -> None:
        module = model.get_submodule(name)
        self.name = name
        self.noisy = point.noise is not None
        self.module: Any = copy.deepcopy(module) if self.noisy else None
        self.drops_weights = isinstance(self.module, DropConnectLinear)
        self.centered = point.shifted
        self.shape = point.op.given[0].shape[1:]
        self.units = math.prod(self.shape)
        weight = structure.only_weight(point)
        if weight is None:
            self.J = _jacobian(model, module, structure.inputs.first(1))
        else:
            self.J = weight.detach().to("cpu", torch.float64, copy=True)
        trunk = structure.trunk(point)
        rank = min(point.narrowest, self.units, trunk.narrowest)
        source = "Structured dropout, Theorem 2.7; Implicit bias of dropout, Theorem 3.6"
        self.parts = [TailPart(point.shifted, rank, trunk, self._nearest_envelopes, source)]
        self._add_joint_part(model, structure, tail)

    def _add_joint_part(self, model: nn.Module, structure: Structure, tail: Tail) -> None:
        """Add the bound of several plain dropout layers in a row, if there are any."""
        plain: list[Point] = []
        self._probs: dict[str | None, float] = {}
        for point in tail.noises:
            prob = plain_dropout(model.get_submodule(str(point.noise)))
            if prob is not None:
                plain.append(point)
                self._probs[point.noise] = prob
        used_once = len(plain) == len(self._probs)
        if self.drops_weights or not used_once or len(plain) < 2:
            return
        self._widths = [structure.units(point.op.output) for point in plain]
        first = plain[-1]
        trunk = structure.trunk(first)
        rank = min(first.narrowest, trunk.narrowest)
        source = "Thesis, Theorem 9 and Lemma 9"
        self.parts.append(TailPart(first.shifted, rank, trunk, self._joint_envelopes, source))

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
        return covariance is not None and any(self.shape[axis] > 1 for axis in covariance.shared)

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
        return float(p ** (self.units // math.prod(self.shape[a] for a in covariance.shared)))

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
        plain = not self.noisy or self.drops_weights or plain_dropout(self.module) is not None
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
        if p is not None and self.name in probs:
            probs[self.name] = p
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
    if isinstance(module, (DropBlock1d, DropBlock2d, DropBlock3d)) and module.placement == "grid":
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


def find_head(model: nn.Module, structure: Structure, *, log_softmax: bool) -> Head | str:
    """Return the head, or the reason why there is none."""
    tail = structure.tail(log_softmax=log_softmax)
    place = _nearest_place(model, tail)
    if place is None and tail.linear is None:
        return (
            f"the output comes from {tail.stopped}, which is not known to be affine in one input: "
            "no bound, and no prediction of its spectrum"
        )
    if place is None:
        return "the last linear map is not a torch.nn.Linear layer: no bound is taken from it"
    name, point = place
    if not structure.is_last(point):
        return f"{name} is called again behind its place: no bound is taken from it"
    features = point.op.given[0]
    module = model.get_submodule(name)
    if features.shape[0] != len(structure.inputs):
        return f"the rows that {name} takes are not those of the batch: no bound is taken from it"
    if is_weight_noise(module) and structure.units(features) != module.weight[0].numel():
        return f"the weights that {name} drops meet several positions: no bound is taken from it"
    try:
        head = Head(model, structure, tail, name, point)
    except RuntimeError as error:  # the forward pass may have no gradient
        return f"no map behind {name} can be found: {first_line(error)}"
    output = structure.output
    if output.maker is not None and output.maker.name == "log_softmax":
        (output,) = output.maker.given
    fits = head.fits(features.tensor, output.tensor)
    return head if fits else f"what lies behind {name} is not affine"


def _nearest_place(model: nn.Module, tail: Tail) -> tuple[str, Point] | None:
    """Return the name and place of the noise nearest the output, or of the last layer."""
    for point in tail.noises:
        name = str(point.noise)
        module = model.get_submodule(name)
        if not is_weight_noise(module):
            return name, point
        last = tail.linear is not None and tail.weight is module.weight
        if tail.linear is not None and last and isinstance(module, DropConnectLinear):
            return name, replace(tail.linear, noise=point.noise)
    for name, module in model.named_modules():
        last = getattr(module, "weight", None) is tail.weight
        if tail.linear is not None and last and isinstance(module, nn.Linear):
            return name, tail.linear
    return None


def _jacobian(model: nn.Module, module: Any, inputs: Inputs) -> Tensor:
    """Return d output / d (the module's input), outputs x units, in double precision.

    What lies behind is affine up to a final log_softmax, which is left out, so one sample is
    enough. A noise layer in evaluation mode is the identity.
    """
    zeros: list[Tensor] = []

    def add_zeros(module: nn.Module, args: Any) -> Any:
        zeros.append(torch.zeros_like(args[0], requires_grad=True))
        return (args[0] + zeros[-1], *args[1:])

    def skip_log_softmax(call: Any) -> Any:
        return call.args[0] if call.name == "log_softmax" else call.run()

    with hooked([module], add_zeros), torch.enable_grad():
        output = watch(model, inputs.given, skip_log_softmax, output=inputs.output).flatten()
        rows = [
            torch.autograd.grad(value, zeros[-1], retain_graph=True, materialize_grads=True)[0]
            for value in output
        ]
    return torch.stack([row.flatten() for row in rows]).double().cpu()
