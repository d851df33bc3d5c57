"""``jupyter ekg restore``: what a log says ends up in the file, and only that."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import stat
from pathlib import Path

import pytest
from conftest import LIMIT
from jupyter_server.gateway.gateway_client import GatewayClient
from supervisor import KERNEL, Supervisor

from jupyter_ekg import cli, gateway, outputs
from jupyter_ekg.notebook import Notebook, NotebookError
from jupyter_ekg.outputs import Log
from jupyter_ekg.samerun import could_have
from jupyter_ekg.restore import GatewaySource, RestoreError, apply, restore


RUNNING = "it is still running (--follow waits for its end)"


class Lines:
    """Makes lines of a log."""

    def __init__(self):
        self.number = 0
        self.all: list[dict] = []

    def __call__(self, msg_id, msg_type, content, cell="c1", channel="iopub", epoch=1, username="kernel"):
        self.number += 1
        self.all.append(
            {
                "number": self.number,
                "time": f"2026-01-02T03:04:05.{self.number:06}Z",
                "epoch": epoch,
                "channel": channel,
                "cell": cell,
                "header": {"msg_type": msg_type, "msg_id": f"k{self.number}", "username": username},
                "parent_header": {"msg_id": msg_id, "msg_type": "execute_request"},
                "metadata": {},
                "content": content,
            }
        )

    def begin(self, msg_id, code="code", count=1, cell="c1", session="the kernel's", date=None):
        self(msg_id, "status", {"execution_state": "busy"}, cell)
        self(msg_id, "execute_input", {"code": code, "execution_count": count}, cell)
        self.all[-1]["header"]["session"] = session
        if date is not None:
            self.all[-1]["header"]["date"] = date

    def print(self, msg_id, text, name="stdout", cell="c1"):
        self(msg_id, "stream", {"name": name, "text": text}, cell)

    def end(self, msg_id, cell="c1"):
        self(msg_id, "execute_reply", {"status": "ok"}, cell, channel="shell")
        self(msg_id, "status", {"execution_state": "idle"}, cell)

    def lost(self, count):
        self.number += 1
        self.all.append({"number": self.number, "lost": count})

    def read(self) -> Log:
        log = Log()
        for line in self.all:
            log.feed(line)
        return log

    @property
    def bytes(self) -> list[bytes]:
        return [json.dumps(line).encode() for line in self.all]


def display(text, display_id=None):
    return {"data": {"text/plain": text}, "metadata": {}, "transient": {"display_id": display_id} if display_id else {}}


def test_outputs_as_a_front_end_shows_them():
    """Streams are joined, displays updated wherever they are, results and errors kept."""
    say = Lines()
    say.begin("a", count=3)
    say.print("a", "one\n")
    say.print("a", "two\n")
    say.print("a", "err\n", "stderr")
    say("a", "display_data", display("old", "d"))
    say("a", "execute_result", {**display("42"), "execution_count": 3})
    say.end("a")
    say.begin("b", cell="c2")
    say("b", "update_display_data", display("new", "d"), "c2")
    say("b", "error", {"ename": "E", "evalue": "v", "traceback": ["t"], "more": 1}, "c2")
    log = say.read()
    one, two = log.cells["c1"], log.cells["c2"]
    assert one.outputs == [
        {"output_type": "stream", "name": "stdout", "text": "one\ntwo\n"},
        {"output_type": "stream", "name": "stderr", "text": "err\n"},
        {"output_type": "display_data", "data": {"text/plain": "new"}, "metadata": {}},
        {"output_type": "execute_result", "data": {"text/plain": "42"}, "metadata": {}, "execution_count": 3},
    ]
    assert (one.count, one.running) == (3, False)
    assert two.outputs == [{"output_type": "error", "ename": "E", "evalue": "v", "traceback": ["t"]}]
    assert two.running


def test_the_newest_execution_counts():
    """Also if it has no output yet; one that was aborted or only remarked upon does not."""
    say = Lines()
    say.begin("a", count=1)
    say.print("a", "old")
    say.end("a")
    say.begin("b", count=2)
    say("c", "status", {"execution_state": "busy"})
    say("c", "execute_reply", {"status": "aborted"}, channel="shell")
    say("c", "stream", {"name": "stderr", "text": "[ekg] a remark"}, username="ekg")
    execution = say.read().cells["c1"]
    assert (execution.msg_id, execution.count, execution.outputs) == ("b", 2, [])


def test_clear_output():
    """At once, or when the next output comes; what is never followed stays."""
    say = Lines()
    say.begin("a")
    say.print("a", "1")
    say("a", "clear_output", {"wait": True})
    say.print("a", "2")
    say("a", "clear_output", {"wait": True})
    assert say.read().cells["c1"].outputs[0]["text"] == "2"
    say("a", "clear_output", {"wait": False})
    assert say.read().cells["c1"].outputs == []


@pytest.mark.parametrize(
    ("text", "want"),
    [
        ("10%\r20%\r100%\n", "100%\n"),
        ("long line\rshort\n", "shortline\n"),
        ("a\r\nb", "a\nb"),
        ("abc\b\bX\n", "aX\n"),
        ("\b\bX", "X"),
        ("plain\n", "plain\n"),
    ],
)
def test_overwritten_text(text, want):
    """Progress bars leave their last state."""
    assert outputs.overwritten(text) == want


def test_a_restarted_kernel_runs_nothing():
    """What ran when the kernel's process ended runs no more."""
    say = Lines()
    say.begin("a")
    say("", "status", {"execution_state": "starting"}, cell=None, epoch=2)
    assert not say.read().cells["c1"].running


def test_model_for_a_page():
    """While a cell runs, what is needed to go on is there: display ids, text as it came, which messages are in it."""
    say = Lines()
    say.begin("a")
    say.print("a", "10%\r")
    say("a", "display_data", display("x", "d"))
    say("a", "update_display_data", display("y", "d"))
    say("a", "clear_output", {"wait": True})
    model = say.read().cells["c1"].model()
    assert model["outputs"][0]["text"] == "10%\r"
    assert model["outputs"][1]["data"] == {"text/plain": "y"}
    assert model["outputs"][1]["transient"] == {"display_id": "d"}
    assert model["clear_next"]
    assert model["seen"] == ["k2", "k3", "k4", "k5", "k6"]
    say.end("a")
    model = say.read().cells["c1"].model()
    assert (model["running"], model["seen"]) == (False, [])
    assert "transient" not in model["outputs"][1]
    json.dumps(model)


@pytest.fixture()
def notebook(tmp_path):
    """A notebook as JupyterLab saves it, whose first cell ran half before the page was closed."""
    path = tmp_path / "täst.ipynb"
    cells = [
        {"cell_type": "markdown", "id": "m", "metadata": {}, "source": ["# ü"]},
        {
            "cell_type": "code", "execution_count": 1, "id": "c1", "metadata": {"tags": ["x"]},
            "outputs": [{"name": "stdout", "output_type": "stream", "text": ["0\n", "1\n"]}], "source": ["code"],
        },
        {"cell_type": "code", "execution_count": None, "id": "c2", "metadata": {}, "outputs": [], "source": ["two"]},
    ]  # fmt: skip
    content = {"cells": cells, "metadata": {"z": 1, "a": 2}, "nbformat": 4, "nbformat_minor": 5}
    path.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    os.chmod(path, 0o640)
    return path


def restored(path, say):
    """Returns the sentences about the cells."""
    book = Notebook(str(path))
    said = apply(book, say.read())
    assert book.save()
    return said


def test_only_outputs_and_counts_change(notebook):
    """Layout, order, mode and everything else of the file stay; a second time changes nothing."""
    say = Lines()
    say.begin("a0", count=1)
    say.end("a0")
    say.begin("a", count=7)
    say.print("a", "0\n1\n2\nü\n")
    say("a", "display_data", {"data": {"image/png": "AAA\nBBB", "application/json": {"a": "x\ny"}}, "metadata": {}})
    want = notebook.read_text(encoding="utf-8")
    want = want.replace('"execution_count": 1,', '"execution_count": 7,')
    before = json.loads(want)
    assert restored(notebook, say) == ["cell 2 [7]: 2 outputs restored, " + RUNNING]
    after = json.loads(notebook.read_text(encoding="utf-8"))
    assert after["cells"][1].pop("outputs") == [
        {"output_type": "stream", "name": "stdout", "text": ["0\n", "1\n", "2\n", "ü\n"]},
        {
            "output_type": "display_data",
            "data": {"image/png": "AAA\nBBB", "application/json": {"a": "x\ny"}},
            "metadata": {},
        },
    ]
    before["cells"][1].pop("outputs")
    assert after == before
    assert list(after["metadata"]) == ["z", "a"]
    text = notebook.read_text(encoding="utf-8")
    assert text.startswith('{\n "cells"')
    assert text.endswith("}\n")
    assert "ü" in text
    assert stat.S_IMODE(notebook.stat().st_mode) == 0o640
    assert restored(notebook, say) == ["cell 2 [7]: has all its output already, " + RUNNING]
    assert notebook.read_text(encoding="utf-8") == text
    assert [p.name for p in notebook.parent.iterdir()] == [notebook.name]


@pytest.mark.parametrize(
    ("lines", "why"),
    [
        (lambda say: say.lost(5), "5 of its messages are lost, its beginning among them"),
        (lambda say: (say.begin("a"), say.print("a", "0\n"), say.lost(50)), "50 of its messages are lost"),
        (lambda say: say.begin("a", code="other"), "its source was changed since it ran"),
        (lambda say: say.begin("a", count=4), "the log has no run [1] of it, but only [4]"),
        (
            lambda say: (say.begin("x", code="other"), say.end("x"), say.begin("a", count=4)),
            "the log has no run [1] of it, but only [4]",
        ),
        (
            lambda say: (say.begin("x", session="the kernel before"), say.end("x"), say.begin("a", count=4)),
            "the log has no run [1] of it, but only [4]",
        ),
    ],
)
def test_the_file_is_kept_where_the_log_may_be_worse(notebook, lines, why):
    """It is another run, or the log has not all of it. The report has the cell and the reason."""
    say = Lines()
    lines(say)
    say.print("a", "1\n2\n")
    say.end("a")
    before = notebook.read_bytes()
    [said] = restored(notebook, say)
    assert said.endswith(f"]: is kept as it is in the file: {why}") and said.startswith("cell 2 [")
    assert notebook.read_bytes() == before


@pytest.mark.parametrize(
    ("noted", "why"),
    [
        ("2026-01-02T03:04:05.000001Z", ""),  # the newest run
        ("2026-01-02T04:00:00.4+01:00", ""),  # an earlier run in the same session, by another client's notes
        ("2026-01-02T02:00:00Z", "the log has no run of it that began at 2026-01-02 02:00:00 UTC"),
        ("2026-01-03T00:00:00Z", "the log has no run of it that began at 2026-01-03 00:00:00 UTC"),
        ("no date", ""),  # the numbers decide
        (5, ""),
    ],
)
def test_runs_of_two_sessions_with_one_number(notebook, noted, why):
    """If the file says when its run began, only that run counts, or a later one in the same session."""
    content = json.loads(notebook.read_text())
    content["cells"][1]["metadata"]["execution"] = {"iopub.execute_input": noted}
    notebook.write_text(json.dumps(content))
    say = Lines()
    say.begin("w", session="the kernel before", date="2026-01-02T02:00:00Z")
    say.end("w")
    say.begin("a0", date="2026-01-02T03:00:00.000000Z")
    say.end("a0")
    say.begin("a", count=1, date="2026-01-02T03:04:05.000001Z")
    say.print("a", "0\n1\nthe whole run\n")
    say.end("a")
    [said] = restored(notebook, say)
    assert said == f"cell 2 [1]: " + (f"is kept as it is in the file: {why}" if why else "1 output restored")


@pytest.mark.parametrize(("name", "run", "saved", "could"), json.loads((Path(__file__).parents[1] / "src/__tests__/samerun.json").read_text()))
def test_outputs_that_a_run_could_have_had(name, run, saved, could):
    """The page has the same rule, and the same cases."""

    def output(kind, value):
        if kind == "data":
            return {"output_type": "display_data", "data": value, "metadata": {}}
        if kind == "error":
            return {"output_type": "error", "ename": "E", "evalue": value, "traceback": []}
        return {"output_type": "stream", "name": kind, "text": value}

    assert could_have([output(*o) for o in run], [output(*o) for o in saved]) is could, name


@pytest.mark.parametrize("count", [1, None])
@pytest.mark.parametrize(
    ("lines", "kept"),
    [
        (lambda say: say.print("a", "3\n"), True),
        (lambda say: say.print("a", "1\n2\n"), False),
        (lambda say: (say.print("a", "1\n2\n"), say("a", "clear_output", {}), say.print("a", "3\n")), False),
        (lambda say: say.print("a", "1\n2\r3\n"), False),
    ],
)
def test_a_run_of_another_session_with_the_same_number(notebook, count, lines, kept):
    """The file's outputs are not those of the log's run. Where that run replaced outputs, the numbers decide."""
    content = json.loads(notebook.read_text())
    content["cells"][1]["outputs"] = [{"output_type": "stream", "name": "stdout", "text": ["1\n"]}]
    content["cells"][1]["execution_count"] = count
    notebook.write_text(json.dumps(content))
    say = Lines()
    say.begin("a", count=1)
    lines(say)
    say.end("a")
    [said] = restored(notebook, say)
    assert (": is kept as it is in the file: the log's run [1] had other outputs" in said) is kept


def test_a_cell_without_a_number_was_running_when_it_was_saved(notebook):
    """The whole run replaces the saved part. A cell without output and number gets what the log still has."""
    content = json.loads(notebook.read_text())
    content["cells"][1]["execution_count"] = None
    notebook.write_text(json.dumps(content))
    say = Lines()
    say.lost(3)
    say.print("b", "the end\n", cell="c2")
    say.begin("a", count=9)
    say.print("a", "0\n1\n2\n")
    say.end("a")
    assert restored(notebook, say) == [
        "cell 2 [9]: 1 output restored",
        f"cell 3 [ ]: 2 outputs restored, {RUNNING}, 3 of its messages are lost, its beginning among them",
    ]
    texts = [["".join(o["text"]) for o in cell.get("outputs", [])] for cell in Notebook(str(notebook))._json["cells"]]
    assert texts == [[], ["0\n1\n2\n"], ["[ekg] 3 messages of output are missing here\n", "the end\n"]]


def test_notebooks_without_ids_are_matched_by_source(notebook):
    """Before format 4.5 cells have no ids; a source that two cells have matches neither."""
    content = json.loads(notebook.read_text())
    for cell in content["cells"]:
        del cell["id"]
    content["nbformat_minor"] = 4
    notebook.write_text(json.dumps(content))
    say = Lines()
    say.begin("a", code="two", cell="x")
    say.print("a", "out", cell="x")
    assert restored(notebook, say) == ["cell 3 [1]: 1 output restored, " + RUNNING]
    content["cells"].append(content["cells"][2])
    notebook.write_text(json.dumps(content))
    assert restored(notebook, say) == []


def test_what_is_no_notebook(tmp_path):
    """Each with its sentence."""
    with pytest.raises(NotebookError, match="there is no notebook"):
        Notebook(str(tmp_path / "none.ipynb"))
    for text in ("", "[]", '{"worksheets": []}', "\udcff"):
        bad = tmp_path / "bad.ipynb"
        bad.write_text(text, errors="surrogateescape")
        with pytest.raises(NotebookError):
            Notebook(str(bad))


def run(main):
    """Runs a coroutine with a gateway's settings, within LIMIT."""

    async def with_gateway():
        async with Supervisor() as supervisor:
            GatewayClient.clear_instance()
            GatewayClient.instance().url = supervisor.url
            await main(supervisor)

    try:
        asyncio.run(asyncio.wait_for(with_gateway(), LIMIT))
    finally:
        GatewayClient.clear_instance()


@pytest.mark.parametrize("by", ["kernel", "session", "log"])
def test_finds_the_kernel(notebook, by):
    """It is named, or the notebook's session has it, or its log knows the notebook's cells."""
    say, said = Lines(), []
    say.begin("a")
    say.print("a", "0\n1\n2\n")
    say.end("a")

    async def main(supervisor):
        supervisor.log_lines = say.bytes
        if by == "session":
            supervisor.sessions = [{"path": f"{notebook.parent.name}/{notebook.name}", "kernel": {"id": KERNEL}}]
        await restore(str(notebook), KERNEL if by == "kernel" else None, [GatewaySource()], False, said.append)

    run(main)
    assert said == ["cell 2 [1]: 1 output restored"]


@pytest.mark.parametrize("by", ["session", "log"])
@pytest.mark.parametrize("ownership", [{"owner": "bob"}, {"owner": "bob", "shared_with": []}, {"shared_with": []}])
def test_kernels_of_other_users_are_skipped(notebook, by, ownership):
    """Their runs end in no file of this user, unless the kernel is named. A line says which were skipped."""
    say, said = Lines(), []
    say.begin("a")
    say.print("a", "0\n1\nof bob\n")
    say.end("a")
    before = notebook.read_bytes()

    async def main(supervisor):
        supervisor.log_lines = say.bytes
        supervisor.ownership = ownership
        if by == "session":
            kernel = {"id": KERNEL, **ownership}
            supervisor.sessions = [{"path": f"{notebook.parent.name}/{notebook.name}", "kernel": kernel}]
        with pytest.raises(RestoreError, match="no kernel has run"):
            await restore(str(notebook), None, [GatewaySource()], False, said.append)
        assert supervisor.log_queries == []
        assert said == [f"kernels of other users at the gateway {supervisor.url} are not searched: {KERNEL}"]
        assert notebook.read_bytes() == before
        await restore(str(notebook), KERNEL, [GatewaySource()], False, said.append)
        assert said[1:] == ["cell 2 [1]: 1 output restored"]

    run(main)


def test_own_kernels_are_searched_beside_those_of_others(notebook):
    """The user's own kernel is found. A server that cannot name the gateway's user knows no own kernels."""
    say, said = Lines(), []
    say.begin("a")
    say.print("a", "0\n1\n2\n")
    say.end("a")
    other = KERNEL.replace("1", "9")

    class Server(GatewaySource):
        user_path = "/jupyter-ekg/me"

    async def main(supervisor):
        supervisor.log_lines = say.bytes
        supervisor.ownership = {"owner": "ann", "shared_with": []}
        supervisor.more_kernels = [{"id": other, "owner": "bob"}]
        await restore(str(notebook), None, [GatewaySource()], False, said.append)
        with pytest.raises(RestoreError, match="no kernel has run"):  # an older jupyter-ekg does not name the user
            await restore(str(notebook), None, [Server()], False, said.append)

    run(main)
    assert said[0].endswith(f"are not searched: {other}")
    assert said[1] == "cell 2 [1]: 1 output restored"
    assert said[2].endswith(f"are not searched: {KERNEL}, {other}")


def test_follow(notebook):
    """It waits for the running cell over a gateway that goes away, and says so."""
    say, said, refused = Lines(), [], []
    say.begin("a")
    say.print("a", "0\n")

    class Source(GatewaySource):
        @contextlib.asynccontextmanager
        async def get(self, path, query):
            try:
                async with super().get(path, query) as response:
                    yield response
            except gateway.Unreachable as err:
                refused.append(err)
                raise

    async def main(supervisor):
        supervisor.log_lines = say.bytes
        following = asyncio.ensure_future(restore(str(notebook), KERNEL, [Source()], True, said.append))
        while not supervisor.open_logs:
            await asyncio.sleep(0.01)
        await supervisor.stop()
        say.print("a", "1\n")
        say.end("a")
        supervisor.log_lines = say.bytes[3:]
        while not refused:
            await asyncio.sleep(0.01)
        assert not following.done()
        await supervisor.start()
        await following

    run(main)
    assert said == ["waiting for 1 running cell to end", "cell 2 [1]: has all its output already"]
    assert Notebook(str(notebook))._json["cells"][1]["outputs"][0]["text"] == ["0\n", "1\n"]


def test_says_what_is_running_and_lost(notebook):
    """One line a cell, and one for the log."""
    say, said = Lines(), []
    say.lost(7)
    say.begin("a", code="other")
    say.print("a", "x")
    say.lost(2)

    async def main(supervisor):
        supervisor.log_lines = say.bytes
        await restore(str(notebook), KERNEL, [GatewaySource()], False, said.append)

    run(main)
    assert said == [
        f"cell 2 [1]: is kept as it is in the file: its source was changed since it ran, {RUNNING}",
        "9 messages are no longer in the kernel's log, and output that was among them is lost",
    ]


def test_reasons(notebook):
    """No gateway, an unreachable gateway or no kernel: each has its own error, and the file stays unchanged."""
    before = notebook.read_bytes()

    async def main(supervisor):
        with pytest.raises(RestoreError, match="no gateway is known"):
            await restore(str(notebook), None, [], False, print)
        with pytest.raises(RestoreError, match=r"no kernel has run .*täst.ipynb at the gateway"):
            await restore(str(notebook), None, [GatewaySource()], False, print)
        supervisor.kernel_status = 404
        with pytest.raises(RestoreError, match="there is no kernel"):
            await restore(str(notebook), KERNEL, [GatewaySource()], False, print)
        await supervisor.stop()
        with pytest.raises(RestoreError, match="Connection refused"):
            await restore(str(notebook), KERNEL, [GatewaySource()], False, print)
        await supervisor.start()

    run(main)
    assert notebook.read_bytes() == before


def test_command_line(notebook, capsys):
    """The exit status is 2 for wrong arguments, and 1 with a sentence for an error."""
    with pytest.raises(SystemExit) as end:
        cli.main(["restore"])
    assert end.value.code == 2
    try:
        assert cli.main(["restore", str(notebook), "--gateway-url", "http://127.0.0.1:1"]) == 1
    finally:
        GatewayClient.clear_instance()
    assert "Connection refused" in capsys.readouterr().err
