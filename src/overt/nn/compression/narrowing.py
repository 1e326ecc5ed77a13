"""Narrower layers: which groups lose units, whether the model bears it, and which units stay."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from overt._check import InputError
from overt._progress import meter
from overt._types import Floats
from overt.nn.compression import cutting
from overt.nn.compression.cutting import Cut, Keep, Outcome, Task, shrink
from overt.nn.compression.measuring import collect, loss_of, score
from overt.nn.compression.report import Change
from overt.nn.compression.structure import Group, Structure, structure_of
from overt.nn.given.batches import Batch
from overt.nn.recording.watching import tensors


def by_units(task: Task, by: str) -> Outcome:
    """Remove units: chosen by drawing masks ("mask"), or by their flow ("flow")."""
    base, found = task.base, structure_of(task.base, task.inputs)
    skipped = dict(found.skipped)
    counts = _sound(task, found, _counts(found, task.keep, by, skipped), skipped)
    losses, interrupted = np.zeros(0), False
    if not counts:
        return Outcome(by, cutting.duplicate(base), [], skipped)
    if by == "mask":
        if score(base, task.judge, task.loss) is None:
            raise InputError(
                "by='mask' needs data of pairs (inputs, targets), and a model that returns a "
                "tensor (or a loss that is a function of what it returns)"
            )
        cut, losses, interrupted = _best_of(task, found, counts)
    else:
        names = [read.name for read in found.wiring.reads]
        rows = task.judge or [Batch("example", task.inputs, None)]
        seen = collect(base, names, rows, outputs=False)
        psi = cutting.flows(base, found, seen)
        kept = {group: cutting.greatest(group, psi, count) for group, count in counts.items()}
        cut = Cut(kept, refits=cutting.refits(base, found, seen, kept))
    changes = [
        Change(group.layers, "units", len(group.units), len(kept))
        for group, kept in cut.kept.items()
    ]
    return Outcome(by, shrink(base, found, cut), changes, skipped, losses, interrupted)


def _counts(found: Structure, keep: Keep, by: str, skipped: dict[str, str]) -> dict[Group, int]:
    """Return how many units of each group stay, for groups that lose some."""
    if isinstance(keep, Mapping):
        cutting.check_layers(
            keep, [*skipped, *(name for group in found.groups for name in group.layers)]
        )
    counts: dict[Group, int] = {}
    for group in found.groups:
        count = max(1, round(_share(group, keep) * len(group.units)))
        if count == len(group.units):
            continue
        reason = _hindrance(group, keep) if by == "mask" else None
        if reason is None:
            counts[group] = count
        else:
            skipped.update(dict.fromkeys(group.layers, reason))
    return counts


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


def _sound(
    task: Task, found: Structure, counts: dict[Group, int], skipped: dict[str, str]
) -> dict[Group, int]:
    """Return the groups without which the model still runs as the masked one does.

    A forward pass may hide what its recording does not show, such as a width in a number.
    """

    def agrees(chosen: dict[Group, int]) -> str | None:
        cut = Cut({group: group.units[:count] for group, count in chosen.items()}, scaled=True)
        try:
            with torch.no_grad():
                small = task.inputs.run(shrink(task.base, found, cut))
                reference = task.inputs.run(cutting.masked(task.base, found, cut))
        except Exception as error:  # whatever the model's code raises on other widths
            return f"the forward pass fails with fewer units: {str(error).splitlines()[0][:160]}"
        changed = "the forward pass computes something else with fewer units"
        return None if _same(small, reference) else changed

    if not counts or agrees(counts) is None:
        return counts
    alone = {group: agrees({group: count}) for group, count in counts.items()}
    for group, reason in alone.items():
        if reason is not None:
            skipped.update(dict.fromkeys(group.layers, reason))
    left = {group: counts[group] for group, reason in alone.items() if reason is None}
    together = agrees(left) if left else None
    if together is not None:
        skipped.update({name: together for group in left for name in group.layers})
        return {}
    return left


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
    scale = float(b.abs().max()) if b.numel() else 0.0
    tol = max(1e-4, 20 * torch.finfo(a.dtype).eps)
    return bool(torch.allclose(a, b, rtol=tol, atol=tol * max(scale, 1e-30)))
