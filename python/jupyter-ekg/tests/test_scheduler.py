"""jupyter-scheduler's requests are forwarded to the gateway. The gateway is a small one of this file; the end to end test
uses the real one. These tests need jupyter_scheduler."""

from __future__ import annotations

import asyncio
import json
import os
import time
from types import SimpleNamespace

import pytest

pytest.importorskip("jupyter_scheduler")

from aiohttp import web  # noqa: E402
from jupyter_scheduler.environments import EnvironmentRetrievalError  # noqa: E402
from jupyter_scheduler.exceptions import InputUriError, SchedulerError  # noqa: E402
from jupyter_scheduler.models import (  # noqa: E402
    CountJobsQuery,
    CreateJob,
    CreateJobDefinition,
    CreateJobFromDefinition,
    ListJobDefinitionsQuery,
    ListJobsQuery,
    Status,
    UpdateJob,
    UpdateJobDefinition,
)
from jupyter_server.gateway.gateway_client import GatewayClient  # noqa: E402
from jupyter_server.services.contents.largefilemanager import AsyncLargeFileManager  # noqa: E402

from jupyter_ekg import scheduler, scheduler_results  # noqa: E402

NOTEBOOK = {"nbformat": 4, "nbformat_minor": 5, "metadata": {}, "cells": []}
JOB = {
    "id": "0a7e3f52-5a2c", "name": "train", "state": "queued", "reason": "no GPU is free", "kernelspec": "python3",
    "flavor": "t4", "parameters": {"n": 3, "s": "x"}, "tags": ["a"], "input_path": "folder/in.ipynb", "definition": "",
    "created": "2026-11-25T01:02:03.5Z", "updated": "2026-11-25T01:02:04Z", "started": None, "ended": None,
}  # fmt: skip


class Gateway:
    """Answers as the gateway does, and keeps the requests."""

    def __init__(self):
        self.asked = []
        self.job = dict(JOB)
        self.definition = dict(DEFINITION)
        self.flavors = ["t4", "a100"]
        self.refuse = None
        self.status = 403  # of what is refused
        self.missing = ()
        self.damaged = ()

    async def answer(self, request: web.Request) -> web.Response:
        body = await request.json() if request.can_read_body else None
        self.asked.append((request.method, request.path_qs, body))
        assert request.headers["Authorization"] == "token the-token"
        if self.refuse:
            return web.json_response({"message": self.refuse}, status=self.status)
        end = request.path.rpartition("/")[2]
        if end in self.damaged:
            return web.json_response({"message": "Its record cannot be read."}, status=409)
        if end in self.missing:
            return web.json_response({"message": "The job does not exist."}, status=404)
        if request.method == "DELETE":
            return web.Response(status=204)
        if end == "kernelspecs":
            spec = {"spec": {"display_name": "Python 3"}}
            return web.json_response({"default": "python3", "kernelspecs": {"ir": {"spec": {}}, "python3": spec}})
        if end == "flavors":
            return web.json_response([{"name": name} for name in self.flavors])
        if end == "notebook":
            return web.json_response(NOTEBOOK)
        if end == "definitions" and request.method == "GET":
            return web.json_response([self.definition])
        if "/definitions" in request.path and end != "jobs":
            return web.json_response(self.definition)
        if end == "jobs" and request.method == "GET":
            newer = {**self.job, "id": "new", "created": "2026-11-25T02:00:00Z", "definition": "d"}
            return web.json_response([self.job, newer])
        return web.json_response(self.job)


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Runs a test's coroutine with a gateway and a scheduler."""
    monkeypatch.setenv("JUPYTER_DATA_DIR", str(tmp_path / "data"))
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder/in.ipynb").write_text(json.dumps(NOTEBOOK))
    contents = AsyncLargeFileManager(root_dir=str(tmp_path))
    monkeypatch.setattr(scheduler.ServerApp, "instance", lambda: SimpleNamespace(contents_manager=contents))

    def run(test):
        async def whole():
            gateway = Gateway()
            app = web.Application()
            app.router.add_route("*", "/{path:.*}", gateway.answer)
            runner = web.AppRunner(app)
            await runner.setup()
            site = web.TCPSite(runner, "127.0.0.1", 0)
            await site.start()
            GatewayClient.clear_instance()
            client = GatewayClient.instance()
            client.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
            client.auth_token = "the-token"
            try:
                manager = scheduler.EkgEnvironmentManager()
                await test(gateway, scheduler.EkgScheduler(root_dir=str(tmp_path), environments_manager=manager, db_url=""))
            finally:
                await runner.cleanup()
                GatewayClient.clear_instance()

        asyncio.run(whole())

    run.folder = tmp_path
    return run


def _new(**more):
    return CreateJob(input_uri="folder/in.ipynb", runtime_environment_name="python3", name="train", **more)


def test_a_job_is_sent_with_its_notebook(run):
    async def test(gateway, s):
        found = await s.create_job(_new(compute_type="t4", parameters={"n": "3", "s": "x y"}, tags=["a"]))
        assert found == JOB["id"]
        method, path, body = gateway.asked[-1]
        assert (method, path) == ("POST", "/api/jobs")
        assert body.pop("notebook")["nbformat"] == 4
        hostile = {"nan": "NaN", "inf": "[1, -Infinity]", "large": "1e999", "deep": "[" * 100_000}
        await s.create_job(_new(parameters={"n": "0.5", **hostile}))
        assert gateway.asked[-1][2]["parameters"] == {"n": 0.5, **hostile}
        assert body == {"name": "train", "input_path": "folder/in.ipynb", "kernelspec": "python3", "flavor": "t4",
                        "parameters": {"n": 3, "s": "x y"}, "tags": ["a"]}  # fmt: skip

    run(test)


def test_what_cannot_be_sent_is_refused(run):
    async def test(gateway, s):
        with pytest.raises(InputUriError):
            await s.create_job(CreateJob(input_uri="none.ipynb", runtime_environment_name="python3", name="x"))
        with pytest.raises(SchedulerError, match="folder"):
            await s.create_job(_new(package_input_folder=True))
        assert gateway.asked == []
        gateway.refuse, gateway.status = "The body is larger than 9 bytes.", 413
        with pytest.raises(SchedulerError, match="too large for the gateway: The body is larger than 9 bytes"):
            await s.create_job(_new())
        gateway.refuse, gateway.status = "you have 3 jobs, and 3 are allowed", 403
        with pytest.raises(SchedulerError, match="you have 3 jobs, and 3 are allowed"):
            await s.create_job(_new())
        with pytest.raises(EnvironmentRetrievalError, match="3 are allowed"):
            await s.environments_manager.list_environments()

    run(test)


def test_a_waiting_job_shows_why(run):
    async def test(gateway, s):
        job = await s.get_job(JOB["id"])
        assert (job.status, job.name, job.status_message) == (Status.QUEUED, "train (no GPU is free)", None)
        assert job.parameters == {"n": "3", "s": "x"} and job.compute_type == "t4" and not job.downloaded
        assert job.create_time == 1795568523500
        gateway.job |= {"state": "failed", "reason": "ValueError: no"}
        job = await s.get_job(JOB["id"])
        assert (job.status, job.name, job.status_message) == (Status.FAILED, "train", "ValueError: no")

    run(test)


def test_the_result_is_beside_the_notebook(run):
    async def test(gateway, s):
        files = scheduler.EkgJobFilesManager(scheduler=s)
        with pytest.raises(SchedulerError, match="has not ended"):
            await files.copy_from_staging(JOB["id"])
        gateway.job |= {"state": "succeeded", "reason": ""}
        await files.copy_from_staging(JOB["id"])
        asked = len(gateway.asked)
        job = await s.get_job(JOB["id"])
        assert job.downloaded and job.job_files[0].file_path == "folder/in-2026-11-25-01-02-03-0a7e3f52.ipynb"
        assert json.loads((run.folder / job.job_files[0].file_path).read_text())["nbformat"] == 4
        await files.copy_from_staging(JOB["id"])
        assert not any(path.endswith("/notebook") for _, path, _ in gateway.asked[asked:])

    run(test)


def test_a_result_with_nan_can_be_opened(run, monkeypatch):
    """JupyterLab opens no file with NaN. The file has null, and a line in the cell."""
    shown = {"output_type": "display_data", "metadata": {}, "data": {"application/json": [float("inf"), 1]}}
    cell = {"cell_type": "code", "id": "a", "source": "", "metadata": {"x": float("nan")}, "outputs": [shown],
            "execution_count": 1}  # fmt: skip
    monkeypatch.setitem(NOTEBOOK, "cells", [cell])

    async def test(gateway, s):
        gateway.job |= {"state": "succeeded", "reason": ""}
        await scheduler.EkgJobFilesManager(scheduler=s).copy_from_staging(JOB["id"])
        text = (run.folder / "folder/in-2026-11-25-01-02-03-0a7e3f52.ipynb").read_text()
        [cell] = json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))["cells"]
        assert cell["metadata"]["x"] is None
        assert cell["outputs"][0]["data"]["application/json"] == [None, 1]
        assert cell["outputs"][1]["text"][0].startswith("[ekg] ")

    run(test)


def test_jobs_are_listed_stopped_and_deleted(run):
    async def test(gateway, s):
        answer = await s.list_jobs(ListJobsQuery(status=Status.QUEUED, name="tr", max_items=5))
        assert answer.total_count == 2 and [j.job_id for j in answer.jobs] == ["new", JOB["id"]]
        for query, count in (
            (ListJobsQuery(name="other"), 0),
            (ListJobsQuery(tags=["a"]), 2),
            (ListJobsQuery(tags=["b"]), 0),
            (ListJobsQuery(job_definition_id="d"), 1),
            (ListJobsQuery(status=Status.STOPPED), 0),
            (ListJobsQuery(start_time=1), 0),
        ):
            assert (await s.list_jobs(query)).total_count == count
        first = await s.list_jobs(ListJobsQuery(max_items=1))
        rest = await s.list_jobs(ListJobsQuery(max_items=1, next_token=first.next_token))
        assert [j.job_id for j in first.jobs + rest.jobs] == ["new", JOB["id"]] and rest.next_token is None
        assert (await s.list_jobs(ListJobsQuery(max_items=0))).jobs == []
        assert await s.count_jobs(CountJobsQuery(status=Status.QUEUED)) == 2
        assert await s.count_jobs(CountJobsQuery()) == 0
        await s.update_job(JOB["id"], UpdateJob(status=Status.STOPPED))
        assert gateway.asked[-1][:2] == ("POST", f"/api/jobs/{JOB['id']}/stop")
        with pytest.raises(SchedulerError):
            await s.update_job(JOB["id"], UpdateJob(status=Status.COMPLETED))
        await s.delete_job("a/../b")
        assert gateway.asked[-1][:2] == ("DELETE", "/api/jobs/a%2F..%2Fb")

    run(test)


@pytest.mark.parametrize(
    ("input_path", "base"),
    [
        ("../../etc/x.ipynb", "etc/x"),
        ("a/../../x.ipynb", "x"),
        ("//x\0y.ipynb", "xy"),
        ("..", "notebook"),
        ("", "notebook"),
        ("x" * 10_000, "x" * 10_000),
    ],
)
def test_a_job_of_any_path_is_listed(run, input_path, base):
    """Another client of the gateway has sent it."""

    async def test(gateway, s):
        gateway.job |= {"input_path": input_path, "state": "running", "started": "2026-11-25T01:02:03.5Z"}
        jobs = (await s.list_jobs(ListJobsQuery(start_time=1795568523500))).jobs
        assert len(jobs) == 2 and not jobs[0].downloaded
        assert scheduler_results.result_path(gateway.job) == f"{base}-2026-11-25-01-02-03-0a7e3f52.ipynb"
        assert (await s.list_jobs(ListJobsQuery(start_time=1795568523501))).jobs == []

    run(test)


def test_times_have_any_number_of_digits():
    """Python 3.9 reads three or six, and the order of texts is not that of times."""
    times = [f"2026-11-25T01:02:03{fraction}Z" for fraction in ("", ".123456789", ".5", ".51", ".6")]
    milliseconds = [scheduler._milliseconds(text) % 1000 for text in times]
    assert milliseconds == [0, 123, 500, 510, 600]
    jobs = [{**JOB, "id": text, "created": text} for text in reversed(times)]
    assert [job["id"] for job in scheduler._matching(jobs, ListJobsQuery())] == times[::-1]
    assert [job["id"] for job in scheduler._matching(jobs[::-1], ListJobsQuery())] == times[::-1]


def test_only_jobs_of_the_page_are_looked_up(run, monkeypatch):
    looked_up = []

    async def describe(_, job):
        looked_up.append(job["id"])
        return await original(_, job)

    original = scheduler.EkgScheduler._describe
    monkeypatch.setattr(scheduler.EkgScheduler, "_describe", describe)

    async def test(gateway, s):
        await s.list_jobs(ListJobsQuery(status=Status.STOPPED))
        assert looked_up == []
        answer = await s.list_jobs(ListJobsQuery(max_items=1))
        assert (looked_up, answer.total_count) == (["new"], 2)

    run(test)


DEFINITION = {
    "id": "7b1c0000-5a2c", "name": "daily", "kernelspec": "python3", "parameters": {"n": 3}, "tags": ["a"],
    "input_path": "folder/in.ipynb", "schedule": "0 6 * * *", "timezone": "Europe/Berlin", "active": True,
    "created": "2026-11-25T01:02:03.5Z", "updated": "2026-11-25T01:02:04Z",
}  # fmt: skip


def test_a_definition_is_sent_with_its_notebook(run):
    async def test(gateway, s):
        new = CreateJobDefinition(input_uri="folder/in.ipynb", runtime_environment_name="python3", name="daily",
                                  parameters={"n": "3"}, schedule="0 6 * * *", timezone="Europe/Berlin")  # fmt: skip
        assert await s.create_job_definition(new) == DEFINITION["id"]
        method, path, body = gateway.asked[-1]
        assert (method, path) == ("POST", "/api/jobs/definitions")
        assert body.pop("notebook")["nbformat"] == 4
        assert body == {"name": "daily", "input_path": "folder/in.ipynb", "kernelspec": "python3", "flavor": "",
                        "parameters": {"n": 3}, "tags": [], "schedule": "0 6 * * *",
                        "timezone": "Europe/Berlin"}  # fmt: skip
        await s.create_job_definition(new.copy(update={"schedule": None}))
        assert (gateway.asked[-1][2]["schedule"], gateway.asked[-1][2]["timezone"]) == ("", "")
        gateway.refuse = "the schedule is never due"
        with pytest.raises(SchedulerError, match="never due"):
            await s.create_job_definition(new)

    run(test)


def test_definitions_are_listed_and_described(run):
    async def test(gateway, s):
        found = await s.get_job_definition("a/../b")
        assert gateway.asked[-1][:2] == ("GET", "/api/jobs/definitions/a%2F..%2Fb")
        assert (found.job_definition_id, found.name, found.active) == (DEFINITION["id"], "daily", True)
        assert (found.schedule, found.timezone, found.parameters) == ("0 6 * * *", "Europe/Berlin", {"n": "3"})
        assert (found.input_filename, found.create_time, found.update_time) == ("in.ipynb", 1795568523500, 1795568524000)
        gateway.definition |= {"reason": "You have 100 jobs", "timezone": "", "active": False}
        answer = await s.list_job_definitions(ListJobDefinitionsQuery(name="dai", create_time=1795568523500))
        assert (answer.total_count, answer.job_definitions[0].name) == (1, "daily (You have 100 jobs)")
        assert (answer.job_definitions[0].timezone, answer.job_definitions[0].active) == ("UTC", False)
        for query in (
            ListJobDefinitionsQuery(name="x"),
            ListJobDefinitionsQuery(tags=["b"]),
            ListJobDefinitionsQuery(create_time=1795568523501),
        ):
            assert (await s.list_job_definitions(query)).total_count == 0

    run(test)


def test_a_definition_is_changed_run_and_deleted(run):
    async def test(gateway, s):
        for update, body in (
            (UpdateJobDefinition(active=False), {"active": False}),
            (UpdateJobDefinition(active=True), {"active": True}),
            (UpdateJobDefinition(schedule="@daily"), {"schedule": "@daily"}),
            (UpdateJobDefinition(schedule="@daily", timezone="UTC"), {"schedule": "@daily", "timezone": "UTC"}),
            (UpdateJobDefinition(timezone="Asia/Tokyo"), {"timezone": "Asia/Tokyo"}),
            (UpdateJobDefinition(schedule="", timezone="Asia/Tokyo"), {"schedule": "", "timezone": ""}),
            (UpdateJobDefinition(name="n", parameters={"n": "4"}), {"name": "n", "parameters": {"n": 4}}),
            (
                UpdateJobDefinition(input_uri="folder/in.ipynb"),
                {"notebook": NOTEBOOK, "input_path": "folder/in.ipynb"},
            ),
        ):
            await s.update_job_definition(DEFINITION["id"], update)
            assert gateway.asked[-1] == ("PATCH", f"/api/jobs/definitions/{DEFINITION['id']}", body)
        for parameters, body in (({"n": "5"}, {"parameters": {"n": 5}}), (None, {})):
            made = await s.create_job_from_definition(DEFINITION["id"], CreateJobFromDefinition(parameters=parameters))
            assert made == JOB["id"]
            assert gateway.asked[-1] == ("POST", f"/api/jobs/definitions/{DEFINITION['id']}/jobs", body)
        await s.delete_job_definition(DEFINITION["id"])
        assert gateway.asked[-1][:2] == ("DELETE", f"/api/jobs/definitions/{DEFINITION['id']}")

    run(test)


def test_a_saved_definition_keeps_its_notebook(run):
    """The front end's "Save Changes" sends the name of the notebook's file, without its folder."""
    (run.folder / "in.ipynb").write_text("another notebook")

    async def test(gateway, s):
        await s.update_job_definition(DEFINITION["id"], UpdateJobDefinition(schedule="@daily", input_uri="in.ipynb"))
        assert gateway.asked[-1][2] == {"schedule": "@daily"}
        with pytest.raises(SchedulerError, match="Input path 'folder/none.ipynb' does not exist"):
            await s.update_job_definition(DEFINITION["id"], UpdateJobDefinition(input_uri="folder/none.ipynb"))
        assert gateway.asked[-1][0] == "GET"

    run(test)


def test_environments_are_kernelspecs_with_flavors(run):
    async def test(gateway, s):
        found = await s.environments_manager.list_environments()
        assert [(e.name, e.label, e.description) for e in found] == [
            ("python3", "python3", "Python 3"),
            ("ir", "ir", "ir"),
        ]
        assert (found[0].compute_types, found[0].default_compute_type) == (["t4", "a100"], "t4")
        gateway.flavors = []
        found = await s.environments_manager.list_environments()
        assert (found[0].compute_types, found[0].default_compute_type) == (None, None)

    run(test)


ENDED = {"state": "succeeded", "reason": "", "started": "2026-11-25T01:02:03Z", "ended": "2026-11-25T01:03:03Z"}
RESULT = "folder/in-2026-11-25-01-02-03-0a7e3f52.ipynb"


def _again(s):
    """Returns what a server has after a restart."""
    return scheduler.EkgScheduler(root_dir=s.root_dir, environments_manager=s.environments_manager, db_url="").task_runner


def test_a_result_is_written_once(run):
    async def test(gateway, s):
        file, looks = run.folder / RESULT, s.task_runner
        assert await looks.look() and gateway.asked == []
        await s.create_job(_new())
        assert await looks.look() and not file.exists()
        gateway.job |= ENDED
        assert await looks.look()
        assert json.loads(file.read_text())["nbformat"] == 4 and (await s.get_job(JOB["id"])).downloaded
        file.unlink()
        asked = len(gateway.asked)
        await s.create_job(_new(idempotency_token="x"))  # the gateway returns the earlier job
        assert await looks.look() and await _again(s).look() and len(gateway.asked) == asked + 1 and not file.exists()
        await scheduler.EkgJobFilesManager(scheduler=s).copy_from_staging(JOB["id"])
        assert file.exists()

    run(test)


def test_a_result_is_written_after_a_restart(run):
    async def test(gateway, s):
        await s.create_job(_new())
        gateway.job |= {**ENDED, "state": "failed", "reason": "cell 1: ValueError"}
        gateway.refuse = "not now"
        looks = _again(s)
        assert not await looks.look() and not (run.folder / RESULT).exists()
        gateway.refuse = None
        gateway.asked.clear()
        assert await looks.look() and (run.folder / RESULT).exists()
        # Another client's job is in the list, too, and is not written.
        assert [path for _, path, _ in gateway.asked] == ["/api/jobs", f"/api/jobs/{JOB['id']}/notebook"]
        assert len(list((run.folder / "folder").glob("in-*.ipynb"))) == 1

    run(test)


def test_results_of_a_schedule_are_written(run):
    async def test(gateway, s):
        gateway.job |= ENDED
        gateway.definition |= {"id": "d"}
        looks = s.task_runner
        new = CreateJobDefinition(input_uri="folder/in.ipynb", runtime_environment_name="python3", name="daily")
        await s.create_job_definition(new)
        assert await looks.look()
        files = [p.name for p in (run.folder / "folder").glob("in-*.ipynb")]
        assert files == ["in-2026-11-25-02-00-00-new.ipynb"]  # the list has it
        gateway.definition |= {"job_id": JOB["id"]}
        gateway.asked.clear()
        assert await looks.look() and (run.folder / RESULT).exists()
        assert ("GET", "/api/jobs", None) not in gateway.asked
        (run.folder / RESULT).unlink()
        (run.folder / "folder" / files[0]).unlink()
        assert await looks.look() and await _again(s).look()
        assert list((run.folder / "folder").glob("in-*.ipynb")) == []
        gateway.refuse = "not now"  # a schedule may make several jobs meanwhile
        assert not await looks.look()
        gateway.refuse = None
        assert await looks.look() and ("GET", "/api/jobs", None) == gateway.asked[-1]
        await s.delete_job_definition("d")
        gateway.asked.clear()
        assert await looks.look() and gateway.asked == []
        looks.definition_stored("d")
        gateway.missing = ("d",)
        assert await looks.look() and looks.marks.of("definition") == set()

    run(test)


def test_a_file_that_is_there_stays(run):
    mine = {**NOTEBOOK, "metadata": {"mine": True}}
    (run.folder / RESULT).write_text(json.dumps(mine))

    async def test(gateway, s):
        gateway.job |= ENDED
        await s.create_job(_new())
        assert await s.task_runner.look()
        assert json.loads((run.folder / RESULT).read_text()) == mine
        s.task_runner.marks.remove(JOB["id"], "done")
        await s.create_job(_new())
        (run.folder / RESULT).write_text('{"nbformat": 4, "cel')  # the server was killed
        assert await s.task_runner.look()
        assert json.loads((run.folder / RESULT).read_text())["nbformat"] == 4

    run(test)


def test_a_result_has_a_place_without_its_folder(run):
    async def test(gateway, s):
        await s.create_job(_new())
        (run.folder / "folder/in.ipynb").unlink()
        (run.folder / "folder").rmdir()
        gateway.job |= ENDED
        assert await s.task_runner.look()
        assert (run.folder / os.path.basename(RESULT)).exists() and (await s.get_job(JOB["id"])).downloaded

    run(test)


def test_what_cannot_be_written_is_tried_later(run, monkeypatch):
    async def test(gateway, s):
        await s.create_job(_new())
        gateway.job |= ENDED
        contents, failing = scheduler.ServerApp.instance().contents_manager, [True]

        async def save(*args):
            if failing:
                raise RuntimeError("No space left on the storage")
            return await real(*args)

        real = contents.save
        monkeypatch.setattr(contents, "save", save)
        assert await s.task_runner.look()
        failing.clear()
        gateway.asked.clear()
        assert await s.task_runner.look() and not (run.folder / RESULT).exists()
        assert not any(path.endswith("/notebook") for _, path, _ in gateway.asked)
        monkeypatch.setattr(scheduler_results.time, "monotonic", lambda: time.time() + 1e6)
        assert await s.task_runner.look() and (run.folder / RESULT).exists()

    run(test)


def test_jobs_without_a_result_are_forgotten(run):
    async def test(gateway, s):
        looks = s.task_runner
        await s.create_job(_new())
        gateway.job |= {"state": "stopped", "ended": "2026-11-25T01:03:03Z"}
        assert await looks.look() and not (run.folder / RESULT).exists() and looks.marks.of("submitted") == set()
        looks.job_submitted("gone")
        gateway.missing = ("gone",)
        assert await looks.look() and looks.marks.of("submitted") == set()
        await s.create_job(_new())
        await s.delete_job(JOB["id"])
        assert looks.marks.of("submitted") == set()
        looks.marks.forget({"gone"}, -1)
        assert looks.marks.of("done") == {"gone"}
        looks.job_submitted("../../x")  # no gateway has such an id
        assert looks.marks.of("submitted") == set()

    run(test)


def test_results_can_be_left_to_the_user(run):
    async def test(gateway, s):
        off = scheduler.EkgScheduler(
            root_dir=s.root_dir, environments_manager=s.environments_manager, db_url="", write_results=False
        )
        assert off.task_runner is None
        gateway.job |= ENDED
        await off.create_job(_new())
        assert await s.task_runner.look() and not (run.folder / RESULT).exists()

    run(test)


def test_the_task_sleeps_until_there_is_a_job(run):
    async def test(gateway, s):
        looks = scheduler_results.Results(s.root_dir, 0.01, s.log)
        s.task_runner = looks
        task = asyncio.ensure_future(looks.start())
        try:
            await asyncio.sleep(0)
            assert gateway.asked == []
            await s.create_job(_new())
            while not any(method == "GET" for method, _, _ in gateway.asked):
                await asyncio.sleep(0.01)
            gateway.refuse = "not now"
            gateway.asked.clear()
            while not gateway.asked:
                await asyncio.sleep(0.01)
            gateway.refuse = None
            gateway.job |= ENDED
            while looks.marks.of("submitted"):
                await asyncio.sleep(0.01)
            assert (run.folder / RESULT).exists()
        finally:
            task.cancel()

    run(test)


def test_a_job_that_cannot_be_read_keeps_no_other_waiting(run):
    async def test(gateway, s):
        await s.create_job(_new())
        gateway.job |= ENDED
        assert await s.task_runner.look() and (run.folder / RESULT).exists()
        (run.folder / RESULT).unlink()
        s.task_runner.marks.remove(JOB["id"], "done")
        for item in ("0-damaged", JOB["id"]):
            s.task_runner.marks.add(item, "submitted")
        s.task_runner.marks.add("1-damaged", "definition")
        gateway.damaged = ("0-damaged", "1-damaged")
        assert await s.task_runner.look() and (run.folder / RESULT).exists()
        assert s.task_runner.marks.of("submitted") == {"0-damaged"}

    run(test)


def test_other_files_between_the_marks_are_ignored(run):
    async def test(gateway, s):
        marks = s.task_runner.marks
        marks.add("a", "done")
        with open(os.path.join(marks.folder, "x (conflicted copy).done"), "w"):
            pass
        assert marks.of("done") == {"a"}
        os.rename(marks.folder, marks.folder + ".old")
        with open(marks.folder, "w"):  # a file in the place of the folder
            pass
        assert marks.of("done") == set()

    run(test)
