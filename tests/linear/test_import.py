"""Closed forms import no compiler."""

import subprocess
import sys

CLOSED_FORMS = """
import sys
sys.modules["numba"] = None  # importing it raises
import numpy as np
import overt

M = np.diag([3.0, 2.0, 1.0])
for noise in (overt.Dropout(0.5), overt.DropConnect(0.5), overt.DropBlock(0.5, 2)):
    net = overt.LinearNetwork(M, 4, noise)
    best = net.solve()
    assert best.status == "optimal"
    net.certify(best.U, best.V)
assert overt.TiedAutoencoder(M, 3, overt.Dropout(0.3)).solve().status == "optimal"
assert overt.DeepLinearNetwork(M, (3, 3), 0.3).solve().rank > 0
assert overt.path(M, width=4, drop_probs=[0.5]).rank[0] == 3
assert 0 < overt.drop_prob_for_rank(M, width=4, rank=2) < 1
"""

COMMANDS = """
import sys
sys.modules["numba"] = None
import numpy as np
from overt.cli import main
from overt.papers import items

chosen = [
    name for name, item in items().items()
    if item.check and item.paper in ("implicit_bias", "structured") and name not in
    ("dropout-step",)
]
assert len(chosen) > 25
path = sys.argv[1]
np.save(path, np.diag([3.0, 2.0, 1.0]))
for command in (["solve", path, "--width", "3"], ["verify", "--list"], ["verify", *chosen]):
    sys.argv = ["overt", *command]
    try:
        main()
    except SystemExit as done:
        assert not done.code, command
"""


def python(code, *arguments):
    command = [sys.executable, "-c", code, *map(str, arguments)]
    run = subprocess.run(command, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    return run.stdout.strip()


def test_solving_imports_no_compiler():
    assert not python(CLOSED_FORMS)


def test_commands_that_do_not_train_import_no_compiler(tmp_path):
    assert "statements hold" in python(COMMANDS, tmp_path / "M.npy")


def test_what_no_folder_keeps_is_compiled_all_the_same():
    from overt._running import njit

    names = {}
    exec(compile("def more(x): return x + 1", "/nowhere/more.py", "exec"), names)  # noqa: S102
    assert njit()(names["more"])(1) == 2
