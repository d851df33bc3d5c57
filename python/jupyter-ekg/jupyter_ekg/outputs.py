"""The outputs of a notebook's cells, computed from the messages in a kernel's log as a front end does."""

from __future__ import annotations

from collections import deque
from typing import Any

# The text that replaces messages that the log has dropped.
_LOST = "[ekg] {} messages of output are missing here\n"

_MAX_SEEN = 20_000

_OUTPUTS = ("stream", "display_data", "execute_result", "error")


class Execution:
    """One run of one cell."""

    def __init__(self, msg_id: str, session: str, cell: str, epoch: int, number: int):
        self.msg_id = msg_id
        self.session = session  # of the page or program that sent the request
        self.cell = cell
        self.epoch = epoch
        self.number = number  # of its first message
        self.code: str | None = None  # None if the log has dropped the beginning of the execution
        self.count: int | None = None
        self.running = True
        self.lost = 0  # dropped messages, of this or of simultaneous executions
        self._outputs: list[dict[str, Any]] = []
        self._clear = False  # before the next output
        self._seen: deque[str] = deque(maxlen=_MAX_SEEN)  # msg_ids of its newest messages

    @property
    def beginning_lost(self) -> bool:
        """Whether the log has dropped the beginning of the execution."""
        return self.code is None

    @property
    def outputs(self) -> list[dict[str, Any]]:
        """The outputs in nbformat's form, with joined text and without overwritten text."""
        outputs = self._plain()
        for output in outputs:
            output.pop("transient", None)
            if output["output_type"] == "stream":
                output["text"] = overwritten(output["text"])
        return outputs

    def model(self) -> dict[str, Any]:
        """Returns the execution as JSON, for a page that shows the cell.

        While it runs, overwritten text and display ids are kept, because later messages may refer to them. ``seen``
        holds the msg_ids in the outputs: the page may receive some of these messages again.
        """
        return {
            "msg_id": self.msg_id,
            "session": self.session,
            "code": self.code,
            "count": self.count,
            "running": self.running,
            "lost": self.lost,
            "beginning_lost": self.beginning_lost,
            "outputs": self._plain() if self.running else self.outputs,
            "clear_next": self._clear,
            "seen": list(self._seen) if self.running else [],
        }

    def saw(self, msg_id: Any) -> None:
        """Records the msg_id of a message."""
        if isinstance(msg_id, str):
            self._seen.append(msg_id)

    def _plain(self) -> list[dict[str, Any]]:
        return [
            {**output, "text": "".join(output["text"])} if output["output_type"] == "stream" else dict(output)
            for output in self._outputs
        ]

    def add(self, output: dict[str, Any]) -> None:
        """Appends an output. Consecutive text of one stream is joined."""
        if self._clear:
            self.clear()
        last = self._outputs[-1] if self._outputs else None
        if output["output_type"] == "stream":
            if last is not None and last["output_type"] == "stream" and last["name"] == output["name"]:
                last["text"].append(output["text"])
                return
            output = {**output, "text": [output["text"]]}
        self._outputs.append(output)

    def clear(self, wait: bool = False) -> None:
        """Removes the outputs, now or before the next one."""
        self._clear = wait
        if not wait:
            self._outputs.clear()


class Log:
    """The newest execution of each cell, from a log's lines in order."""

    def __init__(self) -> None:
        self.number = 0  # of the last line
        self.lost = 0
        self.cells: dict[str, Execution] = {}
        self._executions: dict[str, Execution] = {}  # by msg_id: the newest of each cell
        self._displays: dict[str, list[dict[str, Any]]] = {}  # by display_id
        self._epoch = 0

    def feed(self, line: dict[str, Any]) -> None:
        """Reads one line."""
        number = _integer(line.get("number"))
        if number <= self.number:
            return  # read before
        self.number = number
        lost = _integer(line.get("lost"))
        if lost:
            self.lost += lost
            for execution in self._executions.values():
                if execution.running:
                    self._missing(execution, lost)
            return
        epoch = _integer(line.get("epoch"))
        if epoch > self._epoch:
            self._epoch = epoch
            for execution in self._executions.values():
                execution.running = False  # it ended with the kernel's process
        parent = _object(line.get("parent_header"))
        header, content = _object(line.get("header")), _object(line.get("content"))
        cell, msg_id = line.get("cell"), parent.get("msg_id")
        msg_type = header.get("msg_type")
        if msg_type == "update_display_data":
            self._update(content)
            if isinstance(msg_id, str) and msg_id in self._executions:
                self._executions[msg_id].saw(header.get("msg_id"))
            return
        if not isinstance(cell, str) or not isinstance(msg_id, str):
            return
        # The gateway's own messages start no execution: they may belong to requests that never ran.
        own = header.get("username") == "ekg"
        execution = self._executions.get(msg_id) or (None if own else self._begin(cell, parent, msg_type, epoch))
        if execution is not None:
            execution.saw(header.get("msg_id"))
            self._apply(execution, msg_type, content)

    def _begin(self, cell: str, parent: dict[str, Any], msg_type: Any, epoch: int) -> Execution | None:
        # A request that was aborted has no input and no output: an earlier request failed.
        if msg_type != "execute_input" and not (msg_type in _OUTPUTS or msg_type == "clear_output"):
            return None
        msg_id = parent["msg_id"]
        execution = Execution(msg_id, str(parent.get("session", "")), cell, epoch, self.number)
        before = self.cells.get(cell)
        if before is not None:
            self._executions.pop(before.msg_id, None)
        self.cells[cell] = execution
        self._executions[msg_id] = execution
        if msg_type != "execute_input" and self.lost:
            self._missing(execution, self.lost)
        return execution

    @staticmethod
    def _missing(execution: Execution, lost: int) -> None:
        execution.lost += lost
        execution.add({"output_type": "stream", "name": "stderr", "text": _LOST.format(lost)})

    def _apply(self, execution: Execution, msg_type: Any, content: dict[str, Any]) -> None:
        if msg_type == "execute_input":
            execution.code = str(content.get("code", ""))
            execution.count = content.get("execution_count")
        elif msg_type == "stream":
            execution.add(
                {"output_type": "stream", "name": content.get("name", "stdout"), "text": str(content.get("text", ""))}
            )
        elif msg_type == "error":
            execution.add(
                {
                    "output_type": "error",
                    "ename": str(content.get("ename", "")),
                    "evalue": str(content.get("evalue", "")),
                    "traceback": list(content.get("traceback") or []),
                }
            )
        elif msg_type in ("display_data", "execute_result"):
            self._display(execution, msg_type, content)
        elif msg_type == "clear_output":
            execution.clear(bool(content.get("wait")))
        elif msg_type == "execute_reply":
            if execution.count is None:
                execution.count = content.get("execution_count")
        elif msg_type == "status" and content.get("execution_state") == "idle":
            execution.running = False

    def _display(self, execution: Execution, msg_type: str, content: dict[str, Any]) -> None:
        output = {
            "output_type": msg_type,
            "data": _object(content.get("data")),
            "metadata": _object(content.get("metadata")),
        }
        if msg_type == "execute_result":
            output["execution_count"] = content.get("execution_count")
        display_id = _object(content.get("transient")).get("display_id")
        if isinstance(display_id, str):
            output["transient"] = {"display_id": display_id}
        execution.add(output)
        if isinstance(display_id, str):
            self._displays.setdefault(display_id, []).append(output)

    def _update(self, content: dict[str, Any]) -> None:
        display_id = _object(content.get("transient")).get("display_id")
        for output in self._displays.get(display_id, []) if isinstance(display_id, str) else []:
            output["data"] = _object(content.get("data"))
            output["metadata"] = _object(content.get("metadata"))


def overwritten(text: str) -> str:
    """Returns text as a terminal shows it: carriage returns and backspaces overwrite earlier text of their line."""
    if "\r" not in text and "\b" not in text:
        return text
    return "\n".join(_overwritten_line(line) for line in text.replace("\r\n", "\n").split("\n"))


def _overwritten_line(line: str) -> str:
    result = ""
    for piece in line.split("\r"):
        written: list[str] = []
        for i, part in enumerate(piece.split("\b")):
            if i and written:
                written.pop()
            written.extend(part)
        result = "".join(written) + result[len(written) :]
    return result


def _object(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _integer(value: Any) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) else 0
