"""The last layer in an audit: bounds that no objective is below, its spectra and its noise."""

import copy

import numpy as np
import pytest
import torch
from audit_models import X, Y, batches, mlp, numbers, small
from hypothesis import given, settings
from hypothesis import strategies as st
from nn_oracles import Multiplied, all_multipliers, outputs_under_masks
from sklearn.datasets import load_digits
from torch import nn

import overt
from overt import nn as onn
from overt.nn import audit, explicit_penalty

K, D = 3, 6


def net(*layers):
    return nn.Sequential(*layers)


def tanh(width=D):
    return nn.Linear(4, width), nn.Tanh()


# Networks with exact objectives, and the noise that the bound comes from.
NETWORKS = {
    "bias": lambda: net(*tanh(), nn.Dropout(0.4), nn.Linear(D, K)),
    "no-bias": lambda: net(*tanh(), nn.Dropout(0.4), nn.Linear(D, K, bias=False)),
    "narrow": lambda: net(*tanh(2), nn.Dropout(0.4), nn.Linear(2, K)),
    "two-maps-behind": lambda: net(
        *tanh(), onn.Dropout(0.4), nn.Linear(D, 2), nn.Linear(2, K)
    ),
    "outputs": lambda: net(*tanh(K), nn.Dropout(0.4)),
    "grid": lambda: net(
        *tanh(),
        nn.Unflatten(1, (1, D)),
        onn.DropBlock1d(0.4, 2, placement="grid"),
        nn.Flatten(),
        nn.Linear(D, K),
    ),
    "grid-cut": lambda: net(
        *tanh(),
        nn.Unflatten(1, (1, D)),
        onn.DropBlock1d(0.4, 4, placement="grid"),
        nn.Flatten(),
        nn.Linear(D, K),
    ),
    "sliding": lambda: net(
        *tanh(),
        nn.Unflatten(1, (2, 3)),
        onn.DropBlock1d(0.4, 2),
        nn.Flatten(),
        nn.Linear(D, K),
    ),
    "sliding-shared": lambda: net(
        *tanh(),
        nn.Unflatten(1, (2, 3)),
        onn.DropBlock1d(0.4, 2, shared_axes=1),
        nn.Flatten(),
        nn.Linear(D, K),
    ),
    "grid-2d": lambda: net(
        *tanh(),
        nn.Unflatten(1, (1, 2, 3)),
        onn.DropBlock2d(0.4, 2, placement="grid"),
        nn.Flatten(),
        nn.Linear(D, K),
    ),
    "columns": lambda: net(
        *tanh(),
        nn.Unflatten(1, (1, 2, 3)),
        onn.DropBlock2d(0.4, (2, 1)),
        nn.Flatten(),
        nn.Linear(D, K),
    ),
    "channels": lambda: net(
        *tanh(),
        nn.Unflatten(1, (3, 1, 2)),
        nn.Dropout2d(0.4),
        nn.Flatten(),
        nn.Linear(D, K),
    ),
    "covariance": lambda: net(
        *tanh(3),
        onn.CovarianceDropout(
            [1.0, -2.0, 0.5], [[0.5, 0.2, -0.1], [0.2, 0.4, 0.1], [-0.1, 0.1, 0.3]]
        ),
        nn.Linear(3, K),
    ),
    "connect": lambda: net(*tanh(), onn.DropConnectLinear(D, K, drop_prob=0.4)),
    "input": lambda: net(nn.Dropout(0.4), nn.Linear(4, K)),
    "linear": lambda: net(nn.Linear(4, D), nn.Dropout(0.4), nn.Linear(D, K)),
    "deep-linear": lambda: net(
        nn.Linear(4, D),
        nn.Dropout(0.3),
        nn.Linear(D, D),
        nn.Dropout(0.4),
        nn.Linear(D, K),
    ),
    "two-in-tail": lambda: net(
        *tanh(), nn.Dropout(0.3), nn.Linear(D, D), nn.Dropout(0.4), nn.Linear(D, K)
    ),
}


def data(rng, n=12):
    x = torch.tensor(rng.standard_normal((n, 4)) + 0.5)
    return x, torch.tensor(
        rng.standard_normal((n, K)) @ rng.standard_normal((K, K)) + 1.0
    )


def exact_objective(model, x, y):
    penalty = explicit_penalty(model.eval(), x)
    assert penalty.exact
    return ((model(x) - y) ** 2).sum(1).mean() + penalty.value


def descended(model, x, y, steps):
    optimizer = torch.optim.LBFGS(
        model.parameters(), max_iter=steps, line_search_fn="strong_wolfe"
    )

    def closure():
        optimizer.zero_grad()
        value = exact_objective(model, x, y)
        value.backward()
        return value

    optimizer.step(closure)
    return model


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("steps", [0, 25], ids=["random", "descended"])
def test_no_objective_is_below_the_bound(name, steps):
    rng = np.random.default_rng(len(name))
    for seed in range(2):
        torch.manual_seed(seed)
        model = NETWORKS[name]().double()
        x, y = data(rng)
        if steps:
            descended(model, x, y, steps)
        else:
            for parameter in model.parameters():
                parameter.data *= float(rng.uniform(0.1, 3))
        report = audit(model, [(x[:5], y[:5]), (x[5:], y[5:])], "squared")
        objective = float(exact_objective(model, x, y).detach())
        assert 0 < report.head.lower_bound <= objective * (1 + 1e-9)
        assert report.objective == pytest.approx(objective, rel=1e-9)
        assert all(noise.exact for noise in report.noises)


def test_training_through_batch_statistics_ends_below_no_bound():
    """A bound of .11 was called proved; training with normalization behind the noise had .00003."""
    torch.manual_seed(0)
    x, y = torch.eye(2), torch.tensor([[1.0], [-1.0]])
    norm = nn.BatchNorm1d(4)
    model = net(
        nn.Linear(2, 8), nn.Dropout(0.5), nn.Linear(8, 4), norm, nn.Linear(4, 1)
    )
    optimizer = torch.optim.Adam(model.parameters(), 0.02)
    for _ in range(300):
        optimizer.zero_grad()
        ((model(x) - y) ** 2).mean().backward()
        optimizer.step()
    with torch.no_grad():
        reached = np.mean([float(((model(x) - y) ** 2).mean()) for _ in range(300)])
    for mode in (True, False):
        report = audit(model.train(mode), (x, y), "squared")
        assert report.head.lower_bound <= reached < 0.1
        assert "normalizes by each batch" in dict(report.skipped)["3"]
    # Frozen by the user, it is affine, and the bound is the one without it.
    model.train()
    norm.eval()
    frozen = audit(model, (x, y), "squared")
    del model[3]
    assert frozen.head.lower_bound == audit(model, (x, y), "squared").head.lower_bound
    assert (frozen.head.lower_bound, frozen.skipped) == (pytest.approx(1 / 9), ())


@settings(max_examples=20)
@given(
    seed=st.integers(0, 10_000),
    name=st.sampled_from(sorted(NETWORKS)),
    scale=st.floats(1e-2, 10),
    loss=st.sampled_from(["squared", "mse"]),
)
def test_bound_is_below_for_any_weights(seed, name, scale, loss):
    torch.manual_seed(seed)
    model = NETWORKS[name]().double()
    for parameter in model.parameters():
        parameter.data *= scale
    x, y = data(np.random.default_rng(seed))
    report = audit(model, [(x, y)], loss)
    objective = float(exact_objective(model, x, y).detach()) / (
        K if loss == "mse" else 1
    )
    assert report.head.lower_bound <= objective * (1 + 1e-9)


@pytest.mark.parametrize("drop_prob", [0.2, 0.6])
def test_free_features_reach_the_bound(drop_prob):
    """One input per sample makes the first layer a table of features of any kind."""
    n, rng = 12, np.random.default_rng(0)
    y = torch.tensor(rng.standard_normal((n, K)))
    torch.manual_seed(0)
    model = net(
        nn.Linear(n, D, bias=False), nn.Dropout(drop_prob), nn.Linear(D, K)
    ).double()
    x = torch.eye(n, dtype=torch.float64)
    descended(model, x, y, 1000)
    report = audit(model, [(x, y)], "squared")
    s = np.linalg.svd(y - y.mean(0), compute_uv=False) / np.sqrt(n)
    weight, norm = overt.spectral.induced(overt.Dropout(drop_prob), D)
    shrunk = norm.prox(s, weight)
    bound = np.sum((s - shrunk) ** 2) + weight * norm.value(shrunk)
    assert report.objective == pytest.approx(bound, rel=1e-3)
    assert report.head.lower_bound <= report.objective


@pytest.mark.parametrize(
    ("layer", "noise"),
    [
        (nn.Dropout(0.4), overt.Dropout(0.4)),
        (onn.DropBlock1d(0.4, 2, placement="grid"), overt.DropBlock(0.4, 2)),
        (onn.DropBlock1d(0.4, 2), overt.DropBlock(0.4, 2, "sliding")),
    ],
)
def test_agrees_with_the_certificate_of_linear_networks(layer, noise):
    torch.manual_seed(0)
    shaped = (
        [nn.Unflatten(1, (1, D)), layer, nn.Flatten()]
        if isinstance(layer, onn.DropBlock1d)
        else [layer]
    )
    model = net(
        nn.Linear(4, D, bias=False), *shaped, nn.Linear(D, K, bias=False)
    ).double()
    x, y = data(np.random.default_rng(2), 4)  # no target is beyond linear features
    report = audit(model, [(x, y)], "squared")
    U, V = model[-1].weight.detach().numpy(), model[0].weight.detach().numpy().T
    certificate = overt.LinearNetwork(
        X=x.numpy(), Y=y.numpy(), width=D, noise=noise
    ).certify(U, V)
    assert report.objective == pytest.approx(certificate.objective, rel=1e-9)
    bound = report.head.lower_bound
    if isinstance(noise, overt.DropBlock) and noise.placement == "sliding":
        # The certificate has a tighter bound for correlated noise; both count the noise.
        assert 0 < bound < certificate.lower_bound
    else:
        assert bound == pytest.approx(certificate.lower_bound, rel=1e-9)


def test_blocks_along_either_axis_of_a_map_have_the_same_bound():
    """Units of a map have no order: a bound that needs one must not depend on it."""
    x, y = data(np.random.default_rng(4), 30)
    bounds = []
    for shape, block in (((1, 2, 3), (1, 2)), ((1, 3, 2), (2, 1))):
        drop = onn.DropBlock2d(0.3, block)
        model = net(
            *tanh(), nn.Unflatten(1, shape), drop, nn.Flatten(), nn.Linear(D, K)
        )
        bounds.append(audit(model.double(), (x, y), "squared").head.lower_bound)
    assert bounds[0] == pytest.approx(bounds[1], rel=1e-9)
    assert bounds[0] > 0


def test_below_every_checkpoint_of_a_run():
    digits = load_digits()
    x = torch.tensor(digits.images / 16, dtype=torch.float32)[:600]
    y = torch.tensor(digits.target)[:600]
    torch.manual_seed(0)
    model = mlp()
    target = nn.functional.one_hot(y, 10).float()
    optimizer = torch.optim.Adam(model.parameters(), 3e-3)
    bounds, objectives, errors = [], [], []
    for step in range(121):
        if step % 20 == 0:
            report = audit(model, [(x[:300], y[:300]), (x[300:], y[300:])], "squared")
            bounds.append(report.head.lower_bound)
            objectives.append(report.objective)
            errors.append(report.objective_error)
        optimizer.zero_grad()
        ((model.train()(x) - target) ** 2).sum(1).mean().backward()
        optimizer.step()
    assert objectives[-1] < objectives[0] / 2
    np.testing.assert_allclose(
        bounds, bounds[0], rtol=1e-12
    )  # it depends on data and noise only
    assert np.all(np.array(bounds) <= np.array(objectives) - 5 * np.array(errors))


def test_objective_of_correlated_noise_by_enumeration():
    torch.manual_seed(0)
    model = NETWORKS["sliding"]().double()
    x, y = data(np.random.default_rng(3))
    outputs, prob = outputs_under_masks(model, "3", x)
    expected = float(prob @ ((outputs - y) ** 2).sum(2).mean(1))
    assert audit(model, [(x, y)], "squared").objective == pytest.approx(
        expected, rel=1e-9
    )


def test_objective_of_blocks_behind_units_by_enumeration():
    torch.manual_seed(0)
    blocks = [nn.Unflatten(1, (1, D)), onn.DropBlock1d(0.4, 2, placement="grid")]
    last = (nn.Flatten(), nn.Linear(D, K))
    model = net(*tanh(), nn.Dropout(0.3), nn.Linear(D, D), *blocks, *last).double()
    x, y = data(np.random.default_rng(3), 5)
    multipliers, probs = all_multipliers(model[2], (D,))
    expected = 0.0
    for multiplier, prob in zip(multipliers, probs, strict=True):
        fixed = copy.deepcopy(model)
        fixed[2] = Multiplied(torch.as_tensor(multiplier))
        outputs, inner = outputs_under_masks(fixed, "5", x)
        losses = ((outputs - y) ** 2).sum(2).mean(1)
        expected += prob * float(inner @ losses)
    report = audit(model, [(x, y)], "squared")
    assert [noise.exact for noise in report.noises] == [True, True]
    assert report.objective == pytest.approx(expected, rel=1e-9)
    assert report.head.lower_bound < expected


def test_penalties_of_all_noises_in_an_affine_tail_are_exact():
    """Two dropouts around a linear layer were sampled: an objective stood below its bound."""
    torch.manual_seed(0)
    blocks = [nn.Unflatten(1, (2, 3)), onn.DropBlock1d(0.4, 2), nn.Flatten()]
    for first in ([nn.Dropout(0.3)], blocks):
        last = (nn.Linear(D, D), onn.Dropout(0.4), nn.Linear(D, K))
        model = net(*tanh(), *first, *last).double()
        x, y = data(np.random.default_rng(0))
        report = audit(model, (x, y), "squared")
        terms = explicit_penalty(model, x).terms
        for noise, term in zip(report.noises, terms, strict=True):
            assert (noise.exact, noise.penalty_error) == (True, 0)
            assert noise.penalty == pytest.approx(term.value.item(), rel=1e-9)
        assert report.objective_error == report.head.gap_error == 0


def test_the_gap_of_a_sampled_objective_has_its_error():
    torch.manual_seed(0)
    model = net(nn.Dropout(0.3), *tanh(), nn.Dropout(0.4), nn.Linear(D, K)).double()
    report = audit(model, data(np.random.default_rng(0)), "squared")
    assert [noise.exact for noise in report.noises] == [False, True]
    assert report.head.gap_error == report.objective_error > 0
    assert f"gap {report.head.gap:.4g} ± {report.head.gap_error:.1g}" in str(report)


def test_noise_behind_the_last_layer_leaves_no_bound():
    model = nn.Sequential(nn.Linear(5, 3), nn.RReLU())
    assert audit(model, [(X, Y)], "squared").head is None
    model = nn.Sequential(nn.Linear(5, 8), nn.RReLU(), nn.Linear(8, 3))
    assert audit(model, [(X, Y)], "squared").head is not None


def test_one_module_used_twice_in_the_tail():
    drop = nn.Dropout(0.4)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 8), drop, nn.Linear(8, 6), drop, nn.Linear(6, 3))
    x, y = numbers()
    report = audit(model, batches(x, y), "squared")
    assert report.head.width == 6
    assert 0 < report.head.lower_bound < report.objective - 5 * report.objective_error


def test_best_last_layer_is_a_minimum():
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(4, 6), nn.ReLU(), onn.Dropout(0.3), nn.Linear(6, 2)
    ).double()
    x = torch.randn(50, 4).double()
    y = torch.randn(50, 2).double()
    h = torch.relu(model[0](x)).detach().numpy()
    extra = np.diag(np.sqrt(3 / 7 * (h**2).sum(0)))
    A = np.block([[h, np.ones((50, 1))], [extra, np.zeros((6, 1))]])
    B = np.vstack([y.numpy(), np.zeros((6, 2))])
    expected = np.linalg.lstsq(A, B, rcond=None)[1].sum() / 50
    report = audit(model, [(x, y)], "squared")
    assert report.head.best_last_layer == pytest.approx(expected)


def test_without_dropout_there_is_still_a_head():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 12), nn.Tanh(), nn.Linear(12, 3))
    x, y = numbers()
    report = audit(model, batches(x, y), "squared")
    assert report.noises == ()
    assert report.objective == report.plain_loss
    assert report.head.lower_bound == 0
    assert "no noise layer" in str(report)


def test_without_a_linear_head_the_gap_is_stated():
    model = nn.Sequential(nn.Linear(5, 3), nn.Dropout(0.2), nn.Tanh())
    report = audit(model, [(X, Y)], "squared")
    assert report.head is None
    assert ("the last layer", "tanh") in [
        (who, why.split()[4].strip(",")) for who, why in report.skipped
    ]
    assert "tanh" in str(report)


def test_a_single_row():
    report = audit(small(), [(X[:1], torch.tensor([2]))], "squared")
    assert report.samples == 1
    assert report.head.lower_bound == pytest.approx(0, abs=1e-4)  # a bias fits it


def test_a_model_that_is_a_noise():
    report = audit(nn.Dropout(0.5), [(X, X)], "squared")
    assert report.head.lower_bound <= report.objective
    assert report.objective == pytest.approx(float((X**2).sum(1).mean()), rel=1e-5)
