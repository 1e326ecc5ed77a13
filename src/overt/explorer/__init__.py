"""The explorer: pages that compute the theory in the browser, alone or on a local server.

`render()` returns the explorer as one HTML file without any reference to other files, so that it
can be mailed, put into documentation or opened from disk. `explore()` serves the same pages on this
machine. All formulas are in `page/theory.js`, which the tests compare with the library.
"""

from __future__ import annotations

import base64
import hashlib
import ipaddress
import os
import re
import socket
import sys
import threading
import webbrowser
from collections.abc import Callable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from overt._check import InputError

__all__ = ["PAGES", "explore", "render", "write_pages"]

PAGES = {
    "index.html": "the explorer",
    "article.html": 'the article "Dropout, written down"',
}
_FILES = Path(__file__).with_name("page")
_NO_SCRIPTS = "'none'"
_SCRIPTS = ("theory.js", "plot.js", "panels.js", "app.js")


def render(page: str = "index.html") -> str:
    """Return a page with its style and scripts inside it."""
    if page not in PAGES:
        raise InputError(f"page must be one of {', '.join(PAGES)}, got {page!r}")
    text = (_FILES / page).read_text(encoding="utf-8")
    style = (_FILES / "style.css").read_text(encoding="utf-8")
    scripts = [(_FILES / name).read_text(encoding="utf-8") for name in _SCRIPTS]
    text = text.replace("<!-- style -->", f"<style>\n{style}</style>")
    inline = "\n".join(f"<script>\n{script}</script>" for script in scripts)
    return text.replace("<!-- scripts -->", inline)


def write_pages(folder: str | os.PathLike[str]) -> list[Path]:
    """Write the explorer and the article into a folder; return their paths."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for name in PAGES:
        path = folder / name
        path.write_text(render(name), encoding="utf-8")
        paths.append(path)
    return paths


def explore(
    host: str = "127.0.0.1",
    port: int = 8050,
    *,
    browser: bool = True,
    ready: Callable[[str], None] = lambda address: None,
) -> None:
    """Serve the pages until Ctrl-C.

    Parameters
    ----------
    host, port
        Where to listen; port 0 takes a free one.
    browser
        Open the page in a browser.
    ready
        Called with the address once the server listens.
    """
    handler = _handler(host)
    server_class = _Server6 if ":" in host else _Server
    try:
        server = server_class((host, port), handler)
    except OSError as error:
        raise InputError(
            f"port {port} of {host} cannot be used: {error.strerror}"
        ) from None
    name = f"[{host}]" if ":" in host else host
    address = f"http://{name}:{server.server_address[1]}/"
    ready(address)
    if browser:
        threading.Timer(0.2, webbrowser.open, (address,)).start()
    try:
        server.serve_forever()
    except KeyboardInterrupt:
        pass
    finally:
        server.server_close()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    # A second explorer on the same port must fail, not share it.
    allow_reuse_address = False

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Report errors of the pages, and not browsers that hang up before they have read all."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)


class _Server6(_Server):
    address_family = socket.AF_INET6


def _handler(host: str) -> type[BaseHTTPRequestHandler]:
    """Return a request handler that serves the pages to visitors who name this machine."""
    pages = {f"/{name}": render(name) for name in PAGES}
    pages["/"] = pages["/index.html"]

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        timeout = 30

        def do_GET(self) -> None:
            page = pages.get(self.path.partition("?")[0])
            if not _is_local_name(self.headers.get("Host", ""), host):
                # Another site can reach this machine only under a name that it controls.
                self._answer(
                    HTTPStatus.FORBIDDEN, "This server does not answer to that name."
                )
            elif page is None:
                self._answer(HTTPStatus.NOT_FOUND, "There is no such page.")
            else:
                self._answer(HTTPStatus.OK, page, "text/html")

        do_HEAD = do_GET  # noqa: N815

        def _answer(
            self, status: HTTPStatus, text: str, kind: str = "text/plain"
        ) -> None:
            body = text.encode()
            self.send_response(status)
            self.send_header("Content-Type", f"{kind}; charset=utf-8")
            self.send_header("Content-Length", str(len(body)))
            self.send_header("Content-Security-Policy", _security_policy(text))
            self.send_header("X-Content-Type-Options", "nosniff")
            self.send_header("Referrer-Policy", "no-referrer")
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002
            """Print nothing per request."""

    return Handler


def _security_policy(page: str) -> str:
    """Allow the page's own scripts, and no request to anywhere."""
    scripts = re.findall(r"<script>(.*?)</script>", page, re.DOTALL)
    digests = [hashlib.sha256(script.encode()).digest() for script in scripts]
    allowed = " ".join(
        f"'sha256-{base64.b64encode(digest).decode()}'" for digest in digests
    )
    return (
        f"default-src 'none'; script-src {allowed or _NO_SCRIPTS}; style-src 'unsafe-inline'; "
        "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )


def _is_local_name(header: str, host: str) -> bool:
    """Whether a Host header names this machine: an address, localhost, or its own name."""
    name = header if header.endswith("]") else header.rpartition(":")[0] or header
    name = name.strip("[]")
    if name in {"localhost", host, socket.gethostname()}:
        return True
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
