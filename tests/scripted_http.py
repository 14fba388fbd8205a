"""A server that answers what a test tells it to, byte for byte, and remembers what it was asked; in the test's loop."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

Answer = Callable[[bytes, bytes], bytes | None]


class ScriptedServer:
    def __init__(self, answer: Answer) -> None:
        self._answer = answer
        # Head and body of every request, and how many connections there were.
        self.requests: list[tuple[bytes, bytes]] = []
        self.connections = 0
        self.url = ""
        self._open: set[asyncio.StreamWriter] = set()

    async def converse(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self._open.add(writer)
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                length = next(
                    (
                        int(line.split(b":")[1])
                        for line in head.lower().split(b"\r\n")
                        if line.startswith(b"content-length")
                    ),
                    0,
                )
                body = await reader.readexactly(length)
                self.requests.append((head, body))
                answer = self._answer(head, body)
                if answer is None:
                    await asyncio.sleep(3600)
                    continue
                writer.write(answer)
                await writer.drain()
                if b"connection: close" in answer.lower() or b"content-length" not in answer.lower():
                    return
        except (asyncio.IncompleteReadError, ConnectionError):
            return
        finally:
            self._open.discard(writer)
            writer.close()

    def hang_up(self) -> None:
        for writer in self._open:
            writer.transport.abort()


def answered(body: bytes = b"", *, status: int = 200, fields: str = "") -> bytes:
    head = f"HTTP/1.1 {status} X\r\nContent-Length: {len(body)}\r\n{fields}\r\n"
    return head.encode() + body


@asynccontextmanager
async def scripted(answer: Answer) -> AsyncIterator[ScriptedServer]:
    served = ScriptedServer(answer)
    talks: set[asyncio.Task[None]] = set()

    def begin(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        talks.add(asyncio.get_running_loop().create_task(served.converse(reader, writer)))

    server = await asyncio.start_server(begin, "127.0.0.1", 0, limit=1 << 20)
    served.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield served
    finally:
        server.close()
        for talk in talks:
            talk.cancel()
        await asyncio.gather(*talks, return_exceptions=True)
