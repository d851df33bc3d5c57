"""A synchronous program sends its next cell as soon as it has read something of a failed one. ipykernel drops cells that
come before it has ended the failed one. Cells that were sent before the error are dropped."""
import json
import uuid

import websocket

from checks import KERNELS, TOKEN, URL, check, finish, rest

ROUNDS = 40
BURST = 1000
BURST_TIME = 2  # seconds until the error: the kernel has all cells of the burst by then


class Client:
    def __init__(self, kernel):
        self.session = uuid.uuid4().hex
        self.ws = websocket.create_connection(
            f"{URL.replace('http', 'ws')}/api/kernels/{kernel}/channels?session_id={self.session}", timeout=60,
            header=[f"Authorization: token {TOKEN}"])

    def send(self, code):
        msg_id, request = self.request(code)
        self.ws.send(request)
        return msg_id

    def send_at_once(self, codes):
        """Sends several cells by one write."""
        ids, requests = zip(*map(self.request, codes), strict=True)
        self.ws.sock.sendall(b"".join(websocket.ABNF.create_frame(r, websocket.ABNF.OPCODE_TEXT).format() for r in requests))
        return ids

    def request(self, code):
        msg_id = uuid.uuid4().hex
        header = {"msg_id": msg_id, "msg_type": "execute_request", "session": self.session, "username": "",
                  "version": "5.4", "date": "2026-01-01T00:00:00Z"}
        return msg_id, json.dumps({"channel": "shell", "header": header, "parent_header": {}, "metadata": {}, "buffers": [],
                                   "content": {"code": code, "stop_on_error": True}})

    def wait(self, msg_id, events):
        """Reads until all events of a cell have come, and returns the status of its reply."""
        status, events = "", set(events)
        while events:
            m = json.loads(self.ws.recv())
            if m["parent_header"].get("msg_id") != msg_id:
                continue
            kind = m["header"]["msg_type"]
            status = m["content"]["status"] if kind == "execute_reply" else status
            events -= {kind, m["content"].get("execution_state")}
        return status


def next_cells_run(kernel, events):
    c = Client(kernel)
    aborted = 0
    for _ in range(ROUNDS):
        c.wait(c.send("1/0"), events)
        if c.wait(c.send("1"), ["execute_reply", "idle"]) == "aborted":
            aborted += 1
    c.ws.close()
    assert aborted == 0, f"{aborted} of {ROUNDS} cells were aborted"


def burst_is_aborted(kernel):
    c = Client(kernel)
    cells = c.send_at_once([f"import time; time.sleep({BURST_TIME}); 1/0"] + ["1"] * BURST)[1:]
    statuses = {}
    while len(statuses) < BURST:
        m = json.loads(c.ws.recv())
        if m["header"]["msg_type"] == "execute_reply" and m["parent_header"].get("msg_id") in cells:
            statuses[m["parent_header"]["msg_id"]] = m["content"]["status"]
    ran = sum(s != "aborted" for s in statuses.values())
    c.ws.close()
    assert ran == 0, f"{ran} of {BURST} cells ran after the error"


for name in KERNELS:
    if name == "xpython":
        continue
    kernel = rest("/api/kernels", "POST", {"name": name})["id"]
    first = Client(kernel)
    first.wait(first.send("1"), ["execute_reply", "idle"])
    check(f"{name} runs the next cell, sent at the error", next_cells_run, kernel, ["error"])
    check(f"{name} runs the next cell, sent at the reply", next_cells_run, kernel, ["execute_reply"])
    check(f"{name} runs the next cell, sent at reply and idle", next_cells_run, kernel, ["execute_reply", "idle"])
    check(f"{name} drops cells that were sent before the error", burst_is_aborted, kernel)
finish()
