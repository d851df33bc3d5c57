"""A pytest plugin with which jupyter-scheduler's own tests of a scheduler use EkgScheduler and the gateway of EKG_URL.

Those tests keep their data in jupyter-scheduler's database, and ask it afterwards. Here the fixtures' database is the
gateway. It chooses ids and times itself, so both are translated: the n-th definition has the time n, as in the tests.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
from types import SimpleNamespace

import pytest
from jupyter_scheduler.models import CreateJobDefinition, ListJobDefinitionsQuery, UpdateJobDefinition
from jupyter_server.gateway.gateway_client import GatewayClient
from jupyter_server.serverapp import ServerApp
from jupyter_server.services.contents.largefilemanager import AsyncLargeFileManager

from jupyter_ekg.scheduler import EkgEnvironmentManager, EkgScheduler

NOTEBOOK = {"nbformat": 4, "nbformat_minor": 5, "metadata": {}, "cells": []}
# Members that the tests' rows do not have, because they were not made by the scheduler.
NO_COLUMNS = ("runtime_environment_parameters", "output_formats", "output_filename_template")


class Database:
    """The gateway's definitions, with the ids and times of the tests. It is scheduler, session and query in one."""

    def __init__(self, root_dir: str):
        self._scheduler = EkgScheduler(root_dir=root_dir, environments_manager=EkgEnvironmentManager(), db_url="")
        self._ids: dict[str, str] = {}  # the gateway's ids by those of the tests, the oldest first
        self._added = []

    def _do(self, method: str, *args):
        return asyncio.run(getattr(self._scheduler, method)(*args))

    def _times(self) -> list[int]:
        return [self._do("get_job_definition", known).create_time for known in self._ids.values()]

    def _shown(self, definition) -> SimpleNamespace:
        """Returns a definition as the tests compare it."""
        model = definition.dict(exclude_none=True)
        for member in (*NO_COLUMNS, *(m for m in ("parameters", "tags") if not model[m])):
            del model[member]
        of_test = [name for name, known in self._ids.items() if known == definition.job_definition_id]
        if of_test:
            time = list(self._ids).index(of_test[0]) + 1
            model |= {"job_definition_id": of_test[0], "create_time": time, "update_time": time}
        return SimpleNamespace(**model, dict=lambda **_: model)

    # The scheduler.

    def create_job_definition(self, model):
        return self._do("create_job_definition", model)

    def list_job_definitions(self, query):
        if query.create_time:
            query = query.copy(update={"create_time": self._times()[query.create_time - 1]})
        found = self._do("list_job_definitions", query)
        answer = found.dict(exclude_none=True)
        answer["job_definitions"] = [self._shown(definition).dict() for definition in found.job_definitions]
        return SimpleNamespace(dict=lambda **_: answer)

    def get_job_definition(self, job_definition_id):
        return self._shown(self._do("get_job_definition", self._ids[job_definition_id]))

    def update_job_definition(self, job_definition_id, model):
        self._do("update_job_definition", self._ids[job_definition_id], model)

    def delete_job_definition(self, job_definition_id):
        self._do("delete_job_definition", self._ids[job_definition_id])

    @contextlib.contextmanager
    def db_session(self):
        yield self

    # The session.

    def add(self, row):
        self._added.append(row)

    def commit(self):
        for row in self._added:
            made = self.create_job_definition(CreateJobDefinition(
                input_uri=row.input_filename, runtime_environment_name=row.runtime_environment_name, name=row.name,
                schedule=row.schedule, timezone=row.timezone, tags=row.tags))  # fmt: skip
            self._ids[row.job_definition_id] = made
            if not row.active:
                self._do("update_job_definition", made, UpdateJobDefinition(active=False))
        self._added.clear()

    def get(self, _, job_definition_id):
        known = self._do("list_job_definitions", ListJobDefinitionsQuery()).job_definitions
        return next((d for d in known if d.job_definition_id == self._ids[job_definition_id]), None)

    def query(self, _):
        return self

    def all(self):
        return self._do("list_job_definitions", ListJobDefinitionsQuery()).job_definitions

    def filter(self, condition):
        return SimpleNamespace(one=lambda: self.get(None, condition.right.value))

    def clear(self):
        for definition in self.all():
            self._do("delete_job_definition", definition.job_definition_id)


@pytest.fixture
def jp_scheduler_db(tmp_path, monkeypatch):
    for name in ("helloworld", "helloworld_1", "helloworld_2", "helloworld_3"):
        (tmp_path / f"{name}.ipynb").write_text(json.dumps(NOTEBOOK))
    contents = AsyncLargeFileManager(root_dir=str(tmp_path))
    monkeypatch.setattr(ServerApp, "instance", lambda: SimpleNamespace(contents_manager=contents))
    monkeypatch.setenv("JUPYTER_DATA_DIR", str(tmp_path / "data"))
    GatewayClient.clear_instance()
    client = GatewayClient.instance()
    client.url, client.auth_token = os.environ["EKG_URL"], os.environ["EKG_TOKEN"]
    database = Database(str(tmp_path))
    yield database
    database.clear()
    GatewayClient.clear_instance()


@pytest.fixture
def jp_scheduler(jp_scheduler_db):
    return jp_scheduler_db


def pytest_runtest_logreport(report):
    """Prints what the Go test reads."""
    if report.when == "call" or report.failed:
        name = report.nodeid.rpartition("::")[2]
        print(f"\nPASS {name}" if report.passed else f"\nFAIL {name}: {str(report.longrepr)[-500:]!r}", flush=True)
