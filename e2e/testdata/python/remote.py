"""Lets scripts use jupyter_server's GatewayKernelManager and GatewayKernelClient without a server."""
import inspect
import time

from jupyter_client.utils import run_sync
from jupyter_server.gateway import managers
from jupyter_server.gateway.gateway_client import GatewayClient

import checks

# A kernel client that waits for its kernel asks its manager each second whether the kernel is alive, by this method.
# GatewayKernelManager has only is_alive. jupyter_client's own method fails there, because no process is this machine's.
managers.GatewayKernelManager._async_is_alive = managers.GatewayKernelManager.is_alive

# Added to the address of new websockets. GatewayKernelClient itself sends no session id.
query = ""


def point_at(url, token):
    """Makes every gateway client of this process connect to url."""
    client = GatewayClient.instance()
    client.url = url
    client.auth_token = token
    client.init_connection_args()
    if not token:
        return
    # GatewayKernelClient does not send the token on its websocket, but a gateway with authentication needs it.
    plain = managers.websocket.create_connection

    def with_token(ws_url, **kw):
        kw.setdefault("header", []).append(f"Authorization: token {token}")
        return plain(ws_url + query, **kw)

    managers.websocket.create_connection = with_token


@run_sync
async def wait(awaitable):
    """Awaits an object on this thread's event loop."""
    return await awaitable


class Blocking:
    """Makes an async kernel client's methods blocking, as jupyter_kernel_test expects them."""

    def __init__(self, client):
        self._client = client

    def __getattr__(self, name):
        value = getattr(self._client, name)
        if not inspect.ismethod(value):
            return value

        def call(*args, **kw):  # some methods return a coroutine only if they wait for the reply
            result = value(*args, **kw)
            return wait(result) if inspect.isawaitable(result) else result

        return call


def start(kernel_name, timeout=60):
    """Starts a kernel on the gateway and returns its manager and a blocking client that is ready."""
    manager = managers.GatewayKernelManager()
    run_sync(manager.start_kernel)(kernel_name=kernel_name)
    client = Blocking(manager.client())
    client.start_channels()
    client.wait_for_ready(timeout=timeout)
    return manager, client


def run(client, code, timeout=30):
    """Executes code. Returns the reply's content and the text on stdout.

    GatewayKernelClient has no execute_interactive: its channels have no ZeroMQ socket to poll.
    """
    msg_id = client.execute(code)
    deadline = time.monotonic() + timeout
    while (reply := client.get_shell_msg(timeout=timeout))["parent_header"].get("msg_id") != msg_id:
        assert time.monotonic() < deadline, f"no reply to {code!r} within {timeout} s"
    out = []
    while True:
        m = client.get_iopub_msg(timeout=timeout)
        if m["parent_header"].get("msg_id") != msg_id:
            continue
        if m["msg_type"] == "stream" and m["content"]["name"] == "stdout":
            out.append(m["content"]["text"])
        if m["msg_type"] == "status" and m["content"]["execution_state"] == "idle":
            return reply["content"], "".join(out)


def assert_through_gateway(manager, client):
    """Does the same as in checks, and checks that the kernel's environment has the id that the gateway lists."""
    _, out = run(client, "import os; print('id=' + os.environ.get('EKG_KERNEL_ID', 'none'))")
    assert "id=" in out, f"printed {out!r}"
    checks.assert_through_gateway(manager.kernel_id, out.split("id=")[1].split()[0])
