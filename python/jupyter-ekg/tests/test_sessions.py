"""Sessions in a file: their kernels outlive the Jupyter server."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3

import aiohttp
from conftest import Server
from supervisor import KERNEL, Supervisor
from test_connection import AUTH, run

NOTEBOOK = {"path": "a.ipynb", "name": "a.ipynb", "type": "notebook", "kernel": {"name": "python3"}}


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
    file = tmp_path / "sessions.db"
    args = (f"--SessionManager.database_filepath={file}",)

    def kept():
        with contextlib.closing(sqlite3.connect(file)) as database:
            return [row[0] for row in database.execute("SELECT kernel_id FROM session")]

    async def main():
        async with Supervisor() as supervisor:
            async with running(tmp_path, supervisor, *args) as ask:
                status, session = await ask("POST", "/api/sessions", NOTEBOOK)
                assert status == 201, session
            assert supervisor.deleted == [] and kept() == [KERNEL]
            supervisor.starts.clear()
            async with running(tmp_path, supervisor, *args) as ask:
                await supervisor.stop()
                status, answer = await ask("GET", "/api/sessions")
                assert status == 503 and "cannot be reached" in answer["message"], answer
                await supervisor.start()
                assert kept() == [KERNEL]
                status, [found] = await ask("GET", "/api/sessions")
                assert (found["id"], found["path"], found["kernel"]["id"]) == (session["id"], "a.ipynb", KERNEL)
                assert [kernel["id"] for kernel in (await ask("GET", "/api/kernels"))[1]] == [KERNEL]
                assert supervisor.starts == []
            assert supervisor.deleted == []
            supervisor.ownership = {"execution_state": "dead"}
            async with running(tmp_path, supervisor, *args) as ask:
                assert await ask("GET", "/api/sessions") == (200, [])
            assert kept() == []

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
