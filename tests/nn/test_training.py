"""Training on a penalty in place of sampled noise: targets that weigh positions, gradient bias."""

import copy
import itertools

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from overt import InputError
from overt.nn import explicit_penalty, without_noise

CLASSES = 3
X = torch.tensor(
    [[[0.8, -0.4], [0.3, 1.1]], [[-0.9, 0.5], [1.3, 0.2]]], dtype=torch.float64
)
Y = torch.tensor([[1, -100], [2, 0]])
WEIGHTS = torch.tensor([1.0, 2.0, 0.5], dtype=torch.float64)
LOSSES = {
    "by name": ("cross_entropy", Y),
    "torch's own": (nn.CrossEntropyLoss(), Y),
    "class weights": (nn.CrossEntropyLoss(WEIGHTS), Y),
    "ignored index": (nn.CrossEntropyLoss(ignore_index=2), Y.clamp(min=0)),
    "both": (nn.CrossEntropyLoss(WEIGHTS, ignore_index=0), Y.clamp(min=0)),
}


class Tokens(nn.Module):
    """Logits of shape (batch, classes, tokens) that are affine in dropout's mask."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.last = nn.Linear(2, CLASSES).double()

    def forward(self, x):
        return self.last(F.dropout(x, 0.4, self.training)).mT


def enumerated_logits(model, x, p=0.4):
    """Return the probabilities of all masks, and the logits under each."""
    masks = torch.tensor(
        list(itertools.product([0.0, 1.0], repeat=x.numel())), dtype=x.dtype
    )
    probability = (masks * (1 - p) + (1 - masks) * p).prod(1)
    logits = model.last(x * masks.reshape(-1, *x.shape) / (1 - p)).transpose(-1, -2)
    return probability, logits


def as_function(loss):
    return F.cross_entropy if isinstance(loss, str) else loss


@pytest.mark.parametrize("name", LOSSES)
def test_tokens_that_do_not_count_are_left_out_of_the_penalty(name):
    loss, y = LOSSES[name]
    model = Tokens()
    probability, logits = enumerated_logits(model, X)
    mean = torch.einsum("n,nbct->bct", probability, logits)
    away = logits - mean
    covariance = torch.einsum("n,nbct,nbdt->btcd", probability, away, away)
    at = mean.detach().requires_grad_()
    hessian = torch.autograd.functional.hessian(lambda m: as_function(loss)(m, y), at)
    expected = sum(
        (hessian[b, :, t, b, :, t] * covariance[b, t]).sum() / 2
        for b in range(2)
        for t in range(2)
    )
    penalty = explicit_penalty(model, X, y, loss=loss)
    torch.testing.assert_close(penalty.value, expected.detach(), rtol=1e-9, atol=0)


@pytest.mark.parametrize("name", LOSSES)
def test_a_training_step_on_tokens_has_the_expected_loss_of_all_masks(name):
    loss, y = LOSSES[name]
    model = Tokens()
    probability, logits = enumerated_logits(model, X)
    losses = torch.stack([as_function(loss)(one, y) for one in logits])
    net = without_noise(model, loss=loss)
    torch.manual_seed(1)
    found = torch.stack(
        [
            (as_function(loss)(net(X), y) + net.penalty_for(y)).detach()
            for _ in range(500)
        ]
    )
    expected = (probability * losses).sum().detach()
    # One direction is a sum of signs, whose fourth moments are not those of the masks.
    assert abs(found.mean() - expected) < 5 * found.std() / 500**0.5 + 0.02 * expected


def test_pixels_have_a_penalty():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(1, 4, 1), nn.Dropout(0.3), nn.Conv2d(4, CLASSES, 1))
    x = torch.randn(2, 1, 2, 3)
    y = torch.randint(CLASSES, (2, 2, 3))
    flat = explicit_penalty(
        model,
        x,
        y.flatten(),
        loss="cross_entropy",
        output=lambda o: o.movedim(1, 3).flatten(0, 2),
    )
    found = explicit_penalty(model, x, y, loss="cross_entropy")
    torch.testing.assert_close(found.value, flat.value)


WRONG = {
    "tokens last": (Y[:, :1], "shape (2, 2), got (2, 1)"),
    "no such class": (Y.clamp(min=0) + 1, "0..2"),
    "class probabilities": (torch.ones(2, CLASSES, 2) / CLASSES, "class numbers"),
}


@pytest.mark.parametrize("name", WRONG)
def test_targets_that_do_not_fit_are_refused(name):
    y, message = WRONG[name]
    loss = nn.CrossEntropyLoss(WEIGHTS)
    net = without_noise(Tokens(), loss=loss)
    net(X)
    with pytest.raises(InputError) as error:
        net.penalty_for(y)
    assert message in str(error.value)
    with pytest.raises(InputError) as error:
        explicit_penalty(Tokens(), X, y, loss=loss)
    assert message in str(error.value)


def test_a_penalty_that_needs_targets_says_so():
    net = without_noise(Tokens(), loss=nn.CrossEntropyLoss(WEIGHTS))
    net(X)
    with pytest.raises(InputError, match=r"penalty_for\(y\)"):
        _ = net.penalty
    with pytest.raises(InputError, match="needs targets"):
        explicit_penalty(Tokens(), X, loss=nn.CrossEntropyLoss(WEIGHTS))


# -- the bias of the gradient -------------------------------------------------------------------


def two_layers():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(4, 6),
        nn.ReLU(),
        nn.Dropout(0.5),
        nn.Linear(6, 6),
        nn.ReLU(),
        nn.Dropout(0.5),
    ).append(nn.Linear(6, 2))


def test_the_bias_of_the_gradient_is_that_of_long_averages():
    model = two_layers()
    x = torch.randn(8, 4)
    y = torch.randn(8, 2)
    net = without_noise(model, loss="mse").train()

    def gradient(step, count):
        model.zero_grad()
        for _ in range(count):
            step().backward()
        return torch.cat([p.grad.flatten() for p in model.parameters()]) / count

    def sampled():
        return F.mse_loss(model(x), y)

    def expected():
        return F.mse_loss(net(x), y) + net.penalty

    # Noise in both averages is independent in the two halves, and cancels in the product.
    offs = [gradient(expected, 200) - gradient(sampled, 4000) for _ in range(2)]
    norm = gradient(sampled, 4000).norm()
    bias = float((offs[0] @ offs[1]).clamp(min=0).sqrt() / norm)
    found = net.gradient_bias(x, y, samples=800)
    assert found.samples == 800
    assert bias <= found.upper
    assert abs(found.value - bias) <= found.upper - found.value + 0.02


def test_a_step_that_is_exact_has_no_bias():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Dropout(0.5), nn.Linear(8, 2))
    x = torch.randn(8, 4)
    found = without_noise(model, loss="mse").gradient_bias(
        x, torch.randn(8, 2), samples=400
    )
    # The noise of 400 samples alone gives an upper end of about .04 on such networks.
    assert found.value < 0.1
    assert found.upper < 0.2


def test_measuring_the_bias_leaves_everything_as_it_was():
    model = two_layers()
    net = without_noise(model, loss="mse")
    x = torch.randn(8, 4)
    y = torch.randn(8, 2)
    state = {name: value.clone() for name, value in model.state_dict().items()}
    generator = torch.get_rng_state()
    first = net.gradient_bias(x, y, samples=16)
    assert torch.equal(generator, torch.get_rng_state())
    assert all(p.grad is None for p in model.parameters())
    assert all(
        torch.equal(value, state[name]) for name, value in model.state_dict().items()
    )
    assert net.gradient_bias(x, y, samples=16).to_dict() == first.to_dict()
    with pytest.raises(InputError, match="samples"):
        net.gradient_bias(x, y, samples=3)


class Halves(nn.Module):
    """What runs depends on the batch."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(6, 6)
        self.dropout = nn.Dropout(0.4)

    def forward(self, x):
        h = torch.tanh(self.dropout(self.linear(x)))
        return h * 2 if float(x.sum()) > 0 else h[:, :3].repeat(1, 2)


class Scaled(nn.Module):
    """What is certain depends on the batch, and has no gradient."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(6, 6)
        self.dropout = nn.Dropout(0.4)

    def forward(self, x):
        return torch.tanh(self.dropout(self.linear(x))) * x.softmax(1)


def normalized():
    return nn.Sequential(
        nn.Linear(6, 6), nn.BatchNorm1d(6), nn.Dropout(0.4), nn.ReLU(), nn.Linear(6, 2)
    )


@pytest.mark.parametrize("make", [Halves, Scaled, normalized])
def test_a_step_is_that_of_a_module_that_took_no_step_before(make):
    torch.manual_seed(0)
    model = make()
    twin = copy.deepcopy(model)
    net = without_noise(model).train()
    for step, sign in enumerate((1.0, 1.0, -1.0, 1.0)):
        x = sign * torch.rand(5, 6)
        found = []
        for module in (net, without_noise(twin).train()):
            module.zero_grad()
            torch.manual_seed(step)
            out = module(x)
            (out.sum() + module.penalty).backward()
            found.append([out, *(p.grad for p in module.model.parameters())])
        for one, other in zip(*found, strict=True):
            assert torch.equal(one, other)
        if step == 2:  # as schedules of dropout do
            for one in (*model.modules(), *twin.modules()):
                if isinstance(one, nn.Dropout):
                    one.p = 0.7
    for name, value in model.state_dict().items():
        assert torch.equal(value, twin.state_dict()[name]), name


class Annealed(nn.Module):
    """Dropout that grows with the passes in training mode, which the model counts in two ways."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Linear(2, 8)
        self.last = nn.Linear(8, 2)
        self.step = 0
        self.seen = {"rows": 0}

    def forward(self, x):
        if self.training:
            self.step += 1
            self.seen["rows"] += len(x)
        p = min(0.5, 0.1 * self.step)
        return self.last(F.dropout(torch.relu(self.first(x)), p, self.training))


def test_dropout_that_grows_with_the_steps_it_has_seen_grows_without_noise():
    """The count stayed at 0, and the penalty at that of the first step, for ever."""
    model = Annealed()
    net = without_noise(model).train()
    x = torch.randn(16, 2)
    h = torch.relu(model.first(x))
    unit = (h.square() @ model.last.weight.square().T).sum(1).mean()
    for step in range(1, 8):
        net(x)
        p = min(0.5, 0.1 * step)
        torch.testing.assert_close(net.penalty, p / (1 - p) * unit)
        assert (model.step, model.seen["rows"]) == (step, 16 * step)
