"""Thesis, chapter 6: how many steps of attack and training are proved to be enough."""

from __future__ import annotations

import math
from dataclasses import dataclass

from overt._check import InputError, bounded, number, whole
from overt.results import Result
from overt.robust.certify.exact import check_slope


@dataclass(frozen=True, repr=False, eq=False)
class TrainingPlan(Result):
    """What Theorem 16 asks for to reach an expected beta-robust error of at most 2 epsilon.

    Attributes
    ----------
    train_steps, train_step_size
        Iterations of Algorithm 6 (`train_online`) and its step, which must equal its bound.
    attack_work
        T_atk |W_t|_F^-2: an attack on weights W takes attack_work |W|_F^2 steps of length
        1 / (kappa^2 m |W|_F^2).
    beta
        The smallest lead that counts as an attack.
    kappa
        Size of every weight of the top layer.
    """

    train_steps: int
    train_step_size: float
    attack_work: float
    beta: float
    kappa: float
    epsilon: float

    def attack_steps(self, norm: float) -> int:
        """Return T_atk for hidden weights of this Frobenius norm."""
        return max(math.ceil(self.attack_work * number("norm", norm) ** 2), 1)


@bounded
def training_plan(
    *,
    epsilon: float,
    margin: float,
    radius: float,
    reach: float,
    width: int,
    slope: float,
    kappa: float,
    omega: float,
) -> TrainingPlan:
    """Return the iteration counts and step sizes of Theorem 16, corrected.

    T_tr = 64 (R + nu)^2 (1 + omega gamma alpha kappa sqrt(m) eps) / ((gamma - nu)^2 alpha^2 eps^2),
    eta_tr = 1 / (m kappa^2 (R + nu)^2),  eta_atk = 1 / (kappa^2 m |W|^2),
    T_atk = 8 nu^2 / (eta_atk eps),  beta = 4 nu (1 - alpha) kappa sqrt(m).

    Corrections: beta has 4 where 2 is printed; T_tr holds for eta_tr equal to its bound, not for
    any smaller one; every |a_r| must equal kappa.

    Parameters
    ----------
    epsilon
        Half of the error to be reached.
    margin
        gamma: every y (v . x) >= gamma for some unit vector v.
    radius
        nu, the Euclidean radius of perturbations, below the margin.
    reach
        R, the largest norm of an input.
    width, slope, kappa, omega
        m, alpha > 0, |a_r|, and the largest Frobenius norm of the first hidden weights.
    """
    epsilon = number("epsilon", epsilon, exclusive=True)
    kappa = number("kappa", kappa, exclusive=True)
    margin, radius = number("margin", margin), number("radius", radius)
    reach, omega = number("reach", reach), number("omega", omega)
    if not (slope := check_slope(slope)):
        raise InputError("slope must be above 0: nothing is proved for ReLU networks")
    if reach < margin * (1 - 1e-9):
        raise InputError(
            f"reach must be at least the margin {margin:.4g}, got {reach:.4g}: it is the largest "
            "norm of an input"
        )
    if radius >= margin:
        raise InputError(
            f"radius must be below the margin {margin:.4g}, got {radius:.4g}: nothing is proved "
            "for larger perturbations"
        )
    root = kappa * math.sqrt(whole("width", width))
    train_steps = (
        64
        * (reach + radius) ** 2
        * (1 + omega * margin * slope * root * epsilon)
        / ((margin - radius) ** 2 * slope**2 * epsilon**2)
    )
    return TrainingPlan(
        math.ceil(train_steps),
        1 / (root**2 * (reach + radius) ** 2),
        8 * radius**2 * root**2 / epsilon,
        4 * radius * (1 - slope) * root,
        kappa,
        epsilon,
    )


def linear_training_plan(
    *, epsilon: float, margin: float, radius: float, reach: float, width: int
) -> TrainingPlan:
    """Return the counts for linear classifiers: slope 1, kappa = 1 / sqrt(m), omega = 1 / gamma.

    Corollary 4: T_tr = 64 (R + nu)^2 (1 + eps) / ((gamma - nu)^2 eps^2), at most the printed
    128 (...) for eps <= 1; beta vanishes, so that the error is the robust error itself.
    """
    kappa, margin = (
        1 / math.sqrt(whole("width", width)),
        number("margin", margin, exclusive=True),
    )
    return training_plan(
        epsilon=epsilon,
        margin=margin,
        radius=radius,
        reach=reach,
        width=width,
        slope=1.0,
        kappa=kappa,
        omega=1 / margin,
    )


def training_plan_for_beta(
    *,
    beta: float,
    epsilon: float,
    margin: float,
    radius: float,
    reach: float,
    width: int,
    slope: float,
    omega: float,
) -> TrainingPlan:
    """Return the counts for a beta of choice: kappa = beta / (4 nu (1 - alpha) sqrt(m)).

    Corollary 5: T_atk = 8 nu^2 / (eta_atk eps) = beta^2 |W|^2 / (2 (1 - alpha)^2 eps). Printed are
    kappa with 2 for 4, and T_atk = 2 (1 - alpha)^2 / (beta^2 |W|^2 eps), which is upside down.
    """
    beta, radius = number("beta", beta, exclusive=True), number("radius", radius)
    if not 0 < (slope := check_slope(slope)) < 1 or radius == 0:
        raise InputError(
            f"slope must lie in (0, 1) and radius above 0, got {slope!r} and {radius!r}; beta is 0 "
            "otherwise, see linear_training_plan"
        )
    kappa = beta / (4 * radius * (1 - slope) * math.sqrt(whole("width", width)))
    return training_plan(
        epsilon=epsilon,
        margin=margin,
        radius=radius,
        reach=reach,
        width=width,
        slope=slope,
        kappa=kappa,
        omega=omega,
    )
