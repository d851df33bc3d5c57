"""Tests nbclient and jupyter_client with the gateway itself, through jupyter_server's GatewayKernelManager."""
import sys
import tempfile
import time

import nbformat
from jupyter_client.utils import run_sync
from jupyter_server.gateway.managers import GatewayKernelManager
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError

import remote
from checks import INTERRUPTIBLE, KERNELS, STAND_IN, TOKEN, URL, assert_through_gateway, check, finish, rest

CELLS = [
    "x = 41",
    "print('stdout', x + 1)",
    "import sys; print('on stderr', file=sys.stderr)",
    "x * 2",
    "from IPython.display import display, HTML\nfor i in range(20): display(HTML(f'<b>{i}</b>'))",
    "import os; print('id=' + os.environ.get('EKG_KERNEL_ID', 'none'))",
    "for i in range(500): print('line', i)",
]


def notebook(cells):
    nb = nbformat.v4.new_notebook()
    nb.cells = [nbformat.v4.new_code_cell(c) for c in cells]
    return nb


def text(cell, name="stdout"):
    return "".join(o["text"] for o in cell.outputs if o.output_type == "stream" and o["name"] == name)


def run_notebook(kernel_name, cells):
    """Executes the cells and returns the notebook and the kernel's id. Before each cell it asks the gateway."""
    seen = {}

    def look(cell, cell_index, **_):
        seen["id"] = client.km.kernel_id
        assert_through_gateway(seen["id"])

    client = NotebookClient(notebook(cells), kernel_name=kernel_name, kernel_manager_class=GatewayKernelManager,
                            timeout=60, on_cell_execute=look)
    with tempfile.TemporaryDirectory() as d:
        nb = client.execute(resources={"metadata": {"path": d}})
    return nb, seen["id"]


def nbclient_executes(kernel_name):
    nb, kernel_id = run_notebook(kernel_name, CELLS)
    got = [text(c) for c in nb.cells]
    assert got[1] == "stdout 42\n", got[1]
    assert text(nb.cells[2], "stderr").strip() == "on stderr", nb.cells[2].outputs
    assert nb.cells[3].outputs[0]["data"]["text/plain"] == "82", nb.cells[3].outputs
    html = [o["data"]["text/html"] for o in nb.cells[4].outputs if o.output_type == "display_data"]
    assert html == [f"<b>{i}</b>" for i in range(20)], f"{len(html)} of 20 displays"
    assert got[5].strip() == f"id={kernel_id}" or STAND_IN, got[5]
    assert got[6] == "".join(f"line {i}\n" for i in range(500)), "lines are missing or out of order"
    assert kernel_id not in [k["id"] for k in rest("/api/kernels")], "the kernel is still listed after nbclient ended"


def nbclient_error(kernel_name):
    try:
        run_notebook(kernel_name, ["1/0", "print('not reached')"])
    except CellExecutionError as e:
        assert "ZeroDivisionError" in str(e), e
        return
    raise AssertionError("a failing cell did not fail")


def client_session(kernel_name):
    manager, client = remote.start(kernel_name)
    try:
        remote.assert_through_gateway(manager, client)
        before = rest(f"/api/kernels/{manager.kernel_id}")["last_activity"]
        reply, _ = remote.run(client, "value = 'kept'")
        assert reply["status"] == "ok", reply
        reply = client.complete("valu", reply=True, timeout=30)
        assert "value" in reply["content"]["matches"], reply["content"]
        reply = client.inspect("value", reply=True, timeout=30)
        assert reply["content"]["found"], reply["content"]
        assert rest(f"/api/kernels/{manager.kernel_id}")["last_activity"] > before, "last_activity stands still"
    finally:
        client.stop_channels()
        run_sync(manager.shutdown_kernel)()


def client_interrupt(kernel_name):
    manager, client = remote.start(kernel_name)
    try:
        msg_id = client.execute("import time\nprint('begun', flush=True)\nfor i in range(600): time.sleep(0.1)")
        while "begun" not in client.get_iopub_msg(timeout=30)["content"].get("text", ""):
            pass
        run_sync(manager.interrupt_kernel)()
        deadline = time.monotonic() + 20
        while (reply := client.get_shell_msg(timeout=20))["parent_header"].get("msg_id") != msg_id:
            assert time.monotonic() < deadline, "no reply to the interrupted cell"
        assert reply["content"]["status"] == "error", reply["content"]
        assert "KeyboardInterrupt" in reply["content"]["ename"], reply["content"]["ename"]
    finally:
        client.stop_channels()
        run_sync(manager.shutdown_kernel)()


def client_restart(kernel_name):
    manager, client = remote.start(kernel_name)
    try:
        remote.run(client, "before = 1")
        old = manager.kernel_id
        run_sync(manager.restart_kernel)()
        client.stop_channels()
        client = remote.Blocking(manager.client())
        client.start_channels()
        client.wait_for_ready(timeout=60)
        assert manager.kernel_id == old
        reply, _ = remote.run(client, "before")
        assert "NameError" in reply.get("ename", ""), reply
    finally:
        client.stop_channels()
        run_sync(manager.shutdown_kernel)()


def client_input(kernel_name, query):
    """A client goes while a cell waits for input. The next one gets the prompt again, and its answer arrives."""
    remote.query = query
    manager, client = remote.start(kernel_name)
    try:
        msg_id = client.execute("print('got', input('what? '))", allow_stdin=True)
        prompt = client.get_stdin_msg(timeout=30)
        assert prompt["content"]["prompt"] == "what? ", prompt
        client.stop_channels()
        client = remote.Blocking(manager.client())
        client.start_channels()
        again = client.get_stdin_msg(timeout=30)
        assert again["header"]["msg_id"] == prompt["header"]["msg_id"], (prompt, again)
        assert again["parent_header"]["msg_id"] == msg_id, again
        # client.input names no channel, so that its answer would be a shell message.
        answer = client.session.msg("input_reply", {"value": "this", "status": "ok"})
        client.stdin_channel.send({**answer, "channel": "stdin"})
        while "got this" not in client.get_iopub_msg(timeout=30)["content"].get("text", ""):
            pass
    finally:
        remote.query = ""
        client.stop_channels()
        run_sync(manager.shutdown_kernel)()


def main():
    remote.point_at(URL, TOKEN)
    for kernel in KERNELS:
        check(f"nbclient executes a notebook on {kernel}", nbclient_executes, kernel)
        check(f"nbclient reports the failing cell of {kernel}", nbclient_error, kernel)
        check(f"jupyter_client works with {kernel}", client_session, kernel)
        if kernel in INTERRUPTIBLE:
            check(f"jupyter_client interrupts {kernel}", client_interrupt, kernel)
        check(f"jupyter_client restarts {kernel}", client_restart, kernel)
        if TOKEN and kernel != "xpython":
            check(f"a prompt of {kernel} is offered to the session again", client_input, kernel, "?session_id=input")
            check(f"a prompt of {kernel} is offered to the next client", client_input, kernel, "")
    finish()


if __name__ == "__main__":
    sys.exit(main())
