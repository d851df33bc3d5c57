"""A kernel manager and client for programs that run notebooks through ekg: nbclient, papermill, nbconvert.

Unlike jupyter_server's GatewayKernelManager and GatewayKernelClient they serve long jobs: the websocket carries the
gateway's token. A restarting gateway or a broken network loses nothing. A gateway that stays away for too long, or a
kernel that has ended, ends the job with an error.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import queue
import threading
import time
import uuid
from collections import deque
from collections.abc import Awaitable
from typing import Any, Callable

from jupyter_server.gateway.managers import GatewayKernelClient, GatewayKernelManager
from tornado import web
from traitlets import Bool, DottedObjectName, Float, Type

from . import errors, framing
from .gateway import within
from .interactive import output_and_reply
from .relay import MAX_PAUSE, MIN_PAUSE, InputFull, KernelGone, NoRelay, Relay

# Bound on the unread messages of a program, in bytes.
_MOST_UNREAD = 1 << 30

# The same for a client in a Jupyter server. An extension may keep it as long as the kernel, and read only while it runs
# code.
_MOST_UNREAD_IN_SERVER = 64 << 20

# The part of it that ends of requests and remarks may take, when output around them is dropped.
_KEPT_SHARE = 8

# Bytes that the text of a remark counts.
_REMARK_TEXT = 200

# The status codes by which Tornado's client and proxies report that the gateway is away.
_AWAY = (502, 503, 599)


class EkgChannel:
    """The messages of one channel, filled by the client's thread and read in any event loop."""

    def __init__(self, name: str, client: EkgKernelClient):
        self.channel_name = name
        self._client = client
        self._lock = threading.Lock()
        # Guarded by _lock.
        self._kept: deque[tuple[dict[str, Any], int]] = deque()  # stand before _messages: the others were dropped
        self._kept_size = 0  # bytes
        self._dropped = 0  # messages that the last of _kept stands for, if that is a remark; else 0
        self._messages: deque[tuple[dict[str, Any], int]] = deque()
        self._waiters: list[tuple[asyncio.AbstractEventLoop, asyncio.Future]] = []
        self._failure: Exception | None = None

    async def get_msg(self, timeout: float | None = None, **_: Any) -> dict[str, Any]:
        """Returns the next message. Raises queue.Empty after ``timeout`` seconds, RuntimeError if none can arrive."""
        if timeout is not None and timeout < 0:
            raise ValueError("'timeout' must be a non-negative number")
        end = None if timeout is None else time.monotonic() + timeout
        while True:
            with self._lock:
                if self._kept or self._messages:
                    msg, size = self._pop()
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
        """Reports whether a message is waiting."""
        with self._lock:
            return bool(self._kept or self._messages)

    def send(self, msg: dict[str, Any]) -> None:
        """Sends a message to the kernel. Raises RuntimeError if the connection has ended permanently."""
        self._client._send({**msg, "channel": self.channel_name})

    def put(self, msg: dict[str, Any], size: int) -> None:
        """Adds a message of ``size`` bytes. Called in the client's thread."""
        with self._lock:
            self._messages.append((msg, size))
            self._wake()

    def drop(self, most_kept: int) -> int | None:
        """Drops the oldest message, and returns how many bytes that frees; None if there is none to drop.

        Ends of requests stay, and a remark stands where output was dropped. Both take at most ``most_kept`` bytes.
        """
        with self._lock:
            freed = 0
            while self._messages:
                msg, size = self._messages.popleft()
                if msg["msg_type"] != "status":
                    freed += size - self._remark(msg)
                elif msg["content"].get("execution_state") == "idle":
                    self._keep(msg, size)
                    self._dropped = 0
                else:
                    freed += size
                while self._kept_size > most_kept:
                    freed += self._pop()[1]
                if freed > 0:
                    return freed
            return freed or None  # less than 0 if a remark is larger than what it stands for

    def _pop(self) -> tuple[dict[str, Any], int]:
        if not self._kept:
            return self._messages.popleft()
        msg, size = self._kept.popleft()
        self._kept_size -= size
        if not self._kept:
            self._dropped = 0
        return msg, size

    def _keep(self, msg: dict[str, Any], size: int) -> None:
        self._kept.append((msg, size))
        self._kept_size += size

    def _remark(self, msg: dict[str, Any]) -> int:
        """Makes the last kept message say that ``msg`` was dropped. Returns how many bytes that takes."""
        parent, taken = msg["parent_header"], 0
        if self._dropped == 0 or self._kept[-1][0]["parent_header"].get("msg_id") != parent.get("msg_id"):
            self._dropped = 0
            frame = framing.make("stream", str(msg["header"].get("session", "")), json.dumps(parent).encode(), {})
            taken = len(frame) + _REMARK_TEXT
            self._keep(framing.to_dict(frame), taken)
        self._dropped += 1
        self._kept[-1][0]["content"] = {
            "name": "stderr",
            "text": f"[ekg] Messages of output are missing here, because the program did not read: {self._dropped}.\n",
        }
        return taken

    def fail(self, failure: Exception) -> None:
        """Ends the channel with an error. Messages that arrived before can still be read."""
        with self._lock:
            self._failure = failure
            self._wake()

    def _wake(self) -> None:
        for loop, waiter in self._waiters:
            # A closed loop has no waiting reader.
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(lambda w=waiter: w.done() or w.set_result(None))
        self._waiters.clear()

    def start(self) -> None:
        """Does nothing: the client's thread fills the channel."""

    def stop(self) -> None:
        """Drops unread messages."""
        with self._lock:
            self._kept.clear()
            self._messages.clear()
            self._kept_size = self._dropped = 0

    def is_alive(self) -> bool:
        """Reports whether messages can arrive."""
        with self._lock:
            return self._failure is None

    is_beating = is_alive  # called on the heartbeat's channel


class EkgKernelClient(GatewayKernelClient):
    """A client of one kernel behind ekg. Its relay runs in its own thread from start_channels to stop_channels."""

    away_limit = Float(
        600.0,
        config=True,
        help="How many seconds the gateway may be away before programs that wait for the kernel get an error.",
    )

    drops_unread = Bool(
        False,
        help="Whether the oldest output is dropped if too much is unread. Otherwise reading fails.",
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
        """Starts the relay. If the gateway cannot be reached, the relay waits for it up to away_limit."""
        if self._thread is not None:
            raise RuntimeError("the channels have been started already")
        self._thread = threading.Thread(
            target=lambda: asyncio.run(self._main()), name=f"ekg-{self.kernel_id}", daemon=True
        )
        self._thread.start()
        # In jupyter_server's client it is None before the start. Programs start the channels themselves then.
        self.channel_socket = self
        await asyncio.to_thread(self._ready.wait)  # a Jupyter server has other things to do meanwhile

    def stop_channels(self):
        """Ends the relay and its thread."""
        if self._thread is None:
            return
        if self._loop is not None and self._stop is not None:
            with contextlib.suppress(RuntimeError):  # the loop has ended already
                self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()
        for channel in self._channels.values():
            channel.fail(RuntimeError("the channels are stopped"))
            channel.stop()

    async def wait_for_ready(self, timeout=None):
        """Waits until the kernel answers. Starts the channels before, as jupyter_client's clients need no start."""
        if self._thread is None:
            await self.start_channels()
        await super().wait_for_ready(timeout=timeout)

    async def is_alive(self):
        """Reports whether the kernel may answer. The manager knows, if there is one."""
        if not self.channels_running:
            return False
        return await self.parent.is_alive() if isinstance(self.parent, GatewayKernelManager) else True

    _async_is_alive = is_alive

    async def execute_interactive(
        self,
        code,
        silent=False,
        store_history=True,
        user_expressions=None,
        allow_stdin=None,
        stop_on_error=True,
        timeout=None,
        output_hook=None,
        stdin_hook=None,
    ):
        """Runs code, passes its output and requests for input to the hooks, and returns the reply.

        Parameters and errors are those of jupyter_client.
        """
        msg_id = self.execute(
            code,
            silent=silent,
            store_history=store_history,
            user_expressions=user_expressions,
            allow_stdin=self.allow_stdin if allow_stdin is None else allow_stdin,
            stop_on_error=stop_on_error,
        )
        return await output_and_reply(
            self, msg_id, output_hook or self._output_hook_default, stdin_hook or self._stdin_hook_default, timeout
        )

    _async_execute_interactive = execute_interactive

    @property
    def channels_running(self):
        """Reports whether messages can be sent and received."""
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
        """The heartbeat: reports whether the kernel is alive."""
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
            self._fail(self._failure_of(results[0]))

    def _failure_of(self, result: Any) -> Exception:
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
        self._fail(
            RuntimeError(f"the gateway has been away for {self.away_limit:.0f} s: {self._reason or 'no answer'}")
        )
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
            while self.drops_unread and unread > _MOST_UNREAD_IN_SERVER:
                size = self.iopub_channel.drop(_MOST_UNREAD_IN_SERVER // _KEPT_SHARE)
                if size is None:
                    break  # the message alone is larger
                self._read(size)
                unread -= size
            if unread > _MOST_UNREAD:
                raise RuntimeError(f"the program does not read what the kernel sends: {unread >> 20} MiB are waiting")
            channel.put(msg, len(frame))
        return asyncio.sleep(0)

    def ping(self, payload: bytes) -> None:
        """Acknowledges at once: delivered messages are in the program's memory."""
        assert self._relay is not None
        self._relay.acknowledge(payload)

    def away(self, why: str) -> None:
        """Is called when the gateway has been away for NOTICE_AFTER seconds."""
        self._reason = why
        if self._limit is None:
            self._start_limit()

    def back(self) -> None:
        """Is called when the gateway is connected, also for the first time."""
        self._reason = ""
        if self._limit is not None:
            self._limit.cancel()
            self._limit = None


class EkgServerKernelManager(GatewayKernelManager):
    """A kernel of a Jupyter server. Extensions of the server that call ``client()`` get one that has the token.

    Requests fail at once while the gateway is away, unlike EkgKernelManager's: a page waits for the answer.
    """

    client_class = DottedObjectName("jupyter_ekg.client.EkgKernelClient")
    client_factory = Type(klass="jupyter_ekg.client.EkgKernelClient")

    def client(self, **kwargs):
        """Returns a client of the kernel. It takes requests for input, as the clients of local kernels do."""
        kwargs.setdefault("drops_unread", True)
        client = super().client(**kwargs)
        client.allow_stdin = True
        return client

    async def is_alive(self):
        """Reports whether the kernel is alive. It counts as alive while the gateway cannot be asked."""
        try:
            model = await self.refresh_model()
        except (web.HTTPError, OSError):
            return True
        return bool(model) and model.get("execution_state") != "dead"

    async def start_kernel(self, **kwargs):
        """Starts a kernel at the gateway, or takes an existing one. JupyterLab shows the error in a dialog."""
        await errors.plainly(super().start_kernel(**kwargs))


class EkgKernelManager(GatewayKernelManager):
    """A kernel behind ekg, for programs that run notebooks. Address and token come from GatewayClient's settings.

    ``JUPYTER_GATEWAY_URL`` and ``JUPYTER_GATEWAY_AUTH_TOKEN`` in the environment are enough.
    """

    client_class = DottedObjectName("jupyter_ekg.client.EkgKernelClient")
    client_factory = Type(klass="jupyter_ekg.client.EkgKernelClient")

    away_limit = Float(
        600.0,
        config=True,
        help="How many seconds the gateway may be away before the kernel counts as lost.",
    )

    _unsure_since: float | None = None

    def client(self, **kwargs):
        """Returns a client of the kernel."""
        kwargs.setdefault("away_limit", self.away_limit)
        return super().client(**kwargs)

    async def start_kernel(self, **kwargs):
        """Starts a kernel of the notebook's kernelspec at the gateway. jupyter_server's manager ignores the kernelspec.

        The manager chooses the kernel's id. A repeated request therefore starts no second kernel. Requests are repeated
        up to away_limit while the gateway is away.
        """
        if kwargs.get("kernel_name") is None:
            kwargs["kernel_name"] = self.kernel_name
        if "KERNEL_ID" not in os.environ:
            kwargs["env"] = {"KERNEL_ID": str(uuid.uuid4()), **(kwargs.get("env") or {})}
        await self._retry_while_away(lambda: super(EkgKernelManager, self).start_kernel(**kwargs))

    async def shutdown_kernel(self, now=False, restart=False):
        """Shuts the kernel down. The request is repeated up to away_limit while the gateway is away."""
        await self._retry_while_away(lambda: super(EkgKernelManager, self).shutdown_kernel(now=now, restart=restart))

    async def interrupt_kernel(self):
        """Interrupts the kernel. The request is repeated up to away_limit while the gateway is away."""
        await self._retry_while_away(super().interrupt_kernel)

    async def _retry_while_away(self, ask: Callable[[], Awaitable[None]]) -> None:
        end, pause = time.monotonic() + self.away_limit, MIN_PAUSE
        while True:
            try:
                await ask()
                return
            except web.HTTPError as err:
                if err.status_code not in _AWAY or time.monotonic() + pause > end:
                    raise
                self.log.warning("jupyter-ekg: the gateway is away, trying again: %s", err)
            await asyncio.sleep(pause)
            pause = min(2 * pause, MAX_PAUSE)

    async def is_alive(self):
        """Reports whether the kernel is alive. While the gateway is away, it counts as alive up to away_limit."""
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
                self.log.warning(
                    "jupyter-ekg: the gateway cannot tell whether kernel %s lives: %s", self.kernel_id, err
                )
                return True
            return False
        self._unsure_since = None
        return bool(model) and model.get("execution_state") != "dead"
