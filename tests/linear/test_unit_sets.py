"""The bound for any noise over units, against descents, enumeration and closed forms."""

import subprocess
import sys

import numpy as np
import pytest

import overt

pytest.importorskip("clarabel")


def arcs(d, b, count=1):
    """Gamma of `count` independent arcs of b of d units on a ring that are dropped."""
    kept = [
        np.mean([(t % d >= b) and ((t + k) % d >= b) for t in range(d)])
        for k in range(d)
    ]
    both = np.array(kept) ** count
    shift = (np.arange(d)[:, None] - np.arange(d)) % d
    return both[shift] / both[0] ** 2 - 1


def covariance(Gamma):
    return overt.CovarianceNoise(np.ones(len(Gamma)), Gamma)


def random_gamma(rng, d):
    A = rng.standard_normal((d, int(rng.integers(max(1, d - 2), 2 * d))))
    return A @ A.T / A.shape[1] * 10 ** rng.uniform(-1, 0.7)


@pytest.mark.parametrize(("d", "b", "count"), [(6, 2, 1), (6, 3, 1), (8, 2, 2)])
def test_arcs_of_a_ring_are_solved(d, b, count):
    s = np.arange(d, 0, -1) / d
    best = overt.LinearNetwork(np.diag(s), d, covariance(arcs(d, b, count))).solve()
    assert best.certificate.relative_gap < 1e-4
    if count == 1:  # what is dropped leaves a map of rank d - b
        assert best.objective >= np.sum(s[d - b :] ** 2) * (1 - 1e-12)


@pytest.mark.parametrize("seed", range(12))
def test_no_network_is_below_the_bound(seed):
    """Random noises, spectra and networks; far from, near to and at the best that is known."""
    rng = np.random.default_rng(seed)
    d = int(rng.integers(2, 7))
    kinds = [
        lambda: covariance(random_gamma(rng, d)),
        lambda: overt.DropBlock(0.3, min(2, d), "sliding"),
        lambda: covariance(arcs(d + 2, 2)[:d, :d]),
        lambda: covariance(arcs(d, 1)),
    ]
    noise = kinds[seed % 4]()
    M = rng.standard_normal((int(rng.integers(1, 6)), int(rng.integers(1, 6))))
    net = overt.LinearNetwork(M, d, noise)
    best = net.solve()
    bound = net.bound()
    assert bound <= best.objective * (1 + 1e-12)
    for i in range(300):
        size = 10 ** rng.uniform(-3, 0.5)
        U = size * rng.standard_normal(best.U.shape) + (i % 3 > 0) * best.U
        V = size * rng.standard_normal(best.V.shape) + (i % 3 > 0) * best.V
        assert net.objective(U, V) >= bound * (1 - 1e-12)
    for rank in range(1, min(M.shape) + 1):
        limited = net.bound(rank=rank)
        assert bound <= limited * (1 + 1e-6)
        found = net.solve(rank=rank)
        assert np.linalg.matrix_rank(found.product, tol=1e-9) <= rank
        assert limited <= found.objective * (1 + 1e-9)


def test_tied_networks_have_the_bound_of_their_eigenvalues():
    rng = np.random.default_rng(0)
    B = rng.standard_normal((4, 4))
    noise = covariance(random_gamma(rng, 5))
    net = overt.TiedAutoencoder(B @ B.T, 5, noise)
    best = net.solve()
    untied = overt.LinearNetwork(B @ B.T, 5, noise).bound()
    assert untied * (1 - 1e-6) <= net.bound() <= best.objective * (1 + 1e-12)


def test_without_clarabel_the_bound_is_lower_and_valid():
    code = (
        "import sys; sys.modules['clarabel'] = None\n"
        "import numpy as np, overt\n"
        "noise = overt.DropBlock(0.3, 2, 'sliding')\n"
        "print(overt.LinearNetwork(np.diag([3.0, 2.0, 1.0]), 6, noise).bound())"
    )
    shown = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    noise = overt.DropBlock(0.3, 2, "sliding")
    assert (
        0
        < float(shown.stdout)
        < overt.LinearNetwork(np.diag([3.0, 2.0, 1.0]), 6, noise).bound()
    )


@pytest.mark.parametrize("rank", [0, -1, 1.5, "2", True])
def test_wrong_ranks_are_refused(rank):
    net = overt.LinearNetwork(np.eye(2), 2, overt.Dropout(0.5))
    for method in (net.solve, net.bound):
        with pytest.raises((ValueError, TypeError), match="rank must be"):
            method(rank=rank)


@pytest.mark.parametrize(("width", "block"), [(12, 3), (40, 4)])
def test_sliding_blocks_are_solved_for_equal_singular_values(width, block):
    """Each unit loses its share of drops; from 33 units on the bound was far below."""
    noise = overt.DropBlock(0.3, block, "sliding")
    net = overt.LinearNetwork(np.eye(width), width, noise)
    lost = width - np.sum(noise.mean(width))
    assert net.objective(np.eye(width), np.eye(width)) > lost * (1 - 1e-12)
    assert net.bound() == pytest.approx(lost, rel=1e-9)
    found = net.solve()
    assert found.status == "optimal"
    assert found.objective == pytest.approx(lost, rel=1e-9)


@pytest.mark.parametrize("drop_prob", [1e-11, 1e-6])
def test_weak_noise_does_not_raise_the_bound_above_the_objective(drop_prob):
    """At 1e-11 `solve` ended in an InternalError: noise beside the mean had lost its digits."""
    target = np.random.default_rng(0).standard_normal((1, 5))
    noise = overt.DropBlock(drop_prob, 2, "sliding")
    best = overt.LinearNetwork(target, 5, noise).solve()
    tolerance = 1e-12 * np.sum(target**2)
    # One direction alone loses 1 - 1'R^-1 1 = 1 / (1 + 1'Gamma^-1 1), R = Gamma + 1 1'.
    inverse = np.linalg.inv(noise.characteristic(5))
    least = np.sum(target**2) / (1 + np.sum(inverse))
    assert best.certificate.lower_bound <= least + tolerance
    assert best.objective == pytest.approx(least, rel=1e-3, abs=tolerance)
