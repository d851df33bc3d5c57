"""Loads the extension into a Jupyter server."""

from __future__ import annotations

from jupyter_server.gateway.gateway_client import GatewayClient

from . import handlers, jobs, older, sessions
from ._version import __version__
from .connection import EkgWebsocketConnection
from .watch import Watch

_KERNEL_MANAGER = "jupyter_server.gateway.managers.GatewayKernelManager"


def load(serverapp):
    """Installs the relay and the routes in the server ``serverapp`` (a ServerApp) if it uses a gateway.

    A configured class of connections or of kernel managers is kept: only jupyter_server's own is replaced.
    """
    if not GatewayClient.instance(parent=serverapp).gateway_enabled:
        serverapp.log.debug("jupyter-ekg: no gateway is configured, nothing to do")
        return
    _forward_session_name(GatewayClient.instance())
    settings = serverapp.web_app.settings
    handlers.add(serverapp.web_app, settings["base_url"], Watch(serverapp.log))
    jobs.keep_kernels_of_jobs(serverapp.kernel_manager, serverapp.log)
    sessions.keep(serverapp.session_manager, serverapp.kernel_manager, serverapp.log)
    # The clients of jupyter_server's own class open their websocket without the gateway's token.
    if serverapp.kernel_manager.kernel_manager_class == _KERNEL_MANAGER:
        serverapp.kernel_manager.kernel_manager_class = "jupyter_ekg.client.EkgServerKernelManager"
    settings.setdefault("page_config_data", {})["jupyterEkg"] = "true"  # read by the JupyterLab part
    if older.IS_OLDER:
        older.add_handler(serverapp.web_app, settings["base_url"])
    elif settings.get("kernel_websocket_connection_class") is not older.GatewayWebSocketConnection:
        serverapp.log.warning(
            "jupyter-ekg: the connection class %s is configured and stays; kernels are not relayed by jupyter-ekg",
            settings.get("kernel_websocket_connection_class"),
        )
        return
    # Websocket handlers read the setting; the server reads the trait when it stops.
    settings["kernel_websocket_connection_class"] = EkgWebsocketConnection
    serverapp.kernel_websocket_connection_class = EkgWebsocketConnection
    serverapp.log.info("jupyter-ekg %s relays kernels of %s", __version__, GatewayClient.instance().url)


def _forward_session_name(client):
    """Makes jupyter_server send the variable that names a session's file. Its local kernels have it."""
    client.allowed_envs = ",".join(name for name in (client.allowed_envs, "JPY_SESSION_NAME") if name)
