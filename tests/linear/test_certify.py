"""Lower bounds hold at every iterate, and certificates are recomputed from the data."""

import inspect

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import overt
from overt.linear.bounds import NormCost

DROPOUT = overt.Dropout(0.5)
NOISES = {
    "dropout": overt.Dropout(0.4),
    "per unit": overt.Dropout([0.1, 0.5, 0.3, 0.7]),
    "keep exactly": overt.KeepExactly(3),
    "grid": overt.DropBlock(0.4, 2),
    "sliding": overt.DropBlock(0.4, 2, "sliding"),
    "dropconnect": overt.DropConnect(0.4),
    "covariance": overt.CovarianceNoise(np.full(4, 0.9), 0.2 * np.eye(4) + 0.1),
}


def correlated(n, seed):
    A = np.random.default_rng(seed).standard_normal((n, n))
    return A @ A.T + 0.1 * np.eye(n)


@pytest.mark.parametrize("inputs", ["isotropic", "correlated"])
@pytest.mark.parametrize("name", NOISES)
def test_bound_is_below_every_iterate_of_training(name, inputs):
    M = np.random.default_rng(0).standard_normal((5, 3))
    C = None if inputs == "isotropic" else correlated(3, 1)
    net = overt.LinearNetwork(M, 4, NOISES[name], second_moment=C)
    run = net.train(3000, 2e-3, 3, records=25)
    assert np.isfinite(run.objective).all()
    assert run.objective.min() >= run.optimum * (1 - 1e-12)
    assert run.optimum == net.certify(run.U[0], run.V[0]).lower_bound


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(sorted(NOISES)), st.integers(0, 10**6), st.floats(0.01, 3))
def test_bound_is_below_arbitrary_weights(name, seed, scale):
    rng = np.random.default_rng(seed)
    net = overt.LinearNetwork(rng.standard_normal((4, 3)), 4, NOISES[name])
    U, V = scale * rng.standard_normal((4, 4)), scale * rng.standard_normal((3, 4))
    certificate = net.certify(U, V)
    assert certificate.gap >= -1e-12 * certificate.objective
    assert certificate.objective == net.objective(U, V)


def test_bound_is_valid_whatever_the_reference_point(monkeypatch):
    # Weak duality: a proximal map that is wrong makes the bound loose, never too high.
    m = np.array([3.0, 2.0, 1.0])
    cost = NormCost(0.5, overt.spectral.SquaredNuclear())
    right = cost.bound(m)
    shrinkage = overt.spectral.SquaredNuclear.shrinkage
    monkeypatch.setattr(
        overt.spectral.SquaredNuclear,
        "shrinkage",
        lambda self, s, w: 1.1 * shrinkage(self, s, w),
    )
    assert cost.bound(m) < right


def test_gap_and_distance_vanish_at_the_optimum_only():
    net = overt.LinearNetwork(np.diag([3.0, 2.0, 1.0]), 3, overt.Dropout(0.3))
    best = net.solve()
    assert best.certificate.relative_gap < 1e-10
    assert best.certificate.distance < 1e-10
    assert best.certificate.imbalance < 1e-20
    off = net.certify(1.1 * best.U, best.V)
    assert off.gap > 1e-3
    assert off.distance == pytest.approx(0.1 * np.linalg.norm(best.product))


def test_certificate_sees_unbalanced_factors_of_the_optimal_map():
    net = overt.LinearNetwork(np.diag([3.0, 2.0]), 2, overt.Dropout(0.3))
    best = net.solve()
    U, s, Vt = np.linalg.svd(best.product)
    plain = net.certify(U * np.sqrt(s), Vt.T * np.sqrt(s))
    assert plain.distance < 1e-10
    assert plain.imbalance > 1e-3
    assert plain.gap > 1e-3


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            {"target": np.eye(2), "width": 0, "noise": DROPOUT},
            "width must be at least 1",
        ),
        ({"target": np.eye(2), "width": 2, "noise": 0.5}, "noise must be a noise"),
        ({"width": 2, "noise": DROPOUT}, "either target"),
        ({"target": np.eye(2), "X": np.eye(2), "width": 2, "noise": DROPOUT}, "either"),
        ({"X": np.eye(2), "width": 2, "noise": DROPOUT}, "together"),
        ({"X": np.eye(2), "Y": np.ones((3, 1)), "width": 2, "noise": DROPOUT}, "rows"),
        (
            {"target": np.eye(2), "width": 3, "noise": overt.DropBlock(0.5, 2)},
            "block_size",
        ),
        ({"target": [[np.nan]], "width": 1, "noise": DROPOUT}, "target must be finite"),
        (
            {
                "target": np.eye(2),
                "width": 1,
                "noise": DROPOUT,
                "second_moment": -np.eye(2),
            },
            "positive semi-definite",
        ),
        ({"target": [["a"]], "width": 1, "noise": DROPOUT}, "target must hold numbers"),
    ],
)
def test_bad_problems_are_refused(arguments, message):
    with pytest.raises(overt.InputError, match=message):
        overt.LinearNetwork(**arguments)


@pytest.mark.parametrize(
    ("missing", "call"),
    [
        ("noise", lambda: overt.LinearNetwork(np.eye(2), 2)),
        ("width", lambda: overt.LinearNetwork(X=np.eye(2), Y=np.eye(2), noise=DROPOUT)),
        ("noise", lambda: overt.TiedAutoencoder(X=np.eye(2), width=2)),
        ("widths", lambda: overt.DeepLinearNetwork(np.eye(2), drop_prob=0.5)),
        ("width", lambda: overt.path(np.eye(2), drop_probs=[0.5])),
        ("width", lambda: overt.drop_prob_for_rank(np.eye(2), rank=1)),
    ],
)
def test_required_arguments_are_required_in_the_signature(missing, call):
    with pytest.raises(
        TypeError, match=f"missing 1 required positional argument: '{missing}'"
    ):
        call()


@pytest.mark.parametrize(
    "named",
    [overt.LinearNetwork, overt.TiedAutoencoder, overt.DeepLinearNetwork, overt.path],
)
def test_signatures_show_what_is_required(named):
    shown = list(inspect.signature(named).parameters.values())
    # A path and a deep network take probabilities or noises.
    required = 2 if named in (overt.path, overt.DeepLinearNetwork) else 3
    assert [p.default for p in shown[:required]] == [inspect.Parameter.empty] * required
    assert shown[0].name == "target"
    assert all(p.default in (None, 0.0, 1) for p in shown[required:])


def test_targets_of_whole_numbers_are_converted():
    whole = overt.LinearNetwork(np.diag([3, 1]), 2, DROPOUT).solve()
    assert whole == overt.LinearNetwork(np.diag([3.0, 1.0]), 2, DROPOUT).solve()


def test_weights_of_the_wrong_shape_are_refused():
    net = overt.LinearNetwork(np.eye(2), 3, DROPOUT)
    with pytest.raises(overt.InputError, match="weights must have the shapes"):
        net.certify(np.ones((2, 2)), np.ones((2, 2)))
