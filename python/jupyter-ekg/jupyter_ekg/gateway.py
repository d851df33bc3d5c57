"""Requests to the gateway with the address, credential and TLS settings of jupyter_server's GatewayClient.

Websockets and long streams use aiohttp, one session for each. Tornado's client, which jupyter_server uses, answers
pings by itself and accepts no message over 10 MiB.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import os
import ssl
from collections.abc import AsyncIterator, Awaitable
from typing import Any, TypeVar
from urllib.parse import quote, urlencode

import aiohttp
import yarl
from jupyter_server.gateway.gateway_client import GatewayClient

from ._version import __version__

RELAY = "v1.relay.ekg"

_T = TypeVar("_T")

_MAX_LINE = 1 << 30  # bound on one log line, in bytes

# An upgrade without an answer is repeated after this time, in seconds: the machine may be gone.
_MAX_CONNECT_TIME = 15.0

# The meaning of an upgrade's status code: aiohttp does not return the body.
_REFUSALS = {
    401: "the gateway does not accept this server's credential",
    403: "the gateway does not accept this server's credential",
    404: "the gateway has no such kernel",
    429: "the gateway has too many requests",
    502: "the gateway is away",
    503: "the gateway cannot reach the kernel at the moment",
    504: "the gateway is away",
}


async def within(seconds: float | None, awaitable: Awaitable[_T]) -> _T:
    """Awaits for at most so many seconds; raises asyncio.TimeoutError. Unlike asyncio.wait_for before Python 3.12, it
    does not lose a cancellation that arrives together with the result."""
    future = asyncio.ensure_future(awaitable)
    try:
        done, _ = await asyncio.wait((future,), timeout=seconds)
        if not done:
            raise asyncio.TimeoutError
        return future.result()
    finally:
        future.cancel()


class Refused(Exception):
    """The gateway answered with an HTTP error. ``message`` is its own sentence.

    ``is_own`` says whether the body is one of ekg's errors. Otherwise a proxy may have answered."""

    def __init__(self, status: int, message: str, is_own: bool = False):
        super().__init__(f"{message} (HTTP {status})")
        self.status = status
        self.message = message
        self.is_own = is_own


class Unreachable(Exception):
    """The gateway did not answer."""


def _options() -> dict[str, Any]:
    """Returns what GatewayClient sends with every request. Calls a configured token renewer."""
    return GatewayClient.instance().load_connection_args()


def _headers(options: dict[str, Any]) -> dict[str, str]:
    headers = {"User-Agent": f"jupyter-ekg/{__version__}", **options.get("headers", {})}
    if options.get("auth_username") or options.get("auth_password"):
        # As with Tornado's client, a user name replaces the token.
        pair = f"{options.get('auth_username') or ''}:{options.get('auth_password') or ''}"
        headers = {k: v for k, v in headers.items() if k.lower() != "authorization"}
        headers["Authorization"] = "Basic " + base64.b64encode(pair.encode()).decode()
    return headers


def _ssl(options: dict[str, Any]) -> ssl.SSLContext:
    client = GatewayClient.instance()
    context = ssl.create_default_context(cafile=client.ca_certs or None)
    if not options.get("validate_cert", True):
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    if client.client_cert:
        context.load_cert_chain(client.client_cert, client.client_key or None)
    return context


def _session(options: dict[str, Any], url: str) -> aiohttp.ClientSession:
    connector = (
        aiohttp.TCPConnector(ssl=_ssl(options)) if url.lower().startswith(("https", "wss")) else aiohttp.TCPConnector()
    )
    return aiohttp.ClientSession(
        connector=connector,
        # GatewayClient keeps the cookies if configured, and puts them into the headers.
        cookie_jar=aiohttp.DummyCookieJar(),
        headers=_headers(options),
        timeout=aiohttp.ClientTimeout(
            total=None, sock_connect=min(GatewayClient.instance().connect_timeout, _MAX_CONNECT_TIME)
        ),
    )


def _kernel_path(kernel_id: str) -> str:
    return GatewayClient.instance().kernels_endpoint.rstrip("/") + "/" + quote(kernel_id, safe="")


def _websocket_base() -> str:
    client = GatewayClient.instance()
    url, ws_url = client.url or "", client.ws_url or ""
    if ws_url == url.lower().replace("http", "ws"):
        return "ws" + url[len("http") :]  # GatewayClient's own default lower-cases the path
    return ws_url


def websocket_url(kernel_id: str, session_id: str = "", cursor: bytes = b"") -> str:
    """Returns the address of a kernel's websocket."""
    query = {k: v for k, v in (("session_id", session_id), ("cursor", cursor.hex())) if v}
    return (
        _websocket_base().rstrip("/")
        + _kernel_path(kernel_id)
        + "/channels"
        + ("?" + urlencode(query) if query else "")
    )


@contextlib.asynccontextmanager
async def channels(kernel_id: str, session_id: str, cursor: bytes) -> AsyncIterator[aiohttp.ClientWebSocketResponse]:
    """Connects to a kernel's websocket and offers the relay's protocol. The caller checks whether it was selected.

    Raises Refused and Unreachable. The connection is closed at the end.
    """
    options = _options()
    url = websocket_url(kernel_id, session_id, cursor)
    async with _session(options, url) as session:
        try:
            ws = await within(
                _MAX_CONNECT_TIME,
                session.ws_connect(
                    yarl.URL(url, encoded=True), protocols=(RELAY,), autoping=False, max_msg_size=0, compress=0
                ),
            )
        except aiohttp.WSServerHandshakeError as err:
            raise Refused(err.status, _REFUSALS.get(err.status, "the gateway refuses the connection")) from err
        except asyncio.TimeoutError as err:
            raise Unreachable("no answer") from err
        except (aiohttp.ClientError, OSError) as err:
            raise Unreachable(describe(err)) from err
        try:
            yield ws
        finally:
            # A peer that does not answer the close frame must not delay the end of a relay.
            with contextlib.suppress(asyncio.TimeoutError, aiohttp.ClientError, OSError):
                await within(1, ws.close())


@contextlib.asynccontextmanager
async def log(kernel_id: str, query: dict[str, str]) -> AsyncIterator[aiohttp.ClientResponse]:
    """Opens the log of a kernel (``GET /api/kernels/ID/log``) for reading. Raises Refused and Unreachable."""
    async with get(_kernel_path(kernel_id) + "/log", query) as response:
        yield response


async def user() -> str:
    """Returns the name that the gateway has for this server's user. Raises Refused and Unreachable."""
    async with get("/api/me", {}) as response:
        return username(await read_json(response))


async def user_or_none() -> str:
    """Returns the same, or "" if the gateway has no such route. Raises Refused and Unreachable."""
    try:
        return await user()
    except Refused as err:
        if err.status in (404, 405):
            return ""
        raise


async def kernels() -> list[Any]:
    """Returns the models of the kernels that the gateway lists. Raises Refused and Unreachable."""
    async with get(GatewayClient.instance().kernels_endpoint, {}) as response:
        models = await read_json(response)
    if not isinstance(models, list):
        raise Unreachable("its list of kernels is no list")
    return models


async def kernel(kernel_id: str) -> dict[str, Any]:
    """Returns a kernel's model. Raises Refused and Unreachable."""
    async with get(_kernel_path(kernel_id), {}) as response:
        model = await read_json(response)
    return model if isinstance(model, dict) else {}


async def change(kernel_id: str, method: str, action: str = "", body: Any = None) -> Any:
    """Sends a request that changes a kernel: ``action`` is a path below the kernel's. Returns the answer's JSON, or
    None if there is none. Raises Refused and Unreachable."""
    return await send(method, _kernel_path(kernel_id) + action, body)


async def wake(kernel_id: str) -> bool:
    """Says that a cell will follow in a kernel. Returns whether the kernel may be parked. Raises Refused and Unreachable."""
    return await change(kernel_id, "POST", "/wake") is not None


async def send(method: str, path: str, body: Any = None) -> Any:
    """Sends a request to the gateway, with a body of JSON unless it is None. Returns the answer's JSON, None for an answer
    of 204, or an empty object for another one without a body. Raises Refused and Unreachable."""
    options = _options()
    url = (GatewayClient.instance().url or "").rstrip("/") + path
    async with _session(options, url) as session:
        try:
            request = session.request(method, yarl.URL(url, encoded=True), json=body)
            response = await within(GatewayClient.instance().request_timeout, request)
        except asyncio.TimeoutError as err:
            raise Unreachable("no answer") from err
        except (aiohttp.ClientError, OSError, ValueError) as err:
            raise Unreachable(describe(err)) from err
        async with response:
            if response.status >= 300:
                raise await _refused(response)
            if response.status == 204:
                return None
            return {} if response.content_length == 0 else await read_json(response)


@contextlib.asynccontextmanager
async def events() -> AsyncIterator[aiohttp.ClientResponse]:
    """Opens the gateway's stream of events. Raises Refused and Unreachable."""
    async with get("/api/events", {}) as response:
        yield response


async def read_events(response: aiohttp.ClientResponse, silence: float) -> AsyncIterator[tuple[str, Any]]:
    """Yields the names and data of server-sent events. Ends with the stream. Raises Unreachable if the stream breaks
    off, or says nothing for ``silence`` seconds."""
    name = ""
    async for line in _lines(response, silence):
        field, _, value = line.decode(errors="replace").partition(": ")
        if field == "event":
            name = value
        elif field == "data":
            try:
                yield name, json.loads(value)
            except ValueError as err:
                raise Unreachable(f"an event cannot be read: {err}") from err


def username(answer: Any) -> str:
    """Returns the name in an answer to ``GET /api/me``, or ""."""
    identity = answer.get("identity") if isinstance(answer, dict) else None
    name = identity.get("username") if isinstance(identity, dict) else None
    return name if isinstance(name, str) else ""


async def is_own(kernel_id: str) -> bool:
    """Reports whether no other user can run code in a kernel, or could before. Raises Refused and Unreachable.

    A user with whom the kernel is shared to use can publish output in the name of any cell. Code of that user may go on
    after the grant was withdrawn."""
    model = await kernel(kernel_id)
    if not model:
        return False
    if not has_users(model):
        return True
    if model.get("shared_to_use", False) is not False:
        return False
    grants = model.get("shared_with")
    if not isinstance(grants, list) or any(not isinstance(g, dict) or g.get("right") != "read" for g in grants):
        return False
    return bool(model.get("owner")) and model["owner"] == await user()


def has_users(model: dict[str, Any]) -> bool:
    """Reports whether a kernel's model is of a gateway that has users. Otherwise all its clients are one owner.

    A kernel that was started before there were users has no owner; only admins see it, with ``shared_with``."""
    return "owner" in model or "shared_with" in model


async def log_lines(response: aiohttp.ClientResponse) -> AsyncIterator[dict[str, Any]]:
    """Yields the lines of a log as they arrive. Raises Unreachable if the connection breaks."""
    async for line in _lines(response, None):
        try:
            value = json.loads(line) if line.strip() else None
        except ValueError as err:
            raise Unreachable(f"the log broke off: {err}") from err
        if isinstance(value, dict):
            yield value


async def _lines(response: aiohttp.ClientResponse, silence: float | None) -> AsyncIterator[bytes]:
    """Yields the complete lines of a body, of any length up to the bound. Raises Unreachable if the connection breaks,
    or brings nothing for ``silence`` seconds."""
    begun: list[bytes] = []  # pieces of an incomplete line
    length = 0
    while True:
        try:
            reading = response.content.readany()
            piece = await (reading if silence is None else within(silence, reading))
        except asyncio.TimeoutError as err:
            raise Unreachable("it is silent") from err
        except aiohttp.ClientError as err:
            raise Unreachable("the connection broke") from err  # aiohttp's text is about its parser
        if not piece:
            return
        *ends, rest = piece.split(b"\n")
        for end in ends:
            yield b"".join((*begun, end))
            begun.clear()
            length = 0
        begun.append(rest)
        length += len(rest)
        if length > _MAX_LINE:
            raise Unreachable("a line has no end")


@contextlib.asynccontextmanager
async def get(path: str, query: dict[str, str]) -> AsyncIterator[aiohttp.ClientResponse]:
    """Sends a GET request to the gateway whose body may be long or endless. Raises Refused and Unreachable."""
    options = _options()
    url = (GatewayClient.instance().url or "").rstrip("/") + path
    async with _session(options, url) as session, fetch(session, url, query) as response:
        yield response


@contextlib.asynccontextmanager
async def fetch(
    session: aiohttp.ClientSession, url: str, query: dict[str, str]
) -> AsyncIterator[aiohttp.ClientResponse]:
    """Sends a GET request and yields a 200 response. Raises Refused and Unreachable, also if the body breaks off."""
    if query:
        url += "?" + urlencode(query)
    try:
        response = await within(2 * _MAX_CONNECT_TIME, session.get(yarl.URL(url, encoded=True)))
    except asyncio.TimeoutError as err:
        raise Unreachable("no answer") from err
    except (aiohttp.ClientError, OSError, ValueError) as err:
        raise Unreachable(describe(err)) from err
    async with response:
        if response.status != 200:
            raise await _refused(response)
        yield response


async def read_json(response: aiohttp.ClientResponse) -> Any:
    """Returns a response's body as JSON. Raises Unreachable if the body breaks off or is not JSON."""
    try:
        return json.loads(await within(2 * _MAX_CONNECT_TIME, response.read()))
    except (aiohttp.ClientError, asyncio.TimeoutError, ValueError) as err:
        raise Unreachable(f"the answer cannot be read: {err}") from err


def describe(err: BaseException) -> str:
    """Describes an error of a connection, without aiohttp's details."""
    cause = err.os_error if isinstance(err, aiohttp.ClientConnectorError) else err
    if isinstance(cause, OSError) and cause.errno and cause.errno > 0:
        return os.strerror(cause.errno)
    return str(cause) or type(cause).__name__


async def _refused(response: aiohttp.ClientResponse) -> Refused:
    """Returns the error of a response, with the message in its body, or the status line."""
    default = response.reason or "error"
    try:
        body = json.loads(await within(_MAX_CONNECT_TIME, response.read()))
    except (ValueError, aiohttp.ClientError, asyncio.TimeoutError):
        body = None
    if not isinstance(body, dict):
        return Refused(response.status, default)
    reason, message = body.get("reason"), body.get("message")
    return Refused(
        response.status, str(message or reason or default), isinstance(reason, str) and isinstance(message, str)
    )
