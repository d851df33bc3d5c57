"""Puts the notebooks of jobs that have ended beside the notebooks that the jobs were made from.

A ``Results`` knows the jobs and definitions that were submitted through this server. It asks the gateway about them once
in a while. If there are none it asks nothing. After a start, and after an absence of the gateway, it reads the
gateway's whole list of jobs: it then finds those that have ended meanwhile.

Marks are empty files in a folder, ``FOLDER/ID.KIND``. So each change is one step, and servers with the same folder do
not disturb each other. A job's mark is ``submitted`` until its notebook is written, and ``done`` from then on. What is
marked so is not written again: its user may have moved or deleted the file. If the server is killed between the file and
the mark, it finds the file at its name after the next start.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import os
import posixpath
import re
import time
from datetime import datetime
from typing import Any
from urllib.parse import quote

from jupyter_core.paths import jupyter_data_dir
from jupyter_server.serverapp import ServerApp
from jupyter_server.utils import ensure_async
from tornado.web import HTTPError

from . import gateway, jobs

JOBS = "/api/jobs"
DEFINITIONS = "/api/jobs/definitions"

ENDED = ("succeeded", "failed", "stopped")
_LONGEST_PAUSE = 300.0  # seconds between two attempts while the gateway is away
_AGAIN = 600.0  # seconds after which a notebook that could not be written is tried again
_KEEP = 90 * 86400.0  # seconds for which marks stay of jobs that the gateway does not list any more
_SOON = (401, 429, 502, 503, 504)  # statuses that concern all jobs, and not only the one that was asked for
_DAMAGED = 409  # the gateway cannot read the record of what was asked for
_ID = re.compile(r"[0-9A-Za-z-]{1,64}")


def result_path(job: dict[str, Any]) -> str:
    """Returns where a job's notebook is written: beside the notebook that it was made from."""
    base = posixpath.splitext(input_path(job))[0]
    return f"{base}-{moment(job['created']):%Y-%m-%d-%H-%M-%S}-{job['id'][:8]}.ipynb"


def moment(text: str) -> datetime:
    """Returns a time of the gateway, which has none to nine digits behind the second. Python before 3.11 reads three or
    six only."""
    whole, _, fraction = text.rstrip("Z").partition(".")
    return datetime.fromisoformat(f"{whole}.{fraction[:6]:0<6}+00:00")


def input_path(model: dict[str, Any]) -> str:
    """Returns a job's ``input_path`` as a path within the server's root. Each client of the gateway may send any text,
    and the contents manager raises an error for a path that leaves the root."""
    return posixpath.normpath("/" + (model.get("input_path") or "").replace("\0", "")).lstrip("/") or "notebook.ipynb"


def job_route(job_id: str) -> str:
    """Returns the gateway's path of a job."""
    return JOBS + "/" + quote(job_id, safe="")


def definition_route(definition_id: str) -> str:
    """Returns the gateway's path of a job definition."""
    return DEFINITIONS + "/" + quote(definition_id, safe="")


async def place(job: dict[str, Any]) -> str:
    """Returns the same, but a path in the server's root if the folder is gone meanwhile."""
    path = result_path(job)
    folder = posixpath.dirname(path)
    if folder and not await ensure_async(ServerApp.instance().contents_manager.dir_exists(folder)):
        return posixpath.basename(path)
    return path


async def write(job: dict[str, Any], again: bool = False) -> str:
    """Writes a job's notebook into the server's contents, and returns its path. A notebook that is there already stays,
    unless ``again`` is set. Raises gateway.Refused, gateway.Unreachable, and what the contents manager raises."""
    contents = ServerApp.instance().contents_manager
    path = await place(job)
    if again or not await _is_notebook(contents, path):
        notebook = await gateway.send("GET", job_route(job["id"]) + "/notebook")
        for cell in notebook.get("cells", ()):  # JupyterLab opens no notebook with NaN
            if cell.get("outputs"):
                cell["outputs"] = jobs.readable(cell["outputs"])
        notebook = jobs.without_nan(notebook)
        await ensure_async(contents.save({"type": "notebook", "format": "json", "content": notebook}, path))
    return path


async def _is_notebook(contents: Any, path: str) -> bool:
    """Reports whether there is a notebook. A server that was killed leaves a part of one."""
    if not await ensure_async(contents.file_exists(path)):
        return False
    try:
        await ensure_async(contents.get(path, content=True, type="notebook"))
    except HTTPError:
        return False
    return True


class Marks:
    """Marks of jobs and definitions. A mark that cannot be written is logged: the job itself goes on."""

    def __init__(self, root_dir: str, log: logging.Logger):
        # The paths of jobs are below the root. A server with another one has other jobs.
        name = hashlib.sha256(os.path.abspath(root_dir).encode("utf-8", "surrogateescape")).hexdigest()[:16]
        self.folder = os.path.join(jupyter_data_dir(), "jupyter-ekg", "jobs", name)
        self._log = log

    def _path(self, item: str, kind: str) -> str:
        if not _ID.fullmatch(item):
            raise ValueError(f"no id: {item!r}")
        return os.path.join(self.folder, f"{item}.{kind}")

    def of(self, kind: str) -> set[str]:
        """Returns the ids that have a mark of a kind."""
        try:
            names = os.listdir(self.folder)
        except FileNotFoundError:
            return set()
        except OSError as err:
            self._log.warning("jupyter-ekg: the marks of jobs cannot be read: %s", err)
            return set()
        items = {name[: -len(kind) - 1] for name in names if name.endswith("." + kind)}
        return {item for item in items if _ID.fullmatch(item)}

    def add(self, item: str, kind: str) -> None:
        """Adds a mark."""
        try:
            os.makedirs(self.folder, mode=0o700, exist_ok=True)
            with open(self._path(item, kind), "a", encoding="utf-8"):
                pass
        except (OSError, ValueError) as err:
            self._log.warning("jupyter-ekg: %s is not marked as %s: %s", item, kind, err)

    def remove(self, item: str, kind: str) -> None:
        """Removes a mark, if it exists."""
        try:
            os.unlink(self._path(item, kind))
        except FileNotFoundError:
            pass
        except (OSError, ValueError) as err:
            self._log.warning("jupyter-ekg: the mark of %s as %s stays: %s", item, kind, err)

    def forget(self, kept: set[str], age: float) -> None:
        """Removes marks as done that are older than ``age`` seconds, but those of ``kept``."""
        for item in self.of("done") - kept:
            try:
                old = time.time() - os.stat(self._path(item, "done")).st_mtime > age
            except FileNotFoundError:  # another server has removed it
                continue
            if old:
                self.remove(item, "done")


class Results:
    """Writes notebooks of jobs. jupyter_scheduler takes it for a task runner, and starts it with the server."""

    def __init__(self, root_dir: str, look_every: float, log: logging.Logger):
        self.marks = Marks(root_dir, log)
        self._every = look_every  # seconds between two looks
        self._log = log
        self._whole = True  # the next look reads the gateway's list
        self._problem = ""  # that was logged last
        self._later: dict[str, float] = {}  # jobs whose notebook could not be written, until when
        self._submitted: asyncio.Event | None = None

    def job_submitted(self, job_id: str) -> None:
        """Notes that a job was submitted through this server."""
        if job_id not in self.marks.of("done"):  # else the gateway has returned an earlier job
            self._mark(job_id, "submitted")

    def definition_stored(self, definition_id: str) -> None:
        """Notes that a definition was stored through this server. The results of its jobs are written, too."""
        self._mark(definition_id, "definition")

    def _mark(self, item: str, kind: str) -> None:
        self.marks.add(item, kind)
        if self._submitted is not None:
            self._submitted.set()

    def job_done(self, job_id: str) -> None:
        """Notes that a job's notebook is written, or that the job was removed."""
        self.marks.add(job_id, "done")
        self.marks.remove(job_id, "submitted")
        self._later.pop(job_id, None)

    def definition_removed(self, definition_id: str) -> None:
        """Notes that a definition does not exist any more. Its jobs that are known are still written."""
        self.marks.remove(definition_id, "definition")

    async def start(self) -> None:
        """Looks at the jobs until the server ends."""
        self._submitted = asyncio.Event()  # here, since Python 3.9 binds it to the running loop
        pause = self._every
        while True:
            self._submitted.clear()
            if await self.look():
                pause = self._every
            else:
                pause = min(2 * pause, _LONGEST_PAUSE)
            if self.marks.of("submitted") or self.marks.of("definition"):
                await asyncio.sleep(pause)
            else:
                await self._submitted.wait()

    async def look(self) -> bool:
        """Looks at the jobs once, and writes the notebooks of those that have ended. Returns False if the gateway did
        not answer; the next look then reads its whole list."""
        try:
            for job in await self._jobs():
                if job.get("state") in ENDED:
                    await self._ended(job)
        except gateway.Refused as err:
            problem, unexpected = err.message, None
        except gateway.Unreachable as err:
            problem, unexpected = f"the gateway cannot be reached: {err}", None
        except Exception as err:  # an answer that no gateway gives must not end the task
            problem, unexpected = "the gateway's answer cannot be read", err
        else:
            self._whole, self._problem = False, ""
            return True
        self._whole = True
        if problem != self._problem:
            self._problem = problem
            self._log.warning("jupyter-ekg: results of jobs wait: %r", problem, exc_info=unexpected)
        return False

    async def _jobs(self) -> list[dict[str, Any]]:
        """Returns the jobs that were submitted and are not written yet."""
        submitted, definitions = self.marks.of("submitted"), self.marks.of("definition")
        if not submitted and not definitions:
            return []
        if self._whole:
            jobs = {job["id"]: job for job in await gateway.send("GET", JOBS)}
            self.marks.forget(set(jobs), _KEEP)
            made = {item for item, job in jobs.items() if job.get("definition") in definitions}
        else:
            jobs = {}
            made = await self._fired(definitions)
        for item in made - submitted - self.marks.of("done"):
            self.marks.add(item, "submitted")
            submitted.add(item)
        found = []
        for item in submitted:
            try:
                job = jobs.get(item) or await _known(job_route(item))
            except gateway.Refused as err:
                if err.status != _DAMAGED:
                    raise
                self._log.warning("jupyter-ekg: the job %s cannot be read: %s", item, err.message)
                continue
            if job:
                found.append(job)
            else:
                self.job_done(item)
        return found

    async def _fired(self, definitions: set[str]) -> set[str]:
        """Returns the newest job of each definition's schedule."""
        jobs = set()
        for item in definitions:
            try:
                definition = await _known(definition_route(item))
            except gateway.Refused as err:
                if err.status != _DAMAGED:
                    raise
                self._log.warning("jupyter-ekg: the definition %s cannot be read: %s", item, err.message)
                continue
            if definition is None:
                self.definition_removed(item)
            elif definition.get("job_id"):
                jobs.add(definition["job_id"])
        return jobs

    async def _ended(self, job: dict[str, Any]) -> None:
        """Writes the notebook of a job, if cells have run."""
        item = job["id"]
        if time.monotonic() < self._later.get(item, 0):
            return
        if job.get("started"):
            try:
                path = await write(job)
            except gateway.Unreachable:
                raise
            except Exception as err:  # a contents manager may raise any, and must not keep other jobs from their turn
                if isinstance(err, gateway.Refused) and err.status in _SOON:
                    raise
                self._later[item] = time.monotonic() + _AGAIN
                self._log.warning("jupyter-ekg: the notebook of job %s cannot be written: %s", item, err)
                return
            self._log.info("jupyter-ekg: the notebook of job %s is written to %r", item, path)
        self.job_done(item)


async def _known(path: str) -> dict[str, Any] | None:
    """Returns what the gateway has at a path, or None if it has nothing there."""
    try:
        return await gateway.send("GET", path)
    except gateway.Refused as err:
        if err.status == 404:
            return None
        raise
