"""Sums over data that is seen once and not kept: memory does not depend on the number of rows."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from overt._types import Floats, Ints


class Mean:
    """A mean and its standard error."""

    def __init__(self) -> None:
        self.count, self._mean, self._square = 0, 0.0, 0.0

    def add(self, values: Tensor) -> None:
        """Add one number per sample."""
        x = values.detach().double().cpu().numpy()
        n, mean = len(x), float(np.add.reduce(x)) / len(x)
        before, self.count = self.count, self.count + n
        shift, away = mean - self._mean, x - mean
        self._mean += shift * n / self.count
        self._square += float(away @ away) + shift**2 * before * n / self.count

    @property
    def value(self) -> float:
        """The mean of all samples so far."""
        return self._mean

    @property
    def error(self) -> float:
        """Its standard error."""
        return math.sqrt(self._square / max(self.count - 1, 1) / max(self.count, 1))


class Average:
    """The mean over samples of an array."""

    def __init__(self) -> None:
        self._count = 0
        self._sum: Tensor | None = None

    def add(self, batch_sum: Tensor, n: int) -> None:
        """Add the sum over n samples."""
        batch_sum = batch_sum.detach().double().cpu()
        self._count += n
        self._sum = batch_sum if self._sum is None else self._sum + batch_sum

    @property
    def shape(self) -> tuple[int, ...] | None:
        """The array's shape, None if nothing was added."""
        return None if self._sum is None else tuple(self._sum.shape)

    @property
    def value(self) -> Floats | None:
        """The mean, None if nothing was added."""
        return None if self._sum is None else (self._sum / self._count).numpy()


class Triangle:
    """R of the decomposition Q R of a tall matrix that arrives in blocks of rows.

    R'R is the matrix's Gram matrix, but small singular values keep their digits. With a first
    column of ones, the rows of R below the first are those of the matrix with its columns centered.
    """

    def __init__(self, columns: int) -> None:
        self.rows = 0
        self._R: Floats = np.empty((0, columns))
        self._waiting: list[Floats] = []
        self._height = max(1024, 3 * columns)

    def add(self, block: Tensor) -> None:
        """Append rows."""
        self._waiting.append(block.detach().double().cpu().numpy())
        self.rows += len(block)
        if sum(map(len, self._waiting)) >= self._height:
            self._fold()

    def value(self) -> Floats:
        """R / sqrt(rows): R'R is the mean over rows of the outer products.

        It has at least two rows, of zeros if there are none, so that something is left to center.
        """
        self._fold()
        missing = np.zeros((max(0, 2 - len(self._R)), self._R.shape[1]))
        return np.concatenate([self._R, missing]) / math.sqrt(self.rows)

    def _fold(self) -> None:
        if self._waiting:
            stacked = np.concatenate([self._R, *self._waiting])
            self._R = np.asarray(np.linalg.qr(stacked, mode="r"))
            self._waiting = []


@dataclass(frozen=True, eq=False)
class Columns:
    """R of rows (1, x, y, f), the inputs (or none), targets and outputs of a sample, and where.

    R'R is the mean of the rows' outer products.
    """

    R: Floats
    x: slice
    y: slice
    f: slice

    @property
    def has_inputs(self) -> bool:
        """Whether the inputs are among them."""
        return self.x.stop > self.x.start

    def rows(self, columns: slice, *, centered: bool) -> Floats:
        """Return some columns, with their means taken off if `centered`."""
        return self.R[1:, columns] if centered else self.R[:, columns]


class Table:
    """Rows (1, x, y, f) as they come, x empty unless `inputs` are wanted."""

    def __init__(self, inputs: int, outputs: int) -> None:
        self.inputs, self._outputs = inputs, outputs
        self._triangle = Triangle(1 + inputs + 2 * outputs)

    def add(self, x: Tensor | None, y: Tensor, f: Tensor) -> None:
        """Append rows."""
        ones = torch.ones(len(y), 1, dtype=torch.float64, device=y.device)
        inputs = [x.double().reshape(len(x), -1)] if self.inputs and x is not None else []
        self._triangle.add(torch.cat([ones, *inputs, y, f.double()], 1))

    @property
    def size(self) -> int:
        """How many numbers are kept, about."""
        return int((1 + self.inputs + 2 * self._outputs) ** 2)

    def columns(self) -> Columns:
        """Return what is known so far."""
        ends = np.cumsum([1, self.inputs, self._outputs, self._outputs]).tolist()
        return Columns(self._triangle.value(), *(slice(*ends[i : i + 2]) for i in range(3)))


class Parts:
    """Rows (1, h, y) in disjoint parts: themselves while they are few, then their second moments.

    Part 0 trains, parts 1..PARTS-1 are held out: every fifth row, in turn, unless others are given.
    `training` names the parts that hold rows of the training data.
    """

    PARTS = 6

    def __init__(self, units: int, outputs: int) -> None:
        self.units = units
        self.training = [0]
        self._size = 1 + units + outputs
        self._sums: dict[int, Floats] = {}
        self._rows: list[list[Floats]] = [[] for _ in range(self.PARTS)]
        self._seen = 0
        self.counts = [0] * self.PARTS

    @property
    def size(self) -> int:
        """How many numbers are kept."""
        waiting = sum(rows.size for part in self._rows for rows in part)
        return waiting + len(self._sums) * self._size**2

    def rows(self, part: int) -> Floats | None:
        """Return the rows of a part, None if they are no fewer than the units."""
        few = part not in self._sums and self.counts[part] < self.units
        return np.concatenate(self._rows[part]) if few else None

    def add(self, h: Tensor, y: Tensor, *, hold: bool = True) -> None:
        """Add units and targets of the training data, with `hold` some to the parts held out."""
        part = np.zeros(len(h), dtype=np.int64)
        if hold:
            self.training, index = list(range(self.PARTS)), self._numbers(len(h))
            part = np.where(index % 5 == 4, 1 + index // 5 % (self.PARTS - 1), 0)
        self._add(h, y, part)

    def add_holdout(self, h: Tensor, y: Tensor) -> None:
        """Add rows that the network was not trained on, all of them to the parts held out."""
        self._add(h, y, 1 + self._numbers(len(h)) % (self.PARTS - 1))

    def moments(self, parts: list[int]) -> tuple[Floats, float]:
        """Return the sum of outer products over some parts, and their number of rows."""
        total = np.zeros((self._size, self._size))
        for p in parts:
            self._fold(p)
            total += self._sums.get(p, 0.0)
        return total, float(sum(self.counts[p] for p in parts))

    def _numbers(self, n: int) -> Ints:
        self._seen += n
        return np.arange(self._seen - n, self._seen)

    def _add(self, h: Tensor, y: Tensor, part: Ints) -> None:
        # Double precision costs twice as much; wide layers keep their own.
        wide = torch.float64 if self.units <= 1024 else h.dtype
        filled = torch.ones(len(h), self._size, dtype=wide)
        filled[:, 1 : 1 + self.units], filled[:, 1 + self.units :] = h.detach(), y
        rows = filled.numpy()
        for p in np.flatnonzero(np.bincount(part)).tolist():
            chosen = rows[part == p]
            self._rows[p].append(chosen)
            self.counts[p] += len(chosen)
            if sum(map(len, self._rows[p])) >= max(1024, 2 * self._size):
                self._fold(p)

    def _fold(self, part: int) -> None:
        """Turn what is waiting into moments."""
        if self._rows[part]:
            rows = np.concatenate(self._rows[part])
            self._sums[part] = self._sums.get(part, 0.0) + rows.T @ rows
            self._rows[part] = []
