"""Parts of the forms and of fitted models, against the same written plainly."""

import itertools
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from scipy import sparse

from overt import Entries, InputError
from overt.completion.forms import draws as draws_of
from overt.completion.forms import features, learned, popular, recent, units
from overt.completion.forms import noise as noise_of
from overt.completion.forms import prior as prior_of
from overt.completion.forms.encoding import Column, Encoder
from overt.completion.forms.features import (
    FEATURES,
    SIGNALS,
    Directions,
    Features,
    again,
    leading,
    of_sides,
)
from overt.completion.forms.fixed import FixedForm, SGDForm
from overt.completion.forms.model import FactorModel
from overt.completion.forms.negative import NegativeForm
from overt.completion.forms.noise import RowNoise
from overt.completion.forms.pairs import WEIGHT, AllPairs, Precisions
from overt.completion.forms.prior import Prior, Sums
from overt.completion.forms.problem import Columns, CompletionProblem, Grouped, entered, stored
from overt.completion.forms.sampled import SampledForm
from overt.completion.forms.spread import FullSpread, full_bytes, learned_spread
from overt.completion.forms.units import Units


def table(seed=0, m=7, n=5, share=0.7):
    rng = np.random.default_rng(seed)
    rows, cols = np.nonzero(rng.random((m, n)) < share)
    return Entries(rows, cols, rng.normal(2.0, 1.5, len(rows)), (m, n))


def test_units_are_entered_and_left():
    rng = np.random.default_rng(0)
    y, cols = rng.normal(size=6), np.array([0, 1, 2, 0, -1, 2])
    center, scale = np.array([1.0, 2.0, 3.0, 9.0]), np.array([0.5, 2.0, 4.0, 8.0])
    own = Units("columns", center, scale)
    expected = (y - center[cols]) / scale[cols]
    np.testing.assert_allclose(own.inward(cols, y), expected)
    np.testing.assert_allclose(own.outward(cols, expected), y)
    np.testing.assert_allclose(own.spread(cols), scale[cols])
    wanted = Units("strength", np.array([1.0]), np.array([2.0]))
    np.testing.assert_allclose(wanted.inward(cols, [0.0, 1.2, 2.0, 3.0, 9.0, 1.4]),
                               [0.2, 0.2, 0.5, 1.0, 1.0, 0.2])  # fmt: skip
    counts = Units("strength", np.array([0.0]), np.array([2.0]), log=True)
    np.testing.assert_allclose(counts.inward(cols[:3], [-5.0, 3.0, 1.0]),
                               [0.2, np.log(4) / 2, np.log(2) / 2])  # fmt: skip
    for one in (wanted, units.SAME):
        assert one.outward(cols, y) is y
        assert one.spread(cols) == 1.0
    np.testing.assert_array_equal(units.SAME.inward(cols, y), y)
    grown = own.grown(5)
    np.testing.assert_allclose(grown.center, [1.0, 2.0, 3.0, 9.0, 9.0, 9.0])
    np.testing.assert_allclose(grown.scale, [0.5, 2.0, 4.0, 8.0, 8.0, 8.0])
    assert wanted.grown(5) is wanted
    back = Units.from_arrays("columns", False, own.arrays())
    np.testing.assert_array_equal(back.scale, scale)
    entries = Entries([0, 1, 2], [0, 1, 2], [0.0, 1.0, 3.0], (3, 3))
    assert units.SAME.enter(entries) is entries
    assert wanted.enter(entries).values.tolist() == [0.2, 1.0]
    np.testing.assert_allclose(own.enter(entries).values, [-2.0, -0.5, 0.0])


def test_strengths_run_from_a_fifth_to_one():
    def ends(values):
        found = units.strengths(np.array(values))
        return found.log, found.inward(np.zeros(len(values), int), values)

    log, y = ends([1.0, 3.0, 5.0])
    assert not log
    np.testing.assert_allclose(y, [0.2, 0.6, 1.0])
    assert ends([4.0, 4.0])[1].tolist() == [1.0, 1.0]
    assert ends([0.0, 4.0])[1].tolist() == [0.2, 1.0]  # zeros are absent, and what is left is 1
    log, y = ends([-1.0, 0.0, 1.0])
    np.testing.assert_allclose(y, [0.2, 0.6, 1.0])
    counts = [1.0] * 50 + [3.0] * 49 + [200.0] * 10
    log, y = ends(counts)
    assert log
    low, high = np.log(2.0), np.log(201.0)
    np.testing.assert_allclose(y, 0.2 + 0.8 * (np.log1p(counts) - low) / (high - low))
    log, y = ends([1.0] * 500 + [3.0] * 480 + [200.0] * 19 + [1e6])  # one beyond 1
    assert y[-2:].tolist() == [pytest.approx(1.0), 1.0]
    median = 2.0  # four times the median is where counts begin
    for top, expected in ((7.9, False), (8.0, True)):
        assert units.strengths(np.array([median] * 9 + [top] * 3)).log == expected
    with_zeros = units.strengths(np.array([0.0, 0.0, 1.0, 3.0]))
    np.testing.assert_allclose(with_zeros.inward(np.zeros(2, int), [1.0, 3.0]), [0.2, 1.0])
    some = Entries([0, 1], [0, 1], [0.0, 0.0], (2, 2))
    assert units.chosen(some) is some


def test_columns_have_robust_centers_and_scales():
    entries = table(1, 30, 4)
    entries = Entries(entries.rows, entries.cols, entries.values, (30, 6))  # two are never seen
    found = units.by_column(entries)
    for b in range(4):
        y = entries.values[entries.cols == b]
        low, high = np.quantile(y, [0.25, 0.75])
        y = np.clip(y, low - 5 * (high - low), high + 5 * (high - low))
        assert found.center[b] == pytest.approx(y.mean())
        assert found.scale[b] == pytest.approx(y.std())
    for values, all_of in ((found.center, found.center[:4]), (found.scale, found.scale[:4])):
        np.testing.assert_allclose(values[4:], np.median(all_of))
    assert units._robust(np.array([3.0, 3.0])) == (3.0, 1.0)
    far = np.array([0.0, 1.0, 2.0, 3.0, 1000.0])  # quartiles 1 and 3: cut at 13
    assert units._robust(far) == (pytest.approx(19 / 5), pytest.approx(np.std([0, 1, 2, 3, 13])))


def test_units_differ_where_columns_say_so():
    def told(scales, centers, counts, missing="mean", scale="auto"):
        rng, parts = np.random.default_rng(2), []
        for b, (s, c, n) in enumerate(zip(scales, centers, counts, strict=True)):
            y = rng.permutation(np.linspace(-1, 1, n)) if n > 1 else np.zeros(n)
            parts += [(a, b, c + s * v) for a, v in enumerate(y)]
        rows, cols, values = zip(*parts, strict=True)
        entries = Entries(rows, cols, values, (max(counts), len(scales)))
        return units.choose(missing, scale, entries, True).kind == "columns"

    same, ten = [1.0] * 4, [10] * 4
    assert not told(same, [0.0] * 4, ten)
    assert told([1.0, 1.0, 9.0, 9.0], [0.0] * 4, ten)
    assert not told([1.0, 1.0, 2.5, 2.5], [0.0] * 4, ten)
    assert told([1e3, 1e3, 9e3, 9e3], [0.0] * 4, ten)
    assert not told([1e-3, 1e-3, 2.5e-3, 2.5e-3], [0.0] * 4, ten)
    assert not told([1e3, 1e3, 2.5e3, 2.5e3], [0.0] * 4, ten)
    assert told([1e-3, 1e-3, 9e-3, 9e-3], [0.0] * 4, ten)
    spread = float(np.std(np.linspace(-1, 1, 10)))
    assert told(same, [0.0, 0.0, 0.0, 9.1 * spread], ten)
    assert not told(same, [0.0, 0.0, 0.0, 8.9 * spread], ten)
    assert not told([1.0, 1.0, 9.0, 9.0], [0.0] * 4, [10, 4, 4, 4])  # one column of four says
    assert told([1.0, 9.0, 9.0, 9.0], [0.0] * 4, [10, 5, 4, 4])
    assert told(same, [0.0] * 4, ten, scale=True)
    assert not told([1.0, 1.0, 9.0, 9.0], [0.0] * 4, ten, scale=False)
    plain = Entries([0, 1], [0, 1], [1.0, 90.0], (2, 2))
    assert units.choose("mean", "auto", plain, False) is units.SAME
    assert units.choose("mean", True, plain, False).kind == "columns"
    assert units.choose("negative", False, plain, False).kind == "strength"


def built(biases, pairs=False, with_draws=False, seed=3, nu=6.0):
    """A model of 4 rows and 3 columns, made up, with what is needed to ask it anything."""
    rng, columns = np.random.default_rng(seed), Columns(2, biases)
    width, sizes = columns.width, (5, 4)
    means = [rng.normal(size=(size, width)) for size in sizes]
    tables, priors, noises = [], [], []
    for side, (w, size) in enumerate(zip(means, sizes, strict=True)):
        if biases:
            w[:, columns.pinned(side)] = 1
        free = columns.free(side)
        S = np.zeros((size, width, width))
        R = rng.normal(size=(size, len(free), len(free)))
        S[:, free[:, None], free] = 0.1 * R @ R.transpose(0, 2, 1)
        tables.append(np.stack([FullSpread.to_row(s) for s in S]))
        R = rng.normal(size=(len(free), len(free)))
        priors.append(Prior(rng.normal(size=len(free)), R @ R.T + np.eye(len(free))))
        noises.append(RowNoise(nu, rng.uniform(0.5, 2, size), rng.uniform(0.5, 2, size)))
    drawn = None
    if with_draws:
        n = len(columns.free(0))
        U, V = rng.normal(size=(3, 5, width)), rng.normal(size=(3, 4, width))
        if biases:
            U[..., columns.pinned(0)], V[..., columns.pinned(1)] = 1, 1
        drawn = draws_of.Draws(U, V, rng.normal(size=(3, n)), rng.uniform(1, 2, (3, n)),
                               rng.uniform(0.5, 1, 3), np.zeros((3, 0, n)),
                               np.array([0.1, 0.3, 0.2]))  # fmt: skip
    every = None
    if pairs:
        rule = Precisions(2.0, 1.3)
        every = AllPairs(rule, rule, np.array([0.7, 0.0, 1.4]), np.ones(3) / 3, 0.0,
                         np.zeros((0, 0)))  # fmt: skip
    own = Units("columns", rng.normal(size=4), rng.uniform(1, 2, 4))
    model = FactorModel(columns, 0.4, 0.3, tuple(means), FullSpread(tables), tuple(priors),
                        tuple(noises), -3.0, 4.0, drawn, units=own, pairs=every)  # fmt: skip
    return model, [FullSpread.to_square(t) for t in tables]


@pytest.mark.parametrize("with_draws", [False, True])
@pytest.mark.parametrize("biases", [False, True])
def test_predictions_entry_by_entry(biases, with_draws):
    model, S = built(biases, with_draws=with_draws)
    (U, V), own = model.means, model.units
    every = np.zeros((5, 4))
    for a in range(5):
        for b in range(4):
            dot = U[a] @ V[b]
            if with_draws:
                share = model.draws.share
                dots = [u[a] @ v[b] for u, v in zip(model.draws.U, model.draws.V, strict=True)]
                dot = (1 - share.sum()) * dot + share @ dots
            every[a, b] = own.center[b] + own.scale[b] * (0.4 + dot)
    rows, cols = np.array([0, 3, -1, 2]), np.array([1, 0, 2, -1])
    np.testing.assert_allclose(model.predict(rows, cols), np.clip(every, -3, 4)[rows, cols])
    np.testing.assert_allclose(model.block(np.array([2, -1]), clip=False), every[[2, -1], :3])
    np.testing.assert_allclose(model.block(np.array([2])), np.clip(every[[2], :3], -3, 4))
    variances = []
    for a, b in zip(rows, cols, strict=True):
        inner = U[a] @ S[1][b] @ U[a] + V[b] @ S[0][a] @ V[b] + np.sum(S[0][a] * S[1][b])
        noise = 0.3 * model.noises[0].variances[a] * model.noises[1].variances[b]
        variances.append((inner + noise) * own.scale[b] ** 2)
    np.testing.assert_allclose(model.variance(rows, cols), variances)
    assert model.shape == (4, 3)
    np.testing.assert_array_equal(model.factors(1), V[:3, :2])
    shown = model.shown()
    np.testing.assert_array_equal(shown["row_bias"], U[:4, 2] if biases else np.zeros(4))
    np.testing.assert_array_equal(shown["col_bias"], V[:3, 3] if biases else np.zeros(3))
    assert (shown["average"], shown["n_features_in"]) == (3 * with_draws, 3)


@pytest.mark.parametrize("with_draws", [False, True])
@pytest.mark.parametrize("pairs", [False, True])
@pytest.mark.parametrize("biases", [False, True])
def test_a_new_row_is_solved_for_in_turn_with_its_noise(biases, pairs, with_draws):
    if pairs and (biases or with_draws):
        return
    model, S = built(biases, pairs, with_draws, nu=np.inf if pairs else 6.0)
    columns, prior, V = model.columns, model.priors[0], model.means[1]
    partners, values = np.array([0, 2]), np.array([1.5, -0.5])
    inner = model.units.inward(partners, values) - 0.4
    free, width = columns.free(0), columns.width
    T = [np.outer(V[b], V[b]) + S[1][b] for b in range(4)]
    if pairs:
        total = np.sum(model.units.inward(partners, values) ** 2)
        r, c = float(model.pairs.rows(total)), model.pairs.partners
        weights = r * WEIGHT * c[partners]
        second = r * sum(c[b] * T[b] for b in range(3))
        second = second + r * sum((WEIGHT - 1) * c[b] * T[b] for b in partners)
    else:
        weights = model.noises[1].weights[partners]
        second = sum(w * T[b] for w, b in zip(weights, partners, strict=True))
    nu, alpha = model.noises[0].nu, 1.0
    for _ in range(1 if pairs else 8):
        precision = alpha / 0.3
        P = prior.precision + precision * second[np.ix_(free, free)]
        right = sum(w * y * V[b] for w, y, b in zip(weights, inner, partners, strict=True))
        if biases:
            right = right - second[:, columns.pinned(0)]
        w = np.linalg.solve(P, precision * right[free] + prior.precision @ prior.mean)
        mean, cov = np.ones(width), np.zeros((width, width))
        mean[free], cov[np.ix_(free, free)] = w, np.linalg.inv(P)
        error = sum(k * (y**2 - 2 * y * mean @ V[b])
                    for k, y, b in zip(weights, inner, partners, strict=True))  # fmt: skip
        error += np.sum((np.outer(mean, mean) + cov) * second)
        used = alpha
        if np.isfinite(nu):
            alpha, variance = (nu + 2) / (nu + error / 0.3), (nu + error / 0.3) / nu
        else:
            variance = 1.0
    found = model.fold(partners, values)
    np.testing.assert_allclose(found.mean, mean)
    np.testing.assert_allclose(found.covariance, cov)
    assert found.variance == pytest.approx(variance)
    total = V[:3] @ found.mean
    if with_draws:
        d = model.draws
        for k in range(3):
            W = d.V[k]
            P = np.diag(d.precision[k])
            right = d.precision[k] * d.mean[k]
            for c, y, b in zip(weights, inner, partners, strict=True):
                y = y - (W[b, columns.pinned(0)] if biases else 0.0)
                P = P + alpha / d.noise[k] * c * np.outer(W[b, free], W[b, free])
                right = right + alpha / d.noise[k] * c * y * W[b, free]
            np.testing.assert_allclose(found.drawn[k, free], np.linalg.solve(P, right))
        total = (1 - d.share.sum()) * total + sum(
            s * W[:3] @ u for s, W, u in zip(d.share, d.V, found.drawn, strict=True))  # fmt: skip
    cols = np.arange(3)
    np.testing.assert_allclose(model.products(found, cols), model.units.outward(cols, 0.4 + total))
    assert used > 0
    nobody = model.fold(np.zeros(0, int), np.zeros(0))
    np.testing.assert_allclose(nobody.mean[free], prior.mean)
    np.testing.assert_allclose(nobody.covariance[np.ix_(free, free)], prior.covariance)
    assert nobody.variance == pytest.approx(1.5 if np.isfinite(nu) else 1.0)


@pytest.mark.parametrize("biases", [False, True])
def test_parts_of_a_prediction_add_up(biases):
    model, S = built(biases)
    partners, values = np.array([0, 2]), np.array([1.5, -0.5])
    free, V, prior = model.columns.free(0), model.means[1], model.priors[0]
    precision = model.noises[0].weights[1] / 0.3
    weights = model.noises[1].weights[partners]
    second = sum(w * (np.outer(V[b], V[b]) + S[1][b])
                 for w, b in zip(weights, partners, strict=True))  # fmt: skip
    P = prior.precision + precision * second[np.ix_(free, free)]
    found = model.parts(1, partners, values, 2)
    inner = model.units.inward(partners, values) - 0.4
    for k, b in enumerate(partners):
        bias = V[b, model.columns.pinned(0)] if biases else 0.0
        effect = precision * weights[k] * V[2, free] @ np.linalg.solve(P, V[b, free])
        assert found["entries"][k] == pytest.approx(
            effect * (inner[k] - bias) * model.units.scale[2]
        )
    assert (found[SIGNALS], found[FEATURES]) == (0.0, 0.0)


@pytest.mark.parametrize("biases", [False, True])
def test_problems_start_at_shrunken_biases(biases):
    entries = table(4)
    problem = CompletionProblem.build(entries, 2, biases=biases, standard=True)
    y = entries.values
    center = y.mean() if biases else 0.0
    assert (problem.center, problem.scale) == (pytest.approx(center), pytest.approx(y.std()))
    U, V = problem.start(np.random.default_rng(5), 0.3)
    normal = np.random.default_rng(5).normal(0, 0.3, (5, 2))
    if biases:
        for b in range(5):
            mine = (y[entries.cols == b] - center) / y.std()
            assert V[b, 3] == pytest.approx(mine.sum() / (len(mine) + 5))
        np.testing.assert_array_equal(V[:, 2], 1)
        np.testing.assert_array_equal(U, np.tile([0.0, 0.0, 0.0, 1.0], (7, 1)))
    else:
        normal[:, 0] += np.sqrt(0.3)
        assert not U.any()
    np.testing.assert_allclose(V[:, :2], normal)
    means = [np.random.default_rng(6).normal(size=w.shape) for w in (U, V)]
    dots = np.sum(means[0][entries.rows] * means[1][entries.cols], axis=1)
    expected = np.mean(((y - center) / y.std() - dots) ** 2)
    assert problem.residual_variance(means) == pytest.approx(expected)
    assert problem.by_row.square == pytest.approx(np.sum(((y - center) / y.std()) ** 2))
    some = problem.by_row.only(np.array([1, 3]))
    assert set(some.keys.tolist()) == {1, 3}
    assert some.counts.tolist() == [c if a in (1, 3) else 0 for a, c in
                                    enumerate(problem.by_row.counts)]  # fmt: skip


def test_values_enter_with_a_center_and_a_scale():
    for biases in (False, True):
        for standard in (False, True):
            found = entered(3.0, 0.5, 2.0, biases=biases, standard=standard)
            assert found == (3.0 * biases, 0.5 if standard else 1.0)
    assert entered(3.0, 0.0, 0.0, biases=True, standard=True) == (3.0, 1.0)
    assert entered(3.0, 1e-75, 1e-75, biases=True, standard=True)[0] == 3.0
    with pytest.raises(InputError, match="must differ by at least 1e-75 or not at all"):
        entered(3.0, 1e-76, 1e-76, biases=True, standard=True)
    assert stored(10**6, 5, False) is np.float64
    assert stored(10**6 + 1, 5, False) is np.float32
    assert stored(10**9, 5, True) is np.float64


@pytest.mark.parametrize("width", [2, 6])
def test_rows_are_cut_into_chunks_of_one_cost(width):
    rng = np.random.default_rng(7)
    keys, others = rng.integers(0, 40, 300), rng.integers(0, 9, 300)
    group = Grouped.build(keys, others, rng.normal(size=300), (50, 9), width)
    counts = np.bincount(keys, minlength=50)
    assert group.rows.tolist() == sorted(np.flatnonzero(counts), key=lambda a: (-counts[a], a))
    cost = np.cumsum(counts[group.rows] + width)
    ends = [int(np.sum(cost < cost[-1] * k / 32)) for k in range(1, 32)]
    for most in (1000, 3):
        expected = []
        edges = sorted({0, *ends, len(group.rows)})
        for a, b in itertools.pairwise(edges):
            expected += range(a, b, most)
        assert group._cuts(most).tolist() == [*expected, len(group.rows)]
    layout = group.blocked
    for chunks in ([0], [1, 3]):
        rows, cuts, taken = layout.take(chunks)
        assert rows.tolist() == [a for c in chunks for a in
                                 layout.rows[layout.cuts[c] : layout.cuts[c + 1]]]  # fmt: skip
        assert cuts.tolist() == [0, *np.cumsum(np.diff(layout.cuts)[chunks])]
        assert len(taken.values) == counts[rows].sum()


def fixed(ridge=0.3):
    problem = CompletionProblem.build(table(8), 2, biases=True, standard=False)
    return FixedForm.start(problem, [0.2, 0.5], ridge, 0)


def test_fixed_forms_finish_with_balanced_factors():
    form = fixed()
    rng = np.random.default_rng(9)
    form.means[:] = [rng.normal(size=w.shape) for w in form.means]
    form.means[1][:, 1] = 0  # a factor that one side does not have
    U, V = (w.copy() for w in form.means)
    form.finish()
    assert np.linalg.norm(form.means[0][:, 0]) == pytest.approx(np.linalg.norm(form.means[1][:, 0]))
    np.testing.assert_allclose(np.outer(form.means[0][:, 0], form.means[1][:, 0]),
                               np.outer(U[:, 0], V[:, 0]))  # fmt: skip
    assert not form.means[0][:, 1].any()
    assert not form.means[1][:, 1].any()
    np.testing.assert_allclose(form.means[0][:, 2:], U[:, 2:])
    np.testing.assert_allclose(form.spread.strength, [0.25, 1.0, 0.0, 0.0])
    np.testing.assert_allclose(form.priors[0].precision, 0.3 * np.eye(3))
    for history, tol, expected in (([1.0], 1.0, False), ([1.0, 0.9], 0.1, False),
                                   ([1.0, 0.9], 0.12, True), ([1.0, 1.0], 0.0, True)):  # fmt: skip
        form.history[:] = history
        assert form.settled(tol) == expected
    rms = np.sqrt(np.mean(form.problem.by_row.values**2))
    start = form.problem.start(np.random.default_rng([0, 0]), np.sqrt(rms / 2))
    np.testing.assert_array_equal(fixed().means[1], start[1])


def test_fixed_forms_sum_squares_and_leave_nothing_to_empty_rows(monkeypatch):
    entries = Entries([0, 1, 2, 3, 0], [0, 0, 1, 1, 2], [3.0, -1.0, 2.0, 5.0, 4.0], (5, 4))
    problem = CompletionProblem.build(entries, 3, biases=True, standard=False)
    form, rng = FixedForm.start(problem, 0.2, 0.3, 0), np.random.default_rng(10)
    form.means[:] = [rng.normal(size=w.shape) for w in form.means]
    form.means[0][:, 4] = form.means[1][:, 3] = 1.0
    monkeypatch.setattr(FixedForm, "update", lambda self, side, engine: [7.0, 2.5][side])
    squares = sum(np.sum(w**2) for w in form.means) - 5 - 4  # but those of the pinned ones
    assert form.step(None) == form.history[-1] == pytest.approx((2.5 + 0.3 * squares) / 5)
    form.means[0][:, 1] = form.means[1][:, 2] = 0  # factors that one side does not have
    U, V = (w.copy() for w in form.means)
    form.finish()
    U[4, :4] = V[3, [0, 1, 2, 4]] = 0  # without entries
    ratio = np.sqrt(np.linalg.norm(V[:, 0]) / np.linalg.norm(U[:, 0]))
    np.testing.assert_allclose(form.means[0], U * [ratio, 0, 0, 1, 1])
    np.testing.assert_allclose(form.means[1], V * [1 / ratio, 0, 0, 1, 1])


def test_sgd_starts_as_he_and_refuses_to_run_away():
    problem = CompletionProblem.build(table(8), 2, biases=True, standard=True)
    form = SGDForm.start(problem, 0.2, 0.0, 3, 0.1, 4)
    rng = np.random.default_rng([3, 0])
    for side, w in enumerate(form.means):
        expected = rng.normal(0, 1.0, w.shape)
        expected[:, 2 + side], expected[:, 3 - side] = 0, 1
        np.testing.assert_array_equal(w, expected)
    assert not form.settled(1.0)
    form.history.append(0.5)
    assert not form.settled(1.0)
    form.finish()
    form.history.append(np.nan)
    assert form.settled(0.0)
    for loss in (np.nan, 1e13):
        form.history.append(loss)
        with pytest.raises(InputError, match="take a smaller one"):
            form.finish()


def test_learned_forms_wait_before_rows_have_a_noise_of_their_own():
    form = SimpleNamespace(evidence=[])
    waited = learned.LearnedForm.waited.fget
    assert waited(form) == np.inf
    form.evidence = [9.0, 8.0, 7.0, 6.0, 5.9, 5.8999]
    assert waited(form) == 3 + 2 + 1
    form.evidence = [9.0, 8.0, 7.9999, 7.0, 6.9995]
    assert waited(form) == 5
    form.evidence = [9.0, 8.9999, 8.9998, 6.0, 5.0]
    assert waited(form) == np.inf
    for evidence, tol, expected in (
        ([5.0, 4.0, 3.0, 2.0, 1.999], 1e-2, True), ([5.0, 4.0, 3.0, 2.999], 1e-2, False),
        ([5.0, 4.0, 3.0, 2.0, 1.9], 1e-2, False), ([5.0, 4.0, 3.0, 2.0, 1.9995], 5e-4, False),
        ([5.0, 4.0, 3.0, 2.0, 1.9995, 1.9991], 5e-4, True),
    ):  # fmt: skip
        form = SimpleNamespace(evidence=evidence, waited=waited(SimpleNamespace(evidence=evidence)))
        assert learned.LearnedForm.settled(form, tol) == expected


@pytest.mark.parametrize(("before", "misfit", "noise"), [
    (0, 1.7, 0.5), (1, 0.2, 0.2), (2, 1.7, 1.7), (2, 1e-14, 1e-12),
])  # fmt: skip
def test_the_objective_of_a_sweep_is_fit_and_costs_per_rating(monkeypatch, before, misfit, noise):
    """(log(2 pi noise) + misfit / noise) / 2 + costs / ratings, less what narrow priors gain."""
    problem = CompletionProblem.build(table(8), 2, biases=True, standard=True)
    form = learned.LearnedForm.start(problem, 5)
    ratings, (m, n) = problem.n_ratings, problem.shape
    weights = np.linspace(0.5, 2.0, n)
    form.noises = [replace(form.noises[0], fixed=0.3), replace(form.noises[1], fixed=0.4)]
    form.noises[1] = replace(form.noises[1], weights=weights)
    error = np.random.default_rng(0).random(n)
    error *= misfit * ratings / (weights @ error)
    sums = [SimpleNamespace(first=np.zeros((count, 3))) for count in (m, n)]
    given = {0: (sums[0], np.ones(m)), 1: (sums[1], error)}
    monkeypatch.setattr(learned.LearnedForm, "update", lambda self, side, engine: given[side])
    costs = {m: 5.0, n: 7.0}
    monkeypatch.setattr(learned.LearnedForm, "_learn_prior",
                        lambda self, side, sums: costs[len(sums.first)])  # fmt: skip
    form.history[:] = [9.0] * before
    found = form.step(None)
    assert form.noise == pytest.approx(noise, rel=1e-9, abs=0)
    evidence = (np.log(2 * np.pi * noise) + misfit / noise) / 2 + (12.0 + 0.7) / ratings
    narrow = m * np.log(5.0) / 2 + n * np.log(100.0 * 100.0 * 5.0) / 2
    assert form.evidence == [pytest.approx(evidence)]
    assert found == form.history[-1] == pytest.approx(evidence - narrow / ratings)


def test_chains_begin_without_features_that_have_no_effects():
    problem = CompletionProblem.build(table(8), 2, biases=True, standard=True)
    signals = of_sides((problem.by_row, problem.by_col), (None, None), True, float, 0)
    form = learned.LearnedForm.start(problem, 5, features=signals)
    rows, cols = SampledForm.start(form, 0).features
    assert signals[0].scores.shape[1] > 0
    assert rows.scores.shape[1] == cols.scores.shape[1] == 0
    products = np.zeros((signals[0].scores.shape[1], 3))
    sums = Sums(7, np.zeros(3), np.eye(3), 0.1 * np.eye(3), products, 0.0)
    effects = prior_of.effects_of(form.priors[0], sums, signals[0], np.ones((1, 3)))
    form.priors[0] = replace(form.priors[0], effects=effects)
    rows, cols = SampledForm.start(form, 0).features
    assert rows is signals[0]
    assert cols.scores.shape[1] == 0


@pytest.mark.parametrize("fits", [True, False])
def test_memory_holds_factors_and_covariances_twice(monkeypatch, fits):
    numbers = (7 + 5) * 4 * 8, (7 + 5) * 10 * 8  # of factors, and of full covariances
    monkeypatch.setattr("overt.completion.forms.spread.FULL_BYTES", numbers[1] - (not fits))
    needed = 2 * (numbers[0] + numbers[fits])

    def limited(limit):
        return learned_spread(SimpleNamespace(
            shape=(7, 5), dtype=np.dtype(float), columns=SimpleNamespace(width=4),
            by_row=SimpleNamespace(mapped=limit)))  # fmt: skip

    for limit in (0, needed):
        assert (limited(limit) is FullSpread) == fits
    with pytest.raises(InputError, match="memory_limit must be at least"):
        limited(needed - 1)


def test_the_noise_of_rows_begins_at_the_best_of_every_fourth(monkeypatch):
    """Two valleys of costs, the deeper one at 5; later only the neighbors of the last are tried."""
    deep = {nu: min(abs(k - 5), abs(k - 17) + 2.0) for k, nu in enumerate(noise_of.NUS)}
    monkeypatch.setattr(noise_of, "_cost", lambda nu, n, e: deep[nu])
    counts, misfits = np.array([3, 0, 2]), np.array([2.0, 0.0, 5.0])
    found = RowNoise.start(3).learn(counts, misfits)
    assert found.nu == noise_of.NUS[5]
    assert found.fixed == pytest.approx(-found.weights[[0, 2]] @ [2.0, 5.0] / 2)
    again = RowNoise(float(noise_of.NUS[14]), np.ones(3), np.ones(3)).learn(counts, misfits)
    assert again.nu == noise_of.NUS[17]


def test_draws_are_stacked_in_units_of_the_values(monkeypatch):
    """A row never seen is at the prior's mean, a column at the mean of those with any entry."""
    entries = Entries([0, 1, 2, 3, 0], [0, 0, 1, 1, 2], [3.0, -1.0, 2.0, 5.0, 4.0], (5, 4))
    problem = CompletionProblem.build(entries, 2, biases=True, standard=True)
    monkeypatch.setattr(draws_of, "together", lambda draws, problem, means: 0.8)
    rng, shapes = np.random.default_rng(1), {"U": (5, 4), "V": (4, 4), "mean": 3, "precision": 3,
                                             "noise": 1, "H": (2, 3)}  # fmt: skip
    kept = [{name: rng.random(shape) for name, shape in shapes.items()} for _ in range(2)]
    found, c = draws_of.Draws.stacked(kept, problem, None), problem.scale
    assert c != pytest.approx(1.0)
    U, V = np.sqrt([c, c, c**2, 1.0]), np.sqrt([c, c, 1.0, c**2])
    free = [0, 1, 2]  # the fourth column of rows is a 1
    for k, draw in enumerate(kept):
        row = np.append(draw["mean"], 1.0)
        np.testing.assert_allclose(found.U[k], np.vstack([draw["U"], row]) * U)
        np.testing.assert_allclose(found.V[k], np.vstack([draw["V"], draw["V"][:3].mean(0)]) * V)
        np.testing.assert_allclose(found.mean[k], draw["mean"] * U[free])
        np.testing.assert_allclose(found.precision[k], draw["precision"] / U[free] ** 2)
        np.testing.assert_allclose(found.H[k], draw["H"] * U[free])
        assert found.noise[k] == pytest.approx(draw["noise"][0] * c**2)
    assert found.share.tolist() == [0.4, 0.4]


def test_learned_forms_start_narrow():
    problem = CompletionProblem.build(table(8), 2, biases=True, standard=True)
    form = learned.LearnedForm.start(problem, 5)
    np.testing.assert_allclose(form.priors[0].precision, np.diag([1.0, 1.0, 5.0]))
    np.testing.assert_allclose(form.priors[1].precision, np.diag([100.0, 100.0, 5.0]))
    assert form.noise == 0.5
    V = form.means[1]
    np.testing.assert_array_equal(V, problem.start(np.random.default_rng([5, 0]), 0.1)[1])
    for b in range(5):
        np.testing.assert_allclose(FullSpread.to_square(form.spread.tables[1][b]),
                                   np.outer(V[b], V[b]))  # fmt: skip
    assert not form.spread.tables[0].any()
    assert full_bytes(problem) == (7 + 5) * 10 * 8
    assert learned_spread(problem) is FullSpread
    form.evidence[:] = [1.0]
    kept = form.arrays()
    other = learned.LearnedForm.start(problem, 6)
    other.restore(kept)
    assert (other.noise, other.evidence) == (form.noise, form.evidence)


@pytest.mark.parametrize("small", [10**6, 47])  # beyond, vectors are found at random
def test_what_everybody_chose_starts_at_singular_vectors(monkeypatch, small):
    monkeypatch.setattr("overt.completion.forms.negative.SMALL", small)
    entries = table(9, 8, 6)
    entries = Entries(entries.rows, entries.cols, np.abs(entries.values) + 0.1, (8, 6))
    problem = CompletionProblem.build(entries, 3, biases=False, standard=False)
    form = NegativeForm.start(problem, 0)
    X = np.zeros((8, 6))
    X[entries.rows, entries.cols] = entries.values
    r, c = (Precisions.of(s)(s) for s in ((X**2).sum(1), (X**2).sum(0)))
    _, s, R = np.linalg.svd(np.sqrt(r)[:, None] * X * np.sqrt(c))
    expected = (R[:3].T * np.sqrt(s[:3])) * (6 / 8) ** 0.25 / np.sqrt(c)[:, None]
    np.testing.assert_allclose(np.abs(form.means[1]), np.abs(expected))
    assert form.noise == pytest.approx(X.sum() / 48)
    np.testing.assert_allclose(form.priors[0].precision, np.eye(3))
    np.testing.assert_allclose(form.priors[1].precision, 100 * np.eye(3))
    for evidence, expected in (([1.0], False), ([1.0, 0.9], False), ([1.0, 0.99], True)):
        form.evidence[:] = evidence
        assert form.settled(0.05) == expected


def test_popularity_is_chosen_by_where_hidden_entries_rank(monkeypatch):
    rng = np.random.default_rng(10)
    entries = table(10, 12, 8, 0.6)
    hidden = rng.random(len(entries.values)) < 0.4
    means = [rng.normal(size=(12, 2)), rng.normal(size=(8, 2))]
    seen = []
    real = popular.blended
    monkeypatch.setattr(popular, "blended", lambda x, p, q: seen.append((x, p, q)) or real(x, p, q))
    popular.choose(means, entries, hidden)
    counts = np.bincount(entries.cols[~hidden], minlength=8)
    held = np.unique(entries.rows[hidden])
    assert len(seen) == 5 * len(held)
    for i, (x, p, q) in enumerate(seen):
        np.testing.assert_allclose(x, means[1] @ means[0][held[i // 5]])
        np.testing.assert_allclose(p, counts / (~hidden).sum())
        assert q == popular.MIXED[i % 5]
    assert popular._rank(np.array([3.0, 1.0, 2.0, 2.0, -np.inf]), 2.0) == 1.5
    assert popular._rank(np.array([3.0, 1.0, 2.0]), 3.0) == 0.0
    assert [c.tolist() for c in popular._by_row(entries, np.array([0, 5]))] == [
        entries.cols[entries.rows == a].tolist() for a in (0, 5)
    ]
    one = Entries([0, 0], [0, 1], [1.0, 1.0], (1, 2))
    assert popular.choose([means[0][:1], means[1][:2]], one, np.array([True, False])) == 1.0
    picked = popular.hide(100, 4)
    assert picked.sum() == 20
    assert popular.hide(20_000, 4).sum() == 2000
    assert not np.array_equal(picked, popular.hide(100, 5))


@pytest.mark.parametrize(("gains", "expected"), [
    ((0.0, 0.0, 0.0), 1.0), ((1.0, 0.0, 0.0), 0.0), ((1.0, 0.0, 3.0), 0.5), ((1.0, 0.0, 1.05), 0.0),
    ((0.0, 1.0, 1.15), 1.0), ((0.0, 1.0, 1.2), 0.5),
])  # fmt: skip
def test_in_doubt_counts_are_taken_then_what_was_learned(monkeypatch, gains, expected):
    """Gains of q = 0, 1 and 1/2, with noise of which two standard errors are .18."""
    noise = np.tile([0.4, -0.4], 10)  # .09 is a standard error of a difference's mean
    level = {0.0: gains[0], 1.0: gains[1], 0.5: gains[2], 0.25: -9.0, 0.75: -9.0}
    row = iter(range(100))

    def rank(scores, score):
        a, k = divmod(next(row), 5)
        q = popular.MIXED[k]
        wanted = 0.2 + 0.1 * (level[q] + (noise[a] if q == 0.5 else 0.0))
        return 2.0 ** (1 / max(wanted, 0.01)) - 2

    monkeypatch.setattr(popular, "_rank", rank)
    rows = np.repeat(np.arange(20), 2)
    entries = Entries(rows, np.tile([0, 1], 20), np.ones(40), (20, 3))
    means = [np.ones((20, 1)), np.ones((3, 1))]
    assert popular.choose(means, entries, np.tile([True, False], 20)) == expected


def test_what_came_last_is_found_row_by_row():
    rng = np.random.default_rng(11)
    entries = table(11, 6, 40, 0.9)
    times = rng.integers(0, 12, len(entries.values)).astype(float)
    times[entries.rows == 2] = 5.0  # all at once: nothing came last
    rows, cols, (later, which) = recent.latest(entries, times)
    for a in range(6):
        mine = np.flatnonzero(entries.rows == a)
        here = rows == a
        if a == 2:
            assert not here.any()
            continue
        order = sorted(mine, key=lambda e: (-times[e], e))[:30]
        assert which[here].tolist() == order
        assert cols[here].tolist() == entries.cols[order].tolist()
        assert later[here].tolist() == [int(np.sum(times[mine] > times[e])) for e in order]


def test_draws_count_by_what_lies_between_them_and_the_means(monkeypatch):
    monkeypatch.setattr(draws_of, "PAIRS", 40)
    problem = CompletionProblem.build(table(12), 2, biases=False, standard=False)
    rng = np.random.default_rng(12)
    means = [rng.normal(size=(7, 2)), rng.normal(size=(5, 2))]
    kept = [{"U": means[0] + 0.5 * rng.normal(size=(7, 2)), "V": means[1] + 0.3} for _ in range(6)]
    rows, partners = problem.by_row.sample(40)
    cols = np.roll(partners, 20)
    products = [np.sum(d["U"][rows] * d["V"][cols], axis=1) for d in kept]
    plain = np.sum(means[0][rows] * means[1][cols], axis=1)
    apart = np.mean((np.mean(products, axis=0) - plain) ** 2)
    error = np.var(products, axis=0, ddof=1).mean() / 6
    expected = max(0.0, 1 - error / apart)
    assert 0 < expected < 1
    assert draws_of.together(kept, problem, means) == pytest.approx(expected)
    assert draws_of.together(kept[:1], problem, means) == 0.0
    many = [*kept, *kept, *kept]
    parts = np.array_split(np.array([*products] * 3), 10)
    each = np.array([p.mean(axis=0) for p in parts])
    error = each.var(axis=0, ddof=1).mean() / 10
    assert draws_of.together(many, problem, means) == pytest.approx(max(0.0, 1 - error / apart))


def test_features_are_reduced_to_their_leading_directions():
    rng = np.random.default_rng(13)
    F = rng.normal(size=(7, 3)) @ np.diag([3.0, 2.0, 1e-9])
    R = leading(F, 0)
    assert R.shape == (3, 2)
    right = np.linalg.svd(F)[2]
    np.testing.assert_allclose(np.abs(R.T @ right[:2].T), np.eye(2), atol=1e-9)
    problem = CompletionProblem.build(table(13, 7, 5, 0.5), 2, biases=True, standard=True)
    groups = (problem.by_row, problem.by_col)
    found, other = of_sides(groups, (F, None), True, float, 0)
    X = np.zeros((7, 5))
    X[groups[0].keys, groups[0].others] = 1
    active = X.any(1)
    unit = X / np.sqrt(np.maximum(X.sum(1), 1))[:, None]
    A = found.scores
    signals, given = found.directions.parts[SIGNALS], found.directions.parts[FEATURES]
    np.testing.assert_allclose(A[active, : signals.shape[1]], unit[active] @ signals, atol=1e-12)
    np.testing.assert_allclose(A[:, signals.shape[1] :], F @ given, atol=1e-12)
    np.testing.assert_allclose(found.K, A[active].T @ A[active])
    np.testing.assert_allclose(found.ones, A[active].sum(0))
    np.testing.assert_allclose(found.given, F @ given, atol=1e-12)
    np.testing.assert_allclose(found.sizes, np.sum((F @ given) ** 2, axis=1))
    assert not found.without().scores.size
    assert FEATURES not in other.directions.parts
    assert other.given.shape == (5, 0)
    assert other.sizes.tolist() == [0.0] * 5
    same = again(found.directions, found.given, groups[0])
    np.testing.assert_allclose(same.scores, A, atol=1e-12)
    members = found.directions.members
    np.testing.assert_array_equal(members.sum(0), 1)
    np.testing.assert_array_equal(members.sum(1), [signals.shape[1], given.shape[1]])


def test_rows_that_say_nothing_count_as_the_mean_row():
    directions = Directions({SIGNALS: np.eye(2), FEATURES: np.eye(3)},
                            {SIGNALS: np.array([1.0, 2.0]), FEATURES: np.full(3, 7.0)})  # fmt: skip
    np.testing.assert_array_equal(directions.scores({}), [[1, 2, 7, 7, 7]])
    known = {FEATURES: np.arange(6.0).reshape(2, 3)}
    np.testing.assert_array_equal(directions.scores(known, 2), [[1, 2, 0, 1, 2], [1, 2, 3, 4, 5]])
    back = Directions.from_arrays(directions.arrays(1), 1)
    np.testing.assert_array_equal(back.scores({}), directions.scores({}))
    rows = Features.build({SIGNALS: np.diag([1.0, 2.0, 0.0])}, np.array([True, True, False]),
                          float, 0)  # fmt: skip
    np.testing.assert_allclose(rows.scores[2], rows.scores[:2].mean(0))


def test_tables_become_numbers_about_their_means():
    numbers = Column.learn("age", np.array([1.0, np.nan, 3.0]))
    np.testing.assert_allclose(numbers.encode(np.array([5.0, np.nan])), [[3.0], [0.0]])
    kinds = Column.learn("kind", np.array(["a", "b", None, "a"], dtype=object))
    assert kinds.categories == ["a", "b"]
    np.testing.assert_allclose(kinds.encode(np.array(["b", None, "z", "a"], dtype=object)),
                               [[-2 / 3, 2 / 3], [0, 0], [0, 0], [1 / 3, -1 / 3]])  # fmt: skip
    assert Column.learn("same", np.array([2.0, 2.0])).scale == 1.0
    assert Column.learn("none", np.array([None, None], dtype=object)).means == []
    many = np.array([f"{i:04}" for i in range(600)] + ["0599"] * 3)
    found = Column.learn("many", many).categories
    assert len(found) == 500
    assert found == [*[f"{i:04}" for i in range(499)], "0599"]
    encoder = Encoder.learn({"age": np.array([1.0, 3.0]), "kind": np.array(["a", "b"])})
    assert Encoder.from_dict(encoder.to_dict()) == encoder
    assert Encoder.from_dict(None) is None
    np.testing.assert_allclose(encoder.encode({"kind": np.array(["b"]), "age": np.array([2.0])}),
                               [[0.0, -0.5, 0.5]])  # fmt: skip
    matrix = Encoder.learn(sparse.csr_array(np.eye(3)))
    np.testing.assert_array_equal(matrix.encode(sparse.coo_array(2 * np.eye(3))).toarray(),
                                  2 * np.eye(3))  # fmt: skip
    np.testing.assert_array_equal(matrix.encode(np.arange(3.0)), [[0.0, 1.0, 2.0]])
    for call, message in (
        (lambda: matrix.encode(np.eye(2)), "must have 3 columns as in fit, got 2"),
        (lambda: matrix.encode(1e76 * np.eye(3)), "finite and below"),
        (lambda: matrix.encode(1j * np.eye(3)), "must be real"),
        (lambda: encoder.encode({"age": np.ones(1)}), "must have the columns of fit"),
        (lambda: encoder.encode({}), "at least one column"),
        (lambda: numbers.encode(np.array(["x"])), "'age' of the features must be numeric"),
        (lambda: Column.learn("big", np.array([1e75, 0.0])), "below 1e\\+75"),
        (lambda: Encoder.learn(np.full((2, 1), np.nan)), "a value that is not missing"),
        (lambda: Encoder.learn(np.ones((2, 2, 2))), "two-dimensional array"),
        (lambda: Encoder.learn(np.ones((0, 2))), "two-dimensional array"),
    ):  # fmt: skip
        with pytest.raises(InputError, match=message):
            call()


@pytest.mark.parametrize("shape", [(20, 10), (10, 20)])
def test_large_blocks_are_decomposed_at_random(monkeypatch, shape):
    rng, asked = np.random.default_rng(14), []
    F = rng.normal(size=shape) @ np.diag(np.r_[9.0, 6.0, 4.0, np.full(shape[1] - 3, 1e-3)])
    real = features._randomized
    monkeypatch.setattr(features, "_randomized", lambda *given: asked.append(given) or real(*given))
    monkeypatch.setattr(features, "RANK", 3)
    exact = leading(F, 0)
    assert not asked
    for most, randomly in ((200, False), (199, True)):
        monkeypatch.setattr(features, "DENSE", most)
        found = leading(F, 0)
        assert bool(asked) == randomly
        np.testing.assert_allclose(np.abs(found.T @ exact), np.eye(3), atol=1e-6)
    assert asked[0][1:] == (13, 0)
    roots, R = real(F, 8, 0)
    assert bool((R[np.arange(len(R)), np.abs(R).argmax(axis=1)] > 0).all())
    np.testing.assert_allclose(roots[:3], np.linalg.svd(F, compute_uv=False)[:3], rtol=1e-6)
    monkeypatch.setattr(features, "RANK", 30)
    assert leading(F, 0).shape == (shape[1], 10)


def test_rounding_makes_no_variance_negative():
    model, _ = built(False)
    below = SimpleNamespace(product_variance=lambda *_: np.array([-1e-3, 0.5]))
    found = replace(model, spread=below).variance(np.array([0, 1]), np.array([0, 1]))
    noise = 0.3 * model.noises[0].variances[:2] * model.noises[1].variances[:2]
    np.testing.assert_allclose(found, (noise + np.array([0.0, 0.5])) * model.units.scale[:2] ** 2)


@pytest.mark.parametrize(("gains", "certain", "before", "used"), [
    ((0.9, 0.9, 1.5), False, 0.0, True), ((0.9, 0.9, 1.1), False, 0.0, False),
    ((0.1, 0.1, 0.1), True, 0.0, True), ((0.1, 0.1, 0.1), False, 2.0, True),
    ((0.1, 0.1, 0.1), False, (2.0, 0.0, 0.0), True),
])  # fmt: skip
def test_signals_must_pay_a_nat_for_each_scale(monkeypatch, gains, certain, before, used):
    problem = CompletionProblem.build(table(15), 2, biases=True, standard=True)
    found, _ = of_sides((problem.by_row, problem.by_col), (None, None), True, float, 0)
    likely = np.full((len(prior_of.GRID), 3), -9.0)
    likely[0], likely[4] = 0.0, gains
    monkeypatch.setattr(prior_of, "likelihoods", lambda *_: likely)
    rng = np.random.default_rng(15)
    W, A = rng.normal(size=(7, 3)), found.scores
    sums = Sums(7, W.sum(0), W.T @ W, 0.1 * np.eye(3), A.T @ W, 0.0)
    prior = Prior(W.mean(0), np.diag([0.5, 4.0, 25.0]))
    scales = np.full((1, 3), before)  # those that are used stay
    effects = prior_of.effects_of(prior, sums, found, scales, certain)
    np.testing.assert_allclose(effects.X @ effects.X.T, np.diag([2.0, 0.25, 0.04]), atol=1e-12)
    np.testing.assert_allclose(effects.scales, prior_of.GRID[4] if used else before)
    np.testing.assert_array_equal(scales, np.full((1, 3), before))


def test_pairs_are_kept():
    given = AllPairs(Precisions(2.0, 1.3), Precisions(3.0, 0.7), np.array([0.5, 0.0]),
                     np.array([0.25, 0.75]), 0.5, np.ones((3, 2)))  # fmt: skip
    arrays = given.arrays()
    back = AllPairs.from_arrays(arrays)
    assert (vars(back.rows), vars(back.cols)) == (vars(given.rows), vars(given.cols))
    for name in ("partners", "shares", "popular", "recent"):
        np.testing.assert_array_equal(getattr(back, name), getattr(given, name))
    assert AllPairs.from_arrays({}) is None
    del arrays["pairs_recent"]  # of models from before it was learned
    assert AllPairs.from_arrays(arrays).recent.shape == (0, 0)
    x = np.array([1.0, -2.0])
    np.testing.assert_allclose(back.blended(x), 0.5 * x + 0.5 * 1.0 * given.shares)
