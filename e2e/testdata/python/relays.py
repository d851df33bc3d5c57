"""Programs that know only kernelspecs and ZeroMQ, with a kernelspec that `ekg kernelspec add` has written.

The kernelspec's name is sys.argv[1]. No program has any option about a gateway. See checks.py.
"""
import os
import queue
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
import unittest

import jupyter_kernel_test
import nbformat
import papermill
from jupyter_client import BlockingKernelClient
from jupyter_client.manager import KernelManager
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError

from checks import check, control, finish, rest, wait_for

NAME = sys.argv[1]
PATIENCE = 60


def kernels():
    return {k["id"]: k for k in rest("/api/kernels") if k["execution_state"] != "dead"}


class Started:
    """A kernel of this kernelspec, and the kernel at the gateway that it is."""

    def __init__(self, **options):
        before = kernels()
        self.manager = KernelManager(kernel_name=NAME)
        self.manager.start_kernel(**options)
        self.client = self.manager.client()
        self.client.start_channels()
        self.client.wait_for_ready(timeout=PATIENCE)
        (self.id,) = set(kernels()) - set(before)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.client.stop_channels()
        if self.manager.has_kernel:
            self.manager.shutdown_kernel(now=not self.manager.is_alive())
        gone(self.id)


def gone(kernel_id):
    wait_for(f"kernel {kernel_id} is gone", PATIENCE, lambda: kernel_id not in kernels())


def run(client, code, **options):
    """Runs a cell. Returns its text and the content of its reply."""
    text = []

    def shows(message):
        content = message["content"]
        text.append(content.get("text") or content.get("data", {}).get("text/plain") or "")

    reply = client.execute_interactive(code, timeout=PATIENCE, output_hook=shows, **options)
    return "".join(text), reply["content"]


def starts_and_ends():
    with Started() as k:
        assert run(k.client, "print('hello'); 6 * 7")[0] == "hello\n42"
        assert run(k.client, "1/0")[1]["ename"] == "ZeroDivisionError"
        k.client.complete("pri")
        assert "print" in k.client.get_shell_msg(timeout=PATIENCE)["content"]["matches"]
        assert k.manager.is_alive() and k.client.is_alive()
        folder = run(k.client, "import os; print(os.getcwd())")[0].strip()
        assert folder == os.getcwd(), folder


def asks_for_input():
    with Started() as k:
        asked = []

        def answer(message):
            asked.append(message["content"]["prompt"])
            k.client.input("yes")

        assert run(k.client, "print(input('sure? '))", allow_stdin=True, stdin_hook=answer)[0] == "yes\n"
        assert asked == ["sure? "]


def buffers_pass():
    with Started() as k:
        code = """
from ipykernel.comm import Comm
got = []
def opened(comm, message):
    def back(message):
        comm.send({'n': len(message['buffers'][0])}, buffers=[bytes(message['buffers'][0])])
    comm.on_msg(back)
get_ipython().kernel.comm_manager.register_target('echo', opened)"""
        run(k.client, code)
        session, shell = k.client.session, k.client.shell_channel
        shell.send(session.msg("comm_open", {"comm_id": "c", "target_name": "echo", "data": {}}))
        data = os.urandom(20_000_000)
        message = session.msg("comm_msg", {"comm_id": "c", "data": {}})
        session.send(shell.socket, message, buffers=[data])
        while True:
            got = k.client.get_iopub_msg(timeout=PATIENCE)
            if got["msg_type"] == "comm_msg":
                break
        assert got["content"]["data"] == {"n": len(data)} and bytes(got["buffers"][0]) == data


def interrupts():
    with Started() as k:
        for how in (k.manager.interrupt_kernel, lambda: k.manager.provisioner.process.send_signal(signal.SIGINT)):
            started = threading.Event()
            timer = threading.Thread(target=lambda: (started.wait(PATIENCE), how()))
            timer.start()
            reply = k.client.execute_interactive(
                "print('sleeping', flush=True); import time; time.sleep(60)", timeout=PATIENCE,
                output_hook=lambda m: started.set() if m["msg_type"] == "stream" else None)
            timer.join()
            assert reply["content"].get("ename") == "KeyboardInterrupt", reply["content"]
        assert run(k.client, "print('alive')")[0] == "alive\n"


def restarts():
    with Started() as k:
        for now in (False, True):  # by a shutdown_request, and by SIGKILL
            run(k.client, "lost = 1")
            k.manager.restart_kernel(now=now)
            k.client.wait_for_ready(timeout=PATIENCE)
            assert run(k.client, "lost")[1]["ename"] == "NameError"
            assert k.id in kernels(), "another kernel was started"
        note = k.manager.connection_file + ".ekg"
        assert os.stat(note).st_mode & 0o777 == 0o600
    assert not os.path.exists(note)


def two_programs():
    with Started() as k:
        other = BlockingKernelClient(connection_file=k.manager.connection_file)
        other.load_connection_file()
        other.start_channels()
        try:
            first = other.get_iopub_msg(timeout=PATIENCE)
            assert first["msg_type"] == "iopub_welcome", first["msg_type"]
            other.wait_for_ready(timeout=PATIENCE)
            mine, theirs = k.client.execute("print('mine')"), other.execute("print('theirs')")
            for client, request in ((k.client, mine), (other, theirs)):
                answered = None
                while answered != request:  # wait_for_ready asks several times
                    parent = client.get_shell_msg(timeout=PATIENCE)["parent_header"]
                    assert parent["session"] == client.session.session, "a reply of another program"
                    answered = parent["msg_id"]
                seen = {}
                while len(seen) < 2:
                    message = client.get_iopub_msg(timeout=PATIENCE)
                    if message["msg_type"] == "stream":
                        seen[message["parent_header"]["msg_id"]] = message["content"]["text"]
                assert seen == {mine: "mine\n", theirs: "theirs\n"}, seen
                try:
                    extra = client.get_shell_msg(timeout=0.3)
                    raise AssertionError(f"a reply of another program: {extra['parent_header']}")
                except queue.Empty:
                    pass
        finally:
            other.stop_channels()


def program_dies():
    script = (f"import sys; from jupyter_client.manager import KernelManager\n"
              f"m = KernelManager(kernel_name={NAME!r}); m.start_kernel(); c = m.client(); c.start_channels()\n"
              f"c.wait_for_ready(timeout={PATIENCE}); print('up', flush=True); sys.stdin.read()")
    before = kernels()
    program = subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert program.stdout.readline() == "up\n"
    (started,) = set(kernels()) - set(before)
    program.kill()
    program.wait()
    gone(started)


def notebook(*cells):
    return nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(c) for c in cells], metadata={
        "kernelspec": {"name": NAME, "display_name": NAME, "language": "python"}})


def nbclient_runs():
    before = kernels()
    done = NotebookClient(notebook("x = 20", "print(x + 1)"), kernel_name=NAME, timeout=PATIENCE).execute()
    assert done.cells[1].outputs[0].text == "21\n"
    try:
        NotebookClient(notebook("1/0"), kernel_name=NAME, timeout=PATIENCE).execute()
        raise AssertionError("a cell that fails ends nothing")
    except CellExecutionError:
        pass
    wait_for("its kernels are gone", PATIENCE, lambda: set(kernels()) <= set(before))


def papermill_runs():
    with tempfile.TemporaryDirectory() as folder:
        source, target = os.path.join(folder, "in.ipynb"), os.path.join(folder, "out.ipynb")
        book = notebook("n = 1", "print(n * 2)")
        book.cells[0].metadata["tags"] = ["parameters"]
        nbformat.write(book, source)
        papermill.execute_notebook(source, target, {"n": 4}, progress_bar=False)
        assert nbformat.read(target, 4).cells[-1].outputs[0].text == "8\n"


def gateway_dies():
    """The gateway is killed in a printing cell, and started 5 s later. Input that is sent meanwhile runs once."""
    with Started() as k:
        cell = k.client.execute("import time\nfor i in range(200): print(i, flush=True); time.sleep(0.05)\nn = 0")
        text, said, killed, later = "", False, False, []
        deadline = time.monotonic() + 2 * PATIENCE
        while True:
            assert time.monotonic() < deadline, text[-100:]
            message = k.client.get_iopub_msg(timeout=PATIENCE)
            if message["parent_header"].get("msg_id") != cell:
                continue
            if message["msg_type"] == "stream" and message["content"]["name"] == "stderr":
                said = said or "does not answer" in message["content"]["text"]
            elif message["msg_type"] == "stream":
                text += message["content"]["text"]
            elif message["msg_type"] == "status" and message["content"]["execution_state"] == "idle":
                break
            if "20\n" in text and not killed:
                killed = True
                control("kill")
                later = [k.client.execute("n += 1") for _ in range(5)]
                threading.Timer(5, control, ["start"]).start()
        assert text == "".join(f"{i}\n" for i in range(200)), text
        assert said, "the cell does not say that the gateway is away"
        for request in [cell] + later:
            assert k.client.get_shell_msg(timeout=PATIENCE)["parent_header"]["msg_id"] == request
        assert run(k.client, "print(n)")[0] == "5\n"


def takes_an_existing_kernel():
    """As a program would that is given argv. The kernel stays when the relay ends by a signal."""
    kernel = rest("/api/kernels", "POST", {"name": "python3"})["id"]
    manager = KernelManager(kernel_name=NAME)
    manager.write_connection_file()
    argv = [a.replace("{connection_file}", manager.connection_file) for a in manager.kernel_spec.argv]
    before = set(kernels())
    relay = subprocess.Popen(argv + ["--existing", kernel[:8]])
    client = manager.client()
    client.start_channels()
    try:
        client.wait_for_ready(timeout=PATIENCE)
        assert run(client, "print(1)")[0] == "1\n"
        assert set(kernels()) == before
    finally:
        client.stop_channels()
        relay.send_signal(signal.SIGTERM)
        assert relay.wait(PATIENCE) == 0
        manager.cleanup_connection_file()
    assert kernel in kernels()
    rest(f"/api/kernels/{kernel}", "DELETE")


def says_why():
    """A start that fails ends the process, with the reason on stderr."""
    manager = KernelManager(kernel_name=NAME)
    manager.write_connection_file()
    argv = [a.replace("{connection_file}", manager.connection_file) for a in manager.kernel_spec.argv]
    argv[argv.index("--kernel") + 1] = "missing-program"
    done = subprocess.run(argv, stderr=subprocess.PIPE, text=True, timeout=PATIENCE)
    manager.cleanup_connection_file()
    assert done.returncode == 1 and re.search("no-such-program", done.stderr), done


class Suite(jupyter_kernel_test.KernelTests):
    """The suite of jupyter_kernel_test, unmodified: it starts the kernelspec as a kernel of this machine."""

    kernel_name = NAME
    language_name = "python"
    file_extension = ".py"
    code_hello_world = "print('hello, world')"
    code_stderr = "import sys; print('test', file=sys.stderr)"
    completion_samples = [{"text": "isinst", "matches": {"isinstance"}}]
    complete_code_samples = ["1", "def f(x):\n  return x*2\n\n\n"]
    incomplete_code_samples = ["print('''hello", "def f(x):\n  x*2"]
    invalid_code_samples = ["import = 7q"]
    code_page_something = "zip?"
    code_generate_error = "raise RuntimeError('wanted')"
    code_execute_result = [{"code": "1+2+3", "result": "6"}]
    code_display_data = [{"code": "from IPython.display import HTML, display; display(HTML('<b>test</b>'))",
                          "mime": "text/html"}]
    code_history_pattern = "1?2*"
    supported_history_operations = ("tail", "search")
    code_inspect_sample = "zip"
    code_clear_output = "from IPython.display import clear_output; clear_output()"


def kernel_suite():
    result = unittest.TestResult()
    unittest.defaultTestLoader.loadTestsFromTestCase(Suite).run(result)
    assert result.testsRun > 10 and result.wasSuccessful(), result.errors + result.failures


for f in (starts_and_ends, kernel_suite, asks_for_input, buffers_pass, interrupts, restarts, two_programs, program_dies, nbclient_runs,
          papermill_runs, gateway_dies, takes_an_existing_kernel, says_why):
    if os.environ.get("EKG_ONLY", "") in ("", f.__name__):
        check(f.__name__, f)
finish()
