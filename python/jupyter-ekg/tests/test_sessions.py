"""Sessions in a file: their kernels outlive the Jupyter server."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sqlite3
import stat

import aiohttp
import pytest
from conftest import Server
from supervisor import KERNEL, Supervisor
from test_connection import AUTH, run

NOTEBOOK = {"path": "a.ipynb", "name": "a.ipynb", "type": "notebook", "kernel": {"name": "python3"}}
OTHER = "66666666-7777-8888-9999-aaaaaaaaaaaa"


def in_file(folder):
    """The argument of a server whose sessions are in a file, and the file."""
    file = folder / "sessions.db"
    return f"--SessionManager.database_filepath={file}", file


def kept(file):
    """The kernels of the sessions in a file."""
    with contextlib.closing(sqlite3.connect(file)) as database:
        return [row[0] for row in database.execute("SELECT kernel_id FROM session ORDER BY kernel_id")]


def error(status, message):
    """An answer of ekg's."""
    return status, json.dumps({"reason": "a reason", "message": message})


@contextlib.asynccontextmanager
async def running(folder, supervisor, *args):
    """A Jupyter server at the supervisor, and a browser's requests. The end of the block ends the server in order."""
    server = Server(folder, *args, gateway_port=supervisor.port)
    try:
        await asyncio.to_thread(server.wait)
        async with aiohttp.ClientSession(headers=AUTH) as browser:

            async def ask(method, path, body=None):
                async with browser.request(method, server.url + path, json=body) as response:
                    return response.status, await response.json()

            yield ask
        server.process.terminate()
        await asyncio.to_thread(server.process.wait)
    finally:
        server.end()


def test_a_session_is_back_with_its_kernel(tmp_path):
    """The next server has it. While the gateway is away, no session is removed. A kernel that is dead ends it."""
    *args, file = in_file(tmp_path)

    async def main():
        async with Supervisor() as supervisor:
            async with running(tmp_path, supervisor, *args) as ask:
                status, session = await ask("POST", "/api/sessions", NOTEBOOK)
                assert status == 201, session
            assert supervisor.deleted == [] and kept(file) == [KERNEL]
            supervisor.starts.clear()
            async with running(tmp_path, supervisor, *args) as ask:
                await supervisor.stop()
                status, answer = await ask("GET", "/api/sessions")
                assert status == 503 and "cannot be reached" in answer["message"], answer
                await supervisor.start()
                assert kept(file) == [KERNEL]
                status, [found] = await ask("GET", "/api/sessions")
                assert (found["id"], found["path"], found["kernel"]["id"]) == (session["id"], "a.ipynb", KERNEL)
                assert [kernel["id"] for kernel in (await ask("GET", "/api/kernels"))[1]] == [KERNEL]
                assert supervisor.starts == []
            assert supervisor.deleted == []
            supervisor.ownership = {"execution_state": "dead"}
            async with running(tmp_path, supervisor, *args) as ask:
                assert await ask("GET", "/api/sessions") == (200, [])
            assert kept(file) == []

    run(main())


def test_a_server_without_a_file_ends_its_kernels(tmp_path):
    """It does so as ever, and so does one with a file with a kernel that has no session."""

    async def main():
        async with Supervisor() as supervisor:
            async with running(tmp_path, supervisor) as ask:
                assert (await ask("POST", "/api/sessions", NOTEBOOK))[0] == 201
            assert supervisor.deleted == [KERNEL]
            supervisor.deleted.clear()
            file = tmp_path / "sessions.db"
            async with running(tmp_path, supervisor, f"--SessionManager.database_filepath={file}") as ask:
                assert (await ask("POST", "/api/kernels", {"name": "python3"}))[0] == 201
            assert supervisor.deleted == [KERNEL]

    run(main())


@pytest.mark.parametrize(
    ("status", "body"),
    [
        (404, "default backend - 404"),
        (404, '{"message": "no Route matched with those values"}'),
        error(404, "There is no such route."),
        (502, "<html>Bad Gateway</html>"),
    ],
)
def test_a_404_of_another_program_removes_no_session(tmp_path, status, body):
    """Only ekg's own answer for a kernel that does not exist removes its session."""
    arg, file = in_file(tmp_path)

    async def main():
        async with Supervisor() as supervisor:
            async with running(tmp_path, supervisor, arg) as ask:
                assert (await ask("POST", "/api/sessions", NOTEBOOK))[0] == 201
            async with running(tmp_path, supervisor, arg) as ask:
                for before in (0, 1):  # the first or the second of the two requests for a model has this answer
                    supervisor.models_before = before
                    supervisor.kernel_answers = {KERNEL: (status, body)}
                    answered, answer = await ask("GET", "/api/sessions")
                    assert answered in (502, 503), answer
                    assert kept(file) == [KERNEL]
                supervisor.kernel_answers = {}
                assert [one["kernel"]["id"] for one in (await ask("GET", "/api/sessions"))[1]] == [KERNEL]
            async with running(tmp_path, supervisor, arg) as ask:
                supervisor.kernel_answers = {KERNEL: error(404, f"Kernel does not exist: {KERNEL}")}
                assert await ask("GET", "/api/sessions") == (200, [])
                assert kept(file) == []

    run(main())


@pytest.mark.parametrize("status", [403, 500])
def test_an_error_of_one_kernel_hides_no_other_session(tmp_path, status):
    """Its session is kept, and is there again when the kernel is."""
    arg, file = in_file(tmp_path)

    async def main():
        async with Supervisor() as supervisor:
            supervisor.start_ids = [KERNEL, OTHER]
            async with running(tmp_path, supervisor, arg) as ask:
                for path in ("a.ipynb", "b.ipynb"):
                    assert (await ask("POST", "/api/sessions", {**NOTEBOOK, "path": path, "name": path}))[0] == 201
            async with running(tmp_path, supervisor, arg) as ask:
                supervisor.kernel_answers = {KERNEL: error(status, "not this one")}
                for _ in range(2):
                    answered, answer = await ask("GET", "/api/sessions")
                    assert answered == 200 and [one["path"] for one in answer] == ["b.ipynb"], answer
                assert kept(file) == [KERNEL, OTHER]
                log = (tmp_path / "server.log").read_text()
                assert log.count(f"the session of kernel {KERNEL} is kept, but not listed: not this one") == 1
                answered, answer = await ask("POST", "/api/sessions", NOTEBOOK)  # it starts no second kernel
                assert (answered, answer["message"]) == (status, "not this one")
                supervisor.kernel_answers = {}
                assert [one["path"] for one in (await ask("GET", "/api/sessions"))[1]] == ["a.ipynb", "b.ipynb"]

    run(main())


def test_a_locked_file_keeps_no_kernel_without_a_session(tmp_path):
    """A server that ends while it cannot read its sessions ends only the kernels that had none."""
    arg, file = in_file(tmp_path)

    async def main():
        async with Supervisor() as supervisor:
            supervisor.start_ids = [KERNEL, OTHER]
            with contextlib.closing(sqlite3.connect(file, isolation_level=None)) as other:
                async with running(tmp_path, supervisor, arg) as ask:
                    assert (await ask("POST", "/api/sessions", NOTEBOOK))[0] == 201
                    assert (await ask("POST", "/api/kernels", {"name": "python3"}))[0] == 201
                    other.execute("BEGIN EXCLUSIVE")
            assert supervisor.deleted == [OTHER]
            assert "the sessions cannot be read" in (tmp_path / "server.log").read_text()
            assert kept(file) == [KERNEL]

    run(main())


def test_the_file_is_its_owners(tmp_path):
    """A new file can be read by its owner alone. An existing one keeps its mode."""
    arg, file = in_file(tmp_path)

    async def main():
        async with Supervisor() as supervisor:
            for mode in (0o600, 0o640):
                if file.exists():
                    os.chmod(file, mode)
                async with running(tmp_path, supervisor, arg) as ask:
                    assert (await ask("POST", "/api/sessions", NOTEBOOK))[0] == 201
                assert stat.S_IMODE(file.stat().st_mode) == mode

    run(main())
