"""Drives the fake kernel with jupyter_client, the client that all Python front ends use.

Usage: client.py KERNEL... : KERNEL is the command that starts the kernel, without its connection file.
"""

import os
import sys
import tempfile

from jupyter_client import KernelManager
from jupyter_client.kernelspec import KernelSpec


def check(what, got, want):
    if got != want:
        sys.exit(f"{what}: got {got!r}, want {want!r}")


def run(client, code, **options):
    """Returns the types of what iopub said, all of the text, and the reply's content."""
    said, text = [], []

    def hook(message):
        said.append(message["msg_type"])
        content = message["content"]
        text.append(content.get("text") or content.get("data", {}).get("text/plain") or "")

    reply = client.execute_interactive(code, timeout=20, output_hook=hook, **options)
    return said, "".join(text), reply["content"]


def main():
    manager = KernelManager()
    manager._kernel_spec = KernelSpec(
        argv=sys.argv[1:] + ["-f", "{connection_file}"],
        display_name="Fake",
        language="fake",
        env={"EKG_TEST_FAKE_KERNEL": "1"},
    )
    directory = tempfile.TemporaryDirectory()
    if os.environ.get("EKG_TEST_TRANSPORT") == "ipc":
        manager.transport = "ipc"
        manager.ip = os.path.join(directory.name, "k")
    manager.start_kernel()
    client = manager.client()
    try:
        client.start_channels()
        client.wait_for_ready(timeout=20)

        said, text, reply = run(client, "print 3\nset a 42\nget a")
        check("text", text, "0\n1\n2\n42")
        check("reply", (reply["status"], reply["execution_count"]), ("ok", 1))
        said, text, _ = run(client, "flood 20000")
        check("flood", said.count("display_data"), 20000)
        _, text, _ = run(client, "big 20m")
        check("big", len(text), 20_000_000)
        _, _, reply = run(client, "error")
        check("error", reply["ename"], "ValueError")

        def answer(message):
            client.input("Ada")

        _, text, _ = run(client, "input who?", allow_stdin=True, stdin_hook=answer)
        check("input", text, "Ada\n")

        client.execute("sleep 1h")
        while client.get_iopub_msg(timeout=20)["msg_type"] != "execute_input":
            pass
        manager.interrupt_kernel()
        check("interrupt", client.get_shell_msg(timeout=20)["content"].get("ename"), "KeyboardInterrupt")

        check("heartbeat", client.is_alive(), True)
        client.complete("pr")
        check("complete", client.get_shell_msg(timeout=20)["content"]["matches"], ["print", "flood"])
        manager.restart_kernel()
        client.wait_for_ready(timeout=20)
        _, _, reply = run(client, "get a")
        check("variable after a restart", reply.get("ename"), "NameError")
    finally:
        client.stop_channels()
        manager.shutdown_kernel()
    check("exit code", manager.provisioner.process, None)


main()
