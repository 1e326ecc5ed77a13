"""What an attack leaves open, decided: linear bounds first, then the mixed-integer program."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

from overt._check import InputError
from overt._progress import meter
from overt._types import Bools
from overt.robust.attacks.search import Search
from overt.robust.certificates.bounds import Chain, lead_bounds
from overt.robust.certificates.milp import Network, best_lead

LARGEST = 2_000_000
"""Entries of a network's matrices above which the mixed-integer program is not tried."""

ROUNDING = 1e-9
"""Share of the largest logit that rounding in double precision may add to a lead."""


def chain_of(search: Search) -> Chain:
    """Return the model of a search as a chain, or say why there is none."""
    subject = search.subject
    plain = len(subject.models) == 1 and isinstance(subject.models[0], nn.Module)
    if not plain or subject.context or search.targeted or search.criterion.raw or search.random:
        raise InputError(
            "certify needs one torch.nn.Sequential with one input, classes, and any wrong class "
            "counting as success"
        )
    if search.threat.order == 0:
        raise InputError("certify must be given L1, L2 or Linf, got L0")
    mean, std = subject.scale or (None, None)
    return Chain.of(subject.models[0], search.x, mean, std)


def decide(search: Search, chain: Chain, seconds: float) -> Bools:
    """Return which points are proved robust at the search's radius, (points,).

    Points that the program fools, confirmed by the model itself, are entered into the search.
    """
    proved, left = np.zeros(len(search.x), bool), search.left
    x, y = search.x[left].cpu(), search.y[left].cpu()
    leads, hidden = lead_bounds(chain, x, y, search.threat)
    size = chain.logits(x.double()).abs().flatten(1).amax(1).numpy()
    proved[left.cpu().numpy()] = leads < -ROUNDING * size
    if seconds == 0 or sum(np.prod(_shapes(chain), axis=1)) > LARGEST:
        return proved
    weights, offsets = chain.dense()
    if len(weights[-1]) == 1:  # one logit stands for two, the first of them 0
        weights[-1] = np.vstack([0 * weights[-1], weights[-1]])
        offsets[-1] = np.array([0.0, offsets[-1][0]])
    net = Network(weights, offsets, chain.slopes)
    open_ = np.flatnonzero(~(leads < -ROUNDING * size))
    with meter("certify", len(open_), show=len(open_) > 0) as bar:
        for i in open_:
            point = x[i].double().flatten().numpy()
            reached, bound, moved = best_lead(
                net, point, int(y[i]), search.threat, 0.0, hidden=hidden[i], seconds=seconds
            )
            row = left[int(i) : int(i) + 1]
            if bound < -ROUNDING * size[i]:
                proved[int(row)] = True
            elif reached >= 0:
                _enter(search, row, torch.from_numpy(moved - point))
            bar.advance()
    return proved


def _enter(search: Search, row: Tensor, delta: Tensor) -> None:
    """Put a perturbation into the search if it fools the model itself."""
    points = search.points(row)
    found = points.region.project(delta[None].to(points.region.x))
    _, fooled = points.evaluate(points.region.settle(found))
    if bool(fooled):
        search.best.delta[row], search.best.fooled[row] = found.to(search.best.delta), True


def _shapes(chain: Chain) -> list[tuple[int, int]]:
    """Return the shapes of a chain's matrices."""
    sizes, x = [int(np.prod(chain.shape))], torch.zeros(1, *chain.shape).double()
    for part in chain.maps:
        x = part(x)
        sizes.append(x.numel())
    return list(zip(sizes[1:], sizes[:-1], strict=True))
