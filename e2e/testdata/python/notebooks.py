"""Runs notebooks with papermill, and compares them with those that `ekg run` has written.

notebooks.py run DIR      reads DIR/in/*.ipynb, and DIR/parameters/*.yaml, and writes DIR/papermill. PASS or FAIL for each:
                          a page that is opened later shows what nbclient has made of the same messages
notebooks.py compare DIR  compares DIR/papermill with DIR/ekg: PASS or FAIL for each

Times, ids, versions and addresses in memory differ in each run. papermill writes one output for each piece of text;
the comparison joins them, as every front end does. It also upgrades the format, as papermill does.
"""

import base64
import json
import logging
import os
import re
import sys
from pathlib import Path

import nbformat
import papermill
from jupyter_ekg.outputs import Log, overwritten
from nbclient.output_widget import OutputWidget
from papermill.clientwrap import PapermillNotebookClient
from papermill.iorw import read_yaml_file

os.environ["JUPYTER_PLATFORM_DIRS"] = "1"
logging.disable(logging.WARNING)


class Recorder:
    """Keeps the messages that nbclient reads, as lines of a kernel's log, and the cells that it makes of them."""

    def __init__(self):
        self.clear()
        read = PapermillNotebookClient.process_message

        def process_message(client, msg, cell, cell_index):
            line = {name: msg[name] for name in ("header", "parent_header", "content")}
            line = json.loads(json.dumps(line, default=str))
            buffers = [base64.b64encode(buffer).decode() for buffer in msg.get("buffers") or ()]
            self.cells[str(cell_index)] = cell
            more = {"number": len(self.lines) + 1, "channel": "iopub", "cell": str(cell_index), "buffers": buffers}
            self.lines.append({**line, **more})
            return read(client, msg, cell, cell_index)

        PapermillNotebookClient.process_message = process_message
        tell = OutputWidget.sync_state

        def sync_state(widget):
            """Tells the kernel what the widget has. The kernel tells all its clients, in no cell."""
            data = json.loads(json.dumps({"method": "echo_update", "state": {"outputs": widget.outputs}}))
            line = {"number": len(self.lines) + 1, "channel": "iopub", "header": {"msg_type": "comm_msg"}}
            self.lines.append({**line, "parent_header": {}, "content": {"comm_id": widget.comm_id, "data": data}})
            tell(widget)

        OutputWidget.sync_state = sync_state

    def clear(self):
        self.lines, self.cells = [], {}

    def compare(self, name):
        """Says whether the server's route for a page, which reads the log, has the outputs of the cells."""
        log = Log()
        for line in self.lines:
            log.feed(line)
        found = None
        for place, cell in self.cells.items():
            count = cell.get("execution_count")
            run = log.cells[place].model() if place in log.cells else {"outputs": [], "count": None}
            page = {"outputs": run["outputs"], "count": run["count"]}
            live = {"outputs": json.loads(json.dumps(cell.outputs)), "count": count}
            for side in page, live:
                side["outputs"] = joined(side["outputs"])
                for output in side["outputs"]:
                    output.pop("transient", None)
                    if "text" in output:
                        output["text"] = overwritten(output["text"])
            found = found or difference(page, live, f"cell {place}", "the page")
        print(f"FAIL {name}, opened later: {found}".replace("\n", " ") if found else f"PASS {name}, opened later")


def run(folder):
    recorder = Recorder()
    out = folder / "papermill"
    out.mkdir()

    for path in sorted((folder / "in").iterdir()):
        given = folder / "parameters" / (path.name + ".yaml")
        for left in 2, 1, 0:  # another process may take a port of papermill's kernel, which then never answers
            recorder.clear()
            try:
                papermill.execute_notebook(
                    str(path),
                    str(out / path.name),
                    parameters=read_yaml_file(str(given)) if given.exists() else None,
                    cwd=str(folder / "in"),
                    kernel_name="python3",
                    progress_bar=False,
                    autosave_cell_every=0,
                    execution_timeout=60,
                )
            except papermill.PapermillExecutionError:
                pass  # the notebook says so
            except (TimeoutError, RuntimeError):
                if not left:
                    raise
                continue
            recorder.compare(path.name)
            break
    print("PASS papermill ran the notebooks")


TIMES = {"start_time", "end_time", "duration", "version", "input_path", "output_path"}


def plain(text):
    text = re.sub(r"0x[0-9a-f]{6,}", "0x", text)
    text = re.sub(r"ipykernel_\d+/\d+", "ipykernel", text)
    text = re.sub(r"\x1b\[[0-9;]*m", "", text)
    return re.sub(r"[0-9a-f]{32}", "ID", text)


def strings(value):
    if isinstance(value, str):
        return plain(value)
    if isinstance(value, list):
        return [strings(v) for v in value]
    if isinstance(value, dict):
        return {plain(k): strings(v) for k, v in value.items()}
    return value


def without_times(metadata):
    return {k: None if k in TIMES and v is not None else v for k, v in metadata.items()}


def joined(outputs):
    result = []
    for output in outputs:
        last = result[-1] if result else {}
        if output["output_type"] == "stream" and last.get("name") == output["name"]:
            last["text"] += output["text"]
        else:
            result.append(output)
    return result


def comparable(path):
    notebook = nbformat.v4.rwbase.strip_transient(nbformat.v4.upgrade(nbformat.read(path, 4)))
    if notebook.metadata.get("kernelspec") != {"language": "python"}:  # as Output.ipynb of nbclient, which is not valid
        nbformat.validate(notebook)
    notebook = json.loads(json.dumps(notebook))
    notebook["metadata"]["papermill"] = without_times(notebook["metadata"]["papermill"])
    widgets = notebook["metadata"].pop("widgets", None)
    if widgets:
        state = widgets["application/vnd.jupyter.widget-state+json"]["state"]
        for model in state.values():
            if "outputs" in model["state"]:
                model["state"]["outputs"] = joined(model["state"]["outputs"])
        notebook["metadata"]["widgets"] = sorted((strings(m) for m in state.values()), key=json.dumps)
    for cell in notebook["cells"]:
        cell.pop("id", None)
        cell["metadata"]["papermill"] = without_times(cell["metadata"].get("papermill", {}))
        if "execution" in cell["metadata"]:
            cell["metadata"]["execution"] = sorted(cell["metadata"]["execution"])
        if "outputs" in cell:
            cell["outputs"] = joined(cell["outputs"])
    return strings(notebook)


def difference(ours, theirs, where="", us="ekg"):
    if isinstance(ours, dict) and isinstance(theirs, dict):
        for key in sorted(ours.keys() | theirs.keys()):
            if key not in ours or key not in theirs:
                return f"{where}.{key} is only in {us if key in ours else 'papermill'}'s"
            if found := difference(ours[key], theirs[key], f"{where}.{key}", us):
                return found
        return None
    if isinstance(ours, list) and isinstance(theirs, list) and len(ours) == len(theirs):
        for i, pair in enumerate(zip(ours, theirs)):
            if found := difference(*pair, f"{where}[{i}]", us):
                return found
        return None
    return None if ours == theirs or repr(ours) == repr(theirs) else f"{where}: {ours!r} is not {theirs!r}"


def compare(folder):
    for path in sorted((folder / "papermill").iterdir()):
        found = difference(comparable(folder / "ekg" / path.name), comparable(path))
        print(f"FAIL {path.name}: {found}".replace("\n", " ") if found else f"PASS {path.name}")


{"run": run, "compare": compare}[sys.argv[1]](Path(sys.argv[2]))
