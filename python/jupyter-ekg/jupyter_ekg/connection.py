"""The class that connects a browser's websocket at a Jupyter server to the kernel behind the gateway.

It replaces jupyter_server's GatewayWebSocketConnection. The relay does the work and this class is its peer: it writes
to the browser's websocket, forwards pings and pongs, converts messages for browsers with the older framing, and shows a
notice in the cell while the gateway is away.
"""

from __future__ import annotations

import asyncio
import contextlib
import struct
from collections import OrderedDict, deque
from collections.abc import Awaitable
from typing import Any, ClassVar

from jupyter_server.services.kernels.connection.base import BaseKernelWebsocketConnection
from tornado import web
from tornado.iostream import StreamClosedError
from tornado.websocket import WebSocketClosedError
from traitlets import Instance, Unicode, default

from . import framing
from .notice import CLEAR_AFTER, Cells, Notice
from .older import GatewayWebSocketConnection
from .relay import InputFull, InputRefused, KernelGone, NoRelay, PeerGone, Relay

# Largest message of a browser, where the server has no setting of its own (Tornado's default is 10 MiB); as much as
# a supervisor takes.
MAX_MESSAGE = 512 << 20

# How long the input of a closed page is still sent, and for how many pages.
LINGER = 600.0
_MAX_LINGERING = 64

# Bound on the kernels and sessions whose state is kept between websockets.
_MAX_REMEMBERED = 1000

_PROGRESS_INTERVAL = 5.0  # seconds between looks at a long write


class EkgWebsocketConnection(BaseKernelWebsocketConnection):
    """A browser's websocket to a kernel. Kernels of other gateways are connected as jupyter_server does it."""

    _tasks: ClassVar[set[asyncio.Task]] = set()
    _lingering: ClassVar[OrderedDict[tuple[str, str], tuple[Relay, asyncio.Task]]] = OrderedDict()
    _kernel_sessions: ClassVar[OrderedDict[str, str]] = OrderedDict()  # the last seen session of each kernel
    _notices: ClassVar[OrderedDict[tuple[str, str], Notice]] = OrderedDict()  # shown in a page whose websocket broke

    _gone: ClassVar[OrderedDict[str, str]] = OrderedDict()  # why a kernel has ended, by its id

    # Whether the gateway was found to be no ekg. A browser then has to speak the older framing, since that gateway's
    # frames are passed as they are.
    _no_relay: ClassVar[bool] = False

    kernel_ws_protocol = Unicode(
        None,
        allow_none=True,
        config=True,
        help="Framing towards the browser: None is the newest that it offers, an empty string the older JSON framing.",
    )

    _fallback = Instance(GatewayWebSocketConnection, allow_none=True)

    @default("kernel_ws_protocol")
    def _default_kernel_ws_protocol(self) -> str | None:
        return "" if type(self)._no_relay else None

    async def prepare(self) -> None:
        """Rejects the websocket of a kernel that has ended. Called before the websocket is open.

        JupyterLab reconnects at once if an open websocket is closed. After a rejected one it first asks for the kernel.
        """
        gone = self._gone.get(str(self.kernel_id))
        if gone is not None and await self._is_gone():
            raise web.HTTPError(404, gone.replace("%", "%%"))

    async def _is_gone(self) -> bool:
        try:
            if await self.kernel_manager.refresh_model() is None:
                return True
        except web.HTTPError as err:
            self.log.debug("jupyter-ekg: kernel %s: %s", self.kernel_id, err)  # the relay finds out
        self._gone.pop(str(self.kernel_id), None)
        return False

    async def connect(self) -> None:
        """Starts the relay when the browser's websocket is open. Does not wait for the gateway."""
        handler = self.websocket_handler
        self._v1 = handler.selected_subprotocol == framing.V1
        self._key = (str(self.kernel_id), str(self.session_id))
        self._cells = Cells(self.session_id)
        self._cells.kernel_session = self._kernel_sessions.get(self._key[0], "")
        self._notice = self._notices.pop(self._key, None)
        self._away = ""  # the reason, while the page shows a notice
        self._clearing: list[asyncio.TimerHandle] = []
        self._relay = Relay(self, self._key[0], self._key[1], self.log)
        self._pings = _Pings(handler, self._relay.acknowledge)
        _allow_large_messages(handler)

        left = self._lingering.pop(self._key, None)
        if left is not None:
            self._relay.take_over(left[0])
            left[1].cancel()
        self._task = asyncio.ensure_future(self._run())
        self._tasks.add(self._task)
        self._task.add_done_callback(self._tasks.discard)

    async def _run(self) -> None:
        handler = self.websocket_handler
        try:
            while True:
                try:
                    await self._relay.run()
                    return
                except PeerGone:
                    self._relay.detach()
        except KernelGone as gone:
            self.log.info("jupyter-ekg: kernel %s: %s", self.kernel_id, gone)
            _remember(self._gone, self._key[0], str(gone))
            if self._notice is not None:
                self._say(self._notice.gone(str(gone)))
                self._notice = None
            handler.close(1012, _close_reason(str(gone)))
        except InputRefused as refused:
            self.log.warning("jupyter-ekg: kernel %s refuses what the browser sent: %s", self.kernel_id, refused)
            handler.close(refused.code, _close_reason(str(refused)))
        except NoRelay:
            await self._fall_back()
        except asyncio.CancelledError:
            raise
        except Exception:
            self.log.exception("jupyter-ekg: kernel %s: the relay failed", self.kernel_id)
            handler.close(1011, "the relay failed")

    async def _fall_back(self) -> None:
        """Connects as jupyter_server does without this package."""
        if not type(self)._no_relay:
            type(self)._no_relay = True
            self.log.warning(
                "jupyter-ekg: the gateway does not speak the relay's protocol (it is not ekg, or an old one);"
                " its kernels are connected as jupyter_server does it"
            )
        if self._v1:
            # That needs the older framing, which the browser's next websocket selects.
            self.websocket_handler.close(1012, "the gateway needs another framing")
            return
        connection = GatewayWebSocketConnection(
            parent=self.parent, websocket_handler=self.websocket_handler, config=self.config, session=self.session
        )
        await connection.connect()
        self._fallback = connection
        for frame in self._relay.take_all():
            connection.handle_incoming_message(framing.to_legacy(frame))

    def disconnect(self) -> None:
        """Ends the relay when the browser's websocket has closed. Input that was not accepted yet is still sent."""
        if not hasattr(self, "_task"):
            return  # closed before it was open
        self._pings.stop()
        for timer in self._clearing:
            timer.cancel()
        if self._fallback is not None:
            self._fallback.disconnect()
        if self._notice is not None:
            _remember(self._notices, self._key, self._notice)
        if self._task.done():
            return
        if not self._relay.pending or self._fallback is not None:
            self._task.cancel()
            return
        self._relay.detach()
        self._lingering[self._key] = (self._relay, self._task)
        timer = asyncio.get_running_loop().call_later(LINGER, self._task.cancel)
        self._task.add_done_callback(lambda task: self._end_lingering(timer, task))
        if len(self._lingering) > _MAX_LINGERING:
            _, (_, oldest) = self._lingering.popitem(last=False)
            oldest.cancel()

    def _end_lingering(self, timer: asyncio.TimerHandle, task: asyncio.Task) -> None:
        timer.cancel()
        if self._lingering.get(self._key, (None, None))[1] is task:
            del self._lingering[self._key]

    @classmethod
    async def close_all(cls) -> None:
        """Ends all relays when the server stops."""
        tasks = list(cls._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # From the browser.

    def handle_incoming_message(self, incoming_msg: str | bytes) -> None:
        """Handles a message from the browser."""
        if self._fallback is not None:
            self._fallback.handle_incoming_message(incoming_msg)
            return
        try:
            data = self._incoming(incoming_msg)
            if data is None:
                self.log.warning("jupyter-ekg: a message for an unknown channel was ignored")
                return
            request = self._cells.sent(framing.parse(data))
            self._relay.send(data)
        except framing.FrameError as err:
            self.log.warning("jupyter-ekg: the browser sent what is %s", err)
            self.websocket_handler.close(1007, _close_reason(str(err)))
        except InputFull:
            self.log.warning("jupyter-ekg: kernel %s: more input is waiting than is kept", self.kernel_id)
            self.websocket_handler.close(1013, "more input is waiting for the gateway than is kept")
        else:
            if request and self._away and self._notice is None:
                self._show_notice(request)

    def _incoming(self, msg: str | bytes) -> bytes | None:
        if not self._v1:
            return framing.from_legacy(msg)
        if not isinstance(msg, bytes):
            raise framing.FrameError("text where a v1 frame belongs")
        return msg

    # The relay's peer.

    def deliver(self, frame: bytes) -> Awaitable[Any]:
        """Writes a kernel's message to the browser. The result is ready when the system has accepted the bytes."""
        try:
            self._cells.received(framing.parse(frame))
        except framing.FrameError as err:
            self.log.error("jupyter-ekg: the gateway sent what is %s", err)
            raise
        if self._cells.kernel_session != self._kernel_sessions.get(self._key[0]):
            _remember(self._kernel_sessions, self._key[0], self._cells.kernel_session)
        return self._taken(self._write(frame))

    def _write(self, frame: bytes) -> Awaitable[Any]:
        try:
            if self._v1:
                return self.websocket_handler.write_message(frame, binary=True)
            message = framing.to_legacy(frame)
            return self.websocket_handler.write_message(message, binary=isinstance(message, bytes))
        except WebSocketClosedError as err:
            raise PeerGone from err

    async def _taken(self, writing: Awaitable[Any]) -> None:
        future = asyncio.ensure_future(writing)
        stream = getattr(self.websocket_handler.ws_connection, "stream", None)
        if stream is not None and not stream.writing() and not stream.closed():
            future.add_done_callback(_ignore_result)  # nothing is left to wait for
            return
        written = self._pings.progress()
        try:
            while True:
                done, _ = await asyncio.wait((future,), timeout=_PROGRESS_INTERVAL)
                if done:
                    future.result()
                    return
                written = self._pings.note_progress(written)
        except (WebSocketClosedError, StreamClosedError) as err:
            raise PeerGone from err

    def ping(self, payload: bytes) -> None:
        """Pings the browser: the pong acknowledges all messages that were written before."""
        self._pings.send(payload)

    def away(self, why: str) -> None:
        """Shows the notice in the running cell, or later in the next cell that the user runs."""
        self._away = why
        if self._notice is None and self._cells.running:
            self._show_notice(self._cells.running)

    def _show_notice(self, parent_header: bytes) -> None:
        if not self._cells.kernel_session:
            return  # JupyterLab forgets its queue when the session in a message is not the kernel's
        self._notice = Notice(self._cells.kernel_session, parent_header)
        self._say(self._notice.away(self._away))

    def back(self) -> None:
        """Is called when the gateway is connected, also for the first time."""
        type(self)._no_relay = False
        self._away = ""
        notice, self._notice = self._notice, None
        if notice is None:
            return
        self._say(notice.back())
        self._clearing = [
            *(t for t in self._clearing if not t.cancelled() and t.when() > asyncio.get_running_loop().time()),
            asyncio.get_running_loop().call_later(CLEAR_AFTER, self._say, notice.clear()),
        ]

    def _say(self, frame: bytes) -> None:
        """Writes one of this package's own messages. A closed browser is detected elsewhere."""
        with contextlib.suppress(PeerGone):
            writing = asyncio.ensure_future(self._write(frame))
            writing.add_done_callback(_ignore_result)


class _Pings:
    """The pings on a browser's websocket, and which of the relay's are answered.

    The handler sends pings of its own, all alike, and a browser may answer only the newest of several. So each gets a
    payload of its own, and a pong stands for all pings before the one that it answers.
    """

    def __init__(self, handler: Any, acknowledge: Any):
        self._handler = handler
        self._acknowledge = acknowledge
        self._waiting: deque[tuple[bytes, bytes]] = deque(
            maxlen=4096
        )  # payload on the wire, the relay's payload or empty
        self._own = 0
        self._ping, self._on_pong = handler.ping, handler.on_pong
        handler.ping, handler.on_pong = self._handler_ping, self._pong

    def stop(self) -> None:
        """Restores the handler's own methods."""
        for name in ("ping", "on_pong"):
            self._handler.__dict__.pop(name, None)
        self._waiting.clear()

    def send(self, payload: bytes) -> None:
        """Sends a ping for the relay. Raises PeerGone."""
        self._waiting.append((payload, payload))
        try:
            self._ping(payload)
        except (WebSocketClosedError, StreamClosedError) as err:
            raise PeerGone from err

    def _handler_ping(self, data: bytes = b"") -> None:
        self._own += 1
        payload = b"own" + struct.pack(">Q", self._own)
        self._waiting.append((payload, b""))
        self._ping(payload)

    def _pong(self, data: bytes) -> None:
        self._on_pong(data)
        if not any(payload == data for payload, _ in self._waiting):
            return  # Tornado's own keep-alive, or unsolicited
        newest = b""
        while self._waiting:
            payload, relayed = self._waiting.popleft()
            newest = relayed or newest
            if payload == data:
                break
        if newest:
            self._acknowledge(newest)

    def progress(self) -> int:
        """Returns how many bytes were written to the browser, if Tornado reports it."""
        connection = getattr(self._handler, "ws_connection", None)
        return getattr(getattr(connection, "stream", None), "_total_write_done_index", 0)

    def note_progress(self, before: int) -> int:
        """Counts written bytes as a sign of life: a large message may take longer than the handler's timeout."""
        now = self.progress()
        if now != before and hasattr(self._handler, "last_pong"):
            self._handler.last_pong = asyncio.get_running_loop().time()
        return now


def _allow_large_messages(handler: Any) -> None:
    params = getattr(handler.ws_connection, "params", None)
    if params is not None and "websocket_max_message_size" not in handler.settings:
        params.max_message_size = MAX_MESSAGE


def _ignore_result(done: asyncio.Future) -> None:
    """Keeps asyncio from logging an exception that no one awaits."""
    if not done.cancelled():
        done.exception()


def _remember(memory: OrderedDict, key: Any, value: Any) -> None:
    memory[key] = value
    memory.move_to_end(key)
    if len(memory) > _MAX_REMEMBERED:
        memory.popitem(last=False)


def _close_reason(text: str) -> str:
    """Shortens a text to the size of a close frame."""
    return text.encode()[:120].decode(errors="ignore")
