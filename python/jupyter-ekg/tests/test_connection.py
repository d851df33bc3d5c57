"""The extension in a real Jupyter server, between an aiohttp client as the browser and the tests' supervisor."""

from __future__ import annotations

import asyncio
import contextlib
import json
from typing import ClassVar

import aiohttp
import pytest
from conftest import GATEWAY_TOKEN, LIMIT, TOKEN
from jupyter_server.gateway.gateway_client import GatewayClient
from supervisor import KERNEL, KERNEL_SESSION, Supervisor, iopub, request, stream
from tornado.websocket import WebSocketHandler
from traitlets.config import Configurable

from jupyter_ekg import EkgWebsocketConnection, framing

AUTH = {"Authorization": f"token {TOKEN}"}


def run(main):
    """Runs a test's coroutine within LIMIT."""
    asyncio.run(asyncio.wait_for(main, LIMIT))


@contextlib.asynccontextmanager
async def gateway(server):
    """A supervisor at the server's gateway, and a session of the browser at a server that knows the kernel."""
    async with Supervisor(server.gateway_port) as supervisor, aiohttp.ClientSession(headers=AUTH) as browser:
        async with browser.post(server.url + "/api/kernels", json={"name": "python3"}) as response:
            assert response.status == 201, await response.text()
        yield supervisor, browser
        # What one test leaves is not to reach the supervisor of the next.
        await until(lambda: not supervisor.peers)


def channels(server, browser, session="browser", v1=True):
    """Opens the kernel's websocket as a browser does."""
    return browser.ws_connect(
        f"{server.url}/api/kernels/{KERNEL}/channels?session_id={session}",
        protocols=(framing.V1,) if v1 else (),
        autoping=False,
        max_msg_size=0,
    )


async def next_message(ws):
    """The next message, pings answered."""
    while True:
        msg = await ws.receive()
        if msg.type is aiohttp.WSMsgType.PING:
            await ws.pong(msg.data)
            continue
        return msg


async def until(condition):
    """Waits for a condition; the test's own limit ends it."""
    while not condition():
        await asyncio.sleep(0.01)


def test_frames_pass_as_they_are(server):
    """Binary buffers and large messages pass both ways, with the gateway's credential and the session on the way."""

    async def main():
        async with gateway(server) as (supervisor, browser), channels(server, browser) as ws:
            assert ws.protocol == framing.V1
            binary = iopub("comm_msg", {"comm_id": "c"}, buffers=(bytes(range(256)) * 100, b""))
            large = stream("x" * 30_000_000)
            supervisor.say(binary, large)
            assert (await next_message(ws)).data == binary
            assert (await next_message(ws)).data == large
            await ws.send_bytes(request("a", size=30_000_000))
            await until(lambda: supervisor.accepted == ["a"])
            assert supervisor.connections[0] == {"session_id": "browser"}
            assert supervisor.headers[0]["Authorization"] == f"token {GATEWAY_TOKEN}"

    run(main())


def test_acknowledges_when_the_browser_does(server):
    """The supervisor's ping reaches the browser behind the message, and is answered when the browser answers."""

    async def main():
        async with gateway(server) as (supervisor, browser), channels(server, browser) as ws:
            supervisor.say(stream("a"))
            assert (await ws.receive()).type is aiohttp.WSMsgType.BINARY
            ping = await ws.receive()
            assert ping.type is aiohttp.WSMsgType.PING
            assert supervisor.pongs == []
            supervisor.say(stream("b"))
            assert (await ws.receive()).type is aiohttp.WSMsgType.BINARY
            newest = await ws.receive()
            await ws.pong(newest.data)  # for both
            await until(lambda: supervisor.pongs == [2])

    run(main())


def test_browser_with_the_older_framing(server):
    """A browser that offers no subprotocol gets and sends JSON, and binary messages where there are buffers."""

    async def main():
        async with gateway(server) as (supervisor, browser), channels(server, browser, v1=False) as ws:
            assert ws.protocol is None
            supervisor.say(stream("text"), iopub("comm_msg", {"comm_id": "c"}, buffers=(b"\xff\x00",)))
            msg = json.loads((await next_message(ws)).data)
            assert (msg["channel"], msg["msg_type"], msg["content"]["text"]) == ("iopub", "stream", "text")
            binary = await next_message(ws)
            assert binary.type is aiohttp.WSMsgType.BINARY
            assert binary.data.endswith(b"\xff\x00")
            await ws.send_str(json.dumps({**framing.to_dict(request("old")), "buffers": []}))
            await ws.send_bytes(
                framing.to_legacy(framing.from_dict({**framing.to_dict(request("old2")), "buffers": [b"b"]}))
            )
            await until(lambda: supervisor.accepted == ["old", "old2"])

    run(main())


def test_sentence_in_the_cell_while_the_gateway_is_away(server):
    """It stands in the running cell, in the kernel's name, and is updated later; what was sent meanwhile runs once."""

    async def main():
        async with gateway(server) as (supervisor, browser), channels(server, browser) as ws:
            await ws.send_bytes(request("cell"))
            await until(lambda: supervisor.accepted == ["cell"])
            parent = {"msg_id": "cell", "msg_type": "execute_request", "session": "browser"}
            supervisor.say(iopub("status", {"execution_state": "busy"}, parent))
            await next_message(ws)
            await supervisor.stop()
            await ws.send_bytes(request("meanwhile"))
            said = framing.to_dict((await next_message(ws)).data)
            assert said["msg_type"] == "display_data"
            assert said["header"]["session"] == KERNEL_SESSION
            assert said["parent_header"]["msg_id"] == "cell"
            assert "connection to the gateway is lost" in said["content"]["data"]["text/plain"]
            supervisor.say(stream("on", parent))
            await supervisor.start()
            back = framing.to_dict((await next_message(ws)).data)
            assert back["msg_type"] == "update_display_data"
            assert back["content"]["transient"] == said["content"]["transient"]
            assert "is back" in back["content"]["data"]["text/plain"]
            assert framing.to_dict((await next_message(ws)).data)["content"]["text"] == "on"
            await until(lambda: supervisor.accepted == ["cell", "meanwhile"])

    run(main())


class Handler(WebSocketHandler):
    """A browser's websocket that keeps what is written to it."""

    ws_connection = None
    selected_subprotocol = framing.V1
    settings: ClassVar[dict] = {}

    def __init__(self):
        self.written = []

    def write_message(self, message, binary=False):
        self.written.append(framing.to_dict(message))
        return asyncio.sleep(0)


class Kernel(Configurable):
    """A kernel's manager, as far as a connection looks at it."""

    kernel_id = KERNEL


def test_sentence_in_a_cell_that_is_sent_meanwhile():
    """Where nothing runs when the gateway goes, the cell that is sent meanwhile says it: the first, not each."""

    async def main():
        GatewayClient.instance().url = "http://127.0.0.1:1"
        handler = Handler()
        connection = EkgWebsocketConnection(parent=Kernel(), websocket_handler=handler)
        await connection.connect()
        await connection.deliver(stream("the kernel's session"))
        connection.away("no answer")
        assert [msg["msg_type"] for msg in handler.written] == ["stream"]
        connection.handle_incoming_message(request("late"))
        connection.handle_incoming_message(request("later"))
        connection.back()
        said, back = handler.written[1:]
        assert (said["msg_type"], said["parent_header"]["msg_id"]) == ("display_data", "late")
        assert back["content"]["transient"] == said["content"]["transient"]
        # A page whose websocket breaks meanwhile hears of the end by its next one.
        connection.away("no answer")
        connection.handle_incoming_message(request("again"))
        connection.disconnect()
        returned = Handler()
        again = EkgWebsocketConnection(parent=Kernel(), websocket_handler=returned)
        again.session.session = connection.session.session
        await again.connect()
        again.back()
        assert returned.written[0]["content"]["transient"] == handler.written[-1]["content"]["transient"]
        again.disconnect()
        await EkgWebsocketConnection.close_all()

    GatewayClient.clear_instance()
    try:
        run(main())
    finally:
        GatewayClient.clear_instance()


def test_input_of_a_page_that_was_left(server):
    """Input sent while the gateway was away is delivered although the page was closed, or by the next page."""

    async def main():
        async with gateway(server) as (supervisor, browser):
            async with channels(server, browser) as ws:
                await until(lambda: supervisor.connections)
                await supervisor.stop()
                await ws.send_bytes(request("left"))
                await ws.send_bytes(request("left too"))
            async with channels(server, browser) as ws:
                await ws.send_bytes(request("next"))
                await supervisor.start()
                await until(lambda: len(supervisor.accepted) == 3)
            assert supervisor.accepted == ["left", "left too", "next"]

    run(main())


@pytest.mark.parametrize("how", ["404", "1000"])
def test_kernel_gone(server, how):
    """The browser's websocket is closed, with a code after which JupyterLab looks again."""

    async def main():
        async with gateway(server) as (supervisor, browser):
            if how == "404":
                supervisor.status = 404
            else:
                supervisor.close_with = (1000, "the kernel is gone: it was shut down")
            async with channels(server, browser) as ws:
                msg = await next_message(ws)
                assert (msg.type, msg.data) == (aiohttp.WSMsgType.CLOSE, 1012)
            # The next one is refused, as long as that is so; then JupyterLab asks about the kernel.
            supervisor.kernel_status = 404
            with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
                await channels(server, browser)
            assert refused.value.status == 404
            supervisor.status = supervisor.kernel_status = 200
            supervisor.close_with = None
            async with channels(server, browser) as ws:
                supervisor.say(stream("there again"))
                assert (await next_message(ws)).type is aiohttp.WSMsgType.BINARY

    run(main())


def test_clients_of_server_extensions(server):
    """An extension of the server gets a client that is connected with the gateway's token."""

    async def main():
        async with gateway(server) as (supervisor, browser):
            running = asyncio.ensure_future(browser.post(f"{server.url}/cell/{KERNEL}", data="1"))
            await until(lambda: supervisor.accepted)
            supervisor.say(stream("done", {"msg_id": supervisor.accepted[0]}))
            async with await running as response:
                assert response.status == 200, await response.text()
                assert await response.json() == {"text": "done", "msg_id": supervisor.accepted[0]}
            assert supervisor.headers[-1]["Authorization"] == f"token {GATEWAY_TOKEN}"

    run(main())


def test_bad_frames(server):
    """A frame that is not a message closes the browser's websocket and reaches no supervisor."""

    async def main():
        async with gateway(server) as (supervisor, browser):
            for bad in (b"", b"\x00" * 100, (1 << 62).to_bytes(8, "little") + bytes(80)):
                async with channels(server, browser) as ws:
                    await ws.send_bytes(bad)
                    msg = await next_message(ws)
                    assert (msg.type, msg.data) == (aiohttp.WSMsgType.CLOSE, 1007)
            assert supervisor.accepted == []

    run(main())


def test_gateway_that_is_not_ekg(server):
    """It is connected as jupyter_server does it, and the log says so. If ekg replaces it, kernels are relayed again."""

    async def main():
        async with gateway(server) as (supervisor, browser):
            supervisor.protocol = False
            async with channels(server, browser) as ws:
                assert (await next_message(ws)).data == 1012
            async with channels(server, browser) as ws:
                assert ws.protocol is None
                await ws.send_str(json.dumps(framing.to_dict(request("plain"))))
                assert json.loads((await next_message(ws)).data)["parent_header"]["msg_id"] == "plain"
            assert "does not speak the relay's protocol" in server.log.read_text()
            supervisor.protocol = True
            async with channels(server, browser) as ws:
                await ws.send_str(json.dumps(framing.to_dict(request("ekg"))))
                await until(lambda: supervisor.accepted[-1] == "ekg")
            async with channels(server, browser) as ws:
                assert ws.protocol == framing.V1

    run(main())


def test_log_route(server):
    """The log is read with the gateway's credential. Users who may read kernels of this server get it."""

    async def main():
        async with gateway(server) as (supervisor, browser):
            supervisor.log_lines = [b'{"number": 1}', b'{"number": 2, "lost": 3}']
            url = f"{server.url}/jupyter-ekg/kernels/{KERNEL}/log"
            async with browser.get(url + "?log=l&after=0&limit=2&parent=p&other=x") as response:
                assert response.status == 200
                assert response.headers["Ekg-Log"] == "0123456789abcdef"
                assert response.headers["Content-Type"] == "application/x-ndjson"
                assert (await response.read()).splitlines() == supervisor.log_lines
            want = {"log": "l", "after": "0", "limit": "2", "parent": "p", "authorization": f"token {GATEWAY_TOKEN}"}
            assert supervisor.log_queries == [want]
            async with aiohttp.ClientSession() as stranger, stranger.get(url) as response:
                assert response.status == 403
            async with browser.get(url.replace(KERNEL, KERNEL.replace("1", "9"))) as response:
                assert response.status == 404
            supervisor.kernel_status = 404
            async with browser.get(url) as response:
                assert response.status == 404
                assert "no such kernel" in (await response.json())["message"]
            assert len(supervisor.log_queries) == 2

    run(main())


def test_the_kernel_knows_the_file_of_its_session(server):
    """As a local kernel does. No other variable of the server's session is sent."""

    async def main():
        async with gateway(server) as (supervisor, browser):
            session = {"path": "a.ipynb", "name": "a.ipynb", "type": "notebook", "kernel": {"name": "python3"}}
            async with browser.post(server.url + "/api/sessions", json=session) as response:
                assert response.status == 201, await response.text()
                made = await response.json()
            env = supervisor.starts[-1]["env"]
            assert env.pop("JPY_SESSION_NAME").endswith("a.ipynb")
            assert [name for name in env if not name.startswith("KERNEL_")] == []
            async with browser.delete(f"{server.url}/api/sessions/{made['id']}") as response:
                assert response.status == 204, await response.text()

    run(main())


def test_outputs_route(server):
    """The server reads the outputs of cells from the log. Users who may read the log get them."""

    async def main():
        async with gateway(server) as (supervisor, browser):
            header = {"msg_type": "stream", "msg_id": "k1"}
            parent = {"msg_id": "a", "session": "page"}
            line = {"number": 1, "epoch": 1, "channel": "iopub", "cell": "c", "header": header, "parent_header": parent}
            content = {"name": "stdout", "text": "x"}
            supervisor.log_lines = [json.dumps({**line, "content": content}).encode(), b""]
            url = f"{server.url}/jupyter-ekg/kernels/{KERNEL}/outputs"
            async with browser.get(url) as response:
                cell = (await response.json())["cells"]["c"]
            assert cell["outputs"] == [{"output_type": "stream", "name": "stdout", "text": "x"}]
            assert (cell["msg_id"], cell["session"], cell["running"], cell["seen"]) == ("a", "page", True, ["k1"])
            async with aiohttp.ClientSession() as stranger, stranger.get(url) as response:
                assert response.status == 403

    run(main())


LONG = "the kernel's process ended with exit code 1: " + "No module named x and so on, 100% sure. " * 4


@pytest.mark.parametrize(
    ("status", "body", "want"),
    [
        (500, {"message": LONG, "reason": "Kernel failed to start"}, LONG),
        (403, {"message": "you have\n2 kernels", "reason": "Forbidden"}, "you have 2 kernels"),
        (403, {"reason": "you have 2 kernels"}, "you have 2 kernels"),
        (502, "<html>Bad Gateway</html>", "The gateway {url} answers with HTTP 502."),
        (None, {}, "The gateway {url} cannot be reached: Connection refused."),
    ],
)
def test_errors_of_kernels_are_the_gateways_alone(server, status, body, want):
    """JupyterLab's dialog shows the message: once, in short lines, without a sentence of jupyter_server."""

    async def main():
        async with gateway(server) as (supervisor, browser):
            want_text = want.format(url=f"http://127.0.0.1:{server.gateway_port}")
            if status is None:
                await supervisor.stop()
            supervisor.start_status = status
            supervisor.start_error = body if isinstance(body, str) else json.dumps(body)
            session = {"path": "a.ipynb", "type": "notebook", "kernel": {"name": "python3"}}
            for path, request in {"/api/kernels": {"name": "python3"}, "/api/sessions": session}.items():
                async with browser.post(server.url + path, json=request) as response:
                    message = (await response.json())["message"]
                    # For a session jupyter_server makes an HTTPError of the text, and Tornado doubles the sign.
                    assert " ".join(message.replace("%%", "%").split()) == " ".join(want_text.split()), path
                    assert max(len(line) for line in message.splitlines()) <= 81, path
                    assert response.status == (500 if path == "/api/sessions" else status or 503)
            if status is None:
                await supervisor.start()

    run(main())


ANN = {"owner": "ann", "shared_with": []}


@pytest.mark.parametrize(
    ("ownership", "trusted"),
    [
        ({}, True),  # a gateway without users
        (ANN, True),
        ({**ANN, "shared_with": [{"user": "bob", "right": "read"}]}, True),
        ({**ANN, "shared_with": [{"user": "bob", "right": "read"}, {"group": "g", "right": "use"}]}, False),
        ({**ANN, "shared_with": [{"user": "bob", "right": "a new one"}]}, False),
        ({**ANN, "shared_with": None}, False),
        ({**ANN, "shared_to_use": False}, True),
        ({**ANN, "shared_to_use": True}, False),  # bob could use it before
        ({**ANN, "shared_to_use": None}, False),
        ({"owner": "bob"}, False),  # who shares it with ann
        ({"owner": "bob", "shared_with": []}, False),  # ann is an admin
        ({"shared_with": []}, False),  # started before there were users
    ],
)
def test_outputs_are_trusted_if_they_are_the_users_own(server, ownership, trusted):
    """No other user can have run code in the kernel. Otherwise the page runs no script of the outputs."""

    async def main():
        async with gateway(server) as (supervisor, browser):
            supervisor.ownership = ownership
            line = {"number": 1, "epoch": 1, "channel": "iopub", "cell": "c", "header": {"msg_type": "stream"}}
            content = {"parent_header": {"msg_id": "a"}, "content": {"name": "stdout", "text": "x"}}
            supervisor.log_lines = [json.dumps({**line, **content}).encode()]
            async with browser.get(f"{server.url}/jupyter-ekg/kernels/{KERNEL}/outputs") as response:
                assert (await response.json())["cells"]["c"]["trusted"] is trusted

    run(main())


def test_user_route(server):
    """The name by which the gateway knows the server's credential; it is for users of the server."""

    async def main():
        async with gateway(server) as (supervisor, browser):
            supervisor.user = "100% ann"
            async with browser.get(f"{server.url}/jupyter-ekg/me") as response:
                assert await response.json() == {"identity": {"username": "100% ann"}}
            async with aiohttp.ClientSession() as stranger, stranger.get(f"{server.url}/jupyter-ekg/me") as response:
                assert response.status == 403

    run(main())


def test_following_the_log_ends_with_the_client(server):
    """Lines come at once, and a client that leaves takes its request at the gateway with it."""

    async def main():
        async with gateway(server) as (supervisor, browser):
            supervisor.log_lines = [b'{"number": 1}']
            url = f"{server.url}/jupyter-ekg/kernels/{KERNEL}/log?follow=true"
            async with browser.get(url) as response:
                assert await response.content.readline() == b'{"number": 1}\n'
                assert supervisor.open_logs == 1
            await until(lambda: supervisor.open_logs == 0)

    run(main())
