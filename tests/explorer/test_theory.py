"""The browser computes what the library computes, on random cases."""

import numpy as np
import pytest

import overt
from overt.spectral import KSupport, SquaredNuclear


@pytest.fixture(scope="module")
def script(browser, tmp_path_factory):
    """Return run(function, cases): what `theory.function(...case)` returns in the browser."""
    from overt.explorer import write_pages

    folder = tmp_path_factory.mktemp("pages")
    write_pages(folder)
    page = browser.new_page()
    page.goto(f"file://{folder}/index.html")

    def run(function, cases):
        return page.evaluate(
            "([name, cases]) => cases.map((args) => theory[name](...args))",
            [function, cases],
        )

    yield run
    page.close()


def spectra(rng, count, longest=12):
    """Random spectra, some with ties, zeros or large ratios."""
    found = []
    for _ in range(count):
        s = rng.exponential(1, rng.integers(1, longest + 1)) * 10.0 ** rng.uniform(
            -2, 2
        )
        if rng.random() < 0.2:
            s[rng.integers(len(s))] = s[0]
        if rng.random() < 0.2 and len(s) > 1:
            s[-1] = 0.0
        found.append(np.sort(s)[::-1])
    return found


def assert_close(found, expected, scale):
    np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-9 * scale)


def test_proximal_maps(script):
    rng = np.random.default_rng(0)
    cases = [(s, 10.0 ** rng.uniform(-3, 2)) for s in spectra(rng, 250)]
    found = script("squaredNuclearProx", [[s.tolist(), w] for s, w in cases])
    for (s, w), a in zip(cases, found, strict=True):
        assert_close(a, SquaredNuclear().prox(s, w), s[0])
    cases = [(s, int(rng.integers(1, 9)), w) for s, w in cases]
    found = script("kSupportProx", [[s.tolist(), k, w] for s, k, w in cases])
    for (s, k, w), a in zip(cases, found, strict=True):
        assert_close(a, KSupport(k).prox(s, w), s[0])
    values = script("kSupport", [[s.tolist(), k] for s, k, _ in cases])
    for (s, k, _), value in zip(cases, values, strict=True):
        assert_close(value, float(KSupport(k).value(s)), s[0] ** 2)


def noises(rng, width):
    """(as the page names it, as the library names it)."""
    p = float(rng.uniform(0.02, 0.95))
    divisors = [b for b in range(1, width + 1) if width % b == 0]
    b = int(rng.choice(divisors))
    k = int(rng.integers(1, width + 1))
    return [
        ({"kind": "Dropout", "dropProb": p}, overt.Dropout(p)),
        ({"kind": "DropConnect", "dropProb": p}, overt.DropConnect(p)),
        ({"kind": "DropBlock", "dropProb": p, "blockSize": b}, overt.DropBlock(p, b)),
        ({"kind": "KeepExactly", "keep": k, "dropProb": 0}, overt.KeepExactly(k)),
    ]


def test_two_layer_networks(script):
    rng = np.random.default_rng(1)
    cases = []
    for s in spectra(rng, 40, longest=6):
        width = int(rng.integers(1, 9))
        cases += [(s, *noise, width) for noise in noises(rng, width)]
    found = script(
        "shallow", [[s.tolist(), shown, width] for s, shown, _, width in cases]
    )
    for (s, shown, noise, width), best in zip(cases, found, strict=True):
        solution = overt.LinearNetwork(np.diag(s), width, noise).solve()
        scale = float(s @ s)
        if best["exact"]:
            assert solution.status == "optimal", (shown, width, s)
            assert_close(best["objective"], solution.objective, scale)
            assert_close(
                best["map"],
                np.r_[solution.spectrum, np.zeros(99)][: len(s)],
                s[0] * 1e2,
            )
        assert best["objective"] <= solution.objective + 1e-9 * scale
        assert_close(best["loss"] + best["penalty"], best["objective"], scale)


def test_one_variance_per_unit(script):
    rng = np.random.default_rng(2)
    cases = []
    for s in spectra(rng, 100, longest=6):
        d = int(rng.integers(1, 8))
        cases.append((s, rng.uniform(0.1, 3, d), float(rng.uniform(0, 0.8))))
    shown = []
    for s, variances, common in cases:
        Gamma = np.diag(variances) + common
        shown.append([s.tolist(), Gamma.tolist()])
    for (s, variances, common), best in zip(
        cases, script("ownNoise", shown), strict=True
    ):
        d = len(variances)
        noise = overt.CovarianceNoise(np.ones(d), np.diag(variances) + common)
        solution = overt.LinearNetwork(np.diag(s), d, noise).solve()
        assert best["exact"]
        assert solution.status == "optimal"
        assert_close(best["objective"], solution.objective, float(s @ s))


def test_any_covariance_lies_between_its_bound_and_a_network(script):
    rng = np.random.default_rng(3)
    cases = []
    for s in spectra(rng, 30, longest=3):
        d = int(rng.integers(2, 5))
        factor = rng.standard_normal((d, d)) / np.sqrt(d)
        cases.append((s, factor @ factor.T + 0.05 * np.eye(d)))
    found = script("ownNoise", [[s.tolist(), Gamma.tolist()] for s, Gamma in cases])
    for (s, Gamma), best in zip(cases, found, strict=True):
        noise = overt.CovarianceNoise(np.ones(len(Gamma)), Gamma)
        solution = overt.LinearNetwork(np.diag(s), len(Gamma), noise).solve()
        scale = float(s @ s)
        assert best["bound"] <= solution.objective + 1e-9 * scale
        # The page's network is a network: the library's bound holds for it.
        assert best["objective"] >= solution.certificate.lower_bound - 1e-9 * scale


def test_the_rank_jump_of_deep_networks_is_where_the_optimum_changes(script):
    rng = np.random.default_rng(4)
    cases = [
        [float(rng.uniform(0.01, 0.6)), int(rng.integers(2, 6))] for _ in range(60)
    ]
    jumps = script("rankJump", cases)
    below = []
    for (beta, k), jump in zip(cases, jumps, strict=True):
        for factor, rank in ((0.999, 1), (1.001, 2)):
            ratio = (1.0 if jump is None else jump) * factor
            if ratio <= 1:
                # Widths of 2 and strength 2 beta give lam / d = beta.
                below.append(
                    (
                        [[1.0, ratio], [2 * beta] * k, [2] * k],
                        1 if jump is None else rank,
                    )
                )
    found = script("deep", [case for case, _ in below])
    assert [best["rank"] for best in found] == [rank for _, rank in below]
    assert sum(jump is None for jump in jumps) > 3


def test_deep_networks(script):
    rng = np.random.default_rng(5)
    cases = []
    for s in spectra(rng, 60, longest=5):
        k = int(rng.integers(1, 4))
        if rng.random() < 0.5:
            widths = [int(rng.integers(1, 7))] * k
            cases.append((s, [float(rng.uniform(0.05, 0.9))] * k, widths))
        else:
            widths = rng.integers(1, 7, k).tolist()
            cases.append((s, rng.uniform(0.05, 0.9, k).tolist(), widths))
    shown = []
    for s, probs, widths in cases:
        shown.append([s.tolist(), [p / (1 - p) for p in probs], widths])
    for (s, probs, widths), best in zip(cases, script("deep", shown), strict=True):
        net = overt.DeepLinearNetwork(np.diag(s), widths=tuple(widths), drop_prob=probs)
        solution = net.solve()
        scale = float(s @ s)
        assert_close(best["objective"], solution.objective, scale)
        assert best["bound"] <= solution.objective + 1e-9 * scale
        if len(set(widths)) == len(set(probs)) == 1:
            assert best["bound"] >= best["objective"] - 1e-9 * scale


def test_the_landscape_of_two_tied_units(script):
    rng = np.random.default_rng(6)
    for m, p in rng.uniform([0.5, 0.05], [5, 0.9], (20, 2)):
        lam = p / (1 - p)
        net = overt.TiedAutoencoder(np.array([[m]]), 2, overt.Dropout(p))
        (points,) = script("criticalPoints", [[m, lam]])
        best = net.solve()
        assert_close(points[0]["objective"], best.objective, m * m)
        for point in points:
            U = np.array([point["u"]])
            assert_close(point["objective"], net.objective(U), m * m)
            (value,) = script("landscape", [[m, lam, point["u"]]])
            assert_close(value, point["objective"], m * m)


def test_the_objective_of_a_network(script):
    rng = np.random.default_rng(7)
    for _ in range(20):
        s = np.sort(rng.exponential(1, 3))[::-1]
        U, V = rng.standard_normal((2, 3, 4))
        factor = rng.standard_normal((4, 4))
        Gamma = factor @ factor.T
        args = [s.tolist(), U.tolist(), V.tolist(), Gamma.tolist()]
        (value,) = script("objective", [args])
        net = overt.LinearNetwork(
            np.diag(s), 4, overt.CovarianceNoise(np.ones(4), Gamma)
        )
        assert_close(value, net.objective(U, V), value)
