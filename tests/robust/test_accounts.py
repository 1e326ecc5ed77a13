"""Books of attacks: what is best so far, who leaves, whose slopes lead, what is reported."""

import warnings

import cvxpy as cp
import numpy as np
import pytest
import torch
from robust_cases import points
from torch import nn

from overt.robust import L1, L2, PGD, Linf, RobustnessWarning, exact
from overt.robust.attack import results
from overt.robust.models import examples, split_labeled


def test_signs_are_reported_from_a_hundredth_on():
    def signs(**shares):
        return {name: torch.arange(200) < count for name, count in shares.items()}

    def told(**shares):
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            messages = results.report(signs(**shares), warn=True)
        assert [str(w.message) for w in seen] == list(messages)
        assert all(w.category is RobustnessWarning for w in seen)
        return messages

    assert told(flat=1) == ()
    assert told(flat=0, random=0) == ()
    (message,) = told(flat=2)
    assert "at 1.0% of the points" in message
    assert len(told(random=1, probabilities=1, lost=1, stuck=1)) == 3
    order = told(lost=9, random=9, stuck=9)
    assert [m.split()[0] for m in order] == ["the", "no", "4.5%"]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert len(results.report(signs(flat=9), warn=False)) == 1


def test_warnings_name_the_line_that_called():
    model = nn.Linear(2, 2).double()
    with pytest.warns(RobustnessWarning) as seen:
        PGD(Linf(0.1), steps=1)(lambda v: 0 * model(v), points(3, 2), [0, 0, 0])
    assert {w.filename for w in seen} == {__file__}


@pytest.mark.parametrize("bounds", [None, (-1.0, 1.2)])
@pytest.mark.parametrize(("kind", "radius"), [(L1, 0.9), (L2, 0.7), (Linf, 0.4)])
def test_leads_of_linear_models_are_convex_programs(kind, radius, bounds):
    rng = np.random.default_rng(3)
    W, b = rng.normal(size=(3, 4)), rng.normal(size=3)
    X = np.clip(rng.normal(size=(4, 4)), -1.0, 1.2)
    y = (X @ W.T + b).argmax(1)
    y[3] = (y[3] + 1) % 3
    threat = kind(radius, bounds)
    found = exact.linear(W, b, X, y, threat)
    for i in range(4):
        best = -np.inf
        for j in range(3):
            if j == y[i]:
                continue
            d = cp.Variable(4)
            limits = [cp.norm(d, float(threat.order)) <= radius]
            if bounds is not None:
                limits += [X[i] + d >= bounds[0], X[i] + d <= bounds[1]]
            goal = (W[j] - W[y[i]]) @ (X[i] + d) + b[j] - b[y[i]]
            best = max(
                best, cp.Problem(cp.Maximize(goal), limits).solve(solver=cp.CLARABEL)
            )
        assert found.lead[i] == pytest.approx(best, abs=1e-5)
        f = W @ found.x[i] + b
        assert (
            max(f[k] for k in range(3) if k != y[i]) - f[y[i]] >= found.lead[i] - 1e-9
        )
    assert found.fooled.tolist() == (found.lead > 0).tolist()
    assert found.value == np.mean(found.fooled)
    assert found.status == "optimal"
    tie = exact.linear(
        np.array([[1.0, 0.0], [-1.0, 0.0]]), None, [[0.5, 0.0]], [0], kind(0.5)
    )
    assert (tie.undecided.tolist(), tie.status, tie.value) == ([True], "finished", 0.0)
    one = exact.linear(W[0], b[:1], X, [0, 1, 0, 1], threat)
    two = exact.linear(np.stack([0 * W[0], W[0]]), [0.0, b[0]], X, [0, 1, 0, 1], threat)
    np.testing.assert_allclose(one.lead, two.lead)


def test_batches_are_put_together_by_name_and_place():
    x, shift, y = points(5, 2), points(5, 3, seed=1), torch.arange(5)
    parts = [slice(0, 2), slice(2, 5)]
    named = [{"image": x[s], "shift": shift[s], "labels": y[s]} for s in parts]
    inputs, labels, threat = examples(named, None, None)
    assert list(inputs) == ["image", "shift"]
    assert torch.equal(inputs["image"], x)
    assert torch.equal(inputs["shift"], shift)
    assert torch.equal(labels, y)
    assert threat is None
    pairs, labels, _ = examples([((x[s], shift[s]), y[s]) for s in parts], None)
    assert torch.equal(pairs[0], x)
    assert torch.equal(pairs[1], shift)
    plain, labels, _ = examples([(x[s], y[s], "more") for s in parts], None)
    assert torch.equal(plain, x)
    assert torch.equal(labels, y)
    ball = L2(1.0)
    assert examples([(x, y)], ball)[2] is ball
    assert examples(x, y, ball) == (x, y, ball)
    assert split_labeled({"pixels": x, "target": y})[0] is x
