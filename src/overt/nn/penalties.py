"""The penalty that a model's noise adds to its expected loss, as a tensor with gradients."""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from overt.nn.curvature import (
    WeightedLoss,
    average,
    curved_variance,
    quadratic,
    read_loss,
)
from overt.nn.data.losses import Loss, is_squared
from overt.nn.graph.record import (
    Recording,
    UnsupportedError,
    check_for_hidden_noise,
    record,
    sample,
)
from overt.nn.graph.state import (
    Output,
    SavedState,
    check_call,
    never_compiled,
    raise_if_model_fails,
    seed_all,
    untouched,
)
from overt.nn.moments.propagate import PropagatedOutput, decompose, propagate
from overt.nn.moments.values import Propagation
from overt.results import Result

SAMPLES = 100
"""Passes in which noise that cannot be propagated is sampled: a standard error of 10 to 15 %."""

CHECKS = 64
"""Samples that a propagated penalty is compared with: enough to see that it is 30 % off."""

ALL_NOISE = "all noise"
"""The name of the one term of a model whose noises cannot be separated."""


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
        The standard error that sampling leaves in the value; 0 where nothing was sampled.
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

    The noises in `drawn` were sampled (("all",): the model cannot be propagated), `error`
    is the standard error that this leaves in the value, `linearized` names operations that overt
    has no rule for.
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


@never_compiled
def explicit_penalty(
    model: nn.Module,
    x: Any,
    y: Tensor | None = None,
    *,
    loss: Loss = "squared",
    output: Output = None,
    seed: int = 0,
) -> Penalty:
    """E[loss with noise] - loss without noise, averaged over the rows of x, in closed form.

    For the squared loss |y - f(x)|^2 the last noise before an affine part adds exactly
    <Gamma, J'J o a a'>, with a what it acts on and J the affine part (convolutions, average pooling
    and flattening included); for Dropout and a linear layer U, lam sum_j |u_j|^2 mean(a_j^2)
    (structured dropout, Lemma 3.1, whose Corollary 3.2 drops lam; thesis, Proposition 5).

    The term of a noise is what it adds to those after it. Followed by a non-linearity it is an
    approximation: moments are propagated as by `predictive_moments`, and a warning is given where
    samples contradict them. A model that cannot be propagated is sampled. Noise also moves the
    mean of the output there, as behind max pooling, which changes the loss by an amount that
    depends on y: it is the term "mean shift", present if y is given.

    Parameters
    ----------
    model
        Any network. Its mode does not matter to its noise; normalization runs in its own mode, and
        in training mode uses the noise-free batch's statistics.
    x, y
        A batch of inputs (a tensor, or a tuple or mapping of them), and of targets.
    loss
        "squared": sum over outputs; "mse": mean over outputs, as torch.nn.functional.mse_loss;
        "cross_entropy" on logits (batch, classes, ...): (1/2) <diag(p) - p p', Cov(logits)>, p the
        softmax, to second order in the noise, averaged over tokens or pixels; "logistic": (1/2)
        p (1 - p) Var(logit), summed over outputs. A torch.nn.CrossEntropyLoss may have class
        weights and an `ignore_index`, which need y; targets of -100 never count.
    output
        Selects the output that counts, such as `lambda o: o.logits`.
    seed
        Of what is sampled.

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
    model = check_call(model, x, output)
    weighted = read_loss(loss)
    grad = torch.is_grad_enabled()
    with untouched(model) as saved, torch.inference_mode(False):
        seed_all(seed)
        try:
            recording = record(
                saved, x, output, decompose=decompose, statistics="as set"
            )
            check_for_hidden_noise(recording, saved, x, output, "as set")
            penalty, mean = _propagated(recording, y, weighted, grad)
        except UnsupportedError as error:
            raise_if_model_fails(model, x, output, error)
            return _sampled(saved, x, y, weighted, output, grad)
        if not all(term.exact for term in penalty.terms):
            samples = list(sample(saved, recording, x, output, CHECKS, "as set"))
            if not saved.interrupts.pending:
                _warn_if_contradicted(
                    torch.cat(samples).double(), penalty, mean, y, weighted
                )
    return penalty


def _propagated(
    recording: Recording, y: Tensor | None, loss: WeightedLoss, grad: bool
) -> tuple[Penalty, Tensor]:
    """Return the penalty of a recorded pass, and the mean output."""
    noises = recording.noises
    terms: list[Term] = []
    later: Any = 0.0
    found = propagate(recording, Propagation(grad=grad, off=noises))
    clean = found.mean
    weights = loss.position_weights(y, clean)
    for i in reversed(range(len(noises))):
        found = propagate(recording, Propagation(grad=grad, off=noises[:i]))
        if not found.finite:
            raise UnsupportedError("moments leave the range of numbers")
        value = average(curved_variance(found, loss.name), weights)
        exact = found.exact and is_squared(loss.name)
        terms.insert(0, Term(noises[i], value - later, exact))
        later = value
    if y is not None and noises:
        terms.append(_mean_shift(clean, found, y, loss))
    total = (
        torch.stack([term.value for term in terms]).sum()
        if terms
        else clean.new_zeros(())
    )
    return Penalty(total, tuple(terms), linearized=tuple(found.run.unknown)), found.mean


def _mean_shift(
    clean: Tensor, found: PropagatedOutput, y: Tensor, loss: WeightedLoss
) -> Term:
    """Return what the move of the mean does to the loss."""
    if found.exact and torch.allclose(clean, found.mean):
        loss.mean(clean, y)  # refuses targets of a wrong shape
        return Term("mean shift", clean.new_zeros(()), exact=True)
    value = loss.mean(found.mean, y) - loss.mean(clean, y)
    return Term("mean shift", value, exact=found.exact and is_squared(loss.name))


def _sampled(
    saved: SavedState,
    x: Any,
    y: Tensor | None,
    loss: WeightedLoss,
    output: Output,
    grad: bool,
) -> Penalty:
    """Return the penalty as sampled passes show it, with gradients through each of them."""
    outputs = [
        saved.plain_pass(x, output, statistics="as set", grad=grad)
        for _ in range(SAMPLES)
    ]
    mean = torch.stack(outputs).mean(0)
    n = len(outputs)
    values = _added(torch.stack(outputs), mean, y, loss) * (n / (n - 1))
    terms = [Term(ALL_NOISE, values.mean(), exact=False, error=_standard_error(values))]
    if y is not None:
        clean = saved.plain_pass(x, output, noise=False, statistics="as set", grad=grad)
        shift = loss.mean(mean, y) - loss.mean(clean, y)
        moves = _moves_of_loss(torch.stack(outputs), mean, y, loss)
        terms.append(
            Term("mean shift", shift, exact=False, error=_standard_error(moves))
        )
        values = values + moves
    total = torch.stack([term.value for term in terms]).sum()
    return Penalty(total, tuple(terms), drawn=("all",), error=_standard_error(values))


def _added(
    samples: Tensor, mean: Tensor, y: Tensor | None, loss: WeightedLoss
) -> Tensor:
    """Return what the distance of each sample from the mean adds to the loss."""
    weights = loss.position_weights(y, mean)
    return torch.stack(
        [average(quadratic(one - mean, mean, loss.name), weights) for one in samples]
    )


def _moves_of_loss(
    samples: Tensor, mean: Tensor, y: Tensor, loss: WeightedLoss
) -> Tensor:
    """Return how much each sample moves the loss, to first order."""
    with torch.enable_grad():
        at = mean.detach().requires_grad_()
        (slope,) = torch.autograd.grad(loss.mean(at, y), at)
    away = samples.detach() - mean.detach()
    return (slope * away).reshape(len(samples), -1).sum(1)


def _standard_error(values: Tensor) -> float:
    n = len(values)
    return float(values.detach().double().std()) / math.sqrt(n) if n > 1 else 0.0


def _warn_if_contradicted(
    samples: Tensor,
    penalty: Penalty,
    mean: Tensor,
    y: Tensor | None,
    loss: WeightedLoss,
) -> None:
    """Warn where samples contradict a penalty that was propagated through non-linear functions."""
    mean = mean.detach().double()
    center = samples.mean(0)
    n = len(samples)
    values = _added(samples, center, y, loss)
    seen = float(values.mean()) * n / (n - 1)
    shift = [term for term in penalty.terms if term.name == "mean shift"]
    value = float(penalty.value.detach()) - sum(
        float(term.value.detach()) for term in shift
    )
    error = 3 * _standard_error(values) / max(seen, 1e-30)
    if seen > 0 and abs(math.log(max(value, 1e-30) / seen)) > max(0.2, error):
        warnings.warn(
            f"the noise adds {value:.3g} to the loss as propagated, but {seen:.3g} over {n} "
            "samples: this model is far from linear in its noise; trust predictive_moments, or "
            "train with the noise on",
            stacklevel=3,
        )
        return
    if y is None:
        return
    y = y.double() if y.is_floating_point() else y
    gap = float(loss.mean(center, y) - loss.mean(mean, y))
    if abs(gap) > 0.2 * seen + 3 * _standard_error(
        _moves_of_loss(samples, center, y, loss)
    ):
        warnings.warn(
            f"the loss at the mean output differs by {gap:.3g} between {n} samples and as "
            f"propagated, beside a penalty of {seen:.3g}: this model is far from linear in its "
            "noise; trust predictive_moments, or train with the noise on",
            stacklevel=3,
        )
