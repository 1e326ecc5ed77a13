"""Sums, curvatures and comparisons behind moments and penalties, against plain formulas."""

import copy
import itertools
import math
import pickle
import warnings
from types import SimpleNamespace
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from helpers import bernoulli_patterns
from scipy import stats
from torch import nn

from overt import InputError
from overt.nn import (
    CovarianceDropout,
    DropBlock2d,
    DropConnectConv2d,
    DropConnectLinear,
    Dropout,
    comparing,
    curvature,
    explicit_penalty,
    mc_moments,
    penalties,
    predictive_moments,
    training,
    without_noise,
)
from overt.nn.data.losses import mean_loss
from overt.nn.layers import recognized
from overt.nn.moments import copies as copies_of
from overt.nn.moments import errors, nonlinear, pooling
from overt.nn.moments import samples as samples_of
from overt.nn.moments.adjoint import Sources
from overt.nn.moments.carry import carry, picked
from overt.nn.moments.copies import rows_apart, rows_of
from overt.nn.moments.entries import Bent, _by_nodes, _deviation, moments_of
from overt.nn.moments.local import _from_draws
from overt.nn.moments.noises import coins
from overt.nn.moments.result import LEVEL, Moments
from overt.nn.moments.samples import Samples
from overt.nn.moments.tape import Moment, Tape


def fed(blocks, copies, **given):
    """Samples that were given blocks of (copies, groups, rows, outputs)."""
    samples = Samples(None, None, None, **({"covariance": False} | given))
    samples.copies, samples._like = copies, torch.empty(0, dtype=torch.float64)
    for block in blocks:
        samples._add(block.flatten(0, 1).numpy())
    return samples


def drawn(groups, copies, shared=0.0, rows=3):
    rng = torch.Generator().manual_seed(0)
    y = torch.randn(copies, groups, rows, 2, generator=rng, dtype=torch.float64)
    y = y + shared * torch.randn(1, groups, rows, 2, generator=rng, dtype=torch.float64)
    return y * torch.tensor([1.0, 3.0]) + 0.7


@pytest.mark.parametrize(("groups", "copies"), [(12, 1), (1, 5), (2, 4), (6, 4)])
@pytest.mark.parametrize("shared", [0.0, 2.0])
def test_sums_are_those_of_all_samples(groups, copies, shared):
    y = drawn(groups, copies, shared)
    blocks = [part for part in (y[:, :5], y[:, 5:]) if part.numel()]
    samples = fed(blocks, copies)
    mean = y.mean((0, 1))
    between = y.mean(0).var(0) if groups > 1 else 0 * mean
    within = y.var(0).mean(0) if copies > 1 else 0 * mean
    variance = within * (1 - 1 / copies) + between if groups > 1 else within
    torch.testing.assert_close(samples.mean, mean)
    torch.testing.assert_close(samples.variance, variance)
    both = fed(blocks, copies, covariance=True)
    torch.testing.assert_close(both.variance.diagonal(dim1=1, dim2=2), variance)
    assert both.kurtosis == 3.0
    told = both.moments(checks=7)
    torch.testing.assert_close((told.mean, told.variance), (both.mean, both.variance))
    assert (told.mean_error, told.std_error) == (None, None)  # which are of single outputs
    assert (told.draws, told.checks, told.drawn) == (groups * copies, 7, ("all",))
    flat = y.flatten(0, 1)
    if copies == 1:
        rows = torch.stack([torch.cov(flat[:, i].T) for i in range(3)])
        torch.testing.assert_close(both.variance, rows)
    assert (samples.count, samples.copies) == (groups * copies, copies)
    # Fourth powers are taken from the mean as it was known then.
    fourth, seen = 0.0, []
    for block in blocks:
        seen.append(block)
        fourth = fourth + (block - torch.cat(seen, 1).mean((0, 1))).pow(4).sum((0, 1))
    kurtosis = max(1.5, float((fourth / (groups * copies) / variance**2).mean()))
    assert samples.kurtosis == pytest.approx(kurtosis)
    worth = 1.0
    if copies > 1 and groups > 1:
        worth = copies * float(between.sum() / within.sum())
    n = max(1.0, groups * copies / max(1.0, worth))
    assert samples.n == pytest.approx(n)
    off = math.sqrt(1 / n), math.sqrt((kurtosis - 1) / 4 / max(n - 1, 1))
    assert samples.errors == pytest.approx(off)
    found = samples.moments(checks=7)
    few = stats.t.ppf(0.975, max(n - 1, 1)) / stats.norm.ppf(0.975) * LEVEL * variance.sqrt()
    torch.testing.assert_close(found.mean_error, off[0] * few, rtol=0.06, atol=0)
    torch.testing.assert_close(found.std_error, off[1] * few, rtol=0.06, atol=0)
    assert (found.draws, found.checks, found.drawn, found.exact) == (len(flat), 7, ("all",), False)
    samples._sure = True
    assert samples.n == groups * copies
    # What balance leaves of the mean's variance, with four differences that say nothing of it.
    samples._even, free = True, (groups - 1) * 6
    left = (4 + free * copies * float((between / variance).mean())) / (4 + free)
    assert samples.left == pytest.approx(min(left, 1.0))
    if groups == 1:
        expected = (y - mean).square().sum((0, 1)) / (copies - 0.25)
        torch.testing.assert_close(samples.variance, expected)


@pytest.mark.parametrize("rows", [2, 4, 5])
def test_outputs_count_up_to_eight_for_what_balance_leaves(rows):
    y = drawn(6, 4, rows=rows)
    samples = fed([y], 4)
    samples._even = True
    variance = y.var(0).mean(0) * 3 / 4 + y.mean(0).var(0)
    seen = 4 * float((y.mean(0).var(0) / variance).mean())
    worth = 5 * min(2 * rows, 8)
    assert samples.left == pytest.approx(min(1.0, (4 + worth * seen) / (4 + worth)))


def test_errors_over_the_standard_deviation_know_no_units():
    y = drawn(6, 4, 0.5, rows=9)
    one, small = fed([y], 4), fed([1e-3 * y - 2], 4)
    one._even = small._even = True
    assert 1 < one.n < 24
    assert small.n == pytest.approx(one.n)
    assert small.left == pytest.approx(one.left)
    assert small.kurtosis == pytest.approx(one.kurtosis)
    assert small.errors == pytest.approx(one.errors)
    torch.testing.assert_close(small.moments().std_error, 1e-3 * one.moments().std_error)
    shrunk = small.moments(shrunk=True).std
    torch.testing.assert_close(shrunk, 1e-3 * one.moments(shrunk=True).std)
    assert not torch.allclose(shrunk, small.moments().std, rtol=1e-3)
    dead = fed([torch.cat([y, 0 * y[..., :1] + 0.5], -1)], 4)  # says nothing of the others
    assert dead.kurtosis == pytest.approx(one.kurtosis)
    with np.errstate(invalid="ignore"):
        for scale in (0.0, 1e-100):  # whose fourth powers are no numbers: as if normal
            assert fed([scale * y], 4).kurtosis == 3.0


def grouped(n, most, sure, alone, quick, forms):
    """Copies to a group and whether they are balanced, by trying all."""
    alone = alone or (not sure and n < 16)
    even = alone or (sure and bool(forms))
    most = n if alone else max(1, min(most, n if sure else n // 8))
    fits = [g for g in range(1, most + 1) if n % g == 0]
    good = [g for g in fits if 10 <= g <= 64 and n >= 2 * g] if even else []
    if good:
        return (20 if 20 in good else 10 if 10 in good else max(good)), True
    if quick and even and n == most:
        return n, True
    return (1 if alone else max(fits)), False


@pytest.mark.parametrize(("quick", "forms"), [(False, [(3,)]), (True, [(3,)]), (True, ())])
@pytest.mark.parametrize(("sure", "alone"), [(True, False), (False, False), (False, True)])
def test_groups_are_the_best_that_divide(quick, forms, sure, alone):
    for n, most in itertools.product(range(1, 200), (1, 7, 12, 20, 39, 64, 65, 300)):
        samples = Samples(None, None, None, covariance=False, quick=quick)
        samples._most, samples._sure, samples._alone = most, sure, alone
        samples._balance.forms = forms
        expected = grouped(n, most, sure, alone, quick, forms)
        assert (samples._group(n), samples._even) == expected, (n, most)


@pytest.mark.parametrize("rows", [3, 600])
@pytest.mark.parametrize("known", list(itertools.product((False, True), (False, None, True))))
def test_copies_are_run_together_where_rows_stay_apart(monkeypatch, known, rows):
    same, draws = known
    monkeypatch.setattr(samples_of, "rows_apart", lambda *_: same)
    monkeypatch.setattr(samples_of, "draws_apart", lambda *_: draws)
    samples = Samples(nn.Identity(), torch.ones(rows, 1), None, covariance=False)
    samples._start()
    assert (samples._sure, samples._alone) == (same and bool(draws), not same or draws is False)
    assert samples._most == (max(1, 8 * min(80, 512 // rows)) if not samples._alone else 1)
    assert samples.rows == (rows if samples._most > 1 else 1)


HELD = [  # whether rows and draws are apart, samples, copies in each pass, if that shows they are
    (True, True, 40, [40], False), (True, True, 700, [640, 60], True),
    (True, True, 2, [2], False), (True, None, 16, [2] * 8, False),
    (True, None, 17, [1] * 17, False), (True, None, 152, [19] * 8, False),
    (True, None, 160, [20] * 8, True), (False, True, 40, [1] * 40, False),
    (True, False, 40, [1] * 40, False), (True, "beside", 40, [8] * 40, False),
]  # fmt: skip


@pytest.mark.parametrize(("rows", "draws", "n", "passes", "shown"), HELD)
def test_passes_hold_as_many_copies_as_they_may(monkeypatch, rows, draws, n, passes, shown):
    seen, ask = [], samples_of.balanced
    monkeypatch.setattr(samples_of, "rows_apart", lambda *_: rows)
    monkeypatch.setattr(samples_of, "draws_apart", lambda *_: False if draws == "beside" else draws)
    monkeypatch.setattr(samples_of, "beside", lambda *_: draws == "beside")
    monkeypatch.setattr(samples_of, "balanced", lambda *args: (ask(*args), seen.clear())[0])
    torch.manual_seed(0)
    net = Run(lambda v: (seen.append(len(v) // 3), nn.functional.dropout(v, 0.5))[1])
    samples = Samples(net, torch.ones(3, 2), None, covariance=False)
    samples.draw(n)
    assert seen == passes
    assert ("apart" in samples._answers) == shown


@pytest.mark.parametrize(("outputs", "inputs", "times"), [
    (2**15, 1, 8), (2**15 + 1, 1, 1), (1, 64, 8), (1, 65, 1),
])  # fmt: skip
def test_small_networks_take_more_copies(outputs, inputs, times):
    net = Run(torch.tanh)
    net.weights = nn.Linear(1, outputs)
    samples = Samples(net, torch.ones(3, inputs), None, covariance=False)
    samples._start()
    assert samples._most == times * 80


@pytest.mark.parametrize("rows", [1, 3, 600])
def test_progress_counts_every_sample(rows):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Dropout(0.5), nn.Linear(2, 2)).double()
    x, steps = torch.ones(rows, 2).double(), []
    samples = Samples(net, x, None, covariance=False)
    samples.draw(40, SimpleNamespace(advance=steps.append))
    assert sum(steps) == samples.count == 40
    assert samples.rows == (rows if rows < 256 else 1)
    J = net[1].weight.detach()
    truth = (J**2).sum(1)  # p / (1 - p) = 1, and the inputs are ones
    assert samples.copies == {1: 20, 3: 20, 600: 1}[rows]
    low, high = (float(v) for v in (samples.variance / truth).aminmax())
    assert 0.2 < low <= high < 3


@pytest.mark.parametrize("shared", [False, True])
@torch.no_grad()
def test_groups_are_filled_and_apart(shared):
    """Masks of units or, which all rows share, of weights: whole groups, none of them twice."""
    torch.manual_seed(0)
    net, x = nn.Linear(8, 4).double(), torch.randn(3, 8).double()

    def forward(v):
        if shared:
            return v @ nn.functional.dropout(net.weight, 0.3).T + net.bias
        return net(nn.functional.dropout(v, 0.3))

    run = Run(forward)
    run.net = net
    samples, made = Samples(run, x, None, covariance=False), []
    add = samples._add
    samples._add = lambda y: (
        made.append(y.reshape(samples.copies * samples._each, -1, *y.shape[1:])), add(y)
    )  # fmt: skip
    for n, count in ((40, 40), (7, 60), (21, 100), (20, 120), (1900, 2020)):
        samples.draw(n)
        assert (samples.copies, samples.count) == (20, count)
    assert samples._alone == shared
    groups = np.concatenate(made, 1).swapaxes(0, 1)
    assert len({group.tobytes() for group in groups}) == len(groups) == 101
    torch.testing.assert_close(samples.mean, net(x))  # what is linear cancels in every group
    np.testing.assert_allclose(groups.mean(1), net(x).expand(101, -1, -1))
    exact = x**2 @ (net.weight**2).T * 3 / 7
    torch.testing.assert_close(samples.variance, exact, rtol=0.2, atol=0)


LOSSES = ["squared", "mse", "cross_entropy", "logistic"]


@pytest.mark.parametrize("loss", LOSSES)
def test_curvature_is_half_the_second_derivative(loss):
    rng = torch.Generator().manual_seed(1)
    mean, t = (torch.randn(4, 3, generator=rng, dtype=torch.float64) for _ in range(2))
    y = torch.tensor([0, 2, 1, 1]) if loss == "cross_entropy" else torch.rand(4, 3).double()
    H = torch.autograd.functional.hessian(lambda f: mean_loss(f, y, loss), mean)
    expected = torch.einsum("ri,risj,sj->", t, H, t) / 2
    torch.testing.assert_close(curvature.quadratic(t, mean, loss), expected)
    model = nn.Sequential(nn.Dropout(0.3), nn.Linear(5, 3)).double()
    one = carry(model, torch.randn(4, 5, generator=rng, dtype=torch.float64))
    H = torch.autograd.functional.hessian(lambda f: mean_loss(f, y, loss), one.output.mean.detach())
    rows = torch.einsum("rirj->rij", H)
    expected = (rows * one.covariances()).sum() / 2
    torch.testing.assert_close(penalties.shares_of([one], loss)[0], expected)
    others = [carry(model, torch.randn(4, 5, generator=rng, dtype=torch.float64)) for _ in range(3)]
    means = torch.stack([o.output.mean for o in others]).detach()
    center = means.mean(0)
    rows = torch.einsum("rirj->rij", torch.autograd.functional.hessian(
        lambda f: mean_loss(f, y, loss), center))  # fmt: skip
    spread = torch.einsum("nri,nrj->rij", means - center, means - center) / 2  # n - 1
    within = torch.stack([o.covariances() for o in others]).mean(0)
    found = penalties.shares_of(others, loss)
    torch.testing.assert_close(found.mean(), (rows * (within + spread)).sum() / 2)
    assert found.shape == (3,)


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("f", [curvature.quadratic, curvature.divergence])
def test_what_deviations_add_is_the_mean_over_rows(loss, f):
    rng = torch.Generator().manual_seed(4)
    mean, t = (torch.randn(3, 4, generator=rng, dtype=torch.float64) for _ in range(2))
    rows = [f(t[i : i + 1], mean[i : i + 1], loss) for i in range(3)]
    torch.testing.assert_close(f(t, mean, loss), torch.stack(rows).mean())
    y = torch.tensor([0, 2, 1]) if loss == "cross_entropy" else torch.rand(3, 4).double()
    slope = torch.autograd.functional.jacobian(lambda m: mean_loss(m, y, loss), mean)
    added = mean_loss(mean + t, y, loss) - mean_loss(mean, y, loss) - (slope * t).sum()
    if f is curvature.divergence:
        torch.testing.assert_close(f(t, mean, loss), added)


def test_classes_are_at_least_two():
    for shape in ((4, 1), (4,), (4, 2, 2)):
        with pytest.raises(InputError, match="at least 2 classes"):
            curvature.curvature(torch.zeros(shape), "cross_entropy")


@pytest.mark.parametrize("n", [1, 2, 9])
def test_errors_of_means_of_draws(n):
    values = torch.arange(1.0, n + 1) ** 2
    expected = np.std(values.numpy(), ddof=1) / np.sqrt(n) if n > 1 else 0.0
    assert penalties._error(values) == pytest.approx(expected)


CONTRADICTED = [  # (value over what samples show, kurtosis, worth, rows, doubt, whether it is said)
    (1.21, 3.0, 1e6, 1, 0.0, False), (1.23, 3.0, 1e6, 1, 0.0, True), (0.80, 3.0, 1e6, 1, 0.0, True),
    (0.83, 3.0, 1e6, 1, 0.0, False), (1.6, 3.0, 100, 1, 0.0, False), (1.7, 3.0, 100, 1, 0.0, True),
    (1.7, 2.0, 100, 1, 0.0, True), (1.6, 2.0, 100, 1, 0.0, False), (1.7, 4.0, 100, 1, 0.0, False),
    (1.28, 3.0, 100, 4, 0.0, False), (1.32, 3.0, 100, 4, 0.0, True),
    (1.7, 3.0, 100, 1, 0.1, False), (1.9, 3.0, 100, 1, 0.1, True), (0.0, 3.0, 100, 1, 0.0, True),
]  # fmt: skip


@pytest.mark.parametrize("loss", LOSSES[1:])
@pytest.mark.parametrize(("ratio", "kurtosis", "n", "rows", "doubt", "said"), CONTRADICTED)
def test_samples_contradict_by_a_fifth_and_three_errors(
    monkeypatch, loss, ratio, kurtosis, n, rows, doubt, said
):
    """|log(value / seen)| > max(.2, 3 hypot(sqrt(kurtosis / n) / sqrt(rows), doubt))."""
    rng = torch.Generator().manual_seed(2)
    mean, root = torch.randn(3, 4, generator=rng), torch.randn(3, 4, 4, generator=rng)
    K = root @ root.mT
    asked = []
    given = SimpleNamespace(mean=mean, variance=K if loss == "cross_entropy" else
                            K.diagonal(dim1=1, dim2=2), kurtosis=kurtosis, n=n, rows=rows,
                            count=5, draw=asked.append)  # fmt: skip
    monkeypatch.setattr(comparing, "Samples", lambda *_, covariance: given)
    y = torch.tensor([0, 1, 2]) if loss == "cross_entropy" else torch.rand(3, 4)
    H = torch.autograd.functional.hessian(lambda f: mean_loss(f, y, loss), mean)
    seen = (torch.einsum("rirj->rij", H) * K).sum() / 2
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        comparing.compare(nn.Identity(), torch.zeros(3, 2), None, ratio * seen, loss, doubt)
    assert bool(found) == said
    within = nn.Sequential(nn.BatchNorm1d(4), nn.Dropout())
    for model, count in ((nn.BatchNorm1d(4), 0), (within, 0), (nn.BatchNorm1d(4).eval(), 1)):
        asked.clear()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            comparing.compare(model, torch.zeros(3, 2), None, ratio * seen, loss, doubt)
        assert len(asked) == count


@pytest.mark.parametrize("loss", LOSSES[1:])
@pytest.mark.parametrize("targets", [False, True])
@pytest.mark.parametrize(("n", "left"), [(10**6, 1.0), (50, 1.0), (50, 0.25)])
def test_samples_contradict_means_by_a_fifth_of_the_penalty_and_two_errors(
    monkeypatch, loss, targets, n, left
):
    """What the loss changes by, without targets all but what is linear, against .2 of it."""
    rng = torch.Generator().manual_seed(3)
    mean, away = torch.randn(2, 3, 4, generator=rng, dtype=torch.float64)
    root = 0.3 * torch.randn(3, 4, 4, generator=rng, dtype=torch.float64)
    K = root @ root.mT
    y = torch.tensor([0, 1, 2]) if loss == "cross_entropy" else torch.rand(3, 4).double()
    H = torch.autograd.functional.hessian(lambda f: mean_loss(f, y, loss), mean)
    H = torch.einsum("rirj->rij", H)

    def said(size):
        at = mean - size * away
        slope = torch.autograd.functional.jacobian(lambda f: mean_loss(f, y, loss), at)
        gap, seen = mean_loss(mean, y, loss) - mean_loss(at, y, loss), (H * K).sum() / 2
        rows = (slope.abs() * K.diagonal(dim1=1, dim2=2).sqrt()).sum(1)
        error = (left / n) ** 0.5 * rows.norm()
        if not targets:
            gap, error = gap - (slope * size * away).sum(), seen * left / n
        variance = K if loss == "cross_entropy" else K.diagonal(dim1=1, dim2=2)
        given = SimpleNamespace(mean=mean, variance=variance, kurtosis=3.0, n=n, rows=3, left=left,
                                count=5, draw=lambda _: None)  # fmt: skip
        monkeypatch.setattr(comparing, "Samples", lambda *_, covariance: given)
        with warnings.catch_warnings(record=True) as found:
            warnings.simplefilter("always")
            to = at, y if targets else None
            comparing.compare(nn.Identity(), torch.zeros(3, 2), None, seen, loss, 0.0, to)
        assert bool(found) == bool(gap.abs() > 0.2 * seen + 2 * error), size
        return bool(found)

    heard = [said(size) for size in (*np.linspace(0.02, 3, 40), 40.0)]
    assert not heard[0]
    assert heard[-1]


@pytest.mark.parametrize("size", [0.0, 1e-6, 1e6])
def test_contradictions_know_no_units(monkeypatch, size):
    """Twice what samples show, of outputs of any size; none of outputs that do not vary."""
    given = SimpleNamespace(mean=torch.ones(3, 4), variance=torch.full((3, 4), size), kurtosis=3.0,
                            n=1e6, rows=3, count=5, draw=lambda _: None)  # fmt: skip
    monkeypatch.setattr(comparing, "Samples", lambda *_, covariance: given)
    for ratio in (1.0, 2.0):
        with warnings.catch_warnings(record=True) as found:
            warnings.simplefilter("always")
            value = torch.tensor(ratio * size)
            comparing.compare(nn.Identity(), torch.zeros(3, 2), None, value, "mse")
        assert bool(found) == (ratio * size > size)


def test_few_samples_of_many_rows_contradict(monkeypatch):
    asked = []
    given = SimpleNamespace(mean=torch.ones(1, 1), variance=torch.ones(1, 1), kurtosis=3.0, n=9,
                            rows=1, count=9, draw=asked.append)  # fmt: skip
    monkeypatch.setattr(comparing, "Samples", lambda *_, covariance: given)
    for x in (torch.zeros(1, 1), torch.zeros(64, 1), torch.zeros(9999, 1),
              {"a": torch.zeros(50, 1), "b": torch.zeros(())}):  # fmt: skip
        comparing.compare(nn.Identity(), x, None, torch.ones(()), "squared")
    assert asked == [128, 64, 32, 81]


class Coins(nn.Module):
    """Layers that are passed over by coins, each of which is to be drawn."""

    def __init__(self, coins):
        super().__init__()
        self.parts = nn.ModuleList(nn.Linear(2, 2) for _ in range(coins))

    def forward(self, x):
        for part in self.parts:
            if not self.training or torch.rand(()) > 0.3:
                x = torch.tanh(part(x))
        return x


@pytest.mark.parametrize(("coins", "few"), [(1, 100), (3, 66), (26, 8)])
def test_terms_by_the_dozen_get_fewer_draws(monkeypatch, coins, few):
    asked, x = [], torch.ones(2, 2)
    one = carry(Coins(coins), x)

    def passes(model, given, *, active, draws, **settings):
        asked.append((None if active is None else len(active), draws))
        return [one]

    monkeypatch.setattr(penalties, "passes", passes)
    monkeypatch.setattr(penalties, "compare", lambda *_: None)
    found = explicit_penalty(Coins(coins), x, torch.zeros(2, 2))
    assert asked[0] == (None, 100)
    assert asked[1:] == [(k, few) for k in range(1, coins)]
    assert [term.name for term in found.terms] == [*one.noises, "mean shift"]


@pytest.mark.parametrize("loss", ["squared", "cross_entropy"])
def test_the_mean_shift_is_a_difference_of_losses(loss):
    rng = torch.Generator().manual_seed(3)
    y = torch.tensor([0, 1]) if loss == "cross_entropy" else torch.randn(2, 3, generator=rng)

    def passes(n, exact=False, at=0.0):
        means = [torch.randn(2, 3, generator=rng) + at for _ in range(n)]
        return [SimpleNamespace(output=SimpleNamespace(mean=m, exact=exact)) for m in means]

    noisy, before = passes(5), torch.randn(2, 3, generator=rng)
    after = torch.stack([o.output.mean for o in noisy]).mean(0)
    term, moves = penalties._shift(noisy, before, y, loss)
    torch.testing.assert_close(term.value, mean_loss(after, y, loss) - mean_loss(before, y, loss))
    at = after.clone().requires_grad_()
    (slope,) = torch.autograd.grad(mean_loss(at, y, loss), at)
    expected = torch.stack([(slope * (o.output.mean - after)).sum() for o in noisy])
    torch.testing.assert_close(moves, expected)
    assert (term.name, term.exact) == ("mean shift", False)
    assert term.error == pytest.approx(penalties._error(expected))
    (one,) = passes(1, exact=True)
    still, moves = penalties._shift([one], one.output.mean, y, loss)
    assert (float(still.value), still.exact, still.error, moves.tolist()) == (0.0, True, 0.0, [0.0])
    away, _ = penalties._shift([one], before, y, loss)
    assert away.exact == (loss == "squared")
    assert float(away.value) != 0


def test_powers_are_one_sided_unless_whole_and_positive(monkeypatch):
    seen, real = [], nonlinear.of_entries

    def of_entries(tape, x, f, name, *, alone=True):
        seen.append((name, alone))
        return real(tape, x, f, name, alone=alone)

    monkeypatch.setattr(nonlinear, "of_entries", of_entries)

    class Power(nn.Module):
        def __init__(self, power):
            super().__init__()
            self.power, self.a, self.noise = power, nn.Linear(3, 3), nn.Dropout(0.2)

        def forward(self, x):
            return (2 + 0.01 * self.a(self.noise(x))) ** self.power

    for power in (2, 3, 0, -1, 0.5, 2.5, torch.tensor([1.0, 2.0, 0.5])):
        carry(Power(power), torch.ones(2, 3))
    name, side = "pow", "rsqrt"
    assert [n for n, _ in seen] == [name, name, side, side, side, side, side]
    assert [alone for _, alone in seen] == [True] * 6 + [False]


def test_training_looks_once_at_what_samples_say(monkeypatch):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), Dropout(0.5, seed=1), nn.Linear(8, 8),
                          nn.Tanh(), nn.Linear(8, 2))  # fmt: skip
    x, asked = torch.randn(5, 3), []
    monkeypatch.setattr(training, "compare", lambda *given: asked.append(given))
    net = without_noise(model, loss="mse")
    with pytest.raises(InputError, match="no penalty yet"):
        _ = net.penalty
    for _ in range(3):
        net.train()(x)
    assert len(asked) == 1
    inner, given, output, value, loss, doubt, (means, targets) = asked[0]
    assert (inner is model, given is x, output, loss) == (True, True, None, "mse")
    assert targets is None
    torch.testing.assert_close(means, carry(model, x, statistics="as set").output.mean)
    with torch.no_grad(), training.preserve_rng():
        probes = [carry(model, x, probe=True, statistics="as set") for _ in range(64)]
        values = [curvature.quadratic(one.tangent, one.output.mean, "mse") for one in probes]
    values = torch.stack(values)
    spread = float(values.std())
    assert float(value) == pytest.approx(float(values.mean()), abs=5 * spread / 4)
    assert 0.3 < doubt * 4 * float(value) / spread < 3
    assert float(net.penalty.detach()) > 0
    again = pickle.loads(pickle.dumps(copy.deepcopy(net)))  # noqa: S301
    with pytest.raises(InputError, match="no penalty yet"):
        _ = again.penalty
    assert torch.equal(net.eval()(x), model(x))
    with pytest.raises(InputError, match="no penalty yet"):
        _ = net.penalty
    assert "loss=mse" in repr(net)
    exact = without_noise(nn.Sequential(nn.Dropout(0.5), nn.Linear(3, 2)))
    exact.train()(x)
    assert len(asked) == 1  # nothing to compare where it is exact
    picked = without_noise(nn.Identity(), output=lambda o: 3 * o)
    assert torch.equal(picked.eval()(x), 3 * x)


def test_local_draws_give_mean_slope_and_rest():
    rng = torch.Generator().manual_seed(4)
    m, v = (torch.randn(2, 3, generator=rng, dtype=torch.float64) for _ in range(2))
    v = v.square()
    tape = Tape(None, (), False, False, Sources({}))
    x = Moment(m, v, tape.later(lambda: tape.source(v)), frozenset({"noise"}))
    found = _from_draws(tape, lambda z: 2 * z + 0.7 * z * z, [x])
    same = torch.Generator().manual_seed(0)
    away = [v.sqrt() * torch.randn(2, 3, generator=same).double() for _ in range(8)]
    points = torch.stack([m + s * d for d in away for s in (1, -1)])
    y = 2 * points + 0.7 * points**2
    torch.testing.assert_close(found.mean, y.mean(0))
    torch.testing.assert_close(found.variance, y.var(0, unbiased=False))
    slope = torch.stack([2 + 1.4 * (m + d) for d in away]).mean(0)
    rest = (y - y.mean(0) - slope * (points - m)).square().mean(0)
    torch.testing.assert_close(tape.sources.variances(tape.tangent(found)), slope**2 * v + rest)
    assert (found.exact, found.known, found.independent) == (False, False, False)
    assert found.noises == {"noise"}


@pytest.mark.parametrize("m", [0.0, 0.4, -3.0])
@torch.no_grad()
def test_slopes_are_those_at_the_mean_where_deviations_are_small(m):
    """Below .001 sqrt(1 + m^2) in training, below .001 |m| else."""
    mean = torch.tensor([m], dtype=torch.float64)
    for share, small in ((0.9, True), (1.1, False)):
        v = torch.full_like(mean, share * 1e-6 * (1 + m * m))
        value, slope, spread, curve, rise = _by_nodes(torch.exp, mean, v, v.sqrt(), True)
        assert float(value) == pytest.approx(math.exp(m + v / 2), rel=1e-9)
        if small:
            assert (float(slope), float(curve), float(rise)) == (math.exp(m), 0.0, 0.0)
            assert float(spread) == math.exp(m) ** 2 * float(v)
        else:
            assert float(slope) == pytest.approx(math.exp(m + v / 2), rel=1e-9)
            assert float(slope) != math.exp(m)
            assert float(curve) == pytest.approx(math.exp(m), rel=1e-3)
            assert float(rise) == pytest.approx(2 * math.exp(2 * m) * float(v), rel=1e-2)
        v = torch.full_like(mean, share * 1e-6 * m * m)
        for grad in (False, True):
            with torch.set_grad_enabled(grad):
                slope = moments_of(torch.exp, mean.clone(), v, one_sided=False)[1]
            if m:
                assert (float(slope) == math.exp(m)) == small


def test_layers_and_outputs_that_cannot_be_are_refused():
    small = 1e-60  # less than single precision holds, which makes it 0
    for mean, covariance in (([small], [[small**2]]), ([1.0], [[1e40]])):
        with pytest.raises(InputError, match="covariance"):
            CovarianceDropout(mean, covariance)
    for wrong in (3, "logits"):
        with pytest.raises(InputError, match="output must be a function"):
            explicit_penalty(nn.Linear(2, 2), torch.ones(1, 2), output=wrong)


REPRS = [
    (Dropout(0.3, shared_axes=1, seed=5), "Dropout(drop_prob=0.3, shared_axes=(1,), seed=5)"),
    (Dropout(0.25), "Dropout(drop_prob=0.25)"),
    (DropBlock2d(0.3, (1, 3), shared_axes=1, seed=5),
     "DropBlock2d(drop_prob=0.3, block_size=(1, 3), placement=sliding, uniform=False, "
     "shared_axes=(1,), seed=5)"),
    (DropBlock2d(0.3, 2, placement="grid"),
     "DropBlock2d(drop_prob=0.3, block_size=2, placement=grid)"),
    (CovarianceDropout([0.5], [[0.25]], "bernoulli", axis=1, seed=5),
     "CovarianceDropout(units=1, distribution=bernoulli, axis=1, seed=5)"),
    (DropConnectLinear(6, 3, drop_prob=0.3, per_sample=True, seed=5),
     "DropConnectLinear(in_features=6, out_features=3, bias=True, drop_prob=0.3, per_sample=True, "
     "seed=5)"),
    (DropConnectLinear(6, 3, False),
     "DropConnectLinear(in_features=6, out_features=3, bias=False, drop_prob=0.5, "
     "per_sample=False)"),
    (DropConnectConv2d(4, 6, 3, padding=1, groups=2, bias=False, seed=5),
     "DropConnectConv2d(4, 6, kernel_size=(3, 3), stride=(1, 1), padding=(1, 1), dilation=(1, 1), "
     "groups=2, bias=False, drop_prob=0.5, seed=5)"),
]  # fmt: skip


@pytest.mark.parametrize(("layer", "text"), REPRS)
def test_layers_print_their_settings(layer, text):
    assert repr(layer) == text


def carried(mean, variance, exact=False, linearized=()):
    """What `carry` returns, as far as errors are judged by it."""
    tape = SimpleNamespace(linearized=dict.fromkeys(linearized))
    output = SimpleNamespace(mean=mean, exact=exact)
    return SimpleNamespace(output=output, noises=("noise",), tape=tape,
                           parts=lambda: (variance, 0.3 * variance))  # fmt: skip


@pytest.mark.parametrize("linearized", [(), ("cross",)])
@pytest.mark.parametrize("exact", [False, True])
def test_errors_grow_with_what_is_bent_and_moved(monkeypatch, exact, linearized):
    rng = torch.Generator().manual_seed(5)
    m, plain, v = (torch.randn(3, 2, 2, generator=rng, dtype=torch.float64) for _ in range(3))
    v = v.square()
    v[0, 0], v[2], plain[2] = 0.0, 0.0, m[2]  # some outputs, and a row, that do not vary
    monkeypatch.setattr(errors, "plain_output", lambda *_: plain)
    found = errors.judged(None, None, None, carried(m, v, exact, linearized))
    sd = v.sqrt()
    rounding = 8 * torch.finfo(m.dtype).eps * (m.abs() + sd)
    bent = torch.full_like(v, 0.2 * 0.3)
    bent[v == 0] = 0.0
    for row in range(2):
        bent[row] += 0.25 * ((m - plain)[row].square().sum() / v[row].sum()).sqrt()
    many = 3 if linearized else 1
    for least, got in ((0.05, found.mean_error), (0.03, found.std_error)):
        expected = rounding + (0 if exact else (least + bent) * sd * many)
        torch.testing.assert_close(got, expected, rtol=1e-9, atol=0)
    assert (found.exact, found.carried, found.linearized) == (exact, ("noise",), linearized)
    far = errors.doubted(found, ("coin",))
    for before, after in ((found.mean_error, far.mean_error), (found.std_error, far.std_error)):
        torch.testing.assert_close(after, torch.maximum(3 * before, LEVEL * 0.2 * sd))
    assert far.drawn == ("coin",)


def believed(d, b, s, least, some):
    """The share b^2 / (b^2 + s^2) of d, b^2 scaled by what all d together say of it."""
    rows, scale = len(d) * min(3, d[0].size), 1.0
    seen = (np.mean(d[some] ** 2) - s**2) / np.mean(b[some] ** 2)
    for _ in range(4):
        worth = rows * np.mean((scale * b**2 / (scale * b**2 + s**2))[some]) ** 2
        scale = max((3 + worth * seen) / (3 + worth), least)
    b2 = scale * b**2
    return b2 / (b2 + s**2) * d, np.sqrt(b2 * s**2 / (b2 + s**2))


@pytest.mark.parametrize("least", [0.25, 1.0])
@pytest.mark.parametrize("size", [0.0, 0.1, 1.0, 10.0])
def test_what_is_believed_grows_with_what_is_seen(size, least):
    rng = np.random.default_rng(7)
    d, b = size * rng.normal(size=(4, 2)), rng.uniform(0.1, 0.4, size=(4, 2))
    given = d, b, 0.2, least, np.ones((4, 2), bool)
    np.testing.assert_allclose(errors._moved(*given), believed(*given))
    still = errors._moved(*given[:4], np.zeros((4, 2), bool))  # all of it, without an error
    np.testing.assert_array_equal(still, (d, 0 * d))


@pytest.mark.parametrize("drawn", [(), ("coin",)])
@pytest.mark.parametrize(("rows", "width"), [(4, 1), (4, 2), (4, 5), (1, 3)])
def test_what_was_carried_and_sampled_is_weighed_by_its_errors(drawn, rows, width):
    rng = np.random.default_rng(6)
    m0, m1 = rng.normal(size=(2, rows, width))
    sd0, sd1 = rng.uniform(0.5, 2, size=(2, rows, width))
    e0, e1 = rng.uniform(0.01, 0.4, size=(2, rows, width))
    if width == 5:
        sd0[0, 0], sd1[1, 1], sd0[2, 2], sd1[2, 2] = 0.0, 0.0, 0.0, 0.0
    given, sampled = (
        Moments(torch.tensor(m), torch.tensor(sd**2), False, mean_error=torch.tensor(e0),
                std_error=torch.tensor(e1)) for m, sd in ((m0, sd0), (m1, sd1))
    )  # fmt: skip
    sure = (sd0 > 0) & (sd1 > 0)
    some = sd1 > 0  # others are as sampled
    at0, at1 = (np.where(sure, sd, np.where(some, sd1, 1.0)) for sd in (sd0, sd1))
    parts = []
    for d, e, s in (((m1 - m0) / at0, e0, 0.15), (np.log(at1 / at0), e1, 0.1)):
        b = e / at0 / LEVEL
        b = np.maximum(3 * b, 0.2) if drawn else b
        parts.append(believed(d, b, s, 0.25 if drawn else 1.0, some))
    (away, of_mean), (ratio, of_std) = parts
    least = of_std.mean()
    samples = SimpleNamespace(
        count=50, errors=(0.15, 0.1), moments=lambda **_: sampled,
        shrunk=lambda center: (center + np.ones((rows, 1)), 1.01 * least),
    )  # fmt: skip
    found = errors.corrected(errors.Found(given, ("noise",), drawn, ("cross",)), samples)
    np.testing.assert_allclose(found.mean, np.where(some, m0 + away * at0, m1))
    before = np.where(sure, sd0**2, sd1**2)
    variance = before * np.exp(2 * ratio) * some
    np.testing.assert_allclose(found.variance, variance)
    np.testing.assert_allclose(found.mean_error, of_mean * LEVEL * np.sqrt(variance))
    np.testing.assert_allclose(found.std_error, of_std * LEVEL * np.sqrt(variance))
    assert (found.draws, found.drawn, found.linearized) == (50, drawn, ("cross",))
    assert (found.carried, found.exact) == (("noise",), False)
    assert errors.corrected(errors.Found(None, None, (), drawn, ()), samples) is sampled
    samples.shrunk = lambda center: (np.full(m0.shape, np.max(center) + 0.25), 0.99 * least)
    found = errors.corrected(errors.Found(given, ("noise",), drawn, ("cross",)), samples)
    if sure.all():  # what outputs have in common leaves less: the first that does
        sd = np.full(m0.shape, np.log(sd0).max() + 0.25)
        np.testing.assert_allclose(found.std, np.exp(sd))
        np.testing.assert_allclose(found.std_error, 0.99 * least * LEVEL * np.exp(sd))
    else:
        np.testing.assert_allclose(found.variance, variance)


@pytest.mark.parametrize(
    "make", [lambda: torch.eye(3).to_sparse(), lambda: np.eye(3), lambda: [[1.0]]]
)
def test_layers_take_dense_tensors(make):
    wrong = make()
    for layer in (Dropout(0.5), DropConnectLinear(3, 2), CovarianceDropout([0.5], [[0.25]])):
        with pytest.raises(InputError, match=r"dense torch\.Tensor"):
            layer(wrong)
    for shape in (3, (4,), "ab"):
        with pytest.raises(InputError, match="shape must be"):
            Dropout(0.5).mask_covariance(shape)


@pytest.mark.parametrize("dead", [[1], [0, 1, 2]])
def test_outputs_that_do_not_vary_leave_the_others_alone(dead):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.ReLU(), nn.Linear(8, 8), nn.Tanh(),
                        nn.Linear(8, 3)).double()  # fmt: skip
    net[5].weight.data[dead] = 0
    x = torch.randn(3, 4).double()
    with torch.no_grad():
        for given in ({}, {"draws": 40}):
            found = predictive_moments(net, x, **given)
            for part in (found.variance, found.mean_error, found.std_error):
                assert not part[:, dead].any()
                assert bool(part.isfinite().all())
            torch.testing.assert_close(found.mean[:, dead], net[5].bias[dead].expand(3, -1))
            alive = [k for k in range(3) if k not in dead]
            assert bool((found.variance[:, alive] > 0).all())


def test_outputs_that_do_not_count_are_named():
    for result, kind in (([torch.ones(2)], "list"), (torch.ones(2).long(), "torch.int64"),
                         (torch.ones(()), "torch.float32")):  # fmt: skip
        with pytest.raises(InputError, match=f"for each input, got {kind};"):
            picked(result, None)
    assert torch.equal(picked([torch.ones(2)], lambda o: 2 * o[0]), 2 * torch.ones(2))


def test_rows_are_what_all_tensors_have():
    three, two, none = torch.ones(3, 2), torch.ones(2, 3), torch.tensor(1.0)
    assert [rows_of(x) for x in (three, (three, three[:, 0]), {"a": two, "b": 5})] == [3, 3, 2]
    assert [rows_of(x) for x in ((three, two), (three, none), none, ())] == [None] * 4


def test_rows_that_meet_or_do_not_fit_are_not_run_side_by_side():
    def told(f, x):
        class Net(nn.Module):
            def forward(self, *args, **kwargs):
                return f(*args, **kwargs)

        return rows_apart(Net(), x, None)

    x = torch.randn(4, 3, generator=torch.Generator().manual_seed(0))
    assert told(torch.tanh, x)
    assert not told(lambda v: v - v.mean(0), x)
    assert not told(lambda v: v.flip(0), x)
    for size in (0.0, 1.0, 1e4):  # rounding is that of the largest output
        close = 64 * torch.finfo(x.dtype).eps * (1 + size * float(x.abs().max()))
        for share in (0.7, 1.4):
            off = torch.tensor(share * close)
            assert told(lambda v, s=size, d=off: s * v + d * (len(v) > 4), x) == (share < 1)
    assert not told(lambda v: v.T, x)  # as many outputs as columns
    assert not told(lambda v: v.reshape(4, 3), x)  # which wants its number of rows
    assert not told(lambda v: v + torch.arange(float(len(v)))[:, None], x)
    assert not told(lambda a, b: a + b[0], {"a": x, "b": x[:2]})
    assert told(lambda a, b: a + b, {"a": x, "b": 2 * x})
    assert told(lambda ids: torch.eye(4)[ids], torch.arange(4))


@pytest.mark.parametrize(("drawn", "linearized"), [((), ()), (("a",), ()), ((), ("b",))])
def test_noise_is_as_large_beside_other_rows_up_to_a_hundredth(monkeypatch, drawn, linearized):
    """|a - b| <= .01 (a + mean of a) for all, where variances are carried to the end."""
    rng = torch.Generator().manual_seed(0)
    a = torch.rand(3, 2, generator=rng, dtype=torch.float64) * torch.tensor([1e-3, 40.0])
    for at, size in itertools.product(np.ndindex(3, 2), (-20.0, -1.1, -0.9, 0.9, 1.1, 99.0)):
        b = torch.cat([a, 7 + a])
        b[at] += size * 0.01 * (a[at] + a.mean())
        given = [
            SimpleNamespace(drawn=drawn * i, tape=SimpleNamespace(linearized=linearized * i),
                            output=SimpleNamespace(variance=v)) for i, v in enumerate((a, b))
        ]  # fmt: skip
        monkeypatch.setattr(copies_of, "carry", Mock(side_effect=given))
        told = copies_of._scales_apart(None, None, None, None)
        assert told == (abs(size) < 1 or bool(drawn or linearized))


def test_the_error_of_a_penalty_is_that_of_all_that_was_drawn(monkeypatch):
    torch.manual_seed(0)
    net, y = nn.Sequential(nn.Dropout(0.3), nn.Linear(3, 2)).double(), torch.randn(4, 2).double()
    three = [carry(net, torch.randn(4, 3).double()) for _ in range(3)]
    monkeypatch.setattr(penalties, "passes", lambda *_, **__: three)
    found = explicit_penalty(net, torch.ones(4, 3).double(), y)
    shares = penalties.shares_of(three, "squared")
    shift, moves = penalties._shift(three, net[1](torch.ones(4, 3).double()), y, "squared")
    assert found.error == pytest.approx(penalties._error(shares + moves))
    noise, last = found.terms
    assert (noise.name, noise.exact) == ("0", False)
    assert noise.error == pytest.approx(penalties._error(shares))
    torch.testing.assert_close(noise.value, shares.mean())
    assert last.error == shift.error
    torch.testing.assert_close(found.value, shares.mean() + shift.value)
    assert not found.exact
    without = explicit_penalty(net, torch.ones(4, 3).double())
    assert without.error == pytest.approx(penalties._error(shares))
    told = found.to_dict()
    assert told["value"] == float(found.value.detach())
    assert [term["name"] for term in told["terms"]] == ["0", "mean shift"]


def test_noise_layers_are_recognized_by_their_law():
    drop, channels = nn.Dropout(0.2), nn.Dropout2d(0.2)
    silent = {
        nn.Dropout(0.0): True, drop: False, Dropout(0.0): True, Dropout(0.1): False,
        DropConnectLinear(2, 2, drop_prob=0.0): True, DropConnectLinear(2, 2): False,
        CovarianceDropout([1.0], [[0.0]]): False,
    }  # fmt: skip
    for layer, expected in silent.items():
        assert recognized.is_silent(layer) == expected
        assert recognized.known_noise(layer)
    assert not recognized.known_noise(nn.AlphaDropout(0.1))
    law = recognized.mask_covariance_of(channels, (2, 3, 4, 5))
    assert (law.shape, law.strength, law.shared) == ((3, 4, 5), pytest.approx(0.25), (1, 2))
    law = recognized.mask_covariance_of(drop, (2, 3))
    assert (law.shape, law.strength, law.shared) == ((3,), pytest.approx(0.25), ())
    with pytest.raises(InputError, match="needs an input with 4 axes"):
        recognized.mask_covariance_of(channels, (2, 3))
    with pytest.raises(InputError, match="must be below 1"):
        recognized.mask_covariance_of(nn.Dropout(1.0), (2, 3))
    assert recognized.plain_dropout(drop) == 0.2
    assert recognized.plain_dropout(Dropout(0.3)) == 0.3
    assert recognized.plain_dropout(Dropout(0.3, shared_axes=1)) is None
    assert recognized.plain_dropout(channels) is None
    weights = [recognized.is_weight_noise(m) for m in (drop, DropConnectLinear(2, 2))]
    assert weights == [False, True]


def test_penalties_that_would_take_backward_passes_are_probed():
    x = torch.randn(4, 3, generator=torch.Generator().manual_seed(0))
    for parts, dear in (((), False), ((nn.Linear(3, 2),), True), ((nn.ReLU(),), True)):
        net = without_noise(nn.Sequential(nn.Dropout(0.5), nn.Linear(3, 3), *parts))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            net.train()(x)
        assert net._dear == dear
        first = float(net.penalty.detach())
        net(x)
        assert (float(net.penalty.detach()) == first) == (not dear)


def test_deviations_are_certain_below_the_square_of_rounding():
    eps = torch.finfo(torch.float64).eps ** 2
    for m in (-3.0, 0.5, 0.0):
        edge = eps * (eps + m * m)
        v = torch.tensor([0.9 * edge, 1.1 * edge, 0.0], dtype=torch.float64)
        sd, certain = _deviation(torch.full_like(v, m), v)
        assert certain.tolist() == [True, False, True]
        assert sd.tolist() == [1.0, pytest.approx(math.sqrt(1.1 * edge)), 1.0]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_kinks_have_no_curvature_below_the_root_of_the_smallest_number(dtype):
    floor = torch.finfo(dtype).tiny ** 0.5
    v = torch.tensor([0.0, floor, 1.1 * floor, 4.0], dtype=dtype)
    m = torch.zeros_like(v).requires_grad_()
    value, slope, spread, rest = Bent.apply(m, v, None, True)
    sd = v.clamp(min=floor).sqrt()
    torch.testing.assert_close(value, sd / math.sqrt(2 * math.pi), atol=0, rtol=1e-5)
    torch.testing.assert_close(slope, torch.full_like(v, 0.5))
    torch.testing.assert_close(spread[2:], v[2:] * (0.5 - 0.5 / math.pi), atol=0, rtol=1e-5)
    least = (v * (0.25 - 0.5 / math.pi)).clamp(min=floor).sqrt()
    torch.testing.assert_close(rest, least, atol=0, rtol=1e-5)
    (curve,) = torch.autograd.grad(slope.sum(), m, retain_graph=True)
    known = 1 / torch.sqrt(2 * math.pi * sd**2)
    torch.testing.assert_close(curve, torch.where(v > floor, known, 0), atol=0, rtol=1e-5)
    (rise,) = torch.autograd.grad(rest.sum(), m)
    assert rise[:3].tolist() == [0.0] * 3


ATTENTION = [{}, {"scale": 0.3}, {"scale": 0.0}, {"is_causal": True}, {"enable_gqa": True},
             {"attn_mask": "bool"}, {"attn_mask": "float", "scale": 2.0}]  # fmt: skip


@pytest.mark.parametrize("given", ATTENTION, ids=str)
def test_attention_by_its_parts_is_that_of_torch(given):
    rng = torch.Generator().manual_seed(0)
    heads = 2 if "enable_gqa" in given else 4
    q, k, v = (torch.randn(3, n, length, 5, generator=rng, dtype=torch.float64)
               for n, length in ((4, 6), (heads, 7), (heads, 7)))  # fmt: skip
    mask = torch.randn(6, 7, generator=rng, dtype=torch.float64)
    kinds = {"bool": mask < 0.5, "float": mask}
    given = {name: kinds.get(value, value) for name, value in given.items()}
    expected = nn.functional.scaled_dot_product_attention(q, k, v, **given)
    torch.testing.assert_close(nonlinear.attention(q, k, v, **given), expected)


class Run(nn.Module):
    def __init__(self, f):
        super().__init__()
        self.f = f

    def forward(self, x):
        return self.f(x)


@pytest.mark.parametrize("f", [
    lambda v: torch.bucketize(v, torch.tensor([0.0, 1.0]).double()).double(),
    lambda v: torch.count_nonzero(v, 1)[:, None].double(),
    lambda v: v.argmax(1, keepdim=True).double(),
])  # fmt: skip
def test_whole_numbers_are_drawn(f):
    x = torch.randn(3, 4, generator=torch.Generator().manual_seed(0)).double()
    assert carry(nn.Sequential(nn.Dropout(0.5), Run(f)), x).drawn == ("0",)


@pytest.mark.parametrize("sd", [1.0, 1e-16])
@pytest.mark.parametrize("level", [0.0, -7.0, 1e3])
def test_padding_is_never_the_largest(level, sd):
    """Ends of a constant map have windows of two entries, the middle one of three."""
    net = nn.Sequential(nn.Dropout(0.5), Run(lambda v: level + sd * (v - 1)),
                        nn.MaxPool1d(3, 1, padding=1))  # fmt: skip
    one = carry(net, torch.ones(1, 1, 3).double())
    assert not one.output.exact
    mean, variance = one.output.mean.flatten(), one.output.variance.flatten()
    assert mean[[0, 2]].tolist() == pytest.approx([level + sd / math.sqrt(math.pi)] * 2)
    assert variance[[0, 2]].tolist() == pytest.approx(
        [sd**2 * (1 - 1 / math.pi)] * 2, rel=1e-6, abs=0
    )
    assert float(mean[1]) == pytest.approx(level + sd * 1.5 / math.sqrt(math.pi), rel=0.01)
    total, rest = (part.flatten().tolist() for part in one.parts())
    assert total == one.variances().flatten().tolist()
    assert total == pytest.approx(variance.tolist(), rel=1e-6, abs=0)
    left = [sd**2 * (0.5 - 1 / math.pi)] * 2  # of the larger of two, whose slopes are halves
    assert rest[::2] == pytest.approx(left, rel=1e-6, abs=0)


IN_PLACE = {
    "rrelu": (nn.RReLU(0.1, 0.6), nn.RReLU(0.1, 0.6, inplace=True)),
    "dropout": (nn.Dropout(0.3), nn.Dropout(0.3, inplace=True)),
    "alpha": (
        nn.AlphaDropout(0.3),  # which does not hand `inplace` on
        Run(lambda v: nn.functional.alpha_dropout(v, 0.3, True, inplace=True)),
    ),
    "leaky": (nn.LeakyReLU(0.2), nn.LeakyReLU(0.2, inplace=True)),
    "elu": (nn.ELU(), nn.ELU(inplace=True)),
    "relu6": (nn.ReLU6(), nn.ReLU6(inplace=True)),
    "normal": (Run(lambda v: 3 + 2 * torch.randn_like(v)), Run(lambda v: v.normal_(3, 2))),
    "uniform": (Run(torch.rand_like), Run(lambda v: v.uniform_())),
    "coin": (Run(lambda v: (torch.rand_like(v) < 0.3).double()), Run(lambda v: v.bernoulli_(0.3))),
    "zero": (Run(torch.zeros_like), Run(lambda v: v.zero_())),
    "fill": (Run(lambda v: torch.full_like(v, 2.0)), Run(lambda v: v.fill_(2.0))),
}


@pytest.mark.parametrize("name", IN_PLACE)
def test_what_was_changed_in_place_is_seen_by_its_old_name(name):
    torch.manual_seed(0)
    x, after = torch.randn(3, 4).double(), nn.Linear(4, 2).double()
    found = []
    for layer, old in zip(IN_PLACE[name], (False, True), strict=True):

        class Net(nn.Module):
            def __init__(self, layer=layer):
                super().__init__()
                self.before, self.layer, self.after = nn.Dropout(0.4), layer, after

            def forward(self, x, old=old):
                h = self.before(x) + 0.0
                y = self.layer(h)
                return self.after(h if old else y)

        found.append(carry(Net(), x))
    plain, changed = found
    torch.testing.assert_close(changed.output.mean, plain.output.mean)
    torch.testing.assert_close(changed.covariances(), plain.covariances())
    assert not changed.drawn or name in ("normal", "uniform", "coin")


def test_mapped_functions_before_the_noise_are_run_and_after_it_drawn():
    torch.manual_seed(0)
    x, linear = torch.randn(3, 4).double(), nn.Linear(4, 2).double()
    plain = carry(nn.Sequential(Run(torch.sin), nn.Dropout(0.3), linear), x)
    found = carry(nn.Sequential(Run(torch.vmap(torch.sin)), nn.Dropout(0.3), linear), x)
    torch.testing.assert_close(found.output.mean, plain.output.mean)
    torch.testing.assert_close(found.variances(), plain.variances())
    assert not found.drawn
    assert carry(nn.Sequential(nn.Dropout(0.3), Run(torch.vmap(torch.sin))), x).drawn == ("0",)


@pytest.mark.parametrize("suffix", ["npz", "json"])
def test_saved_moments_are_moments(suffix, tmp_path):
    for covariance in (False, True):
        net = nn.Sequential(nn.Dropout(0.5), nn.Linear(3, 2)).double()
        saved = predictive_moments(net, torch.ones(2, 3).double(), covariance=covariance)
        found = Moments.load(saved.save(tmp_path / f"moments.{suffix}"))
        np.testing.assert_allclose(found.std, saved.std.detach())
        assert found.reached == pytest.approx(saved.reached)


@pytest.mark.parametrize("kind", [torch.from_numpy, np.asarray])
def test_results_say_how_and_how_well_they_were_obtained(kind):
    rng = np.random.default_rng(0)
    mean, sd, a, b = rng.uniform(0.1, 2, size=(4, 3, 7))
    sd[0, :2] = 0.0
    covariance = np.zeros((3, 7, 7))
    for i in range(3):
        covariance[i] = np.diag(sd[i] ** 2) + 0.01 * (1 - np.eye(7))
    inside = sd > 0
    expected = np.quantile((np.maximum(a, b)[inside] / sd[inside]), 0.9)
    for variance in (sd**2, covariance):
        found = Moments(kind(mean), kind(variance), False, mean_error=kind(a), std_error=kind(b))
        np.testing.assert_allclose(found.std, sd)
        assert found.reached == pytest.approx(expected)
        assert [v is w for v, w in zip(found, (found.mean, found.variance), strict=True)] == [1, 1]
    assert Moments(found.mean, found.variance, False).reached is None
    still = Moments(kind(mean), kind(0 * sd), True, mean_error=kind(a), std_error=kind(b))
    assert still.reached == 0.0
    for given, method in (({}, "carried"), ({"draws": 3}, "sampled"),
                          ({"draws": 3, "carried": ("0",)}, "carried and sampled"),
                          ({"carried": ("0",), "checks": 5}, "carried")):  # fmt: skip
        assert Moments(found.mean, found.variance, False, **given).method == method


@pytest.mark.parametrize("rare", [7e-6, 1e-3, 0.3])
def test_coins_are_as_rare_as_they_should_be(rare):
    torch.manual_seed(0)
    like, n = torch.empty(2**20, dtype=torch.float64), 2**20
    for prob, heads in ((rare, 1.0), (1 - rare, 0.0)):
        fallen = coins(like, prob)
        assert set(fallen.unique().tolist()) == {0.0, 1.0}
        count = int((fallen == heads).sum())
        assert abs(count - n * rare) <= 5 * math.sqrt(n * rare)


CALLS = {  # of dropout, of which some do nothing
    "active": lambda v: nn.functional.dropout(v, 0.3),
    "off": lambda v: nn.functional.dropout(v, 0.4, False),
    "nothing": lambda v: nn.functional.dropout(v, 0.0),
    "everything": lambda v: v + nn.functional.dropout(v, 1.0),
    "by name": lambda v: nn.functional.dropout(input=v, p=0.6, training=True),
    "channels": lambda v: nn.functional.dropout1d(v[:, :, None], 0.3, True)[:, :, 0],
}


@pytest.mark.parametrize("name", CALLS)
@torch.no_grad()
def test_balanced_samples_of_a_linear_network_have_its_mean(name):
    torch.manual_seed(0)
    silent = [nn.Dropout(0.2)] if name in ("off", "nothing", "everything") else []
    net = nn.Sequential(nn.Linear(3, 6), Run(CALLS[name]), nn.Linear(6, 2), *silent).double()
    x = torch.randn(5, 3).double()
    found, one = mc_moments(net, x, n=20), carry(net, x)
    torch.testing.assert_close(found.mean, one.output.mean)
    assert bool((found.variance > 0).any())


RESTS = {  # of normal numbers of variance 1/4: what no linear map follows
    "product": (lambda a, b: a * b, 1 / 16),
    "sum": (lambda a, b: a + b, 0.0),
    "square": (lambda a, b: a**2, 1 / 8),
}


@pytest.mark.parametrize("name", RESTS)
@torch.no_grad()
def test_what_linear_maps_leave_out_is_told_apart(name):
    f, rest = RESTS[name]
    x = torch.randn(3, 4, generator=torch.Generator().manual_seed(0)).double()
    net = Run(lambda v: f(v + 0.5 * torch.randn_like(v), 1 - v + 0.5 * torch.randn_like(v)))
    one = carry(net, x)
    _, found = one.tape.sources.parts(one.tangent)
    torch.testing.assert_close(found, torch.full_like(x, rest))


@pytest.mark.parametrize("rows", [1, 2, 4])
@torch.no_grad()
def test_noise_that_reaches_no_output_adds_nothing(rows):
    net = nn.Sequential(nn.Dropout(0.5), nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).double()
    net[3].weight.zero_()
    one = carry(net, torch.ones(rows, 3).double())
    assert not one.covariances().any()
    assert not one.variances().any()


@pytest.mark.parametrize("sign", [1, -1])
def test_coins_cannot_be_correlated_more_than_their_means_allow(sign):
    """min(a, b) - ab = .05 = ab - max(a + b - 1, 0) for a = .5, b = .9."""
    for share, allowed in ((0.049, True), (0.06, False), (0.12, False)):
        K = np.diag([0.25, 0.09, 0.25])
        K[0, 1] = K[1, 0] = sign * share
        given = [0.5, 0.9, 0.5], K, "bernoulli"
        if allowed:
            assert CovarianceDropout(*given).covariance[0, 1] == pytest.approx(sign * share)
        else:
            with pytest.raises(InputError, match="is beyond what 0/1 masks"):
                CovarianceDropout(*given)


@torch.no_grad()
def test_weights_dropped_right_after_units_are_what_all_masks_give():
    torch.manual_seed(0)
    x, layer = torch.randn(2, 3).double(), DropConnectLinear(3, 2, drop_prob=0.4).double()
    one = carry(nn.Sequential(nn.Dropout(0.3), layer), x)
    keep = np.repeat([0.7, 0.6], [3, 6])
    z, p = (torch.as_tensor(a) for a in bernoulli_patterns(keep))
    units, weights = (z / torch.as_tensor(keep)).split([3, 6], 1)
    y = torch.einsum("ri,mi,moi,oi->mro", x, units, weights.reshape(-1, 2, 3), layer.weight)
    mean = torch.tensordot(p, y, 1)
    covariance = torch.einsum("m,mri,mrj->rij", p, y - mean, y - mean)
    torch.testing.assert_close(one.output.mean, mean + layer.bias)
    torch.testing.assert_close(one.variances(), covariance.diagonal(dim1=1, dim2=2))
    torch.testing.assert_close(one.covariances(), covariance)


def test_samples_are_asked_once_where_all_is_carried_and_not_exact(monkeypatch):
    asked = []
    monkeypatch.setattr(penalties, "compare", lambda *given: asked.append(given))
    x = torch.randn(4, 3, generator=torch.Generator().manual_seed(0))

    def count(*parts):
        asked.clear()
        explicit_penalty(nn.Sequential(*parts, nn.Linear(3, 2)), x)
        return len(asked)

    rounded = Run(lambda v: nn.functional.dropout(v, 0.5).round())  # which must be drawn
    assert [count(nn.Dropout(0.5)), count(nn.Dropout(0.5), nn.Linear(3, 3), nn.Tanh())] == [0, 1]
    assert count(rounded) == count(rounded, nn.Dropout(0.5), nn.Tanh()) == 0


def test_batch_statistics_leave_correlated_entries_to_their_sources():
    torch.manual_seed(0)
    parts = nn.Linear(3, 4), nn.Linear(4, 2), nn.BatchNorm1d(2)
    net, x = nn.Sequential(nn.Dropout(0.3), *parts).double(), torch.randn(5, 3).double()
    one = carry(net.train(), x, statistics="as set")
    h = parts[1](parts[0](x))
    J = (parts[1].weight @ parts[0].weight) / (h.var(0, unbiased=False) + 1e-5).sqrt()[:, None]
    expected = 3 / 7 * (x**2) @ (J**2).T
    torch.testing.assert_close(one.variances(), expected)
    torch.testing.assert_close(one.covariances().diagonal(dim1=1, dim2=2), expected)
    assert (one.output.exact, one.output.known) == (False, False)


@pytest.mark.parametrize("shape", [(4, 3), (4, 3, 3), (4, 2, 3, 3)])
def test_samples_drop_weights_of_their_own(shape):
    """The identity shows the weights of a sample, the same for all its tokens."""
    torch.manual_seed(0)
    layer = DropConnectLinear(3, 5, drop_prob=0.4, per_sample=True).double()
    x = torch.eye(3).double().expand(*shape[:-2], 3, 3) if len(shape) > 2 else torch.eye(3).double()
    y = (layer(x) - layer.bias).detach()
    W = layer.weight.detach().T / 0.6
    assert y.shape == (*x.shape[:-1], 5)
    assert bool(((y.abs() < 1e-12) | ((y - W).abs() < 1e-12)).all())
    if len(shape) > 2:
        same = y.reshape(4, -1, 3, 5)
        assert bool((same == same[:, :1]).all())
        assert not bool((same[0] == same[1]).all())


@pytest.mark.parametrize("k", [1, 2, 3, 4])
def test_maxima_of_dropped_windows_are_what_all_masks_give(k):
    windows = torch.randn(20, k, generator=torch.Generator().manual_seed(k), dtype=torch.float64)
    windows[0], windows[1] = -windows[0].abs(), windows[1].abs()
    z, p = (torch.as_tensor(a) for a in bernoulli_patterns(np.full(k, 0.7)))
    largest = (windows[:, None] * z / 0.7).amax(2)
    mean, variance = pooling.max_of_dropped(windows, 0.3)
    torch.testing.assert_close(mean, largest @ p)
    torch.testing.assert_close(variance, (largest - mean[:, None]) ** 2 @ p)


@pytest.mark.parametrize("axis", [-4, -3, -2, -1, 1, 2, 3, 4])
def test_units_lie_along_their_axis_or_are_refused(axis):
    layer = CovarianceDropout([1.0] * 3, np.eye(3), axis=axis)
    for shape in (
        (),
        (3,),
        (3, 3),
        (3, 2),
        (2, 3, 3),
        (2, 3, 4),
        (2, 4, 3),
        (2, 3, 4, 5),
        (3,) * 4,
    ):
        sizes = dict(enumerate(shape)) | {i - len(shape): n for i, n in enumerate(shape)}
        fits = sizes.get(axis) == 3 and axis % len(shape) != 0
        try:
            seen = layer(torch.ones(shape)).shape == shape
            law = layer.mask_covariance(shape) if len(shape) > 1 else None
            assert law is None or law.axes == (axis % len(shape) - 1,)
        except InputError:
            seen = False
        assert seen == fits, (axis, shape)


def test_coins_have_the_variance_of_their_mean():
    for off, refused in ((0.9e-6, False), (-0.9e-6, False), (1.1e-6, True), (-1.1e-6, True)):
        given = [0.5, 0.8], [[0.25, 0.01], [0.01, 0.16 + off]], "bernoulli"
        if refused:
            with pytest.raises(InputError, match=r"covariance\[1, 1\] must be mean \(1 - mean\)"):
                CovarianceDropout(*given)
        else:
            CovarianceDropout(*given)
    for mean in ([0.5, 0.0], [0.5, -0.1], [0.5, 1.1]):
        with pytest.raises(InputError, match="mean must"):
            CovarianceDropout(mean, np.diag([0.25, 0.0]), "bernoulli")
    sure = CovarianceDropout([0.5, 1.0], np.diag([0.25, 0.0]), "bernoulli")
    drawn = sure(torch.ones(200, 2))
    assert drawn[:, 1].tolist() == [1.0] * 200
    assert set(drawn[:, 0].tolist()) == {0.0, 2.0}


def test_masks_of_double_precision_are_computed_in_it():
    layer = CovarianceDropout([0.7, 0.9], [[0.3, 0.1], [0.1, 0.2]], seed=0).double()
    y = layer(torch.ones(9, 2).double())
    assert bool((y.float().double() != y).any())


COINS = {  # of which a comparison makes others that are not followed
    "equal": lambda v: (torch.rand_like(v) < 0.3) == True,  # noqa: E712
    "other": lambda v: torch.ones_like(v, dtype=torch.bool) != (torch.rand_like(v) < 0.3),
    "whole": lambda v: torch.empty(v.shape, dtype=torch.bool).bernoulli_(0.3),
    "bound": lambda v: torch.rand_like(v) < nn.functional.dropout(torch.ones(1).double() / 4),
    "padded": lambda v: nn.functional.pad(torch.rand_like(v)[:, 1:], (1, 0)) < 0.3,
    "filled": lambda v: torch.rand_like(v).masked_fill(torch.arange(4) > 1, 0.0) < 0.3,
    "bounds": lambda v: torch.rand_like(v) < torch.linspace(0.1, 0.9, 4).double(),
}


@pytest.mark.parametrize("name", COINS)
def test_coins_that_are_not_followed_are_drawn(name):
    net = Run(lambda v: v * COINS[name](v).to(v.dtype))
    assert carry(net, torch.randn(3, 4).double()).drawn


SETTLED = {  # comparisons that come out one way, and which
    "below all": (lambda u: u < 0.0, 0.0), "below more": (lambda u: u <= 1.5, 1.0),
    "below the end": (lambda u: u < 1.0, 1.0), "above all": (lambda u: u > 1.0, 0.0),
    "above less": (lambda u: u >= -0.5, 1.0), "above the start": (lambda u: u > 0.0, 1.0),
}  # fmt: skip


@pytest.mark.parametrize("name", SETTLED)
def test_coins_that_always_fall_on_one_side_are_certain(name):
    compare, side = SETTLED[name]
    v = torch.randn(3, 4, generator=torch.Generator().manual_seed(0)).double()
    one = carry(Run(lambda v: v * compare(torch.rand_like(v))), v)
    torch.testing.assert_close(one.output.mean, side * v)
    assert not one.output.noises


POOLS = {  # a layer, the shape of its input, whether it is followed window by window
    "sixteen": (nn.MaxPool2d(4), (2, 1, 4, 8), True),
    "seventeen": (nn.MaxPool1d(17), (2, 1, 17), False),
    "one side": (nn.MaxPool2d(2, padding=(1, 0)), (2, 1, 4, 4), True),
    "other side": (nn.MaxPool2d((2, 3), 1, padding=(0, 1)), (2, 1, 3, 4), True),
    "far": (nn.MaxPool1d(2, dilation=2), (2, 1, 6), False),
    "up": (nn.MaxPool1d(2, ceil_mode=True), (2, 1, 5), False),
}


@pytest.mark.parametrize("name", POOLS)
def test_small_noise_goes_through_maxima_to_the_largest(name):
    layer, shape, followed = POOLS[name]
    x = torch.randperm(math.prod(shape), generator=torch.Generator().manual_seed(1))
    x = x.reshape(shape).double()
    one = carry(nn.Sequential(Run(lambda v: v + 1e-3 * torch.randn_like(v)), layer), x)
    torch.testing.assert_close(one.output.mean, layer(x), atol=2e-3, rtol=0)
    if followed:
        torch.testing.assert_close(one.output.mean, layer(x), atol=1e-9, rtol=0)
        torch.testing.assert_close(one.output.variance, torch.full_like(layer(x), 1e-6))
        torch.testing.assert_close(one.variances(), torch.full_like(layer(x), 1e-6))
    assert (not one.tape.linearized) == followed


@torch.no_grad()
def test_local_slopes_leave_out_what_does_not_count():
    m, v = torch.randn(2, 3).double(), torch.rand(2, 3).double()
    tape = Tape(None, (), False, False, Sources({}))
    given = [Moment(m, v, tape.later(lambda: tape.source(v)), frozenset({n})) for n in "ab"]
    found = _from_draws(tape, lambda a, b: 3 * a, given)
    torch.testing.assert_close(found.mean, 3 * m)
    torch.testing.assert_close(tape.sources.variances(tape.tangent(found)), 9 * v)
    assert found.noises == {"a", "b"}


P, HALF = 0.3, torch.tensor([0.0, 1.0, 0.0, 1.0]).double()
SWITCHED = {  # what stands where a coin falls, and elsewhere
    "where": (lambda c, a, b: torch.where(c, a, b), lambda a, b: (a, b)),
    "method": (lambda c, a, b: a.where(c, b), lambda a, b: (a, b)),
    "number": (lambda c, a, b: torch.where(c, a, 2.0), lambda a, b: (a, 0 * a + 2)),
    "other": (lambda c, a, b: torch.where(c, 2.0, b), lambda a, b: (0 * b + 2, b)),
    "part": (lambda c, a, b: torch.where(c, a.detach() * HALF, b), lambda a, b: (a * HALF, b)),
    "nothing": (lambda c, a, b: torch.where(c, 0.0, b), lambda a, b: (0 * b, b)),
    "fill": (lambda c, a, b: a.masked_fill(c, 3.0), lambda a, b: (0 * a + 3, a)),
    "in place": (lambda c, a, b: (a + 0).masked_fill_(c, 3.0), lambda a, b: (0 * a + 3, a)),
    "tensor": (lambda c, a, b: a.masked_fill(c, b[0, 0]), lambda a, b: (0 * a + b[0, 0], a)),
    "not": (lambda c, a, b: torch.where(~c, a, b), lambda a, b: (b, a)),
}


@pytest.mark.parametrize("name", SWITCHED)
@torch.no_grad()
def test_coins_choose_between_tensors(name):
    torch.manual_seed(0)
    run, sides = SWITCHED[name]
    a, b, mix = torch.randn(3, 4).double(), torch.randn(3, 4).double(), torch.randn(4, 4).double()
    one = carry(Run(lambda v: run(torch.rand_like(v) < P, v, b)), a)
    heads, tails = sides(a, b)
    torch.testing.assert_close(one.output.mean, P * heads + (1 - P) * tails, rtol=1e-6, atol=1e-6)
    variance = P * (1 - P) * (heads - tails) ** 2
    torch.testing.assert_close(one.variances(), variance, rtol=1e-6, atol=1e-6)
    mixed = carry(Run(lambda v: run(torch.rand_like(v) < P, v, b) @ mix), a)
    expected = torch.einsum("ki,rk,kj->rij", mix, variance, mix)
    torch.testing.assert_close(mixed.covariances(), expected, rtol=1e-6, atol=1e-6)
    assert not mixed.drawn


CONNECTED = {
    "plain": (lambda: DropConnectConv2d(2, 3, 2, drop_prob=P), (2, 3, 3)),
    "stride": (lambda: DropConnectConv2d(2, 2, (2, 1), (2, 1), (0, 1), drop_prob=P), (2, 4, 3)),
    "groups": (lambda: DropConnectConv2d(4, 2, 2, dilation=(1, 2), groups=2, drop_prob=P),
               (4, 3, 4)),
    "tokens": (lambda: DropConnectLinear(3, 2, drop_prob=P), (2, 3)),
    "more tokens": (lambda: DropConnectLinear(3, 2, False, drop_prob=P), (2, 2, 3)),
    "vectors": (lambda: DropConnectLinear(3, 2, drop_prob=P), (3,)),
}  # fmt: skip


@pytest.mark.parametrize("name", CONNECTED)
def test_dropped_weights_have_the_covariances_of_their_jacobian(name):
    """y is linear in the weights: Cov = lam J diag(W^2) J' for each row, also after other noise."""
    torch.manual_seed(0)
    build, shape = CONNECTED[name]
    layer, x = build().double(), torch.randn(2, *shape).double()
    one = carry(nn.Sequential(layer), x)
    noise, mix = Run(lambda v: v + 0.5 * torch.randn_like(v)), nn.Linear(shape[-1], shape[-1])
    before = carry(nn.Sequential(noise, layer), x)
    mixed = carry(nn.Sequential(noise, mix.double(), layer), x)
    flags = [(o.output.exact, o.output.known, o.output.independent) for o in (one, before, mixed)]
    alone = name == "vectors"  # no two outputs see the same weight
    assert flags == [(True, True, alone), (True, True, False), (alone, False, False)]
    if alone:
        W, C = layer.weight.detach(), mix.weight.detach()
        S, m = 0.25 * C @ C.T, mix(x).detach()
        own = P / (1 - P) * (m**2 + S.diagonal()) @ (W**2).T
        torch.testing.assert_close(mixed.covariances(), W @ S @ W.T + torch.diag_embed(own))
    for i in range(2):

        def f(W, row):
            given = {"weight": W}
            return torch.func.functional_call(layer.eval(), given, (row[None],)).flatten()

        W = layer.weight.detach()
        by_weights, by_inputs = torch.autograd.functional.jacobian(f, (W, x[i]))
        J, A = by_weights.flatten(1), by_inputs.flatten(1)
        lam = P / (1 - P) * W.flatten() ** 2
        own = (J * lam) @ J.T
        torch.testing.assert_close(one.output.mean[i].flatten(), f(W, x[i]).detach())
        torch.testing.assert_close(one.covariances()[i], own)
        torch.testing.assert_close(one.variances()[i].flatten(), own.diagonal())
        # E[x x'] = m m' + I / 4: each weight meets the variance of what it is multiplied by.
        first = own + 0.25 * A @ A.T
        ones = torch.autograd.functional.jacobian(f, (W, torch.ones_like(x[i])))[0].flatten(1)
        second = first.diagonal() + 0.25 * (ones**2 * lam).sum(1)
        torch.testing.assert_close(before.variances()[i].flatten(), second)
        torch.testing.assert_close(before.covariances()[i].diagonal(), second)


@pytest.mark.filterwarnings("ignore")  # torch says that nested tensors are new
def test_inputs_are_dense_and_hold_numbers():
    net, x = nn.Sequential(nn.Dropout(0.5), nn.Linear(3, 2)), torch.ones(2, 3)
    for odd in (x.to_sparse(), x.to("meta"), torch.nested.nested_tensor([x, x])):
        for given in (odd, (x, odd)):
            with pytest.raises(InputError, match="must be dense and hold numbers"):
                predictive_moments(net, given)


def test_batches_have_rows():
    net = nn.Sequential(nn.Dropout(0.5), nn.Linear(3, 2))
    for x in (torch.zeros(0, 3), torch.zeros(3), torch.tensor(1.0), torch.tensor(1)):
        with pytest.raises(InputError, match="batch axis and at least one row"):
            predictive_moments(net, x)
    words = nn.Sequential(nn.Embedding(4, 3), nn.Dropout(0.5), nn.Linear(3, 2))
    assert predictive_moments(words, torch.tensor([0, 3])).mean.shape == (2, 2)
    with pytest.raises(InputError, match="batch axis and at least one row"):
        predictive_moments(words, torch.zeros(0, dtype=torch.int64))


def test_coins_that_fill_in_infinity_are_drawn():
    x = torch.randn(3, 8, generator=torch.Generator().manual_seed(0)).double()
    net = Run(lambda v: v.masked_fill(torch.rand_like(v) < P, -math.inf).softmax(1))
    one = carry(net, x)
    assert len(one.drawn) == 1
    torch.testing.assert_close(one.output.mean.sum(1), torch.ones(3).double())


F = nn.functional
AVERAGES = [
    lambda v: F.avg_pool1d(v, 2), lambda v: F.avg_pool1d(v, 2, padding=0),
    lambda v: F.avg_pool1d(v, (2,), padding=(0,)), lambda v: F.avg_pool2d(v[:, None], 2),
    lambda v: F.avg_pool2d(v[:, None], (2, 3), padding=(0, 0)), nn.AvgPool1d(3),
    lambda v: F.adaptive_avg_pool1d(v, 2), lambda v: F.adaptive_avg_pool2d(v[:, None], (2, 3)),
    lambda v: F.adaptive_avg_pool2d(v[:, None], (None, 2)), lambda v: v.mean(2),
    lambda v: F.adaptive_avg_pool2d(v[:, None], 2), lambda v: v.mean((1, 2), keepdim=True),
    lambda v: torch.mean(v, dim=-1), lambda v: v.mean(axis=1),
]  # fmt: skip


@pytest.mark.parametrize("f", AVERAGES)
@torch.no_grad()
def test_averages_have_the_variance_of_one_entry_over_their_number(f):
    x = torch.randn(3, 4, 6, generator=torch.Generator().manual_seed(0)).double()
    one = carry(Run(lambda v: f(v + torch.randn_like(v))), x)
    found = one.output
    torch.testing.assert_close(found.mean, f(x))
    expected = torch.full_like(f(x), f(x).numel() / x.numel())
    torch.testing.assert_close(found.variance, expected)
    torch.testing.assert_close(one.tape.sources.variances(one.tangent), expected)
    assert found.exact
    assert found.known
