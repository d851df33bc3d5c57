"""HTTP errors whose text a client gets as it is."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from tornado import web

from . import gateway


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
