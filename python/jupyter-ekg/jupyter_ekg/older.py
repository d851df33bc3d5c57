"""Support for jupyter_server before 2.6, whose websocket handler for gateways has no connection classes."""

from __future__ import annotations

from typing import Any

from jupyter_server.base.websocket import WebSocketMixin
from jupyter_server.services.kernels.websocket import KernelWebsocketHandler
from jupyter_server.utils import url_path_join

from .handlers import KERNEL_ID

try:
    from jupyter_server.gateway.connections import GatewayWebSocketConnection

    IS_OLDER = False
except ImportError:
    IS_OLDER = True

    from jupyter_server.gateway.handlers import GatewayWebSocketClient

    class GatewayWebSocketConnection:  # type: ignore[no-redef]
        """The class that later versions have under this name, made from the old handler's parts."""

        def __init__(self, parent: Any, websocket_handler: Any, config: Any, session: Any = None):
            self._kernel_id = parent.kernel_id
            self._handler = websocket_handler
            self._client = GatewayWebSocketClient()

        async def connect(self) -> None:
            """Starts to connect."""
            # The old on_open connects later and loses messages that arrive earlier.
            await self._client._connect(self._kernel_id, self._write)

        def _write(self, message: str | bytes) -> None:
            if self._handler.ws_connection is not None:
                self._handler.write_message(message, binary=isinstance(message, bytes))

        def handle_incoming_message(self, message: str | bytes) -> None:
            """Forwards a message from the browser."""
            self._client.on_message(message)

        def disconnect(self) -> None:
            """Ends the connection."""
            self._client.on_close()


class ChannelsHandler(KernelWebsocketHandler):
    """jupyter_server's handler for local kernels, which uses the connection class, with later versions' pings."""

    async def open(self, kernel_id):
        """Starts the pings and the relay."""
        WebSocketMixin.open(self)
        await super().open(kernel_id)


def add_handler(web_app: Any, base_url: str) -> None:
    """Registers the handler before the server's own handler for gateways."""
    web_app.add_handlers(".*$", [(url_path_join(base_url, "api", "kernels", KERNEL_ID, "channels"), ChannelsHandler)])
