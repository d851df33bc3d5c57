"""Jobs that go on in a notebook's own kernel: what a page submits and shows of them."""

from __future__ import annotations

import asyncio
import json
import logging
from typing import Any
from urllib.parse import quote

import nbformat
from nbformat.v4.rwbase import rejoin_lines

from . import gateway

_STATES = ("queued", "starting", "running")  # of jobs that have not ended
_ENDED_CELLS = ("completed", "failed")  # papermill's status of a cell that has run
_NO_JOBS = (404, 405)  # statuses of a gateway that runs no jobs
_NAN = "[ekg] Numbers of this cell's output are shown as null: NaN and infinities are not part of JSON.\n"
_ASK = 10.0  # seconds for which a server that ends waits for the gateway


def path(job_id: str) -> str:
    """Returns a job's path at the gateway."""
    return "/api/jobs/" + quote(job_id, safe="")


async def read(job_id: str) -> dict[str, Any]:
    """Returns a job. Raises gateway.Refused and gateway.Unreachable, as the other functions here."""
    job = await gateway.send("GET", path(job_id))
    return job if isinstance(job, dict) else {}


async def outputs(job_id: str) -> dict[str, Any]:
    """Returns what a job has made of the cells that it has run: ``cells``, by their ids."""
    job = await read(job_id)
    notebook = await gateway.send("GET", path(job_id) + "/notebook")
    source = await gateway.send("GET", path(job_id) + "/notebook?source=1")
    trusted = await _is_trusted(job)
    begin = max(1, job.get("from_cell") or 1) - 1
    before = {cell.get("id"): cell.get("execution_count") for cell in _cells(source)}
    cells = {
        cell["id"]: {
            "code": cell.get("source"),
            "count": cell.get("execution_count"),
            "count_before": before.get(cell["id"]),
            "outputs": readable(cell.get("outputs") or []),
            "trusted": trusted,
        }
        for cell in _cells(notebook)[begin:]
        if cell.get("cell_type") == "code" and isinstance(cell.get("id"), str) and _has_ended(cell)
    }
    return {"cells": cells}


def readable(outputs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Returns a cell's outputs with null in the place of NaN and infinities, which browsers do not read. A line says so."""
    plain = without_nan(outputs)
    if plain is not outputs:
        plain.append({"output_type": "stream", "name": "stderr", "text": _NAN})
    return plain


def without_nan(value: Any) -> Any:
    """Returns the value itself, or a copy with null in the place of NaN and infinities if there are any."""
    try:
        json.dumps(value, allow_nan=False)
    except ValueError:
        return json.loads(json.dumps(value), parse_constant=lambda _: None)
    return value


async def _is_trusted(job: dict[str, Any]) -> bool:
    """Reports whether no other user can have caused a job's outputs: its kernel may be gone, and was shared perhaps."""
    if "owner" not in job:
        return True  # the gateway has no users
    try:
        return await gateway.is_own(job.get("kernel_id") or "")
    except gateway.Refused:
        return False


def _cells(notebook: Any) -> list[dict[str, Any]]:
    """Returns a notebook's cells, with whole texts in the place of lists of lines: JupyterLab expects them."""
    return rejoin_lines(nbformat.from_dict(notebook)).cells


def _has_ended(cell: dict[str, Any]) -> bool:
    papermill = (cell.get("metadata") or {}).get("papermill")
    return isinstance(papermill, dict) and papermill.get("status") in _ENDED_CELLS


def keep_kernels_of_jobs(kernel_manager: Any, log: logging.Logger) -> None:
    """Makes a server that ends leave the kernels in which a job runs. It ends its other kernels as before."""
    end_all = kernel_manager.shutdown_all

    async def shutdown_all(now: bool = False) -> None:
        if not kernel_manager.list_kernel_ids():
            return
        try:
            all_jobs = await gateway.within(_ASK, gateway.send("GET", "/api/jobs"))
        except gateway.Refused as err:
            all_jobs = [] if err.status in _NO_JOBS else None
            problem: Exception = err
        except (gateway.Unreachable, asyncio.TimeoutError, OSError) as err:
            all_jobs, problem = None, err
        if all_jobs is None:  # one of the kernels may have a job. The gateway ends those that are idle
            log.warning("jupyter-ekg: no kernel is shut down: the gateway does not say where jobs run: %s", problem)
            for kernel_id in list(kernel_manager.list_kernel_ids()):
                kernel_manager.remove_kernel(kernel_id)
            all_jobs = []
        for job in all_jobs:
            if job.get("then") and job.get("state") in _STATES and job.get("kernel_id") in kernel_manager:
                log.info("jupyter-ekg: the kernel %s is not shut down: job %s runs in it", job["kernel_id"], job["id"])
                kernel_manager.remove_kernel(job["kernel_id"])
        await end_all(now=now)

    kernel_manager.shutdown_all = shutdown_all
