"""Proofs: tight where the optimum is known, never false, and checked by code of their own."""

from __future__ import annotations

import copy
import json
import subprocess
import sys

import numpy as np
import pytest

import overt
from overt.proofs import checker, prove

RNG = np.random.default_rng(0)
M = RNG.standard_normal((8, 6))
ROOT = RNG.standard_normal((6, 6))
C = ROOT @ ROOT.T / 6
X = RNG.standard_normal((30, 6))
Y = X @ RNG.standard_normal((6, 4)) + 0.1 * RNG.standard_normal((30, 4))
DEAD = np.array([0, 1, 1, 1, 1, 1])
CODED = np.c_[np.eye(3)[RNG.integers(0, 3, 30)], np.ones(30), X[:, 0], X[:, 0]]


def shallow(*args, **kwargs):
    net = overt.LinearNetwork(*args, **kwargs)
    best = net.solve()
    return net, (best.U, best.V)


def tied(*args, **kwargs):
    net = overt.TiedAutoencoder(*args, **kwargs)
    return net, (net.solve().U,)


def deep(*args, **kwargs):
    net = overt.DeepLinearNetwork(*args, **kwargs)
    return net, (net.solve().weights,)


drop = overt.Dropout(0.3)
COVARIANCE = overt.CovarianceNoise(np.ones(4), ROOT[:4] @ ROOT[:4].T / 6)
EXCHANGEABLE = overt.CovarianceNoise(np.full(5, 0.7), 0.3 * np.eye(5) + 0.1)
CASES = {  # a network at its optimum, and the relative gap that must be proved
    "dropout": (lambda: shallow(M, 8, drop), 1e-12),
    "narrow": (lambda: shallow(M, 2, overt.Dropout(0.1)), 1e-12),
    "repeated": (lambda: shallow(np.eye(6), 4, drop), 1e-12),
    "orthogonal": (lambda: shallow(np.linalg.qr(ROOT)[0], 6, drop), 1e-12),
    "per unit": (lambda: shallow(M, 4, overt.Dropout([0.1, 0.5, 0.3, 0.2])), 1e-9),
    "noise-free units": (
        lambda: shallow(M, 4, overt.Dropout([0.1, 0.0, 0.3, 0.0])),
        1e-9,
    ),
    "blocks": (lambda: shallow(M, 16, overt.DropBlock(0.3, 2)), 1e-12),
    "most kept": (
        lambda: shallow(
            np.diag([6.0, 5.0, 4.5, 0.9, 0.8]), 20, overt.DropBlock(0.3, 4)
        ),
        1e-12,
    ),
    "second moment": (lambda: shallow(M, 5, drop, second_moment=C), 1e-12),
    "moment, blocks": (
        lambda: shallow(M, 16, overt.DropBlock(0.3, 2), second_moment=C),
        1e-12,
    ),
    "dropconnect": (lambda: shallow(M, 6, overt.DropConnect(0.3)), 1e-12),
    "correlated": (
        lambda: shallow(M, 8, overt.DropConnect(0.3), second_moment=C),
        1e-9,
    ),
    "data": (lambda: shallow(X=X, Y=Y, width=5, noise=drop), 1e-9),
    "few data": (lambda: shallow(X=X[:4], Y=Y[:4], width=5, noise=drop), 1e-9),
    "data, weights": (
        lambda: shallow(X=X, Y=Y, width=6, noise=overt.DropConnect(0.3)),
        1e-9,
    ),
    "orthogonal, weights": (
        lambda: shallow(
            X=np.linalg.qr(X)[0], Y=Y, width=6, noise=overt.DropConnect(0.3)
        ),
        1e-12,
    ),
    "dead input": (
        lambda: shallow(X=X * DEAD, Y=Y, width=6, noise=overt.DropConnect(0.3)),
        1e-9,
    ),
    "tied": (lambda: tied(ROOT + 3 * np.eye(6), 6, drop), 1e-12),
    "tied data": (lambda: tied(X=X, width=6, noise=overt.Dropout(0.3)), 0.1),
    "gaussian": (lambda: shallow(M, 6, overt.Dropout(strength=0.4)), 1e-10),
    "keep exactly": (lambda: shallow(M, 6, overt.KeepExactly(4)), 1e-10),
    "one at a time": (
        lambda: shallow(M, 5, overt.KeepExactly(1), second_moment=C),
        1e-10,
    ),
    "exchangeable": (lambda: shallow(X=X, Y=Y, width=5, noise=EXCHANGEABLE), 1e-10),
    "sliding": (lambda: shallow(M, 6, overt.DropBlock(0.4, 2, "sliding")), 0.5),
    "any covariance": (lambda: shallow(M, 4, COVARIANCE), 0.1),
    "tied, kept": (lambda: tied(ROOT + 3 * np.eye(6), 6, overt.KeepExactly(4)), 1e-10),
    "deep": (lambda: deep(np.diag([4.0, 1.0, 0.5]), (3, 4), (0.5, 0.4)), 1e-12),
    "deep, rank two": (
        lambda: deep(np.diag([1.0, 0.9, 0.3]), (4, 3), (1 / 3, 0.2)),
        1e-13,
    ),
    "deep, three layers": (
        lambda: deep(np.diag([1.0, 0.8, 0.7]), (9, 8, 7), 0.1),
        1e-13,
    ),
    "deep data": (lambda: deep(X=X, Y=Y[:, :1], widths=(3, 3), drop_prob=0.5), 1e-12),
}


@pytest.mark.parametrize("name", CASES)
def test_optima_are_proved_and_the_checker_agrees(name, tmp_path):
    build, within = CASES[name]
    net, weights = build()
    proof = net.certify(*weights, rigorous=True)
    assert 0 <= proof.relative_gap <= within
    stored = json.loads(proof.save(tmp_path / "proof.json").read_text())
    assert proof.statement == f"Proved: {checker.check(stored)}."
    ordinary = net.certify(*weights)
    # Float64 rounds, above all for steep data; for units of their own its bound may be weaker.
    assert proof.objective == pytest.approx(ordinary.objective, rel=1e-6)
    assert proof.lower_bound >= ordinary.lower_bound * (1 - 1e-6)
    assert "within" in proof.statement
    assert ("characteristic" in proof.statement) == (
        stored["noise"]["kind"] == "matrix"
    )


def test_noise_that_spares_units_beside_a_shared_part_is_proved():
    """Gamma = .3 11' + diag(0, 0, .4) is singular; its bound was proved to be about 0."""
    Gamma = 0.3 * np.ones((3, 3))
    Gamma[2, 2] += 0.4
    net = overt.LinearNetwork(M, 3, overt.CovarianceNoise(np.ones(3), Gamma))
    best = net.solve()
    assert best.status == "optimal"
    proof = net.certify(best.U, best.V, rigorous=True)
    assert 0 <= proof.relative_gap <= 1e-12


def test_relative_gaps_are_those_of_bounds_or_of_a_share_of_the_target():
    for drop_prob, factor in ((0.3, 1.1), (0.0, 1.001)):
        net = overt.LinearNetwork(M, 6, overt.Dropout(drop_prob))
        best = net.solve()
        proof = net.certify(factor * best.U, best.V, rigorous=True)
        least = max(proof.lower_bound, 1e-10 * np.sum(M**2))
        assert proof.gap == pytest.approx(proof.objective - proof.lower_bound)
        assert proof.relative_gap == pytest.approx(proof.gap / least) != 0
    nothing = overt.LinearNetwork(0 * M, 6, drop)
    zeros = [np.zeros_like(W) for W in (best.U, best.V)]
    assert nothing.certify(*zeros, rigorous=True).relative_gap == 0


def random_problem(rng):
    """A network whose optimum has a closed form, in float64."""
    m, n, d = rng.integers(1, 7, 3)
    p = rng.choice([0.0, 1e-6, 0.1, 0.5, 0.9])
    T, how = rng.standard_normal((m, n)) * 10.0 ** rng.integers(-3, 4), rng.integers(7)
    if how == 0:
        return overt.LinearNetwork(T, d, overt.Dropout(p))
    if how == 1:
        A = rng.standard_normal((n, n + 1))
        return overt.LinearNetwork(T, d, overt.Dropout(p), second_moment=A @ A.T)
    if how == 2:
        samples = rng.integers(1, 20)
        X, Y = rng.standard_normal((samples, n)), rng.standard_normal((samples, m))
        return overt.LinearNetwork(X=X, Y=Y, width=d, noise=overt.Dropout(p))
    if how == 3:
        return overt.LinearNetwork(
            T, d, overt.DropConnect(p), second_moment=np.diag(rng.random(n))
        )
    if how == 4:
        return overt.LinearNetwork(T, d, overt.KeepExactly(int(rng.integers(1, d + 1))))
    if how == 5:
        K = rng.standard_normal((d, d)) / d + rng.choice([0.0, 1.0]) * np.eye(d)
        return overt.LinearNetwork(T, d, overt.CovarianceNoise(np.ones(d), K @ K.T))
    return overt.LinearNetwork(T, d * 2, overt.DropBlock(p, 2))


@pytest.mark.parametrize("seed", range(200))
def test_no_wrong_weights_or_multipliers_prove_anything_false(seed):
    """Against the best objective known, which no valid bound exceeds."""
    rng = np.random.default_rng(seed)
    net = random_problem(rng)
    best, scale = net.solve(), net.effect.regression.scale
    U = best.U + rng.choice([0.0, 1e-8, 1.0]) * rng.standard_normal(best.U.shape)
    V = best.V + rng.choice([0.0, 1e-8, 1.0]) * rng.standard_normal(best.V.shape)
    if net.noise.relative_variance(net.width).min() > 0:
        size = rng.choice([1e-3, 1.0, 1e3], p=[0.3, 0.4, 0.3]) * float(
            np.abs(best.product).max()
        )
        thresholds = np.sort(size * rng.random(net.width))
    else:
        thresholds = np.zeros(net.width)
    given = net.effect.regression.given
    own = {"thresholds": thresholds}
    for propose in (net.effect.witness, lambda s: {**net.effect.witness(s), **own}):
        try:
            proof = prove("two-layer", net.noise, (U, V), given, propose)
        except overt.InputError:  # thresholds where costs were proposed that are zero
            assert propose != net.effect.witness
            continue
        assert proof.lower_bound <= best.objective + 1e-12 * scale
        assert proof.objective == pytest.approx(
            net.objective(U, V), rel=1e-9, abs=1e-11 * scale
        )
        assert proof.gap >= 0
        checker.check(proof.document)


@pytest.mark.parametrize("seed", range(20))
def test_wrong_multipliers_of_dropconnect_only_loosen(seed):
    rng = np.random.default_rng(seed)
    net, weights = CASES["correlated"][0]()
    scale = rng.choice([1e-3, 1.0, 1e3])
    wrong = {"multiplier": scale * rng.standard_normal(M.shape)}
    given = net.effect.regression.given
    proof = prove("two-layer", net.noise, weights, given, lambda s: wrong)
    assert proof.lower_bound < net.solve().objective
    checker.check(proof.document)


def leaves(value, path=()):
    """Every number and word of a file, by its path."""
    if isinstance(value, dict | list):
        for key in value if isinstance(value, dict) else range(len(value)):
            yield from leaves(value[key], (*path, key))
    else:
        yield path, value


def changed(value):
    if isinstance(value, str) and value.startswith(("0x", "-0x")):
        return "0x1.8p+1" if value != "0x1.8p+1" else "0x1.9p+1"
    return value + 1 if isinstance(value, int) else f"{value}x"


@pytest.mark.parametrize(
    "name",
    [
        "dropout",
        "correlated",
        "deep",
        "deep, rank two",
        "tied",
        "sliding",
        "one at a time",
    ],
)
def test_every_tampered_file_is_refused(name):
    net, weights = CASES[name][0]()
    file = net.certify(*weights, rigorous=True).document
    checker.check(file)
    seen = set()
    for path, value in leaves(file):
        kind = tuple(key for key in path if isinstance(key, str))
        if value is None or kind in seen:
            continue
        seen.add(kind)
        tampered = copy.deepcopy(file)
        place = tampered
        for key in path[:-1]:
            place = place[key]
        place[path[-1]] = changed(value)
        with pytest.raises(checker.RefusedError):
            checker.check(tampered)
        if kind == ("sha256",) or kind == ("claim", "gap"):
            continue
        tampered["sha256"] = checker.digest(tampered)  # by someone who knows
        if kind[:1] == ("witness",):
            # A diagonal matrix is shown to be positive by any scaling but a singular one.
            place[path[-1]] = "0x0p+0" if kind[1] == "dominated" else "0x1p+60"
            if kind[1] == "shares":  # another dual point may still prove the claim
                del tampered["witness"]["shares"][1:]
            tampered["sha256"] = checker.digest(tampered)
        if kind == ("claim", "at_most") and checker.number(
            changed(value)
        ) > checker.number(value):
            place[path[-1]] = "-0x1p+0"
            tampered["sha256"] = checker.digest(tampered)
        if kind == ("claim", "at_least"):
            place[path[-1]] = file["claim"]["at_most"].replace("p", "1p")
            tampered["sha256"] = checker.digest(tampered)
        with pytest.raises(checker.RefusedError):
            checker.check(tampered)


def test_dependent_inputs_have_the_bound_of_free_outputs():
    net, weights = shallow(X=CODED, Y=Y, width=5, noise=drop)
    proof = net.certify(*weights, rigorous=True)
    assert 0 <= proof.lower_bound <= net.certify(*weights).lower_bound
    checker.check(proof.document)


def test_a_crooked_basis_is_refused():
    net, weights = CASES["dropout"][0]()
    file = net.certify(*weights, rigorous=True).document
    for basis in (np.linalg.qr(np.eye(6) + 0.1 * ROOT)[0], 3 * ROOT):
        tampered = copy.deepcopy(file)
        tampered["witness"]["basis"] = [
            [x.hex() for x in row] for row in basis.tolist()
        ]
        tampered["sha256"] = checker.digest(tampered)
        with pytest.raises(checker.RefusedError, match=r"orthogonal|bound below"):
            checker.check(tampered)


@pytest.mark.parametrize("seed", range(3))
def test_weak_noise_is_proved_up_to_rounding_of_the_target(seed):
    T = np.random.default_rng(seed).standard_normal((20, 20))
    net, weights = shallow(T, 20, overt.Dropout(1e-9))
    assert net.certify(*weights, rigorous=True).gap <= 1e-13 * np.sum(T**2)


def test_false_claims_and_broken_files_are_refused():
    net, weights = CASES["dropout"][0]()
    file = net.certify(*weights, rigorous=True).document

    def refused(change, match):
        tampered = copy.deepcopy(file)
        change(tampered)
        tampered["sha256"] = checker.digest(tampered)
        with pytest.raises(checker.RefusedError, match=match):
            checker.check(tampered)

    above = checker.number(file["claim"]["at_most"])
    tiny = {"at_most": (float(above) * (1 - 1e-15)).hex(), "gap": "0x1p+0"}
    refused(lambda f: f["claim"].update(tiny), "objective above")
    more = {"at_least": (float(above) * (1 + 1e-15)).hex(), "gap": "0x1p+0"}
    refused(lambda f: f["claim"].update(more), "bound below")
    refused(lambda f: f["claim"].update(gap="0x1p-200"), "gap")
    refused(lambda f: f["noise"].update(drop_prob=["0x1p-1"] * 7), "drop prob")
    refused(lambda f: f["noise"].update(kind="dropblock"), "drop prob")
    refused(lambda f: f["witness"]["thresholds"].__setitem__(0, "0x1p+9"), "decrease")
    refused(lambda f: f["problem"]["target"].pop(), "proof file|above")
    refused(lambda f: f["problem"]["target"][0].pop(), "misshapen")
    refused(lambda f: f["weights"].pop(), "weights")
    refused(lambda f: f.pop("witness"), "not a proof file")
    refused(lambda f: f["problem"]["target"][0].__setitem__(0, "inf"), "hexadecimal")


def test_costs_and_thresholds_that_bound_nothing_are_refused():
    tampering = {
        "sliding": [
            ({"thresholds": ["-0x1p-9"] * 6}, "wrong thresholds"),
            ({"thresholds": ["0x1p-9"] * 5}, "wrong thresholds"),
            ({"gamma": "0x1p+9"}, "not shown to be below"),
        ],
        "one at a time": [
            ({"delta": ["-0x1p-9"] * 5}, "wrong costs"),
            ({"delta": ["0x1p-9"] * 4}, "wrong costs"),
            ({"delta": ["0x1p+9"] * 5}, "not shown to be below"),
        ],
    }
    for name, changes in tampering.items():
        net, weights = CASES[name][0]()
        file = net.certify(*weights, rigorous=True).document
        for change, match in changes:
            if not set(change) <= set(file["witness"]):
                continue
            tampered = copy.deepcopy(file)
            tampered["witness"].update(change)
            tampered["sha256"] = checker.digest(tampered)
            with pytest.raises(checker.RefusedError, match=match):
                checker.check(tampered)
    net, weights = CASES["correlated"][0]()
    tampered = net.certify(*weights, rigorous=True).document
    tampered["noise"]["drop_prob"] = ["0x0p+0"] * len(tampered["noise"]["drop_prob"])
    tampered["sha256"] = checker.digest(tampered)
    with pytest.raises(checker.RefusedError, match="a cost without noise"):
        checker.check(tampered)


def test_a_second_moment_that_is_not_verified_is_said_to_be_assumed():
    flat = np.ones((6, 6))
    net, weights = shallow(M, 3, drop, second_moment=flat)
    proof = net.certify(*weights, rigorous=True)
    assert "provided" in proof.statement
    assert "provided" in checker.check(proof.document)
    net, weights = CASES["second moment"][0]()
    proof = net.certify(*weights, rigorous=True)
    assert "provided" not in proof.statement
    assert "provided" not in checker.check(proof.document)


def test_what_cannot_be_proved_is_said():
    zeros = np.zeros((8, 4)), np.zeros((6, 4))
    net = overt.LinearNetwork(M, 4, drop, input_noise=drop)
    with pytest.raises(overt.InputError, match="a proof needs"):
        net.certify(*zeros, rigorous=True)


def test_costs_that_are_not_below_the_matrix_are_refused():
    net, weights = CASES["keep exactly"][0]()
    file = net.certify(*weights, rigorous=True).document
    for change in ({"gamma": "0x1p+0"}, {"delta": ["0x1p+3"] * 6}):
        tampered = copy.deepcopy(file)
        tampered["witness"].update(change)
        tampered["sha256"] = checker.digest(tampered)
        with pytest.raises(checker.RefusedError, match="below"):
            checker.check(tampered)


def test_the_checker_stands_alone(tmp_path):
    net, weights = CASES["dropout"][0]()
    path = net.certify(*weights, rigorous=True).save(tmp_path / "proof.json")
    script = [sys.executable, "-I", "-S", checker.__file__]
    run = subprocess.run([*script, path], capture_output=True, text=True, cwd=tmp_path)
    assert run.returncode == 0, run.stderr
    assert run.stdout.startswith("accepted: ")
    path.write_text(path.read_text().replace("dropout", "dropconnect"))
    run = subprocess.run([*script, path], capture_output=True, text=True, cwd=tmp_path)
    assert run.returncode == 1
    assert run.stdout.startswith("refused: ")


def test_the_command_line_proves(tmp_path):
    from typer.testing import CliRunner

    from overt.cli import app

    _net, (U, V) = CASES["second moment"][0]()
    for name, array in {"M": M, "U": U, "V": V, "C": C}.items():
        np.save(tmp_path / f"{name}.npy", array)
    files = [str(tmp_path / f"{name}.npy") for name in "MUV"]
    options = ["--drop-prob", "0.3", "--second-moment", str(tmp_path / "C.npy")]
    out = tmp_path / "proof.json"
    run = CliRunner().invoke(
        app, ["certify", *files, *options, "--rigorous", "--out", str(out)]
    )
    assert run.exit_code == 0, run.output
    assert "Proved" in run.output
    checker.check(json.loads(out.read_text()))
    run = CliRunner().invoke(app, ["certify", *files, *options])
    assert run.exit_code == 0
    assert "lower_bound" in run.output


@pytest.mark.parametrize("width", [2, 3, 5])
def test_units_that_share_one_mask_are_proved_optimal(width):
    """Singular noise had no costs that were shown to be below it: the bound was -4e-15."""
    rng = np.random.default_rng(width)
    M = rng.standard_normal((4, 3))
    one_mask = 0.25 * np.full((width, width), 2 / 3)
    best = overt.LinearNetwork(M, width, overt.DropBlock(0.4, width)).solve()
    for noise in (
        overt.DropBlock(0.4, width, placement="sliding"),
        overt.CovarianceNoise(np.full(width, 0.5), one_mask),
    ):
        net = overt.LinearNetwork(M, width, noise)
        weights = net.solve()
        assert weights.objective == pytest.approx(best.objective, rel=1e-12)
        proof = net.certify(weights.U, weights.V, rigorous=True)
        assert proof.gap < 1e-12
        assert proof.lower_bound == pytest.approx(best.objective, rel=1e-12)
        assert checker.check(proof.document) in proof.statement
