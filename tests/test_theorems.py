"""The table of statements: it holds, it is complete, and it notices broken formulas."""

from __future__ import annotations

import ast
import json
import math
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import overt
from overt import InputError, MissingExtraError, equalize, noise, penalty, relu, spectral, theorems
from overt.cli import app
from overt.completion import bounds
from overt.decay import layers
from overt.linear import landscape, sharing
from overt.relu import reference
from overt.robust.certificates import leaky
from overt.theorems import Evidence, Theorem, _symbolic, distinct, registered, verify
from overt.theorems import base as table
from overt.theorems._latex import latex, tex
from overt.theorems.decay import network

try:
    import torch
except ModuleNotFoundError:
    torch: Any = None

CORE = (
    "noises", "penalties", "norms", "balance", "optima", "deep", "linear",
    "shrinkage", "parametrization", "flows", "absorbing", "lazy", "adversarial",
    "completion", "decay", "relu",
)  # fmt: skip
IDS = list(registered())
CORRECTED = [name for name, statement in registered().items() if statement.correction]


def check(name, **options):
    return next(verify([name], **options))


@pytest.mark.parametrize("name", IDS)
def test_statement_holds(name):
    verdict = check(name)
    assert verdict.verdict == "holds", verdict
    assert verdict.residual <= verdict.tolerance
    assert (verdict.printed_residual is not None) == (name in CORRECTED)
    json.dumps(verdict.to_dict(), allow_nan=False)


@pytest.mark.parametrize("name", CORRECTED)
def test_what_was_printed_fails_against_the_same_oracle(name):
    verdict = check(name, seed=1)
    assert verdict.printed_residual > verdict.tolerance
    assert verdict.correction


def test_table_is_complete_and_named_consistently():
    statements = registered().values()
    assert len(statements) >= 45
    assert len(CORRECTED) >= 12
    assert "path-norm" in IDS
    for statement in statements:
        assert re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", statement.id)
        assert re.match(
            r"(Implicit bias of dropout|Structured dropout|Thesis|One-way jumps), \S"
            r"|overt \(new\)$|[A-Z][\w ]+ (19|20)\d\d\b",
            statement.source,
        )
        for text in (statement.claim, statement.assumes, statement.correction or "ok"):
            assert text == text.strip()
            assert "  " not in text
            assert not text.endswith(".")
        assert not statement.claim[0].islower()


def test_modules_register_in_the_order_of_the_argument():
    order = ["characteristic-matrix", "shallow-penalty", "dropout-norm", "equalizer"]
    assert [name for name in IDS if name in {*order, "shallow-optimum"}] == [
        *order,
        "shallow-optimum",
    ]


@pytest.mark.parametrize("name", ["_oracles", "_descent"])
def test_oracles_share_no_code_with_what_they_grade(name):
    tree = ast.parse((Path(table.__file__).parent / f"{name}.py").read_text(encoding="utf-8"))
    imported = {
        node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.module
    } | {
        alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.Import)
        for alias in node.names
    }
    ours = {module for module in imported if module.split(".")[0] == "overt"}
    assert ours <= {"overt._types", "overt.theorems._oracles", "overt.theorems.base"}


def test_unknown_ids_and_sizes_are_refused():
    with pytest.raises(InputError, match=r"unknown theorem zzz; known are .*path-norm"):
        verify(["path-norm", "zzz"])
    with pytest.raises(InputError, match=r"unknown theorem path-nrm; did you mean path-norm"):
        verify(["path-nrm"])
    with pytest.raises(InputError, match="'small', 'medium', 'large'"):
        verify(size="huge")


def test_same_id_twice_is_refused():
    with pytest.raises(InputError, match="path-norm"):
        table.theorem("path-norm", source="overt (new)", claim="Twice")(lambda scale, rng: None)


def test_verdicts_are_reproducible_and_depend_on_the_seed():
    def residuals(seed):
        names = ["mask-moments", "shallow-optimum", "generalized-penalty"]
        return [{**v.to_dict(), "seconds": 0} for v in verify(names, seed=seed)]

    assert residuals(3) == residuals(3)
    assert residuals(3) != residuals(4)


def test_larger_sizes_hold_too():
    names = ["deep-penalty", "ksupport-value", "sliding-characteristic", "tied-optimum"]
    for size in ("medium", "large"):
        assert {v.verdict for v in verify(names, size=size)} == {"holds"}


def register(monkeypatch, evidence):
    def measure(scale, rng):
        return evidence(scale, rng)

    statement = Theorem("made-up", "overt (new)", "Made up", "nothing", None, measure)
    monkeypatch.setitem(table._registry, "made-up", statement)


def test_a_check_that_raises_is_an_error(monkeypatch):
    register(monkeypatch, lambda scale, rng: 1 / 0)
    verdict = check("made-up")
    assert verdict.verdict == "error"
    assert verdict.residual is None
    assert "ZeroDivisionError" in verdict.detail


def test_a_check_that_needs_a_missing_package_is_skipped(monkeypatch):
    def needs_torch(scale, rng):
        raise MissingExtraError("torch", "torch")

    register(monkeypatch, needs_torch)
    verdict = check("made-up")
    assert verdict.verdict == "skipped"
    assert "overt[torch]" in verdict.detail


@pytest.mark.parametrize(
    ("evidence", "verdict"),
    [
        (Evidence(1e-12, 1e-10, ""), "holds"),
        (Evidence(1e-9, 1e-10, ""), "fails"),
        (Evidence(math.nan, 1e-10, ""), "fails"),
        (Evidence(1e-12, 1e-10, "", printed=0.5), "holds"),
        (Evidence(1e-12, 1e-10, "", printed=1e-11), "fails"),
    ],
)
def test_verdict_follows_the_evidence(monkeypatch, evidence, verdict):
    register(monkeypatch, lambda scale, rng: evidence)
    assert check("made-up").verdict == verdict


def slightly_more(original):
    def wrong(*args, **options):
        return original(*args, **options) * 1.001

    return wrong


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


FarAway = SimpleNamespace(points=[SimpleNamespace(U=5 * np.ones((4, 3)))])
Wrong = SimpleNamespace(rank=1, matrix=np.array([[1.0, 2.0], [3.0, 9.0]]), loss=0.0)
Untrained = SimpleNamespace(full_error=np.ones(3), visited_error=np.ones(3))
Complex = SimpleNamespace(value=2.0, standard_error=0.0, upper=1.0, lower=3.0)
Quarter = SimpleNamespace(lower=0.25, upper=0.26)
Nothing = SimpleNamespace(value=-1.0)
Returned = SimpleNamespace(ratio=np.array([[0.01, 0.9], [0.9, 0.01]]), weights=[np.ones((2, 2, 2))])


MUTATIONS = [
    (penalty, "shallow", slightly_more(penalty.shallow), ["shallow-penalty", "path-norm",
     "dropblock-penalty", "vanishing-penalty", "rescaling-invariance", "rotation-is-not-enough"]),
    (penalty, "tied", slightly_more(penalty.tied), ["equalized-optimum"]),
    (penalty, "hidden", slightly_more(penalty.hidden), ["characteristic-matrix",
     "last-layer-dropout", "dropconnect-last-layer"]),
    (penalty, "hidden", lambda U, A, noise: 0.8 * np.sum(U**2), ["generalized-penalty"]),
    (penalty, "predictive_variance", slightly_more(penalty.predictive_variance),
     ["predictive-variance"]),
    (penalty, "relu_isotropic", lambda U, V, q: penalty.shallow(U, V, noise.Dropout(q)),
     ["relu-isotropic"]),
    (penalty, "dropconnect", printed_dropconnect, ["dropconnect"]),
    (penalty, "deep", slightly_more(penalty.deep), ["deep-penalty"]),
    (penalty, "deep_terms", lambda weights, C=None: [np.float64(1.0)] * (len(weights) - 1),
     ["deep-penalty", "deep-rescaling", "rank-one-equalized"]),
    (penalty, "sensing", slightly_more(penalty.sensing), ["sensing-penalty"]),
    (penalty, "completion", slightly_more(penalty.completion), ["completion-penalty"]),
    (penalty, "path_norm", slightly_more(penalty.path_norm), ["path-norm", "deep-rescaling"]),
    (noise.Dropout, "relative_variance", slightly_more(noise.Dropout.relative_variance),
     ["shallow-penalty", "last-layer-dropout", "width-adjusted"]),
    (noise.DropBlock, "characteristic", slightly_more(noise.DropBlock.characteristic),
     ["dropblock-mask", "dropblock-penalty", "sliding-characteristic", "dropblock-few-blocks"]),
    (noise.DropBlock, "seed_probability", interior_seed_probability, ["sliding-keep"]),
    (noise.DropBlock, "mean", lambda self, width: np.full(np.prod(width), 1 - self.drop_prob),
     ["sliding-coverage", "sliding-characteristic"]),
    (noise.Dropout, "sample", lambda self, width, size=1, seed=None: np.ones((size, width)),
     ["mask-moments"]),
    (spectral.KSupport, "value", printed_ksupport, ["ksupport-value", "dropblock-lower-bound"]),
    (spectral.KSupport, "value", slightly_more(spectral.KSupport.value), ["ksupport-limits"]),
    (spectral.KSupport, "dual", slightly_more(spectral.KSupport.dual), ["spectral-duality"]),
    (spectral.KSupport, "prox", lambda self, s, weight: s / (1 + weight), ["dropblock-optimum"]),
    (spectral.KSupport, "prox", lambda self, s, weight: s * np.nan, ["dropblock-optimum"]),
    (spectral.SquaredNuclear, "value", slightly_more(spectral.SquaredNuclear.value),
     ["dropout-norm", "dropconnect-norm", "weighted-trace"]),
    (spectral.SquaredNuclear, "prox", soft_threshold, ["shallow-optimum", "tied-optimum",
     "tied-landscape", "anisotropic-optimum", "deep-optimum"]),
    (
        spectral.norms,
        "shrinkage_rank",
        lambda s, h, w: len(s),
        ["shrinkage-prefix", "shallow-optimum"],
    ),
    (spectral, "nu", first_order_nu, ["nu-product", "rank-one-equalized", "deep-single-output",
     "deep-optimum"]),
    (spectral, "nu", slightly_more(spectral.nu), ["deep-lower-bound"]),
    (spectral, "factorization_cost", slightly_more(spectral.factorization_cost),
     ["representation-cost"]),
    (equalize, "_equalizing_rotation", lambda diagonal: np.eye(len(diagonal)),
     ["equalizer", "equalized-product", "weighted-trace", "rotation-is-not-enough"]),
    (equalize, "hadamard_equalizer", lambda U: np.eye(U.shape[1]), ["hadamard-equalizer"]),
    (penalty, "shallow", slightly_more(penalty.shallow), ["dropout-step", "dropblock-tight"]),
    (landscape, "_outside", lambda *given: (0.0, given[2]), ["strict-saddle"]),
    (overt.DeepLinearNetwork, "solve", lambda self: SimpleNamespace(objective=1.0),
     ["deep-exact-optimum"]),
    (theorems._oracles, "deep_added_loss", slightly_more(theorems._oracles.deep_added_loss),
     ["deep-spurious-minimum"]),
    (theorems.beyond, "rank_jump", lambda widths, drop_prob: 0.9, ["deep-rank-jump"]),
    (overt.LinearNetwork, "bound", lambda self: 1e9, ["any-noise-bound"]),
    (sharing, "_signs", lambda count, k, seed: np.ones((count, k)), ["dropblock-tight"]),
    (equalize, "importance", lambda U, V, C=None: np.arange(1.0, 4.0), ["per-unit-optimum"]),
    (spectral.SquaredNuclear, "prox", soft_threshold, ["dropconnect-optimum"]),
    (spectral.SquaredNuclear, "dual", lambda self, s: 0.0, ["certificate"]),
    (spectral.SquaredNuclear, "prox", lambda self, s, weight: 0 * s, ["deep-without-gap"]),
    (penalty, "shallow", slightly_more(penalty.shallow), ["untied-equalized"]),
    (spectral.SquaredNuclear, "prox", soft_threshold, ["shrinkage-monotone", "shrinkage-inverse",
     "algorithm-3"]),
    (spectral.SquaredNuclear, "prox", lambda self, s, w: s / (1 + w), ["sensing-without-factors"]),
    (spectral.KSupport, "prox", lambda self, s, weight: s / (1 + weight), ["dropblock-balanced"]),
    (theorems.shrinkage, "landscape", lambda M, r, lam: FarAway, ["critical-below-target"]),
    (penalty, "deep", slightly_more(penalty.deep), ["deep-spectral"]),
    (spectral, "nu", slightly_more(spectral.nu), ["deep-envelope"]),
    (spectral, "nu", lambda widths, probs: 0.3, ["deep-scaling"]),
    (penalty, "sensing", lambda U, V, A, q: 2 * np.sum(U**2) * np.sum(V**2), ["sensing-gaussian"]),
    (np, "kron", lambda a, b: np.zeros((8, 12)), ["sensing-convolution"]),
    (np, "clip", lambda x, low, high: 2 * np.asarray(x), ["loss-contraction"]),
    (theorems.flows, "minima", lambda *a, **k: [Wrong], ["decay-correspondence",
     "decay-vanishing"]),
    (theorems.flows, "brentq", lambda f, a, b: 0.4, ["decay-saddles"]),
    (theorems.flows, "network", lambda p, L, w, lam: network(p, L, w, 0.3), [
        "decay-no-underestimate", "decay-polyak"]),
    (theorems.absorbing, "sgd_step", lambda W, *rest: [2 * w for w in W], ["decay-bounded",
     "decay-rank-step"]),
    (theorems.absorbing, "soft_rank", lambda W, alpha: 1 / len(W), ["decay-product-rank"]),
    (theorems.absorbing, "sgd_step", lambda W, *rest: W, ["decay-reached"]),
    (math, "log", lambda x: 1e-6, ["lazy-start", "lazy-margin", "lazy-flips",
     "subnetwork-width"]),
    (np, "logaddexp", lambda a, b: 2 + 2 * np.abs(b) / math.log(2), ["logistic-linear"]),
    (relu, "train_lazy", lambda *a, **k: Untrained, ["dropout-training"]),
    (leaky, "train_online", lambda net, *rest: iter([net] * 30), ["adversarial-iterates"]),
    (bounds, "rademacher_constant", lambda shape: 1.5, ["completion-bound"]),
    (theorems.completion, "_solve", lambda V, y, lam: np.ones(V.shape[1]), ["completion-rows"]),
    (theorems.completion, "_learned", lambda V, *rest: np.ones(V.shape[1]), ["completion-learned"]),
    (layers, "imbalance", lambda weights: 1.0, ["decay-critical-balance", "decay-balance-rate"]),
    (theorems.decay, "minima", lambda *a, **k: [Wrong], ["decay-minima", "decay-minimum-rank"]),
    (theorems.decay, "soft_rank", lambda weights, alpha: 2.0, ["decay-closed"]),
    (theorems.decay, "simulate", lambda *a, **k: Returned, ["decay-one-way"]),
    (relu, "escaping_weights", lambda C: (relu.TwoLayer([[1.0]], [[1.0]]), np.eye(1), np.ones(1)),
     ["penalty-bounds-no-norm"]),
    (theorems.relu, "_complexities", lambda scale, rng: [Complex], ["relu-rademacher",
     "relu-rademacher-lower"]),
    (relu, "risk_bound", lambda *a, **k: Nothing, ["relu-generalization"]),
    (relu, "retentivity", lambda X: Quarter, ["relu-symmetrized"]),
    (relu, "margin", lambda *a, **k: Quarter, ["relu-margin"]),
    (np, "logaddexp", lambda a, b: -np.logaddexp2(a, b), ["dropout-jensen"]),
    (reference, "descend", lambda *given: given[-1].__setitem__(0, -50), ["dropout-regret"]),
    (relu, "required", lambda **k: relu.guarantee(margin=0.3, dimension=2, width=1, steps=1),
     ["dropout-iterations"]),
]  # fmt: skip


def of_torch():
    """Mutations of what needs PyTorch, imported on first use."""
    from overt import nn, robust
    from overt.linear import last_layer as lower
    from overt.nn import compression
    from overt.nn.compression import cutting
    from overt.robust import exact
    from overt.robust.certificates import guarantees
    from overt.theorems import audit

    value, blind = SimpleNamespace(value=np.float64(1.0)), lambda *a, **k: np.array([9.0, 9.0, 9.0])
    return [
        (
            nn,
            "explicit_penalty",
            lambda *a: value,
            ["nn-last-layer", "nn-dropout-factor", "nn-dropconnect", "nn-path-norm"],
        ),
        (nn, "predictive_moments", lambda *a, **k: value, ["nn-variance"]),
        (nn, "DropBlock2d", lambda *a, **k: lambda x: 0 * x, ["nn-sliding-blocks"]),
        (lower, "squared_bound", lambda *a: (9.0, 0), ["audit-last-layer"]),
        (lower, "class_entropy", lambda f: 9.0, ["audit-class-floor"]),
        (lower, "class_bound", lambda *a, **k: 9.0, ["audit-class-size"]),
        (audit, "spectral_measure", lambda weights: 9e9, ["audit-norm-measures"]),
        (cutting, "shrink", lambda model, *a: model, ["compress-expected-loss"]),
        (
            compression,
            "compress",
            lambda model, *a, **k: (model, value),
            ["compress-low-rank", "compress-data-rank"],
        ),
        (
            robust.PGD,
            "__call__",
            lambda self, model, x, y, **k: SimpleNamespace(x=torch.as_tensor(x), success=True),
            ["linear-attack", "greedy-reflection"],
        ),
        (torch.autograd, "grad", lambda *a: (torch.zeros(2001),), ["reflected-gradient"]),
        (leaky.LeakyNetwork, "input_gradient", lambda self, x: 9 * x, ["gradient-drift"]),
        (leaky, "reflected_ascent", blind, ["attack-finds"]),
        (leaky, "train_online", lambda net, *a: iter([net] * 60), ["adversarial-training-steps"]),
        (
            guarantees,
            "training_plan_for_beta",
            lambda **k: SimpleNamespace(kappa=1.0, attack_work=1.0),
            ["attack-steps-for-beta"],
        ),
        (
            exact,
            "two_layer",
            lambda *a, **k: SimpleNamespace(
                fooled=np.zeros(25, bool), undecided=np.zeros(25, bool)
            ),
            ["attack-against-exact"],
        ),
    ]


TORCH_MUTATIONS = of_torch() if torch is not None else []
MUTATIONS += TORCH_MUTATIONS


@pytest.mark.parametrize(
    ("owner", "attribute", "wrong", "names"),
    MUTATIONS,
    ids=[f"{owner.__name__}.{attribute}-{i}" for i, (owner, attribute, *_) in enumerate(MUTATIONS)],
)
def test_a_broken_formula_is_noticed(monkeypatch, owner, attribute, wrong, names):
    monkeypatch.setattr(owner, attribute, wrong)
    with np.errstate(all="ignore"):
        holding = [verdict.id for verdict in verify(names) if verdict.verdict == "holds"]
    assert not holding


def test_every_statement_about_overt_is_hit_by_a_mutation():
    hit = {name for *_, names in MUTATIONS for name in names}
    core = {f"overt.theorems.{name}" for name in CORE}
    stated = {
        name for name, s in registered().items() if TORCH_MUTATIONS or s.check.__module__ in core
    }
    assert stated <= hit


def test_every_statement_says_how_far_it_is_checked():
    kinds = {name: statement.kind for name, statement in registered().items()}
    assert set(kinds.values()) == {"proved", "enclosed", "sampled"}
    assert set(_symbolic.PROVED) <= set(kinds)
    assert kinds["shallow-penalty"] == "proved"
    assert kinds["shallow-optimum"] == "sampled"


@pytest.mark.parametrize("key", ["units", "algebra", "rows", "constant"])
def test_proofs_prove_and_can_fail(key, monkeypatch):
    pytest.importorskip("sympy")
    pytest.importorskip("flint")
    assert _symbolic.prove(key)
    monkeypatch.setitem(_symbolic.PROOFS, key, (lambda: iter([1]), ()))
    assert not _symbolic.prove(key)


def test_corrections_are_counted_once():
    assert distinct(registered().values()) < len(CORRECTED)
    pairs = [registered()[name] for name in ("last-layer-dropout", "nn-dropout-factor")]
    assert distinct(pairs) == 1


def test_list_and_cards_are_shown():
    listed = CliRunner().invoke(app, ["verify", "--list"], env={"COLUMNS": "200"})
    assert listed.exit_code == 0
    assert "path-norm" in listed.output
    card = CliRunner().invoke(app, ["verify", "algorithm-3", "--card"]).output
    for part in ("Thesis, Algorithm 3", "claim", "1 + lam j", "as printed", "oracle", "holds"):
        assert part in card
    assert "sampled" in card


def test_every_statement_has_a_formula_in_its_words_or_beside_them():
    to_mathml = pytest.importorskip("docutils.utils.math.latex2mathml").tex2mathml
    for statement in registered().values():
        assert "$" in tex(statement.claim) or statement.formula, statement.id
        assert "<math" in to_mathml(statement.formula or "x")
    assert registered()["equalizer"].formula in latex(registered()["equalizer"])


def test_statements_are_printed_as_latex_and_bibtex():
    shown = CliRunner().invoke(app, ["verify", "dropconnect", "certificate", "--latex", "--bibtex"])
    assert shown.exit_code == 0
    for part in (
        r"\begin{theorem}[Structured dropout, Theorem 4.1]\label{dropconnect}",
        r"$\lambda \sum_k |u_k|^2 v_k^\top \operatorname{diag}(C) v_k$, which",
        r"\begin{remark}As printed: $C = \mathbb{E}[x x^\top ]$ is printed",
        "@inproceedings{pal2020structured,",
    ):
        assert part in shown.output
    assert shown.output.count("@") == 1
    none = CliRunner().invoke(app, ["verify", "certificate", "--bibtex"]).output
    assert none == "% none of the four papers: overt (new)\n"


def test_every_formula_is_valid_tex_and_no_formula_is_left_in_prose():
    to_mathml = pytest.importorskip("docutils.utils.math.latex2mathml").tex2mathml
    for statement in registered().values():
        for text in (statement.claim, statement.assumes, statement.correction or ""):
            prose, formulas = tex(text).split("$")[::2], tex(text).split("$")[1::2]
            assert len(prose) == len(formulas) + 1
            assert not [p for p in prose if re.search(r"(?<!\\)[_^&%#]|[<>|=]", p)], tex(text)
            for formula in formulas:
                to_mathml(formula)
