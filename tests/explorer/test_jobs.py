import time

import pytest

from overt import InputError
from overt.explorer import jobs as module
from overt.explorer.fields import read_fields
from overt.explorer.jobs import Job, Jobs
from overt.explorer.panels import PANELS


@pytest.fixture(scope="module")
def jobs():
    jobs = Jobs(running=2)
    yield jobs
    jobs.close()


def values(**given):
    fields = {"starts": "0.2 1.6", "steps": "40"} | given
    return read_fields(PANELS["landscape"].fields, fields)[0]


LONG = {"steps": "100000", "starts": "1 1\n" * 10}


def wait(condition, seconds=30):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def test_a_job_finishes_with_everything_it_found(jobs):
    job = jobs.start("landscape", values())
    assert jobs.get(job.id) is job
    wait(lambda: job.ended)
    assert (job.state, job.done, len(job.found)) == ("finished", 1.0, 40)
    assert job.summary()["text"] == "Finished."
    job.tell("stop")
    assert job.state == "finished"


def test_pause_step_and_go(jobs):
    job = jobs.start("landscape", values(steps="400"), paused=True)
    wait(lambda: job.found)
    assert job.summary()["text"] == "Paused at 2%."
    time.sleep(0.3)
    assert len(job.found) == 1
    job.tell("step")
    wait(lambda: len(job.found) == 2)
    time.sleep(0.3)
    assert len(job.found) == 2
    job.tell("go")
    wait(lambda: job.ended)
    assert len(job.found) == 40


def test_stop_ends_the_process_and_keeps_what_was_found(jobs):
    job = jobs.start("landscape", values(**LONG))
    wait(lambda: job.found)
    job.tell("stop")
    wait(lambda: job.pipe is None)
    assert job.state == "stopped"
    assert 0 < len(job.found) < 40


def test_a_mistake_is_told(jobs):
    fields = {"learning_rate": "1", "outputs": "5", "inputs": "5", "steps": "2000"}
    job = jobs.start("training", read_fields(PANELS["training"].fields, fields)[0])
    wait(lambda: job.ended)
    assert job.summary()["text"] == "learning_rate is too large: the runs diverge"


def test_a_job_that_takes_too_long_is_ended():
    hasty = Jobs(running=1, seconds=0.3)
    job = hasty.start("landscape", values(**LONG))
    wait(lambda: job.ended)
    hasty.close()
    assert job.error.startswith("Stopped after 0 s")


def test_a_job_that_nobody_watches_is_ended(jobs, monkeypatch):
    monkeypatch.setattr(module, "UNWATCHED", 0.2)
    job = jobs.start("landscape", values(**LONG))
    wait(lambda: job.ended)
    assert job.state == "stopped"


def test_a_process_that_dies_is_told(jobs, monkeypatch):
    def die(self, job, pipe):
        raise EOFError

    monkeypatch.setattr(Jobs, "_follow", die)
    job = jobs.start("landscape", values())
    wait(lambda: job.ended)
    assert job.summary()["text"] == "The computation ended unexpectedly."


def test_only_so_many_wait_and_are_kept(monkeypatch):
    full = Jobs(running=1)
    monkeypatch.setattr(full._pool, "submit", lambda *arguments: None)
    waiting = [full.start("landscape", values()) for _ in range(module.WAITING)]
    with pytest.raises(InputError, match="too many computations"):
        full.start("landscape", values())
    waiting[0].tell("stop")
    newest = [full.start("landscape", values())]
    for _ in range(module.KEPT):
        newest[-1].tell("stop")
        newest.append(full.start("landscape", values()))
    assert full.get(waiting[0].id) is None
    assert full.get(newest[-1].id) is newest[-1]


@pytest.mark.parametrize("name", [None, 3, "", "x", ["a"], {}])
def test_a_job_is_known_by_its_id_only(jobs, name):
    assert jobs.get(name) is None


def test_ids_cannot_be_guessed():
    ids = {Job("landscape", {}, paused=False).id for _ in range(100)}
    assert len(ids) == 100
    assert min(map(len, ids)) >= 20
