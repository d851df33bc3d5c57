"""The kernel's side of ZeroMQ as kernels have it, by libzmq: a ROUTER and a REP that echo, and an XPUB.

Usage: zmqpeer.py DIR. It binds each socket on tcp and on ipc, writes the endpoints as one line of JSON to stdout, and
ends when stdin does. The ROUTER beats twice a second and drops a peer that does not answer. A message
["publish", N, SIZE] to the ROUTER makes the XPUB send N messages [topic, number, SIZE bytes] to its subscriber.
"""

import json
import os
import sys
import threading

import zmq


def bind(ctx, kind, directory, name, **options):
    socket = ctx.socket(kind)
    for option, value in options.items():
        setattr(socket, option, value)
    port = socket.bind_to_random_port("tcp://127.0.0.1")
    ipc = "ipc://" + os.path.join(directory, name)
    socket.bind(ipc)
    return socket, {"tcp": f"tcp://127.0.0.1:{port}", "ipc": ipc}


def main():
    ctx = zmq.Context()
    router, router_at = bind(
        ctx, zmq.ROUTER, sys.argv[1], "router", heartbeat_ivl=500, heartbeat_timeout=500, rcvhwm=0, sndhwm=0
    )
    rep, rep_at = bind(ctx, zmq.REP, sys.argv[1], "rep")
    xpub, xpub_at = bind(ctx, zmq.XPUB, sys.argv[1], "xpub", sndhwm=0)

    def serve():
        poller = zmq.Poller()
        for socket in (router, rep, xpub):
            poller.register(socket, zmq.POLLIN)
        while True:
            for socket, _ in poller.poll():
                message = socket.recv_multipart()
                if socket is router and message[1] == b"publish":
                    body = b"x" * int(message[3])
                    for i in range(int(message[2])):
                        xpub.send_multipart([b"topic", b"%d" % i, body])
                elif socket is xpub:
                    xpub.send_multipart([b"welcome", message[0]])
                else:
                    socket.send_multipart(message)

    threading.Thread(target=serve, daemon=True).start()
    print(json.dumps({"router": router_at, "rep": rep_at, "xpub": xpub_at}), flush=True)
    sys.stdin.read()
    os._exit(0)


main()
