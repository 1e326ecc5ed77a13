"""What is on disk after kills, full disks and folders that cannot be written."""

import os
import re
import subprocess
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from fuzz import readers
from fuzz.crash import _predicted as predicted
from fuzz.crash import resuming, saving
from typer.testing import CliRunner

import overt
from overt._io import ready, write_whole
from overt.cli.base import app
from overt.completion import DropoutCompletion
from overt.completion.memory import room

COUNT = int(os.environ.get("OVERT_FUZZ", "5"))
pytestmark = [
    pytest.mark.skipif(not hasattr(os, "fork"), reason="processes are forked"),
    pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning"),
]


def test_kills_leave_the_state_before_or_the_new_one(tmp_path):
    pytest.importorskip("safetensors")
    assert saving(tmp_path, COUNT) == []


def test_resumed_work_equals_uninterrupted_work_bit_for_bit(tmp_path):
    pytest.importorskip("safetensors")
    pytest.importorskip("torch")
    assert resuming(tmp_path, 1 if COUNT < 20 else COUNT // 5) == []


def test_failed_writing_leaves_what_was_there_and_nothing_else(tmp_path):
    path = write_whole(tmp_path / "a.json", "before")

    def fails(file):
        file.write(b"half")
        raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space"):
        write_whole(path, fails)
    assert path.read_text() == "before"
    assert [p.name for p in tmp_path.iterdir()] == ["a.json"]
    for wrong in (tmp_path, path / "b", tmp_path / "none" / "b"):
        with pytest.raises(OSError) as error:
            write_whole(wrong, b"x")
        assert error.value.filename in (str(wrong), None)


def test_a_folder_that_cannot_be_written_is_refused_before_the_work(
    tmp_path, monkeypatch
):
    file = write_whole(tmp_path / "file", "mine")
    assert ready(tmp_path / "a" / "b").is_dir()
    for wrong in (file, file / "below"):
        with pytest.raises(overt.InputError, match="cannot be a folder: it is a file"):
            ready(wrong)
    monkeypatch.setattr(
        os, "access", lambda path, mode: False
    )  # root may write anywhere
    with pytest.raises(overt.InputError, match="permission denied"):
        ready(tmp_path)
    assert file.read_text() == "mine"


@pytest.mark.parametrize(
    "words",
    [
        "solve M.npy --width 2 --drop-prob .5 --out",
        "train M.npy --width 2 --out",
        "jumps --out",
        "jumps --plot",
        "train M.npy --width 2 --plot",
        "certify M.npy U.npy V.npy --out",
        "predict model pairs.csv --out",
    ],
)
def test_commands_refuse_what_they_could_not_write_in_the_end(
    words, tmp_path, monkeypatch
):
    pytest.importorskip("typer")
    from typer.testing import CliRunner

    from overt.cli import app

    monkeypatch.chdir(
        tmp_path
    )  # the inputs are missing: nothing but the output is looked at
    (tmp_path / "folder.npz").mkdir()
    (tmp_path / "file").write_text("mine")
    for out, message in (
        ("folder.npz", "is a folder"),
        ("file/x.npz", "cannot be a folder"),
    ):
        found = CliRunner().invoke(app, [*words.split(), out])
        assert isinstance(found.exception, overt.InputError)
        assert message in str(found.exception)


def test_writers_of_one_file_do_not_meet(tmp_path):
    contents = [bytes([65 + k]) * 200_000 for k in range(4)]
    with ThreadPoolExecutor(4) as pool:
        list(
            pool.map(
                lambda k: write_whole(tmp_path / "one", contents[k % 4]), range(24)
            )
        )
    assert (tmp_path / "one").read_bytes() in contents
    assert len(list(tmp_path.iterdir())) == 1


def test_processes_with_one_folder_leave_a_whole_model(tmp_path):
    pytest.importorskip("safetensors")
    models = [readers._completion(seed=s).fit(readers._entries()) for s in (0, 1)]
    known = {predicted(model) for model in models}
    models[0].save(tmp_path / "model")
    writers = []
    for model in models:
        if not (pid := os.fork()):
            try:
                for _ in range(15):
                    model.save(tmp_path / "model")
                os._exit(0)
            finally:
                os._exit(1)
        writers.append(pid)
    while len(writers) > 0:
        assert predicted(type(models[0]).load(tmp_path / "model")) in known
        done, status = os.waitpid(writers[0], os.WNOHANG)
        if done:
            assert os.waitstatus_to_exitcode(status) == 0
            writers.pop(0)
    assert predicted(type(models[0]).load(tmp_path / "model")) in known
    assert [p.name for p in (tmp_path / "model").iterdir()] == ["model.safetensors"]


def test_no_file_depends_on_the_clock():
    """Nothing reads the time of day or a file's time: a clock that goes back changes nothing."""
    for path in Path(overt.__file__).parent.rglob("*.py"):
        assert not re.search(
            r"time\.time\(|\.now\(|st_mtime|getmtime", path.read_text()
        ), path


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount")
def test_full_disks_are_answered_with_a_sentence(tmp_path, monkeypatch):
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(disk)]
    if subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("mounting is not allowed here")
    try:
        before = write_whole(disk / "a", b"x" * 20_000)
        with pytest.raises(OSError, match="No space left"):
            write_whole(before, np.zeros(50_000).tobytes())
        assert before.read_bytes() == b"x" * 20_000
        assert len(list(disk.iterdir())) == 1
        monkeypatch.setattr(tempfile, "tempdir", str(disk))
        with pytest.raises(OSError, match="TMPDIR names another folder"):
            room(50_000, float)
        model = DropoutCompletion(2, 0.5, max_sweeps=1).fit(np.eye(3))
        with pytest.raises(OSError, match="No space"):
            (disk / "filler").write_bytes(bytes(50_000))
        model.save(disk.parent / "model")
        path = disk / "lists.parquet"
        given = ["recommend", str(disk.parent / "model"), "--all", str(path)]
        done = CliRunner().invoke(app, given)
        assert "lists.parquet cannot be used: No space" in str(done.exception)
    finally:
        subprocess.run(["umount", str(disk)], check=True)
