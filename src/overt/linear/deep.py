"""Deep linear networks x -> W_(k+1) ... W_1 x with dropout on every hidden layer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from overt import _check
from overt._check import Floats, InputError, InputTypeError
from overt.linear.deep_landscape import DeepLandscape, deep_landscape
from overt.linear.descent import Rate
from overt.linear.layers import DeepNoise
from overt.linear.network import (
    NoisyNetwork,
    grade,
    regression_of,
    require_consistent,
    target_or_data,
)
from overt.noise import DropConnect, Dropout, Noise
from overt.results import DeepSolution, Trace


class DeepLinearNetwork(NoisyNetwork):
    """A deep linear network trained with dropout on its hidden layers.

    The objective is E|y - W_(k+1) D_k W_k ... D_1 W_1 x|^2 with D_i dropout multipliers: the
    squared error plus `penalty.deep`, which is at least nu |W C^(1/2)|_*^2 for the map W.

    Parameters
    ----------
    target
        M (outputs x inputs) with y = M x.
    widths
        Widths of the hidden layers.
    drop_prob
        One probability, or one per hidden layer: the short form of noise=[Dropout(...), ...].
    noise
        In place of drop_prob: a noise over units, or one per hidden layer. DropConnect masks the
        weights that feed the layer.
    X, Y
        Data in place of a target, samples x features.
    second_moment
        E[x x'] for a target; the identity if None.
    input_noise
        A noise on the inputs too, as in `LinearNetwork`.

    Examples
    --------
    >>> import numpy as np, overt
    >>> net = overt.DeepLinearNetwork(target=np.diag([4.0, 1.0]), widths=(2, 2), drop_prob=0.5)
    >>> best = net.solve()
    >>> str(best.status), np.round(best.product, 4)[0, 0].item()
    ('optimal', 1.7778)
    """

    kind = "deep"
    noise: tuple[Noise, ...]
    effect: DeepNoise

    @target_or_data
    def __init__(
        self,
        target: Any,
        widths: Sequence[int],
        drop_prob: Any = None,
        *,
        noise: Noise | Sequence[Noise] | None = None,
        X: Any = None,
        Y: Any = None,
        second_moment: Any = None,
        input_noise: Noise | None = None,
    ) -> None:
        self.widths = tuple(_check.widths(widths))
        self.noise = _noises(self.widths, drop_prob, noise)
        task = regression_of(target, X, Y, second_moment, input_noise)
        if isinstance(self.noise[0], DropConnect) and not task.uncorrelated():
            raise InputError(
                "noise[0] may be DropConnect where inputs are uncorrelated: no bound is known for "
                "deep networks with this noise on correlated inputs"
            )
        self.effect = DeepNoise(task, self.widths, self.noise)
        self.shapes = self.effect.shapes
        self.nu = self.effect.nu

    def __repr__(self) -> str:
        task = self.effect.regression
        sizes = " -> ".join(map(str, (task.inputs, *self.widths, task.outputs)))
        return f"DeepLinearNetwork({sizes}, {list(self.noise)})"

    def solve(self, rank: int | None = None) -> DeepSolution:
        """Return the best weights that are known, and a certificate of their gap to a dual bound.

        With independent or exchangeable noise on every layer they are optimal: the least objective
        is |s|^2 - max sum_p s_p^2 prod_l pi^l_p / (pi^l_p + lam_l / d_l) over shares pi^l in the
        simplex, one for each hidden layer; see the page on optima for a proof. DropConnect on the
        first layer costs what Dropout does. With other noises the certificate's gap is to a bound
        composed from the layers'. `rank` limits the rank of the map.
        """
        effect = self.effect.limited(_check.optional_whole("rank", rank))
        weights = effect.best_weights()
        exact = effect.exact and len(effect.values) > 0
        shares = effect.layer_shares() if exact else None
        return DeepSolution(tuple(weights), *grade(effect, *weights), shares)

    def landscape(self) -> DeepLandscape:
        """Return the local minima that theory knows, one for each rank that has one.

        Where two or more layers are noisy, the best network of a rank is a local minimum over all
        weights if its shares lie where the objective is strictly convex in them; rank one always
        does. All but the best of these minima are spurious. With one hidden layer there are no
        spurious minima: the landscape is then the optimum alone.
        """
        return deep_landscape(self.effect)

    def train(
        self,
        steps: int = 5_000,
        learning_rate: Rate = 1e-2,
        seeds: int | Sequence[int] = 1,
        *,
        batch_size: int = 100,
        init_scale: float | None = None,
        **options: Any,
    ) -> Trace:
        """Run minibatch descent with sampled masks; see `LinearNetwork.train` for all options.

        The trace's imbalance is the equalization gap R / (nu |W C^(1/2)|_*^2) - 1.
        """
        if init_scale is None:  # each layer keeps the size of what passes through it
            read = [inputs for _, inputs in self.shapes]
            init_scale = float(1 / np.sqrt(np.mean(read)))
        options |= {"batch_size": batch_size, "init_scale": init_scale}
        return super().train(steps, learning_rate, seeds, **options)

    def _checked(self, *weights: Any) -> Sequence[Floats]:
        if len(weights) != 1:
            raise InputError(f"weights must be one list, got {len(weights)} arguments")
        given = weights[0]
        if isinstance(given, DeepSolution):
            given = given.weights
        return super()._checked(*_check.chain(given))


def _noises(widths: tuple[int, ...], drop_prob: Any, noise: Any) -> tuple[Noise, ...]:
    """Return a noise for every hidden layer."""
    if (drop_prob is None) == (noise is None):
        raise InputError(
            "give either drop_prob or noise (one, or one per hidden layer)"
        )
    if noise is None:
        return tuple(Dropout(p) for p in _check.drop_probs(drop_prob, len(widths)))
    found = tuple(noise) if isinstance(noise, (list, tuple)) else (noise,) * len(widths)
    if len(found) != len(widths):
        raise InputError(
            f"noise must be one noise or {len(widths)} (one per hidden layer), got {len(found)}"
        )
    for layer, (chosen, width) in enumerate(zip(found, widths, strict=True)):
        if isinstance(chosen, DropConnect):
            continue
        if not isinstance(chosen, Noise) or chosen.masks != "units":
            raise InputTypeError(
                f"noise[{layer}] must be DropConnect or mask the units of a hidden layer, such as "
                f"overt.Dropout(0.5), got {chosen!r}"
            )
        require_consistent(chosen, width)
    return found
