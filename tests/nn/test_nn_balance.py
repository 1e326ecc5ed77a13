"""Draws that are balanced among copies: each copy's law, what cancels, and whose draw is whose."""

import math
import random
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from overt.nn import mc_moments, predictive_moments
from overt.nn.data.models import modes
from overt.nn.moments.balance import _STAND_INS, Balance, _table
from overt.nn.moments.copies import balanced, beside, draws_apart, rows_apart
from overt.nn.moments.samples import Samples


class Run(nn.Module):
    """A function of a layer and its input."""

    def __init__(self, run, a=6, b=3):
        super().__init__()
        self.run, self.layer = run, nn.Linear(a, b)
        self.shared, self.tokens = nn.LSTM(2, 16, 2, dropout=0.5), torch.ones(64, 2)

    def forward(self, x):
        return self.run(self, x)


def attending(h, p):
    return functional.scaled_dot_product_attention(h, h, h, None, p)


def maps(x):
    return x[..., None, None].expand(-1, -1, 2, 2)


DRAWS = {
    "dropout": lambda x: functional.dropout(x, 0.3),
    "in place": lambda x: functional.dropout(x.clone(), 0.3, inplace=True),
    "an odd probability": lambda x: functional.dropout(x, 0.137),
    "maps": lambda x: functional.dropout2d(maps(x), 0.2).mean((2, 3)),
    "alpha": lambda x: functional.alpha_dropout(x, 0.2, training=True),
    "rrelu": lambda x: functional.rrelu(x, 0.1, 0.5, training=True),
    "uniform": lambda x: x * torch.rand_like(x),
    "coins": lambda x: x * (torch.rand(x.shape) < 0.7),
    "bernoulli": lambda x: x * x.new_empty(x.shape).bernoulli_(0.6),
    "attention": lambda x: attending(x[..., None], 0.3)[..., 0],
    "normal": lambda x: x + torch.randn_like(x),
    "normal numbers": lambda x: x * (1 + torch.randn(len(x), 1)),
}  # fmt: skip


@pytest.mark.parametrize("draw", DRAWS.values(), ids=DRAWS.keys())
def test_balanced_draws_have_the_law_of_plain_ones(draw):
    """Mean, variance and fourth moment of single draws, and no correlation of units of a copy."""
    torch.manual_seed(0)
    x = torch.tensor([[-2.0, 1.0]]).expand(3, 2).contiguous()
    model = Run(lambda self, x: draw(x))
    balance = balanced(model, x, None)
    assert balance.forms
    assert None not in balance.forms
    found, plain = [], []
    for _ in range(150):
        with balance:
            balance.begin(40, 20)
            found.append(draw(x.repeat(40, 1)).double())
        plain.append(draw(x.repeat(40, 1)).double())
    y, z = torch.cat(found), torch.cat(plain)
    sd, n = z.std(0), len(z)
    assert ((y.mean(0) - z.mean(0)).abs() < 5 * sd * (2 / n) ** 0.5 + 1e-9).all()
    tail = ((z - z.mean(0)) / sd.clamp(min=1e-9)).pow(4).mean(0)
    for power in (2, 4):
        a, b = ((t - z.mean(0)).abs().pow(power) for t in (y, z))
        error = (b.var(0) * 2 / n).sqrt()
        assert ((a.mean(0) - b.mean(0)).abs() < 5 * error + 1e-9).all(), (power, tail)
    if draw is not DRAWS["normal numbers"]:
        both = torch.corrcoef(y.T)[0, 1].abs() if (sd > 0).all() else torch.zeros(())
        assert float(both) < 5 / n**0.5
    # Over a group, members lie along the first axis: means of linear draws hardly vary.
    means = torch.stack([part.reshape(20, 2, 3, 2).mean(0) for part in found]).std((0, 1, 2))
    left = 0.12 if draw is DRAWS["an odd probability"] else 1e-6
    left = 0.06 if draw in (DRAWS["uniform"], DRAWS["rrelu"]) else left
    assert (means.square() <= left * sd.square() / 20 + 1e-9).all()


@pytest.mark.parametrize("group", [3, 10, 20, 33])
def test_every_copy_has_every_rank_equally_often(group):
    def table(kind, a, b):
        return _table(kind, group, a, b, torch.float64, torch.device("cpu"))

    even, begins = table("evenly", -1.0, 3.0), table("begins", -1.0, 3.0)
    n = even.shape[1]
    middles = -1 + 4 * (torch.arange(n).double() + 0.5) / n  # of parts of equal length
    close = {"rtol": 0, "atol": 0.1 / n}
    torch.testing.assert_close(even.sort(1)[0], middles.expand(group, n), **close)
    lowest = -1 + 4 * torch.arange(group).double() / group
    torch.testing.assert_close(begins.sort(0)[0], lowest[:, None].expand(-1, n), **close)
    torch.testing.assert_close(begins, lowest[((even + 1) / 4 * group).long()], **close)
    for prob in (0.3, 0.137, 0.9981):
        kept = table("coins", prob, 2.0)
        assert set(kept.unique().tolist()) == {0.0, 2.0}
        assert ((kept.mean(1) / 2 - prob).abs() <= 0.5 / n + 1e-12).all()
        assert ((kept.sum(0) / 2 - group * prob).abs() < 1).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_uniform_numbers_stay_below_one(dtype):
    high = 1 - torch.finfo(dtype).eps / 2  # the largest that torch draws
    for group in (2, 10, 20, 33):
        balance = Balance()
        balance.forms = [(4000,)]
        balance.begin(group, group)
        top = balance.uniform(torch.full((4000 * group,), high, dtype=dtype)).max()
        assert 1 - 1e-4 < float(top) < 1


@pytest.mark.parametrize("group", [20, 33])
def test_coins_fall_by_patterns_that_know_their_probability(group):
    balance = Balance()
    balance.forms = [(3,)] * 200
    balance.begin(group, group)
    for prob in (0.001 * 1.06**k for k in range(120)):
        table = _table("coins", group, prob, 1.0, torch.float64, torch.device("cpu"))
        near = abs(float(table.mean()) - prob) <= 0.002 * min(prob, 1 - prob)
        assert balance._coins((3 * group,), prob) == (3 if near else 0)


ODD = {  # calls that are none for patterns
    "evaluation": lambda x: functional.dropout(x, 0.3, False),
    "nothing": lambda x: functional.dropout(x, 0.0),
    "everything": lambda x: functional.dropout(x, 1.0),
    "rare": lambda x: functional.dropout(x, 0.0005),
    "nearly all": lambda x: functional.dropout(x, 0.9995),
    "other form": lambda x: functional.dropout(x[:7], 0.3),
    "other width": lambda x: functional.dropout(x[:, :1], 0.3),
    "other axes": lambda x: functional.dropout(x[:, :, None].expand(-1, -1, 2), 0.3),
    "fewer axes": lambda x: functional.dropout(x[:, 0], 0.3),
    "no batch": lambda x: functional.dropout1d(x, 0.3),
    "alpha evaluation": lambda x: functional.alpha_dropout(x, 0.3),
    "alpha in place": lambda x: functional.alpha_dropout(x, 0.3, True, True),
    "alpha nothing": lambda x: functional.alpha_dropout(x, 0.0, True),
    "alpha everything": lambda x: functional.alpha_dropout(x, 1.0, True),
    "alpha rare": lambda x: functional.alpha_dropout(x, 0.0005, True),
    "alpha other form": lambda x: functional.alpha_dropout(x[:7], 0.3, True),
    "rrelu evaluation": lambda x: functional.rrelu(x),
    "rrelu in place": lambda x: functional.rrelu(x, training=True, inplace=True),
    "rrelu other form": lambda x: functional.rrelu(x[:7], training=True),
    "bernoulli of its own": lambda x: x.bernoulli_(0.5, generator=torch.manual_seed(3)),
    "bernoulli flags": lambda x: (x > 0).bernoulli_(0.5),
    "bernoulli of many": lambda x: x.bernoulli_(torch.full_like(x, 0.3)),
    "bernoulli of one": lambda x: x.bernoulli_(torch.tensor(0.3)),
    "bernoulli 1": lambda x: x.bernoulli_(1.0),
    "bernoulli 0": lambda x: x.bernoulli_(0.0),
    "bernoulli other form": lambda x: x[:7].bernoulli_(0.3),
    "uniform of its own": lambda x: torch.rand(x.shape, generator=torch.manual_seed(3)),
    "uniform into": lambda x: torch.rand(x.shape, out=x),
    "uniform half": lambda x: torch.rand(x.shape, dtype=torch.float16),
    "uniform other form": lambda x: torch.rand(7, 2),
    "normal of its own": lambda x: torch.randn(x.shape, generator=torch.manual_seed(3)),
    "normal into": lambda x: torch.randn(x.shape, out=x),
    "normal other form": lambda x: torch.randn(7, 2),
    "one number": lambda x: torch.rand(()) + torch.randn(()),
    "attention": lambda x: attending(x[:, None], 0.0),
    "attention by default": lambda x: functional.scaled_dot_product_attention(x, x, x, None),
}


@pytest.mark.parametrize("name", ODD)
def test_odd_calls_are_those_of_torch(name):
    found = []
    for balance in (Balance(used=None), Balance(used=set())):
        balance.forms = [(2, 2)] * 3
        x = torch.linspace(-2, 3, 80).reshape(40, 2)
        with balance:
            balance.begin(20, 20)
            torch.manual_seed(0)
            found.append(ODD[name](x))
    torch.testing.assert_close(*found, rtol=0, atol=0)


def test_pairs_cancel_and_groups_of_one_are_as_torch_draws_them():
    balance, x = Balance(), torch.ones(8, 3)
    balance.forms = [(2, 3)]

    def drawn(group):
        torch.manual_seed(0)
        with balance:
            balance.begin(4, group)
            return functional.dropout(x)

    found = drawn(1)
    torch.manual_seed(0)
    torch.testing.assert_close(found, functional.dropout(x), rtol=0, atol=0)
    for group in (2, 4):
        torch.testing.assert_close(drawn(group).reshape(group, -1).mean(0), torch.ones(24 // group))


def seq_first(self, x):
    """Positions along the first axis: as many as there are rows of 4 copies."""
    h = x.T[:, :, None].expand(-1, -1, 2)  # (positions, batch, 2)
    return self.layer(functional.dropout(h, 0.5).mean(2).T)


def batch_last(self, x):
    """Rows within a flattened axis, as its fastest part."""
    h = functional.dropout(x.T.reshape(-1, 1), 0.5)
    return self.layer(h.reshape(x.shape[1], -1).T)


def heads(self, x):
    """Rows within a flattened axis, as its slowest part."""
    return self.layer(functional.dropout(x.reshape(-1, 2), 0.5).reshape(len(x), -1))


@pytest.mark.parametrize(("run", "known"), [(seq_first, False), (batch_last, False), (heads, True)])
def test_draws_are_balanced_only_where_it_is_shown_whose_they_are(run, known):
    torch.manual_seed(0)
    model, x = Run(run, 8), torch.randn(2, 8)
    with torch.no_grad(), modes(model, noise=True):
        forms = balanced(model, x, None).forms
    assert bool(forms) and all(form is not None for form in forms) if known else not any(forms)
    with torch.no_grad():
        truth = predictive_moments(model, x, draws=0)
    assert truth.exact
    found = [mc_moments(model, x, 20) for _ in range(100)]
    ratio = torch.stack([one.variance for one in found]).mean(0) / truth.variance
    assert ((ratio - 1).abs() < 5 * (2 / 19 / 100) ** 0.5).all()
    away = torch.stack([one.mean for one in found]) - truth.mean
    left = float((away.square() / truth.variance).mean()) * 20
    assert left < 0.1 if known else 0.7 < left < 1.4


@pytest.mark.parametrize("name", DRAWS)
def test_rows_that_alternate_are_seen_in_every_draw(name):
    """Copies of a row far apart, and next to each other."""
    draw = DRAWS[name]
    apart = Run(lambda s, x: draw(x.reshape(-1, 2)).reshape(len(x), -1))
    mixed = Run(lambda s, x: draw(x.T.reshape(-1, 2)).reshape(x.shape[1], -1).T)
    x = torch.linspace(-2, 3, 16).reshape(2, 8)
    for model, known in ((apart, True), (mixed, False)):
        forms = balanced(model, x, None).forms
        assert (bool(forms) and None not in forms) == known


def test_passes_in_turn_are_balanced_too():
    """Noise on weights, which all rows share: one copy to a pass."""
    torch.manual_seed(0)
    model = Run(lambda self, x: functional.linear(x, functional.dropout(self.layer.weight, 0.3)))
    x = torch.randn(4, 6)
    with torch.no_grad():
        truth = predictive_moments(model, x, draws=0)
    found = [mc_moments(model, x, 20) for _ in range(60)]
    ratio = torch.stack([one.variance for one in found]).mean(0) / truth.variance
    assert ((ratio - 1).abs() < 5 * (2 / 18 / 60) ** 0.5).all()
    away = torch.stack([one.mean for one in found]) - truth.mean
    assert float((away.square() / truth.variance).mean()) * 20 < 0.05
    # Python's coins too: y or 2 y, at .7 and .3.
    model.run = lambda self, x: self.layer(x) * (1 + (random.random() < 0.3))  # noqa: S311
    y = model.layer(x).detach()
    found = [mc_moments(model, x, 20) for _ in range(60)]
    ratio = torch.stack([one.variance for one in found]).mean(0) / (0.21 * y**2)
    assert ((ratio - 1).abs() < 0.1).all()
    away = torch.stack([one.mean for one in found]) / y - 1.3
    assert float(away.square().mean()) / 0.21 * 20 < 0.05
    # What nobody sees is as it falls, and the stated error knows.
    model.run = lambda self, x: self.layer(x) * random.choice((0.0, 2.0))  # noqa: S311
    samples = Samples(model, x, None, covariance=False)
    samples.draw(400)
    assert samples.left > 0.5


def test_everything_is_back_in_its_place():
    before = [(place, name, getattr(place, name)) for place, name, _ in _STAND_INS]
    with Balance(used=None), Balance(used=None):
        assert all(getattr(place, name) is not old for place, name, old in before)
    assert all(getattr(place, name) is old for place, name, old in before)
    assert "bernoulli_" not in vars(torch.Tensor)


def test_what_patterns_cannot_say_is_drawn_as_torch_draws_it():
    """Small probabilities, numbers of half precision, generators of one's own."""
    x = torch.ones(40, 20_000)
    balance = Balance(used=None)
    balance.forms = [(1, 20_000)]
    balance.begin(40, 20)
    with balance:
        torch.manual_seed(0)
        dropped = (functional.dropout(x, 0.0023) == 0).double().mean()
        balance.begin(40, 20)
        half = torch.rand(40, 20_000, dtype=torch.bfloat16).double()
        balance.begin(40, 20)
        fixed = torch.rand(40, 20_000, generator=torch.Generator().manual_seed(1))
        balance.begin(40, 20)
        turned = torch.randn_like(x.T.contiguous().T)
        balance.take(0, 20, seed=3)
        alone = torch.rand(7, generator=torch.Generator().manual_seed(1))
        balance.begin(40, 20)
        rare = x.new_empty(x.shape).bernoulli_(1e-4)
    assert abs(float(dropped) - 0.0023) < 5 * (0.0023 / x.numel()) ** 0.5
    assert abs(float(rare.mean()) - 1e-4) < 5 * (1e-4 / x.numel()) ** 0.5
    assert abs(float(half.var()) * 12 - 1) < 0.02
    torch.testing.assert_close(fixed.flatten()[:7], alone)
    torch.testing.assert_close(
        fixed, torch.rand(40, 20_000, generator=torch.Generator().manual_seed(1))
    )
    assert float(turned.reshape(20, 2, 20_000).mean(0).abs().max()) < 1e-6
    assert abs(float(turned.var()) - 1) < 0.02


@pytest.mark.parametrize("n", [20, 60])
def test_the_stated_error_of_a_mean_knows_what_cancels(n):
    torch.manual_seed(1)
    layers = [nn.Linear(6, 32), nn.ReLU(), nn.Dropout(0.3), nn.Linear(32, 32), nn.Tanh()]
    model = nn.Sequential(*layers, nn.Dropout(0.2), nn.Linear(32, 3))
    x = torch.randn(4, 6)
    truth = mc_moments(model, x, 40_000)
    z, stated = [], []
    for _ in range(40):
        found = mc_moments(model, x, n)
        z.append((found.mean - truth.mean) / found.mean_error * 2)
        stated.append(float((found.mean_error / truth.std).mean()) / 2 * math.sqrt(n))
    assert float(torch.stack(z).square().mean()) < 1.1  # standard errors, at most
    assert sum(stated) / 40 < 0.75


def coin(prob):
    return lambda s, x: s.layer(functional.dropout(x, 0.5)) + 3.0 * bool(torch.rand(()) < prob)


RARE = coin(0.01)
"""Which a few passes do not show."""


def wide(size):
    return lambda s, x: s.layer(functional.dropout(x, 0.5)) + size * torch.rand(600).sub(0.5).sum()


@pytest.mark.parametrize(("run", "apart", "sure"), [
    (coin(0.0), True, True), (RARE, False, False),
    (wide(1e-3), None, True), (wide(0.3), None, False),
])  # fmt: skip
def test_copies_are_independent_but_for_what_matters(run, apart, sure):
    """A coin that all rows share, or many numbers."""
    torch.manual_seed(0)
    model, x = Run(run), torch.randn(3, 6)
    with torch.no_grad():
        with modes(model, noise=True):
            assert draws_apart(model, x, None) is apart
        mc_moments(model, x, 160)
        samples = Samples(model, x, None, covariance=False)
        samples.draw(3000)
        assert samples._sure == sure
        with modes(model, noise=True):
            plain = torch.stack([model(x) for _ in range(6000)])
    near = 0.3 if run is RARE else 0.12
    assert (samples.variance.sqrt() / plain.std(0) - 1).abs().max() < near


def test_threads_take_turns_and_leave_torch_as_it_was():
    def state():
        fast = torch.backends.mha.get_fastpath_enabled()
        return functional.dropout, torch.rand, torch.utils.checkpoint.CheckpointFunction, fast

    before, net = state(), nn.Sequential(nn.Linear(6, 30), nn.Dropout(0.5), nn.Linear(30, 2)).eval()
    x, sure = torch.randn(4, 6), torch.ones(8)
    sd = predictive_moments(net, x).std
    stop, odd = threading.Event(), []

    def alone():  # functional dropout of a thread that has nothing to do with it
        while not stop.is_set():
            here = functional.dropout(sure, 0.25)
            odd.extend(here[(here != 0) & ((here - 4 / 3).abs() > 1e-6)].tolist())

    with ThreadPoolExecutor(5) as pool:
        pool.submit(alone)
        try:
            found = list(pool.map(lambda _: mc_moments(net, x, 400), range(12)))
        finally:
            stop.set()
    for one in found:  # in evaluation mode, or without masks of its own, one has too small a sd
        torch.testing.assert_close(one.std, sd, rtol=0.25, atol=0)
    assert not odd
    assert not any(module.training for module in net.modules())
    assert state() == before


OWN = torch.Generator()


def dropped(s, x):
    return s.layer(functional.dropout(x, 0.2))


def band(s, x):
    u = torch.rand(())
    return dropped(s, x) * (1 + 2 * ((u > 0.42) & (u < 0.48)))


def unseen(s, x):
    """A draw that no mode is told of."""
    with torch._C.DisableTorchFunction():
        return torch.rand(x.shape)


def read(number):
    """Python reads a number, which decides for all rows."""
    return lambda s, x: dropped(s, x) * (2 if number(s, x) else 1)


APART = {  # whether all that is drawn is seen, and belongs to rows; None if samples show it
    "units": (dropped, True),
    "nothing": (lambda s, x: s.layer(x), True),
    "unseen before": (lambda s, x: dropped(s, x * unseen(s, x)), False),
    "unseen after": (lambda s, x: dropped(s, x) * unseen(s, x)[:, :3], False),
    "rows read": (read(lambda s, x: functional.dropout(x).sum() > 24), False),
    "rarely": (read(lambda s, x: functional.dropout(x[:, :1]).sum() == 0), False),
    "read in vain": (read(lambda s, x: functional.dropout(x).sum() > 99), True),
    "nothing random read": (read(lambda s, x: x.mean() > 0), True),
    "row by row": (lambda s, x: torch.stack([dropped(s, row) for row in x]), False),
    "python": (lambda s, x: dropped(s, x) * random.random(), False),  # noqa: S311
    "numpy": (lambda s, x: dropped(s, x) * float(np.random.rand()), False),  # noqa: NPY002
    "own": (lambda s, x: dropped(s, x) * torch.rand(x.shape[:1], generator=OWN)[:, None], False),
    "order": (lambda s, x: dropped(s, x[torch.randperm(len(x))]), False),
    "coin": (lambda s, x: dropped(s, x) * (torch.rand(1) < 0.5), False),
    "idle": (lambda s, x: dropped(s, x) * (torch.rand(1) < 1.5), True),
    "idle twice": (lambda s, x: dropped(s, x) * (torch.rand(1) < 1) * (torch.rand(1) < 1), True),
    "normal": (lambda s, x: dropped(s, x) + 0 * torch.randn(1), False),
    "both": (lambda s, x: dropped(s, x) + 0 * torch.rand(1) + 0 * torch.randn(1), False),
    "many": (lambda s, x: dropped(s, x) + torch.randn(512).sum(), None),
    "fewer": (lambda s, x: dropped(s, x) + torch.randn(511).sum(), False),
    "idle and many": (lambda s, x: dropped(s, x) + torch.rand(1) * 0 + torch.rand(512)[0], None),
    "coin and many": (lambda s, x: dropped(s, x) * torch.rand(1) + torch.rand(512)[0], False),
    "many by few": (lambda s, x: dropped(s, x) + s.shared(s.tokens)[0][-1].sum(), None),
    "band": (band, False),  # which does nothing at both ends
    "two": (lambda s, x: dropped(s, x) * (1 + (torch.rand(()) < torch.rand(()))), False),
}


@pytest.mark.parametrize("name", APART)
def test_what_rows_share_is_told(name):
    run, apart = APART[name]
    assert draws_apart(Run(run), torch.ones(4, 6), None) is apart


def written(s, x):
    c = torch.zeros(3)
    c[0] = torch.rand(())
    return c[0] < 0.5


BESIDE = {  # whether copies may stand in one pass: what is read was drawn alone, and no rows meet
    "units": (dropped, True),
    "coin": (lambda s, x: dropped(s, x) * (torch.rand(()) < 0.5), True),
    "weights": (lambda s, x: x @ functional.dropout(s.layer.weight, 0.5).T, True),
    "nothing random": (read(lambda s, x: x.mean() > 0), True),
    "coin read": (read(lambda s, x: torch.rand(()) < 0.5), True),
    "two coins": (read(lambda s, x: torch.rand(()) < torch.rand(1)), True),
    "in place": (read(lambda s, x: torch.rand(1).mul_(2) < 1), True),
    "written": (read(written), False),
    "sum": (read(lambda s, x: torch.rand(3).sum() < 1.5), False),
    "one of many": (read(lambda s, x: torch.rand(3)[0] < 0.5), False),
    "compared with rows": (read(lambda s, x: torch.rand(()) < x.mean()), False),
    "mean of rows": (read(lambda s, x: functional.dropout(x).mean() > 0.5), False),
    "mixed": (lambda s, x: x + x[torch.randperm(len(x))], False),
    "centered": (lambda s, x: x - x.mean(0), False),
    "centered at times": (lambda s, x: x - x.mean(0) * (torch.rand(()) < 0.4), False),
    "centered but the first": (lambda s, x: torch.cat([x[:1], x[1:] - x[1:].mean(0)]), False),
    "so many rows": (lambda s, x: dropped(s, x.reshape(4, 6)), False),
}


@pytest.mark.parametrize("name", BESIDE)
def test_copies_share_a_pass_where_rows_do_not_meet(name):
    torch.manual_seed(0)
    run, told = BESIDE[name]
    assert beside(Run(run), torch.randn(4, 6), None) is told


def test_one_row_is_asked_beside_another():
    """Which its copies would not tell of."""
    torch.manual_seed(0)
    center = Run(lambda s, x: x - x.mean(0))
    for width in (2, 3):
        assert not beside(center, torch.randn(1, width), None)
        assert not rows_apart(center, torch.randn(1, width), None)


def test_numbers_of_python_are_spread_over_passes_in_turn():
    """One in each gth to a group, any of them alike, and none that tells the next."""
    balance, group, n = Balance(used=None), 20, 1200
    found = np.empty((group, n))
    with balance:
        for turn in range(group):
            balance.take(turn, group, seed=2**61 + 12345)
            found[turn] = [random.random() for _ in range(n)]  # noqa: S311
    ranks = np.floor(found * group).astype(int)
    np.testing.assert_array_equal(np.sort(ranks, 0), np.arange(group)[:, None].repeat(n, 1))
    error = (n / group * (1 - 1 / group)) ** 0.5
    for row in ranks:
        assert np.abs(np.bincount(row, minlength=group) - n / group).max() < 5 * error
        for step in (1, 2, 20):
            assert abs(np.corrcoef(row[:-step], row[step:])[0, 1]) < 5 / n**0.5
    assert abs(found.mean() - 0.5) < 5 * (1 / 12 / found.size) ** 0.5


def test_numbers_beside_the_rows_are_given_as_they_are():
    """Copies of a number are none: passes hold one copy. Var = t^2 x^2 p / (1 - p)."""

    class Scaled(nn.Module):
        def forward(self, x, t):
            return functional.dropout(x, 0.5, self.training) * t

    torch.manual_seed(0)
    x, t = torch.tensor([[0.5, -1.0], [2.0, 3.0]]), torch.tensor(1.5)
    found = mc_moments(Scaled(), {"x": x, "t": t}, 40)
    torch.testing.assert_close(found.mean, t * x)  # balanced among passes in turn:
    torch.testing.assert_close(found.variance, t**2 * x**2)  # each is dropped in half of them
