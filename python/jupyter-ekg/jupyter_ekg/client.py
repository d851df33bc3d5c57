"""A kernel manager and client for programs that run notebooks through ekg: nbclient, papermill, nbconvert.

They differ from jupyter_server's GatewayKernelManager and GatewayKernelClient in what a long job needs: the websocket
carries the gateway's token, a gateway that restarts or a network that breaks is waited for with nothing lost, and one that
stays away for too long, or a kernel that is gone, ends the job with an error.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import queue
import threading
import time
import uuid
from collections import deque
from typing import Any, Awaitable, Callable

from jupyter_server.gateway.managers import GatewayKernelClient, GatewayKernelManager
from tornado import web
from traitlets import DottedObjectName, Float, Type

from . import framing
from .gateway import within
from .relay import FIRST_PAUSE, LONGEST_PAUSE, InputFull, KernelGone, NoRelay, Relay

# What may wait for a program that does not read its channels, in bytes of messages.
_MOST_UNREAD = 1 << 30

# What Tornado's client and a proxy answer for a gateway that is away.
_AWAY = (502, 503, 599)


class EkgChannel:
    """The messages of one channel, filled by the client's thread and read in any event loop."""

    def __init__(self, name: str, client: EkgKernelClient):
        self.channel_name = name
        self._client = client
        self._lock = threading.Lock()
        # Guarded by _lock.
        self._messages: deque[tuple[dict[str, Any], int]] = deque()
        self._waiters: list[tuple[asyncio.AbstractEventLoop, asyncio.Future]] = []
        self._failure: Exception | None = None

    async def get_msg(self, timeout: float | None = None, **_: Any) -> dict[str, Any]:
        """The next message. Raises queue.Empty after ``timeout`` seconds, and RuntimeError when no more can come."""
        if timeout is not None and timeout < 0:
            raise ValueError("'timeout' must be a non-negative number")
        end = None if timeout is None else time.monotonic() + timeout
        while True:
            with self._lock:
                if self._messages:
                    msg, size = self._messages.popleft()
                    break
                if self._failure is not None:
                    raise RuntimeError(str(self._failure)) from self._failure
                waiter = (asyncio.get_running_loop(), asyncio.get_running_loop().create_future())
                self._waiters.append(waiter)
            try:
                await within(None if end is None else max(0.0, end - time.monotonic()), waiter[1])
            except asyncio.TimeoutError:
                raise queue.Empty from None
            finally:
                with self._lock, contextlib.suppress(ValueError):
                    self._waiters.remove(waiter)
        self._client._read(size)
        return msg

    async def msg_ready(self) -> bool:
        """Whether a message waits."""
        with self._lock:
            return bool(self._messages)

    def send(self, msg: dict[str, Any]) -> None:
        """Sends a message to the kernel. Raises RuntimeError when the connection has ended for good."""
        self._client._send({**msg, "channel": self.channel_name})

    def put(self, msg: dict[str, Any], size: int) -> None:
        """Adds a message of ``size`` bytes; for the client's thread."""
        with self._lock:
            self._messages.append((msg, size))
            self._wake()

    def fail(self, failure: Exception) -> None:
        """No more messages come, because of ``failure``; those that are there can still be read."""
        with self._lock:
            self._failure = failure
            self._wake()

    def _wake(self) -> None:
        for loop, waiter in self._waiters:
            # A loop that has been closed meanwhile has nobody waiting.
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(lambda w=waiter: w.done() or w.set_result(None))
        self._waiters.clear()

    def start(self) -> None:
        """Nothing: the client's thread fills the channel."""

    def stop(self) -> None:
        """Forgets what was not read."""
        with self._lock:
            self._messages.clear()

    def is_alive(self) -> bool:
        """Whether messages can come."""
        with self._lock:
            return self._failure is None

    is_beating = is_alive  # of the heartbeat's channel


class EkgKernelClient(GatewayKernelClient):
    """A client of one kernel behind ekg. It relays in a thread of its own, from start_channels to stop_channels."""

    away_limit = Float(
        600.0,
        config=True,
        help="How many seconds the gateway may be away before programs that wait for the kernel get an error.",
    )

    def __init__(self, kernel_id, **kwargs):
        super().__init__(kernel_id, **kwargs)
        self._channels = {name: EkgChannel(name, self) for name in ("shell", "iopub", "stdin", "control", "hb")}
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._ready = threading.Event()  # the relay takes messages, or has failed
        self._stop: asyncio.Event | None = None
        self._relay: Relay | None = None
        self._unread = 0  # bytes, guarded by _unread_lock
        self._unread_lock = threading.Lock()
        self._failure: Exception | None = None
        self._limit: asyncio.TimerHandle | None = None
        self._reason = ""

    async def start_channels(self, shell=True, iopub=True, stdin=True, hb=True, control=True):
        """Begins to relay. A gateway that cannot be reached is waited for, up to away_limit."""
        if self._thread is not None:
            raise RuntimeError("the channels have been started already")
        self._thread = threading.Thread(target=lambda: asyncio.run(self._main()), name=f"ekg-{self.kernel_id}", daemon=True)
        self._thread.start()
        self._ready.wait()

    def stop_channels(self):
        """Ends the relay and its thread."""
        if self._thread is None:
            return
        if self._loop is not None and self._stop is not None:
            with contextlib.suppress(RuntimeError):  # it has ended by itself
                self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()
        for channel in self._channels.values():
            channel.fail(RuntimeError("the channels are stopped"))
            channel.stop()

    @property
    def channels_running(self):
        """Whether messages can come and go."""
        return self._thread is not None and self._failure is None

    @property
    def shell_channel(self):
        """Requests and replies."""
        return self._channels["shell"]

    @property
    def iopub_channel(self):
        """What the kernel publishes."""
        return self._channels["iopub"]

    @property
    def stdin_channel(self):
        """The kernel's requests for input."""
        return self._channels["stdin"]

    @property
    def control_channel(self):
        """Requests that are answered while a cell runs."""
        return self._channels["control"]

    @property
    def hb_channel(self):
        """Whether the kernel is there."""
        return self._channels["hb"]

    # The thread.

    async def _main(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._stop = asyncio.Event()
        self._relay = Relay(self, str(self.kernel_id), self.session.session, self.log)
        self._start_limit()
        relaying = asyncio.ensure_future(self._relay.run())
        stopping = asyncio.ensure_future(self._stop.wait())
        self._ready.set()
        await asyncio.wait((relaying, stopping), return_when=asyncio.FIRST_COMPLETED)
        for task in (relaying, stopping):
            task.cancel()
        results = await asyncio.gather(relaying, return_exceptions=True)
        if self._limit is not None:
            self._limit.cancel()
        if self._failure is None:
            self._fail(self._why(results[0]))

    def _why(self, result: Any) -> Exception:
        if isinstance(result, NoRelay):
            return RuntimeError(
                "the gateway does not speak the protocol of jupyter-ekg: it is not ekg, or an old one;"
                " use jupyter_server.gateway.managers.GatewayKernelManager with it"
            )
        if isinstance(result, KernelGone):
            return RuntimeError(str(result) or "the kernel is gone")
        if isinstance(result, asyncio.CancelledError) or not isinstance(result, Exception):
            return RuntimeError("the channels are stopped")
        return result

    def _fail(self, failure: Exception) -> None:
        self._failure = failure
        for channel in self._channels.values():
            channel.fail(failure)

    def _start_limit(self) -> None:
        assert self._loop is not None
        self._limit = self._loop.call_later(self.away_limit, self._give_up)

    def _give_up(self) -> None:
        self._fail(RuntimeError(f"the gateway has been away for {self.away_limit:.0f} s: {self._reason or 'no answer'}"))
        if self._stop is not None:
            self._stop.set()

    def _send(self, msg: dict[str, Any]) -> None:
        frame = framing.from_dict(msg)
        if self._failure is not None:
            raise RuntimeError(str(self._failure)) from self._failure
        if frame is None or self._loop is None:
            raise RuntimeError("the channels have not been started")
        try:
            self._loop.call_soon_threadsafe(self._send_in_loop, frame)
        except RuntimeError as err:
            raise RuntimeError("the channels are stopped") from err

    def _send_in_loop(self, frame: bytes) -> None:
        assert self._relay is not None
        try:
            self._relay.send(frame)
        except InputFull:
            self._fail(RuntimeError("more requests are waiting for the gateway than are kept"))
            self._stop.set()

    def _read(self, size: int) -> None:
        with self._unread_lock:
            self._unread -= size

    # The relay's peer; called in the thread.

    def deliver(self, frame: bytes) -> Awaitable[Any]:
        """Puts a message of the kernel into its channel."""
        msg = framing.to_dict(frame)
        channel = self._channels.get(msg["channel"])
        if channel is not None:
            with self._unread_lock:
                self._unread += len(frame)
                unread = self._unread
            if unread > _MOST_UNREAD:
                raise RuntimeError(f"the program does not read what the kernel sends: {unread >> 20} MiB are waiting")
            channel.put(msg, len(frame))
        return asyncio.sleep(0)

    def ping(self, payload: bytes) -> None:
        """What was delivered is in the program's memory."""
        assert self._relay is not None
        self._relay.acknowledge(payload)

    def away(self, why: str) -> None:
        """The gateway has been away for a while."""
        self._reason = why
        if self._limit is None:
            self._start_limit()

    def back(self) -> None:
        """The gateway is there (again)."""
        self._reason = ""
        if self._limit is not None:
            self._limit.cancel()
            self._limit = None


class EkgKernelManager(GatewayKernelManager):
    """A kernel behind ekg, for programs that run notebooks. Address and token come from GatewayClient's settings.

    ``JUPYTER_GATEWAY_URL`` and ``JUPYTER_GATEWAY_AUTH_TOKEN`` in the environment are enough.
    """

    client_class = DottedObjectName("jupyter_ekg.client.EkgKernelClient")
    client_factory = Type(klass="jupyter_ekg.client.EkgKernelClient")

    away_limit = Float(
        600.0,
        config=True,
        help="How many seconds the gateway may be away before the kernel is taken for lost.",
    )

    _unsure_since: float | None = None

    def client(self, **kwargs):
        """Makes a client of the kernel."""
        kwargs.setdefault("away_limit", self.away_limit)
        return super().client(**kwargs)

    async def start_kernel(self, **kwargs):
        """Starts a kernel at the gateway, of the notebook's kernelspec, which jupyter_server's manager does not look at.

        The kernel's id is chosen here, so a gateway that is away is asked again, up to away_limit, and there is one kernel.
        """
        if kwargs.get("kernel_name") is None:
            kwargs["kernel_name"] = self.kernel_name
        if "KERNEL_ID" not in os.environ:
            kwargs["env"] = {"KERNEL_ID": str(uuid.uuid4()), **(kwargs.get("env") or {})}
        await self._patiently(lambda: super(EkgKernelManager, self).start_kernel(**kwargs))

    async def shutdown_kernel(self, now=False, restart=False):
        """Ends the kernel; a gateway that is away is asked again, up to away_limit."""
        await self._patiently(lambda: super(EkgKernelManager, self).shutdown_kernel(now=now, restart=restart))

    async def interrupt_kernel(self):
        """Interrupts the kernel; a gateway that is away is asked again, up to away_limit."""
        await self._patiently(super().interrupt_kernel)

    async def _patiently(self, ask: Callable[[], Awaitable[None]]) -> None:
        end, pause = time.monotonic() + self.away_limit, FIRST_PAUSE
        while True:
            try:
                await ask()
                return
            except web.HTTPError as err:
                if err.status_code not in _AWAY or time.monotonic() + pause > end:
                    raise
                self.log.warning("jupyter-ekg: the gateway cannot be asked now, trying again: %s", err)
            await asyncio.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE)

    async def is_alive(self):
        """Whether the kernel lives. While the gateway cannot tell, it is taken to live, up to away_limit."""
        if not self.has_kernel:
            return False
        kept = self.kernel
        try:
            model = await self.refresh_model()
        except (web.HTTPError, OSError) as err:
            self.kernel = kept
            now = time.monotonic()
            self._unsure_since = self._unsure_since or now
            if now - self._unsure_since < self.away_limit:
                self.log.warning("jupyter-ekg: the gateway cannot tell whether kernel %s lives: %s", self.kernel_id, err)
                return True
            return False
        self._unsure_since = None
        return bool(model) and model.get("execution_state") != "dead"
