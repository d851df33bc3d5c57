"""Output widgets in the log's messages: as in a live run by nbclient."""

from __future__ import annotations

import copy
import json

import nbformat
import pytest
from nbclient import NotebookClient
from test_restore import Lines, display, notebook, restored  # noqa: F401  notebook is a fixture

from jupyter_ekg.notebook import Notebook
from jupyter_ekg.outputs import Log

STATE = "application/vnd.jupyter.widget-state+json"
VIEW = "application/vnd.jupyter.widget-view+json"

# Each cell is one that a front end without widgets reads wrongly.
CELLS = [
    "import ipywidgets as w\nfrom IPython.display import display, clear_output, Image\no, p = w.Output(), w.Output()",
    "print('the result of an hour')\nw.interact(lambda x: print('x is', x) or x, x=10)",
    "display(o)\nfor i in range(5):\n with o:\n  clear_output(wait=True)\n  print('round', i)\nprint('end')",
    "with p:\n    print('outer')\n    with o:\n        print('inner')\n    print('outer again')\np",
    "@o.capture(clear_output=True)\ndef f():\n    print('captured')\n    1 / 0\nf()\nprint('goes on')",
    "from IPython.utils.capture import capture_output\nwith capture_output() as c:\n    print('kept')\nc.show()",
    "with o:\n    o.clear_output()\n    print('a', flush=True)\n    display('b')\nh = display('old', display_id=True)",
    "h.update('new')\nprint('10%\\r20%')",
    "with p:\n    g = display('in a widget', display_id=True)\n    g.update('early')\nh.update('newest')",
    "g.update('late')",
    "w.VBox([o, w.Image(value=b'png'), p])",
]


class Recorder(NotebookClient):
    """Keeps the messages that it reads, as lines of a log."""

    def process_message(self, msg, cell, cell_index):
        say = self.say
        say(msg["parent_header"]["msg_id"], msg["msg_type"], copy.deepcopy(msg["content"]), f"c{cell_index}")
        return super().process_message(msg, cell, cell_index)


def joined(outputs):
    """Returns outputs with consecutive text as one, and without the parts that nbformat does not have."""
    result = []
    for output in copy.deepcopy(outputs):
        if result and output["output_type"] == "stream" and result[-1].get("name") == output["name"]:
            result[-1]["text"] += output["text"]
        else:
            result.append(output)
    for output in result:
        if output["output_type"] == "stream":
            output["text"] = output["text"].replace("10%\r20%", "20%")
    return result


def test_a_live_run():
    """The outputs, the numbers and the widgets' outputs are those that nbclient makes of the same messages."""
    pytest.importorskip("ipywidgets")
    nb = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(code) for code in CELLS])
    live = Recorder(nb, kernel_name="python3", timeout=120)
    live.say = Lines()
    live.execute()
    log = live.say.read()
    got = [(log.cells[f"c{i}"].count, log.cells[f"c{i}"].outputs) for i in range(len(CELLS))]
    assert got == [(cell.execution_count, joined(cell.outputs)) for cell in nb.cells]
    assert "the result of an hour\n" == got[1][1][0]["text"] and VIEW in got[1][1][1]["data"]
    want = nb.metadata.widgets[STATE]["state"]
    assert sorted(log.widgets) == sorted(want)
    for name, widget in want.items():
        if widget["model_name"] == "OutputModel":
            assert log.widgets[name]["state"]["outputs"] == joined(widget["state"]["outputs"])
    texts = [o.get("text") for w in log.widgets.values() for o in w["state"].get("outputs", [])]
    assert {"x is 10\n", "a\n", "outer\nouter again\n"} <= set(texts), texts


class Widget:
    """Makes the messages of an Output widget."""

    def __init__(self, say, name="w1"):
        self.say, self.name = say, name

    def open(self, parent, **state):
        model = {"_model_module": "@jupyter-widgets/output", "_model_name": "OutputModel", "outputs": [], **state}
        content = {"comm_id": self.name, "target_name": "jupyter.widget", "data": {"state": model}}
        self.say(parent, "comm_open", content)

    def set(self, parent, cell="c1", **state):
        self.say(parent, "comm_msg", {"comm_id": self.name, "data": {"method": "update", "state": state}}, cell)

    def echo(self, text, **state):
        """A page has told the kernel, or has asked for the state, in a message of its own."""
        outputs = [{"output_type": "stream", "name": "stdout", "text": text}]
        data = {"method": "update" if state else "echo_update", "state": {"outputs": outputs, **state}}
        self.say("page's", "comm_msg", {"comm_id": self.name, "data": data}, None)

    def show(self, msg_id):
        self.say(msg_id, "display_data", {"data": {VIEW: {"model_id": self.name}}, "metadata": {}})


def texts(log: Log, name="w1"):
    return [o.get("text") or o["data"]["text/plain"] for o in log.widgets[name]["state"]["outputs"]]


def test_displays_in_a_widget_are_not_updated():
    """As in nbclient and in jobs, whichever cell the update belongs to."""
    say = Lines()
    widget = Widget(say)
    say.begin("a")
    widget.open("a", msg_id="a")
    say("a", "display_data", display("old", "d"))
    widget.set("a", msg_id="")
    say.end("a")
    say("b", "update_display_data", display("new", "d"), cell=None)
    log = say.read()
    assert (texts(log), log.cells["c1"].outputs) == (["old"], [])


def test_outputs_whose_parent_is_a_message_of_a_widget():
    """A slider that a page has moved: its output is the widget's, and an output that no widget takes is no cell's."""
    say = Lines()
    widget = Widget(say)
    say.begin("a")
    widget.open("a")
    widget.show("a")
    say.end("a")
    widget.set("moved", cell=None, msg_id="moved")
    say.print("moved", "x is 1\n", cell=None)
    say("moved", "clear_output", {"wait": True}, cell=None)
    say.print("moved", "x is 2\n", cell=None)
    widget.set("moved", cell=None, msg_id="")
    say.print("moved", "nowhere\n", cell=None)
    log = say.read()
    assert texts(log) == ["x is 2\n"]
    assert [list(o["data"]) for o in log.cells["c1"].outputs] == [[VIEW]]


def test_outputs_that_the_kernels_code_sets():
    """append_stdout and an empty list replace what the widget has."""
    say = Lines()
    widget = Widget(say)
    say.begin("a")
    widget.open("a", outputs=[{"output_type": "stream", "name": "stdout", "text": "0\n"}])
    widget.set("a", msg_id="a")
    say.print("a", "1\n")
    assert texts(say.read()) == ["0\n1\n"]
    widget.set("a", outputs=[])
    say.print("a", "2\n")
    assert texts(say.read()) == ["2\n"]


@pytest.mark.parametrize("transient", [None, "text", {"display_id": []}])
def test_outputs_that_the_kernels_code_sets_wrongly(transient):
    """They do not keep the notebook's other outputs from the page."""
    say = Lines()
    widget = Widget(say)
    say.begin("a")
    wrong = {"output_type": "display_data", "data": {}, "metadata": {}, "transient": transient}
    text = {"output_type": "stream", "name": "stdout", "text": [1, "\n"]}
    widget.open("a", outputs=[wrong, text])
    widget.set("a", msg_id="a")
    say.print("a", "2\n")
    say.end("a")
    assert say.read().cells["c1"].model()["outputs"][1]["text"] == "1\n2\n"


def test_a_page_shows_what_a_widget_took_while_no_page_was_open():
    """With the cell's output: the kernel does not know it. What a page has told the kernel is the widget's alone."""
    say = Lines()
    widget = Widget(say)
    say.begin("a")
    widget.open("a")
    widget.show("a")
    widget.set("a", msg_id="a")
    say.print("a", "the result of an hour\n")
    widget.set("a", msg_id="")
    say.end("a")
    view, text = say.read().cells["c1"].model()["outputs"]
    assert (list(view["data"]), text["text"]) == ([VIEW], "the result of an hour\n")
    assert len(say.read().cells["c1"].outputs) == 1  # a file has the widget's outputs in its metadata
    widget.set("a", outputs=[text])  # the kernel's echo
    assert len(say.read().cells["c1"].model()["outputs"]) == 1


@pytest.mark.parametrize("state", [{}, {"_model_name": "OutputModel"}])
def test_a_page_that_was_closed_has_told_the_kernel_a_part(state):
    """The rest is not lost. The next page tells the kernel all of it."""
    say = Lines()
    widget = Widget(say)
    say.begin("a")
    widget.open("a", msg_id="a")
    say.print("a", "1\n")
    say.print("a", "2\n")
    widget.set("a", msg_id="")
    say.end("a")
    widget.echo("1\n", **state)
    model = say.read().cells["c1"].model()
    assert (model["outputs"][0]["text"], texts(say.read())) == ("1\n2\n", ["1\n2\n"])
    assert [o["text"] for o in model["widgets"]["w1"]] == ["1\n2\n"]
    widget.echo("1\n2\n", **state)
    model = say.read().cells["c1"].model()
    assert (model["outputs"], model["widgets"], texts(say.read())) == ([], {}, ["1\n2\n"])


def test_a_page_tells_nothing_of_a_widget_that_the_log_has_not_whole():
    """The kernel may have earlier outputs, which must stay."""
    say = Lines()
    widget = Widget(say)
    say.begin("a")
    widget.set("a", msg_id="a")
    say.print("a", "2\n")
    widget.set("a", msg_id="")
    say.end("a")
    assert say.read().cells["c1"].model()["widgets"] == {}
    widget.echo("1\n")
    assert say.read().cells["c1"].model()["outputs"] == []


def test_what_a_widget_took_in_a_job_is_the_widgets_alone():
    """The job tells the kernel behind the cell. A page may read the log before that."""
    say = Lines()
    widget = Widget(say)
    say.begin("5c1d-1-3")
    widget.open("5c1d-1-3")
    widget.set("5c1d-1-3", msg_id="5c1d-1-3")
    say.print("5c1d-1-3", "taken\n")
    widget.set("5c1d-1-3", msg_id="")
    say.end("5c1d-1-3")
    assert len(say.read().cells["c1"].model()["outputs"]) == 1
    for line in say.all:
        line["parent_header"]["session"] = "5c1d-1"
    assert say.read().cells["c1"].model()["outputs"] == []


def test_a_page_that_follows_a_cell_knows_who_takes_its_outputs():
    """What a widget takes is not the running cell's. The kernel's code may have opened the widget in an earlier cell."""
    say = Lines()
    outer, inner = Widget(say), Widget(say, "w2")
    say.begin("a")
    outer.open("a")
    inner.open("a")
    say.end("a")
    say.begin("b", cell="c2")
    say.print("b", "own\n", cell="c2")
    outer.set("b", "c2", msg_id="b")
    inner.set("b", "c2", msg_id="b")
    say.print("b", "taken\n", cell="c2")
    model = say.read().cells["c2"].model()
    assert (model["takers"], model["untold"], len(model["outputs"])) == (["w1", "w2"], True, 1)
    inner.set("b", "c2", msg_id="")
    assert say.read().cells["c2"].model()["takers"] == ["w1"]
    outer.set("b", "c2", msg_id="")
    say.end("b", "c2")
    model = say.read().cells["c2"].model()
    assert (model["takers"], model["untold"], [o["text"] for o in model["outputs"]]) == ([], False, ["own\n", "taken\n"])


def test_a_widget_whose_beginning_the_log_has_dropped():
    """Its msg_id says that it takes outputs. clear_output is the widget's, too."""
    say = Lines()
    widget = Widget(say)
    say.begin("a")
    say.print("a", "own\n")
    widget.set("a", msg_id="a")
    say("a", "clear_output", {"wait": True})
    say.print("a", "taken\n")
    widget.set("a", msg_id="")
    say.print("a", "own, too\n")
    assert [o["text"] for o in say.read().cells["c1"].outputs] == ["own\nown, too\n"]


def test_a_number_is_that_of_the_input():
    """A result may have another one, and is not the cell's."""
    say = Lines()
    say.begin("a", count=5)
    say("a", "execute_result", {**display("x"), "execution_count": 6})
    assert say.read().cells["c1"].count == 5


@pytest.mark.parametrize("content", [{}, {"data": None}, {"comm_id": [], "data": {"state": {"msg_id": {}}}}])
@pytest.mark.parametrize("kind", ["comm_open", "comm_msg", "display_data", "update_display_data", "stream", "error",
                                  "clear_output", "status", "execute_input", "unknown"])  # fmt: skip
def test_messages_that_no_front_end_reads(kind, content):
    """They change nothing for the others, and the log can be read."""
    say = Lines()
    widget = Widget(say)
    say.begin("a")
    widget.open("a", msg_id="a")
    for cell in ("c1", None):
        say("a", kind, content, cell)
    say("a", kind, {**content, "comm_id": "w1"})
    widget.set("a", msg_id="")
    say.print("a", "goes on\n")
    log = say.read()
    assert log.cells["c1"].outputs[-1]["text"].endswith("goes on\n")
    json.dumps([log.widgets, log.cells["c1"].model()])


def test_the_file_gets_the_widgets_that_its_cells_show(notebook):  # noqa: F811
    """Their outputs count as the cell's. After a gap the file keeps what it has of them."""
    say = Lines()
    widget = Widget(say)
    say.begin("a")
    widget.open("a")
    widget.show("a")
    say.print("a", "0\n1\nthe result of an hour\n")
    say.end("a")
    assert restored(notebook, say) == ["cell 2 [1]: 2 outputs restored"]
    assert restored(notebook, say) == ["cell 2 [1]: has all its output already"]
    widget.set("moved", cell=None, msg_id="moved")
    say.print("moved", "late\n", cell=None)
    assert restored(notebook, say) == ["cell 2 [1]: 2 outputs restored"]

    def states():
        return Notebook(str(notebook))._json["metadata"]["widgets"][STATE]["state"]

    outputs = [{"output_type": "stream", "name": "stdout", "text": "late\n"}]
    assert states()["w1"]["state"]["outputs"] == outputs
    say.lost(4)
    widget.set("moved", cell=None, outputs=[])
    assert restored(notebook, say) == ["cell 2 [1]: has all its output already"]
    assert states()["w1"]["state"]["outputs"] == outputs
    nbformat.validate(json.loads(notebook.read_text()))
