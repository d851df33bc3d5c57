"""Tests jupyter-ekg in a jupyter server, with websockets in both framings, while the gateway is killed and restarted.

EKG_SERVER is the interpreter that runs the server.
"""
import contextlib
import json
import os
import struct
import sys
import tempfile
import threading
import time
import uuid

import websocket

from checks import Server, check, control, finish, rest, wait_for

V1 = "v1.kernel.websocket.jupyter.org"
LINES = 1000
LARGE = 12_000_000  # bytes: more than the default limit of a websocket


class Client:
    """A websocket of a kernel. Its own thread collects all messages."""

    def __init__(self, server, kernel_id, v1):
        self.v1 = v1
        self.session = uuid.uuid4().hex
        self.ws = websocket.create_connection(
            f"{server.url.replace('http', 'ws')}/api/kernels/{kernel_id}/channels?session_id={self.session}",
            subprotocols=[V1] if v1 else None, timeout=60, origin=server.url)
        assert (self.ws.subprotocol == V1) == v1, f"the server chose {self.ws.subprotocol!r}"
        self.got = []  # messages; the thread appends to it
        self.ended = ""
        self.thread = threading.Thread(target=self.read, daemon=True)
        self.thread.start()

    def read(self):
        try:
            while True:
                opcode, data = self.ws.recv_data()
                if opcode == websocket.ABNF.OPCODE_CLOSE:
                    raise websocket.WebSocketConnectionClosedException(f"closed: {data!r}")
                self.got.append(decode(opcode, data))
        except Exception as e:  # wait raises it
            self.ended = f"{type(e).__name__}: {e}"

    def close(self):
        self.ws.close()
        self.thread.join()

    def send(self, msg_type, content, buffers=()):
        """Sends a request and returns its id."""
        msg_id = uuid.uuid4().hex
        parts = [{"msg_id": msg_id, "msg_type": msg_type, "session": self.session, "username": "", "version": "5.4",
                  "date": "2026-01-01T00:00:00Z"}, {}, {}, content]
        if self.v1:
            binary = [b"shell", *(json.dumps(p).encode() for p in parts), *buffers]
            offsets = [8 * (len(binary) + 2)]
            for part in binary:
                offsets.append(offsets[-1] + len(part))
            self.ws.send_binary(struct.pack(f"<{len(offsets) + 1}Q", len(offsets), *offsets) + b"".join(binary))
            return msg_id
        names = ("header", "parent_header", "metadata", "content")
        text = json.dumps({"channel": "shell", "buffers": [], **dict(zip(names, parts, strict=True))})
        if not buffers:
            self.ws.send(text)
            return msg_id
        binary = [text.encode(), *buffers]
        offsets = [4 * (len(binary) + 1)]
        for part in binary[:-1]:
            offsets.append(offsets[-1] + len(part))
        self.ws.send_binary(struct.pack(f">{len(offsets) + 1}I", len(binary), *offsets) + b"".join(binary))
        return msg_id

    def execute(self, code):
        return self.send("execute_request", {"code": code, "silent": False, "store_history": True, "user_expressions": {},
                                             "allow_stdin": False, "stop_on_error": True})

    def of(self, msg_id, msg_type):
        """Returns the contents of the messages of one type that answer a request."""
        return [m["content"] for m in list(self.got)
                if m["parent_header"].get("msg_id") == msg_id and m["header"]["msg_type"] == msg_type]

    def stdout(self, msg_id):
        return "".join(c["text"] for c in self.of(msg_id, "stream") if c["name"] == "stdout")

    def wait(self, msg_id, seconds=60):
        """Waits for a request's end, and checks that it ends once and without an error."""
        idles = lambda: [c for c in self.of(msg_id, "status") if c["execution_state"] == "idle"]  # noqa: E731
        wait_for(f"the end of a cell; {self.ended}", seconds, lambda: self.ended or (idles() and self.of(msg_id, "execute_reply")))
        assert not self.ended, self.ended
        assert [c["status"] for c in self.of(msg_id, "execute_reply")] == ["ok"], self.of(msg_id, "execute_reply")
        assert len(idles()) == 1, idles()


def decode(opcode, data):
    """Decodes a message in any of the three layouts."""
    if opcode == websocket.ABNF.OPCODE_TEXT:
        return {**json.loads(data), "buffers": []}
    if data[0]:  # v1 is little-endian
        (count,) = struct.unpack_from("<Q", data)
        offsets = struct.unpack_from(f"<{count}Q", data, 8)
        parts = [data[a:b] for a, b in zip(offsets, offsets[1:])]
        header, parent, metadata, content = map(json.loads, parts[1:5])
        return {"channel": parts[0].decode(), "header": header, "parent_header": parent, "metadata": metadata, "content": content,
                "buffers": parts[5:]}
    (count,) = struct.unpack_from(">I", data)
    offsets = [*struct.unpack_from(f">{count}I", data, 4), len(data)]
    parts = [data[a:b] for a, b in zip(offsets, offsets[1:])]
    return {**json.loads(parts[0]), "buffers": parts[1:]}


@contextlib.contextmanager
def kernel(server, v1):
    """Starts a kernel at the server, and yields a client of it."""
    made = rest("/api/kernels", "POST", {"name": "python3"}, base=server.url, token="")
    client = Client(server, made["id"], v1)
    try:
        client.wait(client.execute("pass"))
        yield client
    finally:
        client.close()
        rest(f"/api/kernels/{made['id']}", "DELETE", base=server.url, token="")


def killed(server, directory):
    """Prints numbered lines while the gateway is killed twice, and runs cells while it is away, in both framings."""
    with kernel(server, True) as new, kernel(server, False) as old:
        clients = [new, old]
        printing = [c.execute(f"import time\nfor i in range({LINES}):\n    print('line', i, flush=True)\n    time.sleep(0.008)") for c in clients]
        marks = [os.path.join(directory, f"marks{i}") for i in range(2)]
        sent = [[], []]
        for seconds, reached in (1, 50), (3, 400):
            for c, cell in zip(clients, printing):
                wait_for("lines of both", 60, lambda: c.ended or f"line {reached}\n" in c.stdout(cell))
            control("kill")
            try:
                for i, c in enumerate(clients):
                    for n in range(3):
                        sent[i].append(c.execute(f"print({seconds}, {n}, file=open({marks[i]!r}, 'a'))"))
                time.sleep(seconds)
            finally:
                control("start")
        for i, c in enumerate(clients):
            c.wait(printing[i])
            assert c.stdout(printing[i]) == "".join(f"line {n}\n" for n in range(LINES)), "not every line once and in order"
            for cell in sent[i]:
                c.wait(cell)
            with open(marks[i]) as f:
                assert f.read() == "".join(f"{s} {n}\n" for s in (1, 3) for n in range(3)), "not every cell once and in order"


def large(server):
    """Sends messages with buffers of any size to the kernel and back."""
    for v1 in True, False:
        with kernel(server, v1) as client:
            client.wait(client.execute(
                "def echo(comm, opened):\n    comm.on_msg(lambda m: comm.send(data={}, buffers=m['buffers']))\n"
                "get_ipython().kernel.comm_manager.register_target('echo', echo)"))
            comm = uuid.uuid4().hex
            client.send("comm_open", {"comm_id": comm, "target_name": "echo", "data": {}})
            data = [os.urandom(LARGE), b"", b"\0\xff"]
            client.send("comm_msg", {"comm_id": comm, "data": {}}, data)
            answer = lambda: [m for m in list(client.got) if m["header"]["msg_type"] == "comm_msg"]  # noqa: E731
            wait_for(f"the answer; {client.ended}", 60, lambda: client.ended or answer())
            assert not client.ended, client.ended
            assert answer()[0]["buffers"] == data, "the buffers came back changed"


def relayed(server):
    """Checks that the server has the extension: some checks would pass without it, too."""
    with open(server.log.name) as log:
        assert "jupyter-ekg" in log.read(), "the server has no jupyter-ekg"


def main():
    with tempfile.TemporaryDirectory() as d:
        server = Server(d, python=os.environ["EKG_SERVER"])
        try:
            print(f"# jupyter_server {check('the server starts', server.wait)['version']}")
            check("the server has the extension", relayed, server)
            check("every line and every cell once while the gateway is killed, in both framings", killed, server, d)
            check("buffers of 12 MB there and back, in both framings", large, server)
        finally:
            server.stop()
    finish()


if __name__ == "__main__":
    sys.exit(main())
