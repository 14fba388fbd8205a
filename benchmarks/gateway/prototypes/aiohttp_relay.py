"""A relay on aiohttp, server and client: python aiohttp_relay.py PORT PORT"""

from __future__ import annotations

import asyncio
import sys

import aiohttp
from aiohttp import web
from forwarding import HOP_BY_HOP, POOLS, Observed, Upstreams, announce


class Relay:
    def __init__(self, ports: tuple[int, ...]) -> None:
        self._upstreams = Upstreams(ports)
        self._session: aiohttp.ClientSession

    async def serve(self) -> None:
        connector = aiohttp.TCPConnector(limit=0)
        async with aiohttp.ClientSession(connector=connector, auto_decompress=False) as self._session:
            application = web.Application()
            application.router.add_route("*", "/{path:.*}", self.handle)
            runner = web.AppRunner(application, access_log=None)
            await runner.setup()
            site = web.TCPSite(runner, "127.0.0.1", 0, backlog=4096)
            await site.start()
            announce(runner.addresses[0][1])
            await asyncio.Event().wait()

    async def handle(self, request: web.Request) -> web.StreamResponse:
        body = await request.read()
        pool = self._upstreams.choose(body)
        observed = Observed()
        fields = [
            (name, value)
            for name, value in request.headers.items()
            if name.lower().encode() not in HOP_BY_HOP
        ]
        url = f"http://127.0.0.1:{self._upstreams.ports[pool]}{request.rel_url}"
        async with self._session.request(request.method, url, data=body, headers=fields) as answer:
            response = web.StreamResponse(status=answer.status)
            response.content_type = answer.content_type
            response.headers["x-speclift-pool"] = POOLS[pool].decode()
            response.enable_chunked_encoding()
            await response.prepare(request)
            async for chunk in answer.content.iter_any():
                observed.note(len(chunk))
                await response.write(chunk)
            await response.write_eof()
        self._upstreams.settle(pool, observed)
        return response


if __name__ == "__main__":
    asyncio.run(Relay(tuple(int(port) for port in sys.argv[1:])).serve())
