"""What is on disk after kills, full disks and folders that cannot be written."""

import os
import subprocess
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from fuzz.crash import resuming, saving

from overt._files import write_whole

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
    assert resuming(tmp_path, min(COUNT, 3) if COUNT < 20 else COUNT // 5) == []


def test_failed_writing_leaves_what_was_there_and_nothing_else(tmp_path):
    path = write_whole(tmp_path / "a.json", "before")

    def fails(file):
        file.write(b"half")
        raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space"):
        write_whole(path, fails)
    assert path.read_text() == "before"
    assert [p.name for p in tmp_path.iterdir()] == ["a.json"]


def test_writers_of_one_file_do_not_meet(tmp_path):
    contents = [bytes([65 + k]) * 200_000 for k in range(4)]
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda k: write_whole(tmp_path / "one", contents[k % 4]), range(24)))
    assert (tmp_path / "one").read_bytes() in contents
    assert len(list(tmp_path.iterdir())) == 1


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount")
def test_full_disks_are_answered_with_a_sentence(tmp_path):
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
    finally:
        subprocess.run(["umount", str(disk)], check=True)
