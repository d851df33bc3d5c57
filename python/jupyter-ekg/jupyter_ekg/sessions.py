"""Sessions that outlive their Jupyter server, with their kernels.

jupyter_server keeps its sessions in memory, or in the file that ``SessionManager.database_filepath`` names. With a
file, a server that ends leaves the kernels of its sessions. The next server with that file connects to them again.
"""

from __future__ import annotations

import contextlib
import contextvars
import logging
import os
import sqlite3
from typing import Any

from tornado import web

from . import errors, gateway

_IN_MEMORY = ":memory:"

# Statuses that say nothing about one kernel: a bad credential, too many requests, a gateway that is away.
_OF_ALL_KERNELS = (401, 429, 502, 503, 504, 599)

# The beginning of the gateway's answer for a kernel that does not exist. The kernel's id follows.
_NO_KERNEL = "Kernel does not exist: "


def keep(session_manager: Any, kernel_manager: Any, log: logging.Logger) -> None:
    """Installs this in a server whose sessions are in a file. Other servers end their kernels as before.

    A session whose kernel is gone or dead is removed, as jupyter_server does it. While the gateway is away, requests
    for sessions are answered with 503, and no session is removed. A session whose kernel the gateway refuses is kept,
    and is not listed.
    """
    if session_manager.database_filepath == _IN_MEMORY:
        return
    _create(session_manager.database_filepath)
    end_all, is_culled = kernel_manager.shutdown_all, session_manager.kernel_culled
    list_all = session_manager.list_sessions
    seen: set[str] = set()  # kernels for whose sessions this server was asked
    refused: dict[str, str] = {}  # the last error of each kernel, so that each is logged once
    listing = contextvars.ContextVar("listing", default=False)

    def with_session() -> set[str]:
        try:
            rows = session_manager.cursor.execute("SELECT DISTINCT kernel_id FROM session").fetchall()
        except sqlite3.Error as err:
            # A kernel that is ended is lost, so all kernels that had a session are kept. The others are ended.
            log.error("jupyter-ekg: the sessions cannot be read, those known to this server are kept: %s", err)
            return seen
        return {kernel_id for (kernel_id,) in rows}

    async def shutdown_all(now: bool = False) -> None:
        for kernel_id in with_session():
            if kernel_id in kernel_manager:
                log.info("jupyter-ekg: the kernel %s is not shut down: its session is kept", kernel_id)
                kernel_manager.remove_kernel(kernel_id)
        await end_all(now=now)

    async def kernel_culled(kernel_id: str) -> bool:
        seen.add(kernel_id)
        if kernel_id in kernel_manager:
            return await is_culled(kernel_id)
        try:
            lives = await _connect(kernel_manager, kernel_id)
        except web.HTTPError as err:
            if err.status_code in _OF_ALL_KERNELS:
                raise
            if refused.get(kernel_id) != str(err):
                refused[kernel_id] = str(err)
                log.warning("jupyter-ekg: the session of kernel %s is kept, but not listed: %s", kernel_id, err)
            if listing.get():
                raise KeyError(kernel_id) from err  # list_sessions leaves out this session alone
            raise
        refused.pop(kernel_id, None)
        return not lives

    async def list_sessions() -> list[Any]:
        token = listing.set(True)
        try:
            return await list_all()
        finally:
            listing.reset(token)

    kernel_manager.shutdown_all = shutdown_all
    session_manager.kernel_culled = kernel_culled
    session_manager.list_sessions = list_sessions


def _create(file: str) -> None:
    """Creates the file of the sessions for its owner alone: it names notebooks. An existing file keeps its mode."""
    if os.path.exists(file):
        return
    with contextlib.suppress(OSError):  # SQLite reports it when it opens the file
        os.close(os.open(file, os.O_CREAT | os.O_RDWR, 0o600))


async def _connect(kernel_manager: Any, kernel_id: str) -> bool:
    """Makes a kernel of an earlier server one of this server's. Returns whether it lives.

    Only the gateway's own answer says that it does not exist. A proxy's 404 means that the gateway is away.
    """
    with errors.of_gateway():
        try:
            model = await gateway.kernel(kernel_id)
        except gateway.Refused as err:
            if err.status != 404:
                raise
            if err.is_own and err.message.startswith(_NO_KERNEL + kernel_id):
                return False
            raise gateway.Unreachable(f"a 404 is not its answer for a kernel: {err.message}") from err
    if model.get("execution_state") == "dead":
        return False
    await kernel_manager.start_kernel(kernel_id=kernel_id)
    if not kernel_manager.get_kernel(kernel_id).has_kernel:  # jupyter_server asks again, and takes any 404
        kernel_manager.remove_kernel(kernel_id)
        raise errors.PlainError(503, "the gateway cannot be reached: it did not find the kernel a second time")
    return True
