"""Sessions that outlive their Jupyter server, with their kernels.

jupyter_server keeps its sessions in memory, or in the file that ``SessionManager.database_filepath`` names. With a
file, a server that ends leaves the kernels of its sessions. The next server with that file connects to them again.
"""

from __future__ import annotations

import logging
from typing import Any

from . import errors, gateway

_IN_MEMORY = ":memory:"


def keep(session_manager: Any, kernel_manager: Any, log: logging.Logger) -> None:
    """Installs this in a server whose sessions are in a file. Other servers end their kernels as before.

    A session whose kernel is gone or dead is removed, as jupyter_server does it. While the gateway is away, requests
    for sessions are answered with 503, and no session is removed.
    """
    if session_manager.database_filepath == _IN_MEMORY:
        return
    end_all, is_culled = kernel_manager.shutdown_all, session_manager.kernel_culled

    async def shutdown_all(now: bool = False) -> None:
        for (kernel_id,) in session_manager.cursor.execute("SELECT DISTINCT kernel_id FROM session").fetchall():
            if kernel_id in kernel_manager:
                log.info("jupyter-ekg: the kernel %s is not shut down: its session is kept", kernel_id)
                kernel_manager.remove_kernel(kernel_id)
        await end_all(now=now)

    async def kernel_culled(kernel_id: str) -> bool:
        if kernel_id in kernel_manager:
            return await is_culled(kernel_id)
        return not await _connect(kernel_manager, kernel_id)

    kernel_manager.shutdown_all = shutdown_all
    session_manager.kernel_culled = kernel_culled


async def _connect(kernel_manager: Any, kernel_id: str) -> bool:
    """Makes a kernel of an earlier server one of this server's. Returns whether it lives."""
    with errors.of_gateway():
        try:
            model = await gateway.kernel(kernel_id)
        except gateway.Refused as err:
            if err.status == 404:
                return False
            raise
    if model.get("execution_state") == "dead":
        return False
    await kernel_manager.start_kernel(kernel_id=kernel_id)
    return True
