"""What a model's noise adds to its expected loss, as a tensor with gradients."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from overt import _check
from overt._check import InputError
from overt.nn.delta import Linearized
from overt.nn.engine import Outcome, active_noises, checked, outcomes
from overt.nn.noisy import Noisy
from overt.nn.sources import modes
from overt.results import Result

LOSSES = ("squared", "mse", "cross_entropy", "logistic")


@dataclass(frozen=True, repr=False)
class Term(Result):
    """What one noise layer adds.

    Attributes
    ----------
    name
        The layer's name in the model.
    value
        Its share, a tensor with gradient.
    exact
        Whether the share is exact, or the approximation that `explicit_penalty` states.
    """

    name: str
    value: Any
    exact: bool

    def to_dict(self) -> dict[str, Any]:
        """Return the term with its value as a number."""
        return {"name": self.name, "value": float(self.value.detach()), "exact": self.exact}


@dataclass(frozen=True, repr=False)
class Penalty(Result):
    """What noise adds to a loss: `value`, the sum of its `terms`, a tensor with gradient."""

    value: Any
    terms: tuple[Term, ...]

    @property
    def exact(self) -> bool:
        """Whether every term is exact."""
        return all(term.exact for term in self.terms)

    def to_dict(self) -> dict[str, Any]:
        """Return the penalty with its values as numbers."""
        terms = [term.to_dict() for term in self.terms]
        return {"value": float(self.value.detach()), "terms": terms, "exact": self.exact}


def explicit_penalty(
    model: nn.Module,
    x: Tensor,
    y: Tensor | None = None,
    *,
    loss: str = "squared",
    method: str = "auto",
) -> Penalty:
    """E[loss with noise] - loss without noise, averaged over the rows of x, in closed form.

    For the squared loss |y - f(x)|^2 the last noise layer before an affine part adds exactly
    <Cbar, J'J o a a'>, with a what it acts on and J the affine part (convolutions, average pooling
    and flattening included); for Dropout and a linear layer U, lam sum_j |u_j|^2 mean(a_j^2)
    (structured dropout, Lemma 3.1, whose Corollary 3.2 drops lam; thesis, Proposition 5). Max
    pooling right after dropout is exact too.

    The term of a layer is what its noise adds to that of the layers after it. For a layer that is
    followed by a non-linearity it is an approximation: moments are carried as by
    `predictive_moments`. Noise also moves the mean of the output there, as behind max pooling,
    which changes the loss by an amount that depends on y: it is the term "mean shift", present if y
    is given.

    Parameters
    ----------
    model
        A network with noise layers of overt.nn or torch.nn. Its mode does not matter to the noise;
        other modules run in their mode, and batch normalization in training mode uses the
        noise-free batch's statistics.
    x, y
        A batch of inputs, and of targets (class indices for "cross_entropy").
    loss
        "squared": sum over outputs; "mse": mean over outputs, as torch.nn.functional.mse_loss;
        "cross_entropy" on logits: (1/2) <diag(p) - p p', Cov(logits)>, p the softmax, to second
        order in the noise; "logistic": (1/2) p (1 - p) Var(logit), summed over outputs.
    method
        "auto", "gaussian" or "delta", as for `predictive_moments`.

    Examples
    --------
    >>> import torch
    >>> from overt.nn import explicit_penalty
    >>> model = torch.nn.Sequential(torch.nn.Dropout(0.5), torch.nn.Linear(2, 1, bias=False))
    >>> _ = torch.nn.init.ones_(model[1].weight)
    >>> penalty = explicit_penalty(model, torch.tensor([[3.0, 1.0]]))
    >>> penalty.value.item(), penalty.terms[0].exact  # 1 * (3^2 + 1^2)
    (10.0, True)
    """
    model = checked(model, x)
    _check.choice("loss", loss, LOSSES)
    with modes(model, noise=False, others=None):
        names = active_noises(model)
        terms: list[Term] = []
        later = x.new_zeros(())
        shift: Term | None = None
        for i in reversed(range(len(names))):
            parts = list(outcomes(model, x, names[i:], method))
            if isinstance(parts[0], Linearized):
                parts = list(outcomes(model, x, names, "delta"))
                terms = _delta_terms(parts, loss)
                shift = None
                break
            value, exact = _carried(parts, loss)
            terms.insert(0, Term(names[i], value - later, exact))
            later = value
            if y is not None:
                shift = _shift_term(parts, y, loss)
    if shift is not None:
        terms.append(shift)
    total = torch.stack([term.value for term in terms]).sum() if terms else later
    return Penalty(total, tuple(terms))


def outcome_penalty(outcome: Outcome, loss: str) -> Tensor:
    """Return what the noise in one outcome adds to the loss around its mean."""
    match outcome:
        case Noisy() if loss == "squared":
            return outcome.total()
        case Noisy() if loss == "mse":
            return outcome.total() / outcome.units
        case Noisy():
            return _curved(loss, outcome.mean, outcome.variance, outcome.along)
        case Linearized():
            shares = [_arrival(outcome, spread, rows, loss) for _, spread, rows in outcome.arrivals]
            return torch.stack(shares).sum()
    return outcome.new_zeros(())


def _carried(parts: list[Outcome], loss: str) -> tuple[Tensor, bool]:
    sizes = [len(part.mean) if isinstance(part, Noisy) else 1 for part in parts]
    values = [outcome_penalty(part, loss) * size for part, size in zip(parts, sizes, strict=True)]
    exact = all(part.exact for part in parts if isinstance(part, Noisy))
    return torch.stack(values).sum() / sum(sizes), exact and loss in ("squared", "mse")


def _delta_terms(parts: list[Outcome], loss: str) -> list[Term]:
    (outcome,) = parts
    assert isinstance(outcome, Linearized)  # noqa: S101 (for the type checker)
    shares: dict[str, Tensor] = {}
    for name, spread, rows in outcome.arrivals:
        shares[name] = shares.get(name, 0.0) + _arrival(outcome, spread, rows, loss)
    return [Term(name, value, False) for name, value in shares.items()]


def _arrival(outcome: Linearized, spread: Any, rows: Tensor, loss: str) -> Tensor:
    if loss in ("squared", "mse"):
        total = spread.total(rows)
        return total if loss == "squared" else total / outcome.clean[0].numel()

    def variance() -> Tensor:
        return spread.along(rows).reshape(outcome.clean.shape)

    return _curved(loss, outcome.clean, variance, lambda w: spread.along(w @ rows))


def _curved(
    loss: str,
    logits: Tensor,
    variance: Callable[[], Tensor],
    along: Callable[[Tensor], Tensor],
) -> Tensor:
    """(1/2) <H, Cov(logits)>, H the second derivative of the loss, averaged over the batch."""
    if loss == "logistic":
        p = torch.sigmoid(logits)
        return (p * (1 - p) * variance()).flatten(1).sum(1).mean() / 2
    if logits.ndim != 2 or logits.shape[1] < 2:
        raise InputError(
            "loss='cross_entropy' needs a model that returns (batch, at least 2 classes), got "
            f"{tuple(logits.shape)}; for one logit use loss='logistic'"
        )
    p = torch.softmax(logits, 1)
    spread = (p * variance()).sum(1) - along(p[:, None, :])[:, 0]
    return spread.mean() / 2


def _shift_term(parts: list[Outcome], y: Tensor, loss: str) -> Term:
    noisy = [part for part in parts if isinstance(part, Noisy)]
    unmoved = all(part.mean is part.clean for part in noisy)
    if unmoved:
        return Term("mean shift", noisy[0].mean.new_zeros(()), True)
    mean = torch.cat([part.mean for part in noisy])
    clean = torch.cat([part.clean for part in noisy])
    exact = all(part.exact for part in noisy) and loss in ("squared", "mse")
    return Term("mean shift", plain_loss(mean, y, loss) - plain_loss(clean, y, loss), exact)


def plain_loss(output: Tensor, y: Tensor, loss: str) -> Tensor:
    """Return the named loss of outputs against targets, averaged over the batch."""
    match loss:
        case "squared":
            return ((output - y) ** 2).flatten(1).sum(1).mean()
        case "mse":
            return functional.mse_loss(output, y)
        case "cross_entropy":
            return functional.cross_entropy(output, y)
    losses = functional.binary_cross_entropy_with_logits(output, y, reduction="none")
    return losses.flatten(1).sum(1).mean()
