"""Runs code with a client whose channels are no ZeroMQ sockets, which jupyter_client's own function polls."""

from __future__ import annotations

import asyncio
import contextlib
import queue
import time
from typing import TYPE_CHECKING, Any, Callable

from jupyter_core.utils import ensure_async

if TYPE_CHECKING:
    from .client import EkgChannel, EkgKernelClient


async def output_and_reply(
    client: EkgKernelClient,
    msg_id: str,
    output_hook: Callable[[dict[str, Any]], Any],
    stdin_hook: Callable[[dict[str, Any]], Any],
    timeout: float | None,
) -> dict[str, Any]:
    """Passes a request's output and input requests to the hooks until it has ended, and returns the reply.

    Messages of other requests are dropped. Raises TimeoutError after ``timeout`` seconds.
    """
    end = None if timeout is None else time.monotonic() + timeout
    reading: dict[EkgChannel, asyncio.Future] = {}
    try:
        while True:
            for channel in (client.stdin_channel, client.iopub_channel):
                if channel not in reading:
                    reading[channel] = asyncio.ensure_future(channel.get_msg())
            done, _ = await asyncio.wait(reading.values(), timeout=_left(end), return_when=asyncio.FIRST_COMPLETED)
            if not done:
                raise TimeoutError("Timeout waiting for output")
            for channel in [channel for channel, future in reading.items() if future in done]:
                msg = reading.pop(channel).result()
                if msg["parent_header"].get("msg_id") != msg_id:
                    continue
                if channel is client.stdin_channel:
                    await ensure_async(stdin_hook(msg))
                    continue
                output_hook(msg)
                if msg["header"]["msg_type"] == "status" and msg["content"]["execution_state"] == "idle":
                    return await _reply(client.shell_channel, msg_id, end)
    finally:
        for future in reading.values():
            future.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.gather(*reading.values(), return_exceptions=True)


async def _reply(shell: EkgChannel, msg_id: str, end: float | None) -> dict[str, Any]:
    while True:
        try:
            msg = await shell.get_msg(timeout=_left(end))
        except queue.Empty:
            raise TimeoutError("Timeout waiting for reply") from None
        if msg["parent_header"].get("msg_id") == msg_id:
            return msg


def _left(end: float | None) -> float | None:
    return None if end is None else max(0.0, end - time.monotonic())
