"""The explorer: a page on this machine on which noise is moved and theory answers."""

from __future__ import annotations

import socket
import threading
import webbrowser
from collections.abc import Callable

from overt._check import InputError, MissingExtraError

__all__ = ["explore"]


def explore(
    host: str = "127.0.0.1", port: int = 8050, *, browser: bool = True,
    ready: Callable[[str], None] = lambda address: None,
) -> None:  # fmt: skip
    """Serve the page until Ctrl-C; `ready` gets its address. Port 0 takes a free one."""
    try:
        import dash  # noqa: F401
        from werkzeug.serving import WSGIRequestHandler, make_server
    except ModuleNotFoundError:
        raise MissingExtraError("dash", "explorer") from None
    from overt.explorer.jobs import Jobs
    from overt.explorer.server import create_app

    class Quiet(WSGIRequestHandler):
        protocol_version = "HTTP/1.1"  # connections stay open, which halves the time of a request
        timeout = 30

        def log(self, type: str, message: str, *args: object) -> None:  # noqa: A002
            pass

    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listening = socket.create_server((host, port), family=family)
    except OSError as error:
        raise InputError(f"port {port} of {host} cannot be used: {error.strerror}") from None
    jobs, port = Jobs(), listening.getsockname()[1]
    server = make_server(
        host, port, create_app(jobs, host), threaded=True,
        request_handler=Quiet, fd=listening.fileno(),
    )  # fmt: skip
    name = f"[{host}]" if ":" in host else host
    address = f"http://{name}:{port}/"
    # A job that ends at once: what tasks import is ready when one comes, and not in the way before.
    warm_up = threading.Timer(4, jobs.start, ("shrinkage", {}))
    warm_up.daemon = True
    warm_up.start()
    ready(address)
    if browser:
        threading.Timer(0.2, webbrowser.open, (address,)).start()
    try:
        server.serve_forever()
    except KeyboardInterrupt:
        pass
    finally:
        server.server_close()
        jobs.close()
