"""HTTP/1.1 as a load generator and a gateway need it: the bytes of a request, a response's body out of its bytes. Pure.

Chunked, counted and until-close bodies; interim (1xx) answers are passed over. What is not HTTP raises WireError.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto
from functools import lru_cache
from typing import NamedTuple

from speclift.core.address import Address, address_of
from speclift.core.errors import UsageError

HEAD_BYTES_MAX = 64 * 1024
# A chunk's size line: sixteen hexadecimal digits and some extensions nobody sends.
SIZE_LINE_BYTES_MAX = 1024
# No body is longer than a number of so many decimal or hexadecimal digits.
DIGITS_MAX = 16
# "100 Continue" and its like before the answer itself; "102 Processing" may come every second of a long prefill.
INTERIM_MAX = 1000


class WireError(Exception):
    """The bytes are not an HTTP/1.1 response."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """Where requests go and the head that every one of them begins with."""

    address: Address
    headers: bytes

    def request(self, path: str, body: bytes) -> bytes:
        """A whole POST, ready to send."""
        line = f"POST {self.address.target(path)} HTTP/1.1\r\n".encode()
        return b"%b%bContent-Length: %d\r\n\r\n%b" % (line, self.headers, len(body), body)


def target_of(base_url: str, *, api_key: str | None) -> Target:
    """The server behind a base URL; a user and password in it become basic authorisation."""
    address = address_of(base_url)
    authorization = f"Bearer {api_key}" if api_key else address.authorization
    lines = [
        f"Host: {address.host_field}",
        "Accept: text/event-stream",
        "Accept-Encoding: identity",
        "Content-Type: application/json",
        "User-Agent: speclift",
        *([f"Authorization: {authorization}"] if authorization else []),
    ]
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


class ResponseReader:
    """Takes one response's bytes as they come and gives its body."""

    __slots__ = (
        "_interims",
        "_left",
        "_passes_on",
        "_rest",
        "_state",
        "has_begun",
        "head",
        "keeps_alive",
        "length",
        "location",
        "status",
    )

    def __init__(self, *, passes_on: bool = False) -> None:
        """`passes_on`: the body is handed on as it is, whatever its encoding."""
        self.status = 0
        self.keeps_alive = True
        self.location = ""
        # Status line and fields as they came, without the empty line; the body's length where the head says it.
        self.head = b""
        self.length: int | None = None
        self.has_begun = False
        self._passes_on = passes_on
        self._state = _State.HEAD
        self._left = 0
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
        return self._walk(data)

    def expect_no_body(self) -> None:
        """The answer to a HEAD: its fields speak of a body that does not come."""
        self._state = _State.DONE

    def end(self) -> bool:
        """The connection closed; True where that is how the body ends."""
        if self._state is _State.UNTIL_CLOSE:
            self._state = _State.DONE
        return self.is_done

    def _walk(self, data: bytes) -> bytes:
        parts: list[bytes] = []
        place = 0
        while place < len(data):
            state = self._state
            if state is _State.SIZE:
                taken = self._take_chunk(data, place, parts)
            elif state is _State.CHUNK or state is _State.COUNTED:
                taken = min(place + self._left, len(data))
                parts.append(data[place:taken])
                self._left -= taken - place
                if self._left == 0:
                    self._state = _State.CHUNK_END if state is _State.CHUNK else _State.DONE
            elif state is _State.UNTIL_CLOSE:
                parts.append(data[place:])
                break
            elif state is _State.DONE:
                self.keeps_alive = False  # nobody asked for more: this connection is not used again
                break
            else:
                taken = self._take_head(data, place) if state is _State.HEAD else self._take_line(data, place)
            if taken < 0:
                self._rest = data[place:]
                break
            place = taken
        return parts[0] if len(parts) == 1 else b"".join(parts)

    # Each of these gives the place after what it took, or -1 where it is not complete.

    def _take_chunk(self, data: bytes, place: int, parts: list[bytes]) -> int:
        """A whole chunk at once, as most come; else its size."""
        edge = _line_end(data, place)
        if edge < 0:
            return -1
        start = edge + 2
        self._left = _size(data[place:edge])
        end = start + self._left
        if self._left and data[end : end + 2] == b"\r\n":
            parts.append(data[start:end])
            return end + 2
        self._state = _State.CHUNK if self._left else _State.TRAILER
        return start

    def _take_line(self, data: bytes, place: int) -> int:
        """The line end after a chunk, or a trailer."""
        edge = _line_end(data, place)
        if edge < 0:
            return -1
        if self._state is _State.CHUNK_END:
            if edge > place:
                raise WireError(f"a chunk is longer than it said: {data[place:edge][:40]!r}")
            self._state = _State.SIZE
        elif edge == place:  # the empty line after the trailers
            self._state = _State.DONE
        return edge + 2

    def _take_head(self, data: bytes, place: int) -> int:
        end = data.find(b"\r\n\r\n", place)
        if end < 0:
            if len(data) - place > HEAD_BYTES_MAX or not _may_be_http(data[place : place + 5]):
                raise WireError(f"not an HTTP answer: {data[place : place + 60]!r}")
            return -1
        self._read_head(data[place:end])
        return end + 4

    def _read_head(self, head: bytes) -> None:
        read = _head_of(head)
        if read is None:
            self._interims += 1
            if self._interims > INTERIM_MAX:
                raise WireError("one interim answer after the other")
            return
        if read.encoding != "identity" and not self._passes_on:
            raise WireError(
                f"answered {read.status} with compression ({read.encoding[:40]}), which was not requested"
            )
        self.head, self.status, self.keeps_alive, self.location = (
            head,
            read.status,
            read.keeps_alive,
            read.location,
        )
        self._state, self._left = read.state, read.length
        self.length = None if read.state in (_State.SIZE, _State.UNTIL_CLOSE) else read.length


class _Head(NamedTuple):
    status: int
    keeps_alive: bool
    location: str
    encoding: str
    # How the body comes, and how long it is where that is said.
    state: _State
    length: int


# A server's heads are the same again and again, but for the date, which changes once a second.
@lru_cache(maxsize=16)
def _head_of(head: bytes) -> _Head | None:
    """None for an interim one."""
    first, *lines = head.decode("latin-1").split("\r\n")
    version, _, rest = first.partition(" ")
    code = rest.partition(" ")[0]
    if not version.startswith("HTTP/1.") or len(code) != 3 or not _is_number(code):
        raise WireError(f"not an HTTP answer: {first[:60]!r}")
    if code[0] == "1":
        return None  # the real one follows
    fields = {
        name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)
    }
    connection = fields.get("connection", "").lower()
    keeps_alive = "close" not in connection if version != "HTTP/1.0" else "keep-alive" in connection
    state, length = _body_state(int(code), fields)
    return _Head(
        status=int(code),
        keeps_alive=keeps_alive and state is not _State.UNTIL_CLOSE,
        location=fields.get("location", ""),
        encoding=fields.get("content-encoding", "identity").lower(),
        state=state,
        length=length,
    )


def _body_state(status: int, fields: dict[str, str]) -> tuple[_State, int]:
    if status in (204, 304):
        return _State.DONE, 0
    if "chunked" in fields.get("transfer-encoding", "").lower():
        return _State.SIZE, 0
    length = fields.get("content-length")
    if length is None:
        return _State.UNTIL_CLOSE, 0
    if not _is_number(length):
        raise WireError(f"not a content length: {length[:40]!r}")
    return (_State.COUNTED, int(length)) if int(length) else (_State.DONE, 0)


def _is_number(text: str) -> bool:
    """Digits of any script would pass isdigit."""
    return text.isascii() and text.isdigit() and len(text) <= DIGITS_MAX


def _line_end(data: bytes, place: int) -> int:
    edge = data.find(b"\r\n", place)
    if edge < 0 and len(data) - place > SIZE_LINE_BYTES_MAX:
        raise WireError(f"not a chunk: {data[place : place + 40]!r}")
    return edge


def _may_be_http(start: bytes) -> bool:
    return b"HTTP/".startswith(start) or start.startswith(b"HTTP/")


def _size(line: bytes) -> int:
    digits = line if line.isalnum() else line.partition(b";")[0].strip()
    try:
        if (
            digits.isalnum() and len(digits.lstrip(b"0")) <= DIGITS_MAX
        ):  # int() takes signs and underscores too
            return int(digits, 16)
    except ValueError:
        pass
    raise WireError(f"not the size of a chunk: {line[:40]!r}")
