"""Runs cells on websockets of the library websockets, each with its own offers of compression.

    offers.py < INPUT      INPUT is JSON: {"url", "header": {}, "together": bool, "cases": [{"offers": [{}], "random": bool}]}

An offer has the arguments of ClientPerMessageDeflateFactory. A random text is sent in fragments. With "together" all
websockets are open before the line "entered" is printed, and before any output is read. Then it prints a line of JSON for
each case: the answered extensions, how many messages came compressed, and whether the cell's output was right.
"""

import base64
import contextlib
import json
import random
import sys

from websockets.extensions import permessage_deflate
from websockets.sync.client import connect


class Deflate(permessage_deflate.PerMessageDeflate):
    """Counts the messages that come compressed."""

    compressed = 0

    def decode(self, frame, **options):
        self.compressed += frame.rsv1
        return super().decode(frame, **options)


permessage_deflate.PerMessageDeflate = Deflate


class Case:
    def __init__(self, number, size, offers, random):
        noise = base64.b64encode(random_bytes(size)).decode()
        self.text = noise if random else "some text " * (size // 10) + str(number)
        self.id, self.offers, self.fragments = f"case{number}", offers, random
        self.output, self.replied = "", False

    def enter(self, url, header):
        self.ws = stack.enter_context(connect(
            f"{url}?session_id={self.id}",
            compression=None,
            extensions=[permessage_deflate.ClientPerMessageDeflateFactory(**o) for o in self.offers] or None,
            additional_headers=header,
            max_size=None,
            max_queue=None,  # else close waits for messages that are not read
            proxy=None,
        ))
        head = {"msg_id": self.id, "msg_type": "execute_request", "session": self.id, "username": "", "version": "5.3"}
        content = {"code": "echo " + self.text, "silent": False, "store_history": True}
        message = json.dumps(
            {"channel": "shell", "header": head, "parent_header": {}, "metadata": {}, "content": content}
        )
        step = len(message) // 9 if self.fragments else len(message)
        self.ws.send(message[i : i + step] for i in range(0, len(message), step))
        return self

    def finish(self):
        while not (self.replied and len(self.output) > len(self.text)):
            message = json.loads(self.ws.recv(timeout=20))
            if message["parent_header"].get("msg_id") != self.id:
                continue
            self.output += message["content"].get("text", "")
            self.replied = self.replied or message["header"]["msg_type"] == "execute_reply"
        answer = {
            "extensions": self.ws.response.headers.get("Sec-WebSocket-Extensions", ""),
            "compressed": sum(e.compressed for e in self.ws.protocol.extensions),
            "right": self.output == self.text + "\n",
        }
        self.ws.close()
        print(json.dumps(answer), flush=True)


random_bytes = random.Random(1).randbytes
given = json.load(sys.stdin)
together = given["together"]
size = 3_000 if together else 60_000  # each websocket gets the output of all cells
cases = [Case(i, size, **case) for i, case in enumerate(given["cases"])]
with contextlib.ExitStack() as stack:
    entered = (case.enter(given["url"], given["header"]) for case in cases)
    if together:
        entered = list(entered)
    print("entered", flush=True)
    for case in entered:
        case.finish()
