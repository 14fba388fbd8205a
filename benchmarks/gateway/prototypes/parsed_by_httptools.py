"""The same readers of requests and answers on httptools (llhttp)."""

from __future__ import annotations

import httptools
from forwarding import Request


class HttptoolsRequests:
    __slots__ = ("_body", "_fields", "_is_whole", "_parser", "_target")

    def __init__(self) -> None:
        self._parser = httptools.HttpRequestParser(self)
        self.on_message_begin()

    def on_message_begin(self) -> None:
        self._fields: list[tuple[bytes, bytes]] = []
        self._body: list[bytes] = []
        self._target = b""
        self._is_whole = False

    def on_url(self, url: bytes) -> None:
        self._target += url

    def on_header(self, name: bytes, value: bytes) -> None:
        self._fields.append((name, value))

    def on_body(self, body: bytes) -> None:
        self._body.append(body)

    def on_message_complete(self) -> None:
        self._is_whole = True

    def feed(self, data: bytes) -> Request | None:
        self._parser.feed_data(data)
        if not self._is_whole:
            return None
        line = b"%b %b HTTP/1.1" % (self._parser.get_method(), self._target)
        self._is_whole = False
        return Request(line, self._fields, b"".join(self._body))


class HttptoolsAnswer:
    __slots__ = ("_parser", "is_done", "keeps_alive")

    def __init__(self) -> None:
        self._parser = httptools.HttpResponseParser(self)
        self.is_done = False
        self.keeps_alive = True

    def on_body(self, body: bytes) -> None:
        pass

    def on_message_complete(self) -> None:
        self.is_done = True
        self.keeps_alive = self._parser.should_keep_alive()

    def feed(self, data: bytes) -> None:
        self._parser.feed_data(data)
