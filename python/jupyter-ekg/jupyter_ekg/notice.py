"""What a user sees in a cell while the gateway is away.

A line of output appears in the cell that runs, or in the one that is sent meanwhile. It is a display with an id, so it is
updated when the connection is back, and emptied a little later: no trace of an absence that lost nothing stays in
the notebook.
"""

from __future__ import annotations

import time
import uuid
from collections import OrderedDict

from . import framing

# How long the sentence that the connection is back stays.
CLEAR_AFTER = 10.0

_MOST_CELLS = 1000  # that are remembered as running


class Cells:
    """Follows which cells of one session run, by looking at the messages of both directions; and the kernel's session."""

    def __init__(self, session_id: str):
        self.kernel_session = ""  # as in the last message of the kernel; empty if there was none
        self._session_id = session_id
        self._running: OrderedDict[str, bytes] = OrderedDict()  # msg_id of the request: its header's JSON, oldest first

    @property
    def running(self) -> bytes:
        """The header of the oldest request that has not ended, as JSON; empty if there is none."""
        return next(iter(self._running.values()), b"")

    def sent(self, frame: framing.Frame) -> bytes:
        """Looks at a message of the session. Returns its header if it asks for a cell to be run, else nothing."""
        if frame.channel != "shell" or b"execute_request" not in frame.header:
            return b""
        header = framing.loads_object(frame.header)
        if header.get("msg_type") != "execute_request":
            return b""
        self._add(str(header.get("msg_id", "")), frame.header)
        return frame.header

    def received(self, frame: framing.Frame) -> None:
        """Looks at a message of the kernel."""
        raw = frame.header
        known = self.kernel_session and self.kernel_session.encode() in raw
        if known and b"status" not in raw:
            return
        header = framing.loads_object(raw)
        session = header.get("session")
        if isinstance(session, str) and session:
            self.kernel_session = session
        if header.get("msg_type") != "status" or frame.channel != "iopub":
            return
        state = framing.loads_object(frame.content).get("execution_state")
        if state in ("starting", "restarting", "dead"):
            self._running.clear()
            return
        parent = framing.loads_object(frame.parent_header)
        if parent.get("msg_type") != "execute_request" or parent.get("session") != self._session_id:
            return
        msg_id = str(parent.get("msg_id", ""))
        if state == "idle":
            self._running.pop(msg_id, None)
        elif state == "busy" and msg_id not in self._running:
            self._add(msg_id, frame.parent_header)

    def _add(self, msg_id: str, header: bytes) -> None:
        self._running[msg_id] = header
        if len(self._running) > _MOST_CELLS:
            self._running.popitem(last=False)


class Notice:
    """The sentence in one cell: its three versions as iopub messages."""

    def __init__(self, kernel_session: str, parent_header: bytes):
        self._session = kernel_session
        self._parent = parent_header
        self._display_id = f"ekg-away-{uuid.uuid4()}"
        self._began = time.time()

    def away(self, why: str) -> bytes:
        """Says that the connection is lost."""
        at = time.strftime("%H:%M:%S", time.localtime(self._began))
        return self._message(
            "display_data",
            f"[ekg] {at}: the connection to the gateway is lost ({why}). It is tried again until it is there. What is sent"
            " meanwhile is kept, and what the kernel says is shown then.",
        )

    def back(self) -> bytes:
        """Says that the connection is there again."""
        seconds = time.time() - self._began
        return self._message(
            "update_display_data", f"[ekg] The connection to the gateway is back, after {seconds:.0f} s. It goes on."
        )

    def gone(self, why: str) -> bytes:
        """Says that there is nothing left to connect to."""
        return self._message("update_display_data", f"[ekg] The kernel has ended: {why}")

    def clear(self) -> bytes:
        """Takes the sentence away."""
        return self._message("update_display_data", "")

    def _message(self, msg_type: str, text: str) -> bytes:
        return framing.make(
            msg_type,
            self._session,
            self._parent,
            {
                "data": {"text/plain": text} if text else {},
                "metadata": {},
                "transient": {"display_id": self._display_id},
            },
        )
