"""A synchronous program, which reads its websocket only while a cell runs: nothing answers pings between two cells."""
import json
import time
import uuid

import websocket

from checks import TOKEN, URL, check, finish, rest

QUIET = 70  # seconds: more than a connection without a sign of life may last


def run(ws, session, code):
    """Runs a cell and returns what it prints."""
    msg_id = uuid.uuid4().hex
    header = {"msg_id": msg_id, "msg_type": "execute_request", "session": session, "username": "", "version": "5.4",
              "date": "2026-01-01T00:00:00Z"}
    ws.send(json.dumps({"channel": "shell", "header": header, "parent_header": {}, "metadata": {}, "buffers": [],
                        "content": {"code": code}}))
    text, waits = "", {"execute_reply", "idle"}
    while waits:
        m = json.loads(ws.recv())
        if m["parent_header"].get("msg_id") != msg_id:
            continue
        text += m["content"].get("text", "")
        waits -= {m["header"]["msg_type"], m["content"].get("execution_state")}
    return text


def next_cell_runs():
    kernel = rest("/api/kernels", "POST", {"name": "python3"})["id"]
    session = uuid.uuid4().hex
    ws = websocket.create_connection(
        f"{URL.replace('http', 'ws')}/api/kernels/{kernel}/channels?session_id={session}", timeout=60,
        header=[f"Authorization: token {TOKEN}"])
    assert run(ws, session, "x = 1; print(x)") == "1\n"
    time.sleep(QUIET)
    assert run(ws, session, "print(x + 1)") == "2\n"
    ws.close()


check("the next cell runs", next_cell_runs)
finish()
