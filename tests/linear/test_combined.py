"""Noise together with noise on the inputs, and in batches; whole paths."""

import numpy as np
import pytest
from helpers import enumerate_masks

import overt
from overt.linear.descent import descend

M = np.random.default_rng(0).standard_normal((4, 3))
ROOT = np.random.default_rng(1).standard_normal((3, 3))
X = np.random.default_rng(2).standard_normal((12, 3)) @ ROOT
Y = np.random.default_rng(3).standard_normal((12, 2))
INPUTS = {
    "isotropic": {"target": M},
    "correlated": {"target": M, "second_moment": ROOT @ ROOT.T},
    "data": {"X": X, "Y": Y},
}
NOISES = {
    "dropout": overt.Dropout(0.3),
    "gaussian": overt.Dropout(strength=0.6),
    "per unit": overt.Dropout([0.1, 0.5, 0.0, 0.2]),
    "keep exactly": overt.KeepExactly(2),
    "blocks": overt.DropBlock(0.3, 2),
    "weights": overt.DropConnect(0.3),
}


def lowest(net, tries=6):
    rng, ends = np.random.default_rng(0), []
    for _ in range(tries):
        start = [
            10 ** rng.uniform(-0.5, 0.3) * rng.standard_normal(s)
            for s in net.effect.shapes
        ]
        ends.append(net.objective(*descend(net.effect.value, start)))
    return min(ends)


@pytest.mark.parametrize("inputs", INPUTS)
@pytest.mark.parametrize(
    "noise",
    [overt.Dropout(0.3), overt.Dropout([0.1, 0, 0.5]), overt.KeepExactly(2)],
    ids=str,
)
def test_noise_on_inputs_and_units_is_what_enumeration_says(noise, inputs):
    hidden, rng = overt.Dropout(0.4), np.random.default_rng(0)
    net = overt.LinearNetwork(
        **INPUTS[inputs], width=2, noise=hidden, input_noise=noise
    )
    best = net.solve()
    assert best.status == "optimal"
    assert best.objective <= lowest(net) * (1 + 1e-8)
    U, V = rng.standard_normal(best.U.shape), rng.standard_normal((3, 2))
    if inputs == "data":
        rows = zip(X, Y, strict=True)
    else:
        L = np.eye(3) if inputs == "isotropic" else ROOT
        rows = ((np.sqrt(3) * x, np.sqrt(3) * M @ x) for x in L.T)  # E[x x'] = L L'
    losses = []
    for x, y in rows:
        total = 0.0
        for masked, p in zip(*enumerate_masks(noise, 3), strict=True):
            for z, q in zip(*enumerate_masks(hidden, 2), strict=True):
                h = z / hidden.mean(2) * (V.T @ (x * masked / noise.mean(3)))
                total += p * q * np.sum((y - U @ h) ** 2)
        losses.append(total)
    assert net.objective(U, V) == pytest.approx(np.mean(losses), rel=1e-10)


def test_noise_on_inputs_is_drawn_in_training():
    both = {
        "noise": overt.Dropout(0.3),
        "input_noise": overt.Dropout(0.2),
    }
    net = overt.LinearNetwork(X=X, Y=Y, width=3, **both)
    rng = np.random.default_rng(3)
    U, V = rng.standard_normal((2, 3)), rng.standard_normal((3, 3))
    _, gradients = net.effect.value(U, V)
    half = np.concatenate([g.ravel() for g in gradients]) / 2
    moves, advance = [], net.effect.steps(rng, 2)
    for _ in range(1500):
        moved = [U.copy(), V.copy()]
        advance(moved, np.ones(1))
        moves.append(np.concatenate([(U - moved[0]).ravel(), (V - moved[1]).ravel()]))
    error = np.std(moves, axis=0) / np.sqrt(len(moves))
    assert np.abs((np.mean(moves, axis=0) - half) / error).max() <= 5


def test_noise_on_the_inputs_of_other_networks():
    noisy = overt.TiedAutoencoder(
        X=X, width=2, noise=overt.Dropout(0.2), input_noise=overt.Dropout(0.3)
    )
    plain = overt.TiedAutoencoder(X=X, width=2, noise=overt.Dropout(0.2))
    assert noisy.solve().objective > plain.solve().objective
    # Dropout on inputs is dropout on a hidden layer after an identity that is not trained.
    deep = overt.DeepLinearNetwork(M, (2,), 0.4, input_noise=overt.Dropout(0.3))
    shallow = overt.LinearNetwork(
        M, 2, overt.Dropout(0.4), input_noise=overt.Dropout(0.3)
    )
    assert deep.solve().objective == pytest.approx(shallow.solve().objective, rel=1e-9)
    W = (
        np.random.default_rng(0).standard_normal((2, 3)),
        np.random.default_rng(1).standard_normal((4, 2)),
    )
    added = overt.penalty.deep([np.eye(3), *W], (0.3, 0.4))
    assert deep.objective(W) == pytest.approx(
        np.sum((M - W[1] @ W[0]) ** 2) + float(added)
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            {"input_noise": overt.DropConnect(0.3)},
            "input_noise must be a noise over inputs",
        ),
        ({"input_noise": overt.Dropout([0.1, 0.2])}, "2 entries but there are 3 units"),
        ({"input_noise": 0.3}, "input_noise must be a noise"),
    ],
)
def test_what_does_not_fit_is_refused(arguments, message):
    with pytest.raises(overt.InputError, match=message):
        overt.LinearNetwork(M, 2, overt.Dropout(0.3), **arguments)


def test_gaussian_dropout_has_the_objective_of_dropout():
    drop, normal = overt.Dropout(0.4), overt.Dropout(strength=0.4 / 0.6)
    one, other = (overt.LinearNetwork(M, 3, noise).solve() for noise in (drop, normal))
    assert other.objective == pytest.approx(one.objective, rel=1e-14)
    assert repr(overt.Dropout(strength=2.0)) == "Dropout(strength=2.0)"
    assert overt.Dropout(strength=0.5).at_width(8).strength == 4
    with pytest.raises(overt.InputError, match="either drop_prob or strength"):
        overt.Dropout(0.3, strength=1.0)
    with pytest.raises(overt.InputError, match="strength must be"):
        overt.Dropout(strength=-1.0)


@pytest.mark.parametrize("inputs", INPUTS)
@pytest.mark.parametrize(
    "arguments",
    [
        {"width": [1, 2, 4, 8], "drop_probs": 0.4},
        {
            "width": 12,
            "noise": [overt.DropBlock(0.4, b) for b in (1, 2, 3, 4, 6, 12)],
        },
        {
            "width": [2, 4, 6],
            "noise": [overt.DropBlock(0.2 * b, b) for b in (1, 2, 3)],
        },
        {"width": 5, "noise": [overt.KeepExactly(k) for k in range(1, 6)]},
        {
            "width": 3,
            "noise": [overt.Dropout([0.1, 0.3, 0.0]), overt.Dropout(strength=2.0)],
        },
    ],
    ids=["widths", "blocks", "all", "keep exactly", "noises"],
)
def test_paths_agree_with_solving_each_point(arguments, inputs):
    whole = overt.path(**INPUTS[inputs], **arguments)
    count = len(whole.objective)
    noises = arguments.get("noise")
    if noises is None:
        probs = np.broadcast_to(arguments["drop_probs"], count)
        noises = [overt.Dropout(p) for p in probs]
    for i, (noise, d) in enumerate(zip(noises, whole.widths.tolist(), strict=True)):
        best = overt.LinearNetwork(**INPUTS[inputs], width=d, noise=noise).solve()
        if whole.attained[i]:
            assert best.status == "optimal"
            assert whole.objective[i] == pytest.approx(best.objective, rel=1e-9)
            assert whole.rank[i] == best.rank
        assert whole.objective[i] <= best.objective * (1 + 1e-12)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"width": 2}, "either drop_probs or noise"),
        ({"width": [1, 2], "drop_probs": [0.1, 0.2, 0.3]}, "same length"),
        ({"width": 4, "noise": overt.DropBlock(0.3, 2, "sliding")}, "closed form"),
        (
            {
                "width": 2,
                "noise": overt.CovarianceNoise([1.0, 1.0], [[0.2, 0.3], [0.3, 2.0]]),
            },
            "closed form",
        ),
        ({"width": 4, "noise": 0.3}, "must be a noise.*got 0.3"),
    ],
)
def test_paths_that_are_not_known_are_refused(arguments, message):
    with pytest.raises(overt.InputError, match=message):
        overt.path(M, **arguments)


def test_concentrated_exchangeable_noise_keeps_one_direction():
    # gamma below -1: multipliers that sum to nearly a constant, each very noisy.
    delta = np.array([5.0, 6.0, 9.0])
    w = 1 / np.sum(1 / delta)
    net = overt.LinearNetwork(
        M, 3, overt.CovarianceNoise(np.ones(3), np.diag(delta) - 0.95 * w)
    )
    best = net.solve()
    s = np.linalg.svd(M, compute_uv=False)
    assert best.status == "optimal"
    assert best.rank == 1
    assert best.objective == pytest.approx(
        s[0] ** 2 * 0.05 * w / (1 + 0.05 * w) + np.sum(s[1:] ** 2)
    )
    assert best.objective <= lowest(net, 20) * (1 + 1e-9)
