"""HTTP/1.1 without a socket: requests and responses out of bytes as they come, for clients, servers and a gateway.

Chunked, counted and until-close bodies, each bounded in size. What two programs could read in two ways is refused in a
request, so that nobody smuggles a second one past us; of a response that is only what nobody can read.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum, auto
from functools import lru_cache
from typing import NamedTuple

from speclift.core.address import Address, address_of
from speclift.core.errors import UsageError

HEAD_BYTES_MAX = 64 * 1024
# A chunk's size line: sixteen hexadecimal digits and some extensions nobody sends.
LINE_BYTES_MAX = 1024
TRAILER_BYTES_MAX = 8 * 1024
# No body is longer than a number of so many decimal or hexadecimal digits.
DIGITS_MAX = 16
# "100 Continue" and its like before the answer itself; "102 Processing" may come every second of a long prefill.
INTERIM_MAX = 1000
# Sizes as servers write them are known by heart: a token's chunk has some 250 bytes.
CHUNK_BYTES_MAX = 4095
SIZES = {b"%x" % size: size for size in range(1, CHUNK_BYTES_MAX + 1)}
BODILESS = frozenset({204, 304})
# Twice in a request, each of these has two meanings.
_SINGLE = frozenset(
    {b"host", b"content-length", b"transfer-encoding", b"authorization", b"content-type", b"expect"}
)
_METHODS = frozenset({b"GET", b"HEAD", b"POST", b"PUT", b"PATCH", b"DELETE", b"OPTIONS"})
_NAME = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,200}")
_TARGET = re.compile(rb"/[\x21-\x7e]*")
_HEXADECIMAL = re.compile(rb"[0-9A-Fa-f]{1,16}")
# A field's value: visible characters, bytes above ASCII, space and tab.
_VALUE = re.compile(rb"[\t\x20-\x7e\x80-\xff]*")


class HttpError(Exception):
    """The bytes are no HTTP message that is taken here; `status` and `fields` are of the answer that says so."""

    def __init__(self, words: str, status: int = 400, **fields: str) -> None:
        super().__init__(words)
        self.words, self.status, self.fields = words, status, fields


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """The largest request that a server takes."""

    head_bytes: int = HEAD_BYTES_MAX
    fields: int = 128
    target_bytes: int = 8 * 1024
    body_bytes: int = 64 << 20


USUAL_BOUNDS = Bounds()


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """Where requests go and the head that every one of them begins with."""

    address: Address
    headers: bytes

    def request(self, path: str, body: bytes) -> bytes:
        """A whole POST, ready to send."""
        line = f"POST {self.address.target(path)} HTTP/1.1\r\n".encode()
        return b"%b%bContent-Length: %d\r\n\r\n%b" % (line, self.headers, len(body), body)

    def get(self) -> bytes:
        """A whole GET of the address itself."""
        return b"%b%b\r\n" % (f"GET {self.address.target()} HTTP/1.1\r\n".encode(), self.headers)


def target_of(url: str, *, api_key: str | None, accept: str = "text/event-stream", **more: str) -> Target:
    """The server behind a URL; a user and password in it become basic authorisation. `more` are further fields."""
    return target_at(address_of(url), api_key=api_key, fields={"Accept": accept, **more})


def target_at(address: Address, *, api_key: str | None, fields: Mapping[str, str]) -> Target:
    authorization = f"Bearer {api_key}" if api_key else address.authorization
    all_fields = {
        "Host": address.host_field,
        "Accept-Encoding": "identity",
        "Content-Type": "application/json",
        "User-Agent": "speclift",
        **({"Authorization": authorization} if authorization else {}),
        **fields,
    }
    lines = [f"{name}: {value}" for name, value in all_fields.items()]
    if any("\r" in line or "\n" in line for line in lines):
        raise UsageError("the API key or the server's address holds a line break")
    return Target(address=address, headers="".join(f"{line}\r\n" for line in lines).encode())


class _State(Enum):
    HEAD = auto()
    SIZE = auto()  # the line before a chunk
    CHUNK = auto()
    CHUNK_END = auto()  # the line end after a chunk
    TRAILER = auto()
    COUNTED = auto()
    UNTIL_CLOSE = auto()
    DONE = auto()


class _BodyReader:
    """Takes a message's body out of the bytes behind its head."""

    __slots__ = ("_is_strict", "_left", "_state", "_trailer_bytes")

    def __init__(self, *, is_strict: bool) -> None:
        self._is_strict = is_strict
        self._state = _State.HEAD
        # Bytes of the chunk or the counted body that are still to come.
        self._left = 0
        self._trailer_bytes = 0

    def _take_body(self, data: bytes, place: int, parts: list[bytes]) -> int:
        """Appends what it finds; returns the place of what is not complete, or not the body's."""
        length = len(data)
        state = self._state
        while place < length:
            if state is _State.SIZE:
                edge = _line_end(data, place)
                if edge < 0:
                    break
                size = SIZES.get(data[place:edge]) or self._size(data[place:edge])
                place = edge + 2
                # A whole chunk at once, as most come.
                end = place + size
                if size and data[end : end + 2] == b"\r\n":
                    parts.append(data[place:end])
                    place = end + 2
                else:
                    self._left = size
                    state = _State.CHUNK if size else _State.TRAILER
            elif state is _State.CHUNK or state is _State.COUNTED:
                part = data[place : place + self._left]
                parts.append(part)
                place += len(part)
                self._left -= len(part)
                if self._left == 0:
                    state = _State.CHUNK_END if state is _State.CHUNK else _State.DONE
            elif state is _State.UNTIL_CLOSE:
                parts.append(data[place:])
                place = length
            elif state is _State.DONE:
                break
            else:
                edge = _line_end(data, place)
                if edge < 0:
                    break
                state = self._after_line(state, data[place:edge])
                place = edge + 2
        self._state = state
        return place

    def _after_line(self, state: _State, line: bytes) -> _State:
        """The line end after a chunk, or a trailer, which is read over: nobody asked for any."""
        if state is _State.CHUNK_END:
            if line:
                raise HttpError(f"a chunk is longer than it said: {line[:40]!r}")
            return _State.SIZE
        self._trailer_bytes += len(line)
        if self._trailer_bytes > TRAILER_BYTES_MAX:
            raise HttpError("the trailers are too long", 431)
        return _State.TRAILER if line else _State.DONE

    def _size(self, line: bytes) -> int:
        digits, mark, extension = line.partition(b";")
        if not self._is_strict:
            digits = digits.strip()
            digits = digits.lstrip(b"0") or digits[:1]
        elif mark and not _VALUE.fullmatch(extension):
            digits = b""
        if not _HEXADECIMAL.fullmatch(digits):  # int() takes signs and underscores too
            raise HttpError(f"not the size of a chunk: {line[:40]!r}")
        return int(digits, 16)


class ResponseReader(_BodyReader):
    """Takes one response's bytes as they come and gives its body."""

    __slots__ = (
        *("_interims", "_passes_on", "_rest", "has_begun", "head"),
        *("keeps_alive", "length", "location", "status"),
    )

    def __init__(self, *, passes_on: bool = False) -> None:
        """`passes_on`: the body is handed on as it is, whatever its encoding."""
        super().__init__(is_strict=False)
        self.status = 0
        self.keeps_alive = True
        self.location = ""
        # Status line and fields as they came, without the empty line; the body's length where the head says it.
        self.head = b""
        self.length: int | None = None
        self.has_begun = False
        self._passes_on = passes_on
        self._interims = 0
        self._rest = b""

    @property
    def is_done(self) -> bool:
        return self._state is _State.DONE

    @property
    def is_between_chunks(self) -> bool:
        return self._state is _State.SIZE and not self._rest

    def feed(self, data: bytes) -> bytes:
        """The part of the body in these bytes."""
        self.has_begun = True
        if self._rest:
            data, self._rest = self._rest + data, b""
        place = 0
        while self._state is _State.HEAD:
            end = self._head_end(data, place)
            if end < 0:
                self._rest = data[place:]
                return b""
            self._read_head(data[place:end])
            place = end + 4
        parts: list[bytes] = []
        place = self._take_body(data, place, parts)
        if place < len(data):
            if self._state is _State.DONE:
                self.keeps_alive = False  # nobody asked for more: this connection is not used again
            else:
                self._rest = data[place:]
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def expect_no_body(self) -> None:
        """The answer to a HEAD: its fields speak of a body that does not come."""
        self._state = _State.DONE

    def end(self) -> bool:
        """The connection closed; True where that is how the body ends."""
        if self._state is _State.UNTIL_CLOSE:
            self._state = _State.DONE
        return self.is_done

    def _head_end(self, data: bytes, place: int) -> int:
        end = data.find(b"\r\n\r\n", place)
        is_long = (len(data) if end < 0 else end) - place > HEAD_BYTES_MAX
        if is_long or (end < 0 and not _may_be_http(data[place : place + 5])):
            raise HttpError(f"not an HTTP answer: {data[place : place + 60]!r}", 502)
        return end

    def _read_head(self, head: bytes) -> None:
        read = _head_of(head)
        if read is None:
            self._interims += 1
            if self._interims > INTERIM_MAX:
                raise HttpError("one interim answer after the other", 502)
            return
        if read.encoding != "identity" and not self._passes_on:
            words = f"answered {read.status} with compression ({read.encoding[:40]}), which was not requested"
            raise HttpError(words, 502)
        self.head, self.status, self.keeps_alive = head, read.status, read.keeps_alive
        self.location = read.location
        self._state, self._left = read.state, read.length
        self.length = None if read.state in (_State.SIZE, _State.UNTIL_CLOSE) else read.length


class _ResponseHead(NamedTuple):
    status: int
    keeps_alive: bool
    location: str
    encoding: str
    # How the body comes, and how long it is where that is said.
    state: _State
    length: int


# A server's heads are the same again and again, but for the date, which changes once a second.
@lru_cache(maxsize=16)
def _head_of(head: bytes) -> _ResponseHead | None:
    """None for an interim one."""
    first, *lines = head.decode("latin-1").split("\r\n")
    version, _, rest = first.partition(" ")
    code = rest.partition(" ")[0]
    if not version.startswith("HTTP/1.") or len(code) != 3 or not _is_number(code) or code[0] == "0":
        raise HttpError(f"not an HTTP answer: {first[:60]!r}", 502)
    if code[0] == "1":
        return None  # the real one follows
    fields: dict[str, str] = {}
    for line in lines:
        name, _, value = line.partition(":")
        name, value = name.strip().lower(), value.strip()
        if name == "content-length" and fields.get(name, value) != value:
            raise HttpError("two content lengths", 502)
        fields[name] = value
    connection = fields.get("connection", "").lower()
    keeps_alive = "close" not in connection if version != "HTTP/1.0" else "keep-alive" in connection
    state, length = _body_state(int(code), fields)
    return _ResponseHead(
        status=int(code),
        keeps_alive=keeps_alive and state is not _State.UNTIL_CLOSE,
        location=fields.get("location", ""),
        encoding=fields.get("content-encoding", "identity").lower(),
        state=state,
        length=length,
    )


def _body_state(status: int, fields: Mapping[str, str]) -> tuple[_State, int]:
    if status in BODILESS:
        return _State.DONE, 0
    if "chunked" in fields.get("transfer-encoding", "").lower():
        return _State.SIZE, 0
    length = fields.get("content-length")
    if length is None:
        return _State.UNTIL_CLOSE, 0
    if not _is_number(length):
        raise HttpError(f"not a content length: {length[:40]!r}", 502)
    return (_State.COUNTED, int(length)) if int(length) else (_State.DONE, 0)


def _is_number(text: str) -> bool:
    """Digits of any script would pass isdigit."""
    return text.isascii() and text.isdigit() and len(text) <= DIGITS_MAX


def _line_end(data: bytes, place: int) -> int:
    edge = data.find(b"\r\n", place)
    if edge - place > LINE_BYTES_MAX or (edge < 0 and len(data) - place > LINE_BYTES_MAX):
        raise HttpError(f"not a chunk: {data[place : place + 40]!r}")
    return edge


def _may_be_http(start: bytes) -> bool:
    return b"HTTP/".startswith(start) or start.startswith(b"HTTP/")


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpRequest:
    """One request as it was sent."""

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

    def field(self, name: bytes) -> bytes:
        """The last of this name; b"" where there is none."""
        return next((value for each, value in reversed(self.fields) if each == name), b"")

    def field_text(self) -> Mapping[str, str]:
        return {name.decode("ascii"): value.decode("latin-1") for name, value in self.fields}


class RequestReader(_BodyReader):
    """Takes one connection's bytes as they come. What follows a whole request is kept for the next."""

    __slots__ = ("_body", "_body_bytes", "_bounds", "_data", "_request", "_seen", "_wants_leave")

    def __init__(self, bounds: Bounds = USUAL_BOUNDS) -> None:
        super().__init__(is_strict=True)
        self._bounds = bounds
        self._data = bytearray()
        # So far of the data no head's end was found.
        self._seen = 0
        self._begin()

    def _begin(self) -> None:
        self._state = _State.HEAD
        # Without its body, until that came.
        self._request: HttpRequest | None = None
        self._wants_leave = False
        self._body: list[bytes] = []
        self._body_bytes = self._trailer_bytes = 0

    @property
    def has_begun(self) -> bool:
        """Whether a part of a request came."""
        return bool(self._data) or self._request is not None

    @property
    def begun(self) -> HttpRequest | None:
        """The one whose body is still to come, without it."""
        return self._request

    @property
    def held_bytes(self) -> int:
        return len(self._data) + self._body_bytes

    @property
    def wants_leave(self) -> bool:
        """The caller waits for "100 Continue" before it sends the body."""
        return self._wants_leave and not self._body

    def feed(self, data: bytes) -> None:
        self._data += data

    def next_request(self) -> HttpRequest | None:
        """The next one that is whole; HttpError where it cannot be one."""
        if self._request is None and not self._take_head():
            return None
        request = self._request
        assert request is not None
        if self._data and self._state is not _State.DONE:
            before = len(self._body)
            place = self._take_body(bytes(self._data), 0, self._body)
            del self._data[:place]
            self._body_bytes += sum(map(len, self._body[before:]))
        if self._body_bytes + self._left > self._bounds.body_bytes:
            raise self._too_long()
        if self._state is not _State.DONE:
            return None
        body = b"".join(self._body)
        self._begin()
        return HttpRequest(
            method=request.method,
            target=request.target,
            fields=request.fields,
            body=body,
            keeps_alive=request.keeps_alive,
            takes_chunks=request.takes_chunks,
        )

    def _take_head(self) -> bool:
        data = self._data
        # Empty lines before a request are to be passed over (RFC 9112, 2.2).
        while data[:2] == b"\r\n":
            del data[:2]
        end = data.find(b"\r\n\r\n", max(0, self._seen - 3))
        if (len(data) if end < 0 else end) > self._bounds.head_bytes:
            raise HttpError("the head of the request is too long", 431)
        if end < 0:
            self._seen = len(data)
            if not _may_begin(data):
                raise HttpError("no HTTP request")
            return False
        self._seen = 0
        self._request, length, self._wants_leave = read_head(bytes(data[:end]), self._bounds)
        del data[: end + 4]
        self._left = length or 0
        if self._left > self._bounds.body_bytes or (length is None and not self._bounds.body_bytes):
            raise self._too_long()
        self._state = _State.SIZE if length is None else _State.COUNTED if length else _State.DONE
        return True

    def _too_long(self) -> HttpError:
        most = self._bounds.body_bytes
        return HttpError(
            f"the body is longer than {most >> 20} MiB" if most else "a request with a body", 413
        )


def read_head(head: bytes, bounds: Bounds = USUAL_BOUNDS) -> tuple[HttpRequest, int | None, bool]:
    """The request without its body, the body's length (None: chunks), and whether the caller waits for a "continue";
    HttpError where any of it can be read in two ways."""
    first, *lines = head.split(b"\r\n")
    method, target, version = _request_line(first, bounds)
    if len(lines) > bounds.fields:
        raise HttpError("too many header fields", 431)
    fields = tuple(_field(line) for line in lines)
    named: dict[bytes, bytes] = {}
    for name, value in fields:
        if name in _SINGLE and name in named:
            raise HttpError(f"two fields {name.decode()}")
        named[name] = value
    is_modern = version == b"HTTP/1.1"
    if b"host" not in named and is_modern:
        raise HttpError("no Host")
    wishes = {wish.strip().lower() for wish in named.get(b"connection", b"").split(b",")}
    request = HttpRequest(
        method=method.decode(),
        target=target.decode(),
        fields=fields,
        body=b"",
        keeps_alive=b"close" not in wishes if is_modern else b"keep-alive" in wishes,
        takes_chunks=is_modern,
    )
    return request, _length(named, is_modern=is_modern), is_modern and _expects(named)


def _request_line(line: bytes, bounds: Bounds) -> tuple[bytes, bytes, bytes]:
    parts = line.split(b" ")
    if len(parts) != 3:
        raise HttpError("no HTTP request")
    method, target, version = parts
    if version not in (b"HTTP/1.1", b"HTTP/1.0"):
        status = 505 if version.startswith(b"HTTP/") else 400
        raise HttpError("a version of HTTP that is not taken here", status)
    if method not in _METHODS:
        raise HttpError("a method that is not taken here", 405 if method.isalpha() else 400)
    if len(target) > bounds.target_bytes:
        raise HttpError("the address is too long", 414)
    # Also no whole URL: a proxy for anywhere is not what this is.
    if not _TARGET.fullmatch(target) or b"#" in target or _climbs(target):
        raise HttpError("an address that cannot be read")
    return method, target, version


def _climbs(target: bytes) -> bool:
    """Out of the path that a server's address may have."""
    path = target.partition(b"?")[0].lower()
    steps = path.replace(b"%2e", b".").replace(b"%2f", b"/").replace(b"%5c", b"/").replace(b"\\", b"/")
    return not {b".", b".."}.isdisjoint(steps.split(b"/"))


def _field(line: bytes) -> tuple[bytes, bytes]:
    name, colon, value = line.partition(b":")
    # No line that goes on in the next, no space before the colon, no lone CR, LF or NUL.
    if not colon or not _NAME.fullmatch(name) or not _VALUE.fullmatch(value):
        raise HttpError("a header field that cannot be read")
    return name.lower(), value.strip(b" \t")


def _length(named: Mapping[bytes, bytes], *, is_modern: bool) -> int | None:
    coding, length = named.get(b"transfer-encoding"), named.get(b"content-length")
    if coding is not None:
        if length is not None or not is_modern:
            raise HttpError("a length beside a transfer-encoding")
        if coding.lower() != b"chunked":
            raise HttpError("a transfer-encoding other than chunked", 501)
        return None
    if length is None:
        return 0
    if not length.isdigit() or len(length) > DIGITS_MAX:
        raise HttpError("a content-length that is no number")
    return int(length)


def _expects(named: Mapping[bytes, bytes]) -> bool:
    expectation = named.get(b"expect")
    if expectation is not None and expectation.lower() != b"100-continue":
        raise HttpError("an expectation that is not met", 417)
    return expectation is not None


def _may_begin(data: bytearray) -> bool:
    """Whether these bytes may be the beginning of a request line; TLS and other protocols are told at once."""
    # A lone CR may be the half of an empty line before it.
    word = bytes(data[:8]).removeprefix(b"\r").partition(b" ")[0]
    return any(method.startswith(word) for method in _METHODS)
