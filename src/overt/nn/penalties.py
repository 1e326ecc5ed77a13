"""The penalty that a model's noise adds to its expected loss, as a tensor with gradients."""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass, replace
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
from overt.nn.data.models import torch_rng_bytes
from overt.nn.graph.record import Recording, UnsupportedError, record_noise, sample
from overt.nn.graph.state import (
    Output,
    SavedState,
    check_call,
    never_compiled,
    raise_if_model_fails,
    seed_all,
    untouched,
)
from overt.nn.moments.propagate import decompose, propagate
from overt.nn.moments.values import Propagation
from overt.results import Result

SAMPLES = 100
"""Passes in which noise that cannot be propagated is sampled: a standard error of 10 to 15 %."""

CHECKS = 64
"""Samples that a propagated penalty is compared with: enough to see that it is 30 % off."""

ALL_NOISE = "all noise"
"""The name of the one term of a model whose noises cannot be separated."""

MEAN_MOVES = (
    "noise also moves the mean of the output, which changes the loss by an amount that depends on "
    "the targets and is not in the value: pass y"
)
"""The note of a penalty without targets."""


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
        The standard error that sampling leaves in the value; of an approximation that of the whole
        penalty, because samples do not tell the terms apart; 0 if the share is exact.
    """

    name: str
    value: Tensor
    exact: bool
    error: float = 0.0


@dataclass(frozen=True, repr=False)
class Penalty(Result):
    """What noise adds to a loss: `value`, the sum of its `terms`, a tensor with gradient.

    The noises in `drawn` were sampled (("all",): the model cannot be propagated), and `error` is
    the standard error that this leaves in the value. An approximation is compared with samples: its
    `error` is how far it is from theirs, and their standard error, in squares. The true value is
    within two errors in about 95 of 100 cases. `note` says what
    the value leaves out: without targets what noise changes by moving the mean of the output.
    """

    value: Tensor
    terms: tuple[Term, ...]
    drawn: tuple[str, ...] = ()
    error: float = 0.0
    note: str = ""

    @property
    def exact(self) -> bool:
        """Whether every term is exact, and none is missing."""
        return not self.note and all(term.exact for term in self.terms)

    def to_dict(self) -> dict[str, Any]:
        """Return the penalty as plain numbers, with the label."""
        return {**super().to_dict(), "exact": self.exact}


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
    samples contradict them. A model that cannot be propagated is sampled. Noise may also move the
    mean of the output away from the output without noise, that of evaluation mode: behind max
    pooling, or where it has another mean itself, as AlphaDropout. This changes the loss by an
    amount that depends on y: it is the term "mean shift", present if y is given; else the result's
    `note` says that it is left out. Noise that evaluation mode leaves on is at its mean instead.

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
            recording = record_noise(
                saved, x, output, decompose=decompose, statistics="as set"
            )
            plain = _noiseless(saved, x, output, grad)
            penalty, clean = _propagated(recording, plain, y, weighted, grad)
        except UnsupportedError as error:
            raise_if_model_fails(model, x, output, error)
            return _sampled(saved, x, y, weighted, output, grad)
        if not all(term.exact for term in penalty.terms):
            samples = list(sample(saved, recording, x, output, CHECKS, "as set"))
            if not saved.interrupts.pending:
                terms = _sampled_terms(torch.cat(samples), clean.detach(), y, weighted)
                penalty = _compared(penalty, terms)
    return penalty


def _noiseless(saved: SavedState, x: Any, output: Output, grad: bool) -> Tensor | None:
    """Return the output in evaluation mode, None if that is random, too."""
    before = torch_rng_bytes()
    found = saved.plain_pass(x, output, noise=False, statistics="as set", grad=grad)
    same = torch_rng_bytes() == before
    return found if same else None


def _propagated(
    recording: Recording,
    plain: Tensor | None,
    y: Tensor | None,
    loss: WeightedLoss,
    grad: bool,
) -> tuple[Penalty, Tensor]:
    """Return the penalty of a recorded pass, and the output without noise.

    `plain` is the output in evaluation mode. Where it is that with all noise at its mean but for
    rounding, the latter counts: the mean under noise has the same rounding.
    """
    noises = recording.noises
    terms: list[Term] = []
    later: Any = 0.0
    found = propagate(recording, Propagation(grad=grad, off=noises))
    clean = found.mean
    if plain is not None and plain.shape == clean.shape:
        rounding = torch.finfo(plain.dtype).eps ** 0.75
        plain = plain.to(clean.dtype)
        if not _equal_up_to(rounding, plain, clean):
            clean = plain
    weights = loss.position_weights(y, clean)
    for i in reversed(range(len(noises))):
        found = propagate(recording, Propagation(grad=grad, off=noises[:i]))
        if not found.finite:
            raise UnsupportedError("moments leave the range of numbers")
        value = average(curved_variance(found, loss.name), weights)
        exact = found.exact and is_squared(loss.name)
        terms.insert(0, Term(noises[i], value - later, exact))
        later = value
    rounding = torch.finfo(clean.dtype).eps ** 0.75
    moves = not _equal_up_to(rounding, clean, found.mean)
    if y is not None and (noises or moves):
        moved = loss.mean(found.mean, y) - loss.mean(clean, y)
        # Of a mean that moves without any variance, every loss is exact.
        exact = found.exact and (is_squared(loss.name) or not noises)
        if found.exact and not moves:
            moved = torch.zeros_like(moved)  # but for rounding
            exact = True
        terms.append(Term("mean shift", moved, exact))
    total = sum((term.value for term in terms), clean.new_zeros(()))
    penalty = Penalty(
        total,
        tuple(terms),
        note=MEAN_MOVES if moves and y is None else "",
    )
    return penalty, clean


def _equal_up_to(share: float, a: Tensor, b: Tensor) -> bool:
    """Whether two outputs differ by at most this share of the largest entry."""
    if not a.numel():
        return True
    size = torch.maximum(a.abs().amax(), b.abs().amax())
    return bool((a - b).abs().amax() <= share * size)


def _sampled(
    saved: SavedState,
    x: Any,
    y: Tensor | None,
    loss: WeightedLoss,
    output: Output,
    grad: bool,
) -> Penalty:
    """Return the penalty as sampled passes show it, with gradients through each of them."""

    def run(noise: bool) -> Tensor:
        return saved.plain_pass(x, output, noise=noise, statistics="as set", grad=grad)

    samples = torch.stack([run(True) for _ in range(SAMPLES)])
    clean = run(False)
    found = _sampled_terms(samples, clean, y, loss)
    terms = [
        Term(name, values.mean(), exact=False, error=_standard_error(values))
        for name, values in found.items()
    ]
    total = torch.stack(list(found.values())).sum(0)
    error = _standard_error(total)
    away = float((samples.mean(0) - clean).detach().square().sum())
    chance = float(samples.detach().var(0).sum()) / SAMPLES
    moves = away > 9 * chance  # three standard errors
    note = MEAN_MOVES if moves and y is None else ""
    return Penalty(total.mean(), tuple(terms), drawn=("all",), error=error, note=note)


def _sampled_terms(
    samples: Tensor, clean: Tensor, y: Tensor | None, loss: WeightedLoss
) -> dict[str, Tensor]:
    """Return what each sample adds to the loss by its distance from the mean, and by the mean's."""
    mean = samples.mean(0)
    weights = loss.position_weights(y, mean)
    added = [
        average(quadratic(one - mean, mean, loss.name), weights) for one in samples
    ]
    n = len(samples)
    terms = {ALL_NOISE: torch.stack(added) * (n / (n - 1))}
    if y is not None:
        total = torch.stack([loss.mean(one, y) for one in samples]) - loss.mean(
            clean, y
        )
        terms["mean shift"] = total - terms[ALL_NOISE]
    return terms


def _standard_error(values: Tensor) -> float:
    return float(values.detach().double().std()) / math.sqrt(len(values))


def _compared(penalty: Penalty, sampled: dict[str, Tensor]) -> Penalty:
    """Return an approximation with its error as samples show it; warn where they contradict it."""
    values = torch.stack(list(sampled.values())).sum(0)
    value, seen = float(penalty.value.detach()), float(values.mean())
    chance = _standard_error(values)
    allowed = max(0.2 * float(sampled[ALL_NOISE].mean()), 3 * chance)
    if abs(value - seen) > allowed:
        warnings.warn(
            f"the noise adds {value:.3g} to the loss as propagated, but {seen:.3g} over "
            f"{len(values)} samples: this model is far from linear in its noise; trust "
            "predictive_moments, or train with the noise on",
            stacklevel=4,
        )
    error = math.hypot(value - seen, chance)
    terms = [
        replace(term, error=0.0 if term.exact else error) for term in penalty.terms
    ]
    return replace(penalty, terms=tuple(terms), error=error)
