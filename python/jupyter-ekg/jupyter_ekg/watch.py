"""What the gateway says about kernels as they change, for all pages of this server.

One ``Watch`` reads the gateway's stream of events (``GET /api/events``) while at least one page reads. It keeps the
newest model of each kernel, and nothing for a page but which models the page has. So a page that reads slowly gets
fewer updates, and costs no memory. A gateway without the stream is asked for its list instead.
"""

from __future__ import annotations

import asyncio
import json
import logging
import random
import time
from collections.abc import AsyncIterator, Callable, Iterable
from typing import Any

from . import gateway

Model = dict[str, Any]  # of a kernel, as the gateway writes it

POLL = 10.0  # seconds between two lists of a gateway that has no stream
# Seconds after which such a gateway is asked for the stream again: it may have been replaced by a newer one meanwhile.
_FIRST_AGAIN, _LONGEST_AGAIN = 30.0, 600.0
_SILENCE = 45.0  # seconds; the gateway sends a comment every 15
_FIRST_PAUSE, _LONGEST_PAUSE = 0.5, 10.0  # seconds between two attempts

# A page is asked to look again after this time without news, in seconds: a kernel that the gateway announced may have
# become one of this server's meanwhile.
LOOK_AGAIN = 5.0

_MOST = 250  # kernels of one event, as the gateway's own


class Watch:
    """The kernels that the gateway shows this server's credential. Its task lives while ``pages`` reads."""

    def __init__(self, log: logging.Logger):
        self._log = log
        self._kernels: dict[str, Model] = {}
        self._user = ""
        self._complete = False  # whether a whole list has arrived since the start of the watch
        self._problem: str | None = None  # why the kernels may be out of date
        self._changed: asyncio.Event  # replaced at each change, so that each page awaits its own
        self._pages = 0
        self._task: asyncio.Task | None = None
        self._pause = _FIRST_PAUSE  # before the next attempt
        self._again = _FIRST_AGAIN  # while a gateway without the stream is asked for its list

    async def pages(self, shown: Callable[[Model], bool]) -> AsyncIterator[list[tuple[str, Any]]]:
        """Yields updates for one page: the whole list, then what has changed. ``shown`` picks kernels. An update is
        events with their data; it is empty after a time without news. The caller closes the generator."""
        self._pages += 1
        if self._task is None:
            self._kernels, self._complete, self._problem = {}, False, None
            self._changed = asyncio.Event()  # here, since Python 3.9 binds it to the running loop
            self._task = asyncio.ensure_future(self._run())
        try:
            sent: dict[str, Model] | None = None
            told: str | None = None
            while True:
                changed = self._changed
                events: list[tuple[str, Any]] = []
                if self._complete:
                    events, sent = self._difference(sent, shown)
                if events or (told is not None and self._problem is None):
                    events.append(("complete", {}))
                    told = None  # the page takes a whole list for one that is up to date
                if self._problem is not None and told != self._problem:
                    events.append(("unavailable", {"reason": "Service Unavailable", "message": self._problem}))
                told = self._problem
                yield events
                try:
                    await gateway.within(LOOK_AGAIN, changed.wait())
                except asyncio.TimeoutError:
                    pass
        finally:
            self._pages -= 1
            if self._pages == 0 and self._task is not None:
                self._task.cancel()
                self._task = None

    def _difference(
        self, sent: dict[str, Model] | None, shown: Callable[[Model], bool]
    ) -> tuple[list[tuple[str, Any]], dict[str, Model]]:
        """Returns the events that lead from what a page has to what is, and what it has then."""
        now = {kernel_id: model for kernel_id, model in self._kernels.items() if shown(model)}
        events: list[tuple[str, Any]] = []
        if sent is None:
            events.append(("reset", {"user": self._user}))
            sent = {}
        new = [model for kernel_id, model in now.items() if sent.get(kernel_id) is not model]
        removed = [kernel_id for kernel_id in sent if kernel_id not in now]
        for i in range(0, max(len(new), len(removed)), _MOST):
            events.append(("kernels", {"kernels": new[i : i + _MOST], "removed": removed[i : i + _MOST]}))
        return events, now

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    async def _run(self) -> None:
        """Follows the gateway, and tries again after each end with growing pauses."""
        self._pause, self._again = _FIRST_PAUSE, _FIRST_AGAIN
        while True:
            unexpected: Exception | None = None
            try:
                self._user = await gateway.user_or_none()
                if not await self._stream():
                    await self._poll(self._again)
                    self._again = min(2 * self._again, _LONGEST_AGAIN)
                problem = None
            except gateway.Refused as err:
                problem = err.message
            except gateway.Unreachable as err:
                problem = f"the gateway cannot be reached: {err}"
            except Exception as err:  # an answer that no gateway gives must not end the watch
                problem, unexpected = "the gateway's answer cannot be read", err
            if problem is not None and problem != self._problem:
                self._log.warning("jupyter-ekg: the kernels cannot be watched: %r", problem, exc_info=unexpected)
                self._problem = problem
                self._wake()
            await asyncio.sleep(self._pause * random.uniform(0.75, 1.25))
            self._pause = min(2 * self._pause, _LONGEST_PAUSE)

    async def _stream(self) -> bool:
        """Follows the stream to its end. Returns False if the gateway has none."""
        try:
            async with gateway.events() as response:
                self._again = _FIRST_AGAIN
                kernels: dict[str, Model] = {}
                async for name, data in gateway.read_events(response, _SILENCE):
                    if name == "kernels":
                        _put(kernels, data["kernels"])
                        for kernel_id in data["removed"]:
                            kernels.pop(kernel_id, None)
                    elif name == "unavailable":
                        self._problem = str(data.get("message") or "the gateway cannot list its kernels")
                        self._wake()
                    elif name == "complete":
                        self._take(dict(kernels))
        except gateway.Refused as err:
            if err.status in (404, 405):
                return False
            raise
        return True

    async def _poll(self, seconds: float) -> None:
        """Asks for the list for so many seconds, or until a request fails. Kernels that did not change keep their
        model."""
        end = time.monotonic() + seconds
        while True:
            models = await gateway.kernels()
            kernels: dict[str, Model] = {}
            _put(kernels, models)
            for kernel_id, model in kernels.items():
                if (earlier := self._kernels.get(kernel_id)) == model:
                    kernels[kernel_id] = earlier
            self._take(kernels)
            if time.monotonic() + POLL >= end:
                return
            await asyncio.sleep(POLL)

    def _take(self, kernels: dict[str, Model]) -> None:
        self._kernels, self._complete, self._problem = kernels, True, None
        self._pause = _FIRST_PAUSE
        self._wake()


def _put(kernels: dict[str, Model], models: Iterable[Any]) -> None:
    for model in models:
        if isinstance(model, dict) and isinstance(model.get("id"), str):
            kernels[model["id"]] = model


def event(name: str, data: Any) -> bytes:
    """Returns a server-sent event."""
    return f"event: {name}\ndata: {json.dumps(data)}\n\n".encode()
