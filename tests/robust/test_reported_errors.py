"""Errors that users reported, one test each, named after what they saw."""

from __future__ import annotations

import contextlib
import inspect
import itertools

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="robustness needs torch")

from robust_cases import two_layer_network  # noqa: E402
from torch import nn  # noqa: E402

from overt._check import InputError  # noqa: E402
from overt.robust import (  # noqa: E402
    FGSM,
    L1,
    L2,
    PGD,
    Linf,
    Square,
    adversarial_train,
    exact_error,
    minimum_distance,
    robust_error,
    smoothed,
    strongest,
)

pytestmark = pytest.mark.filterwarnings("ignore::overt.robust.RobustnessWarning")


def net(inputs=8, hidden=12, classes=3, activation=None, seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Linear(inputs, hidden), activation or nn.ReLU(), nn.Linear(hidden, classes)
    )


class Residual(nn.Sequential):
    def forward(self, v):
        return v + super().forward(v)


class Trigger(nn.Sequential):
    def forward(self, v):
        hidden = ((v * 1000).round()[:, :4] % 10 == 7).all(1, keepdim=True)
        return torch.where(hidden, -super().forward(v), super().forward(v))


class Cubed(nn.Linear):
    def forward(self, v):
        return super().forward(v) ** 3


class Steep(nn.ReLU):
    def forward(self, v):
        return 10 * super().forward(v)


def hooked(place):
    model = net()
    model[place].register_forward_hook(lambda module, given, out: torch.sin(3 * out))
    return model


def patched():
    model = net()
    first = model[0]
    forward = first.forward
    first.forward = lambda v: forward(v).sin()
    return model


def outer_hook():
    model = net()
    model.register_forward_pre_hook(lambda module, given: (10 * given[0],))
    return model


def batch_statistics():
    norm = nn.BatchNorm1d(12, track_running_stats=False)
    return nn.Sequential(nn.Linear(8, 12), norm, nn.ReLU(), nn.Linear(12, 3))


NOT_MODELLED = {
    "a forward of its own": lambda: Trigger(*net()),
    "a subclass of Linear": lambda: nn.Sequential(
        Cubed(8, 12), nn.ReLU(), nn.Linear(12, 3)
    ),
    "a hook on a layer": lambda: hooked(0),
    "a hook on a rectifier": lambda: hooked(1),
    "a hook on the network": outer_hook,
    "a patched forward": patched,
    "a slope above 1": lambda: net(activation=nn.LeakyReLU(3.0)),
    "batch statistics": batch_statistics,
}


@pytest.mark.parametrize("name", NOT_MODELLED)
def test_a_network_that_was_not_modelled_was_certified(name):
    model = NOT_MODELLED[name]().eval()
    x = torch.rand(10, 8)
    y = model(x).argmax(1)
    with pytest.raises(InputError, match=r"certify|one by one"):
        robust_error(
            model, x, y, Linf(0.05), certify=True, attack=Square(Linf(0.05), queries=1)
        )


MODELLED = {
    "a residual block": lambda: nn.Sequential(
        *net()[:2], Residual(nn.Linear(12, 12)), net()[2]
    ),
    "a subclass of ReLU": lambda: net(activation=Steep()),
}


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("name", MODELLED)
def test_certified_points_of_subclasses_were_fooled(name, seed):
    model = MODELLED[name]().eval()
    torch.manual_seed(seed)
    x = torch.rand(60, 8)
    y = model(x).argmax(1)
    threat = Linf(0.03)
    found = robust_error(
        model, x, y, threat, certify=True, attack=Square(threat, queries=1)
    )
    fooled = strongest(model, x, y, threat).success.numpy()
    assert found.proved.any()
    assert not (found.proved & fooled).any()
    assert found.value == pytest.approx(found.upper)


def is_needle(v):
    return (((v * 1000).round() % 10) == 7).all(1, keepdim=True)


class NeedleInTraining(nn.Sequential):
    def forward(self, v):
        logits = super().forward(v)
        return torch.where(is_needle(v), -1, 1) * logits if self.training else logits


class NeedleInCall(nn.Sequential):
    def __call__(self, v):
        return torch.where(is_needle(v), -1, 1) * super().__call__(v)


class LessTheMeanOfTheBatch(nn.Sequential):
    def forward(self, v):
        return super().forward(v - v.mean(0, keepdim=True))


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        (NeedleInTraining, "certify does not model"),
        (NeedleInCall, "replaced forward or call"),
        (LessTheMeanOfTheBatch, "points of a batch separately"),
    ],
)
def test_what_a_mode_a_call_or_the_batch_changes_was_certified(kind, words):
    model = nn.Sequential(kind(*net())).eval()
    if kind is NeedleInTraining:
        model[0].train()
    if kind is NeedleInCall:
        model = model[0]
    x = torch.rand(20, 8)
    with pytest.raises(InputError, match=words):
        robust_error(model, x, model(x).argmax(1), Linf(0.0075), certify=True)


def test_what_output_makes_of_the_logits_was_not_certified():
    model = net()
    x = torch.rand(10, 8)
    with pytest.raises(InputError, match=r"certify.*output"):
        robust_error(
            model,
            x,
            model(x).argmax(1),
            Linf(0.05),
            certify=True,
            output=lambda o: (20 * o).sin(),
        )


@pytest.mark.parametrize("slope", [0.0, 0.1, 1.0, -0.5])
def test_certified_points_of_modelled_slopes_are_not_fooled(slope):
    model = net(activation=nn.LeakyReLU(slope))
    x = torch.rand(40, 8)
    y = model(x).argmax(1)
    threat = Linf(0.05)
    found = robust_error(
        model, x, y, threat, certify=True, attack=Square(threat, queries=1)
    )
    fooled = strongest(model, x, y, threat).success.numpy()
    assert found.proved.any()
    assert not (found.proved & fooled).any()


def test_a_logit_between_0_and_1_was_taken_for_a_probability():
    """Logit .7 is class 1, and stays so within .3: all logits are positive."""
    x = torch.tensor([[0.7], [0.4]])
    found = PGD(Linf(0.3), steps=5)(lambda v: v, x, [1, 1])
    assert not found.success.any()
    voted = smoothed(lambda v: v, x, 0.05, draws=200, guesses=20)
    assert voted.predicted.tolist() == [1, 1]


def test_probabilities_are_declared_and_not_guessed():
    model = net(classes=1)
    x = torch.randn(20, 8)
    y = (model(x).squeeze(1) > 0).long()
    logits = strongest(model, x, y, Linf(0.2), budget=40, queries=0)
    declared = strongest(
        lambda v: model(v).sigmoid(),
        x,
        y,
        Linf(0.2),
        budget=40,
        queries=0,
        outputs="probabilities",
    )
    assert declared.success.sum() >= logits.success.sum() - 1
    undeclared = strongest(
        lambda v: net(8)(v).softmax(1), x, y, Linf(0.2), budget=24, queries=0
    )
    assert any('outputs="probabilities"' in text for text in undeclared.warnings)


def test_hard_labels_were_called_probabilities():
    model = net(classes=3)
    x = torch.randn(20, 8)
    y = model(x).argmax(1)

    def labels(v):
        return nn.functional.one_hot(model(v).argmax(1), 3).float()

    found = strongest(labels, x, y, Linf(0.3), budget=24, queries=50)
    assert any("label" in text for text in found.warnings)
    assert not any("probabilities" in text for text in found.warnings)


def test_the_nearest_failure_of_a_random_model_was_that_of_a_lucky_sample():
    """The nearest failure of one sample means nothing: random models are refused."""
    torch.manual_seed(0)
    weight = torch.randn(2, 6)
    x = torch.randn(40, 6)
    y = (x @ weight.T).argmax(1)

    def model(v):
        return (v + 0.1 * torch.randn_like(v)) @ weight.T

    with pytest.raises(InputError, match="must not be random"):
        minimum_distance(model, x, y, L2(10.0), steps=30)


@pytest.mark.parametrize(("amplitude", "frequency"), [(0.02, 200), (0.02, 300)])
def test_rippled_gradients_were_not_noticed(amplitude, frequency):
    torch.manual_seed(0)
    plain = nn.Sequential(nn.Linear(100, 64), nn.ReLU(), nn.Linear(64, 5))
    x = torch.rand(60, 100)
    y = plain(x).argmax(1)
    threat = Linf(0.06, bounds=(0, 1))

    def rippled(v):
        return plain(v + amplitude * torch.sin(frequency * v))

    right = rippled(x).argmax(1) == y
    found = robust_error(rippled, x[right], y[right], threat, budget=200, queries=300)
    assert any("mask" in text for text in found.warnings)
    honest = robust_error(plain, x, y, threat, budget=200, queries=300)
    assert not any("mask" in text for text in honest.warnings)


def linear_problem(seed):
    torch.manual_seed(seed)
    weight, bias = torch.randn(5, 20), torch.randn(5) * 0.3
    x = torch.rand(60, 20)
    model = nn.Linear(20, 5)
    model.weight.data, model.bias.data = weight, bias
    return model, x, model(x).argmax(1)


def exact_distance(model, x, y):
    """The steepest features are moved to their bounds in turn until another class leads."""
    W, b = (part.detach().double().numpy() for part in (model.weight, model.bias))
    distances = []
    for point, own in zip(x.double().numpy(), y.tolist(), strict=True):
        f = W @ point + b
        nearest = np.inf
        for j in set(range(len(W))) - {own}:
            g = W[j] - W[own]
            room = np.where(g > 0, 1 - point, point)
            order = np.argsort(-np.abs(g))
            gains = np.cumsum((np.abs(g) * room)[order])
            k = int(np.searchsorted(gains, f[own] - f[j]))
            if k < len(g):
                before = gains[k - 1] if k else 0.0
                last = (f[own] - f[j] - before) / np.abs(g)[order[k]]
                nearest = min(nearest, room[order[:k]].sum() + last)
        distances.append(nearest)
    return np.array(distances)


def test_distances_in_l1_and_a_box_were_up_to_twice_the_exact_ones():
    model, x, y = linear_problem(1)
    found = minimum_distance(model, x, y, L1(100.0, bounds=(0, 1)))
    ratio = found.distance.numpy() / exact_distance(model, x, y)
    assert np.quantile(ratio, 0.98) < 1.02


def test_points_in_l1_and_a_box_were_missed():
    """At 1.02 times their exact distance all points can be fooled."""
    model, x, y = linear_problem(1)
    radius = 1.02 * exact_distance(model, x, y)
    missed = [
        i
        for i in range(0, len(x), 2)
        if not strongest(
            model, x[[i]], y[[i]], L1(radius[i], bounds=(0, 1)), queries=0
        ).success
    ]
    assert missed == []


def test_dropout_that_was_kept_on_was_switched_off():
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(8, 64), nn.ReLU(), nn.Dropout(0.5), nn.Linear(64, 3)
    ).eval()
    x = torch.randn(50, 8)
    y = model(x).argmax(1)
    model[2].train()
    found = robust_error(model, x, y, Linf(0.01), budget=24, queries=0)
    assert found.clean > 0.01
    assert any("random" in text for text in found.warnings)
    assert model[2].training


def test_certified_errors_of_signed_labels_were_inverted():
    x = torch.tensor([[-2.0], [2.0], [-2.0], [0.0]])
    voted = smoothed(lambda v: v, x, 0.5, draws=200, guesses=20)
    assert voted.predicted.tolist()[:2] == [0, 1]
    assert voted.errors([-1, 1, -1, -1], [0.0]).tolist() == [pytest.approx(1 / 4)]
    assert voted.errors([0, 1, 0, 0], [0.0]).tolist() == [pytest.approx(1 / 4)]


def test_a_proved_bound_on_the_lead_was_exceeded():
    rng = np.random.default_rng(0)
    W, A = rng.normal(size=(6, 2)), rng.normal(size=(4, 6))
    x, y = rng.normal(size=(30, 2)), rng.integers(4, size=30)
    found = exact_error(two_layer_network(W, A), x, y, Linf(0.3))
    steps = np.linspace(-0.3, 0.3, 31)
    grid = np.stack(np.meshgrid(steps, steps), -1).reshape(-1, 2)
    for i in range(len(x)):
        f = np.maximum((x[i] + grid) @ W.T, 0) @ A.T
        own = f[:, [y[i]]]
        lead = np.delete(f - own, y[i], axis=1).max()
        assert lead <= found.bound[i] + 1e-9


def test_a_target_was_ignored_in_training():
    seen = []

    class Watched(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(2, 3, bias=False)
            self.layer.weight.data = torch.tensor([[0.0, 0.0], [1.0, 0.0], [0.0, 1.0]])

        def forward(self, v):
            seen.append(v.detach().clone())
            return self.layer(v)

    attack = PGD(L2(0.5), steps=3, target=2, loss="margin")
    adversarial_train(
        Watched(), (torch.zeros(4, 2), torch.zeros(4).long()), attack, epochs=1
    )
    assert any(bool((v[:, 1] > 0.3).all()) for v in seen)
    assert not any(bool((v[:, 0] > 0.3).any()) for v in seen)


def test_the_saturation_warning_was_lost_in_robust_error():
    model = net()
    x = torch.randn(20, 8)
    y = model(x).argmax(1)
    threat = Linf(0.05)
    attack = PGD(threat, loss="cross_entropy", steps=5)
    found = robust_error(lambda v: 50 * model(v), x, y, threat, attack=attack)
    assert any("saturated" in text for text in found.warnings)


def slow(model, calls, limit):
    """A model that raises Ctrl-C at a call."""

    def run(v):
        calls.append(len(v))
        if len(calls) == limit:
            raise KeyboardInterrupt
        return model(v)

    return run


def test_ctrl_c_lost_everything_in_closest():
    model = net()
    x = torch.rand(20, 8)
    found = minimum_distance(
        slow(model, [], 60), x, model(x).argmax(1), L2(5.0), batch_size=5, steps=20
    )
    assert found.status == "interrupted"
    assert found.success.any()


def test_ctrl_c_lost_everything_in_smoothed():
    model = net()
    x = torch.rand(20, 8)
    voted = smoothed(slow(model, [], 20), x, 0.1, draws=50, guesses=10, batch_size=64)
    assert voted.status == "interrupted"
    assert (voted.radius > 0).any()
    assert smoothed(model, x, 0.1, draws=50, guesses=10).status == "finished"


def test_ctrl_c_lost_everything_in_certification(monkeypatch):
    """The attack ends early, so that Ctrl-C comes while points are decided by linear bounds."""
    model = net()
    x = torch.rand(12, 8)
    y = model(x).argmax(1)
    threat = Linf(0.02)
    original, calls = torch.autograd.grad, []

    def grad(*args, **kwargs):
        calls.append(1)
        if len(calls) == 20:
            raise KeyboardInterrupt
        return original(*args, **kwargs)

    monkeypatch.setattr(torch.autograd, "grad", grad)
    found = robust_error(
        model, x, y, threat, certify=True, attack=Square(threat, queries=1)
    )
    assert found.status == "interrupted"
    assert 0 < found.proved.sum() < 12


def batch_norm_net():
    layers = (
        nn.Linear(4, 6),
        nn.BatchNorm1d(6),
        nn.ReLU(),
        nn.Dropout(0.5),
        nn.Linear(6, 2),
    )
    return nn.Sequential(*layers)


@pytest.mark.parametrize("layer", [None, 1])
def test_layers_in_training_mode_were_switched_without_a_word(layer):
    model = batch_norm_net()
    if layer is not None:
        model.eval()
        model[layer].train()
    x = torch.randn(10, 4)
    found = PGD(Linf(0.1), steps=2)(model, x, torch.zeros(10).long())
    assert any("training mode" in text for text in found.warnings)
    model.eval()
    found = PGD(Linf(0.1), steps=2)(model, x, torch.zeros(10).long())
    assert not any("training mode" in text for text in found.warnings)


def test_frozen_batch_normalization_was_unfrozen_by_training():
    model = nn.Sequential(
        nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 2)
    )
    model[1].eval()
    before = model[1].running_mean.clone()
    x = torch.randn(32, 4)
    adversarial_train(model, (x, (x[:, 0] > 0).long()), FGSM(L2(0.1)), epochs=2)
    assert torch.equal(model[1].running_mean, before)
    assert not model[1].training
    assert model.training
    evaluated = net().eval()
    adversarial_train(
        evaluated, (torch.rand(8, 8), torch.zeros(8).long()), None, epochs=1
    )
    assert not evaluated.training


def test_training_that_diverged_was_called_finished():
    model = net(inputs=4, classes=2)
    x = torch.randn(64, 4)
    y = (x[:, 0] > 0).long()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e4)
    with contextlib.suppress(InputError):  # a loss that is not finite is refused
        found = adversarial_train(
            model, (x, y), FGSM(Linf(0.1)), epochs=3, optimizer=optimizer
        )
        assert found.status == "diverged"


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_went_in_and_single_came_out(dtype):
    model = net().to(dtype)
    x = torch.rand(10, 8).to(dtype)
    y = model(x).argmax(1)
    found = PGD(Linf(0.1), steps=5)(model, x, y)
    assert found.x.dtype == dtype
    assert bool(((found.x.double() - x.double()).abs() <= 0.1).all())
    assert torch.equal(model(found.x).argmax(1) != y, found.success)


def test_single_precision_went_into_a_double_model_and_double_came_out():
    model = net().double()
    x = torch.rand(10, 8)
    found = PGD(Linf(0.1), steps=5)(model, x, model(x.double()).argmax(1))
    assert found.x.dtype == torch.float32


def test_bounds_were_rounded_outward():
    """The float32 next to .001 lies above it."""
    x = torch.full((4, 3), 0.0005)
    found = PGD(Linf(1.0, bounds=(0, 0.001)), steps=3)(nn.Linear(3, 2), x, [0, 1, 0, 1])
    assert float(found.x.double().max()) <= 0.001
    attack = PGD(Linf(1.0, bounds=(0, 0.001)), steps=1)
    attack(nn.Linear(3, 2), torch.full((1, 3), 0.001), [0])  # not refused


def test_a_loader_and_a_threat_by_keyword_were_refused():
    model = net()
    x = torch.rand(20, 8)
    y = model(x).argmax(1)
    data = torch.utils.data.TensorDataset(x, y)
    loader = torch.utils.data.DataLoader(data, batch_size=10)
    found = robust_error(model, loader, threat=Linf(0.05), budget=24, queries=0)
    assert found.points == 20
    assert inspect.signature(strongest).parameters["y"].default is None


class Written(nn.Module):
    """A hidden layer, what a function makes of it, and a top layer."""

    def __init__(self, change):
        super().__init__()
        self.first, self.top = nn.Linear(8, 12), nn.Linear(12, 3)
        self.change = change

    def forward(self, v):
        return self.top(self.change(self.first(v)))


def add_to_a_view(h):
    part = h[:, :4]
    part += 1
    return h.relu()


def scale_in_place(h):
    h *= 2
    return h.relu()


def add_to_another_name(h):
    again = h
    again -= 1
    return (h + again).relu()


@pytest.mark.parametrize("change", [add_to_a_view, scale_in_place, add_to_another_name])
def test_arithmetic_in_place_was_read_as_new_values(change):
    torch.manual_seed(0)
    model, x = Written(change).eval(), torch.rand(5, 8)
    with pytest.raises(InputError, match="certify does not model i"):
        robust_error(model, x, model(x).argmax(1), Linf(0.01), certify=True, budget=24)


def test_a_model_with_little_noise_was_certified():
    torch.manual_seed(0)
    model, x = Written(lambda h: h.relu() + 1e-4 * torch.randn(12)), torch.rand(9, 8)
    with pytest.raises(InputError, match="not random"):
        robust_error(model, x, model(x).argmax(1), Linf(0.01), certify=True, budget=24)


CERTIFIED = {
    "sizes as a list": (
        nn.Sequential(nn.MaxPool2d([2, 3]), nn.Flatten(), nn.Linear(8, 3)),
        torch.rand(6, 1, 8, 6),
    ),
    "one logit without an axis": (
        nn.Sequential(nn.Linear(5, 1), nn.Flatten(0)),
        torch.rand(6, 5),
    ),
    "dropout before a rectifier in place": (
        nn.Sequential(
            nn.Linear(5, 4), nn.Dropout(), nn.ReLU(inplace=True), nn.Linear(4, 3)
        ),
        torch.rand(6, 5),
    ),
}


@pytest.mark.parametrize("name", CERTIFIED)
def test_networks_that_certify_failed_on(name):
    model, x = CERTIFIED[name]
    model.eval()
    f = model(x).detach()
    y = f.argmax(1) if f.ndim == 2 else (f > 0).long()
    found = robust_error(model, x, y, Linf(1e-4), certify=True, budget=24, queries=0)
    assert found.proved.any()
    assert not found.success[found.proved].any()


class Doubling(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = net()

    def forward(self, v):
        v *= 2
        return self.net(v)


@pytest.mark.parametrize("attack", [PGD(L2(2.0)), Square(L2(2.0), queries=20)])
def test_a_model_that_changes_its_inputs_changed_the_users(attack):
    model, x = Doubling(), torch.rand(12, 8)
    given = x.clone()
    y = model(x.clone()).argmax(1)
    found = attack(model, x, y)
    assert torch.equal(x, given)
    fooled = model(found.x.clone()).argmax(1) != y
    assert torch.equal(fooled, found.success)
    assert bool(fooled.any())


def test_training_took_limits_of_single_points_for_other_points():
    x, y = torch.rand(10, 8), torch.arange(10) % 3
    mask = torch.rand(10, 8) > 0.5
    for attack in (PGD(L2(0.2, mutable=mask)), PGD(L2(0.2), target=(y + 1) % 3)):
        with pytest.raises(InputError, match="must be a number or an array that fits"):
            adversarial_train(net(), (x, y), attack, epochs=1)


def test_targeted_attacks_on_labels_followed_gradients_that_are_not_there():
    torch.manual_seed(0)
    model, x = net(), torch.rand(30, 8)
    y = model(x).argmax(1)
    target = (y + 1) % 3
    found = strongest(
        lambda v: model(v).argmax(1), x, y, L2(4.0), target=target, queries=1000
    )
    assert found.gradients == 0
    assert torch.equal(model(found.x).argmax(1) == target, found.success)
    assert int(found.success.sum()) >= 10


@pytest.mark.parametrize("samples", [0, 30])
def test_a_keyboard_interrupt_while_scoring_lost_what_was_found(samples):
    model, x = net(), torch.rand(20, 8)
    y = model(x).argmax(1)
    calls = itertools.count()
    last = np.inf

    def noisy(v):
        if next(calls) == last:
            raise KeyboardInterrupt
        return model(v) + (0.01 * torch.randn(1) if samples else 0)

    attack = PGD(L2(4.0), steps=5)
    whole = attack(noisy, x, y)
    last = next(calls) - 1 - samples
    calls = itertools.count()
    found = attack(noisy, x, y)
    assert str(found.status) == "interrupted"
    assert torch.equal(found.x, whole.x) or samples
    assert int(found.success.sum()) > 0


def test_a_model_that_fails_on_single_points_raised_inside_the_attack():
    layers = nn.Linear(4, 6), nn.BatchNorm1d(6, track_running_stats=False)
    model = nn.Sequential(*layers, nn.ReLU(), nn.Linear(6, 2)).eval()
    x = torch.rand(12, 4)
    y = model(x).argmax(1)
    with pytest.raises(InputError, match="one by one, it fails: ValueError"):
        robust_error(model, x, y, Linf(0.1), budget=24, queries=0)


def test_robust_error_of_a_model_of_batches_was_reported_without_a_word():
    torch.manual_seed(0)
    net = nn.Linear(4, 3)
    x = torch.rand(12, 4)

    def centered(v):
        return net(v - v.mean(0))

    y = centered(x).argmax(1)
    with pytest.warns(UserWarning, match="depend on the other points of its batch"):
        found = robust_error(centered, x, y, Linf(0.1), budget=24, queries=0)
    assert "other points" in found.warnings[0]
    assert not robust_error(net, x, y, Linf(0.1), budget=24, queries=0).warnings


def test_training_a_frozen_model_raised_inside_torch():
    model = nn.Linear(4, 3).requires_grad_(False)
    data = torch.rand(6, 4), torch.zeros(6)
    with pytest.raises(InputError, match="require a gradient"):
        adversarial_train(model, data, None, epochs=1)
