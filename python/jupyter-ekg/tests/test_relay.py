"""The relay: nothing lost, nothing twice, nothing unbounded, wherever a connection breaks."""

from __future__ import annotations

import asyncio
import logging

import pytest
from conftest import LIMIT
from jupyter_server.gateway.gateway_client import GatewayClient
from supervisor import KERNEL, Supervisor, request, stream

from jupyter_ekg import relay as relay_module
from jupyter_ekg.relay import InputFull, InputRefused, KernelGone, NoRelay, Relay

log = logging.getLogger("test")


class Browser:
    """A peer that accepts and acknowledges everything. A test can stop either."""

    def __init__(self):
        self.frames: list[bytes] = []
        self.flowing = asyncio.Event()
        self.flowing.set()
        self.answers = True
        self.events: list[str] = []
        self.relay: Relay | None = None

    def deliver(self, frame):
        self.frames.append(frame)
        return self.flowing.wait()

    def ping(self, payload):
        if self.answers:
            self.relay.acknowledge(payload)

    def away(self, why):
        self.events.append("away")

    def back(self):
        self.events.append("back")


def with_supervisor(test):
    """Runs a coroutine function with a supervisor, a browser and its relay, within LIMIT."""

    def run(monkeypatch):
        async def main():
            async with Supervisor() as supervisor:
                GatewayClient.clear_instance()
                GatewayClient.instance().url = supervisor.url
                browser = Browser()
                browser.relay = Relay(browser, KERNEL, "browser", log)
                task = asyncio.ensure_future(browser.relay.run())
                try:
                    await test(supervisor, browser, task, monkeypatch)
                finally:
                    task.cancel()
                    await asyncio.gather(task, return_exceptions=True)

        try:
            asyncio.run(asyncio.wait_for(main(), LIMIT))
        finally:
            GatewayClient.clear_instance()

    run.__name__, run.__doc__ = test.__name__, test.__doc__
    return run


async def until(condition, task=None):
    """Waits for a condition; the test's own limit ends it."""
    while not condition():
        if task is not None and task.done():
            task.result()
        await asyncio.sleep(0.005)


@with_supervisor
async def test_delivers_once_whatever_breaks(supervisor, browser, task, monkeypatch):
    """Cut after every single message, output continues at the cursor: once, complete, in order."""
    monkeypatch.setattr(relay_module, "MIN_PAUSE", 0.005)
    want = [stream(f"{i}\n") for i in range(25)]
    for i, frame in enumerate(want):
        supervisor.cut_after_sent = 1
        supervisor.say(frame)
        await until(lambda n=i: len(browser.frames) == n + 1, task)
    assert browser.frames == want
    assert len(supervisor.connections) >= 20
    assert "cursor" not in supervisor.connections[0]
    assert all(len(c["cursor"]) == 48 for c in supervisor.connections[2:])


@with_supervisor
async def test_resends_what_was_not_accepted(supervisor, browser, task, monkeypatch):
    """Cut before each message is accepted, all of them arrive in the end, in order."""
    monkeypatch.setattr(relay_module, "MIN_PAUSE", 0.005)
    want = [f"m{i}" for i in range(25)]
    for msg_id in want:
        supervisor.cut_after_received = 1
        browser.relay.send(request(msg_id))
        await until(lambda: not browser.relay.pending, task)
    assert supervisor.accepted == want


@with_supervisor
async def test_accepted_without_proof_is_sent_again(supervisor, browser, task, monkeypatch):
    """A message that was accepted but not proven before a break is resent; the supervisor knows its msg_id."""
    supervisor.prove = False
    browser.relay.send(request("a"))
    browser.relay.send(request("b"))
    await until(lambda: supervisor.accepted == ["a", "b"], task)
    assert browser.relay.pending == 2
    supervisor.prove = True
    supervisor.cut()
    await until(lambda: not browser.relay.pending, task)
    assert supervisor.repeated == ["a", "b"]


@with_supervisor
async def test_silent_gateway(supervisor, browser, task, monkeypatch):
    """A connection on which nothing arrives is replaced. One that waits for a slow peer is kept."""
    monkeypatch.setattr(relay_module, "MIN_PAUSE", 0.005)
    monkeypatch.setattr(relay_module, "_DEAD_AFTER", 0.2)
    await until(lambda: len(supervisor.connections) >= 3, task)
    browser.flowing.clear()
    supervisor.say(stream("slow"))
    await until(lambda: browser.frames, task)
    connections = len(supervisor.connections)
    await asyncio.sleep(1)
    assert len(supervisor.connections) == connections


@with_supervisor
async def test_away_and_back(supervisor, browser, task, monkeypatch):
    """While the gateway is away, input is kept and the peer is notified once. Afterwards all of it is sent."""
    monkeypatch.setattr(relay_module, "NOTICE_AFTER", LIMIT)  # the first connection may be slow
    supervisor.say(stream("before"))
    await until(lambda: len(browser.frames) == 1, task)
    monkeypatch.setattr(relay_module, "NOTICE_AFTER", 0.05)
    await supervisor.stop()
    for i in range(100):
        browser.relay.send(request(f"m{i}"))
    await until(lambda: "away" in browser.events, task)
    supervisor.say(stream("meanwhile"))
    await supervisor.start()
    await until(lambda: len(browser.frames) == 2 and not browser.relay.pending, task)
    assert supervisor.accepted == [f"m{i}" for i in range(100)]
    assert browser.events == ["back", "away", "back"]


@with_supervisor
async def test_bounds_what_is_kept(supervisor, browser, task, monkeypatch):
    """Input beyond 64 MiB or 10,000 messages is rejected. A single message may be larger."""
    supervisor.status = 503
    await until(lambda: supervisor.connections, task)
    browser.relay.send(request("huge", size=70 << 20))
    with pytest.raises(InputFull):
        browser.relay.send(request("more"))
    supervisor.status = 200
    await until(lambda: not browser.relay.pending, task)
    assert supervisor.accepted == ["huge"]
    supervisor.prove = False
    for i in range(relay_module.MAX_KEPT_MESSAGES):
        browser.relay.send(request(f"m{i}"))
    with pytest.raises(InputFull):
        browser.relay.send(request("more"))


@with_supervisor
async def test_back_pressure(supervisor, browser, task, monkeypatch):
    """A browser that reads nothing stops the supervisor's writing. Nothing piles up in the relay."""
    connections = []
    serve = browser.relay._serve
    monkeypatch.setattr(browser.relay, "_serve", lambda ws: connections.append(ws) or serve(ws))
    browser.flowing.clear()
    browser.answers = False
    total = 300
    supervisor.say(*[stream("x" * (1 << 20)) for _ in range(total)])
    await until(lambda: supervisor.taken > 0 and len(browser.frames) == 1, task)
    # Both ends of the connection have stopped: the relay reads nothing more, the supervisor cannot write.
    await until(lambda: not connections[0]._conn.transport.is_reading() and supervisor.blocked, task)
    assert supervisor.taken < 40, f"{supervisor.taken} MiB were written to a relay whose browser takes nothing"
    assert len(browser.frames) == 1
    browser.flowing.set()
    await until(lambda: len(browser.frames) == total, task)


@with_supervisor
async def test_large_messages(supervisor, browser, task, monkeypatch):
    """100 MB pass in both directions."""
    frame = stream("x" * 100_000_000)
    supervisor.say(frame)
    browser.relay.send(request("large", size=100_000_000))
    await until(lambda: browser.frames and supervisor.accepted, task)
    assert browser.frames == [frame]


@with_supervisor
async def test_acknowledges_only_what_the_browser_did(supervisor, browser, task, monkeypatch):
    """The supervisor's ping is answered when the browser answers, and not before."""
    browser.answers = False
    pings = []
    browser.ping = pings.append
    supervisor.say(stream("a"))
    await until(lambda: pings, task)
    browser.relay.send(request("later"))
    await until(lambda: supervisor.accepted, task)  # a pong would have arrived before it
    assert supervisor.pongs == []
    browser.relay.acknowledge(pings[0])
    await until(lambda: supervisor.pongs == [1], task)
    # An answer to the ping of an earlier connection says nothing about this one.
    supervisor.cut()
    await until(lambda: len(supervisor.connections) == 2, task)
    supervisor.say(stream("b"))
    await until(lambda: len(pings) == 2, task)
    browser.relay.acknowledge(pings[0])
    browser.relay.acknowledge(pings[1])
    await until(lambda: supervisor.pongs == [1, 2], task)


@with_supervisor
async def test_ends(supervisor, browser, task, monkeypatch):
    """A kernel that is gone, a server that is not ekg, and rejected input end the relay with different errors."""
    supervisor.close_with = (1000, "the kernel is gone: it was shut down")
    with pytest.raises(KernelGone, match="it was shut down"):
        await Relay(browser, KERNEL, "s", log).run()
    supervisor.close_with = (1009, "too large")
    refused = Relay(browser, KERNEL, "s", log)
    refused.send(request("large"))
    with pytest.raises(InputRefused):
        await refused.run()
    supervisor.status = 404
    with pytest.raises(KernelGone):
        await Relay(browser, KERNEL, "s", log).run()
    supervisor.status, supervisor.protocol = 200, False
    with pytest.raises(NoRelay):
        await Relay(browser, KERNEL, "s", log).run()


@with_supervisor
async def test_patience(supervisor, browser, task, monkeypatch):
    """1013 is tried again with growing pauses; refusals of the credential too, since it may be renewed."""
    monkeypatch.setattr(relay_module, "MIN_PAUSE", 0.02)
    supervisor.close_with = (1013, "too many connections")
    supervisor.cut()
    await until(lambda: len(supervisor.connections) >= 4, task)
    supervisor.close_with, supervisor.status = None, 403
    seen = len(supervisor.connections)
    await until(lambda: len(supervisor.connections) > seen, task)
    supervisor.status = 200
    browser.relay.send(request("a"))
    await until(lambda: supervisor.accepted == ["a"], task)


@with_supervisor
async def test_detached_relay_ends_when_accepted(supervisor, browser, task, monkeypatch):
    """A relay whose browser has left sends what it had taken, and ends."""
    await supervisor.stop()
    browser.relay.send(request("last words"))
    browser.relay.detach()
    await supervisor.start()
    await asyncio.shield(task)
    assert supervisor.accepted == ["last words"]
