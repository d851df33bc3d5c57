"""The client for programs: it sends the token, survives the gateway's absence, and ends when that lasts."""

from __future__ import annotations

import asyncio
import queue

import pytest
from conftest import LIMIT
from jupyter_server.gateway.gateway_client import GatewayClient
from supervisor import KERNEL, Supervisor, iopub, stream

from jupyter_ekg import EkgKernelClient, EkgKernelManager


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
