"""compress by units: every network of the zoo against itself with units masked, dead, or saved."""

import copy

import numpy as np
import pytest
import torch
from compress_zoo import ZOO, build, mlp
from nn_oracles import Multiplied
from torch import nn
from torch.nn import functional

from overt import InputError
from overt.nn import Dropout, compress
from overt.nn.compression.graph import build_graph
from overt.nn.data.batches import Inputs

NAMES = list(ZOO)


def batches(inputs, classes=3, count=2, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return [
        (*inputs, torch.randint(classes, (len(inputs[0]),), generator=generator))
        for _ in range(count)
    ]


def example_of(inputs):
    return inputs if len(inputs) > 1 else inputs[0]


@pytest.mark.parametrize("name", NAMES)
def test_what_shrinks_and_what_does_not_is_said(name):
    model, inputs = build(name)
    _, _, shrinks, whole = ZOO[name]
    before = {key: value.clone() for key, value in model.state_dict().items()}
    small, report = compress(model, 0.5, example_of(inputs), by="flow", of="units")
    assert {layer for change in report.changes for layer in change.layers} == shrinks
    reasons = dict(report.skipped)
    for layer, word in whole.items():
        assert word in reasons[layer]
    assert small(*inputs).shape == model(*inputs).shape
    assert type(small) is type(model)
    assert (report.after.parameters < report.before.parameters) == bool(shrinks)
    assert (report.after.multiply_adds < report.before.multiply_adds) == bool(shrinks)
    assert all(
        torch.equal(value, before[key]) for key, value in model.state_dict().items()
    )
    for change in report.changes:
        assert change.after == round(change.before / 2)


@pytest.mark.parametrize(
    "name",
    [n for n in NAMES if n not in ("stream", "autoencoder", "tied", "transformer")],
)
def test_removing_units_that_nothing_reads_changes_nothing(name):
    """An oracle apart from the cut: the network itself, with half of the units' readers at zero."""
    model, inputs = build(name)
    graph = build_graph(model, Inputs(inputs))
    found = graph.dependencies
    rng = np.random.default_rng(0)
    dead = np.zeros(len(found.units), dtype=bool)
    for group in graph.groups:
        dead[rng.choice(group.units, len(group.units) // 2, replace=False)] = True
    dead = dead[found.units.classes(np.arange(len(dead)))]
    with torch.no_grad():
        for reader in found.readers:
            weight = model.get_submodule(reader.name).weight
            unread = torch.from_numpy(np.flatnonzero(dead[reader.ids]))
            weight.index_fill_(reader.axis, unread, 0.0)
        expected = model(*inputs)
    small, report = compress(model, 0.5, example_of(inputs), by="flow", of="units")
    torch.testing.assert_close(small(*inputs), expected)
    if report.changes:
        assert report.output_change < 1e-5


@pytest.mark.parametrize("noise", [nn.Dropout(0.5), Dropout(0.5), "functional"])
def test_a_mask_is_what_dropout_draws(noise):
    """The smaller network is the large one with that mask, survivors scaled as in training."""

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(4, 10), nn.Linear(10, 3)
            self.drop = nn.Identity() if noise == "functional" else noise

        def forward(self, x):
            h = self.drop(torch.relu(self.a(x)))
            if noise == "functional":
                h = functional.dropout(h, 0.5, self.training)
            return self.b(h)

    torch.manual_seed(0)
    model = Net()
    x = torch.randn(40, 4)
    small, report = compress(model, 0.5, x, batches((x,)), "mask", of="units", draws=5)
    assert len(report.losses) == 5
    kept = (small.a.weight[:, None] == model.a.weight[None]).all(2).any(0)
    assert kept.sum() == 5
    masked = copy.deepcopy(model).eval()
    masked.b = nn.Sequential(Multiplied(2.0 * kept), model.b)
    torch.testing.assert_close(small.eval()(x), masked(x))


def test_the_best_mask_of_all_is_kept():
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(4, 4), nn.ReLU(), nn.Dropout(0.5), nn.Linear(4, 3)
    ).eval()
    x, y = torch.randn(50, 4), torch.randint(3, (50,))
    _, report = compress(model, 0.5, x, [(x, y)], "mask", of="units", draws=60)
    losses = []
    for i in range(4):
        for j in range(i):
            mask = torch.zeros(4)
            mask[[i, j]] = 2.0
            masked = nn.Sequential(model[0], model[1], Multiplied(mask), model[3])
            losses.append(float(functional.cross_entropy(masked(x), y).detach()))
    assert report.after.loss == pytest.approx(min(losses), rel=1e-5)
    assert report.losses.min() == pytest.approx(min(losses), rel=1e-5)
    assert set(np.round(report.losses, 5)) <= set(np.round(losses, 5))


def test_only_layers_on_which_dropout_acts_lose_units_by_mask():
    model, inputs = build("residual")
    small, report = compress(model, 0.5, *inputs, batches(inputs), "mask")
    assert report.changes == ()
    assert "no dropout" in dict(report.skipped)["stem"]
    assert torch.equal(small(*inputs), model(*inputs))
    _, named = compress(
        model, {"blocks.0.conv1": 0.5}, *inputs, batches(inputs), "mask", draws=2
    )
    assert [change.layers for change in named.changes] == [("blocks.0.conv1",)]
    model, inputs = build("line")
    _, channels = compress(model, 0.5, *inputs, batches(inputs), "mask", draws=2)
    assert [change.layers for change in channels.changes] == [("0",)]


def test_flow_is_the_weights_norm_times_the_activation():
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(4, 6, bias=False), nn.ReLU(), nn.Linear(6, 3)
    ).double()
    x = torch.randn(200, 4).double()
    small, _ = compress(model, 0.5, x[:1], [(x[:150],), (x[150:],)], "flow", of="units")
    a = torch.relu(model[0](x))
    psi = model[2].weight.norm(dim=0) * a.square().mean(0).sqrt()
    top = psi.argsort(descending=True)[:3].sort().values
    torch.testing.assert_close(small[0].weight, model[0].weight[top])
    y = model(x).detach()
    torch.testing.assert_close(small(x).mean(0), y.mean(0))
    # Readers are refitted: nearly the least squares fit of the outputs to the surviving units.
    design = torch.cat([a[:, top].detach(), torch.ones(200, 1)], 1)
    best = (y - design @ torch.linalg.lstsq(design, y).solution).norm()
    plain = (
        y - functional.linear(a[:, top], model[2].weight[:, top], model[2].bias)
    ).norm()
    found = float((y - small(x)).detach().norm())
    assert best <= found <= 1.01 * best
    assert found < 0.8 * float(plain.detach())


def test_convolutions_are_refitted_with_the_mean_of_what_is_lost():
    """Units that are constant move into biases without loss, also where taps overlap."""
    for reader in (
        nn.Conv2d(4, 2, 3),
        nn.ConvTranspose2d(4, 2, 2, stride=2),
        nn.Conv2d(4, 2, 1),
    ):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Conv2d(1, 4, 1), nn.ReLU(), reader).double()
        with torch.no_grad():
            model[0].weight[2:] = 0
            model[0].bias[2:] = torch.tensor([0.1, 0.2])
            model[0].weight[:2] = 5.0
        x = torch.rand(3, 1, 6, 6).double()
        small, report = compress(model, 0.5, x, by="flow", of="units")
        assert report.changes[0].after == 2
        torch.testing.assert_close(small(x).mean((0, 2, 3)), model(x).mean((0, 2, 3)))
        if isinstance(reader, nn.Conv2d):
            torch.testing.assert_close(small(x), model(x))


def test_shares_by_layer():
    model, inputs = build("mlp")
    small, report = compress(model, {"4": 0.25}, *inputs, by="flow")
    assert [(c.layers, c.before, c.after) for c in report.changes] == [(("4",), 12, 3)]
    assert small[0].out_features == 16
    assert compress(model, 1.0, *inputs, by="flow")[1].changes == ()
    tiny, _ = compress(model, 1e-9, *inputs, by="flow")
    assert (tiny[0].out_features, tiny[4].out_features) == (1, 1)
    residual, example = build("residual")
    _, tied = compress(residual, {"stem": 0.25}, *example, by="flow")
    assert set(tied.changes[0].layers) == {"stem", "blocks.0.conv2", "blocks.1.conv2"}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"keep": 0}, r"keep must be a finite number above 0"),
        ({"keep": 1.5}, r"keep must be a number in \(0, 1\]"),
        ({"keep": True}, r"keep must be a number in \(0, 1\]"),
        ({"keep": {"nine": 0.5}}, "got nine; there are 0, 4, 7"),
        ({"keep": {"0": 2}}, r"keep\['0'\] must be"),
        ({"keep": {"2": 0.5}}, "that have units, got 2; there are 0, 4, 7"),
        (
            {"data": [(torch.randn(3, 5), torch.ones(3), torch.ones(3))]},
            "a tuple of Tensor, Tensor, Tensor",
        ),
        ({"data": [(torch.randn(3, 5), torch.full((3,), 9))]}, "does not fit outputs"),
        (
            {"data": [(torch.randn(3, 2), torch.ones(3).long())]},
            r"batch 1 of data.*\(3, 2\)",
        ),
        ({"data": [torch.randn(3, 2)], "by": "flow"}, r"batch 1 of data.*\(3, 2\)"),
        ({"data": [torch.full((3, 5), torch.nan)], "by": "flow"}, "must be finite"),
        ({"by": "magic"}, "by must be one of"),
        ({"data": None}, "pass data"),
        ({"data": iter([])}, "must not be an iterator"),
        ({"data": []}, "at least one batch"),
        ({"data": [(torch.randn(3, 5),)]}, "pairs"),
        ({"data": torch.randn(3, 5)}, "data must be a pair of arrays or give batches"),
        ({"data": [("a", "b")]}, "targets must be a tensor, got str"),
        ({"example": torch.randn(2, 7)}, r"example: the model cannot be run.*\(2, 7\)"),
        ({"example": [1.0]}, "example must be a tensor"),
        ({"example": torch.zeros(0, 5)}, "at least one"),
        ({"model": torch.relu}, "torch.nn.Module"),
        ({"draws": 0}, "draws must be at least 1"),
        ({"loss": "hinge"}, "loss must be one of"),
        ({"recover": 3, "data": None, "by": "flow"}, "recover needs data"),
    ],
)
def test_mistakes_are_named(change, message):
    x = torch.randn(6, 5)
    given = {
        "model": mlp(),
        "keep": 0.5,
        "example": x,
        "data": batches((x,)),
        "by": "mask",
    }
    with pytest.raises(InputError, match=message):
        compress(**{**given, **change})


def test_one_hot_targets_of_cross_entropy():
    x, y = torch.randn(60, 5), torch.arange(60) % 3
    rows = nn.functional.one_hot(y)
    model = nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Dropout(0.5), nn.Linear(8, 3))
    found = [
        compress(model, 0.5, x[:2], [(x, target)], "mask", loss="cross_entropy")[1]
        for target in (y, rows, rows.float())
    ]
    assert len({report.after.accuracy for report in found}) == 1
    assert (
        found[1].after.loss == found[2].after.loss == pytest.approx(found[0].after.loss)
    )


def test_recurrent_layers_and_attention_are_named():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.read, self.out = nn.LSTM(4, 8, batch_first=True), nn.Linear(8, 3)
            self.mix = nn.MultiheadAttention(8, 2, batch_first=True)

        def forward(self, x):
            h, _ = self.read(x)
            return self.out(self.mix(h, h, h)[0].mean(1))

    for by in ("flow", "spectrum"):
        _, report = compress(Net(), 0.5, torch.randn(3, 5, 4), by=by)
        assert dict(report.skipped)["read"] == "LSTM keeps its maps inside"
        assert {name for c in report.changes for name in c.layers} & {
            "mix.q",
            "mix.out_proj",
        }


def test_two_shares_for_tied_layers_are_refused():
    model, inputs = build("residual")
    with pytest.raises(InputError, match="added"):
        compress(model, {"stem": 0.5, "blocks.0.conv2": 0.25}, *inputs, by="flow")


def test_modes_randomness_and_seeds():
    model, inputs = build("mlp")
    model.train()
    model[1].eval()
    state = torch.random.get_rng_state()

    def draw(seed):
        return compress(
            model, 0.5, *inputs, batches(inputs), "mask", draws=3, seed=seed
        )

    small, report = draw(0)
    assert torch.equal(torch.random.get_rng_state(), state)
    assert [m.training for m in small.modules()] == [
        m.training for m in model.modules()
    ]
    again, other = draw(0)[0], draw(1)[1]
    assert all(
        torch.equal(a, b)
        for a, b in zip(small.parameters(), again.parameters(), strict=True)
    )
    assert not np.array_equal(report.losses, other.losses)


class Interrupting:
    """Cross-entropy during whose n-th call Ctrl-C is pressed."""

    def __init__(self, n):
        self.left = n

    def __call__(self, output, y):
        self.left -= 1
        if self.left == 0:
            raise KeyboardInterrupt
        return functional.cross_entropy(output, y)


def test_recovery_keeps_the_best_state_and_interruptions_keep_what_there_is():
    torch.manual_seed(0)
    x = torch.randn(300, 5)
    y = (x @ torch.randn(5, 3)).argmax(1)
    model, loader = mlp(), [(x, y)]
    plain = compress(model, 0.5, x, loader, "flow")[1]
    recovered = compress(model, 0.5, x, loader, "flow", recover=40, learning_rate=0.01)[
        1
    ]
    assert recovered.after.loss < plain.after.loss
    assert recovered.after.loss == pytest.approx(recovered.recovery.min(), rel=1e-5)
    wild = compress(model, 0.5, x, loader, "flow", recover=4, learning_rate=1e4)[1]
    assert wild.after.loss <= plain.after.loss * (1 + 1e-6)
    for calls, judged in ((5, 3), (2, 0)):  # the first call judges the whole network
        loss = Interrupting(calls)
        if not judged:
            with pytest.raises(KeyboardInterrupt):
                compress(model, 0.5, x, loader, "mask", draws=20, loss=loss)
            continue
        small, report = compress(model, 0.5, x, loader, "mask", draws=20, loss=loss)
        assert report.status == "interrupted"
        assert len(report.losses) == judged
        assert small(x).shape == (300, 3)


def test_regression_and_other_losses():
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(5, 16), nn.ReLU(), nn.Dropout(0.2), nn.Linear(16, 1)
    )
    x = torch.randn(60, 5)
    _, report = compress(model, 0.5, x, [(x, torch.randn(60))], "mask", draws=2)
    assert report.after.accuracy is None
    _, report = compress(model, 0.5, x, [(x, torch.randint(2, (60,)))], "mask", draws=2)
    assert report.after.accuracy is not None
    absolute = lambda output, y: (output[:, 0] - y).abs().mean()  # noqa: E731
    _, report = compress(
        model, 0.5, x, [(x, torch.randn(60))], "mask", draws=2, loss=absolute
    )
    assert report.after.loss == pytest.approx(float(report.losses.min()), rel=1e-5)


def test_what_the_trace_does_not_show_is_found_by_running():
    class Sly(nn.Module):
        """Reads a width from an attribute that the trace sees as a number."""

        def __init__(self):
            super().__init__()
            self.a, self.b, self.c = nn.Linear(5, 8), nn.Linear(8, 8), nn.Linear(8, 3)
            self.width = 8

        def forward(self, x):
            h = torch.relu(self.a(x)) * (self.a.weight.shape[0] / self.width)
            return self.c(torch.relu(self.b(h)))

    torch.manual_seed(0)
    x = torch.randn(6, 5)
    small, report = compress(Sly().eval(), 0.5, x, by="flow")
    assert "something else" in dict(report.skipped)["a"]
    assert [change.layers for change in report.changes] == [("b",)]
    assert small.a.out_features == 8


def test_auto_takes_what_measures_best_of_what_is_small_enough():
    torch.manual_seed(0)
    x = torch.randn(400, 5)
    y = (x @ torch.randn(5, 3)).argmax(1)
    model = mlp()
    found = {
        by: compress(model, 0.5, x, (x, y), by, draws=4)[1] for by in ("flow", "auto")
    }
    auto = found["auto"]
    tried = dict(auto.tried)
    assert set(tried) == {"flow", "spectrum"}
    assert tried["flow"] == pytest.approx(found["flow"].after.loss, rel=1e-6)
    assert auto.by == min(tried, key=tried.get)
    assert auto.after.loss == pytest.approx(min(tried.values()), rel=1e-6)
    assert auto.reached <= 1.05 * 0.5
    assert found["flow"].tried == ()


def test_auto_recovers_one_way_and_that_is_narrowing():
    torch.manual_seed(0)
    x = torch.randn(400, 5)
    y = (x @ torch.randn(5, 3)).argmax(1)
    model, steps = mlp(), {"recover": 30, "learning_rate": 0.01}
    before = [p.clone() for p in model.parameters()]
    report, flow = (
        compress(model, 0.5, x, (x, y), by, **steps)[1] for by in ("auto", "flow")
    )
    tried = dict(report.tried)
    for by in ("flow", "spectrum"):
        assert tried[by] == compress(model, 0.5, x, (x, y), by)[1].after.loss
    assert report.by == "flow"
    assert report.after.loss == flow.after.loss < tried["flow"]
    assert len(report.recovery)
    assert all(map(torch.equal, before, model.parameters()))


@pytest.mark.parametrize("by", ["flow", "spectrum"])
def test_normalizations_take_the_statistics_of_the_smaller_network(by):
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(5, 64),
        nn.BatchNorm1d(64),
        nn.ReLU(),
        nn.Linear(64, 32),
        nn.BatchNorm1d(32, momentum=0.3),
        nn.ReLU(),
        nn.Linear(32, 3),
    )
    x = torch.randn(200, 5)
    for _ in range(20):
        model(x)
    y = model.eval()(x).argmax(1)
    small, report = compress(model, 0.25, x, (x, y), by)
    norm = small[4]
    given = small[:4](x)
    torch.testing.assert_close(norm.running_mean, given.mean(0), rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(norm.running_var, given.var(0), rtol=1e-2, atol=1e-2)
    assert norm.momentum == 0.3
    few = compress(model, 0.25, x, (x[:20], y[:20]), by)[0][4]  # too few rows to tell
    assert float((few.running_mean - small[4].running_mean).norm()) > 1e-3
    assert report.output_change == pytest.approx(
        ((small(x) - model(x)).norm() / model(x).norm()).item(), rel=1e-4
    )


def test_an_example_that_requires_gradients_warns_of_nothing():
    x = torch.randn(3, 4, requires_grad=True)
    assert compress(nn.Identity(), 0.5, x)[1].output_change == 0


def test_auto_does_without_targets_and_without_data():
    """A layer of rank 2 loses nothing as a product; its units are all needed."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(40, 40), nn.Tanh(), nn.Linear(40, 40), nn.Tanh())
    with torch.no_grad():
        for layer in (model[0], model[2]):
            layer.weight.copy_(torch.randn(40, 2) @ torch.randn(2, 40))
    x = torch.randn(100, 40)
    for data in (None, [x]):
        _, report = compress(model, 0.5, x, data)
        assert report.by == "spectrum"
        assert dict(report.tried)["spectrum"] < 1e-3 < dict(report.tried)["flow"]
        assert "mask" not in dict(report.tried)
    noisy = model(x).detach() + torch.randn(
        100, 40
    )  # what has lost nothing is recovered as it is
    assert compress(model, 0.5, x, (x, noisy), recover=1)[1].by == "spectrum"
    _, named = compress(model, {"0": 0.5}, x)
    assert (named.by, [c.layers for c in named.changes]) == ("flow", [("0",)])
    assert (
        compress(nn.Sequential(nn.Linear(2, 2)), 0.5, torch.randn(3, 2))[1].changes
        == ()
    )


def test_inputs_by_name_and_arrays():
    model, inputs = build("two-inputs")
    named = dict(zip("xy", inputs, strict=True))
    y = np.arange(6) % 3
    by_place = compress(model, 0.5, inputs, (inputs, y), "flow")
    by_name = compress(model, 0.5, named, [(named, y)], "flow")
    torch.testing.assert_close(by_place[0](*inputs), by_name[0](**named))
    assert by_place[1].after.loss == by_name[1].after.loss
    array = np.random.default_rng(0).random((6, 5))
    assert compress(mlp(), 0.5, array, (array, y), "flow")[1].after.loss is not None


class Router(nn.Module):
    """Takes one of two ways by the sign of its input."""

    def __init__(self):
        super().__init__()
        self.plus = nn.Sequential(
            nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU()
        )
        self.minus = nn.Sequential(
            nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU()
        )
        self.join = nn.Sequential(nn.Linear(8, 6), nn.ReLU(), nn.Linear(6, 3))

    def forward(self, x):
        return self.join(self.plus(x) if x.mean() > 0 else self.minus(x))


def test_only_what_every_way_shares_is_removed():
    """Units that one branch hands to the next are also made by the other, which was not seen."""
    torch.manual_seed(0)
    model, x = Router().eval(), torch.rand(6, 5)
    small, report = compress(model, 0.5, x, by="flow")
    assert {c.layers for c in report.changes} == {("plus.0",), ("join.0",)}
    skipped = dict(report.skipped)
    assert "depends on values" in skipped["Router"]
    assert "depends on values" in skipped["plus.2"]
    assert skipped["minus.0"] == skipped["minus.2"] == "its forward pass is not called"
    for given in (x, -x):
        assert small(given).shape == (6, 3)


def test_layers_inside_torchs_transformers_are_refitted():
    """What their removed units contributed on average goes into the bias behind them."""
    model, inputs = build("transformer")
    with torch.no_grad():
        for layer in model.layers.layers:
            layer.linear1.bias.add_(3.0)  # units that are always on
    layers = {f"layers.layers.{i}.linear1": 0.5 for i in range(2)}
    small, report = compress(model, layers, *inputs, by="flow")
    assert len(report.changes) == 2
    assert report.output_change < 0.1
    assert type(small.layers.layers[0].self_attn) is nn.MultiheadAttention


PASSING = [
    nn.GroupNorm(2, 6),
    nn.ReLU(),
    nn.ReLU6(),
    nn.LeakyReLU(),
    nn.ELU(),
    nn.CELU(),
    nn.SELU(),
    nn.GELU(),
    nn.SiLU(),
    nn.Mish(),
    nn.Sigmoid(),
    nn.LogSigmoid(),
    nn.Tanh(),
    nn.Softplus(),
    nn.Softsign(),
    nn.Tanhshrink(),
    nn.Hardtanh(),
    nn.Hardswish(),
    nn.Hardsigmoid(),
    nn.Hardshrink(),
    nn.Softshrink(),
    nn.Identity(),
    nn.AlphaDropout(),
    nn.FeatureAlphaDropout(),
    nn.RReLU(),
    nn.PReLU(),
    nn.Threshold(0.1, 0.0),
    nn.Softmax(-1),
    nn.MaxPool2d(2),
    nn.AvgPool2d(2),
    nn.LPPool2d(2, 2),
    nn.AdaptiveAvgPool2d(3),
    nn.AdaptiveMaxPool2d(3),
    nn.Upsample(scale_factor=2),
    nn.UpsamplingNearest2d(scale_factor=2),
    nn.ZeroPad2d(1),
    nn.ReflectionPad2d(1),
    nn.ReplicationPad2d(1),
    nn.CircularPad2d(1),
    nn.ConstantPad2d(1, 0.5),
    nn.PReLU(6),
    nn.GroupNorm(6, 6),
    nn.InstanceNorm2d(6),
    nn.Dropout2d(0.2),
]
NEEDING = [nn.Softmax(1), nn.PixelShuffle(1), nn.LocalResponseNorm(2)]


@pytest.mark.parametrize("layer", [*PASSING, *NEEDING], ids=str)
def test_channels_pass_through_every_layer_that_keeps_them_apart(layer):
    model = nn.Sequential(nn.Conv2d(2, 6, 3), layer, nn.Conv2d(6, 4, 1)).eval()
    _, report = compress(model, 0.5, torch.randn(3, 2, 8, 8), by="flow", of="units")
    assert bool(report.changes) == (layer not in NEEDING)
    if layer in NEEDING:
        assert dict(report.skipped)["0"]


def test_the_report_speaks():
    model, inputs = build("mlp")
    _, report = compress(
        model, 0.5, *inputs, batches(inputs), "mask", of="units", draws=2
    )
    text = str(report)
    for word in (
        "parameters",
        "multiply-adds",
        "latency",
        "accuracy",
        "0: units 16 -> 8",
        "7: the",
    ):
        assert word in text
    plain = report.to_dict()
    assert plain["before"]["parameters"] == 5 * 16 + 16 + 32 + 16 * 12 + 12 + 12 * 3 + 3
    assert plain["after"]["parameters"] == 5 * 8 + 8 + 16 + 8 * 6 + 6 + 6 * 3 + 3
    assert plain["before"]["multiply_adds"] == 5 * 16 + 16 * 12 + 12 * 3
    assert plain["changes"][0]["layers"] == ["0"]
    assert report.speedup > 0


class Conv1D(nn.Module):
    """A linear layer that holds its weights as (inputs, outputs), as GPT-2 does."""

    def __init__(self, inputs, outputs):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(inputs, outputs) / inputs**0.5)
        self.bias = nn.Parameter(torch.randn(outputs))
        self.nx, self.nf = inputs, outputs

    def forward(self, x):
        flat = torch.addmm(self.bias, x.reshape(-1, x.shape[-1]), self.weight)
        return flat.reshape(*x.shape[:-1], -1)


@pytest.mark.parametrize("by", ["flow", "spectrum"])
def test_transposed_linear_layers_are_made_smaller_like_others(by):
    torch.manual_seed(0)
    model = nn.Sequential(Conv1D(12, 40), nn.GELU(), Conv1D(40, 5))
    plain = nn.Sequential(nn.Linear(12, 40), nn.GELU(), nn.Linear(40, 5))
    for mine, other in zip(model[::2], plain[::2], strict=True):
        other.weight.data.copy_(mine.weight.T)
        other.bias.data.copy_(mine.bias)
    x = torch.randn(30, 12)
    torch.testing.assert_close(model(x), plain(x))
    small, report = compress(model, 0.4, x, by=by)
    again, _ = compress(plain, 0.4, x, by=by)
    assert report.met
    torch.testing.assert_close(small(x), again(x), rtol=1e-4, atol=1e-4)
