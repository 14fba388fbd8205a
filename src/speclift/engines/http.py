"""Small requests to a server about itself, bounded in bytes and in time. Measured traffic never goes through here.

No proxy is used, as measured traffic uses none. A redirect is followed only within the same server and where no
secret travels.
"""

from __future__ import annotations

import asyncio
import http.client
import json
import ssl
import threading
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass
from typing import Any, cast
from urllib.parse import urljoin

from speclift.core.address import Address, address_of, joined, shown, without_secrets
from speclift.core.arm import Endpoint
from speclift.core.errors import EngineError, UsageError
from speclift.core.foreign_text import READ_BYTES_MAX, error_text, parse_json
from speclift.core.units import Seconds
from speclift.engines.patience import PatientSocket, WaitLimit

LIMIT_S = 120.0
# A server's page about itself; vLLM's metrics with all their histograms have some 200 kB (0.32).
PAGE_BYTES_MAX = 8 << 20
# An answer with the probabilities of many tokens.
ANSWER_BYTES_MAX = 64 << 20
READ_BYTES = 1 << 16
ERROR_CHARACTERS = 300
REDIRECTS = frozenset({301, 302, 303, 307, 308})
REDIRECTS_MAX = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpReply:
    """What a server answered, as far as it was read."""

    status: int
    location: str
    encoding: str
    body: bytes
    # Whether the body went on beyond what was read.
    is_cut: bool


def fetch(
    url: str,
    *,
    data: bytes | None = None,
    api_key: str | None = None,
    limit_s: Seconds = LIMIT_S,
    bytes_max: int = PAGE_BYTES_MAX,
    stop: threading.Event | None = None,
) -> str:
    """The body of an answer of success; EngineError with what was seen otherwise. `limit_s` is for all of it; `stop`
    ends it within a moment."""
    deadline = WaitLimit(limit_s, stop)
    asked = url
    for _ in range(REDIRECTS_MAX):
        address = address_of(asked)
        reply = _ask(asked, address, data, api_key, deadline, limit_s=limit_s, bytes_max=bytes_max)
        if reply.status not in REDIRECTS or not reply.location:
            return body_of(shown(asked), reply, bytes_max)
        asked = followed(asked, address, reply, carries_secret=bool(api_key or data))
    raise EngineError(f"{shown(url)} redirects too often, the last time to {shown(asked)}")


async def fetched(
    url: str,
    *,
    data: bytes | None = None,
    api_key: str | None = None,
    limit_s: Seconds = LIMIT_S,
    bytes_max: int = PAGE_BYTES_MAX,
) -> str:
    """`fetch` beside the event loop; when cancelled, its thread ends within a moment too."""
    stop = threading.Event()
    try:
        return await asyncio.to_thread(
            fetch, url, data=data, api_key=api_key, limit_s=limit_s, bytes_max=bytes_max, stop=stop
        )
    finally:
        stop.set()


async def posted_json(
    url: str, body: Mapping[str, object], *, api_key: str | None = None, limit_s: Seconds = LIMIT_S
) -> Mapping[str, object]:
    """The object that a server answers with; EngineError for anything else."""
    data = json.dumps(body).encode()
    text = await fetched(url, data=data, api_key=api_key, limit_s=limit_s, bytes_max=ANSWER_BYTES_MAX)
    try:
        answer = parse_json(text)
    except ValueError as error:
        raise EngineError(f"{shown(url)} did not answer with JSON: {text[:120]!r}") from error
    if not isinstance(answer, dict):
        raise EngineError(f"{shown(url)} did not answer with a JSON object: {text[:120]!r}")
    return answer


async def post_to(endpoint: Endpoint, path: str, body: Mapping[str, object]) -> Mapping[str, object]:
    return await posted_json(joined(endpoint.base_url, path), body, api_key=endpoint.api_key)


def _ask(
    url: str,
    address: Address,
    data: bytes | None,
    api_key: str | None,
    deadline: WaitLimit,
    *,
    limit_s: Seconds,
    bytes_max: int,
) -> HttpReply:
    place = shown(url)
    try:
        # An engine that names a certificate of its own is asked with the same trust as measured traffic.
        tls = ssl.create_default_context() if address.is_tls else None
        with closing(PatientSocket(address.host, address.port, tls=tls, deadline=deadline)) as connection:
            connection.send(request_bytes(address, data, api_key))
            return _reply(connection, bytes_max)
    except TimeoutError as error:
        raise too_slow(place, limit_s) from error
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise unanswered(place, error) from error


def unanswered(place: str, error: Exception) -> EngineError:
    is_untrusted = "CERTIFICATE_VERIFY_FAILED" in str(error)
    hint = "set SSL_CERT_FILE to a file with the trusted certificates" if is_untrusted else ""
    return EngineError(f"{place} did not answer: {_words(error)}", hint=hint)


def too_slow(place: str, limit_s: Seconds) -> EngineError:
    return EngineError(
        f"{place} did not answer completely within {limit_s:g} s", hint="is the server up? try curl"
    )


def request_bytes(
    address: Address,
    data: bytes | None,
    api_key: str | None,
    *,
    is_last: bool = True,
    more: Mapping[str, str] | None = None,
) -> bytes:
    """`is_last` of its connection; `more` are header fields of its own."""
    authorization = f"Bearer {api_key}" if api_key else address.authorization
    fields = {
        "Host": address.host_field,
        "Accept-Encoding": "identity",
        "Connection": "close" if is_last else "keep-alive",
        "Content-Type": "application/json",
        "User-Agent": "speclift",
        **({"Authorization": authorization} if authorization else {}),
        **({} if data is None else {"Content-Length": str(len(data))}),
        **(more or {}),
    }
    line = f"{'GET' if data is None else 'POST'} {address.target()} HTTP/1.1"
    head = "\r\n".join([line, *(f"{name}: {value}" for name, value in fields.items())])
    return head.encode("ascii") + b"\r\n\r\n" + (data or b"")


def _reply(connection: PatientSocket, bytes_max: int) -> HttpReply:
    # http.client wants of a socket only that it makes a file.
    response = http.client.HTTPResponse(cast(Any, connection))
    response.begin()
    is_error = not 200 <= response.status < 300
    most = READ_BYTES_MAX if is_error else bytes_max
    parts: list[bytes] = []
    size = 0
    try:
        while size <= most and (part := response.read1(READ_BYTES)):
            parts.append(part)
            size += len(part)
    except (OSError, http.client.HTTPException):
        # The status says what is wrong; a body that does not come says no more.
        if not is_error:
            raise
    if not is_error and size <= most and response.length:
        raise http.client.IncompleteRead(b"", response.length)
    return HttpReply(
        status=response.status,
        location=response.getheader("location", ""),
        encoding=response.getheader("content-encoding", "identity"),
        body=b"".join(parts),
        is_cut=size > most,
    )


def body_of(place: str, reply: HttpReply, bytes_max: int) -> str:
    if not 200 <= reply.status < 300:
        text = without_secrets(error_text(reply.body, limit=ERROR_CHARACTERS))
        raise EngineError(f"{place} answered {reply.status}: {text}", hint=_status_hint(reply.status))
    if reply.is_cut:
        raise EngineError(
            f"{place} sent more than {bytes_max >> 20} MiB, too much for this page",
            hint="is this the address of the model server itself?",
        )
    if reply.encoding.strip().lower() != "identity":
        raise EngineError(
            f"{place} sent a compressed answer ({reply.encoding[:40]}), which was not requested",
            hint="turn compression off in the proxy in front of the server",
        )
    return reply.body.decode("utf-8", "replace")


def _status_hint(status: int) -> str:
    if status in (401, 403):
        return "give the environment variable with the server's key: --api-key-env NAME"
    return "give the server's address without /v1" if status == 404 else ""


def followed(asked: str, address: Address, reply: HttpReply, *, carries_secret: bool) -> str:
    """The next address to ask; EngineError where that would carry something to where it was not meant for."""
    try:
        moved_to = urljoin(asked, reply.location)
        there = address_of(moved_to)
    except (UsageError, ValueError):
        moved_to, there = "an invalid address", None
    words = f"{shown(asked)} answered {reply.status}: moved to {without_secrets(shown(moved_to))}"
    if there is None or there.origin != address.origin:
        raise EngineError(
            words, hint="redirects to another server are not followed; if the new address is right, give it"
        )
    if carries_secret or address.has_secret:
        raise EngineError(
            words, hint="redirects are not followed with a key or a prompt; give the new address"
        )
    return moved_to


def _words(error: Exception) -> str:
    """http.client's reasons are bytes of the server's choosing, sometimes many."""
    return without_secrets(str(error) or type(error).__name__)[:ERROR_CHARACTERS]
