"""The relay: joins one peer (a browser's websocket, a program's client) to a kernel's supervisor, and keeps them joined.

It speaks ``v1.relay.ekg`` with the supervisor, through the gateway, which only copies bytes:

* towards the peer each message comes with a cursor. When the connection breaks, the next one is opened with the cursor of
  the last message that was handed over, so that the peer gets everything once and in order. The supervisor's pings are
  passed on behind what came before them, and answered when the peer answers.
* from the peer each message is kept until the supervisor has proven that it accepted it (a ping sent behind it comes
  back), and is sent again on the next connection; the supervisor drops what it has accepted already.

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
from typing import Any, Awaitable, Protocol

import aiohttp

from . import gateway

# What is kept of the peer's messages until the supervisor has accepted them. A single message may be larger.
KEEP_BYTES = 64 << 20
KEEP_MESSAGES = 10_000

# The pause before the gateway is tried again, doubled each time, plus up to half of it by chance.
FIRST_PAUSE = 0.1
LONGEST_PAUSE = 5.0

# How long the gateway may be away before the peer is told.
TELL_AFTER = 2.0

_CURSOR = 24  # bytes before each message
_SIGN_OF_LIFE = 10.0  # seconds; the supervisor asks for one each 15
_DEAD_AFTER = 45.0  # seconds without anything from the supervisor

# Ends that would repeat themselves for ever, since what is sent again is what was refused.
_REFUSALS = {1002, 1003, 1007, 1009}


class PeerGone(Exception):
    """The peer's connection has ended: nothing can be handed to it."""


class InputFull(Exception):
    """More input is waiting for the supervisor than is kept."""


class KernelGone(Exception):
    """The kernel has ended for good."""


class NoRelay(Exception):
    """The server does not speak the relay's protocol: it is not ekg."""


class InputRefused(Exception):
    """The supervisor does not take what the peer sent. ``code`` is its websocket close code."""

    def __init__(self, code: int, reason: str):
        super().__init__(reason or f"close code {code}")
        self.code = code


class Peer(Protocol):
    """Whom a relay serves. All methods are called in the relay's loop; those that hand something over raise PeerGone."""

    def deliver(self, frame: bytes) -> Awaitable[Any]:
        """Hands over a v1 message, at once; what it returns is awaited before more is read."""

    def ping(self, payload: bytes) -> None:
        """Asks the peer whether it has what was delivered; ``Relay.acknowledge(payload)`` is the answer."""

    def away(self, why: str) -> None:
        """The connection has been away for TELL_AFTER seconds."""

    def back(self) -> None:
        """The connection is there (again), whether or not away was called."""


class _Nobody:
    """The peer of a relay that was left: takes everything and acknowledges nothing."""

    async def deliver(self, frame: bytes) -> None:
        del frame

    def ping(self, payload: bytes) -> None:
        del payload

    def away(self, why: str) -> None:
        del why

    def back(self) -> None:
        pass


class Relay:
    """One peer's connection to its kernel, over as many connections to the gateway as it takes."""

    def __init__(self, peer: Peer, kernel_id: str, session_id: str, log: logging.Logger):
        # Fixed.
        self._peer = peer
        self._kernel_id = kernel_id
        self._session_id = session_id
        self._log = log

        # Towards the peer.
        self._cursor = b""  # of the last message handed over
        self._pongs: deque[bytes] = deque(maxlen=16)  # the peer's answers for the supervisor; each includes those before

        # From the peer. Messages are counted from 1 over the relay's whole life.
        self._kept: deque[bytes] = deque()  # messages _proven+1 and up
        self._kept_bytes = 0
        self._proven = 0  # messages that the supervisor has accepted
        self._sent = 0  # messages sent on the present connection, or proven before it
        self._pinged = 0  # what the last ping on it covers
        self._wake = asyncio.Event()  # there may be something for the writer

        # The connection.
        self._generation = 0  # counts connections, from 1
        self._proved_alive = False  # the present one has brought something
        self._away_since: float | None = None
        self._last_trouble = ""

    def send(self, frame: bytes) -> None:
        """Takes a v1 message for the kernel; it is sent as soon and as often as needed. Raises InputFull."""
        full = len(self._kept) >= KEEP_MESSAGES or self._kept_bytes + len(frame) > KEEP_BYTES
        if full and self._kept:
            raise InputFull
        self._kept.append(frame)
        self._kept_bytes += len(frame)
        self._wake.set()

    @property
    def pending(self) -> int:
        """How many messages the supervisor has yet to accept."""
        return len(self._kept)

    def take_over(self, other: Relay) -> None:
        """Takes what another relay of the same kernel and session has not got accepted; to be called before run."""
        for frame in other._kept:
            self._kept.append(frame)
            self._kept_bytes += len(frame)

    def take_all(self) -> list[bytes]:
        """Takes out all that was not accepted; for a server that does not speak the relay's protocol."""
        frames = list(self._kept)
        self._kept.clear()
        self._kept_bytes = 0
        self._sent = self._pinged = self._proven
        return frames

    def detach(self) -> None:
        """Goes on without the peer, until what it had sent is accepted; then run returns."""
        self._peer = _Nobody()
        self._wake.set()

    def acknowledge(self, payload: bytes) -> None:
        """Takes the peer's answer to a ping. One that belongs to an earlier connection to the gateway is of no use."""
        if payload[-4:] != self._tag():
            return
        self._pongs.append(payload[:-4])
        self._wake.set()

    async def run(self) -> None:
        """Relays until it is cancelled, or raises KernelGone, NoRelay, InputRefused or PeerGone.

        It may be called again after PeerGone. Returns only after detach.
        """
        pause = FIRST_PAUSE
        self._away_since = asyncio.get_running_loop().time()
        teller = self._tell_later("the gateway has not been reached yet")
        try:
            while not self._finished():
                why = "the connection broke"
                try:
                    async with gateway.channels(self._kernel_id, self._session_id, self._cursor) as ws:
                        if ws.protocol != gateway.RELAY:
                            raise NoRelay
                        teller.cancel()
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
                    pause = FIRST_PAUSE
                if self._away_since is None:
                    self._away_since = asyncio.get_running_loop().time()
                    teller = self._tell_later(why)
                if why != self._last_trouble:
                    self._last_trouble = why
                    self._log.warning("jupyter-ekg: kernel %s: %s; trying again", self._kernel_id, why)
                await asyncio.sleep(pause * random.uniform(1, 1.5))  # noqa: S311
                pause = min(2 * pause, LONGEST_PAUSE)
        finally:
            teller.cancel()

    def _finished(self) -> bool:
        return isinstance(self._peer, _Nobody) and not self._kept

    def _tell_later(self, why: str) -> asyncio.TimerHandle:
        def tell() -> None:
            # A peer that is gone ends the relay where something is handed over.
            with contextlib.suppress(PeerGone):
                self._peer.away(self._last_trouble or why)

        return asyncio.get_running_loop().call_later(TELL_AFTER, tell)

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
        """Tells a ping of this connection from one of an earlier, whose numbers mean something else."""
        return struct.pack(">I", self._generation & 0xFFFFFFFF)

    async def _serve(self, ws: aiohttp.ClientWebSocketResponse) -> str:
        """Relays over one connection until it ends; returns why it did."""
        reader = asyncio.ensure_future(self._read(ws))
        writer = asyncio.ensure_future(self._write(ws))
        try:
            await asyncio.wait((reader, writer), return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (reader, writer):
                task.cancel()
            results = await asyncio.gather(reader, writer, return_exceptions=True)
        for result in results:
            if isinstance(result, str):
                return result
            if isinstance(result, BaseException) and not isinstance(result, (asyncio.CancelledError, aiohttp.ClientError, OSError)):
                raise result
        return "the connection broke"

    # Towards the peer.

    async def _read(self, ws: aiohttp.ClientWebSocketResponse) -> str:
        while True:
            msg = await self._receive(ws)
            if msg is None:
                return f"nothing was heard from the gateway for {_DEAD_AFTER:.0f} s"
            self._proved_alive = self._proved_alive or msg.type in (
                aiohttp.WSMsgType.BINARY,
                aiohttp.WSMsgType.PING,
                aiohttp.WSMsgType.PONG,
            )
            if msg.type is aiohttp.WSMsgType.BINARY:
                data = msg.data
                del msg  # it may be large, and this is held until the peer has taken it
                cursor, frame = data[:_CURSOR], data[_CURSOR:]
                del data
                taken = self._peer.deliver(frame)
                del frame
                # From here on it is the peer's, also if this connection ends while it is being taken.
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

    async def _receive(self, ws: aiohttp.ClientWebSocketResponse) -> aiohttp.WSMessage | None:
        """The next frame; None if the gateway is silent. A large message that is still arriving is no silence."""
        receiving = asyncio.ensure_future(ws.receive())
        try:
            while True:
                done, _ = await asyncio.wait((receiving,), timeout=_DEAD_AFTER)
                if done:
                    return receiving.result()
                if _silent_for(ws) >= _DEAD_AFTER:
                    return None
        finally:
            receiving.cancel()

    def _closed(self, code: Any, reason: str) -> str:
        if code == 1000 and reason.startswith("the kernel is gone"):
            raise KernelGone(reason)
        if code in _REFUSALS and self._kept:
            raise InputRefused(code, reason)
        if code == 1013:
            self._proved_alive = False  # it asks for patience
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
                # Also when a ping is unanswered: the answers wait behind messages that a slow peer has yet to take.
                await self._ping(ws)
            else:
                # Not by asyncio.wait_for, which before Python 3.12 may lose a cancellation.
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
    """Seconds since bytes arrived on a connection, as the system knows; where it does not tell, as if since ever."""
    sock = ws.get_extra_info("socket")
    if sock is None or not sys.platform.startswith("linux"):
        return _DEAD_AFTER
    try:
        info = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 104)
        return struct.unpack_from("=I", info, 52)[0] / 1000  # tcpi_last_data_recv
    except (OSError, struct.error):
        return _DEAD_AFTER
