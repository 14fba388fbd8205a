"""Servers' pages fetched, each at its own pace. The watch sends no request but for these pages."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from urllib.parse import urlsplit

from speclift.core.address import base_of, joined
from speclift.core.errors import EngineError
from speclift.core.live import MetricsReading, Watched
from speclift.core.units import Seconds
from speclift.engines.attach.detect import version_at
from speclift.engines.metrics import read_page
from speclift.http.client import KeptConnection
from speclift.live.readings import is_another_process
from speclift.live.server_watch import ServerWatch, WatchSettings

METRICS_PATHS = ("/metrics", "/prometheus/metrics")
PAGE_LIMIT_S = 10.0
VERSION_LIMIT_S = 3.0
# Pages of engines have some hundred kilobytes; those of many cores a few megabytes.
PAGE_BYTES_MAX = 8 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchedAddress:
    """The address of a server's metrics, without secrets, which core/address.py remembers."""

    url: str
    # What it wants to be told before it shows them.
    api_key: str | None = field(default=None, repr=False)

    @property
    def pages(self) -> tuple[str, ...]:
        """TensorRT-LLM's are not where the others' are. An address that names a page means that one."""
        if urlsplit(self.url).path.rstrip("/").endswith("metrics"):
            return (self.url,)
        return tuple(joined(base_of(self.url), path) for path in METRICS_PATHS)

    @property
    def base(self) -> str:
        place, mark, query = self.url.partition("?")
        for path in reversed(METRICS_PATHS):
            place = place.rstrip("/").removesuffix(path)
        return base_of(place + mark + query)


class Scraper:
    """The pages of one server."""

    def __init__(self, address: WatchedAddress) -> None:
        self._address = address
        self._connection = KeptConnection()
        self._pages = address.pages
        self._last: MetricsReading | None = None

    async def page(self, *, limit_s: Seconds) -> MetricsReading:
        """EngineError where nobody answers, or no engine."""
        until_s = time.monotonic() + limit_s
        failure: EngineError | None = None
        for url in self._pages:
            try:
                page = await self._read(url, limit_s=max(0.1, until_s - time.monotonic()))
            except EngineError as error:
                failure = failure or error
                continue
            # From now on only there.
            self._pages = (url,)
            return await self._with_version(page)
        assert failure is not None
        raise failure

    def close(self) -> None:
        self._connection.close()

    async def _read(self, url: str, *, limit_s: Seconds) -> MetricsReading:
        text = await self._connection.fetch(
            url, api_key=self._address.api_key, limit_s=limit_s, bytes_max=PAGE_BYTES_MAX
        )
        return read_page(text, at_s=time.monotonic(), wall_s=time.time())

    async def _with_version(self, page: MetricsReading) -> MetricsReading:
        """Asked once for each process, in a thread: several pages are tried."""
        last = self._last
        version = None if last is None else last.version
        if last is None or is_another_process(last, page):
            version = await asyncio.to_thread(
                version_at, self._address.base, self._address.api_key, limit_s=VERSION_LIMIT_S
            )
        self._last = replace(page, version=version)
        return self._last


class Rounds:
    """Servers that are looked at, each at its own pace; which ones they are may change on the way."""

    def __init__(
        self,
        settings: WatchSettings,
        *,
        for_s: Seconds | None,
        tell: Callable[[Watched], None],
    ) -> None:
        """`tell` hears of every server at every interval."""
        self._settings, self._for_s = settings, for_s
        self._tell = tell
        self._courses: dict[WatchedAddress, tuple[_Course, asyncio.Task[None]]] = {}
        self._tasks: asyncio.TaskGroup | None = None
        # From when on `change` may be called.
        self.begun = asyncio.Event()

    async def run(self, addresses: Sequence[WatchedAddress]) -> None:
        """Looks at all servers until the time is over, for ever without one."""
        try:
            async with asyncio.TaskGroup() as self._tasks:
                self.change(addresses, self._settings)
                self.begun.set()
        except BaseExceptionGroup as group:
            # One server is enough to end it; what went wrong there is what the caller hears.
            raise group.exceptions[0] from None

    def change(self, addresses: Sequence[WatchedAddress], settings: WatchSettings) -> None:
        """Those that are new begin, those that are left out end, the others go on with what they know."""
        assert self._tasks is not None
        self._settings = settings
        fresh = [address for address in dict.fromkeys(addresses) if address not in self._courses]
        gone = self._courses.keys() - set(addresses)
        for course, _ in self._courses.values():
            course.adopt(settings)
        for place, address in enumerate(fresh):
            # Not all at once: one page after the other over the interval.
            offset_s = 0.0 if settings.is_single_look else settings.interval_s * place / len(fresh)
            course = _Course(address, ServerWatch(address.url, settings), self._tell)
            work = course.run(offset_s=offset_s, for_s=self._for_s)
            self._courses[address] = course, self._tasks.create_task(work)
        for address in gone:
            self._courses.pop(address)[1].cancel()


class _Course:
    """One server from its first page to the end."""

    def __init__(self, address: WatchedAddress, watch: ServerWatch, tell: Callable[[Watched], None]) -> None:
        self._scraper = Scraper(address)
        self._watch, self._tell = watch, tell

    def adopt(self, settings: WatchSettings) -> None:
        self._watch.adopt(settings)

    async def run(self, *, offset_s: Seconds, for_s: Seconds | None) -> None:
        """A look that took longer than an interval skips those that it missed."""
        began_s = due_s = time.monotonic() + offset_s
        is_first = True
        try:
            while True:
                await asyncio.sleep(max(0.0, due_s - time.monotonic()))
                watched = await self._look()
                settings = self._watch.settings
                # The first page has nothing to be compared with.
                if not is_first or (watched.unreachable and not settings.is_single_look):
                    self._tell(watched)
                late = int(max(0.0, time.monotonic() - due_s) / settings.interval_s)
                due_s += settings.interval_s * (1 + late)
                if settings.is_single_look and not is_first:
                    return
                if for_s is not None and due_s > began_s + for_s:
                    return
                is_first = False
        finally:
            self._scraper.close()

    async def _look(self) -> Watched:
        limit_s = min(PAGE_LIMIT_S, max(1.0, self._watch.settings.interval_s))
        try:
            page = await self._scraper.page(limit_s=limit_s)
        except EngineError as error:
            return self._watch.missed(str(error), wall_s=time.time())
        return self._watch.read(page)
