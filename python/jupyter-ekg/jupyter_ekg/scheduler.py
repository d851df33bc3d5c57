"""Runs jupyter-scheduler's jobs on the gateway: its front end stays as it is, and the gateway keeps the jobs.

Three settings use it:

    SchedulerApp.scheduler_class = "jupyter_ekg.scheduler.EkgScheduler"
    SchedulerApp.environment_manager_class = "jupyter_ekg.scheduler.EkgEnvironmentManager"
    SchedulerApp.job_files_manager_class = "jupyter_ekg.scheduler.EkgJobFilesManager"

Only this module imports jupyter_scheduler, which ``pip install jupyter-ekg[scheduler]`` installs. Notebooks are read and
written with the server's contents manager. The gateway gets the notebook with the job, and needs no access to files.
``scheduler_results`` writes the notebooks of jobs that have ended.
"""

from __future__ import annotations

import json
import math
import posixpath
from typing import Any

from jupyter_scheduler.environments import EnvironmentManager, EnvironmentRetrievalError
from jupyter_scheduler.exceptions import InputUriError, SchedulerError
from jupyter_scheduler.executors import ExecutionManager
from jupyter_scheduler.job_files_manager import JobFilesManager
from jupyter_scheduler.models import (
    DEFAULT_MAX_ITEMS,
    CountJobsQuery,
    CreateJob,
    CreateJobDefinition,
    CreateJobFromDefinition,
    DescribeJob,
    DescribeJobDefinition,
    JobFeature,
    JobFile,
    ListJobDefinitionsQuery,
    ListJobDefinitionsResponse,
    ListJobsQuery,
    ListJobsResponse,
    RuntimeEnvironment,
    SortDirection,
    Status,
    UpdateJob,
    UpdateJobDefinition,
)
from jupyter_scheduler.scheduler import BaseScheduler
from jupyter_server.serverapp import ServerApp
from jupyter_server.utils import ensure_async
from tornado.web import HTTPError
from traitlets import Bool, Float

from . import gateway
from . import scheduler_results as results
from .scheduler_results import DEFINITIONS, JOBS, definition_route, input_path, job_route, moment

_FORMATS = {"ipynb": "Notebook"}

# The states of the gateway's jobs, and jupyter-scheduler's.
_STATUS = {
    "queued": Status.QUEUED,
    "starting": Status.QUEUED,
    "running": Status.IN_PROGRESS,
    "succeeded": Status.COMPLETED,
    "failed": Status.FAILED,
    "stopped": Status.STOPPED,
}


class EkgExecutionManager(ExecutionManager):
    """Says what the front end may offer. Jobs are executed by the gateway."""

    def execute(self):
        raise NotImplementedError("the gateway executes jobs")

    def supported_features(cls):  # noqa: N805 - jupyter_scheduler calls it with the class
        return {feature: feature in _FEATURES for feature in JobFeature}


_FEATURES = {
    JobFeature.job_name,
    JobFeature.parameters,
    JobFeature.output_formats,
    JobFeature.job_definition,
    JobFeature.idempotency_token,
    JobFeature.tags,
    JobFeature.stop_job,
    JobFeature.delete_job,
}


class EkgEnvironmentManager(EnvironmentManager):
    """The environments are the gateway's kernelspecs, and their compute types are its flavors."""

    async def list_environments(self) -> list[RuntimeEnvironment]:
        try:
            specs = await gateway.send("GET", "/api/kernelspecs")
            flavors = [flavor["name"] for flavor in await gateway.send("GET", "/api/flavors")]
        except (gateway.Refused, gateway.Unreachable) as err:
            raise EnvironmentRetrievalError(_sentence(err)) from err
        default = specs.get("default")
        names = sorted(specs.get("kernelspecs", {}), key=lambda name: (name != default, name))
        return [
            RuntimeEnvironment(
                name=name,
                label=name,  # the front end takes the chosen label for the name
                description=specs["kernelspecs"][name]["spec"].get("display_name") or name,
                file_extensions=["ipynb"],
                output_formats=list(_FORMATS),
                metadata={},
                compute_types=flavors or None,  # an empty list is an empty menu
                default_compute_type=flavors[0] if flavors else None,
                utc_only=False,
            )
            for name in names
        ]

    def manage_environments_command(self) -> str:
        return ""

    def output_formats_mapping(self) -> dict[str, str]:
        return _FORMATS


class EkgScheduler(BaseScheduler):
    """Forwards each request to the gateway."""

    write_results = Bool(
        True,
        config=True,
        help="Whether the notebook of a job that has ended is written beside the notebook that it was made from.",
    )

    look_every = Float(15.0, min=1.0, config=True, help="Seconds between two looks for jobs that have ended.")

    task_runner = None  # the gateway makes the jobs of schedules

    def __init__(self, *args: Any, **kwargs: Any):
        kwargs.pop("db_url", None)
        super().__init__(*args, **kwargs)
        self.execution_manager_class = EkgExecutionManager
        if self.write_results:
            self.task_runner = results.Results(self.root_dir, self.look_every, self.log)

    async def create_job(self, model: CreateJob) -> str:
        body = {**await _template(model), "token": model.idempotency_token}
        return self._submitted(await _forward("POST", JOBS, {k: v for k, v in body.items() if v is not None}))

    def _submitted(self, job: dict[str, Any]) -> str:
        if self.task_runner:
            self.task_runner.job_submitted(job["id"])
        return job["id"]

    def job_done(self, job_id: str) -> None:
        """Notes that a job's notebook needs not be written any more."""
        if self.task_runner:
            self.task_runner.job_done(job_id)

    async def update_job(self, job_id: str, model: UpdateJob) -> None:
        if model.status == Status.STOPPED:
            await self.stop_job(job_id)
        elif model.status is not None:
            raise SchedulerError("a job can only be stopped")

    async def list_jobs(self, query: ListJobsQuery) -> ListJobsResponse:
        found = _matching(await _forward("GET", JOBS), query)
        page, next_token = _page(found, query)
        jobs = [await self._describe(job) for job in page]
        return ListJobsResponse(jobs=jobs, total_count=len(found), next_token=next_token)

    async def count_jobs(self, query: CountJobsQuery) -> int:
        return sum(_status(job) == query.status for job in await _forward("GET", JOBS))

    async def get_job(self, job_id: str, job_files: bool | None = True) -> DescribeJob:
        return await self._describe(await _forward("GET", job_route(job_id)))

    async def delete_job(self, job_id: str) -> None:
        await _forward("DELETE", job_route(job_id))
        self.job_done(job_id)

    async def stop_job(self, job_id: str) -> None:
        await _forward("POST", job_route(job_id) + "/stop", {})

    async def create_job_definition(self, model: CreateJobDefinition) -> str:
        zone = model.timezone if model.schedule else None  # the front end sends one without a schedule, too
        body = {**await _template(model), "schedule": model.schedule or "", "timezone": zone or ""}
        definition = await _forward("POST", DEFINITIONS, body)
        if self.task_runner:
            self.task_runner.definition_stored(definition["id"])
        return definition["id"]

    async def update_job_definition(self, job_definition_id: str, model: UpdateJobDefinition) -> None:
        if model.input_uri:
            # The front end's "Save Changes" always sends the file's name, and without its folder.
            definition = await _forward("GET", definition_route(job_definition_id))
            if model.input_uri == posixpath.basename(input_path(definition)):
                model = model.copy(update={"input_uri": None})
        try:
            changes = await _changes(model)
        except InputUriError as err:  # the front end shows the text of a SchedulerError only
            raise SchedulerError(str(err)) from err
        await _forward("PATCH", definition_route(job_definition_id), changes)

    async def delete_job_definition(self, job_definition_id: str) -> None:
        await _forward("DELETE", definition_route(job_definition_id))
        if self.task_runner:
            self.task_runner.definition_removed(job_definition_id)

    async def get_job_definition(self, job_definition_id: str) -> DescribeJobDefinition:
        return _describe_definition(await _forward("GET", definition_route(job_definition_id)))

    async def list_job_definitions(self, query: ListJobDefinitionsQuery) -> ListJobDefinitionsResponse:
        found = _matching(await _forward("GET", DEFINITIONS), query)
        page, next_token = _page(found, query)
        definitions = [_describe_definition(definition) for definition in page]
        return ListJobDefinitionsResponse(job_definitions=definitions, total_count=len(found), next_token=next_token)

    async def create_job_from_definition(self, job_definition_id: str, model: CreateJobFromDefinition) -> str:
        body = {} if model.parameters is None else {"parameters": _parameters(model.parameters)}
        return self._submitted(await _forward("POST", definition_route(job_definition_id) + "/jobs", body))

    async def _describe(self, job: dict[str, Any]) -> DescribeJob:
        """Returns a job for the front end. The sentence why it waits is behind its name: the front end shows a
        ``status_message`` as an error."""
        status = _status(job)
        waits = job.get("reason") if status in (Status.CREATED, Status.QUEUED) else None
        path = await results.place(job)
        here = await ensure_async(ServerApp.instance().contents_manager.file_exists(path))
        return DescribeJob(
            **_common(job),
            name=f"{job['name']} ({waits})" if waits else job["name"],
            job_id=job["id"],
            job_definition_id=job.get("definition"),
            url=f"/jobs/{job['id']}",
            start_time=_milliseconds(job.get("started")),
            end_time=_milliseconds(job.get("ended")),
            status=status,
            status_message=(job.get("reason") or None) if status == Status.FAILED else None,
            job_files=[JobFile(display_name=_FORMATS["ipynb"], file_format="ipynb", file_path=path if here else None)],
            downloaded=here,
        )


class EkgJobFilesManager(JobFilesManager):
    """Writes a job's notebook beside the one that it was made from."""

    async def copy_from_staging(self, job_id: str, redownload: bool | None = False) -> None:
        job = await _forward("GET", job_route(job_id))
        if job["state"] not in results.ENDED:  # its file would be taken for the result later
            raise SchedulerError("the job has not ended")
        try:
            await results.write(job, again=bool(redownload))
        except (gateway.Refused, gateway.Unreachable) as err:
            raise SchedulerError(_sentence(err)) from err
        self.scheduler.job_done(job_id)


async def _notebook(path: str) -> dict[str, Any]:
    try:
        model = await ensure_async(ServerApp.instance().contents_manager.get(path, content=True, type="notebook"))
    except HTTPError as err:
        raise InputUriError(path) from err
    return model["content"]


async def _template(model: CreateJob | CreateJobDefinition) -> dict[str, Any]:
    """Returns what jobs and definitions have in common, as the gateway wants it."""
    if model.package_input_folder:
        raise SchedulerError("the folder of a notebook cannot be sent with it: ekg sends the notebook alone")
    return {
        "name": model.name,
        "notebook": await _notebook(model.input_uri),
        "input_path": model.input_uri,
        "kernelspec": model.runtime_environment_name,
        "flavor": model.compute_type or "",
        "parameters": _parameters(model.parameters or {}),
        "tags": model.tags or [],
    }


async def _changes(model: UpdateJobDefinition) -> dict[str, Any]:
    """Returns what an update changes, as the gateway wants it. The front end sends what it has, and null for the rest."""
    body = {
        "name": model.name,
        "kernelspec": model.runtime_environment_name,
        "flavor": model.compute_type,
        "parameters": None if model.parameters is None else _parameters(model.parameters),
        "tags": model.tags,
        "active": model.active,
    }
    body |= {"schedule": model.schedule, "timezone": "" if model.schedule == "" else model.timezone}
    if model.input_uri:
        body |= {"notebook": await _notebook(model.input_uri), "input_path": model.input_uri}
    return {member: value for member, value in body.items() if value is not None}


def _describe_definition(definition: dict[str, Any]) -> DescribeJobDefinition:
    """Returns a definition for the front end. Why its last job was not made is behind its name, as for jobs."""
    reason = definition.get("reason")
    return DescribeJobDefinition(
        **_common(definition),
        name=f"{definition['name']} ({reason})" if reason else definition["name"],
        job_definition_id=definition["id"],
        schedule=definition.get("schedule"),
        timezone=(definition.get("timezone") or "UTC") if definition.get("schedule") else None,
        active=definition["active"],
    )


def _parameters(texts: dict[str, str]) -> dict[str, Any]:
    return {name: _value(text) for name, text in texts.items()}


def _value(text: str) -> Any:
    """Returns the value of a parameter. The front end sends texts; those that are JSON mean what JSON says."""
    try:
        return json.loads(text, parse_constant=_finite, parse_float=_finite)
    except (ValueError, RecursionError):
        return text


def _finite(text: str) -> float:
    """Returns a number. Python reads and writes NaN and infinite numbers, and JSON has none."""
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(text)
    return number


def _common(model: dict[str, Any]) -> dict[str, Any]:
    """Returns what the descriptions of jobs and definitions have in common."""
    return {
        "input_filename": posixpath.basename(input_path(model)),
        "runtime_environment_name": model.get("kernelspec") or "",
        "runtime_environment_parameters": {},
        "output_formats": list(_FORMATS),
        "parameters": {k: v if isinstance(v, str) else json.dumps(v) for k, v in (model.get("parameters") or {}).items()},
        "tags": model.get("tags") or [],
        "compute_type": model.get("flavor") or None,
        "create_time": _milliseconds(model["created"]),
        "update_time": _milliseconds(model.get("updated") or model["created"]),
    }


def _status(job: dict[str, Any]) -> Status:
    status = _STATUS.get(job["state"], Status.CREATED)
    return Status.STOPPING if job.get("stopping") and status in (Status.QUEUED, Status.IN_PROGRESS) else status


_TIMES = {"create_time": "created", "start_time": "started", "end_time": "ended"}


def _matching(
    models: list[dict[str, Any]], query: ListJobsQuery | ListJobDefinitionsQuery
) -> list[dict[str, Any]]:
    """Returns the models that the query asks for, the newest first unless it asks for another order."""
    definition = getattr(query, "job_definition_id", None)
    status = getattr(query, "status", None)
    since = getattr(query, "start_time", None)
    created = getattr(query, "create_time", None)
    found = [
        model
        for model in models
        if model["name"].startswith(query.name or "")
        and (not definition or model.get("definition") == definition)
        and set(query.tags or []) <= set(model.get("tags") or [])
        and (not status or _status(model) == status)
        and (not created or _milliseconds(model["created"]) >= created)
        and (not since or (_milliseconds(model.get("started")) or 0) >= since)
    ]
    keys = {**_TIMES, "name": "name", "status": "state"}
    for field in reversed(query.sort_by):
        key = keys.get(field.name, "created")
        found.sort(key=lambda model: _sorted_by(model, key), reverse=field.direction == SortDirection.desc)
    return found


def _sorted_by(model: dict[str, Any], key: str) -> Any:
    """Returns what a list is sorted by. Times as texts have no order: 1.5 is written shorter than 1.25."""
    value = model.get(key) or ""
    return (moment(value).timestamp() if value else 0.0) if key in _TIMES.values() else value


def _page(found: list[Any], query: ListJobsQuery | ListJobDefinitionsQuery) -> tuple[list[Any], str | None]:
    """Returns a part of a list, and the token of the next one."""
    begin = int(query.next_token) if (query.next_token or "").isdigit() else 0
    end = begin + (DEFAULT_MAX_ITEMS if query.max_items is None else query.max_items)
    return found[begin:end], str(end) if begin < end < len(found) else None


def _milliseconds(text: str | None) -> int | None:
    return int(moment(text).timestamp() * 1000) if text else None


async def _forward(method: str, path: str, body: Any = None) -> Any:
    """Sends a request. The errors of the gateway are those that the front end shows."""
    try:
        return await gateway.send(method, path, body)
    except gateway.Refused as err:
        raise SchedulerError(_sentence(err)) from err
    except gateway.Unreachable as err:
        raise SchedulerError(_sentence(err)) from err


def _sentence(err: Exception) -> str:
    if not isinstance(err, gateway.Refused):
        return f"the gateway does not answer: {err}"
    return f"the notebook is too large for the gateway: {err.message}" if err.status == 413 else err.message
