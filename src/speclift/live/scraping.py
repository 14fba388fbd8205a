"""Servers' pages fetched, each at its own pace. The watch sends no request but for these pages."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from urllib.parse import urlsplit

from speclift.core.address import base_of, joined
from speclift.core.errors import EngineError
from speclift.core.live import MetricsReading, Watched
from speclift.core.units import Seconds
from speclift.engines.attach.detect import version_at
from speclift.engines.http import fetch
from speclift.engines.live_metrics import read_page
from speclift.live.pages import is_another_process
from speclift.live.server_watch import ServerWatch, WatchSettings

METRICS_PATHS = ("/metrics", "/prometheus/metrics")
PAGE_LIMIT_S = 10.0
VERSION_LIMIT_S = 3.0
# Pages of engines have some hundred kilobytes; those of many cores a few megabytes.
PAGE_BYTES_MAX = 8 << 20
# Servers that hang must not keep the others waiting.
THREADS_MAX = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchedAddress:
    """Where a server's metrics are; without secrets, which core/address.py remembers."""

    url: str

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
    """The pages of one server; blocking, for a thread."""

    def __init__(self, address: WatchedAddress, *, api_key: str | None) -> None:
        self._address = address
        self._api_key = api_key
        self._pages = address.pages
        self._last: MetricsReading | None = None

    def page(self, *, limit_s: Seconds) -> MetricsReading:
        """EngineError where nobody answers, or no engine."""
        until_s = time.monotonic() + limit_s
        failure: EngineError | None = None
        for url in self._pages:
            try:
                page = self._read(url, limit_s=max(0.1, until_s - time.monotonic()))
            except EngineError as error:
                failure = failure or error
                continue
            # From now on only there.
            self._pages = (url,)
            return self._with_version(page)
        assert failure is not None
        raise failure

    def _read(self, url: str, *, limit_s: Seconds) -> MetricsReading:
        text = fetch(url, api_key=self._api_key, limit_s=limit_s, bytes_max=PAGE_BYTES_MAX)
        return read_page(text, at_s=time.monotonic(), wall_s=time.time())

    def _with_version(self, page: MetricsReading) -> MetricsReading:
        """Asked once for each process."""
        last = self._last
        if last is None or last.version is None or is_another_process(last, page):
            version = version_at(self._address.base, self._api_key, limit_s=VERSION_LIMIT_S)
        else:
            version = last.version
        self._last = replace(page, version=version)
        return self._last


async def watch_servers(
    servers: Sequence[tuple[WatchedAddress, ServerWatch]],
    settings: WatchSettings,
    *,
    api_key: str | None,
    for_s: Seconds | None,
    tell: Callable[[Watched], None],
) -> None:
    """Until the time is over, for ever without one. `tell` hears of every server at every interval."""
    with ThreadPoolExecutor(min(THREADS_MAX, len(servers)), "scrape") as threads:
        async with asyncio.TaskGroup() as tasks:
            for place, (address, watch) in enumerate(servers):
                # Not all at once: one page after the other over the interval.
                offset_s = 0.0 if settings.is_single_look else settings.interval_s * place / len(servers)
                course = _Course(address, watch, settings, api_key=api_key, threads=threads, tell=tell)
                tasks.create_task(course.run(offset_s=offset_s, for_s=for_s))


class _Course:
    """One server from its first page to the end."""

    def __init__(
        self,
        address: WatchedAddress,
        watch: ServerWatch,
        settings: WatchSettings,
        *,
        api_key: str | None,
        threads: ThreadPoolExecutor,
        tell: Callable[[Watched], None],
    ) -> None:
        self._scraper = Scraper(address, api_key=api_key)
        self._watch, self._settings = watch, settings
        self._threads, self._tell = threads, tell

    async def run(self, *, offset_s: Seconds, for_s: Seconds | None) -> None:
        began_s = time.monotonic() + offset_s
        looks = 0
        while True:
            due_s = began_s + looks * self._settings.interval_s
            await asyncio.sleep(max(0.0, due_s - time.monotonic()))
            watched = await self._look()
            # The first page has nothing to be compared with.
            if looks > 0 or (watched.unreachable and not self._settings.is_single_look):
                self._tell(watched)
            if self._is_over(looks, began_s, for_s):
                return
            # A look that took longer than an interval skips those that it missed.
            looks = max(looks + 1, int((time.monotonic() - began_s) / self._settings.interval_s))

    def _is_over(self, looks: int, began_s: Seconds, for_s: Seconds | None) -> bool:
        if self._settings.is_single_look:
            return looks > 0
        next_s = (looks + 1) * self._settings.interval_s
        return for_s is not None and began_s + next_s > began_s + for_s

    async def _look(self) -> Watched:
        limit_s = min(PAGE_LIMIT_S, max(1.0, self._settings.interval_s))
        loop = asyncio.get_running_loop()
        try:
            page = await loop.run_in_executor(self._threads, lambda: self._scraper.page(limit_s=limit_s))
        except EngineError as error:
            return self._watch.missed(str(error), wall_s=time.time())
        return self._watch.read(page)
