"""Records what a kernel sends while nbclient runs the notebooks of the folder widgets, and what nbclient makes of it.

record.py   with the python of hack/env/setup's folder lab, in this folder; it writes widgets/NAME.json

TestRun_OutputWidgets plays the messages. In them PARENT is the msg_id of the cell's request.
"""

import json
from pathlib import Path

import nbformat
from nbclient import NotebookClient


class Recorder(NotebookClient):
    def process_message(self, msg, cell, cell_index):
        record = {"type": msg["msg_type"], "content": msg["content"]}
        text = json.dumps(record).replace(msg["parent_header"]["msg_id"], "PARENT")
        self.cells[cell_index]["messages"].append(json.loads(text))
        self.present = cell_index
        return super().process_message(msg, cell, cell_index)

    def listen(self):
        send = self.kc.shell_channel.send

        def sent(msg):
            if msg["msg_type"] == "comm_msg":
                content = json.loads(json.dumps(msg["content"]))
                self.cells[self.present]["told"][content["comm_id"]] = content["data"]["state"]["outputs"]
            send(msg)

        self.kc.shell_channel.send = sent

    async def async_execute_cell(self, cell, index, **kw):
        if not self.present:
            self.listen()
        self.cells[index]["source"] = cell.source
        return await super().async_execute_cell(cell, index, **kw)


for path in sorted(Path("widgets").glob("*.ipynb")):
    notebook = nbformat.read(path, 4)
    client = Recorder(notebook, kernel_name="python3", timeout=60)
    client.cells = [{"messages": [], "told": {}} for _ in notebook.cells]
    client.present = 0
    client.execute()
    for cell, recorded in zip(notebook.cells, client.cells):
        recorded["outputs"] = cell.outputs
        recorded["count"] = cell.execution_count
    widgets = notebook.metadata.get("widgets", {}).get("application/vnd.jupyter.widget-state+json", {}).get("state", {})
    state = {k: m["state"]["outputs"] for k, m in widgets.items() if m["model_name"] == "OutputModel"}
    record = {"cells": client.cells, "widgets": state}
    path.with_suffix(".json").write_text(json.dumps(record, indent=1, sort_keys=True) + "\n")
