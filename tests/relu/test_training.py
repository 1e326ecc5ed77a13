"""Algorithm 4 against a literal PyTorch loop, its margin, and what Theorems 14 and 15 ask for."""

import math

import cvxpy
import numpy as np
import pytest
import torch

from overt import InputError, Status
from overt.papers import relu_margins as margins
from overt.papers.relu_margins import _answer, _gates, _minimize, margin
from overt.papers.relu_requirements import guarantee, required
from overt.relu import kernels, reference, train_lazy


def problem(rng, n=20, d=5):
    X = rng.normal(size=(n, d))
    X /= np.linalg.norm(X, axis=1, keepdims=True)
    return X, np.where(X[:, 0] + 0.3 * X[:, 1] > 0, 1.0, -1.0)


def inputs(seed, m=30, steps=200):
    rng = np.random.default_rng(seed)
    X, y = problem(rng)
    W, a = rng.normal(size=(m, X.shape[1])), rng.choice((-1.0, 1.0), m)
    return W, a, X, y, rng.integers(0, len(X), steps), rng.random((steps, m)) < 0.5


def torch_loop(W, a, X, y, order, masks, learning_rate, max_norm, margins):
    """Algorithm 4 as one would write it in PyTorch."""
    weight = torch.tensor(W, requires_grad=True)
    top, inputs = torch.tensor(a), torch.tensor(X)
    for t, i in enumerate(order):
        g = (
            top
            @ (torch.tensor(masks[t]) * torch.relu(weight @ inputs[i]))
            / math.sqrt(len(a))
        )
        margins[t] = y[i] * g.item()
        torch.nn.functional.softplus(-y[i] * g).backward()
        with torch.no_grad():
            weight -= learning_rate * weight.grad
            norms = weight.norm(dim=1, keepdim=True)
            weight *= torch.clamp(max_norm / norms, max=1.0)
            weight.grad = None
    W[:] = weight.detach().numpy()


@pytest.mark.parametrize("max_norm", [1.5, 3.0, 100.0])
def test_kernel_reference_and_torch_take_the_same_steps(max_norm):
    start, *rest = inputs(0)
    start[0] = 0.0  # neither side of zero: no step moves it
    found = {}
    for name, loop in (
        ("kernel", kernels.descend),
        ("python", kernels.descend.py_func),
        ("reference", reference.descend),
        ("torch", torch_loop),
    ):
        W, margins = start.copy(), np.empty(len(rest[3]))
        shrunk = loop(W, *rest, 0.6, max_norm, margins)
        found[name] = (W, margins, shrunk)
    for name in ("python", "reference", "torch"):
        assert np.allclose(found[name][1], found["kernel"][1], rtol=0, atol=1e-12)
        assert np.allclose(found[name][0], found["kernel"][0], rtol=0, atol=1e-12)
    assert found["kernel"][2] == found["reference"][2] == found["python"][2]
    assert (found["kernel"][2] > 0) == (max_norm < 100)
    assert np.linalg.norm(found["kernel"][0], axis=1).max() <= max_norm * (1 + 1e-9)


def test_training_is_reproducible_and_scaled_by_q():
    rng = np.random.default_rng(1)
    X, y = problem(rng, 60)
    settings = {"width": 80, "drop_prob": 0.75, "steps": 500, "records": 6}
    run = train_lazy(X, y, **settings, seed=3)
    again = train_lazy(X, y, **settings, seed=3)
    split = train_lazy(X, y, **{**settings, "records": [0, 17, 333]}, seed=3)
    assert np.array_equal(run.W, again.W)
    assert np.allclose(run.W, split.W, rtol=0, atol=1e-10)
    assert list(split.steps) == [0, 17, 333, 500]
    assert run.status == Status.FINISHED
    assert run.full_error[-1] == np.mean(y * run.predict(X) <= 0)
    assert run.moved[0] == run.flipped[0] == 0
    assert run.moved[-1] > 0
    # The first weights have norm sqrt(d) or so; the output is q of that.
    assert np.linalg.norm(run.W, axis=1).mean() == pytest.approx(
        0.25 * math.sqrt(5), rel=0.25
    )


def test_records_are_what_the_steps_did(monkeypatch):
    rng = np.random.default_rng(4)
    (X, y), (Z, t) = problem(rng), problem(rng, 15)
    seen, descend = [], kernels.descend

    def watched(W, a, X, y, rows, drawn, rate, limit, margins):
        before = W.copy()
        cut = descend(W, a, X, y, rows, drawn, rate, limit, margins)
        seen.append(
            (before, W.copy(), a, drawn.copy(), margins.copy(), rows, cut, rate, limit)
        )
        return cut

    monkeypatch.setattr(kernels, "descend", watched)
    run = train_lazy(
        X,
        y,
        width=12,
        drop_prob=0.3,
        steps=90,
        learning_rate=0.6,
        records=[0, 40],
        holdout=(Z, t),
        masks=3000,
        seed=2,
    )
    first, a = seen[0][0], seen[0][2]
    drawn = np.concatenate([s[3] for s in seen])
    rows = np.concatenate([s[5] for s in seen])
    assert abs(drawn.mean() - 0.7) <= 5 * math.sqrt(0.21 / drawn.size)
    assert len(set(rows.tolist())) > 12
    assert (rows.min(), rows.max()) == (0, 19)
    assert set(a) == {-1.0, 1.0}
    assert np.abs(first).max() < 5
    assert abs((first**2).mean() - 1) <= 5 * math.sqrt(2 / first.size)
    assert all(s[7] == 0.6 for s in seen)
    assert (
        run.max_norm
        == seen[0][8]
        == pytest.approx(math.sqrt(5) + 2 * math.sqrt(math.log(12)) + 1)
    )
    assert run.projections == sum(s[6] for s in seen)
    ends = np.cumsum([len(s[3]) for s in seen])
    for k, step in ((1, 40), (2, 90)):
        at = int(np.searchsorted(ends, step))
        W = seen[at][1]
        wrong = {"full": [], "visited": [], "flipped": []}
        for z, label in zip(Z, t, strict=True):
            h = [max(w @ z, 0.0) for w in W]
            wrong["full"].append(label * sum(a * h) <= 0)
            wrong["visited"].append(label * sum(a * h * seen[at][3][-1]) <= 0)
            wrong["flipped"] += [
                (w @ z > 0) != (v @ z > 0) for w, v in zip(W, first, strict=True)
            ]
        assert run.full_error[k] == np.mean(wrong["full"])
        assert run.visited_error[k] == np.mean(wrong["visited"])
        assert run.flipped[k] == np.mean(wrong["flipped"])
        assert run.moved[k] == pytest.approx(max(np.linalg.norm(W - first, axis=1)))
        masks = rng.random((3000, 12)) < 0.7
        others = (t[:, None] * (np.maximum(Z @ W.T, 0) @ (a * masks).T) <= 0).mean(0)
        assert abs(run.unseen_error[k] - others.mean()) <= 8 * others.std() / math.sqrt(
            3000
        )
        begun = 0 if k == 1 else 40
        margins = np.concatenate([s[4] for s in seen])[begun:step]
        assert run.loss[k] == pytest.approx(np.mean(np.log1p(np.exp(-margins))))
    assert np.allclose(run.W, 0.7 * W)
    assert np.allclose(
        run.predict(Z), [sum(a * np.maximum(run.W @ z, 0)) / 12**0.5 for z in Z]
    )


def test_wide_networks_are_learned_lazily_and_their_parts_are_as_good():
    rng = np.random.default_rng(2)
    X, y = problem(rng, 400, 4)
    test = problem(rng, 400, 4)
    runs = {
        m: train_lazy(X, y, width=m, drop_prob=0.8, steps=3000, holdout=test, seed=0)
        for m in (20, 2000)
    }
    assert runs[2000].full_error[-1] < 0.05
    assert runs[2000].moved[-1] < runs[20].moved[-1] / 2
    assert runs[2000].flipped[-1] < runs[20].flipped[-1]
    gap = {m: r.unseen_error[-1] - r.full_error[-1] for m, r in runs.items()}
    assert gap[2000] < 0.05 < gap[20] / 2
    assert runs[2000].projections == 0


@pytest.mark.parametrize("angle", [0.3, 1.5, 3.0])
def test_margin_of_two_points(angle):
    X = np.array([[1.0, 0.0], [math.cos(angle), math.sin(angle)]])
    exact = 0.5 * (angle + (math.pi - angle) * math.sin(angle / 2)) / (2 * math.pi)
    found = margin(X, [1, -1], drop_prob=0.5, features=1000, tol=1e-4)
    assert found.lower <= exact <= found.upper
    assert found.upper - found.lower < 0.03
    assert found.status == Status.CONVERGED
    assert found.gap <= 1.1e-4 * found.upper


def test_margin_on_fixed_features_against_a_cone_program():
    rng = np.random.default_rng(3)
    X, y = problem(rng, 15, 3)
    G, signed = _gates(rng, 25, X), y[:, None] * X
    p, value, floor, status = _minimize(G, signed, 3000, 1e-3)
    psi = cvxpy.Variable((25, 3))
    margins = cvxpy.sum(cvxpy.multiply(G, psi @ signed.T), axis=0) / 25
    exact = cvxpy.Problem(
        cvxpy.Maximize(cvxpy.min(margins)), [cvxpy.norm(psi, 2, axis=1) <= 1]
    ).solve()
    assert status == Status.CONVERGED
    assert floor - 1e-6 <= exact <= value + 1e-6
    norms, slopes = _answer(G, signed, p)
    assert norms.mean() == pytest.approx(p @ slopes)


def test_margins_are_three_standard_errors_off():
    """One point: psi = x, and both sides are the share of z with z.x >= 0 on the same draws."""
    found = margin(np.array([[0.6, 0.8]]), [1], features=1000)
    assert found.upper - found.lower == pytest.approx(
        6 * math.sqrt(0.25 / 20_000), rel=0.01
    )
    assert (found.upper + found.lower) / 2 == pytest.approx(
        0.5, abs=5 * math.sqrt(0.25 / 20_000)
    )
    assert found.gap == pytest.approx(0.0, abs=1e-12)


def test_margin_scales_with_the_kept_share():
    X, y = problem(np.random.default_rng(4), 10)
    full, half = (margin(X, y, drop_prob=prob, features=200) for prob in (0.0, 0.5))
    assert half.lower == pytest.approx(full.lower / 2)


@pytest.mark.parametrize("delta", [None, 0.01])
@pytest.mark.parametrize("gamma", [0.02, 0.4])
def test_requirements_are_met_and_tight(gamma, delta):
    found = required(epsilon=0.05, margin=gamma, dimension=64, delta=delta)
    settings = {"margin": gamma, "dimension": 64, "delta": delta or 0.05}
    at = guarantee(**settings, width=found.width, steps=found.steps)
    name = "full_error" if delta is None else "subnetwork_error"
    assert at.applies
    assert not at.vacuous
    assert getattr(at, name) <= 0.05
    assert found.width >= 2401 * gamma**-6 * found.lam**2
    assert not guarantee(
        **settings, width=0.99 * found.width, steps=found.steps
    ).applies
    fewer = guarantee(**settings, width=found.width, steps=0.99 * found.steps)
    assert getattr(fewer, name) > 0.05
    # Written out as printed.
    eta, T, m = found.learning_rate, found.steps, found.width
    c = 8 + max(1 / (14 * gamma**2), 2 * math.sqrt(math.log(m))) + 1
    root = math.sqrt(44 / gamma**2 * math.log(24 * eta * c * math.sqrt(m) * T**2))
    assert found.lam == pytest.approx(5 / gamma * math.log(2 * eta * T) + root)
    assert found.full_error == pytest.approx(4 * found.lam**2 / (eta * T))
    spent = 7.1 * math.log(2 / (delta or 0.05)) / T
    assert found.subnetwork_error == pytest.approx(
        12 * found.lam**2 / (eta * T) + spent
    )
    assert found.max_norm == pytest.approx(c)
    assert found.displacement == pytest.approx(
        7 * found.lam / (2 * gamma * math.sqrt(m))
    )
    assert found.needed_width == pytest.approx(2401 * found.lam**2 / gamma**6)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda X, y: train_lazy(X, y + 1, width=3), "each -1 or 1"),
        (lambda X, y: train_lazy(X, y, width=3, drop_prob=1.0), "drop_prob"),
        (
            lambda X, y: train_lazy(X, y, width=3, steps=5, records=[9]),
            "records must lie",
        ),
        (lambda X, y: train_lazy(X, y, width=3, holdout=(X[:, :2], y)), "columns"),
        (lambda X, y: margin(2 * X, y), "norm 1"),
        (lambda X, y: required(epsilon=0.1, margin=0.0, dimension=3), "margin must be"),
        (
            lambda X, y: required(
                epsilon=0.1, margin=0.5, dimension=3, learning_rate=1.0
            ),
            "ln 2",
        ),
        (
            lambda X, y: guarantee(
                margin=0.1, dimension=3, width=5, steps=5, delta=0.0
            ),
            "delta",
        ),
        (
            lambda X, y: required(epsilon=0.1, margin=0.5, dimension=3, delta=0.0),
            "delta",
        ),
        (
            lambda X, y: required(epsilon=0.1, margin=1e-60, dimension=3),
            "between 1e-30 and 1",
        ),
        (
            lambda X, y: required(epsilon=1e-300, margin=1e-30, dimension=3),
            "no width and steps",
        ),
        (lambda X, y: margin(X, (y + 1) / 2), "got 0.0, 1.0"),
        (lambda X, y: margin(X, ["a"] * len(y)), "got 'a'"),
        (lambda X, y: margin(X, y + 0j), "each -1 or 1"),
        (
            lambda X, y: margin(np.ones((150, 1)), np.append(np.ones(149), 5)),
            r"got 1.0, 5.0",
        ),
        (lambda X, y: train_lazy(X, y, width=3, records=None), "records must be"),
        (lambda X, y: train_lazy(X, y, width=3, holdout=(X,)), "pair"),
        (lambda X, y: train_lazy(X, y, width=3, steps=5).predict(X[:, :2]), "columns"),
    ],
)
def test_bad_input_is_refused(call, message):
    with pytest.raises(InputError, match=message):
        call(*problem(np.random.default_rng(5)))


def test_ctrl_c_keeps_the_margin_found_so_far(monkeypatch):
    X, y = problem(np.random.default_rng(6))
    calls = iter(range(100))

    def interrupted(*arrays):
        if next(calls) == 3:
            raise KeyboardInterrupt
        return _answer(*arrays)

    monkeypatch.setattr(margins, "_answer", interrupted)
    found = margin(X, y, features=50, tol=0.0)
    assert found.status == "interrupted"
    assert found.weights.sum() == pytest.approx(1)
