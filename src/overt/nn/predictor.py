"""A model that says how sure it is: means, deviations, intervals and probabilities."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from overt import _check
from overt._check import InputError, InputTypeError
from overt.nn.data.batches import Batches
from overt.nn.data.losses import Loss, Targets, loss_name
from overt.nn.graph.state import Output
from overt.nn.moments.monte_carlo import Moments
from overt.nn.moments.predictive import predictive_moments

NODES = 256
"""Quasirandom points of a normal law at which probabilities are averaged."""


class Predictive(nn.Module):  # type: ignore[misc]
    """A model whose noise says how sure it is.

    Wherever it takes x, that may be a batch as in `predictive_moments`, or a DataLoader, whose
    batches are put together. In training mode a call is one of the model, noise and all; in
    evaluation mode it gives the mean under the noise, or for cross-entropy the logarithms of the
    probabilities, so that trainers and scorers that know nothing of uncertainty can use it.

    Dropout's variance knows nothing of the noise in targets, and its probabilities may be too
    timid or too bold; `recalibrate` fits the one parameter that mends it on held-out data.
    `conformalize` takes held-out data for intervals and sets of classes with a coverage that holds
    whatever the model and the distribution are.

    Parameters
    ----------
    model
        Any network; it is not copied.
    loss
        What it was trained for: "squared", "mse", "cross_entropy" (logits) or "logistic".
    output
        As in `predictive_moments`.

    Attributes
    ----------
    noise_variance, temperature
        What is added to the variance, and what the mean logits are divided by, but not their noise;
        buffers, saved with a model.

    Examples
    --------
    >>> import torch
    >>> from overt.nn import Predictive
    >>> model = torch.nn.Sequential(torch.nn.Dropout(0.5), torch.nn.Linear(2, 1, bias=False))
    >>> _ = torch.nn.init.ones_(model[1].weight)
    >>> sure = Predictive(model)
    >>> x = torch.tensor([[3.0, 4.0]])
    >>> sure.mean(x).item(), sure.std(x).item()
    (7.0, 5.0)
    >>> low, high = sure.interval(x, level=0.9)
    >>> round(high.item() - low.item(), 2)
    16.45
    """

    noise_variance: Tensor
    temperature: Tensor
    scores: Tensor

    def __init__(
        self,
        model: nn.Module,
        *,
        loss: Loss = "mse",
        output: Output = None,
    ) -> None:
        super().__init__()
        if not isinstance(model, nn.Module):
            raise InputTypeError(
                f"model must be a torch.nn.Module, got {type(model).__name__}"
            )
        self.model = model
        self.loss = loss_name(loss)
        self.output = output
        self.register_buffer("noise_variance", torch.zeros(()))
        self.register_buffer("temperature", torch.ones(()))
        self.register_buffer("scores", torch.zeros(0))

    @property
    def _squared(self) -> bool:
        return self.loss in ("squared", "mse")

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Return the model's output (training mode), or the mean or log-probabilities."""
        if self.training:
            return self.model(*args, **kwargs)
        x = kwargs or (args[0] if len(args) == 1 else args)
        if self.loss == "cross_entropy":
            tiny = torch.finfo(torch.float32).tiny
            return self.probabilities(x).clamp(min=tiny).log()
        return self.mean(x)

    def moments(self, x: Any) -> Moments:
        """Return mean and variance under the noise alone, for a batch, and how they were found."""
        with torch.no_grad():
            return predictive_moments(self.model, x, output=self.output)

    def mean(self, x: Any) -> Tensor:
        """Return the mean output under the noise."""
        return self._over(x, lambda batch: self.moments(batch).mean)

    def std(self, x: Any) -> Tensor:
        """Return the standard deviation: that of the noise, and of the targets if known."""
        return self._over(x, lambda batch: self._normal(batch)[1])

    def interval(self, x: Any, level: float = 0.95) -> tuple[Tensor, Tensor]:
        """Return the ends of central normal intervals."""
        level = torch.tensor(_check_level(level), dtype=torch.float64)
        q = math.sqrt(2) * float(torch.special.erfinv(level))
        return self._around(x, q)

    def _around(self, x: Any, q: Any) -> tuple[Tensor, Tensor]:
        both = self._over(x, lambda batch: torch.stack(self._normal(batch), 1))
        mean, sd = both.unbind(1)
        return mean - q * sd, mean + q * sd

    def probabilities(self, x: Any) -> Tensor:
        """Return E[softmax(mean / temperature + noise)], noise normal (E[sigmoid] for "logistic").

        The noise keeps its scale: dropout makes means timid while it trains, and not its noise.
        """
        if self._squared:
            raise InputError(
                f"loss={self.loss!r} predicts numbers: probabilities need loss='cross_entropy' or "
                "'logistic'"
            )

        def of(batch: Any) -> Tensor:
            return self._expected(*self._logits(batch), float(self.temperature))

        return self._over(x, of)

    def recalibrate(self, data: Any) -> Predictive:
        """Fit the noise variance, or the temperature of logits, to held-out data; return itself.

        Either has the largest likelihood on the data, which must not be that of training. Scores of
        `conformalize` are forgotten: call it afterwards, on other data.
        """
        found = []
        for x, y, where in self._held_out(data):
            parts = self._normal(x, alone=True) if self._squared else self._logits(x)
            Targets(y, parts[0], self.loss, where)  # refuses targets that do not fit
            found.append((*parts, y))
        center, spread, y = (torch.cat(parts) for parts in zip(*found, strict=True))
        self.scores = self.scores[:0]  # they had another scale
        if not self._squared:

            def surprise(t: float) -> Tensor:
                return _surprise(self._expected(center, spread, t), y)

            self.temperature.fill_(_least(surprise, 0.05, 20.0))
            return self
        errors = (center - y.reshape(center.shape).to(center)) ** 2
        residual = float(errors.mean())

        def misfit(t: float) -> Tensor:
            variance = spread**2 + t * residual
            return (torch.log(variance) + errors / variance).mean()

        self.noise_variance.fill_(_least(misfit, 1e-4, 2.0) * residual)
        return self

    def conformalize(self, data: Any) -> Predictive:
        """Store the scores of held-out data for conformal intervals and sets; return itself.

        The data must be used neither for training nor for `recalibrate`. A score is
        |y - mean| / std of each output, or 1 - (probability of the class).
        """
        scores = []
        for x, y, where in self._held_out(data):
            if self._squared:
                mean, sd = self._normal(x)
                Targets(y, mean, self.loss, where)  # refuses targets that do not fit
                distance = (y.reshape(mean.shape).to(mean) - mean).abs()
                # Without noise a distance is 0 or infinite.
                tiny = torch.finfo(sd.dtype).tiny
                scores.append(distance / sd.clamp(min=tiny))
                continue
            p = self._classes(x)
            classes = y.reshape(-1, 1)
            index = classes.long()
            last = p.shape[1] - 1
            whole = len(index) == len(p) and bool((index == classes).all())
            if not whole or not 0 <= int(index.min()) <= int(index.max()) <= last:
                raise InputError(f"{where}: targets must be class numbers in 0..{last}")
            scores.append(1 - p.gather(1, index)[:, 0])
        self.scores = torch.cat(scores).sort(0).values
        return self

    def conformal_interval(self, x: Any, level: float = 0.9) -> tuple[Tensor, Tensor]:
        """Return the ends of split-conformal intervals, mean -+ q std.

        For rows that are exchangeable with the rows of `conformalize`, each output lies in its
        interval with a probability of at least `level`, on average over both.
        """
        if not self._squared:
            raise InputError(
                f"loss={self.loss!r} has sets of classes: use conformal_set"
            )
        return self._around(x, self._quantile(level))

    def conformal_set(self, x: Any, level: float = 0.9) -> Tensor:
        """Return which classes are in the split-conformal set of each row, (rows, classes).

        For rows that are exchangeable with the rows of `conformalize`, the right class is in the
        set with a probability of at least `level`, on average over both.
        """
        if self._squared:
            raise InputError(
                f"loss={self.loss!r} has intervals: use conformal_interval"
            )
        q = self._quantile(level)
        return self._over(x, lambda batch: 1 - self._classes(batch) <= q)

    def _classes(self, x: Any) -> Tensor:
        """Return probabilities of classes, of both classes for one logit."""
        p = self._expected(*self._logits(x), float(self.temperature))
        return torch.cat([1 - p, p], 1) if p.shape[1] == 1 else p

    def _quantile(self, level: float) -> Tensor:
        """Return the score of rank ceil((n + 1) level) of n, which gives the coverage."""
        level = _check_level(level)
        n = len(self.scores)
        rank = math.ceil((n + 1) * level - 1e-9)
        if rank > n:
            needed = math.ceil(level / (1 - level) - 1e-9)
            raise InputError(
                f"level={level:g} needs at least {needed} rows of held-out data, got {n}: call "
                "conformalize(data) first"
            )
        return self.scores[rank - 1]

    def _load_from_state_dict(self, state: Any, prefix: str, *rest: Any) -> None:
        """Take over as many scores as there are."""
        found = state.setdefault(f"{prefix}scores", self.scores)
        self.scores = torch.empty_like(found)
        super()._load_from_state_dict(state, prefix, *rest)

    def _held_out(self, data: Any) -> Iterator[tuple[Any, Any, str]]:
        """Yield inputs and targets, and where they come from."""
        for where, inputs, y in Batches(data, self.model):
            yield _alone(inputs.given), y, where

    def _over(self, x: Any, f: Callable[[Any], Tensor]) -> Tensor:
        if isinstance(x, (Tensor, tuple, Mapping)):
            return f(x)
        batches = Batches(x, self.model, name="x", unlabeled=True)
        return torch.cat([f(_alone(batch.inputs.given)) for batch in batches])

    def _normal(self, x: Any, *, alone: bool = False) -> tuple[Tensor, Tensor]:
        found = self.moments(x)
        added = 0.0 if alone else self.noise_variance
        return found.mean, (found.variance.clamp(min=0) + added).sqrt()

    def _logits(self, x: Any) -> tuple[Tensor, Tensor]:
        """Return the mean of the logits and a root of their covariance, (rows, K, K)."""
        with torch.no_grad():
            mean, covariance = predictive_moments(
                self.model, x, output=self.output, covariance=True
            )
            if mean.ndim != 2:
                raise InputError(
                    f"probabilities need logits of shape (rows, classes), got {tuple(mean.shape)}"
                )
            values, vectors = torch.linalg.eigh(covariance.double())
            root = vectors * values.clamp(min=0).sqrt()[:, None]
            return mean, root.to(mean.dtype)

    def _expected(self, mean: Tensor, root: Tensor, temperature: float) -> Tensor:
        even = torch.quasirandom.SobolEngine(mean.shape[1], scramble=True, seed=0).draw(
            NODES
        )
        z = torch.special.ndtri(even.clamp(1e-6, 1 - 1e-6)).to(mean)
        logits = mean[:, None] / temperature + z @ root.mT  # (rows, nodes, classes)
        if self.loss == "logistic" or mean.shape[1] == 1:
            return torch.sigmoid(logits).mean(1)
        return torch.softmax(logits, -1).mean(1)


def _alone(given: Any) -> Any:
    return given[0] if isinstance(given, tuple) and len(given) == 1 else given


def _check_level(level: float) -> float:
    level = _check.number("level", level, exclusive=True)
    if not level < 1:
        raise InputError(f"level must be below 1, got {level}")
    return level


def _surprise(p: Tensor, y: Tensor) -> Tensor:
    """Return the mean negative log-likelihood of classes, or of 0 and 1."""
    p = p.clamp(1e-12, 1 - 1e-7)
    if not y.is_floating_point() and y.ndim == 1 and p.shape[1] > 1:
        return functional.nll_loss(p.log(), y)
    y = y.reshape(p.shape).to(p)
    return p.shape[1] * functional.binary_cross_entropy(p, y)


def _least(f: Callable[[float], Tensor], low: float, high: float) -> float:
    """Return where f is least, as a function of the logarithm."""
    from scipy.optimize import minimize_scalar

    found = minimize_scalar(
        lambda t: float(f(math.exp(t))),
        method="bounded",
        bounds=(math.log(low), math.log(high)),
    )
    return math.exp(found.x)
