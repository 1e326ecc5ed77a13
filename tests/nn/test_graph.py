"""Recording: what is seen, what is refused, and that a call leaves the model as it was."""

import ast
import gc
import random
import signal
import threading
import time
import weakref
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

import overt.nn
from overt import InputError
from overt.nn import explicit_penalty, mc_moments, predictive_moments

X = torch.linspace(-1.0, 2.0, 12).reshape(3, 4)


# -- models that change while they run ----------------------------------------------------------


class Wild(nn.Module):
    """Changes all that a pass can change; raises in the middle if asked to."""

    def __init__(self, fails=None):
        super().__init__()
        self.fails = fails
        self.first = nn.Linear(4, 4)
        self.tied = nn.Linear(4, 4)
        self.tied.weight = self.first.weight
        self.twice = self.first
        self.norm = nn.BatchNorm1d(4)
        self.drop = nn.Dropout(0.5)
        self.spectral = nn.utils.parametrizations.spectral_norm(nn.Linear(4, 4))
        self.register_buffer("calls", torch.zeros(()))
        self.plain = torch.ones(4)
        self.cache = []
        self.nested = {"seen": [torch.zeros(4)], "count": {"calls": 0}}
        self.generator = np.random.default_rng(0)
        self.first.register_forward_hook(self.remember)

    def remember(self, module, args, result):
        self.last = result
        self.nested["seen"].append(result)

    def forward(self, x):
        self.calls += 1
        self.calls = self.calls + 1
        self.plain.mul_(2)
        self.cache.append(x)
        self.nested["count"]["calls"] += 1
        self.nested["seen"][0].add_(1)
        self.new_attribute = x
        self.drop.p = 0.5
        h = self.drop(self.norm(self.twice(self.first(x))))
        if self.fails is not None:
            raise self.fails
        return self.spectral(h) + self.tied(x)


class WritesParameters(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 2)
        self.drop = nn.Dropout(0.5)

    def forward(self, x):
        with torch.no_grad():
            self.linear.weight.add_(1)
        return self.linear(self.drop(x))


class DeletesParameters(WritesParameters):
    def forward(self, x):
        weight = self.linear.weight
        del self.linear._parameters["weight"]
        return F.linear(self.drop(x), weight)


def snapshot(model):
    """Return all of a model that a user can see, with tensors as bytes and objects by identity."""
    seen = {}

    def look(value, path, depth=0):
        if isinstance(value, torch.Tensor):
            content = value.detach().clone().numpy().tobytes()
            grad = None if not value.is_leaf else value.grad
            seen[path] = (id(value), content, value.requires_grad, id(grad))
        elif isinstance(value, np.random.Generator):
            seen[path] = str(value.bit_generator.state)
        elif isinstance(value, dict):
            seen[path] = (id(value), list(value))
            for name, item in value.items():
                look(item, f"{path}.{name}", depth + 1)
        elif isinstance(value, (list, tuple)):
            seen[path] = (id(value), len(value))
            for i, item in enumerate(value):
                look(item, f"{path}[{i}]", depth + 1)
        else:
            seen[path] = id(value)

    for name, module in model.named_modules(remove_duplicate=False):
        look(vars(module), name)
    seen["torch"] = torch.get_rng_state().numpy().tobytes()
    seen["python"] = random.getstate()
    seen["numpy"] = np.random.get_state()[1].tobytes()  # noqa: NPY002
    return seen


def prepared(model):
    """Give the model gradients, and modes that no method of torch would set."""
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    model.train()
    for i, module in enumerate(model.modules()):
        if i % 3 == 1:
            module.training = False
    return model


CALLS = {
    "predictive_moments": predictive_moments,
    "mc_moments": lambda model, x: mc_moments(model, x, 8),
    "explicit_penalty": explicit_penalty,
}


@pytest.mark.filterwarnings("ignore:the noise adds")
@pytest.mark.parametrize("make", [Wild, WritesParameters, DeletesParameters])
@pytest.mark.parametrize("name", CALLS)
def test_a_call_leaves_the_model_bit_for_bit_as_it_was(make, name):
    model = prepared(make())
    before = snapshot(model)
    CALLS[name](model, X)
    assert snapshot(model) == before


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("error", [ValueError("no"), KeyboardInterrupt(), SystemExit()])
def test_an_exception_leaves_the_model_and_torch_as_they_were(error, name):
    model = prepared(Wild(fails=error))
    before = snapshot(model)
    expected = InputError if isinstance(error, ValueError) else type(error)
    with pytest.raises(expected):
        CALLS[name](model, X)
    assert snapshot(model) == before
    assert torch.is_grad_enabled()
    assert torch.backends.mha.get_fastpath_enabled()
    model.fails = None
    model(X).sum().backward()


def test_ctrl_c_comes_after_the_model_is_restored():
    class Interrupted(Wild):
        def forward(self, x):
            out = super().forward(x)
            signal.raise_signal(signal.SIGINT)
            return out

    model = prepared(Interrupted())
    before = snapshot(model)
    with pytest.raises(KeyboardInterrupt):
        predictive_moments(model, X)
    assert snapshot(model) == before


def test_threads_take_turns():
    model = prepared(Wild())
    before = snapshot(model)
    expected = predictive_moments(model, X, draws=0)
    found = []
    threads = [
        threading.Thread(
            target=lambda: found.append(predictive_moments(model, X, draws=0))
        )
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 4
    assert all(torch.equal(one.mean, expected.mean) for one in found)
    assert snapshot(model) == before


def test_a_result_does_not_keep_the_model_alive():
    model = Wild()
    reference = weakref.ref(model)
    found = predictive_moments(model, X)
    del model
    gc.collect()
    assert reference() is None
    assert found.draws >= 0


# -- what is recorded, and what is sampled ------------------------------------------------------


class Function(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function
        self.inner = nn.Sequential(nn.Dropout(0.5))

    def forward(self, x):
        return self.function(self, x)


# Names of noises, functions that draw them, and the variance over x^2 or of what is added.
NAMES = {
    "inner.0": (lambda m, x: m.inner(x), lambda x: x**2),
    "dropout": (lambda m, x: F.dropout(x), lambda x: x**2),
    "rand_like": (lambda m, x: x + torch.rand_like(x), lambda x: 0 * x + 1 / 12),
    "uniform_": (
        lambda m, x: x + torch.empty_like(x).uniform_(1, 4),
        lambda x: 0 * x + 9 / 12,
    ),
    "normal": (lambda m, x: torch.normal(x, 2.0), lambda x: 0 * x + 4),
    "rrelu": (
        lambda m, x: F.rrelu(x, 0.1, 0.4, training=True),
        lambda x: torch.where(x < 0, x**2 * 0.3**2 / 12, 0.0),
    ),
}


@pytest.mark.parametrize("name", NAMES)
def test_noises_have_names_and_their_own_variance(name):
    function, variance = NAMES[name]
    found = predictive_moments(Function(function), X, draws=0)
    assert found.propagated == (name,)
    torch.testing.assert_close(found.variance, variance(X), rtol=1e-5, atol=1e-6)
    sampled = mc_moments(Function(function), X, 2000, seed=0)
    off = (sampled.std - variance(X).sqrt()).abs()
    assert bool((off <= 2.5 * sampled.std_error + 1e-6).all())  # five standard errors


def test_noise_that_does_not_reach_the_output_is_not_named():
    found = predictive_moments(Function(lambda m, x: (F.dropout(x), x * 2)[1]), X)
    assert found.exact
    assert found.propagated == ()
    assert not found.variance.any()


def test_a_branch_on_certain_values_is_the_right_one():
    model = Function(lambda m, x: F.dropout(x) * (2 if x.sum() > 0 else 3))
    for sign, factor in ((1, 2), (-1, 3)):
        found = predictive_moments(model, sign * X, draws=0)
        torch.testing.assert_close(found.mean, factor * sign * X)


SAMPLED = {
    "if": lambda m, x: x if F.dropout(x).sum() > 0 else -x,
    "while": lambda m, x: halved(F.dropout(x)),
    "item": lambda m, x: x * F.dropout(x).sum().item(),
    "numpy": lambda m, x: x * float(F.dropout(x).numpy().sum()),
    "tolist": lambda m, x: x * F.dropout(x).tolist()[0][0],
    "nonzero": lambda m, x: x[F.dropout(x) > 0][:1].expand(3, 1),
    "exponential": lambda m, x: x * torch.empty_like(x).exponential_(2),
    "max pooling": lambda m, x: F.max_pool1d(F.dropout(x)[None], 2)[0],
    "Python's random": lambda m, x: x * random.random(),  # noqa: S311
    "NumPy's random": lambda m, x: x * np.random.rand(),  # noqa: NPY002
    "the clock": lambda m, x: x * (time.perf_counter_ns() % 997),
}


def halved(h):
    while h.norm() > 0.5:
        h = h / 2
    return h


@pytest.mark.parametrize("name", SAMPLED)
def test_noise_that_decides_or_leaves_torch_is_sampled(name):
    model = Function(SAMPLED[name])
    found = predictive_moments(model, X, draws=50)
    assert found.method == "sampled"
    assert found.reason
    with pytest.raises(InputError, match="propagated"):
        predictive_moments(model, X, draws=0)


@pytest.mark.parametrize("draw", [torch.rand_like, torch.randn_like, torch.bernoulli])
def test_basic_draws_differ_in_each_sample_under_vmap(draw):
    half = torch.full((4,), 0.5)
    samples = torch.func.vmap(lambda _: draw(half), randomness="different")(
        torch.zeros(64)
    )
    assert len(samples.unique(dim=0)) > 1


# -- private names of torch ---------------------------------------------------------------------

# Seen on torch 2.13. A new version of torch may not have them: then these places change.
PRIVATE = {
    "_C._get_mkldnn_enabled",
    "_C._set_mkldnn_enabled",
    "_decomp.core_aten_decompositions",
    "_decomp.get_decompositions",
    "_disable_functionalization",
    "_enable_functionalization",
    "_from_functional_tensor",
    "_is_functional_tensor",
    "_sync",
    "_to_functional_tensor",
    "modules.dropout._DropoutNd",
    "utils._pytree",
    "utils._python_dispatch.TorchDispatchMode",
}


def private_names(path):
    """Return the dotted private names of torch that a file uses."""
    found = set()
    tree = ast.parse(path.read_text())
    inner = {
        id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Attribute)
    }
    for node in ast.walk(tree):
        names = []
        if isinstance(node, ast.Attribute) and id(node) not in inner:
            names = [ast.unparse(node)]
        elif isinstance(node, ast.ImportFrom) and node.module:
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        for name in names:
            root, *rest = name.split(".")
            if root in ("torch", "nn") and any(part.startswith("_") for part in rest):
                found.add(".".join(rest))
    return {name for name in found if not name.startswith("ops.aten.")}


def test_private_names_of_torch_are_in_one_package():
    home = Path(overt.nn.__file__).parent
    used = set().union(*map(private_names, (home / "graph").glob("*.py")))
    assert used == PRIVATE
    for path in (home / "moments").glob("*.py"):
        assert not private_names(path), path.name
