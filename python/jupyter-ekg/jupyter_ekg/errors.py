"""HTTP errors whose text a client gets as it is. JupyterLab shows the text in a dialog."""

from __future__ import annotations

import contextlib
import json
import textwrap
from collections.abc import Awaitable, Iterator
from typing import TypeVar

from jupyter_server.gateway.gateway_client import GatewayClient
from tornado import web
from tornado.httpclient import HTTPClientError, HTTPResponse

from . import gateway

_T = TypeVar("_T")

# The longest line of a text, in characters, unless a single word is longer. The gateway's messages have the same bound.
_WIDTH = 80


class PlainError(web.HTTPError):
    """An HTTP error with a text for the user. Its string is this text alone."""

    def __init__(self, status: int, text: str):
        super().__init__(status)
        self.text = text

    @property
    def log_message(self) -> str:
        """The text. jupyter_server answers with it. Tornado's own would double each "%"."""
        return self.text

    @log_message.setter
    def log_message(self, value: object) -> None:
        """Does nothing: Tornado before 6.6 sets it."""

    def get_message(self) -> str:
        """The text, for the log."""
        return self.text

    def __str__(self) -> str:
        return self.text


@contextlib.contextmanager
def of_gateway() -> Iterator[None]:
    """Turns errors of requests to the gateway into HTTP errors."""
    try:
        yield
    except gateway.Refused as err:
        raise PlainError(err.status, err.message) from err
    except gateway.Unreachable as err:
        raise PlainError(503, f"the gateway cannot be reached: {err}") from err


async def plainly(request: Awaitable[_T]) -> _T:
    """Awaits a request that jupyter_server sends to the gateway. Its error says what the gateway says, and only that.

    jupyter_server puts the gateway's message and reason into a sentence of its own about the gateway's address.
    """
    try:
        return await request
    except web.HTTPError as err:
        text = _text(err.__cause__)
        if text is None:
            raise
        raise PlainError(err.status_code, fold(text)) from err


def _text(cause: BaseException | None) -> str | None:
    """Returns a sentence for the cause of an error of jupyter_server's, or None if it is no error of a request."""
    if isinstance(cause, HTTPClientError) and cause.response is not None:
        return _message(cause.response) or f"The gateway {GatewayClient.instance().url} answers with HTTP {cause.code}."
    if isinstance(cause, HTTPClientError):  # such as a timeout
        return f"The gateway {GatewayClient.instance().url} cannot be reached: {cause.message}."
    if isinstance(cause, OSError):
        return f"The gateway {GatewayClient.instance().url} cannot be reached: {gateway.describe(cause)}."
    return None


def _message(response: HTTPResponse) -> str:
    """Returns the message in an error's body, or ""."""
    try:
        body = json.loads(response.body)
    except ValueError:
        return ""  # a proxy has answered
    message = body.get("message") or body.get("reason") if isinstance(body, dict) else None
    return message if isinstance(message, str) else ""


def fold(text: str) -> str:
    """Breaks a text into lines: JupyterLab's dialog breaks none."""
    return "\n".join(textwrap.wrap(text, _WIDTH, break_long_words=False, break_on_hyphens=False))
