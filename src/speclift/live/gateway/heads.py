"""The heads that the gateway writes: a caller's request for a server, a server's answer for the caller. Pure.

What concerns one connection alone does not travel (RFC 9110, 7.6.1); bodies are framed anew on each side, so that no
two programs can disagree on where a message ends.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterable
from http import HTTPStatus

from speclift.core.address import Address
from speclift.core.routing import POOL_FIELD, REQUEST_ID_FIELD, THROUGH_FIELD, ServerPool
from speclift.http.message import HttpRequest
from speclift.http.pages import COOKIE

_HOP_BY_HOP = frozenset(
    {
        *(b"connection", b"keep-alive", b"proxy-authenticate", b"proxy-authorization", b"proxy-connection"),
        *(b"te", b"trailer", b"transfer-encoding", b"upgrade", b"content-length", b"http2-settings"),
    }
)
_FROM_CALLER = frozenset({*_HOP_BY_HOP, b"host", b"expect", b"accept-encoding", REQUEST_ID_FIELD.encode()})
_FROM_SERVER = frozenset({*_HOP_BY_HOP, REQUEST_ID_FIELD.encode(), POOL_FIELD.encode()})
_REQUEST_ID = re.compile(rb"[A-Za-z0-9._:-]{1,128}")
# No line that goes on in the next: the one before it may be dropped.
_FIELD = re.compile(rb"[^\s:]+[ \t]*:[^\r\n\0]*")
# In it, a server could hide a line of its own.
_PHRASE = re.compile(rb"[\t\x20-\x7e\x80-\xff]+")
BODILESS = (204, 304)


def request_id_of(request: HttpRequest) -> str:
    """The caller's own where it can stand in a header and a log; else a new one."""
    given = next((value for name, value in request.fields if name == REQUEST_ID_FIELD.encode()), b"")
    return given.decode("ascii") if _REQUEST_ID.fullmatch(given) else secrets.token_hex(16)


def request_head(
    request: HttpRequest,
    address: Address,
    *,
    request_id: str,
    gateway: bytes,
    authorization: bytes | None,
    passes_key: bool,
) -> bytes:
    """`gateway` is our name, by which a request that comes back is known. `authorization` is what the server wants to
    see; with `passes_key` the caller's own goes on where there is none: a key that opens the gateway is no business of
    the servers'."""
    own = authorization or (address.authorization or "").encode() or None
    dropped = set(_FROM_CALLER) | _named_in_connection(request.fields)
    if any(name == b"cookie" and COOKIE.encode() in value for name, value in request.fields):
        dropped.add(b"cookie")
    if own is not None or not passes_key:
        dropped.add(b"authorization")
    lines = [
        f"{request.method} {_target(request, address)} HTTP/1.1".encode("ascii"),
        b"host: " + address.host_field.encode("ascii"),
        *(name + b": " + value for name, value in request.fields if name not in dropped),
        # Counts inside an answer are read on the way.
        b"accept-encoding: identity",
        b"x-request-id: " + request_id.encode("ascii"),
        THROUGH_FIELD.encode() + b": " + gateway,
    ]
    if own is not None:
        lines.append(b"authorization: " + own)
    if request.body or request.method in ("POST", "PUT", "PATCH"):
        lines.append(b"content-length: %d" % len(request.body))
    return b"\r\n".join(lines) + b"\r\n\r\n"


def has_come_through(request: HttpRequest, gateway: bytes) -> bool:
    """One of the servers is this gateway, or leads to it."""
    return any(name == THROUGH_FIELD.encode() and value == gateway for name, value in request.fields)


def _target(request: HttpRequest, address: Address) -> str:
    """Below the server's own path; a query of its address stands first."""
    place, _, query = request.target.partition("?")
    queries = "&".join(part for part in (address.query, query) if part)
    return address.path.rstrip("/") + place + (f"?{queries}" if queries else "")


def answer_head(
    head: bytes,
    *,
    status: int,
    length: int | None,
    framing: bytes,
    pool: ServerPool,
    request_id: str,
) -> bytes:
    """`framing` says how the body comes where no length is known."""
    first, *lines = head.split(b"\r\n")
    fields = [(name.strip().lower(), line) for line in lines for name in (line.partition(b":")[0],)]
    dropped = _FROM_SERVER | _named_in_connection((name, line.partition(b":")[2]) for name, line in fields)
    kept = [line for name, line in fields if name not in dropped and _FIELD.fullmatch(line)]
    phrase = first.partition(b" ")[2].partition(b" ")[2].strip()
    if not _PHRASE.fullmatch(phrase):
        phrase = _phrase(status)
    if status in BODILESS:
        framing = b""
    elif length is not None:
        framing = b"content-length: %d\r\n" % length
    own = f"{POOL_FIELD}: {pool.value}\r\n{REQUEST_ID_FIELD}: {request_id}\r\n".encode("ascii")
    body = b"".join(line + b"\r\n" for line in kept)
    return b"HTTP/1.1 %d %b\r\n%b%b%b" % (status, phrase, body, own, framing)


def _phrase(status: int) -> bytes:
    try:
        return HTTPStatus(status).phrase.encode("ascii")
    except ValueError:
        return b"Unknown"


def _named_in_connection(fields: Iterable[tuple[bytes, bytes]]) -> set[bytes]:
    """What one side declared to concern this connection alone; its framing and key cannot be taken away so."""
    named = {
        word.strip().lower() for name, value in fields if name == b"connection" for word in value.split(b",")
    }
    return named - {b"authorization", b"content-type", b"host", b"cookie"}
