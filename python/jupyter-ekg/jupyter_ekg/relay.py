"""The relay connects one peer (a browser's websocket, a program's client) to a kernel's supervisor, and reconnects.

It speaks ``v1.relay.ekg`` with the supervisor, through the gateway, which only copies bytes:

* To the peer: each message has a cursor. After a break, the next connection starts at the cursor of the last delivered
  message, so the peer receives every message once and in order. The supervisor's pings are forwarded behind the
  messages before them, and answered when the peer answers.
* From the peer: each message is kept until the supervisor has proven that it accepted the message: a ping sent behind
  it was answered. Kept messages are resent on the next connection; the supervisor drops those that it has.

A relay runs in one event loop: ``run`` is its only task, ``send`` and ``acknowledge`` are called in the same loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import socket
import struct
import sys
from collections import deque
from collections.abc import Awaitable
from typing import Any, Protocol

import aiohttp

from . import gateway

# Bounds on the peer's messages that the supervisor has not accepted yet. A single message may be larger.
MAX_KEPT_BYTES = 64 << 20
MAX_KEPT_MESSAGES = 10_000

# Seconds before the next attempt to connect: doubled each time, plus a random part of up to a half.
MIN_PAUSE = 0.1
MAX_PAUSE = 5.0

# Seconds of absence before the peer is notified.
NOTICE_AFTER = 2.0

_CURSOR = 24  # bytes before each message
_SIGN_OF_LIFE = 10.0  # seconds; the supervisor asks for one each 15
_DEAD_AFTER = 45.0  # seconds without anything from the supervisor

# Close codes after which a reconnection would fail again: it would resend the rejected message.
_REFUSALS = {1002, 1003, 1007, 1009}


class PeerGone(Exception):
    """The peer's connection has ended; nothing can be delivered to it."""


class InputFull(Exception):
    """The bound on unaccepted input is exceeded."""


class KernelGone(Exception):
    """The kernel has ended permanently."""


class NoRelay(Exception):
    """The server does not support the relay's protocol: it is not ekg."""


class InputRefused(Exception):
    """The supervisor rejects the peer's message. ``code`` is the websocket close code."""

    def __init__(self, code: int, reason: str):
        super().__init__(reason or f"close code {code}")
        self.code = code


class Peer(Protocol):
    """The peer of a relay. All methods are called in the relay's loop; those that deliver something raise PeerGone."""

    def deliver(self, frame: bytes) -> Awaitable[Any]:
        """Delivers a v1 message at once. The relay awaits the result before it reads on."""

    def ping(self, payload: bytes) -> None:
        """Asks for an acknowledgement of the delivered messages; ``Relay.acknowledge(payload)`` is the answer."""

    def away(self, why: str) -> None:
        """Is called when the gateway has been away for NOTICE_AFTER seconds."""

    def back(self) -> None:
        """Is called at each connection, whether or not ``away`` was called."""


class _AbsentPeer:
    """The peer of a detached relay: accepts everything and acknowledges nothing."""

    async def deliver(self, frame: bytes) -> None:
        del frame

    def ping(self, payload: bytes) -> None:
        del payload

    def away(self, why: str) -> None:
        del why

    def back(self) -> None:
        pass


class Relay:
    """One peer's connection to its kernel, over any number of connections to the gateway."""

    def __init__(self, peer: Peer, kernel_id: str, session_id: str, log: logging.Logger):
        # Fixed.
        self._peer = peer
        self._kernel_id = kernel_id
        self._session_id = session_id
        self._log = log

        # Towards the peer.
        self._cursor = b""  # of the last delivered message
        self._pongs: deque[bytes] = deque(
            maxlen=16
        )  # the peer's answers for the supervisor; each includes those before

        # From the peer. Messages are counted from 1 over the relay's whole life.
        self._kept: deque[bytes] = deque()  # messages _proven+1 and up
        self._kept_bytes = 0
        self._proven = 0  # number of messages that the supervisor has accepted
        self._sent = 0  # messages sent on the present connection, or proven before it
        self._pinged = 0  # number of messages that the last ping covers
        self._wake = asyncio.Event()  # set when the writer may have work

        # The connection.
        self._generation = 0  # counts connections, from 1
        self._proved_alive = False  # the present connection has received a frame
        self._receiving_since: float | None = None  # None while the peer accepts a frame
        self._away_since: float | None = None
        self._last_trouble = ""

    def send(self, frame: bytes) -> None:
        """Queues a v1 message for the kernel. It is resent until the supervisor accepts it. Raises InputFull."""
        full = len(self._kept) >= MAX_KEPT_MESSAGES or self._kept_bytes + len(frame) > MAX_KEPT_BYTES
        if full and self._kept:
            raise InputFull
        self._kept.append(frame)
        self._kept_bytes += len(frame)
        self._wake.set()

    @property
    def pending(self) -> int:
        """The number of messages that the supervisor has not accepted yet."""
        return len(self._kept)

    def take_over(self, other: Relay) -> None:
        """Adopts the unaccepted messages of another relay of the same kernel and session. Must be called before run."""
        for frame in other._kept:
            self._kept.append(frame)
            self._kept_bytes += len(frame)

    def take_all(self) -> list[bytes]:
        """Removes and returns all unaccepted messages, for a server that does not support the relay's protocol."""
        frames = list(self._kept)
        self._kept.clear()
        self._kept_bytes = 0
        self._sent = self._pinged = self._proven
        return frames

    def detach(self) -> None:
        """Continues without the peer until its messages are accepted; then run returns."""
        self._peer = _AbsentPeer()
        self._wake.set()

    def acknowledge(self, payload: bytes) -> None:
        """Handles the peer's answer to a ping. Answers for an earlier connection to the gateway are ignored."""
        if payload[-4:] != self._tag():
            return
        self._pongs.append(payload[:-4])
        self._wake.set()

    async def run(self) -> None:
        """Relays until it is cancelled, or raises KernelGone, NoRelay, InputRefused or PeerGone.

        run may be called again after PeerGone. It returns only after detach.
        """
        pause = MIN_PAUSE
        self._away_since = asyncio.get_running_loop().time()
        away_timer = self._schedule_notice("the gateway has not been reached yet")
        try:
            while not self._finished():
                why = "the connection broke"
                try:
                    async with gateway.channels(self._kernel_id, self._session_id, self._cursor) as ws:
                        if ws.protocol != gateway.RELAY:
                            raise NoRelay
                        away_timer.cancel()
                        self._connected()
                        why = await self._serve(ws)
                except gateway.Refused as err:
                    if err.status == 404:
                        raise KernelGone(err.message) from err
                    why = str(err)
                except gateway.Unreachable as err:
                    why = str(err)
                if self._finished():
                    return
                if self._proved_alive:
                    self._proved_alive = False
                    pause = MIN_PAUSE
                if self._away_since is None:
                    self._away_since = asyncio.get_running_loop().time()
                    away_timer = self._schedule_notice(why)
                if why != self._last_trouble:
                    self._last_trouble = why
                    self._log.warning("jupyter-ekg: kernel %s: %s; trying again", self._kernel_id, why)
                await asyncio.sleep(pause * random.uniform(1, 1.5))
                pause = min(2 * pause, MAX_PAUSE)
        finally:
            away_timer.cancel()

    def _finished(self) -> bool:
        return isinstance(self._peer, _AbsentPeer) and not self._kept

    def _schedule_notice(self, why: str) -> asyncio.TimerHandle:
        def tell() -> None:
            # The next delivery reports a peer that is gone.
            with contextlib.suppress(PeerGone):
                self._peer.away(self._last_trouble or why)

        return asyncio.get_running_loop().call_later(NOTICE_AFTER, tell)

    def _connected(self) -> None:
        self._generation += 1
        self._sent = self._pinged = self._proven
        self._pongs.clear()
        away = asyncio.get_running_loop().time() - (self._away_since or 0)
        self._away_since = None
        if self._last_trouble:
            self._last_trouble = ""
            self._log.info("jupyter-ekg: kernel %s: connected again after %.1f s", self._kernel_id, away)
        self._peer.back()

    def _tag(self) -> bytes:
        """Returns a tag that distinguishes this connection's pings from those of earlier connections."""
        return struct.pack(">I", self._generation & 0xFFFFFFFF)

    async def _serve(self, ws: aiohttp.ClientWebSocketResponse) -> str:
        """Relays over one connection until it ends. Returns the reason."""
        tasks = [asyncio.ensure_future(part) for part in (self._read(ws), self._write(ws), self._watch(ws))]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            results = await asyncio.gather(*tasks, return_exceptions=True)
        for result in results:
            if isinstance(result, str):
                return result
            if isinstance(result, BaseException) and not isinstance(
                result, (asyncio.CancelledError, aiohttp.ClientError, OSError)
            ):
                raise result
        return "the connection broke"

    # Towards the peer.

    async def _read(self, ws: aiohttp.ClientWebSocketResponse) -> str:
        loop = asyncio.get_running_loop()
        while True:
            self._receiving_since = loop.time()
            msg = await ws.receive()
            self._receiving_since = None
            self._proved_alive = self._proved_alive or msg.type in (
                aiohttp.WSMsgType.BINARY,
                aiohttp.WSMsgType.PING,
                aiohttp.WSMsgType.PONG,
            )
            if msg.type is aiohttp.WSMsgType.BINARY:
                data = msg.data
                del msg  # may be large, and would live until the peer has accepted the frame
                cursor, frame = data[:_CURSOR], data[_CURSOR:]
                del data
                taken = self._peer.deliver(frame)
                del frame
                # The message counts as delivered even if this connection ends while the peer accepts it.
                self._cursor = cursor
                await taken
            elif msg.type is aiohttp.WSMsgType.PING:
                self._peer.ping(bytes(msg.data) + self._tag())  # a bytearray in older versions of aiohttp
            elif msg.type is aiohttp.WSMsgType.PONG:
                self._prove(msg.data)
            elif msg.type in (aiohttp.WSMsgType.CLOSE, aiohttp.WSMsgType.CLOSED, aiohttp.WSMsgType.CLOSING):
                return self._closed(msg.data, msg.extra or "")
            elif msg.type is aiohttp.WSMsgType.ERROR:
                return f"the connection broke: {msg.data}"
            else:
                return "the gateway sent a text message"

    async def _watch(self, ws: aiohttp.ClientWebSocketResponse) -> str:
        """Returns when the gateway is silent. While a large message arrives, it is not silent.

        A timer for each message would cost more than the rest of its way through the relay.
        """
        loop = asyncio.get_running_loop()
        pause = _DEAD_AFTER
        while True:
            await asyncio.sleep(pause)
            pause = _DEAD_AFTER / 8
            if self._receiving_since is None:
                continue
            left = self._receiving_since + _DEAD_AFTER - loop.time()
            if left <= 0 and _silent_for(ws) >= _DEAD_AFTER:
                return f"nothing has arrived from the gateway for {_DEAD_AFTER:.0f} s"
            pause = max(left, pause)

    def _closed(self, code: Any, reason: str) -> str:
        if code == 1000 and reason.startswith("the kernel is gone"):
            raise KernelGone(reason)
        if code in _REFUSALS and self._kept:
            raise InputRefused(code, reason)
        if code == 1013:
            self._proved_alive = False  # the supervisor is overloaded: keep the long pause
        if code in (None, 1000, 1001, 1006, 1012):
            return reason or "the connection broke"
        return reason or f"the gateway closed the connection with code {code}"

    # From the peer.

    def _prove(self, payload: bytes) -> None:
        if len(payload) != 8:
            return
        (accepted,) = struct.unpack(">Q", payload)
        while self._proven < min(accepted, self._sent):
            self._kept_bytes -= len(self._kept.popleft())
            self._proven += 1
        self._wake.set()

    async def _write(self, ws: aiohttp.ClientWebSocketResponse) -> None:
        loop = asyncio.get_running_loop()
        last_sign = loop.time()
        while not self._finished():
            self._wake.clear()
            if self._pongs:
                await ws.pong(self._pongs.popleft())
            elif self._sent > self._pinged and self._pinged <= self._proven:
                await self._ping(ws)  # one at a time
            elif self._sent - self._proven < len(self._kept):
                frame = self._kept[self._sent - self._proven]
                self._sent += 1
                await ws.send_bytes(frame)
                del frame
            elif loop.time() - last_sign >= _SIGN_OF_LIFE:
                # Also while a ping is unanswered: its answer may wait behind messages that a slow peer has not read.
                await self._ping(ws)
            else:
                # asyncio.wait_for may lose a cancellation before Python 3.12.
                timer = loop.call_at(last_sign + _SIGN_OF_LIFE, self._wake.set)
                try:
                    await self._wake.wait()
                finally:
                    timer.cancel()
                continue
            last_sign = loop.time()

    async def _ping(self, ws: aiohttp.ClientWebSocketResponse) -> None:
        self._pinged = self._sent
        await ws.ping(struct.pack(">Q", self._sent))


def _silent_for(ws: aiohttp.ClientWebSocketResponse) -> float:
    """Returns the seconds since bytes last arrived, from the operating system; _DEAD_AFTER if it is unknown."""
    sock = ws.get_extra_info("socket")
    if sock is None or not sys.platform.startswith("linux"):
        return _DEAD_AFTER
    try:
        info = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 104)
        return struct.unpack_from("=I", info, 52)[0] / 1000  # tcpi_last_data_recv
    except (OSError, struct.error):
        return _DEAD_AFTER
