"""Tests jupyter-server-nbmodel in a jupyter server with jupyter-ekg. It runs cells in the server, without a page.

EKG_SERVER is the interpreter that runs the server, and EKG_NBMODEL the folder with jupyter-server-nbmodel.
"""
import json
import os
import sys
import tempfile
import time
import urllib.error
import urllib.request

from checks import Server, check, control, finish, rest, wait_for

LINES = 500


class Kernel:
    """A kernel of the server, whose cells nbmodel runs."""

    def __init__(self, server):
        self.server = server
        self.id = rest("/api/kernels", "POST", {"name": "python3"}, base=server.url, token="")["id"]

    def begin(self, code):
        """Sends a cell, and returns the path of the request."""
        made = rest(f"/api/kernels/{self.id}/execute", "POST", {"code": code}, base=self.server.url, token="")
        return f"/api/kernels/{self.id}/requests/{made['request_id']}"

    def poll(self, path):
        """Returns the status code and the state of a request. It is 300 while the cell waits for input."""
        try:
            with urllib.request.urlopen(self.server.url + path, timeout=60) as response:
                return response.status, json.load(response)
        except urllib.error.HTTPError as e:
            return e.code, json.loads(e.read())

    def end(self, path, seconds=90):
        """Waits for a cell's end, and returns its result and the text of its streams."""
        answers = []
        wait_for("the end of a cell", seconds, lambda: answers.append(self.poll(path)) or answers[-1][0] != 202)
        status, result = answers[-1]
        assert status == 200, f"{status} {result}"
        outputs = json.loads(result["outputs"])
        return result, "".join(o["text"] for o in outputs if o["output_type"] == "stream")


def cells(kernel):
    """Runs cells one after the other: output, a variable, and an error."""
    first, second = kernel.begin("x = 41\nprint('one')"), kernel.begin("print(x + 1)")
    assert kernel.end(first)[1] == "one\n"
    result, text = kernel.end(second)
    assert (text, result["execution_count"], result["status"]) == ("42\n", 2, "ok"), result
    result, _ = kernel.end(kernel.begin("1 / 0"))
    assert result["status"] == "error", result
    assert [o["ename"] for o in json.loads(result["outputs"])] == ["ZeroDivisionError"], result


def asks(kernel):
    """Answers the input request of a cell."""
    path = kernel.begin("print('hello', input('name? '))")
    wait_for("the request for input", 60, lambda: kernel.poll(path)[0] == 300)
    rest(f"/api/kernels/{kernel.id}/input", "POST", {"input": "Ada"}, base=kernel.server.url, token="")
    assert kernel.end(path)[1].endswith("hello Ada\n")


def killed(kernel, directory):
    """Kills the gateway while a cell prints: each line arrives once, and a cell that is sent meanwhile runs once."""
    marker, marks = os.path.join(directory, "begun"), os.path.join(directory, "marks")
    printing = kernel.begin(
        f"import time\nfor i in range({LINES}):\n    print('line', i, flush=True)\n    time.sleep(0.01)\n"
        f"    if i == 50: open({marker!r}, 'w').close()")
    wait_for("the beginning of a cell", 60, lambda: os.path.exists(marker))
    control("kill")
    try:
        queued = kernel.begin(f"print('mark', file=open({marks!r}, 'a'))")
        time.sleep(2)
    finally:
        control("start")
    assert kernel.end(printing)[1] == "".join(f"line {i}\n" for i in range(LINES)), "not every line once and in order"
    kernel.end(queued)
    with open(marks) as f:
        assert f.read() == "mark\n", "not every cell once"


def main():
    with tempfile.TemporaryDirectory() as d:
        server = Server(d, python=os.environ["EKG_SERVER"], folders=[os.environ["EKG_NBMODEL"]])
        try:
            print(f"# jupyter_server {check('the server starts', server.wait)['version']}")
            kernel = check("a kernel starts", Kernel, server)
            check("nbmodel runs cells and reports an error", cells, kernel)
            check("a cell asks for input", asks, kernel)
            check("the gateway is killed while a cell prints", killed, kernel, d)
        finally:
            server.stop()
    finish()


if __name__ == "__main__":
    sys.exit(main())
