"""Narrower layers: which groups lose units, whether the model bears it, and which units stay."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from overt._check import InputError
from overt._progress import meter
from overt._types import Floats
from overt.nn.compression import cutting
from overt.nn.compression.cutting import Cut, shrink
from overt.nn.compression.groups import Group, Structure
from overt.nn.compression.measuring import loss_of, parameters, score
from overt.nn.compression.moments import Moments, collect
from overt.nn.compression.report import Change
from overt.nn.compression.task import MET, Keep, Outcome, Task, check_layers, duplicate
from overt.nn.compression.units import Ids
from overt.nn.data.batches import first_line
from overt.nn.data.models import disable_fast_attention
from overt.nn.recording.watching import tensors


def by_units(task: Task, by: str) -> Outcome:
    """Remove units: chosen by drawing masks ("mask"), or by their flow ("flow")."""
    base, found = task.base, task.structure
    skipped = dict(found.skipped)
    groups = _groups(found, task.keep, by, skipped)
    if by == "mask" and groups and score(base, task.judge, task.loss) is None:
        raise InputError(
            "by='mask' needs data of pairs (inputs, targets), and a model that returns a "
            "tensor (or a loss that is a function of what it returns); output= says which counts"
        )
    seen: dict[str, Moments] = {}
    psi = np.zeros(0)
    if by == "flow" and groups:
        names = {read.name: read.places for read in found.wiring.reads}
        seen = collect(base, names, task.rows, outputs=False)
        psi = cutting.flows(base, found, seen)
    while groups:
        losses, interrupted = np.zeros(0), False
        counts = _counts(task, found, groups)
        if by == "mask":
            cut, losses, interrupted = _best_of(task, found, counts)
        else:
            kept = {group: cutting.greatest(group, psi, n) for group, n in counts.items()}
            cut = Cut(kept, refits=cutting.refits(base, found, seen, kept))
        corrected = cutting.corrections(base, found, cut)
        small = shrink(base, found, cut, corrected)
        broken, output = _broken(task, found, cut, small, corrected)
        if not broken:
            changes = [Change(g.layers, "units", len(g.units), n) for g, n in counts.items()]
            return Outcome(by, small, changes, skipped, losses, interrupted, output=output)
        skipped.update({name: why for group, why in broken.items() for name in group.layers})
        groups = [group for group in groups if group not in broken]
    return Outcome(by, duplicate(base), [], skipped)


def _groups(found: Structure, keep: Keep, by: str, skipped: dict[str, str]) -> list[Group]:
    """Return the groups that may lose units."""
    if isinstance(keep, Mapping):
        check_layers(keep, [*skipped, *(name for group in found.groups for name in group.layers)])
    chosen = []
    for group in found.groups:
        if _share(group, keep) == 1:
            continue
        reason = _hindrance(group, keep) if by == "mask" else None
        if len(group.units) == 1:
            reason = "all its units stand or fall together"
        if reason is None:
            chosen.append(group)
        else:
            skipped.update(dict.fromkeys(group.layers, reason))
    return chosen


def _counts(task: Task, found: Structure, groups: list[Group]) -> dict[Group, int]:
    """Return how many units of each group stay, for those that lose some."""
    if isinstance(task.keep, Mapping) or task.of_units:
        shares = {group: _share(group, task.keep) for group in groups}
        counts = {g: max(1, round(share * len(g.units))) for g, share in shares.items()}
    else:
        counts = _search(task, found, groups, task.keep)
    return {group: n for group, n in counts.items() if n < len(group.units)}


def _search(task: Task, found: Structure, groups: list[Group], keep: float) -> dict[Group, int]:
    """Find the largest share of units, alike in all groups, whose cost is within what is kept.

    What is then left is given to single units of the groups that rounding has cut most.
    """
    costs = _cost_of(task, found)

    def at(share: float) -> dict[Group, int]:
        return {g: max(1, round(share * len(g.units))) for g in groups}

    def cost(counts: dict[Group, int]) -> float:
        if task.of != "latency":
            return costs(counts)
        kept = {group: group.units[:n] for group, n in counts.items()}
        return task.within(shrink(task.base, found, Cut(kept)))

    low, high = 0.0, 1.0
    for _ in range(8 if task.of == "latency" else 16):
        middle = (low + high) / 2
        low, high = (middle, high) if cost(at(middle)) <= keep else (low, middle)
    counts = at(low)
    if task.of == "latency":
        return counts
    now, low_order = cost(counts), sorted(groups, key=lambda g: counts[g] - low * len(g.units))
    for most in (keep, MET * keep):  # the last unit may be the one that comes nearer
        for group in low_order:
            more = {**counts, group: counts[group] + 1}
            there = cost(more) if more[group] <= len(group.units) else math.inf
            if there <= most and abs(there - keep) < abs(now - keep):
                counts, now = more, there
    return counts


def _cost_of(task: Task, found: Structure) -> Callable[[Mapping[Group, int]], float]:
    """Return what gives the share of parameters or multiply-adds that some units leave.

    Each entry of a weight meets the same number of positions however wide its layer is, unless the
    layer runs once for each unit; attention costs the same for every head.
    """
    wiring, of_parameters = found.wiring, task.of == "parameters"
    weights: dict[int, float] = {}
    for name, module in task.base.named_modules():
        for key, tensor in module._parameters.items():
            if tensor is not None and of_parameters:
                weights[id(tensor)] = float(tensor.numel())
            elif key == "weight" and name not in wiring.repeated:
                weights[id(tensor)] = weights.get(id(tensor), 0.0) + task.costs.get(name, 0)
    terms: list[tuple[float, tuple[Ids, ...]]] = [
        (weights[key], tuple(axes.values()))
        for key, axes in wiring.slots.axes.items()
        if key in weights
    ]
    if not of_parameters:
        terms += [(spent / len(task.inputs), (ids,)) for spent, ids in wiring.products]
        terms += [(task.costs.get(name, 0), (ids,)) for name, ids in wiring.repeated.items()]
    lists = {id(ids): ids for _, axes in terms for ids in axes}
    total: dict[tuple[int, ...], float] = {}
    for weight, axes in terms:
        keys = tuple(map(id, axes))
        total[keys] = total.get(keys, 0.0) + weight
    everything = float(parameters(task.base) if of_parameters else task.total)
    rest = everything - sum(total.values())

    def share(counts: Mapping[Group, int]) -> float:
        stay = np.ones(len(wiring.units), dtype=bool)
        for group, n in counts.items():
            stay[group.units[n:]] = False
        stay = stay[found.classes]
        left = {key: np.count_nonzero(stay[ids]) / len(ids) for key, ids in lists.items()}
        kept = sum(cost * math.prod(left[key] for key in keys) for keys, cost in total.items())
        return (rest + kept) / max(everything, 1.0)

    return share


def _share(group: Group, keep: Keep) -> float:
    if not isinstance(keep, Mapping):
        return keep
    wanted = {name: keep[name] for name in group.layers if name in keep}
    if len(set(wanted.values())) > 1:
        raise InputError(
            f"keep must give one share to layers whose outputs are added, got {wanted}"
        )
    return next(iter(wanted.values()), 1.0)


def _hindrance(group: Group, keep: Keep) -> str | None:
    """Return why a group's units are not drawn by masks, None if they are."""
    if group.tied:
        return "its units are read by a layer whose weights are tied to another's"
    if not group.drops and not isinstance(keep, Mapping):
        return (
            "no dropout layer acts on its units wherever they are read; use by='flow', or name it "
            "in keep"
        )
    return None


def _broken(
    task: Task, found: Structure, cut: Cut, small: nn.Module, corrected: dict[int, Tensor]
) -> tuple[dict[Group, str], Any]:
    """Return the groups without whose units the model does not run as the masked one does.

    A forward pass may hide what its recording does not show, such as a width in a number. If
    there are none, the smaller network's output comes second.
    """

    def problem(part: Cut, model: nn.Module, changed: dict[int, Tensor]) -> tuple[str | None, Any]:
        try:
            with torch.no_grad(), disable_fast_attention():
                result = task.quiet(model)
                reference = task.quiet(cutting.masked(task.base, found, part, model, changed))
        except Exception as error:  # whatever the model's code raises on other widths
            return f"the forward pass fails with fewer units: {first_line(error)}", None
        other = "the forward pass computes something else with fewer units"
        return None if _same(result, reference) else other, result

    together, output = problem(cut, small, corrected)
    if together is None:
        return {}, output
    why: dict[Group, str] = {}
    for group in cut.kept:
        part = Cut({group: cut.kept[group]}, cut.scaled)
        changed = cutting.corrections(task.base, found, part)
        alone, _ = problem(part, shrink(task.base, found, part, changed), changed)
        if alone is not None:
            why[group] = alone
    return why or dict.fromkeys(cut.kept, together), None


def _best_of(
    task: Task, structure: Structure, counts: dict[Group, int]
) -> tuple[Cut, Floats, bool]:
    """Draw masks with `counts` survivors in each group; keep the one with the least loss.

    Returns the cut, the loss of every mask, and whether Ctrl-C ended the search early; it is passed
    on if nothing has been judged yet.
    """
    losses: list[float] = []
    best: Cut | None = None
    interrupted = False
    try:
        with meter("sub-networks", task.draws) as bar:
            for _ in range(task.draws):
                kept = {
                    group: np.sort(task.rng.choice(group.units, count, replace=False))
                    for group, count in counts.items()
                }
                cut = Cut(kept, scaled=True)
                value = loss_of(score(shrink(task.base, structure, cut), task.judge, task.loss))
                if best is None or value < min(losses):
                    best = cut
                losses.append(value)
                bar.advance(note=f"best loss {min(losses):.4g}")
    except KeyboardInterrupt:
        if best is None:
            raise
        interrupted = True
    assert best is not None  # noqa: S101 (draws is at least 1)
    return best, np.array(losses), interrupted


def _same(a: object, b: object) -> bool:
    """Whether two outputs agree up to rounding, relative to their size."""
    first, second = list(tensors(a)), list(tensors(b))
    return len(first) == len(second) and all(map(_close, first, second))


def _close(a: Tensor, b: Tensor) -> bool:
    if a.shape != b.shape or not a.is_floating_point():
        return bool(torch.equal(a, b))
    scale = float(b.nan_to_num(0, 0, 0).abs().max()) if b.numel() else 0.0
    tol = max(1e-4, 20 * torch.finfo(a.dtype).eps)
    return bool(torch.allclose(a, b, rtol=tol, atol=tol * max(scale, 1e-30)))
