"""The notice in the cell, and the choice of the cell."""

from supervisor import KERNEL_SESSION, iopub, request, stream

from jupyter_ekg import framing
from jupyter_ekg.notice import Cells, Notice


def test_the_oldest_unfinished_cell_is_the_running_one():
    """Requests of this session count, from when they are sent until they are idle."""
    cells = Cells("browser")
    assert cells.running == b""
    for msg_id in ("a", "b"):
        assert cells.sent(framing.parse(request(msg_id)))
    assert not cells.sent(framing.parse(request("c", msg_type="complete_request")))
    assert b'"a"' in cells.running
    parent = {"msg_id": "a", "msg_type": "execute_request", "session": "browser"}
    cells.received(framing.parse(stream("text", parent)))
    cells.received(framing.parse(iopub("status", {"execution_state": "idle"}, parent)))
    assert b'"b"' in cells.running
    assert cells.kernel_session == KERNEL_SESSION
    cells.received(framing.parse(iopub("status", {"execution_state": "restarting"})))
    assert cells.running == b""


def test_a_cell_from_before_this_websocket():
    """A later websocket of the same page finds the running cell by its status."""
    cells = Cells("browser")
    busy = {"execution_state": "busy"}
    cells.received(
        framing.parse(iopub("status", busy, {"msg_id": "x", "msg_type": "execute_request", "session": "other"}))
    )
    assert cells.running == b""
    cells.received(
        framing.parse(iopub("status", busy, {"msg_id": "a", "msg_type": "execute_request", "session": "browser"}))
    )
    assert b'"a"' in cells.running


def test_notice_is_one_display_that_ends_empty():
    """All versions have one display id. The last one leaves no trace in a saved notebook."""
    notice = Notice("session", b'{"msg_id": "a"}')
    messages = [framing.to_dict(frame) for frame in (notice.away("no answer"), notice.back(), notice.clear())]
    assert [m["msg_type"] for m in messages] == ["display_data", "update_display_data", "update_display_data"]
    assert len({m["content"]["transient"]["display_id"] for m in messages}) == 1
    assert {m["header"]["session"] for m in messages} == {"session"}
    assert {m["parent_header"]["msg_id"] for m in messages} == {"a"}
    assert "no answer" in messages[0]["content"]["data"]["text/plain"]
    assert messages[2]["content"]["data"] == {}
