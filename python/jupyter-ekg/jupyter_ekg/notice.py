"""The notice that a cell shows while the gateway is away.

The notice is a line of output in the running cell, or in a cell that the user runs meanwhile. It is a display with an
id: it is updated when the connection is back, and emptied some seconds later. An absence without loss therefore leaves
no visible trace in the notebook.
"""

from __future__ import annotations

import time
import uuid
from collections import OrderedDict

from . import framing

# Seconds for which a notice stays after the connection is back.
CLEAR_AFTER = 10.0

_MAX_CELLS = 1000  # bound on the cells that are remembered as running


class Cells:
    """Tracks the running cells of one session and the kernel's session, from the messages of both directions."""

    def __init__(self, session_id: str):
        self.kernel_session = ""  # from the kernel's last message; empty before the first
        self._session_id = session_id
        self._running: OrderedDict[str, bytes] = OrderedDict()  # msg_id of the request: its header's JSON, oldest first

    @property
    def running(self) -> bytes:
        """The header of the oldest running request as JSON; empty if no cell is running."""
        return next(iter(self._running.values()), b"")

    def sent(self, frame: framing.Frame) -> bytes:
        """Tracks a message that the page sent. Returns the header of an execute_request, else empty bytes."""
        if frame.channel != "shell" or b"execute_request" not in frame.header:
            return b""
        header = framing.loads_object(frame.header)
        if header.get("msg_type") != "execute_request":
            return b""
        self._add(str(header.get("msg_id", "")), frame.header)
        return frame.header

    def received(self, frame: framing.Frame) -> None:
        """Tracks a message that the kernel sent."""
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
        if len(self._running) > _MAX_CELLS:
            self._running.popitem(last=False)


class Notice:
    """The notice in one cell, as iopub messages."""

    def __init__(self, kernel_session: str, parent_header: bytes):
        self._session = kernel_session
        self._parent = parent_header
        self._display_id = f"ekg-away-{uuid.uuid4()}"
        self._began = time.time()

    def away(self, why: str) -> bytes:
        """Returns the message that shows the notice."""
        at = time.strftime("%H:%M:%S", time.localtime(self._began))
        return self._message(
            "display_data",
            f"[ekg] {at}: the connection to the gateway is lost ({why}).\n"
            "Retrying. Cells that you run are kept, and the kernel's output will follow.",
        )

    def back(self) -> bytes:
        """Returns the message for a connection that is back."""
        seconds = time.time() - self._began
        return self._message(
            "update_display_data", f"[ekg] The connection to the gateway is back after {seconds:.0f} s."
        )

    def gone(self, why: str) -> bytes:
        """Returns the message for a kernel that has ended."""
        return self._message("update_display_data", f"[ekg] The kernel has ended: {why}")

    def clear(self) -> bytes:
        """Returns the message that empties the notice."""
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
