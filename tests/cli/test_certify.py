"""`overt certify` takes U and V, or what other commands wrote."""

import json

import numpy as np
from typer.testing import CliRunner

import overt.cli.certify
import overt.cli.solve
import overt.cli.train  # noqa: F401  (registers its command)
from overt._check import InputError
from overt.cli.base import app


def run(*arguments):
    return CliRunner().invoke(app, list(map(str, arguments)))


def test_certifies_files_of_solve_and_train(tmp_path):
    """`overt certify M.csv run.npz` was answered by "give M, U and V"."""
    target = tmp_path / "M.npy"
    np.save(target, np.random.default_rng(0).standard_normal((4, 3)))
    network = (target, "--width", 3, "--drop-prob", 0.3)
    solved, trained = tmp_path / "best.npz", tmp_path / "run.npz"
    assert run("solve", *network, "--out", solved).exit_code == 0
    options = ("--steps", 200, "--seeds", 2, "--out", trained)
    assert run("train", *network, *options).exit_code == 0
    gaps = {}
    for path in (solved, trained):
        done = run("certify", target, path, "--drop-prob", 0.3, "--json")
        assert done.exit_code == 0, done.output
        gaps[path] = json.loads(done.output)
    assert abs(gaps[solved]["relative_gap"]) < 1e-9
    with np.load(trained) as stored:
        assert np.isclose(gaps[trained]["objective"], stored["objective"][:, -1].min())


def test_refuses_a_file_without_weights(tmp_path):
    target = tmp_path / "M.npz"
    np.savez(target, A=np.eye(3))
    done = run("certify", target, target)
    assert "must hold U and V" in str(done.exception)


def test_weights_without_V_are_refused_by_name(tmp_path):
    """The answer was that U.npy is no zip file."""
    for name in "MU":
        np.save(tmp_path / f"{name}.npy", np.eye(3))
    for arguments in (["M.npy", "U.npy"], ["U.npy", "--x", "M.npy", "--y", "M.npy"]):
        paths = [tmp_path / a if a.endswith(".npy") else a for a in arguments]
        done = run("certify", *paths)
        assert isinstance(done.exception, InputError)
        assert "V is missing" in str(done.exception)
