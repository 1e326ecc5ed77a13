"""compress by units: what shrinks together, which units stay, and how readers are refitted."""

import numpy as np
import pytest
import torch
from compress_zoo import ZOO, Heads, build
from torch import nn
from torch.nn import functional

from overt.nn import compress, load_compressed, save_compressed


def batches(inputs, classes=3, count=2, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return [
        (inputs, torch.randint(classes, (len(inputs[0]),), generator=generator))
        for _ in range(count)
    ]


def example_of(inputs):
    return inputs if len(inputs) > 1 else inputs[0]


@pytest.mark.parametrize("name", ZOO)
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


PAIRS = (2, 3, 6, 7, 10, 11, 14, 15)  # of channels that a depth-wise convolution makes
# network: (layer that makes units, how many, {reader: inputs that are the odd units})
DEAD = {
    "mlp": ("0", 16, {"4": range(1, 16, 2)}),
    "residual": (
        "stem",
        8,
        {k: range(1, 8, 2) for k in ("blocks.0.conv1", "blocks.1.conv1", "out")},
    ),
    "dense": ("b", 4, {"c": (5, 7)}),  # behind the four channels of a
    "squeeze": ("up", 8, dict.fromkeys(("down", "out"), PAIRS)),
    "shared": ("again", 8, {"again": range(1, 8, 2), "out": range(1, 8, 2)}),
    "attention": ("up", 16, {"down": range(1, 16, 2)}),
    "chunked": ("up", 8, {"down": range(1, 8, 2)}),
    "line": ("4", 6, {"6": (3, 4, 5, 9, 10, 11, 15, 16, 17)}),  # three positions each
    "grouped": ("2", 2, {"4": range(16, 32)}),  # a group of four channels
    "two-inputs": ("a", 8, {"out": range(1, 8, 2)}),
    "bag": ("0", 8, {"2": range(1, 8, 2)}),
}


@pytest.mark.parametrize("name", DEAD)
def test_units_that_nothing_reads_are_removed_and_nothing_changes(name):
    """A planted answer: half of the units have no weight behind them."""
    model, inputs = build(name)
    maker, count, readers = DEAD[name]
    with torch.no_grad():
        for reader, places in readers.items():
            model.get_submodule(reader).weight[:, list(places)] = 0
        expected = model(*inputs)
    small, report = compress(model, {maker: 0.5}, example_of(inputs), by="flow")
    assert [(c.before, c.after) for c in report.changes] == [(count, count // 2)]
    torch.testing.assert_close(small(*inputs), expected, rtol=1e-4, atol=1e-5)


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
    _, report = compress(model, layers, *inputs, by="flow")
    assert len(report.changes) == 2
    assert report.output_change < 0.1


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


KINDS = ("separate", "by hand", "einsum", "fused", "grouped queries", "torch")


@pytest.mark.parametrize("kind", KINDS)
def test_whole_heads_are_removed(kind, tmp_path):
    torch.manual_seed(0)
    model, x = Heads(kind).eval(), torch.randn(3, 5, 16)
    small, report = compress(model, 0.5, x, by="flow", of="units")
    name = {"fused": "qkv", "torch": "attend.v"}.get(kind, "v")
    (change,) = [c for c in report.changes if name in c.layers]
    groups = 2 if kind == "grouped queries" else 4
    assert (change.before, change.after) == (groups, groups // 2)
    assert small(x).shape == (3, 3)
    save_compressed(small, tmp_path / "small.safetensors")
    loaded = load_compressed(tmp_path / "small.safetensors", Heads(kind))
    torch.testing.assert_close(loaded(x), small(x))


def test_a_head_that_says_nothing_goes_first_and_nothing_changes():
    torch.manual_seed(0)
    model, x = Heads("separate").eval(), torch.randn(3, 5, 16)
    with torch.no_grad():
        model.o.weight[:, 4:8] = 0
        model.o.weight[:, 12:] = 0
    small, report = compress(model, {"v": 0.5}, x, by="flow")
    torch.testing.assert_close(
        small.v.weight, model.v.weight[[0, 1, 2, 3, 8, 9, 10, 11]]
    )
    assert report.output_change < 1e-5


def test_a_width_of_heads_from_the_inputs_is_named():
    class Tied(Heads):
        def forward(self, x):
            B, T, C = x.shape
            q, k, v = (
                layer(x).view(B, T, self.num_heads, C // self.num_heads).transpose(1, 2)
                for layer in (self.q, self.k, self.v)
            )
            h = functional.scaled_dot_product_attention(q, k, v)
            return self.out(self.o(h.transpose(1, 2).reshape(B, T, C)).mean(1))

    _, report = compress(Tied("separate"), {"v": 0.5}, torch.randn(3, 5, 16), by="flow")
    assert not report.changes
    assert "fails with fewer units" in dict(report.skipped)["v"]


def test_layers_along_another_axis_cost_less_with_fewer_units():
    model, (x,) = build("mixer")
    _, report = compress(model, 0.5, x, by="flow", of="multiply_adds")
    assert report.reached == pytest.approx(0.5, rel=0.05)


class Token(nn.Module):
    """Hands a parameter, expanded, to a module of its own: torch's books of modules fail on it."""

    def __init__(self):
        super().__init__()
        self.cls, self.enter = nn.Parameter(torch.randn(1, 5)), nn.Linear(5, 16)
        self.out = nn.Linear(16, 3)

    def forward(self, x):
        return self.out(
            torch.relu(self.enter(self.cls.expand(len(x), -1)) + self.enter(x))
        )


def test_parameters_that_modules_are_given():
    for by in ("flow", "spectrum"):
        _, report = compress(Token(), 0.5, torch.randn(4, 5), by=by, of="multiply_adds")
        assert report.before.multiply_adds == 2 * 5 * 16 + 16 * 3
        assert report.met


class Assertive(nn.Module):
    """Asks for its width, keeps a parameter as it is, and adds up all units."""

    def __init__(self):
        super().__init__()
        self.a, self.b, self.out = nn.Linear(5, 8), nn.Linear(8, 8), nn.Linear(8, 3)
        self.mix, self.place = nn.Linear(1, 8), nn.Parameter(torch.randn(8, 8))

    def forward(self, x):
        h = torch.relu(self.a(x))
        if h.shape[1] != 8:
            raise ValueError
        h = self.b(h)
        for _ in range(3):
            h = torch.add(*h.chunk(2, 1))
        return self.out(self.mix(h) @ self.place.T)


def test_whatever_stays_whole_has_a_reason():
    _, report = compress(Assertive().eval(), 0.3, torch.randn(6, 5), by="flow")
    reasons = dict(report.skipped)
    assert "ValueError" in reasons["a"]
    assert "stand or fall together" in reasons["b"]
    assert {"mix", "out"} <= reasons.keys()


class Restless(nn.Module):
    """Draws in evaluation mode too."""

    def __init__(self):
        super().__init__()
        self.a, self.b, self.out = nn.Linear(5, 16), nn.Linear(16, 16), nn.Linear(16, 3)

    def forward(self, x):
        h = nn.functional.dropout(torch.relu(self.a(x)))
        return self.out(torch.relu(self.b(h))) + torch.randn(len(x), 3)


@pytest.mark.parametrize("by", ["flow", "spectrum"])
def test_noise_in_evaluation_mode_is_named_and_no_hindrance(by):
    x, y = torch.randn(40, 5), torch.randint(3, (40,))
    _, report = compress(Restless(), 0.6, x[:6], (x, y), by)
    assert "samples in evaluation mode" in dict(report.skipped)["forward"]
    assert report.changes


def test_shared_weights_are_counted_and_cut_once():
    class Shared(nn.Module):
        def __init__(self):
            super().__init__()
            self.enter, self.twice = nn.Linear(5, 40), nn.Linear(40, 40)
            self.again, self.out = self.twice, nn.Linear(40, 3)

        def forward(self, x):
            return self.out(
                torch.relu(self.again(torch.relu(self.twice(self.enter(x)))))
            )

    small, report = compress(Shared(), 0.3, torch.randn(4, 5), by="flow")
    assert small.twice.weight is small.again.weight
    assert report.after.parameters == sum(p.numel() for p in small.parameters())
    assert np.isclose(report.reached, 0.3, rtol=0.05)


class OddRMSNorm(nn.Module):
    """Has the name of a normalization, and other parameters."""

    def __init__(self):
        super().__init__()
        self.weight, self.scale = (
            nn.Parameter(torch.ones(1, 1)),
            nn.Parameter(torch.ones(3)),
        )

    def forward(self, x):
        return x * self.weight * self.scale.sum()


class RunningSum(nn.Module):
    """Has an attribute of a normalization, and mixes its channels."""

    num_features = 16

    def forward(self, x):
        return x.cumsum(1)


class Positions(nn.Module):
    """Has an attribute of an embedding, and no weight."""

    embedding_dim = 16

    def forward(self, x):
        return x + torch.arange(self.embedding_dim).sin()


@pytest.mark.parametrize("module", [OddRMSNorm, RunningSum, Positions])
def test_units_before_a_module_that_only_looks_like_a_layer_stay(module):
    model = nn.Sequential(
        nn.Linear(5, 16), module(), nn.Linear(16, 12), nn.ReLU(), nn.Linear(12, 3)
    )
    x = torch.randn(4, 5)
    small, report = compress(model, 0.5, x, by="flow", of="units")
    assert [change.layers for change in report.changes] == [("2",)]
    assert "0" in dict(report.skipped)
    assert small(x).shape == (4, 3)
