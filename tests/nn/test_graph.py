"""Recording: what is seen, what is refused, and that a call leaves the model as it was."""

import ast
import random
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
from overt.nn.graph.draws import BASIC_DRAWS
from overt.nn.graph.record import UnsupportedError, check_for_hidden_noise, record
from overt.nn.graph.state import untouched

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


class GrowsACache(nn.Module):
    def forward(self, x, cache):
        cache.append(x)
        return F.dropout(torch.stack(cache).sum(0))


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


@pytest.mark.parametrize("make", [Wild, WritesParameters, DeletesParameters])
@pytest.mark.parametrize("statistics", ["running", "batch", "as set"])
def test_a_recording_leaves_the_model_bit_for_bit_as_it_was(make, statistics):
    model = prepared(make())
    before = snapshot(model)
    with untouched(model) as saved:
        try:
            recording = record(saved, X, None, statistics=statistics)
        except UnsupportedError:
            assert make is DeletesParameters
        else:
            assert recording.writes_parameters == (make is WritesParameters)
            assert saved.copy_parameters == recording.writes_parameters
        saved.plain_pass(X, None, statistics=statistics)
        saved.plain_pass(X, None, noise=False)
    assert snapshot(model) == before


@pytest.mark.parametrize("error", [ValueError("no"), KeyboardInterrupt(), SystemExit()])
def test_an_exception_leaves_the_model_as_it_was(error):
    model = prepared(Wild(fails=error))
    before = snapshot(model)
    expected = UnsupportedError if isinstance(error, ValueError) else type(error)
    with pytest.raises(expected), untouched(model) as saved:
        record(saved, X, None)
    assert snapshot(model) == before


def test_an_exception_leaves_torch_as_it_was():
    with pytest.raises(UnsupportedError), untouched(model := Wild(ValueError())) as saved:
        record(saved, X, None)
    assert torch.is_grad_enabled()
    assert torch.backends.mkldnn.is_available() == torch._C._get_mkldnn_enabled()
    assert torch.backends.mha.get_fastpath_enabled()
    model.fails = None
    model(X).sum().backward()


def test_inputs_that_a_pass_changes_are_copied_for_each_pass():
    cache = [X.clone()]
    with untouched(GrowsACache()) as saved:
        record(saved, (X, cache), None)
        saved.plain_pass((X, cache), None)
    assert len(cache) == 1


def test_ctrl_c_comes_after_the_model_is_restored():
    class Interrupted(Wild):
        def forward(self, x):
            out = super().forward(x)
            import signal

            signal.raise_signal(signal.SIGINT)
            return out

    model = prepared(Interrupted())
    before = snapshot(model)
    with pytest.raises(KeyboardInterrupt), untouched(model) as saved:
        record(saved, X, None)
    assert snapshot(model) == before


def test_threads_take_turns():
    model = prepared(Wild())
    before = snapshot(model)
    errors = []

    def work():
        try:
            with untouched(model) as saved:
                record(saved, X, None)
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    assert snapshot(model) == before


def test_nothing_keeps_the_model_alive():
    model = Wild()
    with untouched(model) as saved:
        recording = record(saved, X, None)
    reference = weakref.ref(model)
    del model, saved, recording
    import gc

    gc.collect()
    assert reference() is None


# -- what is recorded, and what is refused ------------------------------------------------------


class Function(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function
        self.inner = nn.Sequential(nn.Dropout(0.5))

    def forward(self, x):
        return self.function(self, x)


NAMES = {
    "inner.0": lambda m, x: m.inner(x),
    "dropout": lambda m, x: F.dropout(x),
    "rand_like": lambda m, x: x + torch.rand_like(x),
    "uniform_": lambda m, x: x + torch.empty_like(x).uniform_(),
    "normal": lambda m, x: torch.normal(x, 1.0),
    "exponential_": lambda m, x: x * torch.empty_like(x).exponential_(),
    "rrelu": lambda m, x: F.rrelu(x, training=True),
}


@pytest.mark.parametrize("name", NAMES)
def test_noises_have_names_and_basic_draws(name):
    with untouched(Function(NAMES[name])) as saved:
        recording = record(saved, X, None)
    assert recording.noises == (name,)
    assert recording.noisy
    drawn = [call.func.overloadpacket.__name__ for call in recording.calls if call.noise]
    assert set(drawn) <= BASIC_DRAWS


def test_noise_that_does_not_reach_the_output_is_not_named():
    with untouched(Function(lambda m, x: (F.dropout(x), x * 2)[1])) as saved:
        recording = record(saved, X, None)
    assert recording.noises == ()
    assert not recording.noisy


def test_a_branch_on_certain_values_is_the_right_one():
    model = Function(lambda m, x: F.dropout(x) * (2 if x.sum() > 0 else 3))
    for sign, factor in ((1, 2), (-1, 3)):
        with untouched(model) as saved:
            recording = record(saved, sign * X, None)
        kept = recording.output != 0
        expected = 2 * factor * sign * X
        torch.testing.assert_close(recording.output[kept], expected[kept])


REFUSED = {
    "if": lambda m, x: x if F.dropout(x).sum() > 0 else -x,
    "while": lambda m, x: halved(F.dropout(x)),
    "item": lambda m, x: x * F.dropout(x).sum().item(),
    "numpy": lambda m, x: x * float(F.dropout(x).numpy().sum()),
    "tolist": lambda m, x: x * F.dropout(x).tolist()[0][0],
    "nonzero": lambda m, x: x[F.dropout(x) > 0][:1].expand(3, 1),
    "Python's random": lambda m, x: x * random.random(),  # noqa: S311
    "NumPy's random": lambda m, x: x * np.random.rand(),  # noqa: NPY002
}


def halved(h):
    while h.norm() > 0.5:
        h = h / 2
    return h


@pytest.mark.parametrize("name", REFUSED)
def test_noise_that_decides_or_leaves_torch_is_refused(name):
    with pytest.raises(UnsupportedError), untouched(Function(REFUSED[name])) as saved:
        record(saved, X, None)


@pytest.mark.parametrize("draw", [torch.rand_like, torch.randn_like, torch.bernoulli])
def test_basic_draws_differ_in_each_sample_under_vmap(draw):
    half = torch.full((4,), 0.5)
    samples = torch.func.vmap(lambda _: draw(half), randomness="different")(torch.zeros(64))
    assert len(samples.unique(dim=0)) > 1


def test_a_plain_pass_with_the_same_seed_agrees():
    model = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5), nn.Linear(4, 2))
    with untouched(model) as saved:
        recording = record(saved, X, None)
        sample = check_for_hidden_noise(recording, saved, X, None, "running")
    torch.testing.assert_close(sample, recording.output)


def test_noise_by_the_clock_is_seen():
    model = Function(lambda m, x: x * (time.perf_counter_ns() % 997))
    with untouched(model) as saved:
        recording = record(saved, X, None)
        with pytest.raises(UnsupportedError, match="own"):
            check_for_hidden_noise(recording, saved, X, None, "running")


# -- private names of torch ---------------------------------------------------------------------

# Seen on torch 2.13. A new version of torch may not have them: then these places change.
PRIVATE = {
    "_C._get_mkldnn_enabled",
    "_C._set_mkldnn_enabled",
    "_decomp.core_aten_decompositions",
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
    inner = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
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
