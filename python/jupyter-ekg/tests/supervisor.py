"""The tests' supervisor: one kernel behind a gateway's address, with faults that a test can order.

It speaks ``v1.relay.ekg`` like the real one: a cursor before each message, numbered pings, answers to pings in order
with the messages. It drops messages that it has accepted already.
"""

from __future__ import annotations

import asyncio
import json
import struct

import aiohttp
from aiohttp import web

from jupyter_ekg import framing

KERNEL = "11111111-2222-3333-4444-555555555555"
KERNEL_SESSION = "the-kernels-own-session"


def iopub(msg_type: str, content: dict, parent: dict | None = None, buffers: tuple = ()) -> bytes:
    """A message that the kernel publishes."""
    return message("iopub", msg_type, content, parent, buffers)


def shell(msg_type: str, content: dict, parent: dict) -> bytes:
    """A reply of the kernel."""
    return message("shell", msg_type, content, parent)


def message(channel: str, msg_type: str, content: dict, parent: dict | None = None, buffers: tuple = ()) -> bytes:
    """A message of the kernel."""
    header = {
        "msg_id": f"k-{id(content)}-{msg_type}",
        "msg_type": msg_type,
        "username": "kernel",
        "session": KERNEL_SESSION,
        "date": "2026-01-02T03:04:05.000006Z",
        "version": "5.3",
    }
    parts = [json.dumps(p).encode() for p in (header, parent or {}, {}, content)]
    return framing.pack(channel, parts + list(buffers))


def stream(text: str, parent: dict | None = None) -> bytes:
    """A line of output."""
    return iopub("stream", {"name": "stdout", "text": text}, parent)


def request(msg_id: str, msg_type: str = "execute_request", session: str = "browser", size: int = 0) -> bytes:
    """A message of a browser."""
    header = {"msg_id": msg_id, "msg_type": msg_type, "username": "", "session": session, "date": "", "version": "5.3"}
    parts = [json.dumps(p).encode() for p in (header, {}, {}, {"code": "x" * size})]
    return framing.pack("shell", parts)


class Supervisor:
    """The kernel's log and what it accepted, and the server in front of them. Use it with ``async with``."""

    def __init__(self, port: int = 0):
        self.port = port
        self.log: list[bytes] = []  # cursor N is behind the first N messages
        self.accepted: list[str] = []  # msg_ids, in order, each once
        self.repeated: list[str] = []  # msg_ids that came again
        self.connections: list[dict] = []  # the query of each connection, in order
        self.pongs: list[int] = []  # what peers have acknowledged
        self.taken = 0  # messages written to the present connection's socket

        # Faults.
        self.protocol = True  # whether it speaks the relay's protocol
        self.status = 200  # of the upgrade
        self.cut_after_sent: int | None = None  # break the connection after so many more messages to the peer
        self.cut_after_received: int | None = None  # ... from the peer, before the last is accepted or proven
        self.prove = True  # whether pings are answered
        self.close_with: tuple[int, str] | None = None

        self._more = asyncio.Event()
        self._sockets: set[web.WebSocketResponse] = set()
        self.headers: list[dict] = []
        self.log_lines: list[bytes] = []
        self.log_queries: list[dict] = []
        self.kernel_status = 200
        self.kernel_answers: dict[str, tuple[int, str]] = {}  # by kernel: status and body, instead of its model
        self.models_before = 0  # so many requests for a model are answered before kernel_answers holds
        self.sessions: list[dict] = []
        self.user = "ann"  # of every request
        self.ownership: dict = {}  # what the kernel's model says where there are users
        self.more_kernels: list[dict] = []
        self.starts: list[dict] = []  # bodies of requests for a kernel
        self.start_ids: list[str] = []  # of the next kernels; then KERNEL
        self.deleted: list[str] = []  # ids of kernels
        self.start_status = 201
        self.start_error: str | None = None  # the body of the answer to a start that fails
        self.events: list[bytes] | None = None  # of the stream; None for a gateway that has no stream
        self._streams: set[asyncio.Transport] = set()  # that are open
        self.no_streams = 0  # requests for a stream while it had none
        self.served = 0  # pieces of streams that were written
        self.changes: list[tuple] = []  # method, path, authorization and body of requests that change a kernel
        self.change_error: tuple[int, str] | None = None  # the answer to them
        self.parks = False  # whether kernels may be parked
        self.jobs: list[dict] = []
        self.notebooks: dict[str, dict] = {}  # of each job: "" as it is now, "1" as it was submitted
        self._end_logs = asyncio.Event()
        self.open_logs = 0  # that are being followed

    async def __aenter__(self):
        await self.start()
        return self

    async def __aexit__(self, *_):
        await self.stop()

    async def start(self):
        """Listens, on the same port as before."""
        app = web.Application()
        app.router.add_get("/api/kernels/{id}/channels", self._channels)
        app.router.add_get("/api/kernels/{id}/log", self._log)
        app.router.add_get("/api/kernels/{id}", self._kernel)
        app.router.add_get("/api/kernels", self._kernels)
        app.router.add_post("/api/kernels", self._start)
        app.router.add_delete("/api/kernels/{id}", self._delete)
        app.router.add_patch("/api/kernels/{id}", self._change)
        app.router.add_post("/api/kernels/{id}/{action}", self._change)
        app.router.add_get("/api/events", self._events)
        app.router.add_get("/api/jobs", self._jobs)
        app.router.add_post("/api/jobs", self._submit)
        app.router.add_get("/api/jobs/{id}", self._job)
        app.router.add_get("/api/jobs/{id}/notebook", self._notebook)
        app.router.add_get("/api/kernelspecs", self._kernelspecs)
        app.router.add_get("/api/sessions", self._sessions)
        app.router.add_get("/api/me", self._me)
        # The end of a client ends its handler, as it does with most servers.
        self._runner = web.AppRunner(app, shutdown_timeout=0.1, handler_cancellation=True)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", self.port, reuse_address=True)
        await site.start()
        self.port = site._server.sockets[0].getsockname()[1]

    async def stop(self):
        """Breaks all connections and does not listen any more."""
        self.cut()
        self._end_logs.set()
        await self._runner.cleanup()

    @property
    def url(self) -> str:
        """The gateway's address."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def peers(self) -> int:
        """How many websockets are open."""
        return len(self._sockets)

    @property
    def streams(self) -> int:
        """How many streams of events are open."""
        return len(self._streams)

    @property
    def blocked(self) -> bool:
        """Whether bytes wait in this process because a peer does not read."""
        return any(ws._req.transport.get_write_buffer_size() > 0 for ws in self._sockets)

    def say(self, *messages: bytes) -> None:
        """Adds messages to the log."""
        self.log.extend(messages)
        self._more.set()

    def cut(self) -> None:
        """Breaks all connections, without a closing frame."""
        for ws in list(self._sockets):
            self._break(ws)

    @staticmethod
    def _break(ws: web.WebSocketResponse) -> None:
        transport = ws._req.transport if ws._req is not None else None
        if transport is not None:
            transport.abort()

    def _model(self, kernel_id: str = KERNEL) -> dict:
        return {
            "id": kernel_id,
            "name": "python3",
            "last_activity": "2026-01-02T03:04:05.000006Z",
            "execution_state": "idle",
            "connections": 1,
            **self.ownership,
        }

    async def _kernel(self, request: web.Request) -> web.Response:
        if self.kernel_status != 200:
            return web.json_response({"message": "no such kernel", "reason": "none"}, status=self.kernel_status)
        kernel_id = request.match_info["id"]
        if kernel_id in self.kernel_answers:
            self.models_before -= 1
            if self.models_before < 0:
                status, body = self.kernel_answers[kernel_id]
                return web.Response(status=status, text=body)
        return web.json_response(self._model(kernel_id))

    async def _kernels(self, request: web.Request) -> web.Response:
        return web.json_response([self._model(), *self.more_kernels])

    async def _start(self, request: web.Request) -> web.Response:
        self.starts.append(await request.json())
        if self.start_error is not None:
            return web.Response(status=self.start_status, text=self.start_error, content_type="application/json")
        kernel_id = self.start_ids.pop(0) if self.start_ids else KERNEL
        return web.json_response(self._model(kernel_id), status=self.start_status)

    async def _change(self, request: web.Request) -> web.Response:
        self.changes.append(
            (request.method, request.path, request.headers.get("Authorization"), (await request.text()) or None)
        )
        if self.change_error is not None:
            status, message = self.change_error
            return web.json_response({"message": message, "reason": "refused"}, status=status)
        if request.path.endswith("/wake"):
            return web.Response(status=202 if self.parks else 204)
        return web.json_response(self._model())

    async def _events(self, request: web.Request) -> web.StreamResponse:
        if self.events is None:
            self.no_streams += 1
            raise web.HTTPNotFound
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        transport = request.transport
        self._streams.add(transport)
        try:
            sent = 0
            while True:
                self._more.clear()
                for one in (self.events or [])[sent:]:
                    await response.write(one)
                    sent += 1
                    self.served += 1
                await self._more.wait()
        finally:
            self._streams.discard(transport)

    def cut_streams(self) -> None:
        """Breaks the streams."""
        for transport in list(self._streams):
            transport.abort()

    def tell(self, *models: dict, removed: tuple[str, ...] = ()) -> None:
        """Sends an update of kernels on the streams."""
        data = json.dumps({"kernels": models, "removed": removed})
        begin = "" if self.events else "event: reset\ndata: {}\n\n"
        self.events = self.events or []
        self.events.append(
            f"{begin}event: kernels\ndata: {data}\n\n: comment\n\nevent: complete\ndata: {{}}\n\n".encode()
        )
        self._more.set()

    async def _jobs(self, request: web.Request) -> web.Response:
        return web.json_response(self.jobs)

    async def _submit(self, request: web.Request) -> web.Response:
        response = await self._change(request)
        job = {"id": "3f2a1b2c-0000-4000-8000-000000000000", "state": "queued"}
        return response if response.status != 200 else web.json_response(job, status=201)

    async def _job(self, request: web.Request) -> web.Response:
        for job in self.jobs:
            if job["id"] == request.match_info["id"]:
                return web.json_response(job)
        return web.json_response({"message": "The job does not exist.", "reason": "Not Found"}, status=404)

    async def _notebook(self, request: web.Request) -> web.Response:
        return web.json_response(self.notebooks[request.query.get("source", "")])

    async def _delete(self, request: web.Request) -> web.Response:
        self.deleted.append(request.match_info["id"])
        return web.Response(status=204)

    async def _kernelspecs(self, request: web.Request) -> web.Response:
        spec = {"argv": [], "display_name": "Python", "language": "python"}
        return web.json_response(
            {"default": "python3", "kernelspecs": {"python3": {"name": "python3", "spec": spec, "resources": {}}}}
        )

    async def _me(self, request: web.Request) -> web.Response:
        return web.json_response({"identity": {"username": self.user}, "permissions": {}})

    async def _sessions(self, request: web.Request) -> web.Response:
        return web.json_response(self.sessions)

    async def _log(self, request: web.Request) -> web.StreamResponse:
        self.log_queries.append({**request.query, "authorization": request.headers.get("Authorization")})
        if self.kernel_status != 200:
            return web.json_response({"message": "no such kernel", "reason": "none"}, status=self.kernel_status)
        response = web.StreamResponse(headers={"Content-Type": "application/x-ndjson", "Ekg-Log": "0123456789abcdef"})
        await response.prepare(request)
        for line in self.log_lines:
            await response.write(line + b"\n")
        if request.query.get("follow") in ("1", "true"):
            self.open_logs += 1
            try:
                await self._end_logs.wait()
            finally:
                self.open_logs -= 1
        return response

    async def _channels(self, request: web.Request) -> web.StreamResponse:
        self.connections.append(dict(request.query))
        self.headers.append(dict(request.headers))
        if self.status != 200:
            return web.json_response({"message": "refused", "reason": "refused"}, status=self.status)
        protocols = ("v1.relay.ekg",) if self.protocol else ()
        ws = web.WebSocketResponse(protocols=protocols, autoping=False, max_msg_size=0, compress=False)
        await ws.prepare(request)
        self._sockets.add(ws)
        if not self.protocol:
            try:
                return await self._legacy(ws)
            finally:
                self._sockets.discard(ws)
        if self.close_with is not None:
            code, reason = self.close_with
            await ws.close(code=code, message=reason.encode())
            self._sockets.discard(ws)
            return ws
        cursor = bytes.fromhex(request.query.get("cursor", ""))
        start = struct.unpack(">Q", cursor[:8])[0] if cursor else 0
        writer = asyncio.ensure_future(self._write(ws, start))
        try:
            await self._read(ws)
        finally:
            self._sockets.discard(ws)
            writer.cancel()
            await asyncio.gather(writer, return_exceptions=True)
        return ws

    async def _legacy(self, ws: web.WebSocketResponse) -> web.WebSocketResponse:
        """A gateway as others are: JSON text, echoed as the shell's reply."""
        async for msg in ws:
            if msg.type is aiohttp.WSMsgType.TEXT:
                received = json.loads(msg.data)
                self.accepted.append(received["header"]["msg_id"])
                await ws.send_str(
                    json.dumps({**received, "parent_header": received["header"], "msg_type": "reply", "msg_id": "r"})
                )
        return ws

    async def _write(self, ws: web.WebSocketResponse, position: int) -> None:
        self.taken = 0
        pinged = position
        while True:
            self._more.clear()
            while position < len(self.log):
                frame = self.log[position]
                position += 1
                await ws.send_bytes(struct.pack(">QQQ", position, 7, 7) + frame)
                self.taken += 1
                if self.cut_after_sent is not None:
                    self.cut_after_sent -= 1
                    if self.cut_after_sent <= 0:
                        self.cut_after_sent = None
                        self._break(ws)
                        return
            if pinged < position:
                pinged = position
                await ws.ping(struct.pack(">Q", position))
            await self._more.wait()

    async def _read(self, ws: web.WebSocketResponse) -> None:
        async for msg in ws:
            if msg.type is aiohttp.WSMsgType.BINARY:
                if self.cut_after_received is not None:
                    self.cut_after_received -= 1
                    if self.cut_after_received <= 0:
                        self.cut_after_received = None
                        self._break(ws)
                        return
                msg_id = json.loads(framing.parse(msg.data).header)["msg_id"]
                (self.repeated if msg_id in self.accepted else self.accepted).append(msg_id)
            elif msg.type is aiohttp.WSMsgType.PING and self.prove:
                await ws.pong(msg.data)
            elif msg.type is aiohttp.WSMsgType.PONG:
                self.pongs.append(struct.unpack(">Q", msg.data)[0])
