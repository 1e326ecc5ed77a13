"""Sampled outputs of a model, many copies of its inputs to a pass.

Rows of a batch may share draws (noise on weights, a coin that decides what runs), so that copies in
one pass need not be independent. With g passes of c copies, W the variance within passes and B that
of the passes' means, W (1 - 1 / c) + B is unbiased either way. A control takes from the outputs
what a linear network makes of the same draws.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.overrides import has_torch_function_unary

from overt.nn.moments.carry import Output, own, picked, remembered
from overt.nn.moments.control import Control
from overt.nn.moments.copies import copied, draws_apart, rows_apart, rows_of
from overt.nn.moments.noises import coins
from overt.nn.moments.nonlinear import attention
from overt.nn.moments.result import LEVEL, Moments
from overt.nn.moments.tape import Uncarried
from overt.nn.recording.modes import modes, unwrapped
from overt.nn.recording.watching import called, tensors

COPIES, ROWS, PASSES = 64, 512, 8
"""The most copies of the inputs to a pass, rows to a pass, and the fewest passes that show whether
copies are independent, where that is not known."""

SMALL, TIMES = (2**16, 64), 8
"""Weights, and numbers in an input, of networks that take so many times more of both to a pass."""

BLOCK = 32
"""Passes of one copy each that are summed up together."""

FEW = 2**13
"""Numbers below which torch's own dropout is quicker."""

SHARED = 2.0
"""How many times more passes may vary than copies do before copies are given up."""


@contextmanager
def quick_dropout() -> Iterator[None]:
    """Let torch's dropout, also in attention, draw by `coins` where nothing else watches it."""
    before = functional.dropout, functional.scaled_dot_product_attention

    def dropout(
        input: Tensor,  # noqa: A002
        p: float = 0.5,
        training: bool = True,
        inplace: bool = False,
    ) -> Tensor:
        few = not training or not 0.001 < p < 0.999 or input.numel() < FEW
        if few or has_torch_function_unary(input) or not input.is_floating_point():
            return before[0](input, p, training, inplace)
        mask = coins(input, 1 - p).mul_(1 / (1 - p))
        return input.mul_(mask) if inplace else mask.mul_(input)

    def attend(query: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        drops = kwargs.get("dropout_p") or (args[3] if len(args) > 3 else 0.0)
        watched = not drops or has_torch_function_unary(query)
        return (before[1] if watched else attention)(query, *args, **kwargs)

    functional.dropout, functional.scaled_dot_product_attention = dropout, attend
    try:
        yield
    finally:
        functional.dropout, functional.scaled_dot_product_attention = before


class Samples:
    """Sums over sampled outputs, in double precision; `draw` adds to them, `alone` without copies.

    `mean` and `variance` are those of all samples so far, `n` is the number of independent samples
    that they are worth, `kurtosis` that of a typical output, `copies` how many a pass holds.
    """

    def __init__(
        self, model: nn.Module, x: Any, output: Output, *, covariance: bool,
        control: Control | None = None, alone: bool = False,
    ) -> None:  # fmt: skip
        self._model, self._x, self._output = model, x, output
        self._covariance = covariance
        self._control = control if control and control.useful else None
        self.copies, self._dtype = 1, torch.float32
        self._reset()
        self._most: int | None = 1 if alone else None
        self._sure, self._answers = False, dict[Any, Any]()

    def _reset(self) -> None:
        self._passes = self.count = 0
        self._mean = self._within = self._between = self._fourth = torch.zeros(())
        self._known: Tensor | None = None

    def draw(self, n: int, progress: Any = None) -> None:
        """Sample n times (a little more if copies do not divide it), noise as it falls."""
        with (torch.inference_mode(False), torch.no_grad(), modes(self._model, noise=True),
              quick_dropout()):  # fmt: skip
            if self._most is None:
                self._start()
            end, copies = self.count + n, self._copies_for(n)
            given = copied(self._x, copies)
            while self.count < end:
                block = min(BLOCK, end - self.count) if copies == 1 else 1
                self._add(self._pairs(given, copies, block), copies, block)
                if progress is not None:
                    progress.advance(block * copies)
                if copies > 1 and self._passes == PASSES and self._shared() > SHARED:
                    copies, given, end = 1, self._x, n
                    self._answers["shared"] = True
                    self._reset()

    def _outputs(self, given: Any) -> Tensor:
        return picked(called(unwrapped(self._model), own(given)), self._output)

    def _pairs(self, given: Any, copies: int, block: int = 1) -> Tensor:
        """Return outputs, and the control at their draws: (1 or 2, copies, rows, ...).

        Passes of one copy stand in the place of copies.
        """
        found, control = list[Any](), self._control
        try:
            if control is not None:
                how = self._output, copies
                found = [control.sample(self._model, own(given), *how) for _ in range(block)]
        except (RuntimeError, IndexError, Uncarried):  # draws that are not those that were carried
            self._reset()
            self._control = None
            found = []
        found = found or [[self._outputs(given)] for _ in range(block)]
        self._dtype = found[0][0].dtype
        y = torch.stack([torch.stack(parts).double() for parts in zip(*found, strict=True)])
        if copies == 1:
            return y
        return y[:, 0].unflatten(1, (-1, copies)).transpose(1, 2)

    def _start(self) -> None:
        """Find out whether copies of the rows may be run together: without noise, first."""
        self._rows, self._most = rows_of(self._x), 1
        shapes, control = tuple(tuple(t.shape) for t in tensors(self._x)), self._control
        given = self._model, self._x, self._output

        answers = self._answers = remembered(self._model, self._output, shapes, dict)

        def ask(what: Any) -> bool:
            if what not in answers:
                answers[what] = what(*given)
            return bool(answers[what])

        same = ask(rows_apart)
        self._sure = same and ((control is not None and control.apart) or ask(draws_apart))
        if same and self._rows == 1 and control is not None:
            self._pairs(copied(self._x, 2), 2)  # shows whether copies share draws
        shared = answers.get("shared") or (control is not None and control.shared)
        if same and self._rows and not shared:
            if "times" not in answers:
                weights = sum(weight.numel() for weight in self._model.parameters())
                numbers = sum(t.numel() for t in tensors(self._x)) / self._rows
                answers["times"] = TIMES if weights <= SMALL[0] and numbers <= SMALL[1] else 1
            self._most = max(1, answers["times"] * min(COPIES, ROWS // self._rows))

    def _copies_for(self, n: int) -> int:
        """Return how many copies to run together; 1 once passes differ more than copies do."""
        most = min(self._most or 1, n if self._sure else n // PASSES)
        most = 1 if self._shared() > SHARED else most
        if self.count:
            return self.copies if most > 1 and n >= self.copies else 1
        return next(c for c in range(max(most, 1), 0, -1) if n % c == 0)

    def _add(self, pairs: Tensor, copies: int, passes: int) -> None:
        """Add the copies of one pass, or the outputs of several passes of one copy."""
        if self.count and copies != self.copies:  # what came before was worth less: begin anew
            self._reset()
        self.copies, self.count = copies, self.count + passes * copies
        self._passes, self._known = self._passes + passes, None
        mean = pairs.mean(1, keepdim=True)
        if self._passes == passes:
            self._mean = mean[:, 0]
        else:
            before = mean[:, 0] - self._mean
            self._mean = self._mean + before * (passes / self._passes)
            step = mean - self._mean[:, None]
            self._between = self._between + passes * self._squares(before[:, None], step)
        away = pairs - mean
        squares = self._squares(away, away)
        if copies == 1:
            self._between = self._between + squares
        else:
            self._within = self._within + squares
        fourth = away[0] if self._passes == passes else pairs[0] - self._mean[0]
        self._fourth = self._fourth + fourth.pow(4).sum(0)

    def _squares(self, a: Tensor, b: Tensor) -> Tensor:
        """Products of outputs' deviations; with those of the control, and the control's own."""
        if self._covariance:
            s, t = (away[0].reshape(*away[0].shape[:2], -1) for away in (a, b))
            return torch.einsum("crk,crl->rkl", s, t)[None]
        if len(a) == 1:
            return (a * b).sum(1)
        return (a[[0, 0, 1]] * b[[0, 1, 1]]).sum(1)

    @property
    def mean(self) -> Tensor:
        """The mean."""
        mean = self._mean[0] - self._slope() * self._mean[1] if self._control else self._mean[0]
        return mean.to(self._dtype)

    @property
    def variance(self) -> Tensor:
        """The variance or the covariances, unbiased."""
        return self._variance().to(self._dtype)

    def _variance(self) -> Tensor:
        y, *others = self._second()
        if self._control is None:
            return y
        less = self._slope() ** 2 * (self._control.variance.reshape(y.shape) - others[1])
        return torch.maximum(y + less, y / 4)

    def _second(self) -> Tensor:
        """Return the variance of y, and with a control Cov(y, C) and Var C, as sampled."""
        if self._known is None:
            between = self._between / max(self._passes - 1, 1)
            within = self._within / max(self._passes * (self.copies - 1), 1)
            if self._passes > 1 or self.copies == 1:
                within = within * (1 - 1 / self.copies) + between
            self._known = within
        return self._known

    def _slope(self) -> float:
        """Return b for all outputs: that of least squares, each output in its own units."""
        y, both, own = self._second()
        y = y.clamp(min=torch.finfo(y.dtype).tiny)
        return float((both / y).sum() / (own / y).sum().clamp(min=1e-30))

    @property
    def followed(self) -> float:
        """The share of the outputs' variance that the control follows, over all outputs."""
        if self._control is None:
            return 0.0
        y, both, own = self._second()
        y = y.clamp(min=torch.finfo(y.dtype).tiny)
        share = (both / y).mean() ** 2 / (own / y).mean().clamp(min=1e-30)
        return min(max(float(share), 0.0), 0.99)

    def _shared(self) -> float:
        """Return how many times more the passes' means vary than copies of their own would."""
        if self.copies == 1 or self._passes < 2 or self._sure:
            return 1.0
        within = self._within[0].sum() / (self._passes * (self.copies - 1))
        between = self._between[0].sum() / (self._passes - 1)
        return float(self.copies * between / within.clamp(min=torch.finfo(within.dtype).tiny))

    @property
    def n(self) -> float:
        """The number of independent samples that all are worth."""
        return max(1.0, self.count / max(1.0, self._shared()))

    @property
    def rows(self) -> int:
        """The number of rows that do not share draws, as far as is known."""
        return self._rows or 1 if (self._most or 1) > 1 else 1

    @property
    def kurtosis(self) -> float:
        """E (y - m)^4 / Var(y)^2 of a typical output, 3 for normal ones."""
        if self._covariance:
            return 3.0
        v = self._variance()
        found = float((self._fourth / self.count / (v * v)).nanmean())
        return max(1.5, found) if math.isfinite(found) else 3.0

    @property
    def errors(self) -> tuple[float, float]:
        """The standard errors of mean and standard deviation, over the standard deviation."""
        n, left = self.n, 1 - self.followed
        spread = (self.kurtosis - 1) / 4 * left * (2 - left)
        return math.sqrt(left / n), math.sqrt(spread / max(n - 1, 1))

    def moments(self, **how: Any) -> Moments:
        """Return what was sampled as a result, with its errors."""
        how = {"exact": False, "drawn": ("all",), "draws": self.count, **how}
        if self._covariance:
            return Moments(self.mean, self.variance, **how)
        variance, errors = self.variance, self.errors
        sd = variance.clamp(min=0).sqrt()
        of_mean, of_std = (sd * (LEVEL * error) for error in errors)
        return Moments(self.mean, variance, mean_error=of_mean, std_error=of_std, **how)
