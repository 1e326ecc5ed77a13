"""explicit_penalty and predictive_moments against all masks, Monte Carlo, and the core."""

import copy
from itertools import pairwise

import numpy as np
import pytest
import torch
from nn_oracles import DropConnectConv2d, exact_moments, outputs_under_masks
from torch import nn
from torch.nn import functional

from overt import Dropout as DropoutNoise
from overt import InputError, penalty
from overt.nn import (
    CovarianceDropout,
    DropBlock1d,
    DropBlock2d,
    DropConnectLinear,
    Dropout,
    explicit_penalty,
    mc_moments,
    predictive_moments,
    without_noise,
)

COVARIANCE = np.array([[0.5, 0.2, -0.1], [0.2, 0.4, 0.1], [-0.1, 0.1, 0.3]])


def flat(layer, *after):
    return nn.Sequential(
        nn.Linear(4, 3), nn.ReLU(), layer, *(after or [nn.Linear(3, 2)])
    ), (5, 4)


def image(layer, *after):
    after = after or [
        nn.Conv2d(2, 3, 2),
        nn.AvgPool2d(2, 1),
        nn.Flatten(),
        nn.Linear(3, 2),
    ]
    return nn.Sequential(nn.Conv2d(1, 2, 2), nn.ReLU(), layer, *after), (3, 1, 4, 4)


class Residual(nn.Module):
    def __init__(self, last=True):
        super().__init__()
        self.first, self.inner, self.out = (
            nn.Linear(4, 3),
            nn.Linear(3, 3),
            nn.Linear(3, 2),
        )
        self.drop, self.last = nn.Dropout(0.3), last

    def forward(self, x):
        if not self.last:
            h = self.drop(self.first(x))
            return self.out(h + torch.relu(self.inner(h)))
        h = self.drop(torch.relu(self.first(x)))
        h = h - 0.5 * self.inner(h)
        return 2 * self.out(h.view(h.size(0), -1)) + 1


# A network whose noise has finitely many (sigma) points, the noise's name, the shape of an input.
SMALL = {
    "dropout": (*flat(Dropout(0.3)), "2"),
    "torch-dropout": (*flat(nn.Dropout(0.3)), "2"),
    "two-linear-after": (*flat(nn.Dropout(0.3), nn.Linear(3, 4), nn.Linear(4, 2)), "2"),
    "nothing-after": (*flat(nn.Dropout(0.3), nn.Identity()), "2"),
    "batch-norm-after": (
        *flat(nn.Dropout(0.3), nn.BatchNorm1d(3), nn.Linear(3, 2)),
        "2",
    ),
    "covariance": (*flat(CovarianceDropout([1.0, -2.0, 0.5], COVARIANCE)), "2"),
    "connect-last": (*flat(nn.Identity(), DropConnectLinear(3, 2, drop_prob=0.3)), "3"),
    "connect-inner": (
        nn.Sequential(DropConnectLinear(4, 2, drop_prob=0.3), nn.Linear(2, 3)),
        (5, 4),
        "0",
    ),
    "connect-time": (
        nn.Sequential(
            DropConnectLinear(2, 2, drop_prob=0.3), nn.Flatten(), nn.Linear(6, 2)
        ),
        (3, 3, 2),
        "0",
    ),
    "connect-groups": (
        nn.Sequential(
            DropConnectConv2d(2, 2, 2, groups=2, stride=2, drop_prob=0.3),
            nn.Flatten(),
            nn.Linear(2, 2),
        ),
        (3, 2, 3, 2),
        "0",
    ),
    "connect-conv": (
        nn.Sequential(
            DropConnectConv2d(1, 2, 2, padding=1, drop_prob=0.3),
            nn.Flatten(),
            nn.Linear(32, 2),
        ),
        (3, 1, 3, 3),
        "0",
    ),
    "residual": (Residual(), (5, 4), "drop"),
    "conv-dropout": (*image(Dropout(0.3, shared_axes=3)), "2"),
    "conv-channels": (*image(nn.Dropout2d(0.3)), "2"),
    "conv-block": (*image(DropBlock2d(0.3, 2)), "2"),
    "conv-block-grid": (
        nn.Sequential(
            DropBlock2d(0.3, 2, placement="grid"), nn.Conv2d(1, 2, 3), nn.Flatten()
        ),
        (3, 1, 4, 4),
        "0",
    ),
    "conv-last": (*image(DropBlock2d(0.3, 2), nn.Conv2d(2, 2, 2)), "2"),
    "conv-1d": (
        nn.Sequential(DropBlock1d(0.4, 3), nn.Conv1d(2, 2, 3, padding=1), nn.Flatten()),
        (3, 2, 5),
        "0",
    ),
    "time": (
        nn.Sequential(
            Dropout(0.3, shared_axes=1), nn.Linear(3, 2), nn.Flatten(), nn.Linear(8, 2)
        ),
        (3, 4, 3),
        "0",
    ),
    "time-linear-last": (
        nn.Sequential(nn.Dropout(0.3), nn.Linear(3, 2)),
        (2, 3, 3),
        "0",
    ),
    "circular-padding": (
        nn.Sequential(
            nn.Dropout(0.4), nn.Conv1d(1, 2, 3, padding=1, padding_mode="circular")
        ),
        (2, 1, 6),
        "0",
    ),
}
every_small = pytest.mark.parametrize(
    ("model", "shape", "name"), SMALL.values(), ids=SMALL.keys()
)


def prepared(model, shape):
    torch.manual_seed(1)
    model = copy.deepcopy(model).double()
    for parameter in model.parameters():
        nn.init.normal_(parameter)
    if any(isinstance(m, nn.BatchNorm1d) for m in model.modules()):
        model.train()(torch.randn(64, 4).double())
    return model.eval(), torch.randn(shape).double()


@every_small
def test_penalty_is_what_enumeration_gives(model, shape, name):
    model, x = prepared(model, shape)
    outputs, prob = outputs_under_masks(model, name, x)
    y = torch.randn_like(outputs[0])
    losses = ((outputs - y) ** 2).flatten(2).sum(2).mean(1)
    plain = ((model(x) - y) ** 2).flatten(1).sum(1).mean()
    found = explicit_penalty(model, x)
    assert found.exact
    assert [term.name for term in found.terms] == [name]
    torch.testing.assert_close(found.value, prob @ losses - plain, rtol=1e-9, atol=1e-9)
    mse = explicit_penalty(model, x, y, loss="mse")
    torch.testing.assert_close(mse.value, found.value / outputs[0, 0].numel())
    assert mse.to_dict()["exact"] is True


@every_small
def test_moments_are_what_enumeration_gives(model, shape, name):
    model, x = prepared(model, shape)
    mean, covariance = exact_moments(*outputs_under_masks(model, name, x))
    found = predictive_moments(model, x)
    assert found.exact
    assert found.method == "propagated"
    assert found.propagated == (name,)
    torch.testing.assert_close(found.mean, mean, rtol=1e-9, atol=1e-9)
    variance = covariance.diagonal(dim1=1, dim2=2).reshape(mean.shape)
    torch.testing.assert_close(found.variance, variance, rtol=1e-9, atol=1e-9)
    full = predictive_moments(model, x, covariance=True).variance
    torch.testing.assert_close(full, covariance, rtol=1e-9, atol=1e-9)


@every_small
def test_gradient_of_the_penalty(model, shape, name):
    """Against central differences along a random direction."""
    model, x = prepared(model, shape)
    explicit_penalty(model, x).value.backward()
    parameters = [p for p in model.parameters() if p.grad is not None]
    steps = [torch.randn_like(p) for p in parameters]
    slope = sum((p.grad * d).sum() for p, d in zip(parameters, steps, strict=True))
    values = []
    for h in (1e-5, -1e-5):
        moved = copy.deepcopy(model)
        chosen = [
            q
            for p, q in zip(model.parameters(), moved.parameters(), strict=True)
            if p.grad is not None
        ]
        with torch.no_grad():
            for q, d in zip(chosen, steps, strict=True):
                q.add_(h * d)
        values.append(explicit_penalty(moved, x).value)
    torch.testing.assert_close(
        (values[0] - values[1]) / 2e-5, slope, rtol=1e-5, atol=1e-6
    )


@pytest.mark.parametrize("drop_prob", [0.3, 0.7])
def test_agrees_with_the_core(drop_prob):
    model, x = prepared(*flat(nn.Dropout(drop_prob)))
    A, U = torch.relu(model[0](x)), model[3].weight
    noise = DropoutNoise(drop_prob)
    torch.testing.assert_close(
        explicit_penalty(model, x).value, penalty.hidden(U, A, noise)
    )
    torch.testing.assert_close(
        predictive_moments(model, x).variance, penalty.predictive_variance(U, A, noise)
    )


def test_deep_linear_network_is_exact_in_every_term():
    torch.manual_seed(0)
    layers = [nn.Linear(a, b, bias=False) for a, b in ((4, 5), (5, 6), (6, 3))]
    drops = [nn.Dropout(0.3), Dropout(0.5)]
    model = nn.Sequential(layers[0], drops[0], layers[1], drops[1], layers[2]).double()
    x = torch.randn(200, 4).double()
    C = x.T @ x / len(x)
    found = explicit_penalty(model, x)
    expected = penalty.deep([layer.weight for layer in layers], [0.3, 0.5], C)
    torch.testing.assert_close(found.value, expected)
    assert [term.exact for term in found.terms] == [True, True]
    alone = penalty.deep(
        [layers[1].weight @ layers[0].weight, layers[2].weight], 0.5, C
    )
    torch.testing.assert_close(found.terms[1].value, alone)


CONV = nn.Sequential(
    nn.Conv2d(1, 6, 3, padding=1),
    nn.ReLU(),
    nn.MaxPool2d(2),
    DropBlock2d(0.25, 3),
    nn.Conv2d(6, 8, 3, padding=1),
    nn.BatchNorm2d(8),
    nn.AdaptiveAvgPool2d(2),
    nn.Flatten(),
    nn.Linear(32, 5),
)
LARGE = {
    "mlp": (
        nn.Sequential(nn.Linear(9, 64), nn.GELU(), nn.Dropout(0.5), nn.Linear(64, 7)),
        (6, 9),
    ),
    "conv": (CONV, (4, 1, 14, 14)),
    "connect-conv": (
        nn.Sequential(
            nn.Dropout(0.2),
            DropConnectConv2d(2, 4, 3, padding=1, drop_prob=0.4),
            nn.Flatten(),
            nn.Linear(100, 3),
        ),
        (3, 2, 5, 5),
    ),
    "connect-mlp": (
        nn.Sequential(
            DropConnectLinear(9, 40, drop_prob=0.4), nn.Dropout(0.3), nn.Linear(40, 4)
        ),
        (6, 9),
    ),
    "covariance": (
        nn.Sequential(
            nn.Linear(9, 3),
            CovarianceDropout(np.ones(3), COVARIANCE),
            nn.Dropout(0.3),
            nn.Linear(3, 4),
        ),
        (6, 9),
    ),
}


@pytest.mark.parametrize(("model", "shape"), LARGE.values(), ids=LARGE.keys())
def test_penalty_within_monte_carlo_error(model, shape):
    torch.manual_seed(2)
    model, x = copy.deepcopy(model).eval(), torch.randn(shape)
    found = explicit_penalty(model, x)
    assert found.exact
    clean = model(x).detach()
    model.train()
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.eval()
    with torch.no_grad():
        draws = torch.stack(
            [((model(x) - clean) ** 2).flatten(1).sum(1).mean() for _ in range(1500)]
        )
    error = draws.std() / len(draws) ** 0.5
    assert abs(draws.mean() - found.value.detach()) <= 5 * error


def three_hidden(activation=nn.ReLU, drop_prob=0.3):
    torch.manual_seed(0)
    widths, parts = (8, 60, 60, 60), []
    for a, b in pairwise(widths):
        parts += [nn.Linear(a, b), activation(), nn.Dropout(drop_prob)]
    return nn.Sequential(*parts, nn.Linear(60, 3)).eval(), torch.randn(12, 8)


@pytest.mark.parametrize("activation", [nn.ReLU, nn.Tanh, nn.GELU])
def test_three_hidden_layers_to_a_few_per_cent(activation):
    model, x = three_hidden(activation)
    mean, variance = predictive_moments(model, x)
    mc = mc_moments(model, x, 3000, seed=0)
    sd = mc.variance.sqrt()
    assert (mean - mc.mean).norm() / mc.mean.norm() < 0.05
    assert (variance.sqrt() - sd).norm() / sd.norm() < 0.05


@pytest.mark.parametrize("loss", ["squared", "mse"])
def test_penalty_and_mean_shift_are_all_that_noise_adds(loss):
    """A function right after dropout is exact, and moves the mean: y decides what that costs."""
    torch.manual_seed(2)
    model = nn.Sequential(
        nn.Linear(4, 3), nn.Dropout(0.3), nn.GELU(), nn.Linear(3, 2)
    ).double()
    x, y = torch.randn(5, 4).double(), torch.randn(5, 2).double()
    outputs, prob = outputs_under_masks(model, "1", x)
    scale = 1.0 if loss == "squared" else 0.5
    noisy = scale * prob @ ((outputs - y) ** 2).sum(2).mean(1)
    plain = scale * ((model.eval()(x) - y) ** 2).sum(1).mean()
    found = explicit_penalty(model, x, y, loss=loss)
    assert [term.name for term in found.terms] == ["1", "mean shift"]
    assert found.exact
    torch.testing.assert_close(found.value, noisy - plain, rtol=1e-9, atol=1e-9)
    without = explicit_penalty(model, x, loss=loss)
    torch.testing.assert_close(
        without.value, found.terms[0].value, rtol=1e-9, atol=1e-9
    )
    net = without_noise(model, loss=loss).train()
    mean = prob @ outputs.flatten(1)
    out = net(x)
    torch.testing.assert_close(out.flatten(), mean, rtol=1e-9, atol=1e-9)
    rest = scale * ((out - y) ** 2).sum(1).mean()
    torch.testing.assert_close(rest + net.penalty, noisy, rtol=1e-9, atol=1e-9)


def test_tokens_that_all_rows_drop_together():
    """Two of four tokens, by a permutation that rows share: six cases. Errors are stated."""

    class Net(nn.Module):
        def forward(self, x):
            return (
                x[:, torch.randperm(4)[:2]].sum(1).tanh()
                if self.training
                else x.sum(1) / 2
            )

    torch.manual_seed(0)
    x, y = torch.randn(4, 4, 3).double(), torch.randn(4, 3).double()
    pairs = [[i, j] for i in range(4) for j in range(i)]
    outputs = torch.stack([x[:, pair].sum(1).tanh() for pair in pairs])
    variance = outputs.var(0, unbiased=False)
    sampled = mc_moments(Net(), x, 512, seed=0)
    assert ((sampled.std - variance.sqrt()).abs() <= 2.5 * sampled.std_error).all()
    found = explicit_penalty(Net(), x)
    exact = float(variance.sum(1).mean())
    assert abs(float(found.value) - exact) <= 4 * found.error
    assert 0.01 * exact < found.error == found.terms[0].error < 0.1 * exact
    assert found.to_dict()["error"] == found.error
    moved = explicit_penalty(Net(), x, y)
    assert moved.terms[-1].name == "mean shift"
    assert moved.terms[-1].error > 0


@pytest.mark.parametrize("loss", ["squared", "logistic", "cross_entropy"])
def test_penalty_of_noise_that_is_drawn(loss):
    """A coin for each of many rows, by argmax, which cannot be carried: Var = |w x|^2 / 4."""
    torch.manual_seed(0)
    x, w = (
        torch.randn(1500, 3).double(),
        torch.tensor([[0.3, -0.2], [0.1, 0.4], [0.2, 0.1]]).double(),
    )

    class Net(nn.Module):
        def forward(self, x):
            keep = torch.ones(len(x), 1).double()
            if self.training:
                keep = (
                    torch.rand(len(x), 2, dtype=x.dtype).argmax(1, keepdim=True) == 0
                ).double()
            return x @ w * keep

    found = explicit_penalty(Net(), x, loss=loss)
    assert found.drawn
    assert not found.exact
    spread, mean = 0.25 * (x @ w)[:, :, None] * (x @ w)[:, None, :], 0.5 * x @ w
    if loss == "squared":
        H = torch.eye(2).double().expand(1500, 2, 2)
    elif loss == "logistic":
        p = torch.sigmoid(mean)
        H = torch.diag_embed(p * (1 - p)) / 2
    else:
        p = torch.softmax(mean, 1)
        H = (torch.diag_embed(p) - p[:, :, None] * p[:, None, :]) / 2
    expected = (H * spread).sum((1, 2)).mean()
    assert float(found.value) == pytest.approx(float(expected), rel=0.05)


def test_branches_that_meet_behind_a_non_linearity():
    torch.manual_seed(0)
    model, x = Residual(last=False), torch.randn(5, 4)
    found = explicit_penalty(model, x)
    assert [(t.name, t.exact) for t in found.terms] == [("drop", False)]
    mc = mc_moments(model, x, 4000, seed=0).variance
    ours = predictive_moments(model, x).variance
    assert (ours - mc).norm() / mc.norm() < 0.12


def test_dropout_inside_a_transformer_layer_is_seen():
    """Torch's fast path for evaluation skips these modules; attention drops weights too."""
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.1, batch_first=True)
    model = nn.Sequential(layer, nn.Flatten(), nn.Linear(32, 2))
    x = torch.randn(4, 4, 8)
    mc = mc_moments(model, x, 4000, seed=0).variance
    model.train()
    with torch.no_grad():
        plain = torch.stack([model(x) for _ in range(4000)]).var(0)
    assert torch.allclose(mc, plain, rtol=0.2)
    assert predictive_moments(model, x).variance.sum().item() == pytest.approx(
        mc.sum().item(), rel=0.15
    )
    names = [term.name for term in explicit_penalty(model, x).terms]
    assert names == [
        "0.self_attn:multi_head_attention_forward",
        "0.dropout1",
        "0.dropout",
        "0.dropout2",
    ]
    assert torch.backends.mha.get_fastpath_enabled()


def test_cross_entropy_is_second_order():
    """The curvature form is near for weak noise, and not far for strong."""
    torch.manual_seed(0)
    x, y = torch.randn(20, 6), torch.randint(4, (20,))
    base = nn.Sequential(nn.Linear(6, 80), nn.ReLU(), nn.Dropout(0.5), nn.Linear(80, 4))
    errors = []
    for drop_prob in (0.1, 0.5):
        model = copy.deepcopy(base)
        model[2].p = drop_prob
        value = explicit_penalty(model, x, loss="cross_entropy").value.detach()
        with torch.no_grad():
            model.train()
            draws = torch.stack(
                [functional.cross_entropy(model(x), y) for _ in range(4000)]
            )
            excess = draws.mean() - functional.cross_entropy(model.eval()(x), y)
        error = draws.std() / 4000**0.5
        errors.append(float((abs(value - excess) - 5 * error) / value))
    assert errors[0] < 0.05
    assert errors[1] < 0.15
    assert not explicit_penalty(base, x, loss="cross_entropy").exact


def test_cross_entropy_counts_covariances_between_classes():
    """(1/2) <diag(p) - p p', Cov>, Cov over all masks: moving all logits alike is free."""
    model, x = prepared(*flat(nn.Dropout(0.5), nn.Linear(3, 4)))
    with torch.no_grad():
        model[3].weight += 2 * torch.arange(1, 4)  # units that move all logits together
        masks = torch.cartesian_prod(*[torch.tensor([0.0, 2.0], dtype=x.dtype)] * 3)
        logits = model[3](masks[:, None] * model[:2](x))  # (masks, rows, classes)
        away = logits - logits.mean(0)
        p = torch.softmax(logits.mean(0), 1)
        H = torch.diag_embed(p) - p[:, :, None] * p[:, None, :]
        expected = torch.einsum("mri,rij,mrj->", away, H, away) / (
            2 * len(masks) * len(x)
        )
        alone = (p * (1 - p) * away.square().mean(0)).sum(1).mean() / 2
    value = explicit_penalty(model, x, loss="cross_entropy").value
    torch.testing.assert_close(value, expected)
    assert alone > 2 * expected  # what variances alone would say


def test_logistic_is_half_curvature_times_variance():
    model, x = prepared(*flat(nn.Dropout(0.3), nn.Linear(3, 1)))
    p, variance = torch.sigmoid(model(x)), predictive_moments(model, x).variance
    value = explicit_penalty(model, x, loss="logistic").value
    torch.testing.assert_close(value, (p * (1 - p) * variance).mean() / 2)
    with pytest.raises(InputError, match="logistic"):
        explicit_penalty(model, x, loss="cross_entropy")


def test_modes_statistics_and_counters_are_left_alone():
    model = nn.Sequential(
        nn.Linear(3, 4), nn.BatchNorm1d(4), Dropout(0.5, seed=1), nn.Linear(4, 2)
    )
    model.train()
    model[2](torch.ones(2, 4))
    before = {k: v.clone() for k, v in model.state_dict().items()}
    x = torch.randn(6, 3)
    for call in (
        explicit_penalty,
        predictive_moments,
        lambda m, x: mc_moments(m, x, 3),
    ):
        call(model, x)
        assert all(module.training for module in model.modules())
        assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())
    explicit_penalty(model, x).value.backward()


def test_batch_statistics_after_the_noise_are_an_approximation():
    model = nn.Sequential(nn.Dropout(0.5), nn.BatchNorm1d(3), nn.Linear(3, 2))
    x = torch.randn(6, 3)
    with pytest.warns(UserWarning, match="samples"):
        assert not explicit_penalty(model.train(), x).exact
    assert explicit_penalty(model.eval(), x).exact


def test_mc_moments_of_a_known_law():
    model = nn.Sequential(nn.Dropout(0.5), nn.Linear(2, 1, bias=False))
    nn.init.ones_(model[1].weight)
    x = torch.tensor([[3.0, 1.0]])
    mean, variance = mc_moments(model, x, 4000, seed=0)
    assert abs(mean.item() - 4) <= 5 * (10 / 4000) ** 0.5
    assert abs(variance.item() - 10) <= 5 * (64 / 4000) ** 0.5 * 1.5
    again = mc_moments(model, x, 4000, seed=0)
    assert torch.equal(mean, again.mean)
    full = mc_moments(model, x, 4000, seed=0, covariance=True).variance
    torch.testing.assert_close(full[:, 0], variance)


def test_no_noise_means_no_penalty_and_no_variance():
    model, x = nn.Sequential(nn.Linear(3, 2), nn.Dropout(0.0)), torch.randn(4, 3)
    assert explicit_penalty(model, x).value == 0
    assert (
        explicit_penalty(model, x).terms
        == explicit_penalty(model, x, model(x)).terms
        == ()
    )
    mean, variance = predictive_moments(model, x)
    assert torch.equal(mean, model(x))
    assert not variance.any()
    assert predictive_moments(model, x, covariance=True).variance.shape == (4, 2, 2)


def test_without_noise_gives_output_and_penalty_in_one_pass():
    model, x = prepared(*flat(nn.Dropout(0.3)))
    net = without_noise(model)
    with pytest.raises(InputError, match="training mode"):
        _ = net.penalty
    net.train()
    torch.testing.assert_close(net(x), copy.deepcopy(model).eval()(x))
    torch.testing.assert_close(net.penalty, explicit_penalty(model, x).value)
    assert model[2].training
    copy.deepcopy(net)
    net.eval()
    torch.testing.assert_close(net(x), model(x))
    assert "squared" in repr(net)
    assert set(dict(net.named_parameters())) == {
        f"model.{n}" for n, _ in model.named_parameters()
    }


class Ends(nn.Module):
    """Ends with a linear layer right after its noise, and with its coin up elsewhere."""

    def __init__(self, noise, late=0.0):
        super().__init__()
        self.out, self.first, self.noise, self.late = (
            nn.Linear(5, 3),
            nn.Linear(4, 5),
            noise,
            late,
        )

    def forward(self, x):
        h = self.noise(torch.relu(self.first(functional.dropout(x, self.late))))
        return {"logits": self.out(h)}


@pytest.mark.parametrize("loss", ["squared", "mse", "cross_entropy", "logistic"])
@pytest.mark.parametrize("noise", [nn.Dropout(0.3), Dropout(0.4)])
def test_noise_before_the_last_layer_has_the_penalty_that_moments_give(loss, noise):
    torch.manual_seed(0)
    model, x = Ends(noise).double(), torch.randn(6, 4).double()
    net = without_noise(model, loss=loss, output=lambda o: o["logits"]).train()
    out = net(x)
    penalty = explicit_penalty(model, x, loss=loss, output=lambda o: o["logits"]).value
    torch.testing.assert_close(out, model.eval()(x)["logits"])
    weights = list(model.parameters())
    torch.testing.assert_close(net.penalty, penalty)
    for a, b in zip(
        *(
            torch.autograd.grad(v, weights, allow_unused=True)
            for v in (net.penalty, penalty)
        ),
        strict=True,
    ):
        assert (a is None) == (b is None)
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("change", ["more noise", "all dropped", "a hook"])
def test_a_model_that_changes_between_steps_has_the_penalty_of_what_it_is_now(change):
    torch.manual_seed(0)
    model, x = Ends(nn.Dropout(0.3)), torch.randn(6, 4)
    net = without_noise(model, output=lambda o: o["logits"]).train()
    net(x)
    if change == "more noise":
        model.late = 0.5
    elif change == "all dropped":
        model.noise.p = 1.0
    else:
        model.out.register_forward_hook(lambda module, given, made: 2 * made)
    penalties = []
    for _ in range(400 if change == "more noise" else 2):
        net(x)
        penalties.append(net.penalty.detach())
    penalties = torch.stack(penalties)
    expected = explicit_penalty(model, x, output=lambda o: o["logits"]).value
    error = penalties.std() / len(penalties) ** 0.5
    assert (penalties.mean() - expected).abs() <= 5 * error + 1e-5


def test_without_noise_updates_batch_statistics_once():
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Dropout(0.5), nn.Linear(4, 2)
    )
    twin = copy.deepcopy(model)
    x = torch.randn(6, 3)
    without_noise(model).train()(x)
    twin.train()(x)
    torch.testing.assert_close(model[1].running_mean, twin[1].running_mean)


def test_training_without_noise_reaches_a_lower_dropout_objective():
    """Equal steps, squared loss: the penalty's descent has no sampling noise to fight."""
    torch.manual_seed(0)
    x = torch.randn(128, 10)
    y = torch.tanh(x @ torch.randn(10, 3))
    base = nn.Sequential(
        nn.Linear(10, 64), nn.ReLU(), nn.Dropout(0.5), nn.Linear(64, 3)
    )
    finals = {}
    for kind in ("sampled", "penalty"):
        model = copy.deepcopy(base)
        net = without_noise(model) if kind == "penalty" else model
        optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
        for _ in range(150):
            net.train()
            optimizer.zero_grad()
            loss = ((net(x) - y) ** 2).sum(1).mean()
            (loss + net.penalty if kind == "penalty" else loss).backward()
            optimizer.step()
        with torch.no_grad():
            plain = ((model.eval()(x) - y) ** 2).sum(1).mean()
            finals[kind] = float(plain + explicit_penalty(model, x).value)
    assert finals["penalty"] < finals["sampled"]


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda x: explicit_penalty(x, x), "model"),
        (lambda x: explicit_penalty(nn.Dropout(), [1.0]), "x must"),
        (lambda x: explicit_penalty(nn.Dropout(), x[0]), "batch"),
        (lambda x: explicit_penalty(nn.Dropout(), x, loss="hinge"), "loss"),
        (lambda x: predictive_moments(nn.Dropout(), x, draws=1), "draws"),
        (
            lambda x: predictive_moments(nn.Linear(3, 2), torch.ones(2, 5)),
            "cannot be run on x",
        ),
        (lambda x: mc_moments(nn.Linear(3, 3), x), "no noise"),
        (lambda x: mc_moments(nn.Sequential(nn.Dropout()), x, 1), "n must"),
        (lambda x: predictive_moments(nn.Sequential(nn.LSTM(3, 3)), x), "output"),
        (lambda x: without_noise(3), "model"),
    ],
)
def test_mistakes_are_named(wrong, message):
    with pytest.raises(InputError, match=message):
        wrong(torch.randn(2, 3))


def test_noise_that_is_not_seen_has_a_term():
    class Masked(nn.Module):
        def forward(self, x):
            mask = np.random.rand(*x.shape) > 0.3  # noqa: NPY002
            return x * torch.from_numpy(mask) / 0.7

    torch.manual_seed(0)
    np.random.seed(0)  # noqa: NPY002
    model, x = nn.Sequential(Masked(), nn.Linear(6, 2)), torch.randn(8, 6)
    penalty = explicit_penalty(model, x)
    assert [term.name for term in penalty.terms] == ["all noise"]
    assert not penalty.exact
    plain = explicit_penalty(nn.Sequential(nn.Dropout(0.3), model[1]), x)
    assert penalty.value.item() == pytest.approx(plain.value.item(), rel=0.3)


@pytest.mark.parametrize("kind", ["units", "weights"])
def test_a_seed_does_not_change_the_penalty(kind):
    """The noise-free output of a layer with a seed was taken at its mean uniform number."""
    torch.manual_seed(0)
    x, y = torch.randn(16, 4), torch.randn(16, 2)
    penalties = []
    for seed in (None, 3):
        torch.manual_seed(1)
        if kind == "units":
            model = nn.Sequential(
                nn.Linear(4, 6), Dropout(0.5, seed=seed), nn.Linear(6, 2)
            )
        else:
            layer = DropConnectLinear(4, 6, drop_prob=0.4, seed=seed)
            model = nn.Sequential(layer, nn.Linear(6, 2))
        penalties.append(explicit_penalty(model, x, y, loss="mse"))
    plain, seeded = penalties
    assert seeded.exact
    assert seeded.value.item() == pytest.approx(plain.value.item(), rel=1e-5)
    assert seeded.terms[-1].name == "mean shift"
    assert seeded.terms[-1].value.item() == 0


class InTraining(nn.Module):
    """A linear layer behind a function that runs in training mode only."""

    def __init__(self, change):
        super().__init__()
        self.change, self.out = change, nn.Linear(4, 3)

    def forward(self, x):
        return self.out(self.change(x) if self.training else x)


MOVING = {
    "alpha": lambda: nn.Sequential(nn.AlphaDropout(0.3), nn.Linear(4, 3)),
    "feature-alpha": lambda: nn.Sequential(
        nn.FeatureAlphaDropout(0.3), nn.Linear(4, 3)
    ),
    "all-dropped": lambda: nn.Sequential(nn.Dropout(1.0), nn.Linear(4, 3)),
    "uniform": lambda: InTraining(lambda x: x + torch.rand_like(x)),
    "unscaled-mask": lambda: InTraining(lambda x: x * (torch.rand_like(x) < 0.6)),
    "alpha-selu": lambda: nn.Sequential(
        nn.AlphaDropout(0.3), nn.Linear(4, 8), nn.SELU(), nn.Linear(8, 3)
    ),
}


@pytest.mark.parametrize("kind", MOVING)
@pytest.mark.parametrize("mode", [True, False])
def test_noise_that_moves_the_mean_adds_what_passes_show(kind, mode):
    """The mean shift was that to the output with noise at its mean, 0 for all of these."""
    torch.manual_seed(0)
    model = MOVING[kind]().double()
    x, y = torch.randn(16, 4).double(), torch.randn(16, 3).double()

    def loss(output):
        return ((output - y) ** 2).sum(1).mean()

    with torch.no_grad():
        plain = loss(model.eval()(x))
        model.train()
        noisy = torch.stack([loss(model(x)) for _ in range(4000)])
    found = explicit_penalty(model.train(mode), x, y)
    error = noisy.std() / len(noisy) ** 0.5
    assert found.exact == (kind != "alpha-selu")
    away = abs(found.value.detach() - (noisy.mean() - plain))
    assert away <= 4 * error + 2 * found.error + 1e-9
    assert found.terms[-1].name == "mean shift"
    assert abs(found.terms[-1].value) > 1e-3


@pytest.mark.parametrize("kind", MOVING)
def test_a_penalty_without_targets_says_that_the_mean_moves(kind):
    torch.manual_seed(0)
    model, x = MOVING[kind](), torch.randn(16, 4)
    found = explicit_penalty(model, x)
    assert not found.exact
    assert "pass y" in found.note
    assert not explicit_penalty(model, x, torch.randn(16, 3)).note
    plain = explicit_penalty(nn.Sequential(nn.Dropout(0.3), nn.Linear(4, 3)), x)
    assert plain.exact
    assert not plain.note


def test_a_sampled_penalty_without_targets_says_that_the_mean_moves():
    torch.manual_seed(0)
    x = torch.randn(40, 4)
    drop = InTraining(lambda x: x[:, torch.randperm(4)] + 1)
    assert "pass y" in explicit_penalty(drop, x).note
    flip = InTraining(lambda x: x * (2.0 * torch.randint(0, 2, x.shape)))
    assert not explicit_penalty(flip, x).note


@pytest.mark.parametrize("kind", ["alpha", "all-dropped"])
def test_gradient_of_a_mean_shift(kind):
    """With respect to weights and inputs, against central differences."""
    torch.manual_seed(0)
    model = MOVING[kind]().double()
    x, y = torch.randn(5, 4).double(), torch.randn(5, 3).double()

    x.requires_grad_()
    weight = model[1].weight
    grads = torch.autograd.grad(explicit_penalty(model, x, y).value, [weight, x])
    for tensor, grad in zip((weight, x), grads, strict=True):
        step = torch.randn_like(tensor)
        values = []
        for h in (1e-5, -2e-5):
            with torch.no_grad():
                tensor.add_(h * step)
            values.append(explicit_penalty(model, x, y).value.detach())
        with torch.no_grad():
            tensor.add_(1e-5 * step)
        slope = (values[0] - values[1]) / 2e-5
        torch.testing.assert_close((grad * step).sum(), slope, rtol=1e-5, atol=1e-6)


def written(h, mask, value):
    h = h.clone()
    h[mask] = value
    return h


def rows(x):
    return torch.rand(len(x), dtype=x.dtype)


class Writes(nn.Module):
    """Writes to places that noise chooses by its random numbers."""

    def __init__(self, draw, change):
        super().__init__()
        self.draw, self.change, self.out = draw, change, nn.Linear(3, 2)
        self.e = nn.Parameter(torch.randn(3))

    def forward(self, x):
        if self.training:
            x = self.change(x, self.draw(x), self.e)
        return self.out(x)


REFUSED = {
    "entries": (torch.rand_like, lambda x, u, e: written(x, u < 0.4, 0.0)),
    "rows": (rows, lambda x, u, e: written(x, u < 0.4, e)),
    "gathered": (torch.rand_like, lambda x, u, e: x.gather(1, (3 * u).long())),
    "selected": (rows, lambda x, u, e: x.index_select(0, (3 * u).long())),
    "embedded": (rows, lambda x, u, e: functional.embedding((3 * u).long(), x)),
    "scattered": (
        torch.rand_like,
        lambda x, u, e: x.scatter(1, (3 * u).long()[:, :1], 0.0),
    ),
    "number": (rows, lambda x, u, e: written(x, (u * 3).long(), 0.0)),
    "columns": (rows, lambda x, u, e: written(x, (slice(None), u[:3] < 0.4), 0.0)),
    "flipped": (torch.rand_like, lambda x, u, e: written(x, u < u.flip(1), 0.0)),
    "values": (torch.rand_like, lambda x, u, e: written(x, u < 0.4, x[u < 0.4])),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_random_indices_are_sampled_with_a_reason(kind):
    """Gathering, selecting and embedding by random numbers was a RuntimeError of torch."""
    torch.manual_seed(0)
    model, x = Writes(*REFUSED[kind]), torch.randn(5, 3)
    found = predictive_moments(model, x)
    assert found.method == "sampled"
    assert found.reason
    assert explicit_penalty(model, x).drawn == ("all",)


@pytest.mark.parametrize("rows", [1, 5])
def test_thresholds_of_units_decide_on_masks(rows):
    """`torch.rand_like(x) < p` with a tensor p was a RuntimeError about sizes."""
    torch.manual_seed(0)
    p = torch.tensor([0.2, 0.5, 0.7, 0.9]).expand(rows, 4).squeeze(0)
    model = InTraining(lambda x: x * (torch.rand_like(x) < p) / p)
    x, y = torch.randn(5, 4), torch.randn(5, 3)
    variance = (x**2 * (1 - p) / p) @ (model.out.weight**2).T
    found = predictive_moments(model, x)
    assert not found.exact
    torch.testing.assert_close(found.variance, variance, rtol=0.05, atol=1e-3)
    assert ((found.mean - model.eval()(x)).abs() <= 2 * found.mean_error).all()
    penalty = explicit_penalty(model, x, y)
    added = variance.sum(1).mean().detach()
    assert abs(penalty.value.detach() - added) <= 3 * penalty.error
