"""One Jupyter server for all tests that need one, with a gateway's address at which they start a supervisor."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request

import pytest

TOKEN = "the-servers-token"
GATEWAY_TOKEN = "the-gateways-token"

# Seconds after which a test that hangs fails. It is no measure of speed: a loaded machine needs many times as long.
LIMIT = 120.0


def _free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


class Server:
    """A running ``jupyter server --gateway-url``."""

    def __init__(self, folder, *args, gateway_port=None):
        self.port, self.gateway_port = _free_port(), gateway_port or _free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        env = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(p for p in (os.path.dirname(__file__), os.environ.get("PYTHONPATH")) if p),
            "HOME": str(folder),
            "JUPYTER_TOKEN": TOKEN,
            "JUPYTER_GATEWAY_AUTH_TOKEN": GATEWAY_TOKEN,
            "JUPYTER_CONFIG_DIR": str(folder / "config"),
            "JUPYTER_RUNTIME_DIR": str(folder / "runtime"),
        }
        self.log = folder / "server.log"
        with open(self.log, "wb") as out:
            # Enabled by being installed: nothing here names the extension.
            self.process = subprocess.Popen(
                [sys.executable, "-m", "jupyter_server", "--no-browser", "--allow-root", f"--port={self.port}",
                 f"--ServerApp.root_dir={folder}", "--ServerApp.jpserver_extensions={'cellroute': True}",
                 f"--gateway-url=http://127.0.0.1:{self.gateway_port}", *args],
                env=env, cwd=folder, stdout=out, stderr=subprocess.STDOUT,
            )  # fmt: skip

    def wait(self) -> None:
        """Waits until it answers."""
        end = time.monotonic() + LIMIT
        while time.monotonic() < end:
            try:
                with urllib.request.urlopen(self.url + "/api", timeout=5) as response:
                    json.load(response)
                    return
            except (urllib.error.URLError, OSError):
                if self.process.poll() is not None:
                    break
                time.sleep(0.1)
        pytest.fail("the Jupyter server does not start:\n" + self.log.read_text())

    def end(self) -> None:
        """Ends it. An orderly end would hang: jupyter_server wants to stop its kernels at a gateway that is no more."""
        self.process.kill()
        self.process.wait()


@pytest.fixture(scope="session")
def server(tmp_path_factory):
    """The Jupyter server."""
    server = Server(tmp_path_factory.mktemp("server"))
    try:
        server.wait()
        yield server
    finally:
        server.end()
