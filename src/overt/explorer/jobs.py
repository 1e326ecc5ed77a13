"""Long computations beside the page: a few processes at a time, watched, and killed when asked.

A job runs a panel's task in a process of its own and keeps what it finds. A thread watches each
process, and ends it when it is told to, when it takes too long, or when nobody looks any more.
"""

from __future__ import annotations

import multiprocessing as mp
import os
import secrets
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import redirect_stderr, suppress
from multiprocessing.connection import Connection
from typing import Any

from overt import InputError
from overt.explorer.fields import Values

RUNNING, WAITING, KEPT = 3, 20, 24
"""Processes at a time, jobs that may wait for one, and jobs whose findings are kept."""

SECONDS, UNWATCHED = 120.0, 90.0
"""How long a job may work, and go on without anyone looking."""

_SAYS = {
    "waiting": "Waiting for other computations to end.",
    "running": "Running: {done:.0%} done.",
    "paused": "Paused at {done:.0%}.",
    "finished": "Finished.",
    "stopped": "Stopped at {done:.0%}.",
    "failed": "{error}",
}


class Job:
    """One run of a task: what it found so far, and where it stands."""

    def __init__(self, panel: str, values: Values, *, paused: bool) -> None:
        self.id = secrets.token_urlsafe(16)
        self.panel, self.values, self.paused = panel, values, paused
        self.found: list[dict[str, Any]] = []
        self.done, self.state, self.error = 0.0, "waiting", ""
        self.looked = time.monotonic()
        self.pipe: Connection | None = None

    @property
    def ended(self) -> bool:
        """Whether nothing more will come."""
        return self.state in ("finished", "stopped", "failed")

    def end(self, state: str, error: str = "") -> None:
        """Let it have ended in this way, unless it has ended already."""
        if not self.ended:
            self.state, self.error = state, error

    def tell(self, command: str) -> None:
        """Carry out "pause", "step", "go" or "stop"."""
        if command == "stop":
            self.end("stopped")
            return
        self.paused = command != "go"
        if self.pipe is not None:
            with suppress(OSError):
                self.pipe.send(command)

    def summary(self) -> dict[str, Any]:
        """Return what the page says about it."""
        state = "paused" if self.paused and self.state == "running" else self.state
        text = _SAYS[state].format(done=self.done, error=self.error)
        return {"state": state, "text": text, "done": self.done}


class Jobs:
    """All jobs of a server."""

    def __init__(self, running: int = RUNNING, seconds: float = SECONDS) -> None:
        self._pool = ThreadPoolExecutor(running, thread_name_prefix="explorer-job")
        forks = "forkserver" in mp.get_all_start_methods()
        self._context: Any = mp.get_context("forkserver" if forks else "spawn")
        if forks:
            self._context.set_forkserver_preload(["overt.explorer.panels"])
        self._jobs: dict[str, Job] = {}
        self._lock, self._seconds = threading.Lock(), seconds

    def start(self, panel: str, values: Values, *, paused: bool = False) -> Job:
        """Queue a job; InputError if too many wait."""
        job = Job(panel, values, paused=paused)
        with self._lock:
            if sum(other.state == "waiting" for other in self._jobs.values()) >= WAITING:
                raise InputError("too many computations are waiting; try again in a minute")
            self._jobs[job.id] = job
            while len(self._jobs) > KEPT:
                self._jobs.pop(next(iter(self._jobs))).tell("stop")
        self._pool.submit(self._watch, job)
        return job

    def get(self, name: Any) -> Job | None:
        """Return a job by its id, which nobody can guess; None if there is none."""
        job = self._jobs.get(name) if isinstance(name, str) else None
        if job is not None:
            job.looked = time.monotonic()
        return job

    def close(self) -> None:
        """End all processes."""
        with self._lock:
            for job in self._jobs.values():
                job.tell("stop")
        self._pool.shutdown(cancel_futures=True)

    def _watch(self, job: Job) -> None:
        if job.ended:
            return
        pipe, theirs = self._context.Pipe()
        arguments = (job.panel, job.values, job.paused, theirs)
        process = self._context.Process(target=_work, args=arguments, daemon=True)
        try:
            process.start()
            theirs.close()
            job.pipe, job.state = pipe, "running"
            self._follow(job, pipe)
        except (EOFError, OSError):
            job.end("failed", "The computation ended unexpectedly.")
        finally:
            job.pipe = None
            if process.pid is not None:
                process.kill()
                process.join()
            pipe.close()

    def _follow(self, job: Job, pipe: Connection) -> None:
        worked, last = 0.0, time.monotonic()
        while not job.ended:
            if pipe.poll(0.1):
                kind, content = pipe.recv()
                if kind == "frame":
                    job.done = content[0]
                    job.found.append(content[1])
                else:
                    job.end(kind, content)
            now = time.monotonic()
            worked, last = worked + (0.0 if job.paused else now - last), now
            if worked > self._seconds:
                job.end("failed", f"Stopped after {self._seconds:.0f} s; ask for less.")
            elif now - job.looked > UNWATCHED:
                job.tell("stop")


def _work(panel: str, values: Values, paused: bool, pipe: Connection) -> None:
    """Run a task in its process; obey between frames."""
    from overt.explorer.panels import PANELS

    if hasattr(os, "nice"):
        os.nice(5)  # pages come first
    task = PANELS[panel].task or (lambda **values: ())
    # No progress bars on the server's terminal; and if the server is gone, so is the task.
    with open(os.devnull, "w") as nothing, redirect_stderr(nothing), suppress(EOFError, OSError):
        try:
            for frame in task(**values):
                pipe.send(("frame", frame))
                while paused or pipe.poll():
                    command = pipe.recv()
                    paused = command != "go"
                    if command == "step":
                        break
            pipe.send(("finished", ""))
        except InputError as error:
            pipe.send(("failed", str(error)))
