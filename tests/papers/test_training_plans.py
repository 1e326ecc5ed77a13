"""Numbers of steps that Theorem 16 of the thesis asks for."""

import numpy as np
import pytest

from overt import InputError

pytest.importorskip("torch")

from overt.papers import training_plans as plans

PLAN = {
    "epsilon": 0.1,
    "margin": 0.5,
    "radius": 0.2,
    "reach": 1.0,
    "width": 9,
    "slope": 0.5,
    "kappa": 0.2,
    "omega": 1.0,
}


def test_plans_follow_the_corrected_formulas():
    eps, gamma, nu, R, m, alpha, kappa, omega = (
        0.13,
        1.1,
        0.27,
        2.3,
        13,
        0.41,
        0.57,
        3.7,
    )
    given = {"epsilon": eps, "margin": gamma, "radius": nu, "reach": R, "width": m}
    plan = plans.training_plan(**given, slope=alpha, kappa=kappa, omega=omega)
    growth = 1 + omega * gamma * alpha * kappa * np.sqrt(m) * eps
    steps = 64 * (R + nu) ** 2 * growth / ((gamma - nu) ** 2 * alpha**2 * eps**2)
    assert plan.train_steps == int(np.ceil(steps))
    assert plan.train_step_size == pytest.approx(1 / (m * kappa**2 * (R + nu) ** 2))
    assert plan.beta == pytest.approx(4 * nu * (1 - alpha) * kappa * np.sqrt(m))
    assert plan.attack_work == pytest.approx(8 * nu**2 * kappa**2 * m / eps)
    assert plan.attack_steps(3.1) == int(np.ceil(plan.attack_work * 3.1**2))
    assert plan.attack_steps(1e-9) == 1
    assert (plan.kappa, plan.epsilon) == (kappa, eps)
    linear = plans.linear_training_plan(**given)
    assert linear.beta == 0
    expected = 64 * (R + nu) ** 2 * (1 + eps) / ((gamma - nu) ** 2 * eps**2)
    assert linear.train_steps == int(np.ceil(expected))
    assert linear.kappa == pytest.approx(1 / np.sqrt(m))
    chosen = plans.training_plan_for_beta(**given, beta=0.3, slope=alpha, omega=omega)
    assert chosen.beta == pytest.approx(0.3)
    assert chosen.attack_work == pytest.approx(0.3**2 / (2 * (1 - alpha) ** 2 * eps))
    exactly = {"margin": 1.0, "reach": 1.0 - 1e-12}
    assert plans.linear_training_plan(**(given | exactly)).train_steps > 0
    for bad in ({"slope": 1.0}, {"slope": 0.0}, {"radius": 0.0}):
        with pytest.raises(InputError, match="slope must lie in"):
            plans.training_plan_for_beta(
                **(given | {"beta": 0.3, "slope": alpha, "omega": omega} | bad)
            )
    with pytest.raises(InputError, match="below the margin"):
        plans.linear_training_plan(**(given | {"radius": gamma}))


def test_a_plan_is_saved_and_loaded(tmp_path):
    plan = plans.linear_training_plan(
        epsilon=0.1, margin=1, radius=0.2, reach=2, width=9
    )
    assert type(plan).load(plan.save(tmp_path / "plan.npz")) == plan


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: plans.training_plan(**(PLAN | {"kappa": 0.0})), "kappa must be"),
        (lambda: plans.training_plan(**(PLAN | {"slope": 2.0})), "slope must lie"),
        (
            lambda: plans.training_plan(**(PLAN | {"reach": 0.3})),
            "reach must be at least",
        ),
        (lambda: plans.training_plan(**(PLAN | {"omega": -1.0})), "omega must be"),
    ],
)
def test_bad_input_is_refused(call, message):
    with pytest.raises(InputError, match=message):
        call()
