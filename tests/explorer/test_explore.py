"""Starting the explorer."""

import socket
import subprocess
import sys

import pytest

import overt
from overt.explorer import explore


def test_a_port_that_is_taken_is_told():
    pytest.importorskip("dash", reason="the explorer needs dash")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(overt.InputError, match=f"port {port} of 127.0.0.1 cannot be used"):
            explore(port=port, browser=False)


def test_what_is_missing_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "dash", None)
    with pytest.raises(overt.MissingExtraError, match=r"pip install 'overt\[explorer\]'"):
        explore(browser=False)


def test_nothing_else_loads_dash():
    code = "import sys, overt.cli, overt.explorer; print('dash' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
