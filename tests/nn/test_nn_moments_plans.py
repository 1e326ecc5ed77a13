"""Moments that are carried by a plan: the same numbers, and never those of another model."""

from __future__ import annotations

import copy
import itertools
import math
from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

import overt.nn.predictive as room
from overt import InputError
from overt.nn import (
    CovarianceDropout,
    DropConnectLinear,
    Dropout,
    mc_moments,
    predictive_moments,
)
from overt.nn.moments import budget, plans, replays
from overt.nn.moments.budget import Costs
from overt.nn.moments.carry import carry
from overt.nn.moments.errors import Found
from overt.nn.moments.noises import coins
from overt.nn.moments.plans import Plan, Recorder, Unplanned, unrecorded
from overt.nn.moments.pooling import largest_moments
from overt.nn.moments.replays import _key, replayed
from overt.nn.moments.result import Moments
from overt.nn.moments.samples import Samples


class Net(nn.Module):
    """A forward pass written as a function, with settings of all sorts."""

    def __init__(self, run=lambda self, x: self.inner(x)):
        super().__init__()
        self.a, self.b, self.norm = nn.Linear(6, 16), nn.Linear(16, 3), nn.BatchNorm1d(16)
        self.run, self.settings = run, {"rates": [0.3], "more": SimpleNamespace(scale=1.0)}
        self.shift = torch.zeros(16)

    def inner(self, x, branch=False):
        h = self.norm(self.a(x)) * self.settings["more"].scale + self.shift
        h = functional.gelu(h) if branch else torch.relu(h)
        return self.b(functional.dropout(h, self.settings["rates"][0], self.training))

    def forward(self, x):
        return self.run(self, x)


def moments(model, x, **options):
    with torch.no_grad():
        return predictive_moments(model, x, draws=0, **options)


def planned(model, x, monkeypatch, **options):
    """Return moments after a first call, and whether they were replayed."""
    calls, carry = [], room.carry
    monkeypatch.setattr(room, "carry", lambda *a, **k: calls.append(1) or carry(*a, **k))
    found = moments(model, x, **options)
    monkeypatch.undo()
    return found, not calls


def assert_fresh(found, model, x, **options):
    expected = moments(copy.deepcopy(model), x, **options)
    for name in ("mean", "variance", "mean_error", "std_error"):
        torch.testing.assert_close(
            getattr(found, name), getattr(expected, name), rtol=1e-4, atol=1e-6
        )
    assert (found.method, found.carried, found.drawn) == (
        expected.method, expected.carried, expected.drawn,
    )  # fmt: skip


@pytest.mark.parametrize(
    "build",
    [
        Net,
        lambda: nn.Sequential(nn.Linear(6, 16), nn.GELU(), nn.Dropout(0.2), nn.LayerNorm(16),
                              nn.Linear(16, 8), nn.SiLU(), nn.Dropout(0.2), nn.Linear(8, 3)),
        lambda: nn.Sequential(
            nn.Unflatten(1, (3, 2)), nn.Linear(2, 8),
            nn.TransformerEncoderLayer(8, 2, 16, 0.2, batch_first=True), nn.Flatten()),
        lambda: nn.Sequential(nn.Unflatten(1, (1, 6)), nn.Conv1d(1, 4, 3, padding=1), nn.ReLU(),
                              nn.Dropout1d(0.3), nn.Conv1d(4, 4, 3), nn.MaxPool1d(2), nn.Flatten()),
    ],
)  # fmt: skip
def test_a_plan_gives_what_carrying_gives_for_other_rows_and_weights(build, monkeypatch):
    torch.manual_seed(0)
    model, x = build(), torch.randn(5, 6)
    moments(model, x)
    with torch.no_grad():
        for weight in (*model.parameters(), *model.buffers()):
            if weight.is_floating_point():
                weight.mul_(1.5).add_(0.1)
    for rows in (x, torch.randn(5, 6)):
        found, replayed = planned(model, rows, monkeypatch)
        assert replayed
        assert_fresh(found, model, rows)
    found, replayed = planned(model, torch.randn(4, 6), monkeypatch)  # another form
    assert not replayed


def _hook(module, args, output):
    return output * 2


CHANGES = {
    "rate": lambda m: m.settings["rates"].__setitem__(0, 0.4),
    "nested": lambda m: setattr(m.settings["more"], "scale", 2.0),
    "tensor": lambda m: setattr(m, "shift", torch.ones(16)),
    "parameter": lambda m: setattr(m, "a", nn.Linear(6, 16)),
    "buffer": lambda m: setattr(m.norm, "running_mean", torch.ones(16)),
    "hook": lambda m: m.a.register_forward_hook(_hook),
    "code": lambda m: setattr(m, "run", lambda self, x: self.inner(x, branch=True)),
    "type": lambda m: m.bfloat16().float().double(),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES.keys())
def test_a_plan_is_not_used_for_a_model_that_changed(change, monkeypatch):
    torch.manual_seed(0)
    model, x = Net(), torch.randn(5, 6)
    moments(model, x)
    assert planned(model, x, monkeypatch)[1]
    change(model)
    x = x.to(model.b.weight.dtype)
    assert_fresh(moments(model, x), model, x)
    found, replayed = planned(model, x, monkeypatch)  # a new plan
    assert replayed
    assert_fresh(found, model, x)


@pytest.mark.parametrize("layer", [lambda: Dropout(0.3), lambda: DropConnectLinear(6, 6, 0.3),
                                   lambda: CovarianceDropout([1.0] * 6, 0.3 * torch.eye(6) + 0.1),
                                   lambda: nn.Dropout(0.3, inplace=True)])  # fmt: skip
def test_rates_of_layers_may_change_and_inputs_do_not(layer):
    torch.manual_seed(0)
    model, x = nn.Sequential(layer(), nn.Linear(6, 4), nn.ReLU(), nn.Linear(4, 2)), torch.rand(5, 6)
    before = x.clone()
    for rate in (None, None, 0.5, 0.5):
        if rate is not None and hasattr(model[0], "drop_prob"):
            model[0].drop_prob = rate
        elif rate is not None and hasattr(model[0], "p"):
            model[0].p = rate
        assert_fresh(moments(model, x), model, x)
    assert torch.equal(x, before)


def test_what_a_pass_does_not_show_of_a_model_may_change():
    """A layer draws by a root of its covariance, which is what moments read."""
    layer, x = CovarianceDropout([1.0] * 6, 0.3 * torch.eye(6) + 0.1), torch.rand(5, 6)
    model = nn.Sequential(layer, nn.Linear(6, 4), nn.ReLU(), nn.Linear(4, 2))
    first = moments(model, x)
    layer.covariance = 2 * layer.covariance
    found = moments(model, x)
    assert_fresh(found, model, x)
    assert (found.std > 1.2 * first.std).all()


def test_a_plan_is_not_used_where_data_decide_otherwise(monkeypatch):
    model = Net(lambda self, x: self.inner(x, branch=bool(x.sum() > 0)))
    low = -torch.rand(5, 6)
    for x, expected in ((low, False), (low / 2, True), (-low, False), (-low / 2, True)):
        found, replayed = planned(model, x, monkeypatch)
        assert replayed is expected
        assert_fresh(found, model, x)


def test_another_output_has_another_plan(monkeypatch):
    model = Net(lambda self, x: {"y": self.inner(x), "z": 2 * self.inner(x)})
    x, key = torch.randn(5, 6), ["y"]
    for name in ("y", "z", "y"):
        key[0] = name
        found = moments(model, x, output=lambda o: o[key[0]])
        assert_fresh(found, model, x, output=lambda o, name=name: o[name])
    for i in (0, 1):
        found = moments(model, x, output=lambda o, i=i: o["y"][:, i])
        assert found.mean.shape == (5,)
        both = moments(model, x, output=lambda o: o["y"])
        torch.testing.assert_close(found.mean, both.mean[:, i])

    def column(i):
        return lambda o: o["y"][:, i]

    for k in range(4):
        found, replayed = planned(model, x, monkeypatch, output=column(k % 2))
        assert replayed == (k > 1)
        torch.testing.assert_close(found.mean, both.mean[:, k % 2])


def test_another_of_the_same_calls_has_another_plan():
    """Which of its tensors a model returns is not seen in what it calls."""
    which = [0]

    def run(self, x):
        h = self.b(self.a(x))
        return [x, h, functional.dropout(h, 0.5, self.training)][which[0]]

    model, x = Net(run), torch.randn(5, 6)
    model.a, model.b = nn.Linear(6, 6), nn.Linear(6, 6)
    for first, then in itertools.permutations(range(3), 2):
        for which[0] in (first, first, then):
            assert_fresh(moments(model, x), model, x)


def test_forms_of_inputs_have_plans_of_their_own():
    def forms(fill):
        x = torch.full((2, 3), fill)
        y, z = x.clone(), x.clone()
        return [x, x.double(), x[:1], x.T, torch.full((3, 2), fill), (x,), [x], (x, x), (x, y),
                (x, y, x), (x, y, y), (x, y, z), (x, 1), (x, 2), (x, True), (x, 1.0), (x, "a"),
                {"a": x}, {"b": x}, {"a": x, "b": 1}, (x, [y]), (x, (y,)), (x, None)]  # fmt: skip

    keys = [_key(form, None) for form in forms(1.0)]
    assert None not in keys
    assert len(set(keys)) == len(keys)
    assert keys == [_key(form, None) for form in forms(2.0)]  # values do not count
    x = forms(1.0)[0]
    with torch.autocast("cpu", torch.bfloat16):
        low = _key(x, None)
    with torch.autocast("cpu", torch.float16):
        half = _key(x, None)
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    double = _key(x, None)
    torch.set_default_dtype(before)

    def column(i):
        return lambda o: o[:, i]

    outputs = [lambda o: o, lambda o: o[0], partial(max), column(0), column(1)]
    found = [keys[0], low, half, double, *(_key(x, output) for output in outputs)]
    assert None not in found
    assert len(set(found)) == len(found)
    with torch.inference_mode():
        odd = torch.ones(2, 3)
    cell = [0]
    strange = torch.ones(2, 3).as_subclass(type("Own", (torch.Tensor,), {}))
    for given, output in (
        (odd, None),
        (strange, None),
        ((x, {1}), None),
        (x, lambda o: o[cell[0]]),
    ):
        assert _key(given, output) is None


def test_inputs_that_are_one_tensor_have_a_plan_of_their_own():
    class Two(Net):
        def forward(self, x, y):
            return torch.tanh(self.inner(x) + 2 * self.inner(y))

    model, x, y = Two(), torch.randn(5, 6), torch.randn(5, 6)
    for given in ((x, x), (x, x), (x, y), (x, y)):
        assert_fresh(moments(model, given), model, given)
    model.shift = torch.randn(5, 16)
    model.a = nn.Identity()
    model.norm = nn.Identity()
    y, z = torch.randn(2, 5, 16)
    for given in ((model.shift, y), (z, y), (z, y)):
        assert_fresh(moments(model, given), model, given)


def test_values_that_leave_torch_and_draws_are_not_planned(monkeypatch):
    x = torch.rand(5, 6)
    by_numpy = Net(lambda self, x: self.inner(x * float(x.numpy().sum())))
    by_coin = Net(lambda self, x: self.inner(x) * (1 if torch.rand(()) < 0.5 else 2))
    for model in (by_numpy, by_coin):
        for rows in (x, 2 * x, 3 * x):
            with torch.no_grad():
                found = predictive_moments(copy.deepcopy(model), rows)
                again = predictive_moments(model, rows)
            assert found.method == again.method
            torch.testing.assert_close(found.std, again.std, rtol=0.3, atol=0)
    assert found.method == "sampled"


def test_gradients_come_through_a_plan(monkeypatch):
    torch.manual_seed(0)
    model, x = Net(lambda self, x: torch.tanh(self.inner(x))), torch.randn(5, 6)
    weights = [model.a.weight, model.b.weight, x.requires_grad_()]
    one = carry(model, x)
    expected = torch.autograd.grad((one.output.mean + one.variances()).sum(), weights)
    for _ in range(2):
        found = predictive_moments(model, x, draws=0)
        grads = torch.autograd.grad((found.mean + found.variance).sum(), weights)
        for a, b in zip(grads, expected, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-6)
    with torch.inference_mode():
        again = predictive_moments(model, x, draws=0)
    torch.testing.assert_close(again.mean, found.mean.detach())
    assert not again.mean.is_inference()


PROGRAMS = {  # of an input and a tensor from outside
    "product": lambda x, w: [x * w + 1],
    "numbers": lambda x, w: [torch.add(2 * x - 0.5, w, alpha=3) / 4, x.sum(1, keepdim=True) * 7],
    "nothing": lambda x, w: [x, w, x],
    "parts": lambda x, w: [x[0], x[0], w[1:], x.detach(), w.view(2, 2), torch.ones(4)[1:]],
    "same": lambda x, w: [(y := x * w), y, x * w, y.detach(), y.view(-1, 4)],
    "constants": lambda x, w: [x * torch.arange(4.0), torch.full((2,), math.inf), torch.ones(3)],
    "many": lambda x, w: [x.chunk(2, 1)[1] * 2, torch.cat([x, w.expand(2, 4)]), *x.max(1)],
    "no numbers": lambda x, w: [(x * w).log(), x / 0],
    "gather": lambda x, w: [x.gather(1, x.argsort(1)), torch.where(x > 0, x, w)],
    "added": lambda x, w: [torch.zeros(2, 4).add_(x).mul_(w)],
    "by hand": lambda x, w: [(c := torch.ones(4)).mul_(3).add_(1), x * c],
    "before and after": lambda x, w: [x + (c := torch.zeros(4)), c.add_(1), x + c, c.sum()],
    "one of two": lambda x, w: [(c := torch.arange(4.0).sort())[0].add_(1) * x, x[:, c[1]]],
    "through views": lambda x, w: [(y := x * 2), y[:, 0].mul_(w[0]), y[:, 1:].add_(1), y + 1],
    "and not returned": lambda x, w: [((y := x * 2), y[:, 0].mul_(w[0]))[0] + 1],
    "into another": lambda x, w: [torch.mul(x, w, out=torch.empty(2, 4))],
    "into views": lambda x, w: [(y := x * 2), y.__setitem__((0, 1), w[1]) or y * w],
    "no draws": lambda x, w: [functional.rrelu(x), functional.dropout(x, 0.0)],
    "unused draws": lambda x, w: [(torch.rand(3), x * w)[1]],
    "equal constants": lambda x, w: [x * (2 if torch.ones(2).equal(torch.ones(2)) else 3)],
    "spare": lambda x, w: [x.sort(1)[1], torch.nn.functional.layer_norm(x, (4,), w, None)],
    "kept formats": lambda x, w: [x.double() * 0.1, x.to(torch.float16) * 2, x.long() * 2],
}  # fmt: skip


def unseen(h):
    with unrecorded():
        return h[0]


def changed_behind(x):
    """Numbers that NumPy writes where torch read them."""
    numbers = np.zeros(4, np.float32)
    made = 0 * x + torch.from_numpy(numbers)
    numbers += 0.5
    return [2 * x, made]


REFUSED = {
    "changed": lambda x, w: changed_behind(x),
    "draws": lambda x, w: [x * torch.rand(4)],
    "drawn in place": lambda x, w: [x * torch.zeros(4).uniform_()],
    "compared": lambda x, w: [x if torch.equal(x[0], w) else w],
    "written": lambda x, w: [x.mul_(2)],
    "written outside": lambda x, w: [x * w.add_(1)],
    "written part": lambda x, w: [(x[0].add_(1), x.sum())[1]],
    "unseen": lambda x, w: [unseen(x * 2) + 1],
}


def recorded(program, x, w):
    with torch.no_grad():
        with Recorder() as recorder:
            made = program(x, w)
        return Plan(recorder, [x], made)


@pytest.mark.parametrize("name", PROGRAMS)
def test_what_was_recorded_is_done_again(name):
    """For other inputs and other values outside, whatever was done to earlier answers."""
    torch.manual_seed(0)
    program, x, w = PROGRAMS[name], torch.randn(2, 4), torch.randn(4)
    plan = recorded(program, x, w)
    for scale in (1.0, -2.0, 0.5):
        w.mul_(scale)
        x = scale * torch.randn(2, 4)
        before, state = (x.clone(), w.clone()), torch.get_rng_state()
        found = plan([x])
        assert torch.equal(torch.get_rng_state(), state)
        torch.testing.assert_close(found, program(x.clone(), w.clone()), equal_nan=True)
        for value in found:
            value.fill_(7)
        torch.testing.assert_close((x, w), before, rtol=0, atol=0)


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_done_again_is_refused(name):
    with pytest.raises(Unplanned):
        recorded(REFUSED[name], torch.randn(2, 4), torch.randn(4))


@pytest.mark.parametrize(("name", "most"), [("MOST", 23), ("STEPS", 2)])
def test_recordings_that_are_too_long_are_given_up(monkeypatch, name, most):
    """Three steps of eight numbers each."""
    for limit in (most, most + 1):
        monkeypatch.setattr(plans, name, limit)
        x, w = torch.ones(2, 4), torch.ones(4)
        if limit == most:
            with pytest.raises(Unplanned):
                recorded(lambda x, w: [(x * w).exp() + 1], x, w)
        else:
            torch.testing.assert_close(recorded(lambda x, w: [(x * w).exp() + 1], x, w)([x]),
                                       [x.exp() + 1])  # fmt: skip


def test_numbers_that_were_read_and_forms_outside_are_compared():
    x, w = torch.ones(2, 4), torch.ones(4)
    plan = recorded(lambda x, w: [x * float(w.max()), w + int(x[0, 0])], x, w)
    other = x + torch.arange(4.0)
    torch.testing.assert_close(plan([other]), [other, w + 1])
    assert plan([x + 1]) is None
    w.mul_(0.5)
    assert plan([x]) is None
    for data in (torch.ones(4).double(), torch.ones(8)[::2], torch.ones(1, 4), torch.ones(4)):
        w.data = data
        assert (plan([x]) is None) == (data.dtype != x.dtype or data.shape != (4,)
                                       or data.stride() != (1,))  # fmt: skip


def test_plans_that_do_not_hold_are_given_up_and_old_forms_forgotten(monkeypatch):
    made = []

    class Counted(Recorder):
        def __init__(self):
            super().__init__()
            made.append(1)

    def recorded_for(model, *inputs):
        made.clear()
        return [(moments(model, x), len(made))[1] for x in inputs]

    monkeypatch.setattr(replays, "Recorder", Counted)
    monkeypatch.setattr(replays, "FORMS", 3)
    x = torch.rand(2, 6)
    scaled = [k * x for k in range(1, 8)]
    odd = Net(lambda self, x: self.inner(x * float(x.sum())))
    assert recorded_for(odd, *scaled) == [1, 2, 3, 4, 4, 4, 4]
    read = Net(lambda self, x: self.inner(x if float(x.sum()) > 0 else -x))
    assert recorded_for(read, *scaled) == [1, 2, 3, 4, 4, 4, 4]  # though all calls are the same
    odd = copy.deepcopy(odd)  # what holds now and then is planned on
    assert recorded_for(odd, *(x for x in scaled for _ in range(2))) == [
        1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7]  # fmt: skip
    forms = [torch.rand(n, 6) for n in (1, 2, 3, 4)]
    assert recorded_for(Net(), *forms, *forms[:0:-1], *forms) == [1, 2, 3, 4, 4, 4, 4, 5, 6, 7, 8]


def test_what_is_not_to_be_planned_has_gradients_all_the_same():
    model, x = nn.Linear(3, 2), torch.ones(4, 3)
    for split in (lambda made: None, lambda made: ([made, made], lambda values: values[0])):
        for _ in range(3):
            made = replayed(model, x, None, lambda: model(x), split)
            torch.testing.assert_close(made, model(x))
            (found,) = torch.autograd.grad(made.sum(), model.weight)
            torch.testing.assert_close(found, x.sum(0).expand(2, 3))


def test_a_budget_is_spent_on_what_comes_closest():
    line = ((10.0, 10.0), (80.0, 80.0))
    off, spread = (0.03, 0.04), (1.0, 0.7)
    costs = Costs(1.0, 12.0, line, off, off, spread)
    assert costs.choice(5) == (False, 5)
    assert costs.choice(1) == (False, 2)  # a variance takes two
    assert costs.choice(15) == (True, 0)
    assert [costs.choice(n)[0] for n in (11.9, 12)] == [False, True]  # what it costs is enough
    assert costs._replace(one=2.0).choice(7.5) == (True, 0)
    assert [costs.choice(n) for n in (21, 22)] == [(True, 0), (True, 10)]  # ten samples at least
    assert costs.choice(400) == (True, 380)
    dear = costs._replace(carried=1e9)
    assert dear.choice(400) == (False, 400)
    assert costs._replace(off=(0.5, 0.5)).choice(15) == (False, 15)
    # Where a call costs much without any samples, some are worth their price, and so is carrying.
    fixed = costs._replace(samples=((10.0, 110.0), (80.0, 180.0)))
    assert [fixed._replace(carried=c).choice(5) for c in (150, 151)] == [(True, 0), (False, 40)]
    # Both together: shares b^2 / (b^2 + s^2) of what samples show.
    b2, s2 = 0.04**2, 0.49 / 380
    share = b2 / (b2 + s2)
    both = math.hypot(share * s2**0.5, (1 - share) * 0.04)
    assert budget._both(380, 0.04, 0.04, 0.7) == pytest.approx(both)


def test_what_seconds_buy():
    """Where the line of the price, straight on at both ends, is met; less what fills no group."""
    price = ((10, 2.0), (80, 4.0), (480, 24.0))

    def paid(n):
        (few, low), (many, high) = price[:2] if n <= 80 else price[1:]
        return low + (n - few) * (high - low) / (many - few)

    for seconds in (0.5, 1.72, 1.9, 2.1, 2.29, 2.32, 2.9, 3.2, 3.99, 4.3, 7.3, 23.9, 31.1):
        n = max((n for n in range(2000) if paid(n) <= seconds), default=0)
        assert budget._bought(seconds, price) == n - n % (20 if n >= 40 else 10 if n >= 20 else 1)
    dips = ((10, 1.0), (80, 5.0), (480, 3.0), (1920, 30.0))  # by chance
    assert budget._bought(4.0, dips) == 60
    falls = ((10, 1.0), (80, 5.0), (480, 4.9))
    assert budget._bought(20.0, falls) <= 50 * 480 * 20 / 4.9
    assert budget._bought(0.0, ((10, 0.0), (80, 0.0))) == 10  # a clock that does not move
    flat = ((10, 2.0), (80, 2.0))
    assert [budget._bought(seconds, flat) for seconds in (1.9, 2.0)] == [0, 10]


@pytest.mark.parametrize(
    ("one", "samples"),
    [
        (1e-3, (10, 80)),
        (0.055, (10, 80, 480)),
        (1.0, (10, 80, 480, 1920)),
    ],
)
@pytest.mark.parametrize("drawn", [(), ("0",)])
@torch.no_grad()
def test_costs_are_measured_and_errors_seen(monkeypatch, one, samples, drawn):
    """By a clock of our own, with what is carried off by half a standard deviation and a fifth."""
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Dropout(0.5), nn.Linear(6, 3)), torch.randn(50, 6)
    times, made = [9.0, 1.0, 8.0, 0.4, 0.2, 6.0, 0.8, 0.6, 5.0], []
    passes = itertools.chain(times, itertools.repeat(0.1))

    def seconds(x, run, repeat=5):
        if isinstance(run, partial):
            return 0.5 + 0.01 * run.args[0]
        run()
        return one * next(passes) if repeat == 1 else 0.3

    class Noted(Samples):
        def draw(self, n):
            super().draw(n)
            made.append(self)

    monkeypatch.setattr(budget, "Samples", Noted)
    monkeypatch.setattr(budget, "_seconds", seconds)
    exact = moments(model, x)
    sd = 1.2 * exact.std
    errors = {"mean_error": 0.1 * sd, "std_error": 0.5 * sd}
    planted = replace(
        exact, mean=exact.mean + 0.5 * exact.std, variance=sd**2, exact=False, **errors
    )
    found = Found(planted, ("0",), drawn, ())
    costs = budget.costs(model, x, None, lambda: found)
    assert (costs.one, costs.carried) == pytest.approx((one, 0.3))
    assert [each.count for each in made] == [160, *samples[2:][-1:]]
    last = made[-1]
    spread = [e * last.count**0.5 for e in (last.errors[0], last.shrunk()[1])]
    assert costs.spread == pytest.approx(spread, rel=0.02)
    assert costs.samples == tuple((n, pytest.approx(0.5 + 0.01 * n)) for n in samples)
    assert costs.off == pytest.approx((0.5 / 1.2, 1 - 1 / 1.2), rel=0.1)
    stated = (0.2, 0.75) if drawn else (0.05, 0.25)  # of two standard errors; doubted in threes
    assert costs.stated == pytest.approx(stated)
    many = Samples(model, x, None, covariance=False)
    many.draw(4000)
    most = ((many.kurtosis - 1) / 4) ** 0.5
    assert 0.5 * most < costs.spread[1] < 1.05 * most  # less where outputs have much in common
    assert costs.spread[0] < 0.5  # balanced draws of a linear network
    assert budget.costs(model, x, None, lambda: None) is costs  # asked once
    none = budget.costs(model, x[:9], None, lambda: replace(found, moments=None))
    assert none.carried == math.inf == none.off[0] == none.stated[1]
    near = replace(planted, mean=exact.mean, variance=exact.variance, mean_error=0.5 * sd)
    pairs = [(m, copy.deepcopy(model)) for m in (near, exact)]
    best, sure = (budget.costs(n, x, None, lambda m=m: replace(found, moments=m)) for m, n in pairs)
    assert best.off == pytest.approx((0.3 / 4, 0.3 / 4))  # of what is stated, at least
    assert max(sure.off) < 1e-6


@pytest.mark.parametrize("x", [torch.ones(2), ()])
def test_seconds_are_the_least_after_a_first_call(monkeypatch, x):
    for first in (0.5, 9.0):
        clock, left = [100.0], [first, 3.0, 2.0, 5.0]

        def run(clock=clock, left=left):
            clock[0] += left.pop(0)

        now = SimpleNamespace(process_time=lambda clock=clock: clock[0])
        monkeypatch.setattr(budget, "time", now)
        assert budget._seconds(x, run, 3) == 2.0
        assert not left


@pytest.mark.parametrize("away", [0.0, 0.05, 0.3])
def test_what_is_off_is_told_from_what_samples_are_off_by(away):
    """In squares, e^2 less, and 0.4 e^2 more than is seen."""
    mean, e = torch.zeros(4, 2), (0.1, 0.2)
    found = Moments(mean, torch.tensor([[0.25, 0.0]]).expand(4, 2), False)
    sampled = Moments(mean + 0.5 * away, found.variance * (1 + away) ** 2, False)
    samples = SimpleNamespace(moments=lambda: sampled, errors=e)
    expected = [(max(away**2 - s**2, 0) + 0.4 * s**2) ** 0.5 for s in e]
    assert budget._off(found, samples) == pytest.approx(expected)
    assert budget._off(replace(found, exact=True), samples) == (0, 0)
    assert budget._off(replace(found, variance=0 * mean), samples) == (0, 0)


def test_stated_errors_are_those_of_typical_outputs():
    """Medians over the standard deviation, a millionth at least; 0 of outputs that do not vary."""
    sd = torch.tensor([[0.5, 2.0, 4.0, 0.0, 0.0]])
    share = torch.tensor([[0.3, 0.1, 0.2, 0.0, 0.0]])
    found = Moments(0 * sd, sd**2, False, mean_error=share * sd, std_error=2 * share * sd)
    assert budget._stated(found) == pytest.approx((0.1 / 2, 0.2 / 2))
    still = replace(found, variance=0 * sd, mean_error=0 * sd, std_error=0 * sd)
    assert budget._stated(still) == pytest.approx((1e-6 / 2, 1e-6 / 2))


def test_passes_are_an_option_of_their_own():
    torch.manual_seed(0)
    model, x = Net(lambda self, x: torch.tanh(self.inner(x))), torch.randn(5, 6)
    with torch.no_grad():
        few, many = (predictive_moments(model, x, passes=n) for n in (2, 1000))
        truth = mc_moments(model, x, 20_000)
    assert few.draws < 1000 < many.draws
    torch.testing.assert_close(many.std, truth.std, rtol=0.05, atol=0)
    model.run = lambda self, x: self.inner(x) * (1 if torch.rand(()) < 0.5 else 2)
    with torch.no_grad():
        assert predictive_moments(model, x, passes=20).method == "sampled"
    for wrong in ({"draws": 4}, {"tol": 0.1}):
        with pytest.raises(InputError, match="passes must come without"):
            predictive_moments(model, x, passes=10, **wrong)
    with pytest.raises(InputError, match="passes"):
        predictive_moments(model, x, passes=0)


def test_coins_fall_as_they_should():
    torch.manual_seed(0)
    for prob in (0.1, 0.5, 0.9):
        z = coins(torch.empty(1000, 1001), prob)
        error = (prob * (1 - prob) / z.numel()) ** 0.5
        assert abs(z.mean() - prob) < 5 * error
        for step in (1, 2, 3, 4):
            both = (z.flatten()[step:] * z.flatten()[:-step]).mean()
            assert abs(both - prob * prob) < 10 * error
    model = nn.Sequential(nn.Dropout(0.3), nn.Linear(2000, 1, bias=False))
    nn.init.ones_(model[1].weight)
    found = mc_moments(model, torch.ones(1, 2000), 4000, seed=0)
    assert abs(found.mean - 2000) < 2 * found.mean_error
    assert abs(found.std - (2000 * 3 / 7) ** 0.5) < 2 * found.std_error


def test_the_largest_of_normal_entries():
    torch.manual_seed(0)
    m, sd = torch.randn(7, 4), 0.2 + torch.rand(7, 4)
    m[0], sd[0] = torch.tensor([9.0, 1.0, 0.0, 0.0]), torch.tensor([0.0, 0.1, 0.0, 0.1])
    value, slopes, variance = largest_moments(m, sd * sd)
    x = m + sd * torch.randn(400_000, 7, 4)
    top = x.amax(-1)
    torch.testing.assert_close(value, top.mean(0), atol=0.03, rtol=0)
    torch.testing.assert_close(variance.sqrt(), top.std(0), atol=0.03, rtol=0.03)
    chances = (x == top[..., None]).float().mean(0)
    torch.testing.assert_close(slopes, chances, atol=0.06, rtol=0)  # Clark


@pytest.mark.parametrize("more", [0, 1, 2])
def test_the_larger_of_two_normal_entries_exactly(more):
    """By a sum over both, wherever entries stand among others that are never the largest."""
    z = torch.linspace(-8, 8, 801).double()
    w = torch.exp(-z * z / 2) / torch.exp(-z * z / 2).sum()
    for (a, s), (b, t) in (((0.3, 0.5), (-0.2, 0.9)), ((1.0, 0.1), (1.3, 0.6)), ((0, 1), (0, 1))):
        x, y = (a + s * z)[:, None], (b + t * z)[None]
        both, top = w[:, None] * w, torch.maximum(x, y)
        mean = (both * top).sum()
        variance = (both * (top - mean) ** 2).sum()
        chance = 0.5 * math.erfc((b - a) / math.hypot(s, t) / 2**0.5)
        for i, j in itertools.permutations(range(2 + more), 2):
            m, v = torch.full((2 + more,), -50.0).double(), torch.full((2 + more,), 0.3).double()
            m[i], m[j], v[i], v[j] = a, b, s * s, t * t
            value, slopes, spread = largest_moments(m, v)
            torch.testing.assert_close(value, mean, rtol=1e-4, atol=1e-4)
            torch.testing.assert_close(spread, variance, rtol=1e-4, atol=1e-4)
            expected = torch.zeros(2 + more).double()
            expected[i], expected[j] = chance, 1 - chance
            torch.testing.assert_close(slopes, expected, rtol=1e-6, atol=1e-6)
