"""Runs one cell through a JupyterLab whose kernels ekg runs, as its page does: demo.py URL TOKEN.

EKG_URL and EKG_TOKEN are those of the gateway behind it.
"""
import json
import os
import sys
import urllib.request
import uuid

import websocket


def rest(base, token, path, method="GET", body=None):
    request = urllib.request.Request(base + path, method=method, data=None if body is None else json.dumps(body).encode(),
                                     headers={"Authorization": f"token {token}", "Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as answer:
        text = answer.read()
    return json.loads(text) if text else None


def main(url, token):
    kernel = rest(url, token, "/api/sessions", "POST", {"path": "check.ipynb", "name": "check", "type": "notebook",
                                                        "kernel": {"name": "python3"}})["kernel"]["id"]
    behind = [k["id"] for k in rest(os.environ["EKG_URL"], os.environ["EKG_TOKEN"], "/api/kernels")]
    assert kernel in behind, "the kernel is not one of ekg's"
    session = uuid.uuid4().hex
    ws = websocket.create_connection(f"{url.replace('http', 'ws')}/api/kernels/{kernel}/channels?session_id={session}&token={token}",
                                     timeout=60)
    ws.send(json.dumps({"header": {"msg_id": "1", "msg_type": "execute_request", "session": session, "username": "", "version": "5.3"},
                        "parent_header": {}, "metadata": {}, "channel": "shell",
                        "content": {"code": "print(6 * 7)", "silent": False, "allow_stdin": False}}))
    output = ""
    while True:
        message = json.loads(ws.recv())
        if message["parent_header"].get("msg_id") != "1":
            continue
        if message["msg_type"] == "stream":
            output += message["content"]["text"]
        if message["msg_type"] == "status" and message["content"]["execution_state"] == "idle":
            break
    ws.close()
    assert output == "42\n", f"the cell printed {output!r}"
    rest(url, token, f"/api/kernels/{kernel}", "DELETE")
    print("demo: a cell ran through JupyterLab and ekg")


main(*sys.argv[1:])
