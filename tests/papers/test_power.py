"""Checks have power: a broken formula of the library, or a null, never passes."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from overt import decay, equalize, linear, noise, penalty, relu, spectral
from overt.papers import items, oracles, verify
from overt.papers.beyond import deep as beyond_deep
from overt.papers.implicit_bias import training as tied_training
from overt.papers.one_way_jumps import minima
from overt.papers.rank_sets import ApproximateRankSet
from overt.papers.thesis import capacity, completion, training

BOUNDS = [name for name, item in items().items() if item.how == "bound evaluated"]


@pytest.mark.parametrize("name", BOUNDS)
def test_a_bound_or_an_algorithm_has_a_null_that_fails(name):
    (verdict,) = verify([name], seed=2)
    assert verdict.null_residual is not None
    assert verdict.null_residual > verdict.tolerance
    assert verdict.verdict == "holds"


def slightly_more(original):
    def wrong(*args, **options):
        return original(*args, **options) * 1.001

    return wrong


def more_units(original):
    return lambda y, width, drop_prob: original(y, width, drop_prob / 2)


def printed_ksupport(self, s):
    s = np.sort(np.abs(s))[::-1]
    return s[: self.k - 1] @ s[: self.k - 1] + s[self.k - 1 :].sum() ** 2


def printed_dropconnect(U, V, drop_prob, second_moment=None):
    return penalty.shallow(U, V, noise.Dropout(drop_prob), second_moment)


def interior_seed_probability(self, width):
    return 1 - (1 - self.drop_prob) ** (1 / self.block_size)


def first_order_nu(widths, drop_prob):
    return sum(q / (1 - q) / d for q, d in zip(drop_prob, widths, strict=True))


def soft_threshold(self, s, weight):
    return np.sign(s) * np.maximum(np.abs(s) - weight / 2, 0)


def ridge(self, s, weight):
    return s / (1 + weight)


def without_the_rest(original):
    """Return only the first critical point, or minimum, of those that are found."""

    def wrong(*args, **options):
        found = original(*args, **options)
        points = [replace(point, curvature=0.0) for point in found.points]
        return replace(found, points=points)

    return wrong


def only_the_origin(original):
    return lambda *args, **options: original(*args, **options)[:1]


def weaker_bounds(original):
    def wrong(**options):
        found = original(**options)
        return replace(
            found,
            full_error=0.03 * found.full_error,
            subnetwork_error=0.03 * found.subnetwork_error,
        )

    return wrong


UNSOLVED = SimpleNamespace(objective=1.0)
UNTRAINED = SimpleNamespace(full_error=np.ones(3), visited_error=np.ones(3))
NOTHING = SimpleNamespace(value=-1.0)
QUARTER = SimpleNamespace(lower=0.25, upper=0.26)

MUTATIONS = [
    (
        penalty,
        "shallow",
        slightly_more(penalty.shallow),
        "shallow-penalty relu-isotropic path-norm dropblock-penalty vanishing-penalty "
        "rotation-is-not-enough dropout-step dropblock-tight untied-equalized",
    ),
    (penalty, "tied", slightly_more(penalty.tied), "equalized-optimum"),
    (
        penalty,
        "hidden",
        slightly_more(penalty.hidden),
        "characteristic-matrix last-layer-dropout dropconnect-last-layer",
    ),
    (penalty, "dropconnect", printed_dropconnect, "dropconnect"),
    (penalty, "deep", slightly_more(penalty.deep), "deep-penalty deep-rescaling"),
    (
        penalty,
        "deep_terms",
        lambda weights, C=None: [np.float64(1.0)] * (len(weights) - 1),
        "deep-penalty deep-rescaling rank-one-equalized",
    ),
    (penalty, "sensing", slightly_more(penalty.sensing), "sensing-penalty"),
    (penalty, "completion", slightly_more(penalty.completion), "sensing-penalty"),
    (
        penalty,
        "path_norm",
        slightly_more(penalty.path_norm),
        "path-norm deep-rescaling",
    ),
    (
        noise.Dropout,
        "relative_variance",
        slightly_more(noise.Dropout.relative_variance),
        "shallow-penalty last-layer-dropout shallow-optimum tied-optimum "
        "tied-landscape",
    ),
    (
        noise.DropBlock,
        "characteristic",
        slightly_more(noise.DropBlock.characteristic),
        "dropblock-mask dropblock-penalty sliding-characteristic dropblock-few-blocks "
        "width-adjusted",
    ),
    (noise.DropBlock, "seed_probability", interior_seed_probability, "sliding-keep"),
    (
        noise.DropBlock,
        "mean",
        lambda self, width: np.full(np.prod(width), 1 - self.drop_prob),
        "sliding-characteristic",
    ),
    (
        spectral.KSupport,
        "value",
        printed_ksupport,
        "ksupport-value dropblock-lower-bound",
    ),
    (spectral.KSupport, "prox", ridge, "dropblock-optimum dropblock-balanced"),
    (
        spectral.KSupport,
        "prox",
        lambda self, s, weight: s * np.nan,
        "dropblock-optimum",
    ),
    (
        spectral.SquaredNuclear,
        "value",
        slightly_more(spectral.SquaredNuclear.value),
        "dropout-norm weighted-trace",
    ),
    (
        spectral.SquaredNuclear,
        "prox",
        soft_threshold,
        "deep-optimum dropconnect-optimum shrinkage-monotone solver-shrinkage",
    ),
    (spectral.SquaredNuclear, "prox", ridge, "shrinkage-monotone"),
    (
        spectral.SquaredNuclear,
        "prox",
        lambda self, s, weight: 0 * s,
        "deep-without-gap",
    ),
    (
        spectral,
        "nu",
        first_order_nu,
        "nu-product rank-one-equalized deep-single-output deep-optimum",
    ),
    (spectral, "nu", slightly_more(spectral.nu), "deep-lower-bound"),
    (spectral, "nu", lambda widths, probs: 0.3, "deep-single-output"),
    (
        spectral,
        "factorization_cost",
        slightly_more(spectral.factorization_cost),
        "representation-cost",
    ),
    (
        linear.DeepLinearNetwork,
        "solve",
        lambda self, rank=None: UNSOLVED,
        "deep-exact-optimum",
    ),
    (
        oracles,
        "deep_added_loss",
        slightly_more(oracles.deep_added_loss),
        "deep-spurious-minimum",
    ),
    (beyond_deep, "rank_jump", lambda widths, drop_prob: 0.9, "deep-rank-jump"),
    (linear.LinearNetwork, "bound", lambda self: 1e9, "any-noise-bound"),
    (
        relu,
        "one_output_optimum",
        more_units(relu.one_output_optimum),
        "relu-one-output",
    ),
    (relu, "train_lazy", lambda *a, **k: UNTRAINED, "dropout-training"),
    (
        relu,
        "escaping_weights",
        lambda C: (relu.TwoLayer([[1.0]], [[1.0]]), np.eye(1), np.ones(1)),
        "penalty-bounds-no-norm",
    ),
    (relu, "risk_bound", lambda *a, **k: NOTHING, "relu-generalization"),
    (capacity, "retentivity", lambda X: QUARTER, "relu-symmetrized"),
    (training, "data_margin", lambda *a, **k: QUARTER, "relu-margin"),
    (
        training,
        "required",
        lambda **k: training.guarantee(margin=0.3, dimension=2, width=1, steps=1),
        "dropout-iterations",
    ),
    (completion, "rademacher_constant", lambda shape: 1.5, "completion-bound"),
    (equalize, "equalizer", lambda U: np.eye(U.shape[1]), "equalizer"),
    (
        equalize,
        "equalize_product",
        lambda A, width: (np.eye(len(A), width), A.T @ np.eye(len(A), width)),
        "equalized-product sensing-gaussian",
    ),
    (
        tied_training,
        "landscape",
        without_the_rest(tied_training.landscape),
        "strict-saddle",
    ),
    (
        ApproximateRankSet,
        "contains",
        lambda self, weights: True,
        "decay-minimum-rank",
    ),
    (
        ApproximateRankSet,
        "learning_rates",
        lambda self, problem, depth, width, lam: {"rate": lam**15},
        "acceptable-rates",
    ),
    (minima, "minima", only_the_origin(minima.minima), "decay-vanishing"),
    (training, "guarantee", weaker_bounds(training.guarantee), "dropout-training"),
    (
        decay.layers,
        "imbalance",
        lambda weights: 1.0,
        "decay-critical-balance decay-balance-rate",
    ),
]
"""(module or class, public name, a wrong version, the checks that must notice it)."""


def notices(monkeypatch, owner, attribute, wrong, names):
    monkeypatch.setattr(owner, attribute, wrong)
    with np.errstate(all="ignore"):
        return [v.id for v in verify(names.split()) if v.verdict == "holds"]


@pytest.mark.parametrize(
    ("owner", "attribute", "wrong", "names"),
    MUTATIONS,
    ids=[
        f"{row[0].__name__}.{row[1]}-{number}" for number, row in enumerate(MUTATIONS)
    ],
)
def test_a_broken_formula_is_noticed(monkeypatch, owner, attribute, wrong, names):
    assert notices(monkeypatch, owner, attribute, wrong, names) == []


def test_training_and_attacks_that_do_nothing_are_noticed(monkeypatch):
    pytest.importorskip("torch")
    from overt.papers import leaky_networks

    names = "attack-finds adversarial-iterates"
    with monkeypatch.context() as patch:
        none = lambda net, x, y, nu, size, steps: x  # noqa: E731
        assert notices(patch, leaky_networks, "reflected_ascent", none, names) == []
    planned = leaky_networks.training_plan
    for changed in ({"train_steps": 700}, {"attack_work": 1e-3}):
        with monkeypatch.context() as patch:

            def fewer(changed=changed, **given):
                return replace(planned(**given), **changed)

            names = "adversarial-iterates"
            assert notices(patch, leaky_networks, "training_plan", fewer, names) == []


def test_a_broken_network_or_attack_is_noticed(monkeypatch):
    torch = pytest.importorskip("torch")
    from overt import robust

    def attack(self, model, x, y, **options):
        return SimpleNamespace(x=torch.as_tensor(x), success=True)

    names = "linear-attack greedy-reflection"
    assert notices(monkeypatch, robust.PGD, "__call__", attack, names) == []
