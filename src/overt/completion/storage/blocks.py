"""What workers of a cluster do with a folder: each reads some files and keeps some rows' entries.

    read -> names -> plan        identifiers of files, merged as a tree; who keeps which rows
    read, plan -> cut -> block   entries by row and by column go to whoever keeps them, once
    block -> tell, laid          sums over entries, and layouts that kernels read

A block is lost with its worker and made again from the files.
"""

from __future__ import annotations

import socket
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from overt._check import InputError
from overt._mapped import lowest, mark_of, mixed
from overt._types import Array, Floats, Ints
from overt.completion.forms.problem import Grouped
from overt.completion.storage.collecting import Columns
from overt.completion.storage.folders import database
from overt.completion.storage.parts import Numbering, Part, Reading, words
from overt.completion.storage.text import Rejected, Said
from overt.entries.entries import merge_duplicates

MEMORY = 2_000_000_000
"""Bytes of memory that reading may take, half of them for the database."""

SAMPLE = 4000
"""Entries that stand for all."""

DIFFERENT = 100_000
"""Different values that are told apart; of more, every second counts for two."""

Names = tuple[tuple[Array, Ints], tuple[Array, Ints]]
"""Identifiers of both sides, sorted, and in how many lines they are."""


class Unit(NamedTuple):
    """Files as they were read, their identifiers, columns, rejected lines, how many were used."""

    part: Part
    names: Names
    account: tuple[Columns | None, list[Rejected], int]


class Plan(NamedTuple):
    """Identifiers of both sides, and which block keeps each row and each column."""

    ids: tuple[Array, Array]
    owners: tuple[Ints, Ints]


class Block(NamedTuple):
    """Entries of some rows of a side, in the order of the files; keys number the rows."""

    rows: Ints
    keys: Array
    others: Array
    values: Floats
    repeated: int
    example: tuple[int, int]


class Told(NamedTuple):
    """Sums over entries: how many, their mean and spread (as a sum of squares), and a mark.

    `values` are the different ones and how often each was met, `sample` the entries
    (mark, row, column) that stand for all.
    """

    n: int
    mean: float
    square: float
    values: tuple[Floats, Ints]
    mark: int
    sample: Any


class Aside(NamedTuple):
    """Entries that are kept aside: those whose mark with this seed is at most the bound."""

    seed: Any
    bound: int


class Spec(NamedTuple):
    """How values enter a problem: (value - center) / scale; its width, partners and chunks."""

    side: int
    center: float
    scale: float
    dtype: str
    width: int
    n_others: int
    chunks: int
    aside: Aside | None


def read(files: Sequence[str], said: Said) -> Unit:
    """Read some files."""
    paths, parts = list(map(Path, files)), []
    for path in paths:
        if not path.exists():
            raise InputError(
                f"the worker on {socket.gethostname()} does not see {path}: a folder that a "
                "cluster reads must have the same path on all of its machines; or give a single "
                "file, which is read here"
            )
    with database(MEMORY) as db:
        db.execute("set threads = 1")
        reading = Reading(db, said)
        for path in paths:
            parts += list(reading.parts(path))
    sides = Numbering(), Numbering()
    codes: list[list[Array]] = [[np.zeros(0, np.int64)], [np.zeros(0, np.int64)]]
    for part in parts:
        for side in (0, 1):
            often = np.bincount(part.codes[side], minlength=len(part.ids[side]))
            numbers = sides[side].add(part.ids[side], often)
            codes[side].append(numbers[part.codes[side]])
    rows, cols = (
        s.ranks[np.concatenate(c)].astype(np.int32) for s, c in zip(sides, codes, strict=True)
    )
    x, t = (np.concatenate([np.zeros(0), *(part[i] for part in parts)]) for i in (2, 3))
    left, right = ((s.ids, s.counts) for s in sides)
    whole = Part((left[0], right[0]), (rows, cols), x, t)
    return Unit(whole, (left, right), (reading.read, reading.rejected, len(x)))


def merge_names(*found: Names) -> Names:
    """Return the identifiers of several, with how often they were met together."""
    sides = Numbering(), Numbering()
    for names in found:
        for numbering, (ids, counts) in zip(sides, names, strict=True):
            numbering.add(ids, counts)
    return (sides[0].ids, sides[0].counts), (sides[1].ids, sides[1].counts)


def plan(names: Names, n_blocks: int) -> Plan:
    """Give blocks about as many entries: heavy rows go to them in turn, to and fro."""
    owners = []
    for _, counts in names:
        turn = np.arange(len(counts)) % (2 * n_blocks)
        owner = np.empty(len(counts), np.int64)
        owner[np.argsort(-counts, kind="stable")] = np.minimum(turn, 2 * n_blocks - 1 - turn)
        owners.append(owner)
    return Plan((names[0][0], names[1][0]), (owners[0], owners[1]))


def cut(unit: Unit, plan: Plan, n_blocks: int, timed: bool) -> list[list[tuple[Array, ...]]]:
    """Return (rows, others, values, times) of what each block of each side gets."""
    places = []
    for ids, known, codes in zip(unit.part.ids, plan.ids, unit.part.codes, strict=True):
        found = ids if known.dtype.kind == "i" else words(ids)
        places.append(np.searchsorted(known, found)[codes].astype(np.int32))
    out, times = [], unit.part.times if timed else unit.part.times[:0]
    for side in (0, 1):
        owner = plan.owners[side][places[side]]
        order, sizes = np.argsort(owner, kind="stable"), np.bincount(owner, minlength=n_blocks)
        given = places[side], places[1 - side], unit.part.values
        arrays = [array[order] for array in given] + [times[order] if timed else times]
        ends = np.cumsum(sizes)
        pieces = [slice(end - size, end) for end, size in zip(ends, sizes, strict=True)]
        out.append([tuple(array[piece].copy() for array in arrays) for piece in pieces])
    return out


def piece(pieces: list[list[tuple[Array, ...]]], side: int, number: int) -> tuple[Array, ...]:
    """Return what one block gets."""
    return pieces[side][number]


def block(plan: Plan, side: int, number: int, how: str, *pieces: tuple[Array, ...]) -> Block:
    """Put together the entries of some rows; those given more than once are merged."""
    keys, others, values, times = (np.concatenate(found) for found in zip(*pieces, strict=True))
    rows = np.flatnonzero(plan.owners[side] == number)
    keys = np.searchsorted(rows, keys).astype(np.int32)
    times = times if len(times) else np.full(len(values), np.nan)
    once = merge_duplicates(keys, others, values, times, how)
    if once is None:
        return Block(rows, keys, others, values, 0, (0, 0))
    first, repeated = once[0], len(keys) - len(once[0])
    twice = int(np.delete(np.arange(len(keys)), first)[0])
    example = int(rows[keys[twice]]), int(others[twice])
    return Block(rows, keys[first], others[first], once[1], repeated, example)


def kept(block: Block, side: int, aside: Aside | None) -> Block:
    """Return a block without what is kept aside."""
    if aside is None:
        return block
    left = np.flatnonzero(marks(block, side, aside.seed) > aside.bound)
    keys, others, values = (array[left] for array in block[1:4])
    return block._replace(keys=keys, others=others, values=values)


def marks(block: Block, side: int, seed: Any = 0) -> Array:
    """Return the marks of a block's entries, which do not depend on who keeps them."""
    mine, others = block.rows[block.keys], block.others
    return mixed(mine, others, seed) if side == 0 else mixed(others, mine, seed)


def counts(block: Block, side: int, aside: Aside | None) -> tuple[Ints, Ints, int, Any]:
    """Return rows, how many entries they have, how many were merged, an example of these."""
    often = np.bincount(kept(block, side, aside).keys, minlength=len(block.rows))
    return block.rows, often, block.repeated, block.example


def tell(block: Block, aside: Aside | None) -> Told:
    """Return the sums over a block of rows."""
    left = kept(block, 0, aside)
    x, rows = left.values, left.rows[left.keys]
    mean = float(x.mean()) if len(x) else 0.0
    at, found = lowest(rows, left.others, SAMPLE)
    square, values = float(np.sum((x - mean) ** 2)), _thinned(*np.unique(x, return_counts=True))
    mark = mark_of(rows, left.others, x)
    return Told(len(x), mean, square, values, mark, (found, rows[at], left.others[at]))


def tell_all(*found: Told) -> Told:
    """Return the sums over several blocks."""
    n, mean, square = found[0][:3]
    for other in found[1:]:
        total, gap = n + other.n, other.mean - mean
        if total:
            square += other.square + gap**2 * n * other.n / total
            mean += gap * other.n / total
        n = total
    x, often = (np.concatenate([told.values[i] for told in found]) for i in (0, 1))
    x, at = np.unique(x, return_inverse=True)
    often = np.bincount(at, often, len(x)).astype(np.int64)
    mark = sum(told.mark for told in found) % 2**64
    sample = [np.concatenate(each) for each in zip(*(told.sample for told in found), strict=True)]
    best = np.argsort(sample[0], kind="stable")[:SAMPLE]
    return Told(n, mean, square, _thinned(x, often), mark, tuple(each[best] for each in sample))


def _thinned(values: Floats, often: Ints) -> tuple[Floats, Ints]:
    """Return few enough different values; both ends stay."""
    while len(values) > DIFFERENT:
        starts = np.arange(0, len(values), 2)
        values, often = np.append(values[:-1:2], values[-1]), np.add.reduceat(often, starts)
        often = np.append(often, 0) if len(often) < len(values) else often
    return values, often


def held(block: Block, count: int, seed: Any) -> tuple[Array, ...]:
    """Return (mark, row, column, value) of the entries with the lowest marks."""
    rows = block.rows[block.keys]
    at, found = lowest(rows, block.others, count, seed)
    return found, rows[at], block.others[at], block.values[at]


def hold_all(count: int, *found: tuple[Array, ...]) -> tuple[Array, ...]:
    """Return the lowest of several."""
    every = [np.concatenate(each) for each in zip(*found, strict=True)]
    best = np.argsort(every[0], kind="stable")[:count]
    return tuple(each[best] for each in every)


def grouped(block: Block, spec: Spec) -> Grouped:
    """Return a block's entries as a problem has them."""
    left = kept(block, spec.side, spec.aside)
    values = ((left.values - spec.center) / spec.scale).astype(spec.dtype)
    shape = len(block.rows), spec.n_others
    group = Grouped.build(left.keys, left.others, values, shape, spec.width)
    return replace(group, chunks=spec.chunks)


def laid(block: Block, spec: Spec, kind: str) -> tuple[Ints, Ints, Any]:
    """Return rows, cuts and entries as a kernel reads them."""
    layout = getattr(grouped(block, spec), kind)
    rows, cuts, entries = layout.take(range(layout.n_chunks))
    return block.rows[rows], cuts, entries


def outline(layout: tuple[Ints, Ints, Any]) -> tuple[Ints, int]:
    """Return the rows of a layout and its number of chunks."""
    return layout[0], len(layout[1]) - 1


def sums(block: Block, spec: Spec) -> tuple[Ints, Floats, float]:
    """Return rows, their sums of values, and the sum of all squares."""
    group = grouped(block, spec)
    return block.rows, group.sums, group.square
