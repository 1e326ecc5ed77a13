"""The command line as a user meets it: help, answers, mistakes, exit codes."""

import json
import os
import signal
import subprocess
import sys
import time
import warnings

import numpy as np
import pytest
from typer.testing import CliRunner

import overt
from overt.cli import app, main

ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "120"}


def overt_command(*arguments, cwd=None):
    return subprocess.run(
        [sys.executable, "-m", "overt", *map(str, arguments)],
        capture_output=True,
        text=True,
        cwd=cwd,
        env=ENVIRONMENT,
        timeout=120,
    )


@pytest.fixture
def target(tmp_path):
    M = np.random.default_rng(0).standard_normal((6, 4))
    np.save(tmp_path / "M.npy", M)
    return M


def test_help_teaches_and_version_is_told():
    shown = overt_command("--help")
    assert shown.returncode == 0
    for command in ("tour", "verify", "reproduce", "solve", "train"):
        assert command in shown.stdout
    assert overt_command("--version").stdout.strip() == f"overt {overt.__version__}"
    assert "Try:" in overt_command("solve", "--help").stdout


def test_verify_prints_a_table_or_json():
    shown = overt_command("verify", "path-norm", "dropconnect")
    assert shown.returncode == 0
    assert "2 of 2 statements hold" in shown.stdout
    assert (
        "1 statement corrects its paper; the paper's own form was tested too"
        in " ".join(shown.stdout.split())
    )
    verdicts = json.loads(
        overt_command("verify", "dropconnect", "--json", "--seed", 3).stdout
    )
    assert verdicts[0]["verdict"] == "holds"
    assert verdicts[0]["printed_residual"] > verdicts[0]["tolerance"]


def test_verify_exits_with_1_when_a_formula_is_broken():
    code = (
        "import sys, overt.penalty as p; right = p.path_norm\n"
        "p.path_norm = lambda *a, **k: 1.001 * right(*a, **k)\n"
        "sys.argv = ['overt', 'verify', 'path-norm']\n"
        "from overt.cli import main; main()"
    )
    shown = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        env=ENVIRONMENT,
        timeout=120,
    )
    assert shown.returncode == 1
    assert "path-norm" in shown.stderr
    assert "Traceback" not in shown.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("verify", "no-such-theorem"), "unknown item no-such-theorem"),
        (("reproduce", "dropout-fig1", "--size", "huge"), "size must be one of"),
        (("reproduce", "no-such-figure"), "unknown figure"),
        (("solve", "missing.npy"), "missing.npy does not exist"),
        (("solve", "M.xyz"), "must end in one of"),
        (
            ("solve", "M.npy", "--drop-prob", "1.5"),
            "drop_prob must be a number in [0, 1), got 1.5",
        ),
        (
            ("solve", "M.npy", "--noise", "droput"),
            "must be one of dropout, dropblock, dropconnect, keepexactly, got 'droput'",
        ),
        (
            ("solve", "M.npy", "--noise", "dropblock", "--width", "5"),
            "block_size must divide",
        ),
        (("solve", "M.npy", "--rank", "9"), "rank must be at most"),
        (
            ("solve", "M.npy", "--width", "4", "--rank", "2", "--drop-prob", ".1"),
            "--rank chooses the probability of dropout, and --drop-prob 0.1 was given",
        ),
        (
            ("solve", "M.npy", "--drop-prob", ".3", "--block-size", "3"),
            "--block-size 3 is for --noise dropblock, and the noise is dropout",
        ),
        (
            ("train", "M.npy", "--keep", "2"),
            "--keep 2 is for --noise keepexactly, and the noise is dropout",
        ),
        (
            ("train", "M.npy", "--noise", "dropconnect", "--block-size", "2"),
            "--block-size 2 is for --noise dropblock, and the noise is dropconnect",
        ),
        (
            (*("solve", "M.npy", "--noise", "keepexactly"), "--drop-prob", "0.5"),
            "is for --noise dropout or dropblock or dropconnect, and the noise is keep",
        ),
        (
            ("certify", "M.npy", "M.npy", "M.npy", "--keep", "10"),
            "--keep 10 is for --noise keepexactly, and the noise is dropout",
        ),
        (("solve",), "give either target"),
        (("solve", "M.npy", "--out", "best.pkl"), "path must end in .npz or .json"),
        (("solve", "text.csv"), "cannot be read as a matrix"),
        (("train", "M.npy", "--learning-rate", "1000"), "learning rate is too large"),
        (("train", "M.npy", "--gradient", "exact"), "gradient must be one of"),
    ],
)
def test_mistakes_get_one_clear_sentence(
    tmp_path, target, arguments, message, monkeypatch, capsys
):
    (tmp_path / "text.csv").write_text("1,2\n3,abc\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(warnings, "showwarning", warnings.showwarning)
    monkeypatch.setattr(sys, "argv", ["overt", *arguments])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code in (1, 2)
    assert message in capsys.readouterr().err.replace("\n", " ")


def test_solve_agrees_with_the_library(tmp_path, target):
    shown = overt_command(
        "solve", "M.npy", "--width", 3, "--out", "best.npz", cwd=tmp_path
    )
    assert shown.returncode == 0
    assert "optimal" in shown.stdout
    best = overt.LinearNetwork(target, 3, overt.Dropout(0.5)).solve()
    with np.load(tmp_path / "best.npz", allow_pickle=False) as saved:
        np.testing.assert_allclose(saved["U"] @ saved["V"].T, best.product, atol=1e-12)
        assert json.loads(str(saved["header"]))["rank"] == best.rank


def test_solve_chooses_the_drop_probability_for_a_rank(tmp_path, target):
    overt_command(
        "solve", "M.npy", "--width", 4, "--rank", 2, "--out", "best.json", cwd=tmp_path
    )
    assert json.loads((tmp_path / "best.json").read_text())["rank"] == 2


def test_train_reports_and_draws(tmp_path, target):
    shown = overt_command(
        "train",
        "M.npy",
        "--width",
        3,
        "--steps",
        2000,
        "--learning-rate",
        0.005,
        "--seeds",
        2,
        "--n-jobs",
        1,
        "--gradient",
        "expected",
        "--plot",
        "runs.png",
        "--out",
        "runs.npz",
        cwd=tmp_path,
    )
    assert shown.returncode == 0, shown.stderr
    assert "above the bound" in shown.stdout
    assert (tmp_path / "runs.png").stat().st_size > 10_000
    with np.load(tmp_path / "runs.npz", allow_pickle=False) as saved:
        assert saved["objective"].shape[0] == 2
        assert np.all(np.diff(saved["objective"], axis=1) <= 1e-12)


def test_solve_takes_data(tmp_path):
    rng = np.random.default_rng(0)
    np.savetxt(tmp_path / "X.csv", rng.standard_normal((20, 3)), delimiter=",")
    np.savetxt(
        tmp_path / "Y.csv", rng.standard_normal((20, 2)), delimiter=",", header="a,b"
    )
    shown = overt_command(
        "solve", "--x", "X.csv", "--y", "Y.csv", "--width", 2, cwd=tmp_path
    )
    assert shown.returncode == 0, shown.stderr


def refuse(constant):
    raise ValueError(f"{constant} is not JSON")


def test_reproduce_writes_rows_picture_and_summary(tmp_path):
    name = "thesis-fig6-1"
    shown = overt_command("reproduce", name, "--out", tmp_path, "--n-jobs", 2)
    assert shown.returncode == 0, shown.stderr
    assert {p.suffix for p in tmp_path.iterdir()} == {".jsonl", ".png", ".json"}
    for line in (tmp_path / f"{name}.jsonl").read_text().splitlines():
        json.loads(line, parse_constant=refuse)
    text = (tmp_path / f"{name}-toy.json").read_text()
    summary = json.loads(text, parse_constant=refuse)
    assert {f["verdict"] for f in summary["findings"]} <= {"holds", "inconclusive"}
    again = overt_command("reproduce", name, "--out", tmp_path)
    assert again.returncode == 0, again.stderr
    assert (tmp_path / f"{name}-toy.json").read_text() == text


def test_reproduce_lists_what_it_knows():
    assert "dropout-fig1" in overt_command("reproduce", "--list").stdout


def interrupted(program, *arguments, cwd):
    """Run a program that says "started" where it may be interrupted; return (code, out, err)."""
    # A job that a shell put into the background ignores SIGINT, and so would its children.
    frame = (
        "import signal, sys, time; signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        f"{program}\nfrom overt.cli import main; main()"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", frame, *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=cwd,
        env=ENVIRONMENT,
    )
    for line in process.stdout:
        if line.strip() == "started":
            break
    time.sleep(0.5)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert "Traceback" not in err
    return process.returncode, out.replace("started\n", ""), err


POSIX = pytest.mark.skipif(os.name == "nt", reason="needs POSIX signals")
# One write, so that threads cannot come between the word and its end of line.
STARTED = "(sys.stdout.write('started\\n'), sys.stdout.flush())"
SLEEP = f"{STARTED}; time.sleep(60)"
# Compiled code is there and has run when a bar moves; an interrupt before that leaves nothing.
BAR = (
    "from overt._running import Meter\n"
    f"Meter.advance = lambda *_, **__: {STARTED}\n"
    "Meter.reach = Meter.advance\n"
)


@POSIX
def test_interrupted_training_is_kept(tmp_path, target):
    code, out, _ = interrupted(
        BAR,
        "train",
        "M.npy",
        "--steps",
        500_000_000,
        "--learning-rate",
        0.0001,
        "--out",
        "runs.npz",
        cwd=tmp_path,
    )
    assert code in (0, 130)
    assert "interrupted" in out
    assert (tmp_path / "runs.npz").exists()


@POSIX
@pytest.mark.parametrize("swallowed", [False, True])
def test_interrupted_verify_shows_what_was_checked(tmp_path, swallowed):
    check = f"    try: {SLEEP}\n    except KeyboardInterrupt: return Evidence(0.0, 1.0, 'half')\n"
    program = (
        "from overt.papers import Evidence, statement\n"
        "@statement()\n"
        "def sleepy(rng):\n"
        "    'Sleep.\\n\\nIt sleeps.'\n" + (check if swallowed else f"    {SLEEP}\n")
    )
    code, out, err = interrupted(program, "verify", "path-norm", "sleepy", cwd=tmp_path)
    assert code == 130
    assert "1 of 1 statements hold" in out
    assert "interrupted; 1 of 2 were checked" in err


@POSIX
def test_interrupted_reproduce_says_where_the_rows_are(tmp_path):
    program = (
        "from overt.papers import figure\n"
        "def run(params, seed):\n"
        f"    if params['x']: {SLEEP}\n"
        "    return {'square': 0}\n"
        "sizes = {'toy': {'x': [0, 1]}}\n"
        "page = 'Sleep.\\n\\nIt sleeps.'\n"
        "figure('sleepy', '', '', page, run=run, check=None, plot=None, sizes=sizes)"
    )
    code, _, err = interrupted(
        program, "reproduce", "sleepy", "--out", tmp_path, cwd=tmp_path
    )
    assert code == 130
    assert "interrupted" in err
    assert "sleepy.jsonl" in err
    assert len((tmp_path / "sleepy.jsonl").read_text().splitlines()) == 1


@POSIX
def test_every_command_ends_with_a_sentence_on_interrupt(tmp_path):
    program = (
        f"from overt.cli.base import app\n@app.command()\ndef sleepy() -> None: {SLEEP}"
    )
    code, _, err = interrupted(program, "sleepy", cwd=tmp_path)
    assert code == 130
    assert "interrupted; files already written are complete" in err


@POSIX
def test_interrupted_jumps_show_the_steps_taken(tmp_path):
    code, out, err = interrupted(
        BAR, "jumps", "--noisy-steps", 4_000_000, "--seeds", 2, "--json", cwd=tmp_path
    )
    assert code == 130
    assert json.loads(out)["status"] == "interrupted"
    assert "interrupted" in err


def test_completion_is_offered():
    assert "--install-completion" in overt_command("--help").stdout


def test_warnings_are_one_sentence(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(warnings, "showwarning", warnings.showwarning)
    lines = [f"a{i % 5},x{i % 3},{i % 4}.5,{'' if i == 3 else i}" for i in range(15)]
    (tmp_path / "r.csv").write_text("\n".join(["user,item,rating,time", *lines]))
    monkeypatch.setattr(
        sys, "argv", ["overt", "evaluate", "r.csv", "--split", "random"]
    )
    with warnings.catch_warnings():
        warnings.simplefilter("default")
        with pytest.raises(SystemExit, match="0"):
            main()
    assert capsys.readouterr().err.startswith(
        "warning: 1 of 15 entries of r.csv have no time"
    )


def test_pictures_are_refused_before_the_work_or_written_whole(tmp_path):
    np.save(tmp_path / "M.npy", np.eye(3))
    given = [
        "train",
        str(tmp_path / "M.npy"),
        "--width",
        "2",
        "--steps",
        "20",
        "--plot",
    ]
    shown = CliRunner().invoke(app, [*given, str(tmp_path / "p.xyz")])
    assert isinstance(shown.exception, overt.InputError)
    assert shown.output == ""
    assert "ends in .png" in str(shown.exception)
    assert CliRunner().invoke(app, [*given, str(tmp_path / "p.svg")]).exit_code == 0
    assert "<svg" in (tmp_path / "p.svg").read_text()


def test_warnings_are_on_standard_error(tmp_path, monkeypatch, capsys):
    """They were among the answers, where a pipe took them for a part of the table."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(warnings, "showwarning", warnings.showwarning)
    rng = np.random.default_rng(0)
    lines = [f"{i},{j},{rng.normal():.3f}" for i in range(12) for j in range(8)]
    (tmp_path / "r.csv").write_text("\n".join(["a,b,c", *lines, "0,0,1", "0,1,x"]))
    (tmp_path / "pairs.csv").write_text("row,column\n0,1\n2\n")
    commands = {
        "complete r.csv --factors 1 --drop-prob 0.5 --out m": [
            "were taken by position",
            "1 duplicate entries, averaged",
            "the first is line 99",
        ],
        "predict m pairs.csv": ["rejected lines are in"],
        "evaluate r.csv --split last --factors 1": ["the order of lines is used"],
    }
    for command, told in commands.items():
        for extra in ([], ["--json"]):
            monkeypatch.setattr(sys, "argv", ["overt", *command.split(), *extra])
            with pytest.raises(SystemExit) as ended:
                main()
            assert ended.value.code == 0
            shown = capsys.readouterr()
            assert "warning:" not in shown.out
            for text in told:
                assert text in shown.err
