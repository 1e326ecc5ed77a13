"""compress by spectrum: errors against their bounds, and the least possible error."""

import numpy as np
import pytest
import torch
from compress_zoo import build
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from overt.nn.compression import compress


def net(m, n, bias, seed):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(n, m, bias=bias)).double()


@given(
    m=st.integers(2, 12),
    n=st.integers(2, 12),
    keep=st.floats(0.05, 0.99),
    bias=st.booleans(),
    seed=st.integers(0, 10**6),
)
def test_weights_alone_bound_the_error_of_every_input(m, n, keep, bias, seed):
    """|y' - y| <= s_(r+1) |x| for every x, with equality for one."""
    model = net(m, n, bias, seed)
    x = torch.randn(40, n).double()
    small, report = compress(model, keep, x, by="spectrum", of="multiply_adds")
    difference = (small(x) - model(x)).norm(dim=1)
    if not report.changes:
        assert float(difference.detach().max()) == 0
        return
    (change,) = report.changes
    assert bool(
        (difference <= change.operator_error * x.norm(dim=1) * (1 + 1e-9) + 1e-12).all()
    )
    W = model[0].weight.detach().numpy()
    s = np.linalg.svd(W, compute_uv=False)
    rank = change.after
    assert change.operator_error == pytest.approx(s[rank], abs=1e-10)
    assert change.relative_error == pytest.approx(
        np.sqrt((s[rank:] ** 2).sum() / (s**2).sum()), abs=1e-8
    )
    assert rank * (m + n) < m * n
    assert report.after.multiply_adds == rank * (m + n) <= max(keep * m * n, m + n)
    worst = torch.from_numpy(np.linalg.svd(W)[2][rank])[None]
    gap = float((small(worst) - model(worst)).detach().norm())
    assert gap == pytest.approx(change.operator_error, abs=1e-9)


@given(
    m=st.integers(3, 10),
    n=st.integers(3, 10),
    keep=st.floats(0.1, 0.9),
    bias=st.booleans(),
    seed=st.integers(0, 10**6),
)
def test_with_data_the_error_is_the_least_of_any_affine_map_of_that_rank(
    m, n, keep, bias, seed
):
    model = net(m, n, bias, seed)
    x = (
        torch.randn(60, n).double() @ torch.randn(n, n).double()
        + torch.randn(n).double()
    )
    small, report = compress(model, keep, x, [(x[:25],), (x[25:],)], "spectrum")
    if not report.changes:
        return
    (change,) = report.changes
    y, found = model(x).detach(), small(x).detach()
    measured = float((found - y).square().sum(1).mean().sqrt())
    assert measured <= change.data_error * (1 + 1e-7) + 1e-7 * float(y.norm())
    assert measured == pytest.approx(
        change.data_error, rel=1e-5, abs=1e-7 * float(y.norm())
    )
    # Reduced-rank regression: no affine map of this rank is closer than the tail of the spectrum.
    centered = (y - y.mean(0)) / np.sqrt(len(y))
    tail = torch.linalg.svdvals(centered)[change.after :]
    assert measured == pytest.approx(
        float(tail.norm()), rel=1e-5, abs=1e-7 * float(y.norm())
    )
    from_mean = (x - x.mean(0)).norm(dim=1)
    difference = (found - y).norm(dim=1)
    assert bool(
        (difference <= change.operator_error * from_mean * (1 + 1e-7) + 1e-9).all()
    )


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize(
    "layer",
    [
        nn.Conv2d(3, 8, 3, stride=2, padding=1),
        nn.Conv2d(3, 8, 3, padding="same", padding_mode="reflect", bias=False),
        nn.Conv2d(3, 8, (1, 3), dilation=2),
        nn.Conv2d(3, 8, 3, stride=2, dilation=2, padding=2),
        nn.Conv1d(3, 8, 3, stride=2),
    ],
    ids=str,
)
def test_convolutions(layer, weighted):
    torch.manual_seed(0)
    model = nn.Sequential(layer).double().eval()
    x = torch.randn(5, 3, *([9] * (layer.weight.ndim - 2))).double()
    small, report = compress(
        model, 0.5, x, [(x,)] if weighted else None, "spectrum", of="multiply_adds"
    )
    (change,) = report.changes
    assert report.after.multiply_adds <= 0.5 * report.before.multiply_adds
    assert small(x).shape == model(x).shape
    # Patches overlap: the error was 1.5 times what the report called its largest.
    moves = torch.func.jacrev(lambda z: small(z) - model(z))(x[:1])
    norm = float(torch.linalg.matrix_norm(moves.reshape(-1, x[0].numel()).detach(), 2))
    if change.operator_error is None:
        assert layer.padding_mode == "reflect"
    else:
        assert norm <= change.operator_error <= 3 * norm
    gap = (small(x) - model(x)).detach().movedim(1, -1)
    size = float(gap.flatten(0, -2).norm(dim=1).square().mean().sqrt())
    if weighted:
        assert size == pytest.approx(change.data_error, rel=1e-6)
        return
    s = torch.linalg.svdvals(layer.weight.detach().flatten(1))
    bound = float(s[change.after]) * _patch_norms(layer, x)[:, 0]
    assert bool((gap.norm(dim=-1) <= bound * (1 + 1e-9)).all())


def _patch_norms(layer, x):
    """Return |patch| at every output position: the convolution of x^2 with ones."""
    ones = nn.utils.skip_init(
        type(layer),
        3,
        1,
        layer.kernel_size,
        stride=layer.stride,
        padding=layer.padding,
        dilation=layer.dilation,
        padding_mode=layer.padding_mode,
        bias=False,
    ).double()
    nn.init.ones_(ones.weight)
    return ones(x.square()).detach().sqrt()


def test_ranks_go_where_they_are_worth_most():
    """A layer of rank 2 gives its multiply-adds to the others, and every budget is met."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(30, 30), nn.ReLU(), nn.Linear(30, 30), nn.ReLU())
    with torch.no_grad():
        model[0].weight.copy_(torch.randn(30, 2) @ torch.randn(2, 30))
    x = torch.randn(100, 30)
    previous = np.inf
    for keep in (0.2, 0.4, 0.6, 0.8):
        small, report = compress(model, keep, x, by="spectrum", of="multiply_adds")
        assert report.after.multiply_adds <= keep * report.before.multiply_adds
        ranks = {c.layers[0]: c.after for c in report.changes}
        assert ranks["0"] == 2
        change = float((small(x) - model(x)).detach().norm())
        assert change <= previous * 1.001
        previous = change
    assert compress(model, 1.0, x, by="spectrum")[1].changes == ()


def test_what_is_not_rewritten_is_named():
    model, inputs = build("transformer")
    _, report = compress(model, 0.5, *inputs, by="spectrum")
    reasons = dict(report.skipped)
    assert not [name for name in reasons if "layers.layers" in name]
    model, inputs = build("tied")
    _, report = compress(model, 0.3, *inputs, by="spectrum")
    assert "tied" in dict(report.skipped)["head"]
    model, inputs = build("grouped")
    assert (
        "groups" in dict(compress(model, 0.3, *inputs, by="spectrum")[1].skipped)["2"]
    )
    bare, x = nn.Linear(9, 9), torch.randn(2, 9)
    small, report = compress(bare, 0.5, x, by="spectrum")
    assert "wrap it" in dict(report.skipped)[""]
    assert torch.equal(small(x), bare(x))
