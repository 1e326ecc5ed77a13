"""Sampled outputs of a model, many copies of its inputs to a pass.

Rows of a batch may share draws (noise on weights, a coin that decides what runs), so that copies in
one pass need not be independent, and where they do not, draws are balanced among groups of them.
With c copies to a group, W the variance within groups and B that of the groups' means,
W (1 - 1 / c) + B is unbiased either way. Where a pass is one sample, because its rows share a coin,
a small network takes some copies to it all the same: what they do not share is averaged.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from overt.nn.data.models import modes, unwrap_model
from overt.nn.moments.balance import GROUPS, Balance
from overt.nn.moments.carry import Output, own, picked, remembered
from overt.nn.moments.common import believed, energies
from overt.nn.moments.copies import balanced, beside, copied, draws_apart, rows_apart, rows_of
from overt.nn.moments.result import LEVEL, Moments
from overt.nn.recording.watching import called, tensors

COPIES, ROWS, PASSES = 80, 512, 8
"""The most copies of the inputs to a pass, rows to a pass, and the fewest passes that show whether
copies are independent, where that is not known."""

SMALL, TIMES = (2**16, 64), 8
"""Weights, and numbers in an input, of networks that take so many times more of both to a pass."""

BLOCK = 40
"""Passes of one copy each that are summed up together."""

SHARED, APART, SHOWN = 2.0, 1.4, 20
"""How many times more passes may vary than copies do before copies are given up, and up to what
they count as independent, if a pass holds so many: no more than a fiftieth is shared then."""

TINY, DOUBT = float(np.finfo(float).tiny), 4.0
"""The least number, and differences of groups that it is worth to assume balance does nothing."""


class Samples:
    """Sums over sampled outputs, in double precision; `draw` adds to them.

    `alone` is without copies, `quick` balances one group too, which does not show what that does.
    `mean` and `variance` are those of all samples so far, `n` is the number of independent samples
    that they are worth, `kurtosis` that of a typical output, `copies` how many a group holds, each
    of them `_each` copies that share draws.
    """

    def __init__(
        self, model: nn.Module, x: Any, output: Output, *,
        covariance: bool, alone: bool = False, quick: bool = False,
    ) -> None:  # fmt: skip
        self._model, self._x, self._output = model, x, output
        self._covariance, self._quick, self._even = covariance, quick, False
        self.copies = self._each = 1
        self._like = torch.empty(0)
        self._reset()
        self._most = int(alone)
        self._alone, self._sure, self._answers = alone, False, dict[Any, Any]()
        self._balance = self._turns = Balance()

    def _reset(self) -> None:
        self._groups = self.count = 0
        self._mean = self._within = self._between = self._fourth = np.zeros(())
        self._spread, self._apart = np.zeros(4), 0.0

    def draw(self, n: int, progress: Any = None) -> None:
        """Sample n times (a little more if groups do not divide it), noise as it falls."""
        with torch.inference_mode(False), torch.no_grad(), modes(self._model, noise=True):
            if not self._most:
                self._start()
            if not self.count:
                self.copies = self._group(n)
            end, before, given = self.count + n, 1, self._x
            while (left := end - self.count) > 0:
                most = BLOCK if self._alone else self._most if self._sure else 1
                count = self.copies * max(1, min(most, left + self.copies - 1) // self.copies)
                if not self._alone and count != before:
                    given, before = copied(self._x, count), count
                self._add(self._in_turn(count) if self._alone else self._outputs(given, count))
                if progress is not None:
                    progress.advance(left - end + self.count)
                if not self._alone and self._groups == PASSES and self._shared() > SHARED:
                    self._answers["shared"] = self._alone = True
                    self._reset()
                    self.copies, end = self._group(n), n
            seen = not self._alone and self.copies >= SHOWN and self._groups >= PASSES
            if seen and self._shared() <= APART:
                self._answers["apart"] = True

    def _outputs(self, given: Any, copies: int) -> Any:
        """Return outputs, (copies, rows, ...)."""
        with self._balance as balance:
            balance.begin(copies, self.copies if self._even else 1)
            y = picked(called(unwrap_model(self._model), own(given)), self._output)
        return self._numbers(y, copies)

    def _in_turn(self, passes: int) -> Any:
        """Return outputs of passes of one copy each, members of groups in turn."""
        found, model, groups = [], unwrap_model(self._model), passes // self.copies
        seeds, given = torch.randint(2**62, (groups,)).tolist(), copied(self._x, self._each)
        with self._turns as balance:
            for i in range(passes):
                balance.take(i // groups, self.copies, seeds[i % groups])
                found.append(picked(called(model, own(given)), self._output))
        if passes >= PASSES:
            balance.used = balance.called
        y = self._numbers(torch.cat(found), passes * self._each)
        parts = y.reshape(self.copies, groups, self._each, *y.shape[1:])
        return parts.swapaxes(1, 2).reshape(y.shape)

    def _numbers(self, y: Tensor, count: int) -> Any:
        self._like = y[:0]
        y = y.double().cpu().numpy()
        return y.reshape(count, -1, *y.shape[1:])

    def _start(self) -> None:
        """Find out whether copies of the rows may be run together: without noise, first."""
        self._rows, self._most = rows_of(self._x) or 0, 1
        shapes = tuple(t.shape for t in tensors(self._x))
        answers = self._answers = remembered(self._model, self._output, shapes, dict)

        def ask(what: Any) -> Any:
            if what not in answers:
                answers[what] = what(self._model, self._x, self._output)
            return answers[what]

        self._turns = answers.setdefault("turns", Balance(used=None))
        if not self._rows or not ask(rows_apart):
            self._alone = True
            return
        if "times" not in answers:
            weights = sum(weight.numel() for weight in self._model.parameters())
            numbers = sum(t.numel() for t in tensors(self._x)) / self._rows
            answers["times"] = TIMES if weights <= SMALL[0] and numbers <= SMALL[1] else 1
        apart = "shared" not in answers and ask(draws_apart)
        self._alone = apart is False
        if self._alone:
            self._each = answers["times"] if ask(beside) else 1
            return
        self._sure = apart or "apart" in answers
        if self._sure:
            self._balance = ask(balanced)
        self._most = max(1, answers["times"] * min(COPIES, ROWS // self._rows))

    def _group(self, n: int) -> int:
        """Return how many copies to a group, and note whether draws are balanced among them.

        Two groups at least show what balance leaves of the mean's variance.
        """
        self._alone |= not self._sure and n < 2 * PASSES
        most = max(1, n if self._alone else min(self._most, n if self._sure else n // PASSES))
        even = self._alone or (self._sure and bool(self._balance.forms))
        sizes = (*GROUPS, *range(min(most, 64), GROUPS[-1] - 1, -1)) if even else ()
        good = next((g for g in sizes if g <= most and n % g == 0 and n >= 2 * g), 0)
        self._even = bool(good) or (self._quick and even and n == most)
        most = 1 if self._alone and not self._even else most
        return good or next(g for g in range(most, 0, -1) if n % g == 0)

    def _add(self, y: Any) -> None:
        """Add the groups of a pass, or the outputs of several passes of one copy."""
        members, before = self.copies * self._each, self._groups
        groups = len(y) // members
        self.count, self._groups = self.count + groups * self.copies, before + groups
        y = y.reshape(members, groups, *y.shape[1:])
        means = np.add.reduce(y) / members
        mean = np.add.reduce(means) / groups
        if members > 1:
            self._within = self._within + self._squares(y - means)
        if groups > 1:
            self._between = self._between + self._squares((means - mean)[None])
        if before:
            away = mean - self._mean
            mean = self._mean + away * (groups / self._groups)
            shares = groups * before / self._groups
            self._between = self._between + shares * self._squares(away[None, None])
        self._mean = mean
        if self._covariance:
            return
        off = y - mean
        off *= off
        v = np.add.reduce(off, (0, 1)) / (groups * members)
        v = np.where(v > 0, v, 1.0)
        off /= v
        self._fourth = self._fourth + v * v * np.einsum("cg...,cg...->...", off, off)
        off -= 1
        if self._each > 1:
            self._apart += float(np.vdot(off, off)) / self._each
            off = off.reshape(self.copies, self._each, -1).mean(1)
        self._spread = self._spread + energies(off.reshape(-1, len(v), v.size // len(v)))

    def _squares(self, away: Any) -> Any:
        """Return sums of squares, or of products of a row's outputs, over the first two axes."""
        if self._covariance:
            s = away.reshape(-1, away.shape[2], math.prod(away.shape[3:]))
            return np.einsum("crk,crl->rkl", s, s)
        return np.add.reduce(away * away, (0, 1))

    def _tensor(self, value: Any) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(value)).to(self._like)

    @property
    def mean(self) -> Tensor:
        """The mean."""
        return self._tensor(self._mean)

    @property
    def variance(self) -> Tensor:
        """The variance or the covariances, unbiased."""
        return self._tensor(self._variance())

    def _variance(self) -> Any:
        """Return the variance; of one group, as if balance left a quarter of its mean's."""
        if self._groups == 1:
            return self._within / (self.copies - (0.25 if self._even else 1.0)) / self._each
        between, total = self._between / (self._groups - 1), self.count * self._each
        return between if total == self._groups else self._within / total + between

    def _shared(self) -> float:
        """Return how many times more passes' means vary than copies of their own would."""
        if self._sure or self._alone or self.copies == 1 or self._groups < 2:
            return 1.0
        within = float(self._within.sum()) / (self._groups * (self.copies - 1))
        between = float(self._between.sum()) / (self._groups - 1)
        return self.copies * between / max(within, TINY)

    @property
    def left(self) -> float:
        """The share of the mean's variance that balanced draws leave, as far as groups show it."""
        if not self._even or self._covariance or self._groups < 2:
            return 1.0
        v, free = self._variance(), self._groups - 1
        seen = float((self._between / np.where(v > 0, v, 1.0)).sum()) / v.size
        worth = free * min(8, v.size)
        return min((DOUBT + worth * seen * self.copies / free) / (DOUBT + worth), 1.0)

    @property
    def n(self) -> float:
        """The number of independent samples that all are worth."""
        return max(1.0, self.count / max(1.0, self._shared()))

    @property
    def rows(self) -> int:
        """The number of rows that do not share draws, as far as is known."""
        return self._rows if self._most > 1 else 1

    @property
    def kurtosis(self) -> float:
        """E (y - m)^4 / Var(y)^2 of a typical output, 3 for normal ones."""
        if self._covariance:
            return 3.0
        v = self._variance()
        some = v > 0
        if not some.all():
            v = v[some]
        if not v.size:
            return 3.0
        numbers = self.count * self._each * v.size
        found = float((self._fourth[some] / (v * v).ravel()).sum()) / numbers
        return max(1.5, found) if math.isfinite(found) else 3.0

    @property
    def errors(self) -> tuple[float, float]:
        """The standard errors of mean and standard deviation, over the standard deviation."""
        n, squares = self.n, self.kurtosis - 1
        if self._apart:  # what copies in a pass leave of it
            squares *= min(1.0, float(self._spread.sum()) / self._apart)
        return math.sqrt(self.left / n), math.sqrt(squares / 4 / max(n - 1, 1))

    def shrunk(self, center: Any = 0.0) -> tuple[Any, float]:
        """Return logarithms of deviations nearer to what they share, less a center; their error."""
        log = np.log(self._variance()) / 2 - center
        spread = self._spread / (self._spread.sum() or 1.0)
        found, error = believed(log.reshape(len(log), -1), self.errors[1], spread)
        return found.reshape(log.shape) + center, error

    def moments(self, *, shrunk: bool = False, **how: Any) -> Moments:
        """Return what was sampled as a result, with its errors; deviations are shrunk if asked."""
        how = {"exact": False, "drawn": ("all",), "draws": self.count, **how}
        variance, (of_mean, of_std) = self._variance(), self.errors
        if self._covariance:
            return Moments(self.mean, self._tensor(variance), **how)
        if shrunk and ((variance > 0) & (variance < np.inf)).all():
            log, of_std = self.shrunk()
            variance = np.exp(2 * log)
        free = max(self.n - 1, 1.0)  # few samples do not know their spread: Student's quantiles
        sd = (1 + 1.24 / free + 4 / free**3) * LEVEL * np.sqrt(np.maximum(variance, 0.0))
        parts = (self._mean, variance, sd * of_mean, sd * of_std)
        mean, variance, of_mean, of_std = map(self._tensor, parts)
        return Moments(mean, variance, mean_error=of_mean, std_error=of_std, **how)
