"""Sums, curvatures and comparisons behind moments and penalties, against plain formulas."""

import copy
import itertools
import math
import pickle
import warnings
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from scipy import stats
from torch import nn

from overt import InputError
from overt.nn import (
    CovarianceDropout,
    DropBlock2d,
    DropConnectConv2d,
    DropConnectLinear,
    Dropout,
    explicit_penalty,
    penalties,
    predictive_moments,
    training,
    without_noise,
)
from overt.nn.given.losses import mean_loss
from overt.nn.layers import recognized
from overt.nn.moments import errors, nonlinear
from overt.nn.moments import samples as samples_of
from overt.nn.moments.adjoint import Sources
from overt.nn.moments.carry import carry, picked
from overt.nn.moments.copies import rows_apart
from overt.nn.moments.entries import _by_nodes, _deviation, moments_of
from overt.nn.moments.local import _from_draws
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


def drawn(groups, copies, shared=0.0, seed=0):
    rng = torch.Generator().manual_seed(seed)
    y = torch.randn(copies, groups, 3, 2, generator=rng, dtype=torch.float64)
    y = y + shared * torch.randn(1, groups, 3, 2, generator=rng, dtype=torch.float64)
    return y * torch.tensor([1.0, 3.0]) + 0.7


@pytest.mark.parametrize(("groups", "copies"), [(12, 1), (1, 5), (6, 4)])
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


def test_groups_divide_what_is_asked_for():
    for most, sure, n, quick, expected in (
        (64, True, 100, False, (20, True)), (64, True, 64, False, (32, True)),
        (64, False, 100, False, (10, False)), (64, False, 96, False, (12, False)),
        (64, False, 10, False, (1, False)), (64, False, 10, True, (10, True)),
        (1, True, 100, False, (1, False)), (7, True, 30, False, (6, False)),
        (64, True, 20, False, (10, True)), (64, True, 15, False, (15, False)),
        (64, True, 15, True, (15, True)), (64, True, 1, False, (1, False)),
        (64, True, 127, False, (1, False)), (0, False, 60, False, (20, True)),
        (0, False, 7, False, (1, False)), (0, False, 7, True, (7, True)),
    ):  # fmt: skip
        samples = Samples(None, None, None, covariance=False, quick=quick)
        samples._most, samples._sure, samples._alone = most, sure, not most
        samples._balance.forms = [(3,)]
        assert (samples._group(n), samples._even) == expected


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


LOSSES = ["squared", "mse", "cross_entropy", "logistic"]


@pytest.mark.parametrize("loss", LOSSES)
def test_curvature_is_half_the_second_derivative(loss):
    rng = torch.Generator().manual_seed(1)
    mean, t = (torch.randn(4, 3, generator=rng, dtype=torch.float64) for _ in range(2))
    y = torch.tensor([0, 2, 1, 1]) if loss == "cross_entropy" else torch.rand(4, 3).double()
    H = torch.autograd.functional.hessian(lambda f: mean_loss(f, y, loss), mean)
    expected = torch.einsum("ri,risj,sj->", t, H, t) / 2
    torch.testing.assert_close(penalties.quadratic(t, mean, loss), expected)
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


def test_classes_are_at_least_two():
    for shape in ((4, 1), (4,), (4, 2, 2)):
        with pytest.raises(InputError, match="at least 2 classes"):
            penalties.curvature(torch.zeros(shape), "cross_entropy")


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
    monkeypatch.setattr(penalties, "Samples", lambda *_, covariance: given)
    y = torch.tensor([0, 1, 2]) if loss == "cross_entropy" else torch.rand(3, 4)
    H = torch.autograd.functional.hessian(lambda f: mean_loss(f, y, loss), mean)
    seen = (torch.einsum("rirj->rij", H) * K).sum() / 2
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        penalties.compare(nn.Identity(), torch.zeros(3, 2), None, ratio * seen, loss, doubt)
    assert bool(found) == said
    for model, count in ((nn.BatchNorm1d(4), 0), (nn.BatchNorm1d(4).eval(), 1)):
        asked.clear()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            penalties.compare(model, torch.zeros(3, 2), None, ratio * seen, loss, doubt)
        assert len(asked) == count


def test_few_samples_of_many_rows_contradict(monkeypatch):
    asked = []
    given = SimpleNamespace(mean=torch.ones(1, 1), variance=torch.ones(1, 1), kurtosis=3.0, n=9,
                            rows=1, count=9, draw=asked.append)  # fmt: skip
    monkeypatch.setattr(penalties, "Samples", lambda *_, covariance: given)
    for x in (torch.zeros(1, 1), torch.zeros(64, 1), torch.zeros(9999, 1),
              {"a": torch.zeros(50, 1), "b": torch.zeros(())}):  # fmt: skip
        penalties.compare(nn.Identity(), x, None, torch.ones(()), "squared")
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
    assert asked[1:] == [*[(k, few) for k in range(1, coins)], (0, 100)]
    assert [term.name for term in found.terms] == [*one.noises, "mean shift"]


@pytest.mark.parametrize("loss", ["squared", "cross_entropy"])
def test_the_mean_shift_is_a_difference_of_losses(loss):
    rng = torch.Generator().manual_seed(3)
    y = torch.tensor([0, 1]) if loss == "cross_entropy" else torch.randn(2, 3, generator=rng)

    def passes(n, exact=False, at=0.0):
        means = [torch.randn(2, 3, generator=rng) + at for _ in range(n)]
        return [SimpleNamespace(output=SimpleNamespace(mean=m, exact=exact)) for m in means]

    noisy, clean = passes(5), passes(3)
    after, before = (torch.stack([o.output.mean for o in p]).mean(0) for p in (noisy, clean))
    term, moves = penalties._shift(noisy, clean, y, loss)
    torch.testing.assert_close(term.value, mean_loss(after, y, loss) - mean_loss(before, y, loss))
    at = after.clone().requires_grad_()
    (slope,) = torch.autograd.grad(mean_loss(at, y, loss), at)
    expected = torch.stack([(slope * (o.output.mean - after)).sum() for o in noisy])
    torch.testing.assert_close(moves, expected)
    assert (term.name, term.exact) == ("mean shift", False)
    assert term.error == pytest.approx(penalties._error(expected))
    (one,) = passes(1, exact=True)
    still, moves = penalties._shift([one], [one], y, loss)
    assert (float(still.value), still.exact, still.error, moves.tolist()) == (0.0, True, 0.0, [0.0])
    away, _ = penalties._shift([one], passes(1), y, loss)
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
    inner, given, output, value, loss, doubt = asked[0]
    assert (inner is model, given is x, output, loss) == (True, True, None, "mse")
    with torch.no_grad(), training.own_generators():
        probes = [carry(model, x, probe=True, statistics="as set") for _ in range(64)]
        values = [penalties.quadratic(one.tangent, one.output.mean, "mse") for one in probes]
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
        slope = moments_of(torch.exp, mean, v, one_sided=False)[1]
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
    v[0, 0] = 0.0
    monkeypatch.setattr(errors, "plain_output", lambda *_: plain)
    found = errors.judged(None, None, None, carried(m, v, exact, linearized))
    sd = v.sqrt()
    rounding = 8 * torch.finfo(m.dtype).eps * (m.abs() + sd)
    bent = torch.full_like(v, 0.2 * 0.3)
    bent[v == 0] = 0.0
    for row in range(3):
        bent[row] += 0.25 * ((m - plain)[row].square().sum() / v[row].sum()).sqrt()
    many = 3 if linearized else 1
    for least, got in ((0.05, found.mean_error), (0.03, found.std_error)):
        expected = rounding + (0 if exact else (least + bent) * sd * many)
        torch.testing.assert_close(got, expected)
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


@pytest.mark.parametrize("drawn", [(), ("coin",)])
@pytest.mark.parametrize("width", [1, 2, 5])
def test_what_was_carried_and_sampled_is_weighed_by_its_errors(drawn, width):
    rng = np.random.default_rng(6)
    m0, m1 = rng.normal(size=(2, 4, width))
    sd0, sd1 = rng.uniform(0.5, 2, size=(2, 4, width))
    e0, e1 = rng.uniform(0.01, 0.4, size=(2, 4, width))
    if width == 5:
        sd0[0, 0], sd1[1, 1], sd0[2, 2], sd1[2, 2] = 0.0, 0.0, 0.0, 0.0
    given, sampled = (
        Moments(torch.tensor(m), torch.tensor(sd**2), False, mean_error=torch.tensor(e0),
                std_error=torch.tensor(e1)) for m, sd in ((m0, sd0), (m1, sd1))
    )  # fmt: skip
    samples = SimpleNamespace(count=50, errors=(0.15, 0.1), moments=lambda **_: sampled)
    found = errors.corrected(errors.Found(given, ("noise",), drawn, ("cross",)), samples)
    sure = (sd0 > 0) & (sd1 > 0)
    some = sd1 > 0  # others are as sampled
    at0, at1 = (np.where(sure, sd, np.where(some, sd1, 1.0)) for sd in (sd0, sd1))
    parts = []
    for d, e, s in (((m1 - m0) / at0, e0, 0.15), (np.log(at1 / at0), e1, 0.1)):
        b = e / at0 / LEVEL
        b = np.maximum(3 * b, 0.2) if drawn else b
        parts.append(believed(d, b, s, 0.25 if drawn else 1.0, some))
    (away, of_mean), (ratio, of_std) = parts
    np.testing.assert_allclose(found.mean, np.where(some, m0 + away * at0, m1))
    before = np.where(sure, sd0**2, sd1**2)
    variance = before * np.exp(2 * ratio) * some
    np.testing.assert_allclose(found.variance, variance)
    np.testing.assert_allclose(found.mean_error, of_mean * LEVEL * np.sqrt(variance))
    np.testing.assert_allclose(found.std_error, of_std * LEVEL * np.sqrt(variance))
    assert (found.draws, found.drawn, found.linearized) == (50, drawn, ("cross",))
    assert (found.carried, found.exact) == (("noise",), False)
    assert errors.corrected(errors.Found(None, None, (), drawn, ()), samples) is sampled


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
    assert not told(lambda v: v.T, x)  # as many outputs as columns
    assert not told(lambda v: v.reshape(4, 3), x)  # which wants its number of rows
    assert not told(lambda v: v + torch.arange(float(len(v)))[:, None], x)
    assert not told(lambda a, b: a + b[0], {"a": x, "b": x[:2]})
    assert told(lambda a, b: a + b, {"a": x, "b": 2 * x})


def test_the_error_of_a_penalty_is_that_of_all_that_was_drawn(monkeypatch):
    torch.manual_seed(0)
    net, y = nn.Sequential(nn.Dropout(0.3), nn.Linear(3, 2)).double(), torch.randn(4, 2).double()
    three = [carry(net, torch.randn(4, 3).double()) for _ in range(3)]
    monkeypatch.setattr(penalties, "passes", lambda *_, **__: three)
    found = explicit_penalty(net, torch.ones(4, 3).double(), y)
    shares = penalties.shares_of(three, "squared")
    shift, moves = penalties._shift(three, three, y, "squared")
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
