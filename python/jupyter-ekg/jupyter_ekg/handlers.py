"""Routes that the extension adds to a Jupyter server.

``GET {base_url}jupyter-ekg/kernels/ID/log`` forwards the gateway's log of a kernel, read with the server's own
credential. Any user who may read kernels here may read it. ``.../kernels/ID/outputs`` returns the cells' outputs from
that log, and ``{base_url}jupyter-ekg/me`` the user that the gateway knows by that credential.

``GET {base_url}jupyter-ekg/events`` is a stream of the kernels as they change. ``PATCH .../kernels/ID`` keeps a
kernel or its GPU, and shares it, ``POST .../kernels/ID/interrupt`` and ``.../restart`` and ``DELETE .../kernels/ID`` do the same as the
gateway's. ``POST .../kernels/ID/wake`` says that a cell will follow. ``POST .../kernels/ID/jobs`` runs the rest of a notebook as a job in the kernel. ``GET
{base_url}jupyter-ekg/jobs/ID`` returns a job, and ``.../jobs/ID/outputs`` its cells' outputs. ``POST .../jobs/ID/connect``
makes its kernel one of this server's. Nothing else is forwarded.
The gateway decides what the server's credential allows.
"""

from __future__ import annotations

import asyncio
import json

import aiohttp
from jupyter_server.auth import authorized
from jupyter_server.base.handlers import APIHandler
from jupyter_server.utils import url_path_join
from tornado import web
from tornado.iostream import StreamClosedError

from . import errors, gateway, jobs
from .outputs import Log
from .watch import Watch, event

# A kernel's id in a path, named as in jupyter_server's handlers.
KERNEL_ID = r"(?P<kernel_id>\w+-\w+-\w+-\w+-\w+)"
_JOB_ID = r"(?P<job_id>\w+-\w+-\w+-\w+-\w+)"
_ACTION = r"(?P<action>interrupt|restart)"
_CHANGES = ("keep_until", "keep_gpu_until", "shared_with")  # members of a PATCH that are forwarded
# The members of a submission, with their types.
_SUBMISSION = {"notebook": (dict,), "from_cell": (int, str), "name": (str,), "input_path": (str,), "then": (str,),
               "token": (str,)}  # fmt: skip
_MOST_BODY = 1 << 20  # bytes of a PATCH; the gateway's own bound is smaller
_UNREAD = 60.0  # seconds after which a page that takes nothing is disconnected
_COMMENT = 15.0  # seconds of silence after which a comment shows that the stream lives
_PARAMETERS = ("log", "after", "limit", "parent", "follow")


class _KernelHandler(APIHandler):
    """A route that reads the log of one of this server's kernels. The client may disconnect meanwhile."""

    auth_resource = "kernels"

    _reading: asyncio.Task | None = None

    async def read(self, kernel_id, reading):
        """Awaits the coroutine function ``reading``, with the gateway's errors as HTTP errors."""
        # The server's credential may be valid for other users' kernels, too.
        if kernel_id not in self.kernel_manager:
            raise web.HTTPError(404, f"Kernel does not exist: {kernel_id}")
        self._reading = asyncio.ensure_future(reading(kernel_id))
        try:
            with errors.of_gateway():
                return await self._reading
        except asyncio.CancelledError:
            if not self.request.connection.stream.closed():
                raise
        except StreamClosedError:
            pass  # the client has disconnected
        return None

    def on_connection_close(self):
        """Stops reading the log when the client disconnects: no line may arrive for hours."""
        if self._reading is not None:
            self._reading.cancel()
        super().on_connection_close()


class KernelLogHandler(_KernelHandler):
    """Streams a kernel's log, one JSON object a line."""

    @web.authenticated
    @authorized("read", resource="kernels")
    async def get(self, kernel_id):
        """Answers with the log of a kernel of this server."""
        await self.read(kernel_id, self._copy)

    async def _copy(self, kernel_id: str) -> None:
        query = {
            name: self.get_query_argument(name)
            for name in _PARAMETERS
            if self.get_query_argument(name, None) is not None
        }
        async with gateway.log(kernel_id, query) as response:
            self.set_header("Content-Type", "application/x-ndjson")
            self.set_header("Cache-Control", "no-store")
            if name := response.headers.get("Ekg-Log"):
                self.set_header("Ekg-Log", name)
            await self.flush()
            try:
                async for piece in response.content.iter_any():
                    self.write(piece)
                    await self.flush()  # waits while the client does not read
            except aiohttp.ClientError as err:
                # A regular end of the response would mean that the log is complete.
                self.log.warning("jupyter-ekg: the log of kernel %s broke off: %s", kernel_id, err)
                self.request.connection.stream.close()


class KernelOutputsHandler(_KernelHandler):
    """The newest execution of each cell in a kernel's log."""

    @web.authenticated
    @authorized("read", resource="kernels")
    async def get(self, kernel_id):
        """Answers with the executions by the cells' ids; with ``summary=1`` without their outputs."""
        cells = await self.read(kernel_id, self._cells)
        if cells is not None:
            if self.get_query_argument("summary", "") == "1":
                without = {"outputs": [], "widgets": {}, "rewritten": True, "seen": []}
                cells = {cell: {**execution, **without} for cell, execution in cells.items()}
            self.set_header("Cache-Control", "no-store")
            self.finish(json.dumps({"cells": cells}))

    async def _cells(self, kernel_id: str) -> dict[str, object]:
        log = Log()
        async with gateway.log(kernel_id, {}) as response:
            async for line in gateway.log_lines(response):
                log.feed(line)
        # Asked after the log was read: a grant that was made meanwhile is seen.
        trusted = await gateway.is_own(kernel_id)
        return {cell: {**execution.model(), "trusted": trusted} for cell, execution in log.cells.items()}


class UserHandler(APIHandler):
    """The user whose credential this server sends to the gateway."""

    auth_resource = "kernels"

    @web.authenticated
    @authorized("read", resource="kernels")
    async def get(self):
        """Answers as the gateway's ``GET /api/me``, with the name only."""
        with errors.of_gateway():
            self.finish(json.dumps({"identity": {"username": await gateway.user()}}))


class EventsHandler(APIHandler):
    """Streams the kernels that concern this server's users, as server-sent events."""

    auth_resource = "kernels"

    _sending: asyncio.Task | None = None

    def initialize(self, watch: Watch):
        """Gets the watch that all pages share."""
        self._watch = watch

    @web.authenticated
    @authorized("read", resource="kernels")
    async def get(self):
        """Answers until the client disconnects."""
        self.set_header("Content-Type", "text/event-stream")
        self.set_header("Cache-Control", "no-store")
        self.set_header("X-Accel-Buffering", "no")  # or nginx keeps events back
        self._sending = asyncio.ensure_future(self._send())
        try:
            await self._sending
        except asyncio.CancelledError:
            if not self.request.connection.stream.closed():
                raise
        except (StreamClosedError, asyncio.TimeoutError):
            self.request.connection.stream.close()

    async def _send(self) -> None:
        # Without users, all clients of the gateway are one owner: the kernels of other servers are no concern of ours.
        def shown(model):
            return gateway.has_users(model) or model["id"] in self.kernel_manager

        silent_since = asyncio.get_running_loop().time()
        updates = self._watch.pages(shown)
        try:
            async for events in updates:
                now = asyncio.get_running_loop().time()
                if events:
                    self.write(b"".join(event(name, data) for name, data in events))
                elif now - silent_since >= _COMMENT:
                    self.write(b": alive\n\n")
                else:
                    continue
                silent_since = now
                await gateway.within(_UNREAD, self.flush())  # waits while the client does not read
        finally:
            await updates.aclose()

    def on_connection_close(self):
        """Stops when the client disconnects."""
        if self._sending is not None:
            self._sending.cancel()
        super().on_connection_close()

    def update_api_activity(self):
        """Does nothing: a page that only watches does not keep the server from being culled."""


class _ChangeHandler(APIHandler):
    """A route that changes a kernel at the gateway."""

    auth_resource = "kernels"

    async def forward(self, kernel_id: str, method: str, action: str = "", body: object = None) -> None:
        """Sends the request to the gateway, and answers as the gateway does."""
        with errors.of_gateway():
            await self.check(kernel_id)
            answer = await gateway.change(kernel_id, method, action, body)
        if answer is None:
            self.set_status(204)
            self.finish()
        else:
            self.finish(json.dumps(answer))

    async def check(self, kernel_id: str) -> None:
        """Raises an HTTP error if the kernel is no concern of this server's."""
        # Without users the server's credential is valid for the kernels of other servers, too.
        if kernel_id not in self.kernel_manager and not gateway.has_users(await gateway.kernel(kernel_id)):
            raise web.HTTPError(404, f"Kernel does not exist: {kernel_id}")

    def body(self) -> object:
        """Returns the body, which is JSON."""
        try:
            return json.loads(self.request.body)
        except (ValueError, RecursionError) as err:
            raise web.HTTPError(400, "The body is not JSON.") from err


class KernelHandler(_ChangeHandler):
    """Keeps a kernel or its GPU, shares and ends a kernel."""

    @web.authenticated
    @authorized("write", resource="kernels")
    async def patch(self, kernel_id):
        """Forwards the body's known members."""
        if len(self.request.body) > _MOST_BODY:
            raise web.HTTPError(413, "The request is too long.")
        body = self.body()
        if not isinstance(body, dict) or not body or not set(body) <= set(_CHANGES):
            raise web.HTTPError(400, "The body is no object of keep_until, keep_gpu_until or shared_with.")
        await self.forward(kernel_id, "PATCH", body=body)

    @web.authenticated
    @authorized("write", resource="kernels")
    async def delete(self, kernel_id):
        """Shuts the kernel down."""
        await self.forward(kernel_id, "DELETE")


class ActionHandler(_ChangeHandler):
    """Interrupts and restarts a kernel."""

    @web.authenticated
    @authorized("write", resource="kernels")
    async def post(self, kernel_id, action):
        """Forwards the action, without a body."""
        await self.forward(kernel_id, "POST", "/" + action)


class WakeHandler(_ChangeHandler):
    """Says that a cell will follow, so that a parked kernel takes its GPU if that is free."""

    @web.authenticated
    @authorized("execute", resource="kernels")
    async def post(self, kernel_id):
        """Answers as the gateway does: with 202 if the kernel may be parked, else with 204."""
        with errors.of_gateway():
            await self.check(kernel_id)
            parks = await gateway.wake(kernel_id)
        self.set_status(202 if parks else 204)
        self.finish()


class SubmitHandler(_ChangeHandler):
    """Runs the rest of a notebook as a job in its kernel."""

    @web.authenticated
    @authorized("write", resource="kernels")
    async def post(self, kernel_id):
        """Forwards the submission, for this kernel only. Answers with the job."""
        body = self.body()
        if not isinstance(body, dict) or "notebook" not in body or not set(body) <= set(_SUBMISSION):
            raise web.HTTPError(400, "The body is no submission of a notebook.")
        for member, value in body.items():
            if type(value) not in _SUBMISSION[member]:
                raise web.HTTPError(400, f"{member} has the wrong type.")
        with errors.of_gateway():
            await self.check(kernel_id)
            job = await gateway.send("POST", "/api/jobs", {**body, "kernel": kernel_id})
        self.set_status(201)
        self.finish(json.dumps(job))


class JobHandler(APIHandler):
    """A job at the gateway, or what it has made of the cells that it has run."""

    auth_resource = "kernels"

    def initialize(self, read):
        """Gets the coroutine function that reads what is asked for, by the job's id."""
        self._read = read

    @web.authenticated
    @authorized("read", resource="kernels")
    async def get(self, job_id):
        """Answers with what was read."""
        self.set_header("Cache-Control", "no-store")
        with errors.of_gateway():
            self.finish(json.dumps(await self._read(job_id)))


class ConnectHandler(APIHandler):
    """Makes the kernel of a job one of this server's: the server that has started it may be gone."""

    auth_resource = "kernels"

    @web.authenticated
    @authorized("write", resource="kernels")
    async def post(self, job_id):
        """Answers with 204 when a notebook can be connected to the kernel."""
        with errors.of_gateway():
            kernel_id = (await jobs.read(job_id)).get("kernel_id")
            if kernel_id not in self.kernel_manager:
                await gateway.kernel(kernel_id or "")  # says why it is gone
                await self.kernel_manager.start_kernel(kernel_id=kernel_id)
        self.set_status(204)
        self.finish()


def add(web_app, base_url: str, watch: Watch) -> None:
    """Adds the routes to the server's application."""
    kernel = url_path_join(base_url, "jupyter-ekg", "kernels", KERNEL_ID)
    job = url_path_join(base_url, "jupyter-ekg", "jobs", _JOB_ID)
    web_app.add_handlers(
        ".*$",
        [
            (url_path_join(kernel, "log"), KernelLogHandler),
            (url_path_join(kernel, "outputs"), KernelOutputsHandler),
            (kernel, KernelHandler),
            (url_path_join(kernel, _ACTION), ActionHandler),
            (url_path_join(kernel, "wake"), WakeHandler),
            (url_path_join(kernel, "jobs"), SubmitHandler),
            (job, JobHandler, {"read": jobs.read}),
            (url_path_join(job, "outputs"), JobHandler, {"read": jobs.outputs}),
            (url_path_join(job, "connect"), ConnectHandler),
            (url_path_join(base_url, "jupyter-ekg", "events"), EventsHandler, {"watch": watch}),
            (url_path_join(base_url, "jupyter-ekg", "me"), UserHandler),
        ],
    )
