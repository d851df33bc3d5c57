"""Routes that the extension adds to a Jupyter server.

``GET {base_url}jupyter-ekg/kernels/ID/log`` passes on the gateway's log of a kernel, read with the server's own credential:
whoever may read kernels here may read it.
"""

from __future__ import annotations

import asyncio

import aiohttp
from jupyter_server.auth import authorized
from jupyter_server.base.handlers import APIHandler
from jupyter_server.utils import url_path_join
from tornado import web
from tornado.iostream import StreamClosedError

from . import gateway

_KERNEL_ID = r"(?P<kernel_id>\w+-\w+-\w+-\w+-\w+)"
_PARAMETERS = ("after", "limit", "parent", "follow")


class KernelLogHandler(APIHandler):
    """Streams a kernel's log, one JSON object a line."""

    auth_resource = "kernels"

    _copying: asyncio.Task | None = None

    @web.authenticated
    @authorized("read", resource="kernels")
    async def get(self, kernel_id):
        """Answers with the log of a kernel of this server."""
        # The gateway may have kernels of others, and the credential be good for all of them.
        if kernel_id not in self.kernel_manager:
            raise web.HTTPError(404, f"Kernel does not exist: {kernel_id}")
        query = {name: self.get_query_argument(name) for name in _PARAMETERS if self.get_query_argument(name, None) is not None}
        self._copying = asyncio.ensure_future(self._copy(kernel_id, query))
        try:
            await self._copying
        except asyncio.CancelledError:
            if not self.request.connection.stream.closed():
                raise
        except StreamClosedError:
            pass  # the client has gone
        except aiohttp.ClientError as err:
            # A regular end would say that this is all there is.
            self.log.warning("jupyter-ekg: the log of kernel %s broke off: %s", kernel_id, err)
            self.request.connection.stream.close()
        except gateway.Refused as err:
            raise web.HTTPError(err.status, err.message) from err
        except gateway.Unreachable as err:
            raise web.HTTPError(503, f"the gateway cannot be reached: {err}") from err

    async def _copy(self, kernel_id: str, query: dict[str, str]) -> None:
        async with gateway.log(kernel_id, query) as response:
            self.set_header("Content-Type", "application/x-ndjson")
            self.set_header("Cache-Control", "no-store")
            await self.flush()
            async for piece in response.content.iter_any():
                self.write(piece)
                await self.flush()  # waits while the client does not read

    def on_connection_close(self):
        """Stops reading the log of a client that has gone: nothing may come for hours."""
        if self._copying is not None:
            self._copying.cancel()
        super().on_connection_close()


def add(web_app, base_url: str) -> None:
    """Adds the routes to the server's application."""
    web_app.add_handlers(".*$", [(url_path_join(base_url, "jupyter-ekg", "kernels", _KERNEL_ID, "log"), KernelLogHandler)])
