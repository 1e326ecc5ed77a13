"""Algorithm 4 against a literal PyTorch loop, its margin, and what Theorems 14 and 15 ask for."""

import math

import numpy as np
import pytest
import torch

from overt import InputError, Status
from overt.relu import kernels, train_lazy


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
    """Algorithm 4 as one would write it in PyTorch; return how many rows shrank."""
    shrunk = 0
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
            shrunk += int((norms > max_norm * (1 + 1e-12)).sum())
            weight *= torch.clamp(max_norm / norms, max=1.0)
            weight.grad = None
    W[:] = weight.detach().numpy()
    return shrunk


@pytest.mark.parametrize("max_norm", [1.5, 3.0, 100.0])
def test_the_compiled_loop_and_torch_take_the_same_steps(max_norm):
    start, *rest = inputs(0)
    start[0] = 0.0  # neither side of zero: no step moves it
    found = {}
    for name, loop in (
        ("kernel", kernels.descend),
        ("python", kernels.descend.py_func),
        ("torch", torch_loop),
    ):
        W, margins = start.copy(), np.empty(len(rest[3]))
        shrunk = loop(W, *rest, 0.6, max_norm, margins)
        found[name] = (W, margins, shrunk)
    for name in ("python", "torch"):
        assert np.allclose(found[name][1], found["kernel"][1], rtol=0, atol=1e-12)
        assert np.allclose(found[name][0], found["kernel"][0], rtol=0, atol=1e-12)
    assert found["kernel"][2] == found["torch"][2] == found["python"][2]
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
        (lambda X, y: train_lazy(X, y, width=3, records=None), "records must be"),
        (lambda X, y: train_lazy(X, y, width=3, holdout=(X,)), "pair"),
        (lambda X, y: train_lazy(X, y, width=3, steps=5).predict(X[:, :2]), "columns"),
    ],
)
def test_bad_input_is_refused(call, message):
    with pytest.raises(InputError, match=message):
        call(*problem(np.random.default_rng(5)))
