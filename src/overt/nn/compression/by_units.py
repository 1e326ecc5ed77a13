"""Narrower layers: which groups lose units, whether the model bears it, and which units stay."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import nn

from overt._check import InputError
from overt.nn.compression import flows
from overt.nn.compression.batches import Batches, Loss, score
from overt.nn.compression.moments import collect
from overt.nn.compression.outcome import Keep, Outcome, has_units, inputs_of
from overt.nn.compression.report import Change
from overt.nn.compression.search import best_of
from overt.nn.compression.shrink import Cut, duplicate, masked, shrink
from overt.nn.compression.structure import Group, Structure, structure
from overt.nn.compression.tracing import Inputs, same


def by_units(
    base: nn.Module,
    keep: Keep,
    inputs: Inputs,
    judge: Batches | None,
    by: str,
    loss: Loss,
    draws: int,
    rng: np.random.Generator,
) -> Outcome:
    """Remove units: chosen by drawing masks ("mask"), or by their flow ("flow")."""
    found = structure(base, inputs)
    skipped = dict(found.skipped)
    counts = _sound(base, found, _counts(found, keep, by, skipped), inputs, skipped)
    losses, interrupted = np.zeros(0), False
    if not counts:
        return Outcome(duplicate(base), [], skipped)
    if by == "mask":
        assert judge is not None  # noqa: S101 (checked by compress)
        if score(base, judge, loss) is None:
            raise InputError(
                "by='mask' needs a loader of pairs (inputs, targets), and a model that returns a "
                "tensor (or loss=, a function of what it returns)"
            )
        cut, losses, interrupted = best_of(base, found, counts, judge, loss, draws=draws, rng=rng)
    else:
        names = [read.name for read in found.state.reads]
        seen = collect(base, names, inputs_of(judge, inputs), outputs=False)
        psi = flows.flows(base, found, seen)
        kept = {group: flows.greatest(group, psi, count) for group, count in counts.items()}
        cut = Cut(kept, refits=flows.refits(base, found, seen, kept))
    changes = [
        Change(group.layers, "units", len(group.units), len(kept))
        for group, kept in cut.kept.items()
    ]
    return Outcome(shrink(base, found, cut), changes, skipped, losses, interrupted)


def _counts(found: Structure, keep: Keep, by: str, skipped: dict[str, str]) -> dict[Group, int]:
    """Return how many units of each group stay, for groups that lose some."""
    if isinstance(keep, Mapping):
        has_units(keep, [*skipped, *(name for group in found.groups for name in group.layers)])
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
    base: nn.Module,
    found: Structure,
    counts: dict[Group, int],
    inputs: Inputs,
    skipped: dict[str, str],
) -> dict[Group, int]:
    """Return the groups without which the model still runs as the masked one does.

    A forward pass may hide what its trace does not show, such as a width in a number.
    """

    def agrees(chosen: dict[Group, int]) -> str | None:
        cut = Cut({group: group.units[:count] for group, count in chosen.items()}, scaled=True)
        try:
            with torch.no_grad():
                small = shrink(base, found, cut)(*inputs)
                reference = masked(base, found, cut)(*inputs)
        except Exception as error:  # whatever the model's code raises on other widths
            return f"the forward pass fails with fewer units: {str(error).splitlines()[0][:160]}"
        changed = "the forward pass computes something else with fewer units"
        return None if same(small, reference) else changed

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
