"""What the server does for jobs in a notebook's kernel: submissions, jobs, their outputs and kernels, and its own end."""

from __future__ import annotations

import asyncio
import json
import logging

import pytest
from conftest import GATEWAY_TOKEN
from jupyter_server.gateway.gateway_client import GatewayClient
from supervisor import KERNEL, Supervisor
from test_connection import gateway, run
from test_panel import OTHER, refuses_strangers

from jupyter_ekg import jobs

JOB = "3f2a1b2c-0000-4000-8000-000000000000"
NOTEBOOK = {"nbformat": 4, "nbformat_minor": 5, "metadata": {}, "cells": []}


def submission(**more):
    return {"notebook": NOTEBOOK, "name": "train", "input_path": "a/train.ipynb", "from_cell": "c3", "then": "end",
            "token": "t", **more}  # fmt: skip


def cell(cell_id, status=None, **more):
    metadata = {} if status is None else {"papermill": {"status": status}}
    return {"cell_type": "code", "id": cell_id, "source": ["a\n", "b"], "outputs": [], "execution_count": None,
            "metadata": metadata, **more}  # fmt: skip


def test_a_submission_is_forwarded_for_its_kernel(server):
    """With this server's credential, and only for a kernel that is this server's or that has an owner."""

    async def main():
        async with gateway(server) as (supervisor, browser):

            async def submit(kernel_id):
                url = f"{server.url}/jupyter-ekg/kernels/{kernel_id}/jobs"
                async with browser.post(url, json=submission()) as response:
                    return response.status, await response.json()

            assert await submit(KERNEL) == (201, {"id": JOB, "state": "queued"})
            [(method, path, authorization, body)] = supervisor.changes
            assert (method, path, authorization) == ("POST", "/api/jobs", f"token {GATEWAY_TOKEN}")
            assert json.loads(body) == submission(kernel=KERNEL)
            assert (await submit(OTHER))[0] == 404
            supervisor.ownership = {"owner": "ann"}
            assert (await submit(OTHER))[0] == 201
            assert json.loads(supervisor.changes[-1][3])["kernel"] == OTHER
            supervisor.change_error = (409, "Another job runs in this kernel.")
            assert await submit(KERNEL) == (409, {"message": "Another job runs in this kernel.", "reason": None})

    run(main())


@pytest.mark.parametrize(
    "body",
    [
        "no json",
        "[" * 100_000,
        "[]",
        "{}",
        json.dumps(submission(notebook=[])),
        json.dumps(submission(kernel=OTHER)),
        json.dumps(submission(env={"A": "b"})),
        json.dumps(submission(from_cell=1.5)),
        json.dumps(submission(then=None)),
    ],
)
def test_bodies_that_are_no_submission(server, body):
    """They are answered with 400."""

    async def main():
        async with gateway(server) as (supervisor, browser):
            async with browser.post(f"{server.url}/jupyter-ekg/kernels/{KERNEL}/jobs", data=body) as response:
                assert response.status == 400, await response.text()
            assert supervisor.changes == []

    run(main())


ROUTES = [("POST", f"kernels/{KERNEL}/jobs"), ("POST", f"jobs/{JOB}/connect"), ("GET", f"jobs/{JOB}"),
          ("GET", f"jobs/{JOB}/outputs")]  # fmt: skip


@pytest.mark.parametrize(("method", "path"), ROUTES)
def test_the_servers_own_login(server, method, path):
    """A client that is not logged in is refused, and so is a change whose cookie comes without the XSRF token."""
    refuses_strangers(server, method, path, submission())


def test_outputs_of_the_cells_that_have_run(server):
    """Those from the job's first cell on, with the numbers that they had before."""
    output = {"output_type": "stream", "name": "stdout", "text": ["1\n", "2\n"]}
    cells = [
        cell("by-hand", "completed", execution_count=2),
        {"cell_type": "markdown", "id": "text", "source": "", "metadata": {"papermill": {"status": "completed"}}},
        cell("done", "completed", execution_count=3, outputs=[output]),
        cell("failed", "failed", execution_count=4, source="c"),
        cell("runs", "running"),
        cell("pending", "pending"),
    ]
    source = [cell("by-hand", execution_count=2), cell("done", execution_count=1), cell("failed")]

    async def main():
        async with gateway(server) as (supervisor, browser):
            supervisor.jobs = [{"id": JOB, "state": "running", "kernel_id": KERNEL, "from_cell": 2}]
            supervisor.notebooks = {"": {"cells": cells}, "1": {"cells": source}}

            async def get(path=""):
                async with browser.get(f"{server.url}/jupyter-ekg/jobs/{JOB}{path}") as response:
                    return response.status, await response.json()

            assert await get() == (200, supervisor.jobs[0])
            whole = {**output, "text": "1\n2\n"}
            done = {"code": "a\nb", "count": 3, "count_before": 1, "outputs": [whole], "trusted": True}
            failed = {"code": "c", "count": 4, "count_before": None, "outputs": [], "trusted": True}
            assert await get("/outputs") == (200, {"cells": {"done": done, "failed": failed}})
            # With users, those of a kernel that is gone, or that was shared to use, may be another user's.
            supervisor.jobs[0]["owner"] = "ann"
            supervisor.ownership = {"owner": "ann", "shared_with": []}
            assert (await get("/outputs"))[1]["cells"]["done"]["trusted"] is True
            supervisor.ownership["shared_to_use"] = True
            assert (await get("/outputs"))[1]["cells"]["done"]["trusted"] is False
            supervisor.kernel_status = 404
            assert (await get("/outputs"))[1]["cells"]["done"]["trusted"] is False
            supervisor.jobs = []
            assert (await get())[0] == (await get("/outputs"))[0] == 404

    run(main())


def test_outputs_with_nan_are_readable(server):
    """Browsers read no NaN. The page gets null, and one line in the cell."""
    shown = {"output_type": "display_data", "metadata": {}, "data": {"application/json": [float("nan"), 1]}}
    cells = [cell("shows", "completed", outputs=[shown, shown]), cell("none", "completed", outputs=[])]

    async def main():
        async with gateway(server) as (supervisor, browser):
            supervisor.jobs = [{"id": JOB, "state": "running", "kernel_id": KERNEL}]
            supervisor.notebooks = {"": {"cells": cells}, "1": {"cells": []}}
            async with browser.get(f"{server.url}/jupyter-ekg/jobs/{JOB}/outputs") as response:
                text = await response.text()
            answer = json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
            [first, second, line] = answer["cells"]["shows"]["outputs"]
            assert first["data"]["application/json"] == second["data"]["application/json"] == [None, 1]
            assert line["text"].startswith("[ekg] ") and line["name"] == "stderr"
            assert answer["cells"]["none"]["outputs"] == []

    run(main())


def test_the_kernel_of_a_job_becomes_one_of_this_server(server):
    """A notebook can be connected to it then. A kernel that is gone is 404."""

    async def main():
        async with gateway(server) as (supervisor, browser):
            supervisor.jobs = [{"id": JOB, "state": "succeeded", "kernel_id": OTHER}]
            supervisor.more_kernels = [{**supervisor._model(), "id": OTHER}]
            supervisor.starts.clear()

            async def connect():
                async with browser.post(f"{server.url}/jupyter-ekg/jobs/{JOB}/connect") as response:
                    return response.status

            async def kernels():
                async with browser.get(server.url + "/api/kernels") as response:
                    return [model["id"] for model in await response.json()]

            assert OTHER not in await kernels()
            supervisor.kernel_status = 404
            assert await connect() == 404
            supervisor.kernel_status = 200
            assert [await connect(), await connect()] == [204, 204]
            assert OTHER in await kernels()
            assert supervisor.starts == []
            async with browser.delete(f"{server.url}/api/kernels/{OTHER}") as response:
                assert response.status == 204

    run(main())


class Kernels:
    """A manager of kernels that says what it ends."""

    def __init__(self, *kernels):
        self.kernels = list(kernels)
        self.ended = []

    def __contains__(self, kernel_id):
        return kernel_id in self.kernels

    def list_kernel_ids(self):
        return list(self.kernels)

    def remove_kernel(self, kernel_id):
        self.kernels.remove(kernel_id)

    async def shutdown_all(self, now=False):
        self.ended, self.kernels = self.kernels, []


@pytest.mark.parametrize("away", [False, True])
def test_a_server_that_ends_leaves_kernels_in_which_jobs_run(away):
    """A job that has ended, and one with a kernel of its own, keep no kernel. With a gateway that is away all stay."""
    kernels = Kernels("works", "ended", "own", "idle")
    jobs.keep_kernels_of_jobs(kernels, logging.getLogger("test"))

    async def main():
        async with Supervisor() as supervisor:
            GatewayClient.clear_instance()
            GatewayClient.instance().url = supervisor.url
            supervisor.jobs = [
                {"id": "a", "state": "running", "then": "end", "kernel_id": "works"},
                {"id": "b", "state": "succeeded", "then": "keep", "kernel_id": "ended"},
                {"id": "c", "state": "running", "kernel_id": "own"},
                {"id": "d", "state": "running", "then": "keep", "kernel_id": "of another server"},
            ]
            if away:
                await supervisor.stop()
            await kernels.shutdown_all()
            if away:
                await supervisor.start()

    try:
        asyncio.run(main())
    finally:
        GatewayClient.clear_instance()
    assert kernels.ended == ([] if away else ["ended", "own", "idle"]) and kernels.kernels == []
