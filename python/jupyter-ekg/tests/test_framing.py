"""Both framings: what is converted comes back the same, and what is no message is refused."""

import json
import struct

import pytest
from supervisor import iopub, request

from jupyter_ekg import framing


def test_parts_are_found():
    """The channel and the parts that are looked at."""
    frame = framing.parse(iopub("stream", {"name": "stdout"}, {"msg_id": "p"}, buffers=(b"\x00\xff",)))
    assert frame.channel == "iopub"
    assert json.loads(frame.header)["msg_type"] == "stream"
    assert json.loads(frame.parent_header) == {"msg_id": "p"}
    assert json.loads(frame.content) == {"name": "stdout"}


@pytest.mark.parametrize(
    "bad",
    [
        b"",
        b"\x01",
        struct.pack("<Q", 1 << 62) + bytes(100),
        struct.pack("<QQ", 1, 16) + bytes(100),
        struct.pack("<8Q", 6, 56, 56, 56, 56, 56, 56, 0),
        struct.pack("<8Q", 7, 64, 64, 80, 70, 64, 64, 64)[:64],
        request("a") + b"x",
        request("a")[:-1],
    ],
)
def test_what_is_no_message(bad):
    """Offsets that lie do not get anywhere."""
    with pytest.raises(framing.FrameError):
        framing.parse(bad)


def test_to_the_older_framing_and_back():
    """Text, and binary with buffers; empty buffers too."""
    for buffers in ((), (b"\xff" * 10, b"", b"z")):
        frame = iopub("comm_msg", {"comm_id": "ü"}, {"msg_id": "p"}, buffers)
        legacy = framing.to_legacy(frame)
        assert isinstance(legacy, bytes if buffers else str)
        back = framing.to_dict(framing.from_legacy(legacy))
        want = framing.to_dict(frame)
        assert back["header"].pop("date").startswith("2026-01-02T03:04:05")
        want["header"].pop("date")
        assert back == want


def test_older_framing_refuses():
    """Invalid JSON, a missing header and binary garbage are rejected. A message for an unknown channel is ignored."""
    for bad in ("", "[]", "{}", '{"header": 1}', b"", b"\x00\x00\x00\x01", b"\xff" * 20):
        with pytest.raises(framing.FrameError):
            framing.from_legacy(bad)
    assert framing.from_legacy('{"header": {}, "channel": "nowhere"}') is None
