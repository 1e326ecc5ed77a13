"""Randomized smoothing: certificates for any model, from its classes under noise on the inputs.

The class A that the model gives most often under noise has probability p at x, p' at x + delta.

Normal noise of deviation sigma (Cohen et al. 2019). Of all sets of probability p at x, the half-
space {z : <delta, z - x> <= sigma |delta| Phi^-1(p)} has the least at x + delta (Neyman, Pearson:
the ratio of the densities is monotone along delta), so that

    p' >= Phi(Phi^-1(p) - |delta|_2 / sigma) > 1/2   where   |delta|_2 < sigma Phi^-1(p).

Masks. Let delta change at most k features, E be the event that all of these are dropped. It does
not depend on the inputs, and on E masked x and masked x + delta are equal. Hence

    p' >= P(A and E) = p - P(A and not E) >= p - (1 - P(E)) > 1/2   where   P(E) > 3/2 - p.

Dropout has P(E) >= q^k, q the drop probability (the product of the k smallest if they differ); if
exactly c of d features survive, P(E) = C(d - k, c) / C(d, c). A model that gives A unless it sees
a changed feature attains the bound. What features are changed to does not matter.
"""

from __future__ import annotations

import numbers
from collections.abc import Callable
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any, Unpack

import numpy as np
import torch

from overt._check import (
    Floats,
    InputError,
    InputTypeError,
    Ints,
    doubles,
    number,
    plain_array,
    whole,
)
from overt._intervals import clopper_pearson
from overt._running import meter
from overt.noise import Dropout, KeepExactly, Noise
from overt.results import Result, Status
from overt.robust.models import (
    BATCH_SIZE,
    Model,
    ModelAdapter,
    ModelOptions,
    evaluation_mode,
)
from overt.robust.models import classes as check_classes


@dataclass(frozen=True, repr=False, eq=False)
class Smoothed(Result):
    """Predictions of a smoothed model, and how far they are certified.

    `predicted` are classes (points,), -1 where the samples do not decide and the model abstains. No
    perturbation below `radius` (points,) in L2, or of at most that many features in L0, changes
    them; it is 0 where the model abstains. `lower` are the lower limits of p, from `draws` samples.
    `confidence` is the probability that a certificate holds.
    `classes` is the model's number of classes. `status` is "finished" or "interrupted": the model
    abstains at points that were not reached.
    """

    predicted: Ints
    radius: Floats
    lower: Floats
    norm: str
    draws: int
    confidence: float
    classes: int
    status: Status

    def errors(self, y: Any, radii: Any) -> Floats:
        """Return for each of radii the share of points not certified to be of their class y."""
        truth = check_classes(y, torch.as_tensor(self.predicted), self.classes).numpy()
        given = np.atleast_1d(plain_array("radii", radii))
        predicted = np.asarray(self.predicted)
        right = (predicted == truth) & (predicted >= 0)
        radii = doubles("radii", given, ndim=1)
        certified = right & (self.radius >= radii[:, None])
        return 1 - certified.mean(1)


def smoothed(
    model: Model,
    x: Any,
    noise: Any,
    *,
    draws: int = 1000,
    guesses: int = 100,
    confidence: float = 0.999,
    batch_size: int = BATCH_SIZE,
    seed: int = 0,
    **options: Unpack[ModelOptions],
) -> Smoothed:
    """Predict by vote under noise, with a radius within which no perturbation changes the class.

    Parameters
    ----------
    model, x
        As for any attack. The model should have been trained under the same noise.
    noise
        A number, the standard deviation of normal noise, for radii in L2; `overt.Dropout` or
        `overt.KeepExactly` on the features, survivors scaled as in PyTorch, for radii in L0.
    draws, guesses
        Samples that bound the probability of a class (exactly, by Clopper and Pearson), and samples
        before them that choose the class. Rounding of the noisy inputs is not bounded.
    confidence
        Probability that a certificate holds, at least. It is that of each: of 1,000 certificates
        at .999 one may be expected to fail. With 1 - .001 / n all n of them hold at once with
        probability .999.
    batch_size, seed, output, mean, std, samples
        As for any attack.
    """
    confidence = number("confidence", confidence)
    if not 0.5 <= confidence < 1:
        raise InputError(f"confidence must lie between 0.5 and 1, got {confidence!r}")
    whole("seed", seed, minimum=0)
    adapter = ModelAdapter(model, x, **options)
    n = len(adapter.x)
    parts = whole("guesses", guesses), whole("draws", draws)
    reach = _reach(noise, tuple(adapter.x.shape[1:]))
    level = 1 - 2 * (1 - confidence)  # of the two-sided interval
    predicted = np.full(n, -1)
    radius = np.zeros(n)
    lower = np.zeros(n)
    status = Status.FINISHED
    with evaluation_mode(adapter.model):
        classes = adapter.clean_logits(whole("batch_size", batch_size)).shape[1]
        try:
            with meter("smoothing", n) as bar:
                for i in range(n):
                    rng = np.random.default_rng((seed, i))
                    first, second = (
                        _votes(adapter, i, noise, k, batch_size, rng) for k in parts
                    )
                    best = int(first.argmax())
                    bound = float(clopper_pearson(second[best], draws, level)[0])
                    if bound > 0.5:
                        predicted[i] = best
                        radius[i] = reach(bound)
                    lower[i] = bound
                    bar.advance()
        except KeyboardInterrupt:
            status = Status.INTERRUPTED
    norm = "l0" if isinstance(noise, Noise) else "l2"
    return Smoothed(
        predicted,
        radius,
        lower,
        norm,
        draws,
        float(confidence),
        classes,
        status,
    )


def _votes(
    adapter: ModelAdapter,
    i: int,
    noise: Any,
    draws: int,
    batch_size: int,
    rng: np.random.Generator,
) -> Ints:
    """Return how often each class is predicted at point i under noise, (classes,)."""
    x = adapter.x[i]
    shape = tuple(x.shape)
    votes = np.zeros(1, int)
    for k in range(0, draws, batch_size):
        size = min(batch_size, draws - k)
        if isinstance(noise, Noise):
            drawn = noise.multipliers(shape, size, rng)
            moved = x * torch.from_numpy(drawn).to(x)
        else:
            drawn = rng.standard_normal((size, *shape))
            moved = x + float(noise) * torch.from_numpy(drawn).to(x)
        with torch.no_grad():
            logits = adapter.logits(moved, torch.full((size,), i))
        finite = torch.isfinite(logits).all(1)  # anything else is a vote for nobody
        seen = torch.bincount(logits[finite].argmax(1), minlength=logits.shape[1])
        votes = votes + seen.cpu().numpy()
    return votes


def _reach(noise: Any, shape: tuple[int, ...]) -> Callable[[float], float]:
    """Return the function from a lower limit of p, above 1/2, to the radius."""
    if isinstance(noise, (Dropout, KeepExactly)) and not getattr(
        noise, "gaussian", False
    ):
        d = len(noise.mean(shape))  # which refuses what does not fit
        if isinstance(noise, KeepExactly):
            left = np.arange(d, 0, -1)
            dropped = np.cumprod(np.maximum(left - noise.count, 0) / left)
        else:
            dropped = np.cumprod(np.sort(np.broadcast_to(noise.drop_prob, d)))
        # Rounding does less to the product than is taken off.
        return lambda p: float((dropped * (1 - 1e-12) > 1.5 - p).sum())
    if isinstance(noise, bool) or not isinstance(noise, numbers.Real):
        raise InputTypeError(
            "noise must be a positive number, the deviation of normal noise, Dropout(drop_prob) or "
            f"KeepExactly(count), got {noise!r}"
        )
    sigma = number("noise", noise, exclusive=True)
    return lambda p: sigma * NormalDist().inv_cdf(p)
