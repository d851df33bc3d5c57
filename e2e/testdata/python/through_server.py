"""Tests nbclient through the newest jupyter server, which is started with --gateway-url."""
import sys
import tempfile
import time

import remote
from checks import INTERRUPTIBLE, KERNELS, STAND_IN, Server, check, finish, rest
from direct import nbclient_error, nbclient_executes


def specs(server):
    """Checks that the server lists the gateway's kernelspecs, not those of its machine."""
    names = rest("/api/kernelspecs", base=server.url, token="")["kernelspecs"]
    mine = rest("/api/kernelspecs")["kernelspecs"]
    assert sorted(names) == sorted(mine), f"{sorted(names)} is not {sorted(mine)}"


def session(server, kernel):
    """Creates, lists, interrupts, restarts and deletes a session of the server."""
    made = rest("/api/sessions", "POST", {"path": "a.ipynb", "name": "a", "type": "notebook", "kernel": {"name": kernel}},
                base=server.url, token="")
    kernel_id = made["kernel"]["id"]
    assert kernel_id in [k["id"] for k in rest("/api/kernels")], "the gateway does not list the session's kernel"
    deadline = time.monotonic() + 30
    while rest(f"/api/kernels/{kernel_id}")["execution_state"] == "starting" and not STAND_IN:
        assert time.monotonic() < deadline, "the kernel does not get out of starting"
        time.sleep(0.1)
    listed = rest("/api/kernels", base=server.url, token="")
    assert [k["id"] for k in listed] == [kernel_id], listed
    if kernel in INTERRUPTIBLE:
        rest(f"/api/kernels/{kernel_id}/interrupt", "POST", {}, base=server.url, token="")
    restarted = rest(f"/api/kernels/{kernel_id}/restart", "POST", {}, base=server.url, token="")
    assert restarted["id"] == kernel_id, restarted
    rest(f"/api/sessions/{made['id']}", "DELETE", base=server.url, token="")
    assert kernel_id not in [k["id"] for k in rest("/api/kernels")], "the kernel outlived its session"


def unknown_kernel(server):
    try:
        rest("/api/sessions", "POST", {"path": "b.ipynb", "name": "b", "type": "notebook", "kernel": {"name": "there-is-no-such"}},
             base=server.url, token="")
    except AssertionError as e:
        assert STAND_IN or "there-is-no-such" in str(e), f"the message does not name the kernelspec: {e}"
        return
    raise AssertionError("an unknown kernelspec was started")


def main():
    with tempfile.TemporaryDirectory() as d:
        server = Server(d)
        try:
            check("jupyter server starts with --gateway-url", server.wait)
            check("jupyter server lists the gateway's kernelspecs", specs, server)
            check("jupyter server refuses an unknown kernelspec with the gateway's words", unknown_kernel, server)
            for kernel in KERNELS:
                check(f"a session of {kernel} in jupyter server", session, server, kernel)
            remote.point_at(server.url, "")
            for kernel in KERNELS:
                check(f"nbclient through jupyter server executes a notebook on {kernel}", nbclient_executes, kernel)
            check("nbclient through jupyter server reports a failing cell", nbclient_error, KERNELS[0])
        finally:
            server.stop()
    check("the server's orderly end took its kernels along", none_left)
    finish()


def none_left():
    left = rest("/api/kernels")
    assert left == [], f"still listed: {left}"


if __name__ == "__main__":
    sys.exit(main())
