"""libzmq's side of TestSocket_Libzmq: sys.argv has the endpoints of a ROUTER that echoes, an XPUB and a REP."""

import sys

import zmq

router, xpub, rep = sys.argv[1:4]
context = zmq.Context()


def connect(kind, endpoint, **options):
    socket = context.socket(kind)
    socket.linger = 0
    socket.rcvtimeo = socket.sndtimeo = 20_000
    for name, value in options.items():
        setattr(socket, name, value)
    socket.connect(endpoint)
    return socket


def echoes(socket, frames):
    socket.send_multipart(frames)
    got = socket.recv_multipart()
    assert got == frames, f"{len(got)} frames, {len(frames)} sent"


dealer = connect(zmq.DEALER, router, identity=b"me")
# libzmq's own heartbeats come between messages, and between the frames of one.
beating = connect(zmq.DEALER, router, heartbeat_ivl=20, heartbeat_timeout=5000)
for socket in (dealer, beating):
    echoes(socket, [b"x"])
    echoes(socket, [b"", b"a", b"", b""])
    echoes(socket, [bytes(n) for n in (254, 255, 256, 65536)])
    echoes(socket, [b"frame"] * 3000)
    echoes(socket, [b"head", b"0123456789" * 2_000_000])
assert not beating.poll(300), "a beating socket gets a message"
echoes(beating, [b"still there"])

# Two peers with one identity: the answer goes to the one that asked.
twin = connect(zmq.DEALER, router, identity=b"me")
echoes(twin, [b"twin"])
echoes(dealer, [b"first"])
twin.send_multipart([b"to", b"me"])  # Socket.Send to the identity: to the one that came last
assert twin.recv_multipart() == [b"sent"]
assert not dealer.poll(100)

heart = connect(zmq.REQ, rep)
for _ in range(3):
    heart.send(b"ping")
    assert heart.recv() == b"ping"

# The ROUTER publishes what it is asked to. A subscription is announced to its peer alone.
subscriber = connect(zmq.SUB, xpub, subscribe=b"a.")
assert subscriber.recv_multipart() == [b"a.", b"welcome"]
everything = connect(zmq.SUB, xpub, subscribe=b"")
assert everything.recv_multipart() == [b"", b"welcome"]
for topic in (b"a.1", b"b.1", b"a.2"):
    echoes(dealer, [b"publish", topic])
assert [subscriber.recv_multipart()[0] for _ in range(2)] == [b"a.1", b"a.2"]
assert [everything.recv_multipart()[0] for _ in range(3)] == [b"a.1", b"b.1", b"a.2"]
subscriber.unsubscribe(b"a.")
subscriber.subscribe(b"b.")
assert subscriber.recv_multipart() == [b"b.", b"welcome"]
for topic in (b"a.3", b"b.2"):
    echoes(dealer, [b"publish", topic])
assert subscriber.recv_multipart()[0] == b"b.2"

# A socket of a type that does not fit gets nothing, and harms nobody.
wrong = connect(zmq.PULL, xpub)
echoes(dealer, [b"after"])
print("done")
