"""What an attack leaves open, decided: by linear bounds, then by the mixed-integer program.

    max(a z, z) >= alpha z,   max(a z, z) <= s z + t     for z between its bounds l < 0 < u

with s = (u - a l) / (u - l), t = u - s u and alpha 1 or a, whichever lies nearer (CROWN, Zhang et
al. 2018). A linear function of a layer is bounded by one of the layer before, and so on back to the
inputs, where its least value over the region is known exactly. The bounds of hidden units come from
the same pass, layer by layer. In double precision; rounding is not bounded.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from overt._check import InputError
from overt._progress import meter
from overt._types import Bools, Floats
from overt.results import Status
from overt.robust.attack.base import AttackState
from overt.robust.certificates.milp import Network, best_lead
from overt.robust.threats import Region

AFFINE = (
    nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d,
    nn.Flatten, nn.Unflatten, nn.Identity, nn.Dropout, nn.AvgPool1d, nn.AvgPool2d,
    nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool2d, nn.ConstantPad2d, nn.ZeroPad2d, nn.Upsample,
)  # fmt: skip


LARGEST = 2_000_000
"""Entries of a network's matrices above which the mixed-integer program is not tried."""

ROUNDING = 1e-9
"""Share of the largest logit that rounding in double precision may add to a lead."""


@dataclass(frozen=True, eq=False)
class Chain:
    """A network as affine maps with rectifiers between them: one map more than slopes."""

    maps: tuple[nn.Sequential, ...]
    slopes: tuple[float, ...]
    shape: tuple[int, ...]  # of one input

    @classmethod
    def of(cls, model: Any, x: Tensor, mean: Any = None, std: Any = None) -> Chain:
        """Return a model as a chain, in double precision, or say what it has that does not fit."""
        maps: list[list[nn.Module]] = [[]]
        slopes: list[float] = []
        if mean is not None:
            maps[0].append(_Scaled(mean, std))
        for module in model.modules():
            _refuse_unmodelled(module)
        for module in _leaves(copy.deepcopy(model).double().eval()):
            if type(module) in (nn.ReLU, nn.LeakyReLU):
                slopes.append(float(getattr(module, "negative_slope", 0.0)))
                maps.append([])
            else:
                maps[-1].append(module)
        chain = cls(tuple(nn.Sequential(*part) for part in maps), tuple(slopes), tuple(x.shape[1:]))
        if chain.logits(x[:1].double()).numel() == 1:  # it stands for two, the first of them 0
            two = nn.Linear(1, 2, bias=False).double()
            two.weight = nn.Parameter(torch.tensor([[0.0], [1.0]]).double())
            chain.maps[-1].extend([nn.Flatten(), two])
        for part in chain.maps:
            part.requires_grad_(False)
        return chain

    def logits(self, x: Tensor) -> Tensor:
        """Return the outputs of inputs in double precision."""
        for k, part in enumerate(self.maps):
            x = part(x)
            if k < len(self.slopes):
                x = torch.maximum(self.slopes[k] * x, x)
        return x

    @cached_property
    def shapes(self) -> list[torch.Size]:
        """The shapes of one input and of what each map makes of it."""
        images = [torch.zeros(1, *self.shape).double()]
        for part in self.maps:
            images.append(part(images[-1]))
        return [image.shape[1:] for image in images]

    def entries(self) -> int:
        """Return the number of entries of all matrices."""
        return sum(a.numel() * b.numel() for a, b in pairwise(self.shapes))

    def dense(self) -> tuple[list[Floats], list[Floats]]:
        """Return matrices and offsets of the affine maps."""
        weights, offsets = [], []
        for part, shape in zip(self.maps, self.shapes, strict=False):
            basis = torch.eye(shape.numel() + 1).double()[:, 1:]  # 0 first
            images = part(basis.reshape(-1, *shape)).flatten(1)
            weights.append((images[1:] - images[0]).T.numpy().copy())
            offsets.append(images[0].numpy().copy())
        return weights, offsets


def lead_bounds(chain: Chain, region: Region, y: Tensor) -> tuple[Floats, list[Any]]:
    """Return proved upper bounds on the lead of the best wrong class, (points,).

    The bounds of hidden units of each point, a list of (low, high) a layer, come with them.
    """
    found, hidden = np.empty(len(y)), []
    for i in range(len(y)):
        walk = _Walk(chain, region.take(torch.tensor([i])))
        own = torch.eye(chain.shapes[-1].numel()).double()
        margins = own[int(y[i])] - own[[j for j in range(len(own)) if j != int(y[i])]]
        found[i] = -float(walk.least(len(chain.maps), margins).min())
        hidden.append([(low.numpy(), high.numpy()) for low, high in walk.known])
    return found, hidden


class _Walk:
    """Backward passes for one point; `known` are the bounds of hidden units so far."""

    def __init__(self, chain: Chain, region: Region) -> None:
        self.chain, self.region = chain, region
        self.known: list[tuple[Tensor, Tensor]] = []
        for k in range(len(chain.slopes)):
            eye = torch.eye(chain.shapes[k + 1].numel()).double()
            self.known.append((self.least(k + 1, eye), -self.least(k + 1, -eye)))

    def least(self, depth: int, weights: Tensor) -> Tensor:
        """Return lower bounds on weights . z over the region, z the units after so many maps."""
        total = torch.zeros(len(weights)).double()
        for k in reversed(range(depth)):
            if k < depth - 1:
                weights, shift = self._through(k, weights)
                total += shift
            zero = torch.zeros(len(weights), *self.chain.shapes[k]).double().requires_grad_()
            with torch.enable_grad():
                image = self.chain.maps[k](zero)
            total += (image.detach().flatten(1) * weights).sum(1)
            (weights,) = torch.autograd.grad(image, zero, weights.view_as(image))
            weights = weights.flatten(1)
        box = self.region.delta_bounds
        if box is not None:
            box = (box[0].expand_as(weights).contiguous(), box[1].expand_as(weights).contiguous())
        worst = self.region.threat.linear_argmax(-weights, box)
        return total + (weights * (self.region.x + worst)).sum(1)

    def _through(self, k: int, weights: Tensor) -> tuple[Tensor, Tensor]:
        """Return weights before the k-th rectifier, and what must be added."""
        (low, high), a = self.known[k], self.chain.slopes[k]
        mixed = (low < 0) & (high > 0)
        steep = torch.where(mixed, (high - a * low) / (high - low), 1.0)
        steep = torch.where(high <= 0, a, steep)
        offset = torch.where(mixed, high - steep * high, 0.0)
        under = torch.where(mixed, torch.where(high >= -low, 1.0, a), steep)
        up, down = weights.clamp(min=0), weights.clamp(max=0)
        return up * under + down * steep, (down * offset).sum(1)


class _Scaled(nn.Module):  # type: ignore[misc]
    """x -> (x - mean) / std."""

    def __init__(self, mean: Tensor, std: Tensor) -> None:
        super().__init__()
        self.mean, self.std = mean.double(), std.double()

    def forward(self, x: Tensor) -> Tensor:
        """Return scaled inputs."""
        return (x - self.mean) / self.std


def _refuse_unmodelled(module: nn.Module) -> None:
    """Refuse, by name, whatever may compute something else than its exact type says."""
    kind = type(module)
    known = kind in (nn.Sequential, nn.ReLU, nn.LeakyReLU, *AFFINE)
    if not known:
        raise InputError(
            "certify needs a torch.nn.Sequential of affine layers, convolutions and rectifiers, "
            f"exactly of PyTorch's own classes, got {kind.__name__}"
        )
    hooks = module._forward_hooks or module._forward_pre_hooks
    if hooks or "forward" in vars(module):
        raise InputError(
            f"certify does not model hooks or a replaced forward, {kind.__name__} has one; "
            "remove it, or the reparametrization that added it"
        )
    if getattr(module, "negative_slope", 0.0) > 1:
        raise InputError(f"certify needs slopes of at most 1, got {module.negative_slope:g}")
    if getattr(module, "running_mean", 0) is None:
        raise InputError(
            f"certify needs running statistics, {kind.__name__} uses those of the batch"
        )
    plain = (Tensor, nn.Parameter, nn.Buffer)
    if any(type(t) not in plain for t in (*module.parameters(False), *module.buffers(False))):
        raise InputError(f"certify needs plain tensors as weights of {kind.__name__}")


def refuse_difference(chain: Chain, state: AttackState, x: Tensor) -> None:
    """Compare the modelled logits with the model's at some inputs; refuse any difference."""
    modelled = chain.logits(x.cpu().double())
    given = state.adapter.all_logits(x, state.batch_size).cpu().double()
    scale = float(modelled.abs().max())
    rounding = 1e4 * torch.finfo(state.x.dtype).eps * max(scale, 1e-30)
    # A model of lower precision computes with coarser numbers than those that are compared.
    weight = next(iter(state.adapter.models[0].parameters()), state.x)
    rounding *= torch.finfo(weight.dtype).eps / torch.finfo(state.x.dtype).eps
    apart = float((modelled - given).abs().max())
    if not apart <= rounding:
        raise InputError(
            f"certify models a network whose logits differ from the model's by {apart:.3g}: it "
            "computes something that its layers do not show"
        )


def _leaves(model: nn.Module) -> Iterator[nn.Module]:
    if isinstance(model, nn.Sequential):
        for part in model:
            yield from _leaves(part)
    else:
        yield model


def chain_of(state: AttackState) -> Chain:
    """Return the model of a state as a chain, or say why there is none."""
    adapter = state.adapter
    plain = len(adapter.models) == 1 and isinstance(adapter.models[0], nn.Module)
    if not plain or adapter.context or state.targeted or state.criterion.regression or state.random:
        raise InputError(
            "certify needs one torch.nn.Sequential with one input, classes, and any wrong class "
            "counting as success"
        )
    if state.threat.order == 0:
        raise InputError("certify must be given L1, L2 or Linf, got L0")
    if adapter.transforms_outputs:
        raise InputError(
            "certify does not model output=, nor probabilities: pass a model that returns logits"
        )
    mean, std = adapter.scale or (None, None)
    chain = Chain.of(adapter.models[0], state.x, mean, std)
    with state:
        refuse_difference(chain, state, state.x)
        region = state.region
        for seed in range(4):  # at random points of the ball, by turns inside and at its ends
            moved = region.seen(region.draw(seed, extreme=seed % 2 == 1))
            refuse_difference(chain, state, moved.view_as(state.x))
    return chain


def decide(state: AttackState, chain: Chain, seconds: float) -> Bools:
    """Return which points are proved robust at the state's radius, (points,).

    Points that the program fools, confirmed by the model itself, are entered into the state.
    """
    proved, left = np.zeros(len(state.x), bool), state.left
    refuse_difference(chain, state, state.stored())
    x, y = state.x[left].cpu(), state.y[left].cpu()
    region = state.region.take(left).to(torch.device("cpu")).double()
    leads, hidden = np.full(len(x), np.inf), dict[int, Any]()
    with _interruptible(state):
        for i in range(len(x)):
            found, units = lead_bounds(chain, region.take(torch.tensor([i])), y[i : i + 1])
            leads[i], hidden[i] = found[0], units[0]
    size = chain.logits(x.double()).abs().flatten(1).amax(1).numpy()
    proved[left.cpu().numpy()] = leads < -ROUNDING * size
    interrupted = state.status is Status.INTERRUPTED
    exact = not chain.slopes  # linear bounds are
    if seconds == 0 or exact or interrupted or chain.entries() > LARGEST:
        return proved
    net = Network(*chain.dense(), chain.slopes)
    open_ = np.flatnonzero(~(leads < -ROUNDING * size))
    with _interruptible(state), meter("certify", len(open_), show=len(open_) > 0) as bar:
        for i in open_.tolist():
            point = x[i].double().flatten().numpy()
            around = region.take(torch.tensor([i]))
            reached, bound, moved = best_lead(
                net, point, int(y[i]), around, 0.0, hidden=hidden[i], seconds=seconds
            )
            row = left[i : i + 1]
            if bound < -ROUNDING * size[i]:
                proved[int(row)] = True
            elif reached >= 0:
                _enter(state, row, torch.from_numpy(moved - point))
            bar.advance()
    return proved


@contextmanager
def _interruptible(state: AttackState) -> Iterator[None]:
    """Keep what was decided when Ctrl-C comes."""
    try:
        yield
    except KeyboardInterrupt:
        state.status = Status.INTERRUPTED


def _enter(state: AttackState, row: Tensor, delta: Tensor) -> None:
    """Put a perturbation into the state if it fools the model itself."""
    points = state.batch(row)
    found = points.region.project(delta[None].to(points.region.x))
    _, fooled = points.evaluate(points.region.store_exactly(found).to(found))
    if bool(fooled):
        state.best.delta[row], state.best.fooled[row] = found.to(state.best.delta), True
