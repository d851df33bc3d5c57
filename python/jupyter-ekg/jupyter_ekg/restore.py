"""``jupyter ekg restore``: finds a notebook's kernel, reads its log, and writes the cells' output into the file."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator
from typing import Any, Callable
from urllib.parse import quote

import aiohttp
from jupyter_server.gateway.gateway_client import GatewayClient
from jupyter_server.serverapp import list_running_servers

from . import gateway
from .notebook import Notebook, NotebookError
from .outputs import LOST_BEGINNING, Log

_SAVE_TRIES = 10


class RestoreError(Exception):
    """No output could be restored. The text is for the user."""


class Source:
    """A server that knows kernels: a gateway, or a Jupyter server in front of one."""

    name = ""
    user_path = ""

    def get(self, path: str, query: dict[str, str]) -> contextlib.AbstractAsyncContextManager[aiohttp.ClientResponse]:
        """Sends a GET request. Raises gateway.Refused and gateway.Unreachable."""
        raise NotImplementedError

    def log_path(self, kernel_id: str) -> str:
        """Returns the path of a kernel's log."""
        raise NotImplementedError

    def place(self, path: str) -> str:
        """Returns a notebook's path as the server's sessions name it."""
        return path

    async def user(self) -> str:
        """Returns the name of the gateway's user. Raises gateway.Refused and gateway.Unreachable."""
        async with self.get(self.user_path, {}) as response:
            return gateway.username(await gateway.read_json(response))

    async def models(self, path: str) -> list[dict[str, Any]]:
        """Returns a list of models, such as /api/sessions or /api/kernels."""
        async with self.get(path, {}) as response:
            models = await gateway.read_json(response)
        return [model for model in models if isinstance(model, dict)] if isinstance(models, list) else []


class GatewaySource(Source):
    """The gateway of GatewayClient's settings."""

    user_path = "/api/me"

    def __init__(self) -> None:
        self.name = f"the gateway {GatewayClient.instance().url}"

    def get(self, path, query):
        return gateway.get(path, query)

    def log_path(self, kernel_id):
        return f"/api/kernels/{quote(kernel_id, safe='')}/log"


class ServerSource(Source):
    """A Jupyter server with this package."""

    user_path = "/jupyter-ekg/me"  # /api/me of the server names the server's own user

    def __init__(self, url: str, token: str, root: str = ""):
        self.name = f"the server {url}"
        self._url = url.rstrip("/")
        self._token = token
        self._root = root

    @contextlib.asynccontextmanager
    async def get(self, path, query):
        headers = {"Authorization": f"token {self._token}"} if self._token else {}
        session = aiohttp.ClientSession(headers=headers, timeout=aiohttp.ClientTimeout(total=None))
        async with session, gateway.fetch(session, self._url + path, query) as response:
            yield response

    def log_path(self, kernel_id):
        return f"/jupyter-ekg/kernels/{quote(kernel_id, safe='')}/log"

    def place(self, path):
        if self._root:
            with contextlib.suppress(ValueError):  # another drive
                return os.path.relpath(path, os.path.realpath(self._root)).replace(os.sep, "/")
        return path


def sources(server: str | None, token: str | None) -> list[Source]:
    """Returns the named server, or else the configured gateway and the Jupyter servers that run on this machine."""
    if server:
        return [ServerSource(server, token or os.environ.get("JUPYTER_TOKEN", ""))]
    found: list[Source] = [GatewaySource()] if GatewayClient.instance().gateway_enabled else []
    for info in list_running_servers():
        with contextlib.suppress(KeyError):
            found.append(
                ServerSource(
                    info["url"], info.get("token") or "", info.get("root_dir") or info.get("notebook_dir") or ""
                )
            )
    return found


async def restore(
    path: str, kernel_id: str | None, where: list[Source], follow: bool, say: Callable[[str], None]
) -> None:
    """Restores the outputs of a notebook and reports each cell. Raises RestoreError and NotebookError."""
    notebook = Notebook(path)
    if not where:
        raise RestoreError(
            "no gateway is known: name it with --gateway-url or JUPYTER_GATEWAY_URL, or a Jupyter server with --server"
        )
    source, kernel_id = await _find(notebook, kernel_id, where, say)
    log = Log()
    await _read(source, kernel_id, log)
    if follow:
        await _follow(source, kernel_id, log, notebook, say)
    for _ in range(_SAVE_TRIES):
        report = apply(notebook, log)
        if notebook.save():
            break
        notebook = Notebook(path)  # another program saved it meanwhile
    else:
        raise RestoreError(
            f"{path} is changed by another program again and again; close it in JupyterLab and try again"
        )
    for line in report:
        say(line)
    if not report:
        say(f"nothing to restore: kernel {kernel_id} has run no cell of {path}, as far as its log goes")
    if log.lost:
        say(f"{log.lost} messages are no longer in the kernel's log, and output that was among them is lost")


async def _find(
    notebook: Notebook, kernel_id: str | None, where: list[Source], say: Callable[[str], None]
) -> tuple[Source, str]:
    """Finds a notebook's kernel: the named one, else the one of its session, else the one whose log has its cells.

    Only a named kernel may be another user's."""
    troubles: list[str] = []
    for source in where:
        try:
            found = kernel_id if kernel_id and await _has(source, kernel_id) else None
            if kernel_id is None:
                found = await _by_session(source, notebook.path)
            if found:
                return source, found
        except (gateway.Refused, gateway.Unreachable) as err:
            troubles.append(f"{source.name}: {err}")
    if kernel_id is None:
        for source in where:
            with contextlib.suppress(gateway.Refused, gateway.Unreachable):  # the error is reported already
                found = await _by_log(source, notebook, say)
                if found:
                    return source, found
    what = f"there is no kernel {kernel_id}" if kernel_id else f"no kernel has run {notebook.name}"
    if troubles:
        raise RestoreError(f"{what}, as far as could be seen: " + "; ".join(troubles))
    raise RestoreError(f"{what} at " + ", ".join(source.name for source in where))


async def _has(source: Source, kernel_id: str) -> bool:
    try:
        async with source.get(f"/api/kernels/{quote(kernel_id, safe='')}", {}):
            return True
    except gateway.Refused as err:
        if err.status == 404:
            return False
        raise


async def _by_session(source: Source, path: str) -> str | None:
    place = source.place(path)
    exact, named = None, []
    models = await source.models("/api/sessions")
    kernels = [model.get("kernel") for model in models]
    own = await _own(source, [kernel for kernel in kernels if isinstance(kernel, dict)])
    for model, kernel in zip(models, kernels):
        if kernel not in own:
            continue
        there = str(model.get("path") or "")
        if there in (place, path):
            exact = kernel["id"]
        elif there and ("/" + path.lstrip("/")).endswith("/" + there.lstrip("/")):
            named.append(kernel["id"])
    return exact or (named[0] if len(named) == 1 else None)


async def _by_log(source: Source, notebook: Notebook, say: Callable[[str], None]) -> str | None:
    ids, best, newest = notebook.ids, None, ""
    models = await source.models("/api/kernels")
    own = await _own(source, models)
    others = [model["id"] for model in models if isinstance(model.get("id"), str) and model not in own]
    if others:
        say(f"kernels of other users at {source.name} are not searched: {', '.join(others)}")
    for model in own:
        try:
            async for line in _lines(source, model["id"], {}):
                if line.get("cell") in ids and str(line.get("time", "")) > newest:
                    best, newest = model["id"], str(line.get("time", ""))
        except gateway.Refused:
            continue  # a starting or dead kernel has no log
    return best


async def _own(source: Source, models: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Returns the models of kernels that the gateway's user owns. Without users these are all kernels."""
    models = [model for model in models if isinstance(model.get("id"), str)]
    user = ""
    if any(gateway.has_users(model) for model in models):
        with contextlib.suppress(gateway.Refused):  # an older jupyter-ekg: no kernel is known to be the user's own
            user = await source.user()
    return [model for model in models if not gateway.has_users(model) or (user and model.get("owner") == user)]


async def _read(source: Source, kernel_id: str, log: Log) -> None:
    try:
        async for line in _lines(source, kernel_id, {"after": str(log.number)}):
            log.feed(line)
    except gateway.Refused as err:
        if err.status == 404:
            raise RestoreError(f"kernel {kernel_id} has no log at {source.name}: {err.message}") from err
        raise RestoreError(f"{source.name} does not show the log of kernel {kernel_id}: {err}") from err
    except gateway.Unreachable as err:
        raise RestoreError(f"{source.name} cannot be reached: {err}") from err


async def _follow(source: Source, kernel_id: str, log: Log, notebook: Notebook, say: Callable[[str], None]) -> None:
    """Reads on until no cell of the notebook runs. Waits for a gateway that is away."""
    announced = False
    while True:
        running = [execution for execution in log.cells.values() if execution.running and notebook.find(execution)]
        if not running:
            return
        for execution in running:
            execution.followed = True
        if not announced:
            announced = True
            say(f"waiting for {len(running)} running cell{'s' if len(running) > 1 else ''} to end")
        try:
            async for line in _lines(source, kernel_id, {"after": str(log.number), "follow": "true"}):
                log.feed(line)
                if not any(execution.running for execution in running):
                    break
            else:
                if not await _has(source, kernel_id):
                    return  # the kernel has ended
        except gateway.Refused as err:
            if err.status == 404:
                return
            await asyncio.sleep(1)
        except gateway.Unreachable:
            await asyncio.sleep(1)


async def _lines(source: Source, kernel_id: str, query: dict[str, str]) -> AsyncIterator[dict[str, Any]]:
    """Yields the lines of a log. Raises gateway.Refused and gateway.Unreachable."""
    async with source.get(source.log_path(kernel_id), query) as response:
        async for line in gateway.log_lines(response):
            yield line


def apply(notebook: Notebook, log: Log) -> list[str]:
    """Writes the executions into their cells, those that are no worse than the file. Returns a sentence for each."""
    report: dict[int, str] = {}
    widgets = log.widgets
    for execution in sorted(log.cells.values(), key=lambda e: e.number):
        found = notebook.find(execution)
        if found is None:
            continue
        place, cell = found
        remarks = []
        present = notebook.source(cell), cell.get("execution_count"), cell.get("outputs") or [], notebook.began(cell)
        if why := execution.reason_to_keep(*present):
            remarks.append(f"is kept as it is in the file: {why}")
        elif notebook.restore(cell, execution, widgets if log.is_whole(execution) else {}):
            count = len(execution.outputs)
            remarks.append(f"{count} output{'' if count == 1 else 's'} restored")
        else:
            remarks.append("has all its output already")
        if execution.running:
            remarks.append("it is still running (--follow waits for its end)")
        if execution.lost and not why:
            remarks.append(f"{execution.lost} of its messages are lost{LOST_BEGINNING * execution.beginning_lost}")
        report[place] = f"cell {place} [{execution.count or ' '}]: " + ", ".join(remarks)
    return [report[place] for place in sorted(report)]


__all__ = ["NotebookError", "RestoreError", "apply", "restore", "sources"]
