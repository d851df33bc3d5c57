"""The outputs of a notebook's cells, computed from the messages in a kernel's log as a front end does.

nbclient reads the messages, also those of Output widgets, as if it had run the notebook.
"""

from __future__ import annotations

import base64
import time
from collections import deque
from datetime import datetime
from typing import Any

import nbformat
from jupyter_client.jsonutil import parse_date
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionComplete
from nbclient.output_widget import OutputWidget

from .samerun import could_have

# The text that replaces messages that the log has dropped.
_LOST = "[ekg] {} messages of output are missing here\n"

LOST_BEGINNING = ", its beginning among them"

_MAX_SEEN = 20_000

_SAME = 1.0  # seconds between the times that two clients note of one run

# The members that an output has from its message. The value takes the place of one that has another type.
_OUTPUTS: dict[str, dict[str, Any]] = {
    "stream": {"name": "stdout", "text": ""},
    "error": {"ename": "", "evalue": "", "traceback": []},
    "display_data": {"data": {}, "metadata": {}},
    "execute_result": {"data": {}, "metadata": {}, "execution_count": None},
}

# What nbclient raises for a message that is not as the protocol says. No front end shows such a message.
_MALFORMED = (AttributeError, IndexError, KeyError, TypeError, ValueError)


class _Widget(OutputWidget):
    """An Output widget, without a kernel to which its outputs are sent."""

    msg_id = ""  # of the request whose outputs it takes
    untold = ""  # msg_id of the request whose outputs it has and the kernel has not: no page was open to tell it
    whole = False  # the log has all that it has taken
    own: list[tuple[Any, ...]] | None = None  # the outputs for differs; None: they have changed

    def output(self, outs: Any, msg: dict[str, Any], display_id: str | None, cell_index: int) -> None:
        """Takes an output in the place of the cell. An update of a display does not reach it, as in nbclient."""
        if self.clear_before_next_output:
            self.outputs = []
            self.clear_before_next_output = False
        _append(self.outputs, msg, None)
        self.own = None
        self.untold = msg["parent_header"]["msg_id"]
        self.executor.widget_state[self.comm_id]["outputs"] = self.outputs

    def clear_output(self, outs: Any, msg: dict[str, Any], cell_index: int) -> None:
        """Clears the outputs, now or before the next one."""
        super().clear_output(outs, msg, cell_index)
        self.own = None

    def differs(self, told: Any) -> bool:
        """Reports whether the kernel has other outputs than the log says: the page that told it was closed."""
        if not (self.whole and self.untold and isinstance(told, list)):
            return False
        if self.own is None:
            self.own = self._compared(self.outputs)
        return self._compared([output for output in told if isinstance(output, dict)]) != self.own

    def _compared(self, outputs: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
        """The parts of outputs that all front ends write alike."""
        plain = self.executor.plain(outputs, final=True)
        return [(o.get("output_type"), o.get("text"), o.get("evalue"), _joined(o.get("data"))) for o in plain]

    def sync_state(self) -> None:
        """Does nothing: the kernel is another page's."""

    def set_state(self, state: dict[str, Any]) -> None:
        """Begins or ends to take outputs. The kernel's code may set the outputs, too."""
        if "outputs" in state:
            outputs = [output for output in state["outputs"] if isinstance(output, dict)]
            self.outputs = self.executor.widget_state[self.comm_id]["outputs"] = outputs
            self.own, self.untold = None, ""
        if "msg_id" in state:
            if self in self.executor.output_hook_stack[self.msg_id]:
                self.executor.output_hook_stack[self.msg_id].remove(self)
            self.msg_id = str(state["msg_id"] or "")
            if self.msg_id:
                self.executor.register_output_hook(self.msg_id, self)


class _Reader(NotebookClient):
    """nbclient's reading of messages, without a kernel."""

    def __init__(self) -> None:
        super().__init__(nbformat.v4.new_notebook(), record_timing=False)
        self.widget_registry = {"@jupyter-widgets/output": {"OutputModel": _Widget}}
        self.clear_before_next_output = False
        self.displays: dict[str, dict[str, Any]] = {}  # the newest content of each display, by display_id

    def _update_display_id(self, display_id: str, msg: dict[str, Any]) -> None:
        self.displays[display_id] = _members(msg["content"], "display_data")

    def on_comm_open_jupyter_widget(self, msg: dict[str, Any]) -> Any:
        """Makes a widget, which may take outputs at once."""
        widget = super().on_comm_open_jupyter_widget(msg)
        if widget is not None:
            widget.whole = True
            widget.set_state(widget.state)
        return widget

    def handle_comm_msg(self, outs: list, msg: dict[str, Any], cell_index: int) -> None:
        """Reads a change of a widget. An Output widget whose beginning the log has dropped is known by its msg_id."""
        comm_id, data = msg["content"]["comm_id"], msg["content"]["data"]
        if comm_id not in self.comm_objects and msg["msg_type"] == "comm_msg" and data.get("state", {}).get("msg_id"):
            self.comm_objects[comm_id] = _Widget(comm_id, {"outputs": []}, None, self)
        widget, state = self.comm_objects.get(comm_id), data.get("state", {})
        # A page has told the kernel, or has asked for the state. Else the kernel's code has set the outputs.
        if (data.get("method") == "echo_update" or "_model_name" in state) and isinstance(widget, _Widget):
            if widget.differs(state.get("outputs")):
                state = {name: value for name, value in state.items() if name != "outputs"}
                msg = {**msg, "content": {"comm_id": comm_id, "data": {**data, "state": state}}}
        super().handle_comm_msg(outs, msg, cell_index)

    def output(self, outs: list, msg: dict[str, Any], display_id: str | None, cell_index: int) -> None:
        """Takes an output, which an Output widget may want. nbclient's own validates each: that takes too long."""
        if msg["msg_type"] not in _OUTPUTS:
            return
        if hooks := self.output_hook_stack.get(msg["parent_header"]["msg_id"]):
            hooks[-1].output(outs, msg, display_id, cell_index)
            return
        if self.clear_before_next_output:
            outs.clear()
            self.clear_before_next_output = False
        _append(outs, msg, display_id)

    def plain(self, outputs: list[dict[str, Any]], final: bool) -> list[dict[str, Any]]:
        """Returns outputs in nbformat's form, with joined text. Final ones are without overwritten text and ids."""
        plain = []
        for output in outputs:
            transient = output.get("transient")  # the kernel's code may have set this, and the text
            display_id = transient.get("display_id") if isinstance(transient, dict) else None
            output = {**output, **(self.displays.get(display_id, {}) if isinstance(display_id, str) else {})}
            if final:
                output.pop("transient", None)
            if isinstance(output.get("text"), list):
                text = "".join(map(str, output["text"]))
                output["text"] = overwritten(text) if final else text
            plain.append(output)
        return plain


def _append(outputs: list[dict[str, Any]], msg: dict[str, Any], display_id: str | None) -> None:
    """Appends an output. Consecutive text of one stream is kept as a list of its pieces."""
    kind = msg["msg_type"]
    output = {"output_type": kind, **_members(msg["content"], kind)}
    if kind == "stream":
        last = outputs[-1] if outputs else {}
        if last.get("output_type") == "stream" and last.get("name") == output["name"]:
            if not isinstance(last.get("text"), list):  # the kernel's code has set it
                last["text"] = [str(last.get("text", ""))]
            last["text"].append(output["text"])
            return
        output["text"] = [output["text"]]
    elif display_id:
        output["transient"] = {"display_id": display_id}
    outputs.append(output)


def _joined(bundle: Any) -> Any:
    """A bundle of media types whose texts are no lists of lines."""
    if not isinstance(bundle, dict):
        return bundle
    return {kind: "".join(map(str, value)) if isinstance(value, list) else value for kind, value in bundle.items()}


def _members(content: dict[str, Any], kind: str) -> dict[str, Any]:
    return {
        name: content.get(name) if default is None or isinstance(content.get(name), type(default)) else default
        for name, default in _OUTPUTS[kind].items()
    }


class Execution:
    """One run of one cell."""

    def __init__(self, reader: _Reader, msg_id: str, session: str, cell: str, number: int):
        self.msg_id = msg_id
        self.session = session  # of the page or program that sent the request
        self.cell = cell
        self.number = number  # of its first message
        self.code: str | None = None  # None if the log has dropped the beginning of the execution
        self.count: int | None = None
        self.counts: list[int] = []  # of the runs of this cell and source in this kernel's session, up to this run
        self.begins: list[float] = []  # when these began, by the kernel's clock, as far as it says that
        self.kernel_session = ""
        self.rewritten = False  # its outputs may have been others at some time: the outputs of a file prove nothing
        self.running = True
        self.followed = False  # it ran when the log was read first
        self.lost = 0  # dropped messages, of this or of simultaneous executions
        self._reader = reader
        self._node = nbformat.NotebookNode(outputs=[])
        self._clear = False  # before the next output
        self._seen: deque[str] = deque(maxlen=_MAX_SEEN)  # msg_ids of its newest messages

    @property
    def beginning_lost(self) -> bool:
        """Whether the log has dropped the beginning of the execution."""
        return self.code is None

    @property
    def outputs(self) -> list[dict[str, Any]]:
        """The outputs in nbformat's form, with joined text and without overwritten text."""
        return self._reader.plain(self._node.outputs, final=True)

    def model(self) -> dict[str, Any]:
        """Returns the execution as JSON, for a page that shows the cell.

        While it runs, overwritten text and display ids are kept, because later messages may refer to them. ``seen``
        holds the msg_ids in the outputs: the page may receive some of these messages again. What an Output widget
        takes is not the cell's. When the run has ended, outputs that no page has told the kernel are shown with the
        cell's: the widget cannot show them. ``widgets`` has all outputs of these widgets, which the page tells the
        kernel. A job tells the kernel behind its cell.
        """
        told = _is_of_job(self.session, self.msg_id)
        widgets = [w for w in self._reader.comm_objects.values() if w.untold == self.msg_id and not told]
        whole = {w.comm_id: self._reader.plain(w.outputs, final=True) for w in widgets if w.whole}
        takers = [w.comm_id for w in self._reader.output_hook_stack.get(self.msg_id, ())]
        untold = [output for widget in widgets for output in widget.outputs]
        outputs = self._node.outputs + ([] if self.running else untold)
        return {
            "msg_id": self.msg_id,
            "session": self.session,
            "code": self.code,
            "count": self.count,
            "counts": self.counts,
            "begins": self.begins,
            "rewritten": self.rewritten,
            "running": self.running,
            "lost": self.lost,
            "beginning_lost": self.beginning_lost,
            "outputs": self._reader.plain(outputs, final=not self.running),
            "clear_next": self._clear,
            "takers": takers if self.running else [],
            "untold": self.running and bool(untold),
            "widgets": {} if self.running else whole,
            "seen": list(self._seen) if self.running else [],
        }

    def saw(self, msg_id: Any) -> None:
        """Records the msg_id of a message."""
        if isinstance(msg_id, str):
            self._seen.append(msg_id)

    def forget(self) -> None:
        """Removes the outputs."""
        self._node.outputs.clear()

    def missing(self, lost: int) -> None:
        """Says in the outputs that messages are lost."""
        self.lost += lost
        self.read({"msg_type": "stream", "content": {"name": "stderr", "text": _LOST.format(lost)}})

    def read(self, msg: dict[str, Any]) -> None:
        """Applies a message on iopub whose parent is the cell's request."""
        msg = {"parent_header": {"msg_id": self.msg_id}, **msg}
        self.rewritten = self.rewritten or self._rewrites(msg["msg_type"], msg["content"])
        self._reader.clear_before_next_output = self._clear
        try:
            self._reader.process_message(msg, self._node, 0)
        except CellExecutionComplete:
            self.running = False
        except _MALFORMED:
            pass
        self._clear = self._reader.clear_before_next_output

    def _rewrites(self, kind: Any, content: dict[str, Any]) -> bool:
        """Reports whether a message replaces outputs, lets later ones replace it, or is a widget's."""
        if kind not in _OUTPUTS:
            return kind == "clear_output"
        text = str(content.get("text", ""))
        taken = bool(self._reader.output_hook_stack.get(self.msg_id))
        return taken or bool(content.get("transient")) or "\r" in text or "\b" in text

    def reason_to_keep(
        self, source: str, count: int | None, saved: list[dict[str, Any]], began: float | None = None
    ) -> str:
        """Returns why a cell of a notebook keeps its own outputs, or "" if this execution can replace them.

        It can if it is the cell's run, or a later one in the kernel's same session, and the log has it without a gap.
        A run that goes on is later than a file's. A cell without a number was saved while it ran, or was cleared. began
        is when the file's run began; None: the file does not say it. Then numbers tell the runs of two sessions apart,
        and so do the saved outputs: this run must have had them.
        """
        if self.code is not None and source != self.code:
            return "its source was changed since it ran"
        if not saved and count is None:
            return ""
        if self.lost or self.beginning_lost:
            return f"{self.lost} of its messages are lost{LOST_BEGINNING * self.beginning_lost}"
        if self.running or self.followed:
            return ""
        if began is not None and self.begins:
            if all(abs(began - begin) > _SAME for begin in self.begins):
                at = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(began))
                return f"the log has no run of it that began at {at} UTC"
        elif count is not None and count not in self.counts:
            return f"the log has no run [{count}] of it, but only [{self.count or ' '}]"
        elif self.counts == [self.count] or count == self.count:
            if not self.rewritten and not could_have(self._node.outputs, saved):
                return f"the log's run [{self.count or ' '}] had other outputs"
        return ""


class Log:
    """The newest execution of each cell, from a log's lines in order."""

    def __init__(self) -> None:
        self.number = 0  # of the last line
        self.lost = 0
        self.cells: dict[str, Execution] = {}
        self._lost_at = 0  # number of the last line that says so
        self._executions: dict[str, Execution] = {}  # by msg_id: the newest of each cell
        self._reader = _Reader()
        self._nowhere = Execution(self._reader, "", "", "", 0)  # of messages that belong to no cell
        self._epoch = 0

    @property
    def widgets(self) -> dict[str, Any]:
        """The states of the widgets by their ids, as a notebook's metadata has them. Each has its text joined."""
        self._reader.set_widgets_metadata()
        metadata = self._reader.nb.metadata.get("widgets", {})
        states = metadata.get("application/vnd.jupyter.widget-state+json", {}).get("state", {})
        for comm_id, widget in self._reader.comm_objects.items():
            if comm_id in states:
                outputs = self._reader.plain(widget.outputs, final=True)
                states[comm_id]["state"] = {**states[comm_id]["state"], "outputs": outputs}
        return states

    def is_whole(self, execution: Execution) -> bool:
        """Reports whether the log has all messages since an execution began, also those of other executions."""
        return not execution.beginning_lost and execution.number > self._lost_at

    def feed(self, line: dict[str, Any]) -> None:
        """Reads one line."""
        number = _integer(line.get("number"))
        if number <= self.number:
            return  # read before
        self.number = number
        lost = _integer(line.get("lost"))
        if lost:
            self.lost += lost
            self._lost_at = number
            for widget in self._reader.comm_objects.values():
                widget.whole = False
            for execution in self._executions.values():
                if execution.running:
                    execution.missing(lost)
            return
        epoch = _integer(line.get("epoch"))
        if epoch > self._epoch:
            self._epoch = epoch
            for execution in self._executions.values():
                execution.running = False  # it ended with the kernel's process
        parent, header = _object(line.get("parent_header")), _object(line.get("header"))
        msg = {
            "msg_type": header.get("msg_type"),
            "parent_header": parent,
            "content": _object(line.get("content")),
            "buffers": [base64.b64decode(buffer) for buffer in line.get("buffers") or ()],
        }
        execution = self._execution(line, msg, header)
        if execution is not None:
            execution.saw(header.get("msg_id"))
            if msg["msg_type"] in ("execute_input", "execute_reply"):  # a result may name another cell's number
                execution.count = _integer(msg["content"].get("execution_count")) or execution.count
        if line.get("channel") == "iopub":
            (execution or self._nowhere).read(msg)
            self._nowhere.forget()

    def _execution(self, line: dict[str, Any], msg: dict[str, Any], header: dict[str, Any]) -> Execution | None:
        """Returns the execution that a message belongs to. A message may begin it."""
        cell, parent, kind = line.get("cell"), msg["parent_header"], msg["msg_type"]
        msg_id = parent.get("msg_id")
        if not isinstance(msg_id, str):
            return None
        # A request that was aborted has no input and no output: an earlier request failed. The gateway's own messages
        # start no execution: they may belong to requests that never ran.
        begins = kind in ("execute_input", "clear_output", *_OUTPUTS) and header.get("username") != "ekg"
        if msg_id in self._executions or not begins or not isinstance(cell, str):
            return self._executions.get(msg_id)
        execution = Execution(self._reader, msg_id, str(parent.get("session", "")), cell, self.number)
        before = self.cells.get(cell)
        if kind == "execute_input":
            execution.code, execution.kernel_session = str(msg["content"].get("code", "")), str(header.get("session"))
            if before and (before.code, before.kernel_session) == (execution.code, execution.kernel_session):
                execution.counts, execution.begins = before.counts, before.begins
            execution.counts.append(_integer(msg["content"].get("execution_count")))
            if (began := moment(header.get("date"))) is not None:
                execution.begins.append(began)
        elif self.lost:
            execution.missing(self.lost)
        if before is not None:
            self._executions.pop(before.msg_id, None)
        self.cells[cell] = self._executions[msg_id] = execution
        return execution


def _is_of_job(session: str, msg_id: str) -> bool:
    """Reports whether a request is a job's. Its msg_id is that of the job's session, and the cell's index."""
    number = msg_id.removeprefix(f"{session}-")
    return number != msg_id and number.isdecimal()


def moment(text: Any) -> float | None:
    """Returns a time of a message's header, or of a cell's metadata. It is None for anything else."""
    try:
        date = parse_date(text) if isinstance(text, str) else None
        return date.timestamp() if isinstance(date, datetime) else None
    except (OverflowError, ValueError):
        return None


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
