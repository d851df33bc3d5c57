"""The client for programs: it sends the token, survives the gateway's absence, and ends when that lasts."""

from __future__ import annotations

import asyncio
import queue

import pytest
from conftest import LIMIT
from jupyter_server.gateway.gateway_client import GatewayClient
from supervisor import KERNEL, Supervisor, iopub, message, shell, stream

from jupyter_ekg import EkgKernelClient, EkgKernelManager
from jupyter_ekg import client as client_module
from jupyter_ekg.client import EkgServerKernelManager


@pytest.fixture()
def gateway_client():
    """The settings of the gateway, which are one per process."""
    GatewayClient.clear_instance()
    yield GatewayClient.instance()
    GatewayClient.clear_instance()


def run(main):
    """Runs a test's coroutine within LIMIT."""
    asyncio.run(asyncio.wait_for(main, LIMIT))


async def started(supervisor, gateway_client, **kwargs):
    """A manager with its kernel, and a client of it with running channels."""
    gateway_client.url, gateway_client.auth_token = supervisor.url, "secret"
    manager = EkgKernelManager(kernel_name="python3", **kwargs)
    await manager.start_kernel()
    client = manager.client()
    assert isinstance(client, EkgKernelClient)
    await client.start_channels()
    return manager, client


async def stopped(client):
    """Stops the client's thread without holding up the supervisor, which runs in this one."""
    await asyncio.get_running_loop().run_in_executor(None, client.stop_channels)


def test_messages_and_token(gateway_client):
    """Requests go out with the token; what comes is sorted into channels, with buffers."""

    async def main():
        async with Supervisor() as supervisor:
            _, client = await started(supervisor, gateway_client)
            msg_id = client.execute("1")
            supervisor.say(stream("out"), iopub("comm_msg", {}, buffers=(b"\xff",)))
            assert (await client.get_iopub_msg(timeout=LIMIT))["content"]["text"] == "out"
            assert (await client.get_iopub_msg(timeout=LIMIT))["buffers"] == [b"\xff"]
            with pytest.raises(queue.Empty):
                await client.get_shell_msg(timeout=0.05)
            while not supervisor.accepted:
                await asyncio.sleep(0.01)
            assert supervisor.accepted == [msg_id]
            assert supervisor.headers[0]["Authorization"] == "token secret"
            assert client.channels_running
            await stopped(client)
            assert not client.channels_running
            with pytest.raises(RuntimeError):
                client.execute("2")

    run(main())


def test_gateway_that_restarts(gateway_client):
    """A short absence is not noticed: nothing is lost, and the kernel counts as alive."""

    async def main():
        async with Supervisor() as supervisor:
            manager, client = await started(supervisor, gateway_client)
            supervisor.say(stream("before"))
            await client.get_iopub_msg(timeout=LIMIT)
            await supervisor.stop()
            msg_id = client.execute("meanwhile")
            assert await manager.is_alive()
            supervisor.say(stream("meanwhile"))
            await supervisor.start()
            assert (await client.get_iopub_msg(timeout=LIMIT))["content"]["text"] == "meanwhile"
            while not supervisor.accepted:
                await asyncio.sleep(0.01)
            assert supervisor.accepted == [msg_id]
            await stopped(client)

    run(main())


def test_start_while_the_gateway_is_away(gateway_client, caplog):
    """The start is repeated until the gateway is there, always for the same kernel and the manager's kernelspec."""

    async def main():
        async with Supervisor() as supervisor:
            gateway_client.url = supervisor.url
            await supervisor.stop()
            manager = EkgKernelManager(kernel_name="other")
            starting = asyncio.ensure_future(manager.start_kernel())
            while "trying again" not in caplog.text:
                await asyncio.sleep(0.01)
            supervisor.start_status = 503
            await supervisor.start()
            while len(supervisor.starts) < 2:
                await asyncio.sleep(0.01)
            supervisor.start_status = 201
            await starting
            assert {start["name"] for start in supervisor.starts} == {"other"}
            assert len({start["env"]["KERNEL_ID"] for start in supervisor.starts}) == 1

    run(main())


def test_gateway_that_stays_away(gateway_client):
    """A program that waits for a message gets an error after the limit, and the kernel counts as lost."""

    async def main():
        async with Supervisor() as supervisor:
            manager, client = await started(supervisor, gateway_client, away_limit=LIMIT)
            assert client.away_limit == LIMIT
            supervisor.say(stream("last"))
            await client.get_iopub_msg(timeout=LIMIT)
            manager.away_limit = client.away_limit = 0.5  # not before: the first connection may be slow
            await supervisor.stop()
            with pytest.raises(RuntimeError, match="the gateway has been away"):
                await client.get_shell_msg(timeout=None)
            assert await manager.is_alive()  # unsure, at first
            while await manager.is_alive():
                await asyncio.sleep(0.01)
            await stopped(client)
            await supervisor.start()

    run(main())


@pytest.mark.parametrize("fault", ["gone", "no relay"])
def test_ends_with_a_reason(gateway_client, fault):
    """A kernel that is gone and a server that is no ekg end the waiting, too."""

    async def main():
        async with Supervisor() as supervisor:
            if fault == "gone":
                supervisor.close_with = (1000, "the kernel is gone: out of memory")
            else:
                supervisor.protocol = False
            _, client = await started(supervisor, gateway_client)
            with pytest.raises(RuntimeError, match="out of memory|it is not ekg"):
                await client.get_shell_msg(timeout=None)
            await stopped(client)

    run(main())


def test_a_dead_kernel_is_not_alive(gateway_client):
    """404 at the gateway is the end."""

    async def main():
        async with Supervisor() as supervisor:
            manager, client = await started(supervisor, gateway_client)
            await stopped(client)
            assert await manager.is_alive()
            supervisor.kernel_status = 404
            assert not await manager.is_alive()
            assert KERNEL == manager.kernel_id

    run(main())


def status(msg_id, state):
    """A status message that answers a request."""
    return iopub("status", {"execution_state": state}, {"msg_id": msg_id})


async def in_server(supervisor, gateway_client):
    """A client as extensions of a Jupyter server get it. Its channels are not started."""
    gateway_client.url = supervisor.url
    manager = EkgServerKernelManager()
    await manager.start_kernel(kernel_id=KERNEL)
    return manager.client()


async def accepted(supervisor, count):
    """Waits until the supervisor has so many requests, and returns their ids."""
    while len(supervisor.accepted) < count:
        await asyncio.sleep(0.01)
    return supervisor.accepted


def test_waiting_for_the_kernel_starts_the_channels(gateway_client):
    """As with jupyter_client's clients, whose sockets need no start. It waits as long as the kernel starts."""

    async def main():
        async with Supervisor() as supervisor:
            client = await in_server(supervisor, gateway_client)
            assert client.channel_socket is None
            waiting = asyncio.ensure_future(client.wait_for_ready())
            ids = await accepted(supervisor, 2)  # the first has no answer for a second
            reply = {"protocol_version": "5.3", "language_info": {}}
            supervisor.say(
                status(ids[1], "idle"), shell("kernel_info_reply", reply, {"msg_id": ids[1]}), status(ids[1], "idle")
            )
            await waiting
            assert client.channel_socket is not None
            assert await client.is_alive()
            supervisor.kernel_status = 404
            assert not await client.is_alive()
            await stopped(client)

    run(main())


def test_execute_interactive(gateway_client):
    """Output and requests for input of the request reach the hooks; the reply is returned."""

    async def main():
        async with Supervisor() as supervisor:
            client = await in_server(supervisor, gateway_client)
            await client.start_channels()
            shown, asked = [], []

            async def answer(msg):
                asked.append(msg["content"]["prompt"])
                client.input("Ada")

            running = asyncio.ensure_future(
                client.execute_interactive("input()", output_hook=shown.append, stdin_hook=answer)
            )
            [msg_id] = await accepted(supervisor, 1)
            parent = {"msg_id": msg_id}
            supervisor.say(
                stream("of another cell", {"msg_id": "another"}),
                stream("one", parent),
                message("stdin", "input_request", {"prompt": "name?"}, parent),
            )
            await accepted(supervisor, 2)
            supervisor.say(
                shell("execute_reply", {"status": "ok"}, {"msg_id": "another"}),
                shell("execute_reply", {"status": "ok", "execution_count": 7}, parent),
                stream("two", parent),
                status(msg_id, "idle"),
            )
            reply = await running
            assert reply["content"]["execution_count"] == 7
            assert [msg["content"].get("text") for msg in shown] == ["one", "two", None]
            assert asked == ["name?"]
            with pytest.raises(TimeoutError, match="output"):
                await client.execute_interactive("1", timeout=0.05, output_hook=shown.append)
            ended = asyncio.ensure_future(client.execute_interactive("1", output_hook=shown.append))
            await accepted(supervisor, 4)
            await stopped(client)
            with pytest.raises(RuntimeError, match="stopped"):
                await ended

    run(main())


def test_unread_output_in_a_server_is_dropped(gateway_client, monkeypatch):
    """The oldest output first. Replies and ends of requests stay, and a remark says what is missing."""
    monkeypatch.setattr(client_module, "_MOST_UNREAD_IN_SERVER", 20_000)

    async def main():
        async with Supervisor() as supervisor:
            client = await in_server(supervisor, gateway_client)
            await client.start_channels()
            lines = [stream(f"{i} " + "x" * 1000) for i in range(100)]
            of_cell = [status("cell", "busy"), *(stream("x" * 1000, {"msg_id": "cell"}) for _ in range(50))]
            supervisor.say(shell("execute_reply", {"status": "ok"}, {}), *of_cell, status("cell", "idle"), *lines)
            while not supervisor.pongs or supervisor.pongs[-1] < 153:
                await asyncio.sleep(0.01)
            remark, idle, other = [await client.get_iopub_msg(timeout=0) for _ in range(3)]
            assert remark["parent_header"] == idle["parent_header"] == {"msg_id": "cell"}
            assert remark["content"]["text"].startswith("[ekg] ") and remark["content"]["text"].endswith(": 50.\n")
            assert idle["content"]["execution_state"] == "idle"
            texts = []
            with pytest.raises(queue.Empty):
                while True:
                    texts.append((await client.get_iopub_msg(timeout=0))["content"]["text"].split()[0])
            assert other["content"]["text"].endswith(f": {100 - len(texts)}.\n")
            assert client._unread == client.shell_channel._messages[0][1]
            assert 10 <= len(texts) <= 20
            assert texts == [str(i) for i in range(100 - len(texts), 100)]
            assert (await client.get_shell_msg(timeout=0))["content"] == {"status": "ok"}
            await stopped(client)

    run(main())


def test_kept_ends_are_bounded(gateway_client, monkeypatch):
    """Ends of requests and remarks take a part of the bound, and the newest of them stay."""
    monkeypatch.setattr(client_module, "_MOST_UNREAD_IN_SERVER", 80_000)

    async def main():
        async with Supervisor() as supervisor:
            client = await in_server(supervisor, gateway_client)
            await client.start_channels()
            for i in range(300):
                supervisor.say(stream("x" * 1000, {"msg_id": str(i)}), status(str(i), "idle"))
            while not supervisor.pongs or supervisor.pongs[-1] < 600:
                await asyncio.sleep(0.01)
            assert client._unread <= 80_000
            assert 5_000 < client.iopub_channel._kept_size <= 10_000
            ends = []
            with pytest.raises(queue.Empty):
                while True:
                    msg = await client.get_iopub_msg(timeout=0)
                    if msg["msg_type"] == "status":
                        ends.append(int(msg["parent_header"]["msg_id"]))
            assert ends == list(range(300 - len(ends), 300))
            assert len(ends) > 50
            assert client._unread == 0
            await stopped(client)

    run(main())
