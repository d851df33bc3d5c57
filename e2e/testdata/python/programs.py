"""Tests programs that run notebooks with jupyter-ekg. The gateway demands its token and is killed meanwhile."""
import os
import subprocess
import sys
import tempfile
import threading
import time

import nbformat
from jupyter_ekg import EkgKernelManager
from nbclient import NotebookClient

from checks import check, control, finish, rest, wait_for

LINES = 500


def notebook(marker):
    """Returns a notebook. Its second cell prints numbered lines for five seconds and creates marker early on."""
    nb = nbformat.v4.new_notebook(metadata={"kernelspec": {"name": "python3", "display_name": "Python 3"}})
    nb.cells = [nbformat.v4.new_code_cell(source) for source in (
        "x = 41",
        f"import time\nfor i in range({LINES}):\n    print('line', i, flush=True)\n    time.sleep(0.01)\n    if i == 50: open({marker!r}, 'w').close()",
        "print('kept', x + 1)",
    )]
    return nb


def with_nbclient(source, target):
    nb = nbformat.read(source, 4)
    NotebookClient(nb, kernel_manager_class=EkgKernelManager, timeout=120).execute()
    nbformat.write(nb, target)


def with_papermill(source, target):
    run("papermill", "--engine", "ekg", "--no-progress-bar", source, target)


def with_nbconvert(source, target):
    run("nbconvert", "--to", "notebook", "--execute", "--ExecutePreprocessor.kernel_manager_class=jupyter_ekg.EkgKernelManager",
        "--output", target, source)


def run(module, *args):
    done = subprocess.run([sys.executable, "-m", module, *args], capture_output=True, text=True, timeout=180)
    assert done.returncode == 0, done.stderr[-2000:]


class Job:
    """A program that runs a notebook, in its own thread."""

    def __init__(self, name, program, directory):
        self.name = name
        self.marker, self.source, self.target = (os.path.join(directory, name + end) for end in (".begun", ".ipynb", "-done.ipynb"))
        nbformat.write(notebook(self.marker), self.source)
        self.failure = None
        self.thread = threading.Thread(target=self.work, args=(program,))
        self.thread.start()

    def work(self, program):
        try:
            program(self.source, self.target)
        except Exception as e:  # check raises it
            self.failure = e

    def begun(self):
        return os.path.exists(self.marker) or not self.thread.is_alive()

    def check(self):
        self.thread.join()
        if self.failure is not None:
            raise self.failure
        texts = ["".join(o["text"] for o in cell.outputs if o.output_type == "stream") for cell in nbformat.read(self.target, 4).cells]
        assert texts[-2] == "".join(f"line {i}\n" for i in range(LINES)), f"not every line once: {texts[-2][-200:]!r}"
        assert texts[-1] == "kept 42\n", texts[-1]


def main():
    with tempfile.TemporaryDirectory() as d:
        jobs = [Job(name, program, d) for name, program in
                {"nbclient": with_nbclient, "papermill": with_papermill, "nbconvert": with_nbconvert}.items()]
        check("all programs run a cell", wait_for, "that", 120, lambda: all(job.begun() for job in jobs))
        control("kill")
        time.sleep(2)
        control("start")
        for job in jobs:
            check(f"{job.name} with the gateway killed in the middle: every line once", job.check)
    check("no kernel is left", none_left)
    finish()


def none_left():
    left = rest("/api/kernels")
    assert left == [], f"still listed: {left}"


if __name__ == "__main__":
    sys.exit(main())
