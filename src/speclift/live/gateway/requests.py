"""A caller's bytes to requests, one after the other. Pure.

Strict on purpose: whatever two programs could read in two ways, and thereby smuggle a second request past one of them,
is refused. Bodies are taken whole, with or without a length said before.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum, auto

HEAD_BYTES_MAX = 64 * 1024
FIELDS_MAX = 128
TARGET_BYTES_MAX = 8 * 1024
BODY_BYTES_MAX = 64 << 20
# Of a chunked body: a size with its extensions, and all trailers together.
LINE_BYTES_MAX = 1024
TRAILER_BYTES_MAX = 8 * 1024
# No body is longer than a number of so many digits.
DIGITS_MAX = 16
# Twice, each of these has two meanings.
_SINGLE = frozenset(
    {b"host", b"content-length", b"transfer-encoding", b"authorization", b"content-type", b"expect"}
)
_METHODS = frozenset({b"GET", b"HEAD", b"POST", b"PUT", b"PATCH", b"DELETE", b"OPTIONS"})
_NAME = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,200}")
_TARGET = re.compile(rb"/[\x21-\x7e]*")
_HEXADECIMAL = re.compile(rb"[0-9A-Fa-f]{1,16}")
# A field's value: visible characters, bytes above ASCII, space and tab.
_VALUE = re.compile(rb"[\t\x20-\x7e\x80-\xff]*")


class Refusal(Exception):
    """What was sent is not taken; the connection ends with this answer."""

    def __init__(self, status: int, words: str) -> None:
        super().__init__(words)
        self.status, self.words = status, words


@dataclass(frozen=True, slots=True, kw_only=True)
class CallerRequest:
    """One whole request."""

    method: str
    # Path and query as they were sent.
    target: str
    # In the order they came, names in lower case. Values stay bytes: not all of them are text.
    fields: tuple[tuple[bytes, bytes], ...]
    body: bytes
    # Whether the caller may send another on the same connection, and whether it takes chunks.
    keeps_alive: bool
    takes_chunks: bool

    @property
    def path(self) -> str:
        return self.target.partition("?")[0]

    def field_text(self) -> Mapping[str, str]:
        return {name.decode("ascii"): value.decode("latin-1") for name, value in self.fields}


class _State(Enum):
    HEAD = auto()
    COUNTED = auto()
    SIZE = auto()
    CHUNK = auto()
    CHUNK_END = auto()
    TRAILER = auto()


@dataclass(frozen=True, slots=True, kw_only=True)
class _RequestHead:
    method: str
    target: str
    fields: tuple[tuple[bytes, bytes], ...]
    keeps_alive: bool
    takes_chunks: bool
    # None: it comes in chunks.
    length: int | None
    wants_leave: bool


class RequestReader:
    """Takes one connection's bytes as they come. What follows a whole request is kept for the next."""

    __slots__ = ("_body", "_data", "_head", "_left", "_seen", "_state", "_trailer_bytes", "body_bytes_max")

    def __init__(self, *, body_bytes_max: int = BODY_BYTES_MAX) -> None:
        self.body_bytes_max = body_bytes_max
        self._data = bytearray()
        # So far of the data no head's end was found.
        self._seen = 0
        self._begin()

    def _begin(self) -> None:
        self._state = _State.HEAD
        self._head: _RequestHead | None = None
        self._body = bytearray()
        self._left = 0
        self._trailer_bytes = 0

    @property
    def has_begun(self) -> bool:
        """Whether a part of a request came."""
        return bool(self._data) or self._head is not None

    @property
    def is_in_body(self) -> bool:
        return self._head is not None

    @property
    def begun(self) -> CallerRequest | None:
        """The one whose body is still to come, without it."""
        return None if self._head is None else _request(self._head, b"")

    @property
    def held_bytes(self) -> int:
        return len(self._data) + len(self._body)

    @property
    def wants_leave(self) -> bool:
        """The caller waits for "100 Continue" before it sends the body."""
        return self._head is not None and self._head.wants_leave and not self._body

    def feed(self, data: bytes) -> None:
        self._data += data

    def next_request(self) -> CallerRequest | None:
        """The next one that is whole; Refusal where it cannot be one."""
        while True:
            if self._state is _State.HEAD:
                is_taken = self._take_head()
            elif self._state is _State.COUNTED or self._state is _State.CHUNK:
                is_taken = self._take_body()
            else:
                is_taken = self._take_line()
            if not is_taken:
                return None
            if self._head is not None and self._state is _State.HEAD:
                return self._finished(self._head)

    def _finished(self, head: _RequestHead) -> CallerRequest:
        request = _request(head, bytes(self._body))
        self._begin()
        return request

    # Each of these says whether it took something whole.

    def _take_head(self) -> bool:
        data = self._data
        # Empty lines before a request are to be passed over (RFC 9112, 2.2).
        while data[:2] == b"\r\n":
            del data[:2]
        end = data.find(b"\r\n\r\n", max(0, self._seen - 3))
        if end < 0:
            self._seen = len(data)
            if len(data) > HEAD_BYTES_MAX:
                raise Refusal(431, "the head of the request is too long")
            if not _may_begin(data):
                raise Refusal(400, "no HTTP request")
            return False
        if end > HEAD_BYTES_MAX:
            raise Refusal(431, "the head of the request is too long")
        self._seen = 0
        head = read_head(bytes(data[:end]))
        del data[: end + 4]
        self._head = head
        if head.length is None:
            self._state = _State.SIZE
            return True
        if head.length > self.body_bytes_max:
            raise self._too_long()
        self._left = head.length
        self._state = _State.COUNTED if head.length else _State.HEAD
        return True

    def _take_body(self) -> bool:
        part = self._data[: self._left]
        if part:
            self._body += part
            del self._data[: len(part)]
            self._left -= len(part)
        if self._left:
            return False
        self._state = _State.HEAD if self._state is _State.COUNTED else _State.CHUNK_END
        return True

    def _take_line(self) -> bool:
        edge = self._data.find(b"\r\n")
        if edge > LINE_BYTES_MAX or (edge < 0 and len(self._data) > LINE_BYTES_MAX):
            raise Refusal(400, "a chunk whose size cannot be read")
        if edge < 0:
            return False
        line = bytes(self._data[:edge])
        del self._data[: edge + 2]
        if self._state is _State.CHUNK_END:
            if line:
                raise Refusal(400, "a chunk is longer than it said")
            self._state = _State.SIZE
        elif self._state is _State.SIZE:
            self._begin_chunk(line)
        elif not line:  # the empty line after the trailers
            self._state = _State.HEAD
        else:
            # Trailers are read over: nobody asked for any.
            self._trailer_bytes += len(line)
            if self._trailer_bytes > TRAILER_BYTES_MAX:
                raise Refusal(431, "the trailers of the request are too long")
        return True

    def _begin_chunk(self, line: bytes) -> None:
        size, mark, extension = line.partition(b";")
        if not _HEXADECIMAL.fullmatch(size) or (mark and not _VALUE.fullmatch(extension)):
            raise Refusal(400, "a chunk whose size cannot be read")
        self._left = int(size, 16)
        if len(self._body) + self._left > self.body_bytes_max:
            raise self._too_long()
        self._state = _State.CHUNK if self._left else _State.TRAILER

    def _too_long(self) -> Refusal:
        return Refusal(413, f"the body is longer than {self.body_bytes_max >> 20} MiB")


def _request(head: _RequestHead, body: bytes) -> CallerRequest:
    return CallerRequest(
        method=head.method,
        target=head.target,
        fields=head.fields,
        body=body,
        keeps_alive=head.keeps_alive,
        takes_chunks=head.takes_chunks,
    )


def read_head(head: bytes) -> _RequestHead:
    """Refusal where any of it can be read in two ways."""
    first, *lines = head.split(b"\r\n")
    method, target, version = _request_line(first)
    if len(lines) > FIELDS_MAX:
        raise Refusal(431, "too many header fields")
    fields = tuple(_field(line) for line in lines)
    named: dict[bytes, bytes] = {}
    for name, value in fields:
        if name in _SINGLE and name in named:
            raise Refusal(400, f"two fields {name.decode()}")
        named[name] = value
    if b"host" not in named and version == b"HTTP/1.1":
        raise Refusal(400, "no Host")
    wishes = {wish.strip().lower() for wish in named.get(b"connection", b"").split(b",")}
    is_modern = version == b"HTTP/1.1"
    return _RequestHead(
        method=method.decode(),
        target=target.decode(),
        fields=fields,
        keeps_alive=b"close" not in wishes if is_modern else b"keep-alive" in wishes,
        takes_chunks=is_modern,
        length=_length(named, is_modern=is_modern),
        wants_leave=is_modern and _wants_leave(named),
    )


def _request_line(line: bytes) -> tuple[bytes, bytes, bytes]:
    parts = line.split(b" ")
    if len(parts) != 3:
        raise Refusal(400, "no HTTP request")
    method, target, version = parts
    if version not in (b"HTTP/1.1", b"HTTP/1.0"):
        raise Refusal(505 if version.startswith(b"HTTP/") else 400, "only HTTP/1.1 is spoken here")
    if method not in _METHODS:
        raise Refusal(405 if method.isalpha() else 400, "a method that is not passed on")
    if len(target) > TARGET_BYTES_MAX:
        raise Refusal(414, "the address is too long")
    # Also no whole URL: a proxy for anywhere is not what this is.
    if not _TARGET.fullmatch(target) or b"#" in target or _climbs(target):
        raise Refusal(400, "an address that cannot be read")
    return method, target, version


def _climbs(target: bytes) -> bool:
    """Out of the path that a server's address may have."""
    steps = (
        target.partition(b"?")[0].lower().replace(b"%2e", b".").replace(b"%2f", b"/").replace(b"%5c", b"/")
    )
    return not {b".", b".."}.isdisjoint(steps.replace(b"\\", b"/").split(b"/"))


def _field(line: bytes) -> tuple[bytes, bytes]:
    name, colon, value = line.partition(b":")
    # No line that goes on in the next, no space before the colon, no lone CR, LF or NUL.
    if not colon or not _NAME.fullmatch(name) or not _VALUE.fullmatch(value):
        raise Refusal(400, "a header field that cannot be read")
    return name.lower(), value.strip(b" \t")


def _length(named: Mapping[bytes, bytes], *, is_modern: bool) -> int | None:
    coding, length = named.get(b"transfer-encoding"), named.get(b"content-length")
    if coding is not None:
        if length is not None or not is_modern:
            raise Refusal(400, "a length beside a transfer-encoding")
        if coding.lower() != b"chunked":
            raise Refusal(501, "a transfer-encoding other than chunked")
        return None
    if length is None:
        return 0
    if not length.isdigit() or len(length) > DIGITS_MAX:
        raise Refusal(400, "a content-length that is no number")
    return int(length)


def _wants_leave(named: Mapping[bytes, bytes]) -> bool:
    expectation = named.get(b"expect")
    if expectation is None:
        return False
    if expectation.lower() != b"100-continue":
        raise Refusal(417, "an expectation that is not met")
    return True


def _may_begin(data: bytearray) -> bool:
    """Whether these bytes may be the beginning of a request line; TLS and other protocols are told at once."""
    # A lone CR may be the half of an empty line before it.
    word = bytes(data[:8]).removeprefix(b"\r").partition(b" ")[0]
    return any(method.startswith(word) for method in _METHODS)
