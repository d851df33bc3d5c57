"""What the server does for the panel: the stream of kernels, and the changes that it forwards."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging

import aiohttp
import pytest
from conftest import GATEWAY_TOKEN
from jupyter_server.gateway.gateway_client import GatewayClient
from supervisor import KERNEL, Supervisor
from test_connection import AUTH, gateway, run, until

from jupyter_ekg import watch

OTHER = "99999999-2222-3333-4444-555555555555"  # a kernel that this server has not started
HOSTILE = '<img src=x onerror="hacked()">\n\ndata: {"kernels":[]}\r\nevent: reset'


def model(kernel_id=KERNEL, **more):
    return {"id": kernel_id, "name": "python3", "execution_state": "idle", **more}


class Page:
    """A page that reads the stream."""

    def __init__(self, response):
        self.response = response
        self.kernels: dict[str, dict] = {}
        self.user = None
        self.problem = None
        self.resets = 0

    async def update(self):
        """Reads to the end of an update."""
        name = ""
        while True:
            line = (await self.response.content.readline()).decode()
            assert line, "the stream has ended"
            field, _, value = line.rstrip("\n").partition(": ")
            if field == "event":
                name = value
            elif field == "data":
                data = json.loads(value)
                if name == "reset":
                    self.kernels, self.user, self.resets = {}, data["user"], self.resets + 1
                elif name == "kernels":
                    self.kernels.update((k["id"], k) for k in data["kernels"])
                    for kernel_id in data["removed"]:
                        del self.kernels[kernel_id]
                else:
                    self.problem = data.get("message")
                    return self


@contextlib.asynccontextmanager
async def page(server, browser):
    async with browser.get(server.url + "/jupyter-ekg/events") as response:
        assert response.status == 200, await response.text()
        assert response.headers["Content-Type"] == "text/event-stream"
        yield Page(response)


def test_pages_share_one_stream(server):
    """Each page gets the whole list, then changes. The gateway sees one reader, and none after the last page."""

    async def main():
        async with gateway(server) as (supervisor, browser):
            supervisor.tell(model(reason=HOSTILE), model(OTHER))
            async with page(server, browser) as one, page(server, browser) as two:
                for p in (one, two):
                    while not p.kernels:
                        await p.update()
                    # Without users the other kernel may be of another server, whose users are not this one's.
                    assert p.kernels == {KERNEL: model(reason=HOSTILE)}
                    assert (p.user, p.problem) == ("ann", None)
                assert supervisor.streams == 1
                supervisor.tell(model(execution_state="busy"))
                for p in (one, two):
                    assert (await p.update()).kernels[KERNEL]["execution_state"] == "busy"
                supervisor.tell(removed=(KERNEL,))
                for p in (one, two):
                    assert (await p.update()).kernels == {}
                    assert p.resets == 1
            await until(lambda: supervisor.streams == 0)

    run(main())


def test_users_see_what_the_gateway_shows_them(server):
    """Where there are users, kernels that this server has not started are shown, too: the gateway has checked them."""

    async def main():
        async with gateway(server) as (supervisor, browser):
            supervisor.tell(model(OTHER, owner="ann", shared_with=[]))
            async with page(server, browser) as p:
                while not p.kernels:
                    await p.update()
                assert list(p.kernels) == [OTHER]

    run(main())


def test_gateway_goes_and_returns(server):
    """The page keeps its list, reads why, and gets what has changed."""

    async def main():
        async with gateway(server) as (supervisor, browser):
            supervisor.tell(model())
            async with page(server, browser) as p:
                while not p.kernels:
                    await p.update()
                await supervisor.stop()
                while not p.problem:
                    await p.update()
                assert "the gateway cannot be reached" in p.problem
                assert list(p.kernels) == [KERNEL]
                async with page(server, browser) as late:
                    await late.update()
                    assert (list(late.kernels), late.problem) == ([KERNEL], None)  # a whole list, which the page shows
                    await late.update()
                    assert late.problem == p.problem
                supervisor.events = None
                supervisor.tell(model(execution_state="dead", reason="gone"))
                await supervisor.start()
                while p.problem:
                    await p.update()
                assert (p.kernels[KERNEL]["reason"], p.resets) == ("gone", 1)

    run(main())


def test_a_kernel_becomes_one_of_this_server_while_the_gateway_is_away(monkeypatch):
    """The page gets it, and still reads that the list may be out of date."""
    monkeypatch.setattr(watch, "LOOK_AGAIN", 0.01)

    async def main():
        async with Supervisor() as supervisor:
            GatewayClient.clear_instance()
            GatewayClient.instance().url = supervisor.url
            supervisor.tell(model(), model(OTHER))
            mine = {KERNEL}
            updates = watch.Watch(logging.getLogger("test")).pages(lambda kernel: kernel["id"] in mine)

            async def update():
                while not (events := await updates.__anext__()):
                    pass
                return [name for name, _ in events]

            assert await update() == ["reset", "kernels", "complete"]
            await supervisor.stop()
            assert await update() == ["unavailable"]
            mine.add(OTHER)
            assert await update() == ["kernels", "complete", "unavailable"]
            assert await updates.__anext__() == []
            await updates.aclose()
            await supervisor.start()

    try:
        run(main())
    finally:
        GatewayClient.clear_instance()


def test_an_answer_of_no_gateway_is_logged_once(monkeypatch, caplog):
    monkeypatch.setattr(watch, "LOOK_AGAIN", 0.01)
    monkeypatch.setattr(watch, "_FIRST_PAUSE", 0.01)

    async def main():
        async with Supervisor() as supervisor:
            GatewayClient.clear_instance()
            GatewayClient.instance().url = supervisor.url
            supervisor.events = [b"event: kernels\ndata: {}\n\n"]
            updates = watch.Watch(logging.getLogger("test")).pages(lambda _: True)
            while supervisor.served < 4:
                await updates.__anext__()
            await updates.aclose()

    try:
        run(main())
    finally:
        GatewayClient.clear_instance()
    assert [record.exc_info[0] for record in caplog.records] == [KeyError]


def test_gateway_without_a_stream(server):
    """It is asked for its list."""

    async def main():
        async with gateway(server) as (supervisor, browser):
            supervisor.more_kernels = [{**model(OTHER), "owner": "bob"}]
            async with page(server, browser) as p:
                while not p.kernels:
                    await p.update()
                assert sorted(p.kernels) == [KERNEL, OTHER]

    run(main())


def test_a_stream_is_tried_again_while_the_list_is_asked_for(monkeypatch):
    """The gateway may be replaced by a newer one between two requests for its list. The times between attempts grow."""
    monkeypatch.setattr(watch, "LOOK_AGAIN", 0.01)
    monkeypatch.setattr(watch, "POLL", 0.01)
    monkeypatch.setattr(watch, "_FIRST_PAUSE", 0.001)
    monkeypatch.setattr(watch, "_FIRST_AGAIN", 0.02)
    monkeypatch.setattr(watch, "_LONGEST_AGAIN", 0.04)
    times = []

    class Recorded(watch.Watch):
        async def _poll(self, seconds):
            times.append(seconds)
            await super()._poll(seconds)

    async def main():
        async with Supervisor() as supervisor:
            GatewayClient.clear_instance()
            GatewayClient.instance().url = supervisor.url
            updates = Recorded(logging.getLogger("test")).pages(lambda _: True)
            while supervisor.no_streams < 4:
                await updates.__anext__()
            assert times[:3] == [0.02, 0.04, 0.04]
            supervisor.tell(model(execution_state="busy"))
            seen = []
            while "busy" not in seen:
                for name, data in await updates.__anext__():
                    assert name != "unavailable"  # the list stays up to date
                    seen += [k["execution_state"] for k in data["kernels"]] if name == "kernels" else []
            assert supervisor.streams == 1
            lists = len(times)
            supervisor.events = None
            supervisor.cut_streams()
            while len(times) < lists + 2:
                await updates.__anext__()
            assert times[lists : lists + 2] == [0.02, 0.04]  # after a stream that broke off
            await updates.aclose()

    try:
        run(main())
    finally:
        GatewayClient.clear_instance()


@pytest.mark.parametrize("answer", [b"event: kernels\ndata: {}\n\n", b"event: kernels\ndata: no json\n\n", b"data\n" * 9])
def test_answers_of_no_gateway(answer, monkeypatch):
    """A stream that makes no sense ends neither the watch nor the page: it is read again."""
    monkeypatch.setattr(watch, "LOOK_AGAIN", 0.01)

    async def main():
        async with Supervisor() as supervisor:
            GatewayClient.clear_instance()
            GatewayClient.instance().url = supervisor.url
            supervisor.events = [answer]
            updates = watch.Watch(logging.getLogger("test")).pages(lambda _: True)
            await until_stream(supervisor, updates)
            supervisor.cut_streams()
            supervisor.events = None
            supervisor.tell(model())
            async for events in updates:
                if any(name == "kernels" for name, _ in events):
                    break
            await updates.aclose()

    async def until_stream(supervisor, updates):
        async for _ in updates:
            if supervisor.served:
                return

    try:
        run(main())
    finally:
        GatewayClient.clear_instance()


CHANGES = [
    ("PATCH", "", {"keep_until": None}, 200),
    ("PATCH", "", {"keep_gpu_until": "2026-01-02T03:04:05Z"}, 200),
    ("PATCH", "", {"shared_with": [{"user": "bob", "right": "read"}]}, 200),
    ("POST", "/interrupt", None, 200),
    ("POST", "/restart", None, 200),
    ("DELETE", "", None, 204),
]


@pytest.mark.parametrize(("method", "action", "body", "status"), CHANGES)
def test_changes_are_forwarded(server, method, action, body, status):
    """With this server's credential, and only for a kernel that is this server's or that has an owner."""

    async def main():
        async with gateway(server) as (supervisor, browser):

            async def send(kernel_id):
                url = f"{server.url}/jupyter-ekg/kernels/{kernel_id}{action}"
                async with browser.request(method, url, json=body) as response:
                    return response.status, (await response.json() if response.status != 204 else None)

            assert (await send(KERNEL))[0] == status
            supervisor.changes.clear()
            assert (await send(OTHER))[0] == 404
            assert supervisor.changes == []
            supervisor.ownership = {"owner": "ann"}
            assert (await send(OTHER))[0] == status
            if method != "DELETE":
                want = (method, f"/api/kernels/{OTHER}{action}", f"token {GATEWAY_TOKEN}")
                assert supervisor.changes[0][:3] == want
                assert json.loads(supervisor.changes[0][3] or "null") == body
                supervisor.change_error = (403, "You may only look at this kernel.")
                assert await send(OTHER) == (403, {"message": "You may only look at this kernel.", "reason": None})

    run(main())


def test_a_kernel_is_woken_ahead_of_a_cell(server):
    """The page learns whether that means something for the kernel."""

    async def main():
        async with gateway(server) as (supervisor, browser):

            async def wake(kernel_id):
                async with browser.post(f"{server.url}/jupyter-ekg/kernels/{kernel_id}/wake") as response:
                    return response.status

            assert await wake(KERNEL) == 204
            supervisor.parks = True
            assert await wake(KERNEL) == 202
            want = ("POST", f"/api/kernels/{KERNEL}/wake", f"token {GATEWAY_TOKEN}", None)
            assert supervisor.changes == [want, want]
            assert await wake(OTHER) == 404
            supervisor.change_error = (403, "You may only look at this kernel.")
            assert await wake(KERNEL) == 403
            assert len(supervisor.changes) == 3

    run(main())


@pytest.mark.parametrize(
    "body",
    ["", "no json", "[]", "{}", '{"keep_until": null, "execution_state": "dead"}', '{"name": "x"}', "[" * 100_000],
)
def test_bodies_that_are_not_forwarded(server, body):
    """They are answered with 400."""

    async def main():
        async with gateway(server) as (supervisor, browser):
            url = f"{server.url}/jupyter-ekg/kernels/{KERNEL}"
            async with browser.patch(url, data=body) as response:
                assert response.status == 400, await response.text()
            assert supervisor.changes == []

    run(main())


@pytest.mark.parametrize(
    "path",
    [
        f"/kernels/{KERNEL}/channels",
        f"/kernels/{KERNEL}/shutdown",
        f"/kernels/{KERNEL}/../../shutdown",
        f"/kernels/{KERNEL}%2f..%2f..%2fshutdown/restart",
        "/kernels/a-b-c-d-e%0d%0aHost:x/restart",
        "/kernels/..-..-..-..-../restart",
        "/kernels/restart",
        "/shutdown",
    ],
)
def test_other_paths_are_not_forwarded(server, path):
    """Only the routes of the list exist, and only ids are ids."""

    async def main():
        async with gateway(server) as (supervisor, browser):
            from yarl import URL

            async with browser.post(URL(f"{server.url}/jupyter-ekg{path}", encoded=True)) as response:
                assert response.status == 404
            assert supervisor.changes == []

    run(main())


@pytest.mark.parametrize(("method", "action", "body", "status"), [*CHANGES, ("POST", "/wake", None, 204), ("GET", "events", None, 200)])
def test_the_servers_own_login(server, method, action, body, status):
    """A client that is not logged in is refused, and so is one whose cookie comes without the XSRF token."""

    path = action if action == "events" else f"kernels/{KERNEL}{action}"
    refuses_strangers(server, method, path, body)


def refuses_strangers(server, method, path, body):
    """Sends a request to jupyter-ekg's route without a login, and one with the cookie alone if it changes something."""

    async def main():
        async with gateway(server) as (supervisor, _), aiohttp.ClientSession() as stranger:
            url = f"{server.url}/jupyter-ekg/{path}"
            async with stranger.request(method, url, json=body, allow_redirects=False) as response:
                assert response.status in (302, 403), await response.text()
            if method == "GET":
                return
            # A browser's cookie, as a page of another site could make it send.
            async with stranger.get(server.url + "/api/kernels", headers=AUTH) as response:
                assert response.status == 200
            jar = {c.key: c.value for c in stranger.cookie_jar}
            async with stranger.request(method, url, json=body, cookies=jar, allow_redirects=False) as response:
                assert response.status in (302, 403), await response.text()
            assert supervisor.changes == []

    run(main())


def test_a_page_that_reads_nothing_costs_no_memory():
    """Updates are made when a page asks for one: nothing is queued for it."""

    async def main():
        async with Supervisor() as supervisor:
            GatewayClient.clear_instance()
            GatewayClient.instance().url = supervisor.url
            supervisor.tell(model())
            updates = watch.Watch(logging.getLogger("test")).pages(lambda _: True)
            while not any(name == "kernels" for name, _ in await updates.__anext__()):
                pass
            for i in range(1000):
                supervisor.tell(model(connections=i))
            await until(lambda: supervisor.served >= 1001)
            await asyncio.sleep(0)
            seen = []
            while not seen or seen[-1] != 999:
                seen += [e["kernels"][0]["connections"] for name, e in await updates.__anext__() if name == "kernels"]
            assert len(seen) < 500
            await updates.aclose()
            await until(lambda: supervisor.streams == 0)

    try:
        run(main())
    finally:
        GatewayClient.clear_instance()
