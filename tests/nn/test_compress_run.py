"""compress as a whole: options, data and targets, the report, and mistakes."""

from dataclasses import dataclass

import numpy as np
import pytest
import torch
from compress_zoo import Heads, build, mlp
from torch import nn
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from overt import InputError
from overt.nn import compress


def batches(inputs, classes=3, count=2, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return [
        (inputs, torch.randint(classes, (len(inputs[0]),), generator=generator))
        for _ in range(count)
    ]


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
        ({"data": iter([])}, "must not be an iterator"),
        ({"data": []}, "at least one batch"),
        ({"data": torch.randn(3, 5)}, "data must be a pair of arrays or give batches"),
        ({"data": [("a", "b")]}, "targets must be a tensor, got str"),
        ({"example": torch.randn(2, 7)}, r"example: the model cannot be run.*\(2, 7\)"),
        ({"example": [1.0]}, "example must be a tensor"),
        ({"example": torch.zeros(0, 5)}, "at least one"),
        ({"model": torch.relu}, "torch.nn.Module"),
        ({"loss": "hinge"}, "loss must be one of"),
        ({"of": "size"}, "of must be one of"),
        ({"of": "units", "by": "spectrum"}, "removes no units"),
        ({"keep": {"0": 0.5}, "by": "spectrum"}, "removes no units"),
        ({"keep": float("nan")}, "keep must be"),
        ({"data": (torch.eye(5).to_sparse(), torch.zeros(5).long())}, "must be dense"),
        ({"model": nn.LazyLinear(3)}, "weight has no values"),
        ({"model": nn.Linear(5, 3, device="meta")}, "weight has no values"),
        ({"example": torch.full((2, 5), torch.nan)}, "returns NaN"),
        (
            {"data": (torch.full((4, 5), torch.nan), torch.zeros(4).long())},
            "must be finite",
        ),
        ({"data": (torch.randn(4, 5), torch.zeros(3).long())}, "a target for each row"),
        (
            {"data": (torch.randn(4, 5), torch.zeros(4, 7))},
            "does not fit outputs|shape",
        ),
    ],
)
def test_mistakes_are_named(change, message):
    x = torch.randn(6, 5)
    given = {
        "model": mlp(),
        "keep": 0.5,
        "example": x,
        "data": batches((x,)),
        "by": "flow",
    }
    with pytest.raises(InputError, match=message):
        compress(**{**given, **change})


def test_one_hot_targets_of_cross_entropy():
    x, y = torch.randn(60, 5), torch.arange(60) % 3
    rows = nn.functional.one_hot(y)
    model = nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Dropout(0.5), nn.Linear(8, 3))
    found = [
        compress(model, 0.5, x[:2], [(x, target)], "flow", loss="cross_entropy")[1]
        for target in (y, rows, rows.float())
    ]
    assert len({report.after.accuracy for report in found}) == 1
    assert (
        found[1].after.loss == found[2].after.loss == pytest.approx(found[0].after.loss)
    )


def test_two_shares_for_tied_layers_are_refused():
    model, inputs = build("residual")
    with pytest.raises(InputError, match="added"):
        compress(model, {"stem": 0.5, "blocks.0.conv2": 0.25}, *inputs, by="flow")


def test_modes_and_generators():
    model, inputs = build("mlp")
    model.train()
    model[1].eval()
    state = torch.get_rng_state()
    small, _ = compress(model, 0.5, *inputs, batches(inputs), "flow")
    assert torch.equal(torch.get_rng_state(), state)
    assert [m.training for m in small.modules()] == [
        m.training for m in model.modules()
    ]


def test_the_smaller_network_can_be_trained_further():
    torch.manual_seed(0)
    x, y = torch.randn(64, 5, 8), torch.randint(3, (64,))
    model = Encoder()
    before = [p.clone() for p in model.parameters()]
    small, report = compress(model, {"up": 0.5}, x[:4], (x, y), by="flow")
    optimizer = torch.optim.Adam(small.train().parameters(), 1e-2)
    for _ in range(30):
        optimizer.zero_grad()
        loss = functional.cross_entropy(small(x), y)
        loss.backward()
        optimizer.step()
    assert loss < report.after.loss
    assert all(map(torch.equal, before, model.parameters()))


def test_regression_and_other_losses():
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(5, 16), nn.ReLU(), nn.Dropout(0.2), nn.Linear(16, 1)
    )
    x = torch.randn(60, 5)
    _, report = compress(model, 0.5, x, [(x, torch.randn(60))], "flow")
    assert report.after.accuracy is None
    _, report = compress(model, 0.5, x, [(x, torch.randint(2, (60,)))], "flow")
    assert report.after.accuracy is not None
    absolute = lambda output, y: (output[:, 0] - y).abs().mean()  # noqa: E731
    y = torch.randn(60)
    small, report = compress(model, 0.5, x, [(x, y)], "flow", loss=absolute)
    assert report.after.loss == pytest.approx(
        absolute(small.eval()(x), y).item(), rel=1e-5
    )


def test_auto_takes_what_measures_best_of_what_is_small_enough():
    torch.manual_seed(0)
    x = torch.randn(400, 5)
    y = (x @ torch.randn(5, 3)).argmax(1)
    model = mlp()
    found = {by: compress(model, 0.5, x, (x, y), by)[1] for by in ("flow", "auto")}
    auto = found["auto"]
    tried = dict(auto.tried)
    assert set(tried) == {"flow", "spectrum"}
    assert tried["flow"] == pytest.approx(found["flow"].after.loss, rel=1e-6)
    assert auto.by == min(tried, key=tried.get)
    assert auto.after.loss == pytest.approx(min(tried.values()), rel=1e-6)
    assert auto.reached <= 1.05 * 0.5
    assert found["flow"].tried == ()


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


def test_the_report_speaks():
    model, inputs = build("mlp")
    _, report = compress(model, 0.5, *inputs, batches(inputs), "flow", of="units")
    text = str(report)
    for word in (
        "parameters",
        "multiply-adds",
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


def cnn():
    return nn.Sequential(
        nn.Conv2d(1, 24, 3),
        nn.BatchNorm2d(24),
        nn.ReLU(),
        nn.Conv2d(24, 32, 3, groups=4),
        nn.ReLU(),
        nn.Conv2d(32, 32, 3),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(128, 30),
        nn.ReLU(),
        nn.Linear(30, 3),
    )


@pytest.mark.parametrize("with_data", [False, True])
@pytest.mark.parametrize("by", ["flow", "spectrum", "auto"])
@pytest.mark.parametrize("of", ["parameters", "multiply_adds"])
def test_keep_is_met_whatever_data_is_given(of, by, with_data):
    torch.manual_seed(0)
    x, y = torch.randn(40, 1, 8, 8), torch.randint(3, (40,))
    for model, given in ((cnn(), x), (Heads("fused", 32, 8), torch.randn(40, 6, 32))):
        small, report = compress(
            model, 0.37, given[:2], (given, y) if with_data else None, by, of=of
        )
        if by == "spectrum" and isinstance(
            model, nn.Sequential
        ):  # its groups stay whole
            assert report.met or "layers are left whole" in report.shortfall
        else:
            assert 0.95 * 0.37 <= report.reached <= 1.05 * 0.37
            assert report.met
        counted = []
        for net in (model.eval(), small.eval()):
            math = sdpa_kernel(SDPBackend.MATH)
            with FlopCounterMode(display=False) as counter, torch.no_grad(), math:
                net(given[:2])
            sizes = (
                sum(p.numel() for p in net.parameters()),
                counter.get_total_flops() / 4,
            )
            counted.append(sizes[of == "multiply_adds"])
        assert counted[1] / counted[0] == pytest.approx(report.reached)
        assert getattr(report.before, of) == counted[0]


def test_what_is_not_met_is_said():
    model = nn.Sequential(nn.Linear(9, 9))
    _, report = compress(model, 0.01, torch.randn(2, 9), by="flow")
    assert (report.met, report.reached) == (False, 1.0)
    assert "keep=0.01 of the parameters is not reached, 1 is left" in report.shortfall
    assert report.shortfall in str(report)


class Recurrent(nn.Module):
    """Most parameters are where nothing can be removed; few units and directions matter."""

    def __init__(self):
        super().__init__()
        self.read = nn.LSTM(5, 40, batch_first=True)
        self.up, self.out = nn.Linear(40, 30), nn.Linear(30, 3)
        with torch.no_grad():
            self.up.weight[3:] = 0
            self.out.weight[:, 3:] = 0

    def forward(self, x):
        return self.out(torch.relu(self.up(self.read(x)[0][:, -1])))


@pytest.mark.parametrize("by", ["flow", "spectrum", "auto"])
def test_a_share_out_of_reach_does_not_cost_what_is_left(by):
    torch.manual_seed(0)
    model = Recurrent()
    x = torch.randn(200, 4, 5)
    y = model(x).argmax(1)
    _, report = compress(model, 0.1, x[:4], (x, y), by=by)
    assert report.before.accuracy == 1
    assert report.after.accuracy == 1 or report.by == "spectrum"
    assert all(change.after > 1 for change in report.changes)
    assert 0.8 < report.reached < 1
    assert "0.1 of what can be removed stays" in report.shortfall


def test_a_silent_head_has_a_change_that_is_a_number():
    model = nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 3))
    for parameter in model[2].parameters():
        nn.init.zeros_(parameter)
    _, report = compress(model, 0.5, torch.randn(4, 5))
    assert report.output_change == 0


@dataclass
class Answer:
    logits: torch.Tensor


class Answers(nn.Module):
    def __init__(self, wrap):
        super().__init__()
        self.wrap, self.inner = (
            wrap,
            nn.Sequential(nn.Linear(5, 16), nn.ReLU(), nn.Linear(16, 3)),
        )

    def forward(self, x):
        return self.wrap(self.inner(x))


@pytest.mark.parametrize(
    ("wrap", "pick"),
    [
        (lambda o: {"logits": o, "other": o}, lambda o: o["logits"]),
        (lambda o: (o, o), lambda o: o[0]),
        (Answer, lambda o: o.logits),
    ],
    ids=["dict", "tuple", "dataclass"],
)
def test_outputs_that_are_no_tensor(wrap, pick):
    torch.manual_seed(0)
    model, x, y = Answers(wrap), torch.randn(30, 5), torch.randint(3, (30,))
    _, report = compress(model, 0.5, x, (x, y), output=pick)
    _, plain = compress(model.inner, 0.5, x, (x, y))
    assert report.after.loss == pytest.approx(plain.after.loss, rel=1e-5)
    assert compress(model, 0.5, x, by="flow")[1].met  # nothing is judged
    with pytest.raises(InputError, match="say which output counts"):
        compress(model, 0.5, x, (x, y))


@pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning")
def test_scripted_models_are_refused():
    with pytest.raises(InputError, match="scripted"):
        compress(torch.jit.script(nn.Linear(5, 3)), 0.5, torch.randn(2, 5))


def test_sizes_are_torchs_count_and_measuring_changes_nothing():
    model = nn.Sequential(
        nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 2)
    ).train()
    before = {k: v.clone() for k, v in model.state_dict().items()}
    small, report = compress(model, 0.5, x := torch.randn(4, 6), by="flow")
    assert all(torch.equal(before[k], v) for k, v in model.state_dict().items())
    assert small.training
    for net, size in ((model, report.before), (small, report.after)):
        with FlopCounterMode(display=False) as counter, torch.no_grad():
            net.eval()(x)
        assert size.multiply_adds == counter.get_total_flops() // 8


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
        self.up = nn.Linear(8, 32)
        self.down = nn.Linear(32, 8)
        self.head = nn.Linear(8, 3)

    def forward(self, x):
        h = x + self.attention(x, x, x, need_weights=False)[0]
        return self.head((h + self.down(torch.relu(self.up(h)))).mean(1))


def bits(dtype):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 1))
    x = torch.randn(300, 4)
    return net, x, (x[:, :1] > 0).to(dtype)


@pytest.mark.parametrize("dtype", [torch.int64, torch.float32])
def test_the_loss_that_was_guessed_is_named_and_bits_are_not_numbers(dtype):
    net, x, y = bits(dtype)
    _, report = compress(
        net, 0.5, x[:4], (x, y if dtype.is_floating_point else y[:, 0])
    )
    with torch.no_grad():
        expected = functional.binary_cross_entropy_with_logits(net(x), y.float())
    assert report.loss == "logistic"
    assert report.loss_guessed
    assert report.before.loss == pytest.approx(float(expected), rel=1e-5)
    assert "logistic, guessed from the targets" in str(report)


def test_a_loss_that_was_given_is_named_and_not_guessed():
    net, x, y = bits(torch.float32)
    _, report = compress(net, 0.5, x[:4], (x, y), loss="mse")
    assert (report.loss, report.loss_guessed) == ("mse", False)
    assert "guessed" not in str(report)


def test_labels_of_a_dict_loader_judge_the_network():
    net, x, y = bits(torch.int64)
    batches = [
        {"input": x[i : i + 50], "labels": y[i : i + 50, 0]} for i in range(0, 300, 50)
    ]
    _, report = compress(net, 0.5, {"input": x[:4]}, batches, by="flow")
    with torch.no_grad():
        right = ((net(x) > 0) == (y == 1)).double().mean()
    assert report.before.accuracy == pytest.approx(float(right))
    assert report.before.loss is not None


class Shifted(nn.Module):
    """Subtracts a number from its input, in place or not."""

    def __init__(self, in_place):
        super().__init__()
        self.in_place = in_place
        self.net = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 3))

    def forward(self, x):
        if self.in_place:
            x -= 0.5
        else:
            x = x - 0.5
        return self.net(x)


@pytest.mark.parametrize("by", ["flow", "spectrum", "auto"])
def test_a_model_that_writes_into_its_input_leaves_the_data_as_they_were(by):
    found = []
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(60, 6, generator=generator)
    y = torch.randn(60, 3, generator=generator)
    example = x[:8].clone()
    for in_place in (True, False):
        torch.manual_seed(0)
        model = Shifted(in_place)
        given, first = x.clone(), example.clone()
        _, report = compress(model, 0.5, first, (given, y), by)
        assert torch.equal(given, x)
        assert torch.equal(first, example)
        found.append(report.to_dict())
    assert found[0] == found[1]


class Averaged(nn.Module):
    """Attention as in torch's examples, which averages its heads' weights for nobody."""

    def __init__(self):
        super().__init__()
        self.mix = nn.MultiheadAttention(16, 4, batch_first=True)
        self.out = nn.Linear(16, 3)

    def forward(self, x):
        return self.out(self.mix(x, x, x)[0])


def test_attention_that_returns_its_weights_is_told_how_to_leave_them():
    """The reason was "mean in the forward pass needs all its units"."""
    _, report = compress(Averaged(), 0.5, torch.randn(4, 5, 16), by="flow")
    assert "need_weights=False" in dict(report.skipped)["mix.q"]


@pytest.mark.parametrize(
    ("bad", "loss", "words"),
    [
        (torch.tensor([[0.0], [float("nan")]]), "auto", "targets must be finite"),
        (torch.tensor([[0.0], [float("inf")]]), "logistic", "targets must be finite"),
    ],
)
def test_targets_that_are_not_finite_are_refused(bad, loss, words):
    """The loss was inf before and after, and "auto" chose by that."""
    model = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 1))
    x = torch.randn(2, 4)
    with pytest.raises(InputError, match=words):
        compress(model, 0.5, x, (x, bad), loss=loss)


@pytest.mark.parametrize("loss", ["cross_entropy", "mse"])
@pytest.mark.parametrize("number", [3, -1])
def test_classes_that_are_no_outputs_are_refused(loss, number):
    model = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 3))
    x = torch.randn(2, 4)
    with pytest.raises(InputError, match=rf"lie in 0..2, .*got {number}"):
        compress(model, 0.5, x, (x, torch.tensor([0, number])), loss=loss)
