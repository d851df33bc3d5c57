"""Shared parts of the end to end tests' Python scripts: named checks, and direct requests to the gateway.

A script prints one line per check, "PASS name" or "FAIL name: why", and exits 1 if any check failed. The Go test that
runs the script turns the lines into subtests. The environment variables are:

- EKG_URL and EKG_TOKEN: the gateway. The token may be empty.
- EKG_KERNELS: the names of the kernelspecs to try, separated by commas.
- EKG_CONTROL: the address of the test that started the gateway, for scripts that may kill the gateway.
"""
import json
import os
import signal
import socket
import subprocess
import sys
import time
import traceback
import urllib.error
import urllib.request

URL = os.environ["EKG_URL"].rstrip("/")
TOKEN = os.environ.get("EKG_TOKEN", "")
STAND_IN = os.environ.get("EKG_STAND_IN") == "1"  # a plain jupyter server replaces the gateway, to test these scripts
KERNELS = os.environ.get("EKG_KERNELS", "python3").split(",")
INTERRUPTIBLE = [k for k in KERNELS if k != "xpython"]  # a SIGINT ends the xpython of PyPI's wheel

_failed = []


def check(name, fn, *args):
    """Runs fn and prints the result. Returns what fn returned, or None if it failed."""
    began = time.monotonic()
    try:
        result = fn(*args)
    except Exception as e:  # a failed check must not hide those after it
        traceback.print_exc()
        why = " ".join(f"{type(e).__name__}: {e}".split())
        print(f"FAIL {name}: {why[:500]}", flush=True)
        _failed.append(name)
        return None
    print(f"PASS {name} ({time.monotonic() - began:.1f} s)", flush=True)
    return result


def finish():
    sys.exit(1 if _failed else 0)


def rest(path, method="GET", body=None, base=None, token=None):
    """Sends a request to the gateway, or to base. Returns the JSON response; raises an HTTP error with its body."""
    token = TOKEN if token is None else token
    request = urllib.request.Request((base or URL) + path, method=method)
    if token:
        request.add_header("Authorization", f"token {token}")
    if body is not None:
        request.add_header("Content-Type", "application/json")
        request.data = json.dumps(body).encode()
    try:
        with urllib.request.urlopen(request, timeout=60) as response:
            raw = response.read()
    except urllib.error.HTTPError as e:
        raise AssertionError(f"{method} {path}: {e.code} {e.read()[:300]!r}") from e
    return json.loads(raw) if raw else None


def control(what):
    """Ends the gateway by kill -9 ("kill"), or starts it again ("start"). Returns when that is done."""
    rest(f"/{what}", "POST", base=os.environ["EKG_CONTROL"], token="")


def wait_for(what, seconds, holds):
    """Waits until holds() is true."""
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, f"not within {seconds} s: {what}"
        time.sleep(0.05)


def assert_through_gateway(kernel_id, env_id=None):
    """Checks that the gateway itself knows the kernel and has connections to it.

    Several of these libraries start a local kernel by default, and then every check would pass without the gateway.
    """
    def connected():  # one gateway of several learns of a connection to another from the kernel's supervisor
        model.update(rest(f"/api/kernels/{kernel_id}"))
        return model["connections"] >= 1

    model = {}
    wait_for(f"a client is connected to {kernel_id}", 10, connected)
    assert model["id"] == kernel_id, model
    if env_id is not None and not STAND_IN:
        assert env_id == kernel_id, f"the kernel says it is {env_id!r}, the gateway that it is {kernel_id!r}"
    return model


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


class Server:
    """A jupyter server with --gateway-url at the gateway, as a child process.

    It is the newest server unless another interpreter is given. EKG_EXTENSION is the folder into which
    hack/env/extension has installed jupyter-ekg; it is empty for a server without jupyter-ekg. Other extensions are in
    folders of the same form.
    """

    def __init__(self, directory, program=("jupyter_server",), options=(), python=sys.executable, folders=()):
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.log = open(os.path.join(directory, "jupyter_server.log"), "w")
        env = dict(os.environ, JUPYTER_GATEWAY_AUTH_TOKEN=TOKEN, JUPYTER_CONFIG_DIR=os.path.join(directory, "config"))
        if folders := [f for f in (os.environ.get("EKG_EXTENSION"), *folders) if f]:
            env.update(PYTHONPATH=os.pathsep.join(folders),
                       JUPYTER_CONFIG_PATH=os.pathsep.join(os.path.join(f, "etc/jupyter") for f in folders))
        self.process = subprocess.Popen(
            [python, "-m", *program, "--gateway-url", URL, "--no-browser", "--allow-root", "--ip=127.0.0.1",
             f"--port={self.port}", "--ServerApp.port_retries=0", "--IdentityProvider.token=",
             "--ServerApp.disable_check_xsrf=True", f"--ServerApp.root_dir={directory}", *options],
            env=env, stdout=self.log, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL)

    def wait(self, seconds=60):
        deadline = time.monotonic() + seconds
        while True:
            try:
                return rest("/api", base=self.url, token="")
            except OSError as e:
                if self.process.poll() is not None or time.monotonic() > deadline:
                    raise AssertionError(f"jupyter server does not answer; see {self.log.name}") from e
            time.sleep(0.1)

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.log.close()
