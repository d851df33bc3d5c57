"""Jupyter's messages on a websocket: v1 frames, and their conversion from and to the older JSON framing.

A v1 frame is n, then n offsets (unsigned 64 bit, little endian), then the parts: channel, header, parent header,
metadata, content, buffers. The last offset is the frame's length. Nothing here copies a frame but the conversions.
"""

from __future__ import annotations

import json
import struct
import uuid
from datetime import datetime, timezone
from typing import Any, NamedTuple

from jupyter_server.services.kernels.connection.base import (
    deserialize_binary_message,
    deserialize_msg_from_ws_v1,
    serialize_binary_message,
    serialize_msg_to_ws_v1,
)

try:
    from jupyter_client.jsonutil import json_default
except ImportError:  # jupyter_client before 7
    from jupyter_client.jsonutil import date_default as json_default

V1 = "v1.kernel.websocket.jupyter.org"

_CHANNELS = (b"shell", b"control", b"stdin", b"iopub")
_PROTOCOL_VERSION = "5.3"


class FrameError(ValueError):
    """A frame is not a message."""


class Frame(NamedTuple):
    """The offsets of the parts of a v1 frame. A part is read from the frame on access."""

    data: bytes
    offsets: tuple

    @property
    def channel(self) -> str:
        """The channel's name, as shell or iopub."""
        return self._part(0).decode("utf-8", "replace")

    @property
    def header(self) -> bytes:
        """The header's JSON."""
        return self._part(1)

    @property
    def parent_header(self) -> bytes:
        """The parent header's JSON."""
        return self._part(2)

    @property
    def content(self) -> bytes:
        """The content's JSON."""
        return self._part(4)

    def _part(self, i: int) -> bytes:
        return self.data[self.offsets[i] : self.offsets[i + 1]]


def parse(data: bytes) -> Frame:
    """Finds the parts of a v1 frame. Raises FrameError if the offsets are not those of a message."""
    if len(data) < 8:
        raise FrameError("shorter than a message")
    (count,) = struct.unpack_from("<Q", data)
    if count < 6 or 8 * (count + 1) > len(data):
        raise FrameError(f"{count} offsets in {len(data)} bytes")
    offsets = struct.unpack_from(f"<{count}Q", data, 8)
    if offsets[0] != 8 * (count + 1) or offsets[-1] != len(data):
        raise FrameError("the offsets do not span the frame")
    if any(a > b for a, b in zip(offsets, offsets[1:])):
        raise FrameError("the offsets decrease")
    return Frame(data, offsets)


def pack(channel: str, parts: list) -> bytes:
    """Makes a v1 frame of a channel's name and header, parent header, metadata, content (bytes) and buffers."""
    return serialize_msg_to_ws_v1(parts, channel)


def to_legacy(data: bytes) -> str | bytes:
    """Converts a v1 frame to the JSON framing: text, or binary where it has buffers."""
    msg = to_dict(data)
    if msg["buffers"]:
        return serialize_binary_message(msg)
    return json.dumps(msg, default=json_default)


def to_dict(data: bytes) -> dict[str, Any]:
    """Returns a v1 frame's message as a dictionary with channel, msg_id and msg_type at the top, as clients expect."""
    parse(data)
    channel, parts = deserialize_msg_from_ws_v1(data)
    header, parent_header, metadata, content = (_object(part) for part in parts[:4])
    return {
        "header": header,
        "msg_id": header.get("msg_id", ""),
        "msg_type": header.get("msg_type", ""),
        "parent_header": parent_header,
        "metadata": metadata,
        "content": content,
        "buffers": parts[4:],
        "channel": channel,
    }


def from_legacy(data: str | bytes) -> bytes | None:
    """Converts a message in the JSON framing to a v1 frame; None if it names a channel that does not exist."""
    try:
        msg = deserialize_binary_message(data) if isinstance(data, bytes) else json.loads(data)
    except (ValueError, KeyError, IndexError, TypeError, struct.error) as err:
        raise FrameError(f"not a message: {err}") from err
    return from_dict(msg)


def from_dict(msg: Any) -> bytes | None:
    """Makes a v1 frame of a message as a dictionary; None if it names a channel that does not exist."""
    if not isinstance(msg, dict) or not isinstance(msg.get("header"), dict):
        raise FrameError("not a message: no header")
    channel = msg.get("channel") or "shell"
    if not isinstance(channel, str) or channel.encode("utf-8", "replace") not in _CHANNELS:
        return None
    parts = [
        json.dumps(msg.get(key) or {}, default=json_default, ensure_ascii=False).encode("utf-8", "surrogatepass")
        for key in ("header", "parent_header", "metadata", "content")
    ]
    buffers = [bytes(memoryview(b)) for b in msg.get("buffers") or []]
    return pack(channel, parts + buffers)


def make(msg_type: str, session: str, parent_header: bytes, content: dict[str, Any]) -> bytes:
    """Makes an iopub message in the kernel's name: ``session`` is the kernel's, ``parent_header`` JSON or empty."""
    header = {
        "msg_id": str(uuid.uuid4()),
        "msg_type": msg_type,
        "username": "",
        "session": session,
        "date": datetime.now(timezone.utc).isoformat(),
        "version": _PROTOCOL_VERSION,
    }
    return pack("iopub", [json.dumps(header).encode(), parent_header or b"{}", b"{}", json.dumps(content).encode()])


def loads_object(data: bytes) -> dict[str, Any]:
    """Returns the JSON object in ``data``, or an empty one if it is not an object. For inspection only."""
    try:
        return _object(data)
    except FrameError:
        return {}


def _object(data: bytes) -> dict[str, Any]:
    try:
        value = json.loads(data or b"{}")
    except ValueError as err:
        raise FrameError(f"a part is not JSON: {err}") from err
    if not isinstance(value, dict):
        raise FrameError("a part is not an object")
    return value
