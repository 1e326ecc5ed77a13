"""What rows and outputs have in common makes sampled standard deviations better."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from overt.nn import mc_moments, predictive_moments
from overt.nn.moments.common import LIMIT, believed, energies
from overt.nn.moments.samples import Samples

SHAPES = [(4, 5), (1, 6), (7, 1), (1, 1), (2, 3), (30, 4)]


def bases(rows, outputs):
    """Orthonormal bases of the four parts, of flattened tables."""

    def split(n):
        q = np.linalg.qr(np.column_stack([np.ones(n), np.eye(n)[:, 1:]]))[0]
        return q[:, :1], q[:, 1:]

    (a, b), (c, d) = split(rows), split(outputs)
    return [np.kron(left, right) for left, right in ((a, c), (b, c), (a, d), (b, d))]


@pytest.mark.parametrize("shape", SHAPES)
def test_energies_are_those_of_projections(shape):
    tables = np.random.default_rng(0).normal(size=(3, *shape)) + 0.5
    expected = [np.sum((tables.reshape(3, -1) @ basis) ** 2) for basis in bases(*shape)]
    np.testing.assert_allclose(energies(tables), expected, atol=1e-12)
    np.testing.assert_allclose(energies(tables).sum(), np.sum(tables**2))


@pytest.mark.parametrize("shape", SHAPES)
def test_each_part_is_shrunk_by_the_rule_of_james_and_stein(shape):
    rng = np.random.default_rng(1)
    d, s = rng.normal(size=shape) + 2, 0.3
    spread = rng.dirichlet([2, 2, 2, 2])
    found, left = believed(d, s, spread)
    expected, kept = np.zeros(d.size), []
    for i, (basis, share) in enumerate(zip(bases(*shape), spread, strict=True)):
        at, p = basis.T @ d.ravel(), basis.shape[1]
        noise = s**2 * share * d.size / max(p, 1)
        factor = 1.0 if i == 0 or p < 3 else max(0.0, 1 - (p - 2) * noise / np.sum(at**2))
        expected += basis @ (factor * at)
        kept.append(max(factor, min(1.0, 2 / max(p, 1))))
    expected = np.clip(expected.reshape(shape), d - LIMIT * s, d + LIMIT * s)
    np.testing.assert_allclose(found, expected, atol=1e-12)
    np.testing.assert_allclose(left, s * np.sqrt(np.dot(spread, kept)))


@pytest.mark.parametrize("own", [0.0, 0.1, 1.0])
def test_errors_are_smaller_and_as_large_as_they_say(own):
    rng, s, shape = np.random.default_rng(2), 0.2, (6, 5)
    free = np.array([1, 5, 4, 20]) / 30  # errors of all cells are independent
    off, said = [], []
    for _ in range(400):
        truth = 1 + rng.normal(size=(6, 1)) + rng.normal(size=(1, 5)) + own * rng.normal(size=shape)
        found, left = believed(truth + s * rng.normal(size=shape), s, free)
        off.append(np.mean((found - truth) ** 2))
        said.append(left**2)
    error = np.std(off) / 20
    assert np.mean(off) <= s**2 + 5 * error
    assert own > 0.5 or np.mean(off) + 5 * error < 0.75 * s**2
    assert 0.95 < np.mean(said) / np.mean(off) < 1.25


@pytest.mark.parametrize("side", [1, -1])
def test_one_cell_apart_stays_apart(side):
    d = 0.1 * np.random.default_rng(3).normal(size=(40, 30))
    d[7, 9] += side
    found, _ = believed(d, 0.1, np.array([1, 39, 29, 39 * 29]) / 1200)
    assert found[7, 9] == pytest.approx(d[7, 9] - side * LIMIT * 0.1)
    assert np.abs(found).mean() < 0.5 * np.abs(d).mean()


def test_sampled_deviations_are_shrunk_and_plain_ones_are_not():
    """Of outputs that vary alike: nearer to the truth than those of Monte Carlo dropout."""
    torch.manual_seed(0)
    model = nn.LSTM(4, 32, num_layers=2, dropout=0.5, batch_first=True)
    mix = torch.linalg.qr(torch.randn(32, 6))[0]
    x, pick = torch.randn(1, 5, 4).expand(6, 5, 4), lambda y: y[0][:, -1] @ mix
    truth = mc_moments(model, x, 4000, output=pick, seed=1).std
    off = []
    for draws in (None, 40):
        found = [
            mc_moments(model, x, 40, output=pick, seed=i) if draws is None
            else predictive_moments(model, x, output=pick, draws=40)
            for i in range(12)
        ]  # fmt: skip
        off.append(
            float(np.mean([float((one.std.log() - truth.log()).square().mean()) for one in found]))
        )
        near = [(one.std - truth).abs() <= one.std_error for one in found]
        assert torch.stack(near).double().mean() > 0.88
    assert off[1] < 0.85 * off[0]


def test_spread_is_that_of_squares_over_parts():
    rng = np.random.default_rng(4)
    samples = Samples(None, None, None, covariance=False)
    samples.copies, samples._like = 50, torch.empty(0, dtype=torch.float64)
    y = rng.normal(size=(50, 3, 1)) * np.array([1.0, 2.0])  # both outputs of a row are one
    samples._add(y)
    log, error = samples.shrunk()
    raw = np.log(y.var(0, ddof=1)) / 2
    np.testing.assert_allclose(log[:, 1] - log[:, 0], np.log(2))
    np.testing.assert_allclose(log.mean(), raw.mean())
    assert np.all(np.abs(log - raw) <= LIMIT * samples.errors[1] + 1e-12)
    assert 0 < error <= samples.errors[1] * (1 + 1e-12)
    above = 0.7 * np.arange(6).reshape(3, 2)
    moved, _ = samples.shrunk(raw + 1 + above)  # nothing in common with that
    np.testing.assert_allclose(moved.mean(), raw.mean())


def test_fair_signs_and_outputs_that_do_not_vary_are_left_alone():
    samples = Samples(None, None, None, covariance=False)
    samples.copies, samples._like = 4, torch.empty(0, dtype=torch.float64)
    samples._add(np.array([1.0, -1.0, 1.0, -1.0])[:, None, None] * np.ones((4, 3, 2)))
    found = samples.moments(shrunk=True)
    np.testing.assert_allclose(found.variance, 4 / 3)
    still = Samples(None, None, None, covariance=False)
    still.copies, still._like = 4, torch.empty(0, dtype=torch.float64)
    y = np.random.default_rng(5).normal(size=(4, 3, 2)) * [1.0, 0.0]
    still._add(y)
    np.testing.assert_allclose(still.moments(shrunk=True).variance, y.var(0, ddof=1))


class Coin(nn.Module):
    """All rows are doubled or none, then each number meets noise of its own."""

    def __init__(self, prob):
        super().__init__()
        self.prob, self.weight = prob, nn.Parameter(torch.ones(()))

    def forward(self, x):
        x = x * self.weight
        y = 2 * x if torch.rand(()) < self.prob else x
        return y + torch.randn(x.shape) * 0.7


def test_copies_that_share_a_coin_tell_more_and_are_worth_what_they_say():
    """E = x (1 + p), Var = x^2 p (1 - p) + .49."""
    x, p = torch.tensor([[0.5, -1.0], [2.0, 0.1], [0.3, 0.4]]), 0.3
    mean, variance = x * (1 + p), x**2 * p * (1 - p) + 0.49
    model, found = Coin(p), []
    for seed in range(60):
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            samples = Samples(model, x, None, covariance=False)
            samples.draw(40)
        assert (samples._each, samples.count) == (8, 40)
        found.append((samples.mean, samples.variance, samples.moments()))
    for at, truth in enumerate((mean, variance)):
        many = torch.stack([one[at] for one in found])
        error = many.std(0) / len(many) ** 0.5
        assert ((many.mean(0) - truth).abs() <= 5 * error).all()
    off = torch.stack([(one[2].std / variance.sqrt()).log() for one in found])
    own = off[:, 2:].std()  # of a row that the coin hardly moves: 8 copies count nearly as 8
    assert own < 0.6 / (2 * 40) ** 0.5
    for name, truth in (("mean", mean), ("std", variance.sqrt())):
        near = [(getattr(m, name) - truth).abs() <= getattr(m, f"{name}_error") for *_, m in found]
        assert torch.stack(near).double().mean() > 0.88
    together = Samples(model, x, None, covariance=True)
    torch.manual_seed(7)
    together.draw(600)
    expected = x[:, :, None] * x[:, None, :] * p * (1 - p) + 0.49 * torch.eye(2)
    torch.testing.assert_close(together.variance, expected, rtol=0.2, atol=0.1)


class Meeting(nn.Module):
    """Rows that meet by noise alone: a mean of noisy rows decides, or rows are mixed."""

    def __init__(self, how):
        super().__init__()
        self.how, self.weight = how, nn.Parameter(torch.ones(()))

    def forward(self, x):
        x = x * self.weight
        if not self.training:
            return x
        if self.how == "mean":
            h = nn.functional.dropout(x)
            return h if h.mean() > x.mean() else 3 * h
        coin = torch.rand(())  # which rows share
        mixed = x[torch.randperm(len(x)) if self.how == "mixed" else torch.rand(len(x)).argsort()]
        return x + coin * mixed


@pytest.mark.parametrize("how", ["mean", "mixed", "sorted"])
def test_copies_do_not_stand_beside_each_other_where_noise_lets_rows_meet(how):
    torch.manual_seed(0)
    model, x = Meeting(how), torch.randn(4, 3)
    samples = Samples(model, x, None, covariance=False)
    samples.draw(800)
    assert (samples._each, samples._alone) == (1, True)
    model.train()
    with torch.no_grad():
        plain = torch.stack([model(x) for _ in range(2000)])
    torch.testing.assert_close(samples.variance.sqrt(), plain.std(0), rtol=0.2, atol=0.02)


@pytest.mark.parametrize("shared", [0.0, 1.5])
@pytest.mark.parametrize(("copies", "each", "groups"), [
    (1, 1, 3), (2, 1, 3), (1, 2, 3), (2, 2, 2), (3, 8, 2), (2, 3, 1), (5, 2, 4),
])  # fmt: skip
def test_sums_of_copies_that_share_a_pass_are_those_of_all(copies, each, groups, shared):
    """`each` copies to a pass, `copies` passes to a group: what they do not share is averaged."""
    rng = np.random.default_rng(6)
    y = rng.normal(size=(copies, each, groups, 3, 2))
    y = y * [1, 3] + shared * rng.normal(size=(copies, 1, groups, 1, 1)) + 0.7
    samples = Samples(None, None, None, covariance=False)
    samples.copies, samples._each, samples._alone = copies, each, True
    blocks = [block for block in (y[:, :, :2], y[:, :, 2:]) if block.size]
    fourth, spread, apart, seen = 0.0, np.zeros(4), 0.0, []
    for block in blocks:
        samples._add(block.reshape(-1, 3, 2))
        seen.append(block)
        off = (block - np.concatenate(seen, 2).mean((0, 1, 2))) ** 2  # from the mean so far
        fourth = fourth + (off**2).sum((0, 1, 2))
        off = off / off.mean((0, 1, 2)) - 1
        apart += np.sum(off**2) / each
        flat = off.mean(1).reshape(-1, 6)
        spread += [np.sum((flat @ basis) ** 2) for basis in bases(3, 2)]
    middle = y.mean((0, 1))
    within = np.sum((y - middle) ** 2, (0, 1, 2))
    if groups > 1:
        variance = within / (groups * copies * each) + middle.var(0, ddof=1)
    else:
        variance = within / (copies - 1) / each
    kurtosis = max(1.5, float(np.mean(fourth / variance**2)) * 6 / y.size)
    count = copies * groups
    np.testing.assert_allclose(samples._mean, y.mean((0, 1, 2)))
    np.testing.assert_allclose(samples._variance(), variance)
    np.testing.assert_allclose(samples._spread, spread, atol=1e-12)
    assert samples.kurtosis == pytest.approx(kurtosis)
    left = min(1.0, spread.sum() / apart)
    assert (left < 1 - 1e-9) == (each > 1)
    expected = (1 / count) ** 0.5, (left * (kurtosis - 1) / 4 / (count - 1)) ** 0.5
    assert samples.errors == pytest.approx(expected)
    joint = Samples(None, None, None, covariance=True)
    joint.copies, joint._each, joint._alone = copies, each, True
    for block in blocks:
        joint._add(block.reshape(-1, 3, 2))
    np.testing.assert_allclose(np.diagonal(joint._variance(), axis1=1, axis2=2), variance)
    assert joint.errors == pytest.approx(((1 / count) ** 0.5, (0.5 / (count - 1)) ** 0.5))
