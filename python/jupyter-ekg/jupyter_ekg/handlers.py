"""Routes that the extension adds to a Jupyter server.

``GET {base_url}jupyter-ekg/kernels/ID/log`` forwards the gateway's log of a kernel, read with the server's own
credential. Any user who may read kernels here may read it. ``.../kernels/ID/outputs`` returns the cells' outputs from
that log, and ``{base_url}jupyter-ekg/me`` the user that the gateway knows by that credential.
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

from . import errors, gateway
from .outputs import Log

# A kernel's id in a path, named as in jupyter_server's handlers.
KERNEL_ID = r"(?P<kernel_id>\w+-\w+-\w+-\w+-\w+)"
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
        """Answers with the executions by the cells' ids."""
        cells = await self.read(kernel_id, self._cells)
        if cells is not None:
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


def add(web_app, base_url: str) -> None:
    """Adds the routes to the server's application."""
    kernel = url_path_join(base_url, "jupyter-ekg", "kernels", KERNEL_ID)
    web_app.add_handlers(
        ".*$",
        [
            (url_path_join(kernel, "log"), KernelLogHandler),
            (url_path_join(kernel, "outputs"), KernelOutputsHandler),
            (url_path_join(base_url, "jupyter-ekg", "me"), UserHandler),
        ],
    )
