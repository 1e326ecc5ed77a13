"""What a model's noise adds to its expected loss, as a tensor with gradients."""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from overt.nn.comparing import compare
from overt.nn.curvature import curvature, quadratic
from overt.nn.data.losses import Loss, is_squared, loss_name, mean_loss
from overt.nn.moments.carry import (
    DRAWS,
    UNSEEN,
    Carried,
    Output,
    checked,
    passes,
    plain_output,
)
from overt.results import Result


@dataclass(frozen=True, repr=False)
class Term(Result):
    """What one noise adds.

    Attributes
    ----------
    name
        The noise's name: the path of its module, or path:function.
    value
        Its share, a tensor with gradient.
    exact
        Whether the share is exact, or the approximation that `explicit_penalty` states.
    error
        The standard error that drawing noise leaves in the value; 0 where none was drawn.
    """

    name: str
    value: Tensor
    exact: bool
    error: float = 0.0

    def to_dict(self) -> dict[str, Any]:
        """Return the term with its value as a number."""
        return {**vars(self), "value": float(self.value.detach())}


@dataclass(frozen=True, repr=False)
class Penalty(Result):
    """What noise adds to a loss: `value`, the sum of its `terms`, a tensor with gradient.

    `drawn` names the noises that could not be carried and were sampled, `error` is the standard
    error that this leaves in the value, `linearized` names operations that overt has no rule for.
    """

    value: Tensor
    terms: tuple[Term, ...]
    drawn: tuple[str, ...] = ()
    linearized: tuple[str, ...] = ()
    error: float = 0.0

    @property
    def exact(self) -> bool:
        """Whether every term is exact."""
        return all(term.exact for term in self.terms)

    def to_dict(self) -> dict[str, Any]:
        """Return the penalty with its values as numbers."""
        terms = [term.to_dict() for term in self.terms]
        value, exact = float(self.value.detach()), self.exact
        return {"value": value, "terms": terms, "exact": exact, "error": self.error}


def explicit_penalty(
    model: nn.Module,
    x: Any,
    y: Tensor | None = None,
    *,
    loss: Loss = "squared",
    output: Output = None,
) -> Penalty:
    """E[loss with noise] - loss without noise, averaged over the rows of x, in closed form.

    For the squared loss |y - f(x)|^2 the last noise before an affine part adds exactly
    <Gamma, J'J o a a'>, with a what it acts on and J the affine part (convolutions, average pooling
    and flattening included); for Dropout and a linear layer U, lam sum_j |u_j|^2 mean(a_j^2)
    (structured dropout, Lemma 3.1, whose Corollary 3.2 drops lam; thesis, Proposition 5). Max
    pooling right after dropout is exact too.

    The term of a noise is what it adds to those after it. Followed by a non-linearity it is an
    approximation: moments are carried as by `predictive_moments`. Noise also moves the mean of the
    output there, as behind max pooling, which changes the loss by an amount that depends on y: it
    is the term "mean shift", present if y is given.

    Parameters
    ----------
    model
        Any network. Its mode does not matter to its noise; normalization runs in its own mode, and
        in training mode uses the noise-free batch's statistics.
    x, y
        A batch of inputs (a tensor, or a tuple or dictionary of them), and of targets.
    loss
        "squared": sum over outputs; "mse": mean over outputs, as torch.nn.functional.mse_loss;
        "cross_entropy" on logits: (1/2) <diag(p) - p p', Cov(logits)>, p the softmax, to second
        order in the noise; "logistic": (1/2) p (1 - p) Var(logit), summed over outputs.
    output
        Picks the output that counts, such as `lambda o: o.logits`.

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
    model, name = checked(model, x, output), loss_name(loss)

    def found(active: Collection[str] | None, draws: int = DRAWS) -> list[Carried]:
        return passes(model, x, output=output, active=active, statistics="as set", draws=draws)

    everything = found(None)
    noises = everything[0].noises
    few = max(2 * DRAWS // max(len(noises), 2), 8)  # for terms, which a model may have by the dozen
    terms: list[Term] = []
    later = everything[0].output.mean.new_zeros(1)
    if UNSEEN in everything[0].drawn:
        later = shares_of(everything if not noises else found((), few), name)
        terms.append(Term(UNSEEN, later.mean(), False, _error(later)))
    for i in reversed(range(len(noises))):
        those = everything if i == 0 else found(noises[i:], few)
        shares = shares_of(those, name)
        exact = len(those) == 1 and those[0].output.exact and is_squared(name)
        error = math.hypot(_error(shares), _error(later))
        terms.insert(0, Term(noises[i], shares.mean() - later.mean(), exact, error))
        later = shares
    if y is not None and (noises or everything[0].drawn):
        clean = plain_output(model, x, output, "as set", grad=torch.is_grad_enabled())
        shift, moves = _shift(everything, clean, y, name)
        terms.append(shift)
        later = later + moves
    if not everything[0].output.exact:
        value, mean = later.detach().mean(), _mean(everything)
        doubt = _error(later) / max(float(value), 1e-30)
        compare(model, x, output, value, name, doubt, None if y is None else (mean, y))
    total = torch.stack([term.value for term in terms]).sum() if terms else later.mean()
    unknown = tuple(everything[0].tape.linearized)
    return Penalty(total, tuple(terms), everything[0].drawn, unknown, _error(later))


def _shift(noisy: list[Carried], before: Tensor, y: Tensor, loss: str) -> tuple[Term, Tensor]:
    """Return what the move of the mean does to the loss, and how each draw moves that."""
    after = _mean(noisy)
    exact = len(noisy) == 1 and noisy[0].output.exact
    if exact and torch.allclose(before, after):
        return Term("mean shift", after.new_zeros(()), True), after.new_zeros(1)
    value = mean_loss(after, y, loss) - mean_loss(before, y, loss)
    with torch.enable_grad():
        at = after.detach().requires_grad_()
        (slope,) = torch.autograd.grad(mean_loss(at, y, loss), at)
    moves = torch.stack([(slope * (one.output.mean.detach() - at.detach())).sum() for one in noisy])
    return Term("mean shift", value, exact and is_squared(loss), _error(moves)), moves


def _mean(found: list[Carried]) -> Tensor:
    return torch.stack([one.output.mean for one in found]).mean(0)


def _error(shares: Tensor) -> float:
    """Return the standard error of the mean of what single draws give."""
    n = len(shares)
    return float(shares.detach().double().std()) / math.sqrt(n) if n > 1 else 0.0


def shares_of(found: list[Carried], loss: str) -> Tensor:
    """Return values whose mean is <H, Cov(output)>, H half the loss's second derivative.

    One for each draw of what could not be carried. Their means vary too: n / (n - 1) of each
    squared deviation, which is without bias.
    """
    means = torch.stack([one.output.mean for one in found])
    mean, n = means.mean(0), len(found)
    within = torch.stack([_curved(one, mean, loss) for one in found])
    if n == 1:
        return within
    return within + torch.stack([quadratic(m - mean, mean, loss) for m in means]) * (n / (n - 1))


def _curved(one: Carried, mean: Tensor, loss: str) -> Tensor:
    """Return <H, Cov> of one carried pass."""
    diagonal, direction, scale = curvature(mean, loss)
    value = (diagonal * one.variances()).reshape(len(mean), -1).sum(1)
    if direction is not None:
        value = value - one.along(direction)
    return scale * value.mean()
