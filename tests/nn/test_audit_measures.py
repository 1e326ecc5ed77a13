"""Norms, complexity measures, capacity bounds and the suggested drop probability."""

from itertools import pairwise, product

import numpy as np
import pytest
import torch
from torch import nn

from overt import nn as onn
from overt import penalty
from overt.linear.bounds import numerical_rank, shrink
from overt.nn.auditing import audit, lower
from overt.nn.auditing.capacity import _rank
from overt.nn.auditing.measures import NoPath, _largest, norm_measures, path_norm
from overt.nn.auditing.sums import Mean, Parts, Triangle
from overt.nn.auditing.trace import Trace
from overt.nn.data.batches import Inputs
from overt.nn.recording.recorder import record
from overt.noise import Dropout
from overt.relu.bounds import capacity, flows, positive_norm, rademacher_upper, symmetrized_bound
from overt.spectral import SquaredNuclear


def chain(*sizes, bias=True):
    layers = []
    for a, b in pairwise(sizes):
        layers += [nn.Linear(a, b, bias=bias), nn.ReLU()]
    return nn.Sequential(*layers[:-1]).double()


def enumerated_path_norm(weights, p):
    total = 0.0
    for path in product(*(range(n) for n in [weights[0].shape[1], *(len(W) for W in weights)])):
        weight = np.prod([W[path[i + 1], path[i]] for i, W in enumerate(weights)])
        total += abs(weight) ** p
    return total ** (1 / p)


@pytest.mark.parametrize("p", [1, 2])
def test_path_norm_is_the_norm_over_paths(p):
    torch.manual_seed(0)
    model = chain(3, 4, 2, 2)
    weights = [m.weight.detach().numpy() for m in model if isinstance(m, nn.Linear)]
    expected = enumerated_path_norm(weights, p)
    recording = record(model, torch.zeros(1, 3).double())
    assert path_norm(recording, p) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("p", [1, 2])
@pytest.mark.parametrize("pool", [nn.AvgPool2d(2), nn.MaxPool2d(2), nn.Identity()], ids=str)
def test_path_norm_through_kernels_norms_and_pools(p, pool):
    """One output of a linear network: the norm of its Jacobian's paths, entry by entry."""
    torch.manual_seed(0)
    conv, norm = nn.Conv2d(1, 2, 1), nn.BatchNorm2d(2)
    norm.running_var.uniform_(0.5, 2)
    nn.init.uniform_(norm.weight, -1, 1)
    size = 8 if isinstance(pool, nn.Identity) else 2
    model = nn.Sequential(conv, norm, nn.ReLU(), pool, nn.Flatten(), nn.Linear(size, 1))
    model = model.double().eval()
    scale = norm.weight / torch.sqrt(norm.running_var + norm.eps)
    share = 0.25 if isinstance(pool, nn.AvgPool2d) else 1.0
    total = 0.0
    for c, position in product(range(2), range(4)):
        last = model[5].weight[0, c * (size // 2) + (position if size == 8 else 0)]
        total += float((conv.weight[c, 0, 0, 0] * scale[c] * share * last).detach().abs()) ** p
    x = torch.zeros(1, 1, 2, 2).double()
    assert path_norm(record(model, x), p) == pytest.approx(total ** (1 / p), rel=1e-12)


def test_path_norm_is_the_square_root_of_dropouts_penalty():
    """With uncorrelated inputs of unit variance the penalty of a linear network is lam psi_2^2."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 5, bias=False), nn.Linear(5, 2, bias=False)).double()
    V, U = (m.weight.detach().numpy() for m in model)
    value = penalty.shallow(U, V.T, Dropout(0.5))
    recording = record(model, torch.zeros(1, 3).double())
    assert path_norm(recording, 2) ** 2 == pytest.approx(value, rel=1e-12)


def test_path_norm_names_what_has_no_paths():
    model = nn.Sequential(nn.Linear(3, 3), nn.Softmax(1), nn.Linear(3, 1)).double()
    with pytest.raises(NoPath, match="softmax"):
        path_norm(record(model, torch.zeros(1, 3).double()), 1)


def test_norm_measures_follow_their_formulas():
    rng = np.random.default_rng(0)
    weights = [rng.standard_normal(shape) for shape in [(6, 4), (5, 6), (2, 5)]]
    spectral, bayes, frobenius = (m.value for m in norm_measures(weights, n=50))
    s = [np.linalg.svd(W)[1][0] for W in weights]
    rows = [sum(np.sqrt(sum(w**2 for w in row)) for row in W) for W in weights]
    expected = np.prod(s) * sum((r / t) ** (2 / 3) for r, t in zip(rows, s, strict=True)) ** 1.5
    assert spectral == pytest.approx(expected / np.sqrt(50))
    stable = sum(np.sum(W**2) / t**2 for W, t in zip(weights, s, strict=True))
    assert bayes == pytest.approx(np.prod(s) * np.sqrt(6 * 4 * stable / 50))
    assert frobenius == pytest.approx(
        np.sqrt(2 / 50) * np.prod([np.sqrt(np.sum(W**2)) for W in weights])
    )


@pytest.mark.parametrize("bias", [False, True])
def test_bounds_of_two_layer_networks(bias):
    torch.manual_seed(0)
    rng = np.random.default_rng(0)
    model = chain(4, 20, 1, bias=bias)
    x = torch.tensor(rng.uniform(0, 1, (300, 4)))
    y = torch.sign(x[:, :1] - 0.5)
    report = audit(model, [(x, y)], "squared")
    named = {(b.name.split(",")[0], b.source): b for b in report.bounds}
    X, z = x.numpy(), model[0](x).detach().numpy()
    U = model[2].weight.detach().numpy()
    if bias:
        X = np.hstack([X, np.ones((300, 1))])
        z = np.hstack([z, np.ones((300, 1))])
        U = np.hstack([U, model[2].bias.detach().numpy()[:, None]])
    alpha = capacity(flows(U, z / np.sqrt(2)))
    norm = positive_norm(X)
    found = named["Rademacher complexity", "Thesis, Theorem 12 with beta = 1/2"]
    best = rademacher_upper(capacity(flows(U, np.maximum(z, 0))), norm, 300, 0.5)
    assert found.value == pytest.approx(best)  # the later of the two with this name
    risk = named["expected squared error", "Thesis, Corollary 3"]
    limit = symmetrized_bound(0.0, alpha, norm, 300)
    assert limit.value <= risk.value <= limit.value + 2 * 4
    assert risk.vacuous
    assert risk.unmet


def test_frobenius_bound_holds_for_random_signs():
    """The supremum over the class is at least that over scalings of one network."""
    torch.manual_seed(0)
    model = chain(4, 8, 8, 1)
    x = torch.randn(100, 4).double()
    report = audit(model, [(x, x[:, :1])], "squared")
    bound = next(b for b in report.bounds if "Golowich" in b.source)
    signs = np.sign(np.random.default_rng(0).standard_normal((2000, 100)))
    correlation = np.abs(signs @ model(x).detach().numpy()[:, 0]) / 100
    assert correlation.mean() < bound.value
    assert not bound.unmet


def test_suggestion_is_the_best_ridge_on_rows_held_out():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 40), nn.ReLU(), nn.Dropout(0.5), nn.Linear(40, 2)).double()
    x = torch.randn(120, 6).double()
    y = x[:, :2] + 1.5 * torch.randn(120, 2).double()
    report = audit(model, [(x[:50], y[:50]), (x[50:], y[50:])], "squared")
    h = torch.relu(model[0](x)).detach().numpy()
    held = np.arange(120) % 5 == 4
    train, truth = h[~held], y.numpy()[~held]
    errors = []
    for p in report.suggestion.drop_probs:
        # Rows of sqrt(lam mean(h^2)) are the penalty; the bias is an unpenalized column.
        extra = np.diag(np.sqrt(p / (1 - p) * (train**2).sum(0)))
        A = np.block([[train, np.ones((len(train), 1))], [extra, np.zeros((40, 1))]])
        B = np.vstack([truth, np.zeros((40, 2))])
        W = np.linalg.lstsq(A, B, rcond=None)[0]
        groups = np.arange(120)[held] // 5 % 5
        left = np.hstack([h[held], np.ones((held.sum(), 1))]) @ W - y.numpy()[held]
        errors.append(np.mean([np.sum(left[groups == g] ** 2, 1).mean() for g in range(5)]))
    np.testing.assert_allclose(report.suggestion.holdout, errors, rtol=1e-6)
    best = report.suggestion.drop_probs[np.argmin(errors)]
    assert report.suggestion.drop_prob == best > 0
    low, high = report.suggestion.plausible
    assert low <= best <= high
    assert list(report.suggestion.predicted_rank) == sorted(
        report.suggestion.predicted_rank, reverse=True
    )


def test_best_last_layer_is_a_minimum():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), onn.Dropout(0.3), nn.Linear(6, 2)).double()
    x = torch.randn(50, 4).double()
    y = torch.randn(50, 2).double()
    h = torch.relu(model[0](x)).detach().numpy()
    extra = np.diag(np.sqrt(3 / 7 * (h**2).sum(0)))
    A = np.block([[h, np.ones((50, 1))], [extra, np.zeros((6, 1))]])
    B = np.vstack([y.numpy(), np.zeros((6, 2))])
    expected = np.linalg.lstsq(A, B, rcond=None)[1].sum() / 50
    report = audit(model, [(x, y)], "squared")
    assert report.head.lower_bounds[1].value == pytest.approx(expected)


def test_triangle_keeps_small_singular_values():
    rng = np.random.default_rng(0)
    left = np.linalg.qr(rng.standard_normal((5000, 3)))[0] * np.sqrt(5000)
    A = left * [1.0, 1e-6, 1e-11] @ np.linalg.qr(rng.standard_normal((3, 3)))[0]
    triangle = Triangle(3)
    for rows in torch.tensor(A).split(313):
        triangle.add(rows)
    found = np.linalg.svd(triangle.value())[1]
    np.testing.assert_allclose(found, [1.0, 1e-6, 1e-11], rtol=1e-4)
    assert triangle.rows == 5000


def test_running_sums_do_not_depend_on_the_batches():
    values = torch.tensor(np.random.default_rng(0).standard_normal(1000) + 100)
    mean = Mean()
    for part in values.split(77):
        mean.add(part)
    assert mean.value == pytest.approx(float(values.mean()), rel=1e-12)
    assert mean.error == pytest.approx(float(values.std()) / np.sqrt(1000), rel=1e-9)
    parts = Parts(1, 1)
    for part in values.split(77):
        parts.add(part[:, None], part[:, None])
    total, n = parts.moments(list(range(Parts.PARTS)))
    assert n == 1000
    assert total[1, 2] == pytest.approx(float((values**2).sum()), rel=1e-12)
    assert parts.moments([0])[1] == 800


class Skip(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b, self.drop = nn.Linear(3, 3), nn.Linear(3, 2), nn.Dropout(0.2)

    def forward(self, x):
        return self.b(self.a(x) + self.drop(torch.relu(self.a(x))))


class Scaled(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b, self.drop = nn.Linear(3, 4), nn.Linear(4, 2, bias=False), nn.Dropout(0.2)

    def forward(self, x):
        return 2 * self.b(self.drop(torch.tanh(self.a(x)))) / 3


# model, noises in the tail, whether biases are behind the first, what the trunk is
TAILS = {
    "plain": (lambda: chain(3, 4, 2), [], None, "any"),
    "last": (
        lambda: nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Dropout(0.2), nn.Linear(4, 2)),
        ["2"], True, "any",
    ),
    "no-bias": (
        lambda: nn.Sequential(nn.Dropout(0.2), nn.Linear(3, 2, bias=False)), ["0"], False, "fixed"
    ),
    "linear": (
        lambda: nn.Sequential(nn.Linear(3, 4), nn.Dropout(0.2), nn.Linear(4, 2)), ["1"], True,
        "affine",
    ),
    "two": (
        lambda: nn.Sequential(
            nn.Linear(3, 4), nn.ReLU(), nn.Dropout(0.2), nn.Linear(4, 4), nn.Dropout(0.2),
            nn.Linear(4, 2, bias=False),
        ),
        ["4", "2"], False, "any",
    ),
    "beside": (Skip, [], None, "any"),
    "scaled": (Scaled, ["drop"], False, "any"),
}  # fmt: skip


@pytest.mark.parametrize("name", TAILS)
def test_tails_and_trunks(name):
    build, noises, shifted, kind = TAILS[name]
    model = build().float().eval()
    trace = Trace(model, Inputs((torch.randn(2, 3),)))
    tail = trace.tail(log_softmax=False)
    assert [point.noise for point in tail.noises] == noises
    if noises:
        assert tail.noises[0].shifted is shifted
        assert trace.trunk(tail.noises[0]).kind == kind
    assert tail.linear is not None


@pytest.mark.parametrize("bias", [True, False])
def test_one_path_of_ridge_regressions_is_each_of_them(bias):
    """By second moments, by few rows and one by one; a unit that is always 0 stays so."""
    rng = np.random.default_rng(0)
    rows = np.concatenate([np.ones((30, 1)), rng.standard_normal((30, 7)) + 1], 1)
    rows[:, 3] = 0
    strengths = np.array([0.05, 1.0, 9.0])
    ridge = lower.Ridge(rows.T @ rows, 30, 5, bias=bias)
    found = ridge.path(strengths), lower.few_rows(rows, 5, strengths, bias=bias)
    for i, s in enumerate(strengths):
        U, b = ridge.best(lambda C, s=s: s * np.diag(np.diag(C)))
        for paths in found:
            np.testing.assert_allclose(paths[0][i], U, atol=1e-9)
            np.testing.assert_allclose(paths[1][i], b, atol=1e-9)
        error = np.mean(np.sum((rows[:, 6:] - b - rows[:, 1:6] @ U.T) ** 2, 1))
        assert ridge.objective(U, b) == pytest.approx(error)
    assert not found[0][0][:, :, 2].any()


def test_shifted_systems_of_singular_matrices_are_solved_by_the_least_solution():
    A = np.random.default_rng(0).standard_normal((6, 3))
    M, B = A @ A.T / 10, A @ np.ones((3, 2))
    for size in (6, 2):
        part, right = M[:size, :size], B[:size]
        found = lower.shifted(part, right, np.array([0.0, 0.3]))
        np.testing.assert_allclose(found[0], np.linalg.pinv(part) @ right, rtol=1e-4, atol=1e-4)
        np.testing.assert_allclose((part + 0.3 * np.eye(size)) @ found[1], right, atol=1e-9)
    rounded = lower.shifted(M - 1e-7 * np.eye(6), B, np.zeros(1))[0]
    np.testing.assert_allclose(rounded, np.linalg.pinv(M) @ B, rtol=1e-2, atol=1e-2)


def test_ranks_that_survive_are_those_of_the_shrunk_spectrum():
    m, weights = np.array([3.0, 1.0, 0.9, 0.1, 0.0]), np.array([0.0, 0.1, 0.5, 3.0, 1e6])
    spectra = [shrink(m, (w, SquaredNuclear())) for w in weights]
    assert lower.surviving(m, weights).tolist() == [numerical_rank(s) for s in spectra]
    assert lower.surviving(np.zeros(3), weights).tolist() == [0] * 5


def test_norms_of_large_matrices_and_ranks_of_triangles():
    W = np.random.default_rng(0).standard_normal((150, 200))
    assert _largest(W) == pytest.approx(np.linalg.norm(W, 2), rel=1e-9)
    assert _largest(0 * W) == 0
    R = np.linalg.qr(np.concatenate([np.ones((200, 1)), W.T[:, :20]], 1), mode="r")
    assert (_rank(R, 0, 21), _rank(R, 1, 21)) == (21, 20)
    R[:, 7] = R[:, 3] + R[:, 5]
    assert (_rank(R, 0, 21), _rank(R, 1, 21)) == (20, 19)
