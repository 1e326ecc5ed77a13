"""Sums over data that is seen once: memory does not depend on the number of rows."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from overt._types import Floats, Ints


class Mean:
    """A mean and its standard error."""

    def __init__(self) -> None:
        self.count = 0
        self._mean = 0.0
        self._squares = 0.0  # sum of squared deviations from the mean

    def add(self, values: Tensor) -> None:
        """Add one number per sample."""
        x = values.detach().double().cpu().numpy()
        n = len(x)
        before = self.count
        mean = float(x.mean())
        shift = mean - self._mean
        self.count += n
        self._mean += shift * n / self.count
        self._squares += (
            float(np.sum((x - mean) ** 2)) + shift**2 * before * n / self.count
        )

    @property
    def value(self) -> float:
        """The mean of all samples so far."""
        return self._mean

    @property
    def error(self) -> float:
        """The standard error of the mean."""
        return math.sqrt(self._squares / max(self.count - 1, 1) / max(self.count, 1))


def coadaptation(flow: Floats) -> float | None:
    """Return phi = |psi|_1 / (sqrt(d) |psi|_2) of the flow through d units, None where it is 0."""
    size = float(np.linalg.norm(flow))
    return float(np.sum(flow)) / (math.sqrt(len(flow)) * size) if size else None


class ArrayMean:
    """The mean over samples of an array; None once the shape has changed."""

    def __init__(self) -> None:
        self._count = 0
        self._sum: Tensor | None = None
        self._same_shape = True

    def add(self, values: Tensor) -> None:
        """Add an array per sample, (n, ...)."""
        total = values.sum(0).double().cpu()
        if self._sum is not None and self._sum.shape != total.shape:
            self._same_shape = False
        if self._same_shape:
            self._count += len(values)
            self._sum = total if self._sum is None else self._sum + total

    @property
    def value(self) -> Floats | None:
        """The mean, None if nothing was added or the shape has changed."""
        if self._sum is None or not self._same_shape:
            return None
        return np.asarray((self._sum / self._count).numpy())


class Table:
    """Rows (1, x, y, f): the inputs (or none), targets and outputs of each sample.

    Stored as R of a decomposition Q R. R'R is the Gram matrix, but small singular values keep
    their digits. Because the first column is constant, the rows of R below the first belong to
    the centered data.
    """

    def __init__(self, inputs: int, outputs: int) -> None:
        self.has_inputs = inputs > 0
        self.x = slice(1, 1 + inputs)
        self.y = slice(self.x.stop, self.x.stop + outputs)
        self.f = slice(self.y.stop, self.y.stop + outputs)
        self._R: Floats = np.empty((0, self.f.stop))
        self._pending: list[Floats] = []
        self._rows = 0

    def add(self, x: Tensor | None, y: Tensor, f: Tensor) -> None:
        """Append rows."""
        columns = [torch.ones(len(y), 1, dtype=torch.float64, device=y.device)]
        if self.has_inputs and x is not None:
            columns.append(x.double().reshape(len(x), -1))
        columns += [y, f.double()]
        self._pending.append(torch.cat(columns, 1).detach().cpu().numpy())
        self._rows += len(y)
        # A decomposition costs columns^2 per row, and columns^3 for the former R.
        if sum(map(len, self._pending)) >= max(1024, 3 * self.f.stop):
            self._decompose()

    @property
    def R(self) -> Floats:
        """R / sqrt(rows), with two rows at least, so that something is left to center."""
        self._decompose()
        missing = np.zeros((max(0, 2 - len(self._R)), self.f.stop))
        return np.concatenate([self._R, missing]) / math.sqrt(self._rows)

    def rows(self, columns: slice, *, centered: bool) -> Floats:
        """Return some columns of R, centered if asked for."""
        return self.R[1:, columns] if centered else self.R[:, columns]

    def _decompose(self) -> None:
        if self._pending:
            stacked = np.concatenate([self._R, *self._pending])
            self._R = np.asarray(np.linalg.qr(stacked, mode="r"))
            self._pending = []


class Folds:
    """Second moments of rows (1, h, y) in six disjoint folds: fold 0 trains, the others test.

    Without holdout data the test folds take every fifth row in turn. `training` lists the
    folds with rows of the training data.
    """

    COUNT = 6

    def __init__(self, units: int, outputs: int) -> None:
        self.units = units
        self.training = [0]
        self.counts = np.zeros(self.COUNT, dtype=np.int64)
        self._columns = 1 + units + outputs
        self._sums: dict[int, Floats] = {}
        self._pending: list[list[Floats]] = [[] for _ in range(self.COUNT)]
        self._seen = 0

    def add(self, h: Tensor, y: Tensor, *, split: bool) -> None:
        """Add units and targets of the training data; with `split` also to the test folds."""
        fold = np.zeros(len(h), dtype=np.int64)
        if split:
            self.training = list(range(self.COUNT))
            index = self._next_indices(len(h))
            fold = np.where(index % 5 == 4, 1 + index // 5 % (self.COUNT - 1), 0)
        self._add(h, y, fold)

    def add_holdout(self, h: Tensor, y: Tensor) -> None:
        """Add rows that the network was not trained on to the test folds."""
        self._add(h, y, 1 + self._next_indices(len(h)) % (self.COUNT - 1))

    def moments(self, folds: list[int]) -> Floats:
        """Return the mean of the outer products over some folds."""
        total = np.zeros((self._columns, self._columns))
        for fold in folds:
            self._reduce(fold)
            total += self._sums.get(fold, 0.0)
        return total / float(self.counts[folds].sum())

    def _next_indices(self, n: int) -> Ints:
        self._seen += n
        return np.arange(self._seen - n, self._seen)

    def _add(self, h: Tensor, y: Tensor, fold: Ints) -> None:
        parts = [torch.ones(len(h), 1), h.detach().cpu(), y.detach().cpu()]
        rows = torch.cat([part.double() for part in parts], 1).numpy()
        for number in np.unique(fold).tolist():
            chosen = rows[fold == number]
            self.counts[number] += len(chosen)
            self._pending[number].append(chosen)
            # Few rows are smaller than their matrix of products.
            if sum(map(len, self._pending[number])) >= max(1024, self._columns):
                self._reduce(number)

    def _reduce(self, fold: int) -> None:
        if self._pending[fold]:
            rows = np.concatenate(self._pending[fold])
            self._sums[fold] = self._sums.get(fold, 0.0) + rows.T @ rows
            self._pending[fold] = []
