"""watch: does speculation still pay on servers that are running? Sends them nothing but questions about themselves.

A watch that goes on serves a page, metrics for Prometheus and JSON meanwhile, and posts what changed.
"""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from pathlib import Path

from speclift import __version__
from speclift.bench.interrupts import heeding_hangup
from speclift.core.document import plain
from speclift.core.errors import OperatingError, SpecliftError, UsageError
from speclift.core.judged import StudyBreakEvens
from speclift.core.live import Watched
from speclift.core.results import Percentiles
from speclift.http.pages import HTML, TEXT, Guard, HttpService, Route, WebAnswer, WebRequest
from speclift.live.ask import WatchAsk
from speclift.live.board import Board, History
from speclift.live.scraping import Rounds
from speclift.live.webhook import Webhook
from speclift.studies.private import private_file, private_folder
from speclift.verbs.keys import key_of, token_of
from speclift.verbs.watch_plan import Tell, WatchPlan, watch_settings
from speclift.views.charts import Scale
from speclift.views.exposition import CONTENT_TYPE, WatchedTotals, watch_exposition
from speclift.views.watch_page import HOURS, Baseline, PageFrame, watch_list, watch_page

# What is open or under way already when settings are read anew.
FIXED = ("listen", "token_env", "history", "webhook", "webhook_key_env", "for_s", "once")
# At the end, for documents that are still on their way.
DRAIN_LIMIT_S = 2.0
SPAN_MIN_S = 120.0
PAGE_POINTS = 600
API_POINTS = 2000
HOURS_SHOWN = 1
HOURS_MAX = 720.0
REFRESH_MIN_S, REFRESH_MAX_S = 2.0, 60.0


async def watch(
    plan: WatchPlan,
    *,
    tell: Tell,
    say: Callable[[str], None] = lambda _: None,
    reread: Callable[[], WatchPlan] | None = None,
) -> dict[str, Watched]:
    """Watches until `for_s` is over or somebody cancels it; returns the last look at every server. `reread` is called
    where a SIGHUP wants the settings read anew; `say` hears what is worth a line beside the answers."""
    addresses, ask = plan.addresses(), plan.ask
    watching = _Watching(plan, tell=tell, say=say)
    async with AsyncExitStack() as stack:
        stack.callback(watching.close)
        if reread is not None:
            stack.enter_context(heeding_hangup(lambda: watching.read_anew(reread)))
        if ask.listen is not None:
            token = None if ask.token_env is None else token_of(ask.token_env)
            guard = Guard(token=token, is_loopback=ask.listen.is_loopback)
            service = HttpService(watching.routes(), guard)
            stack.push_async_callback(service.close)
            say(f"listening on {await service.open(ask.listen.host, ask.listen.port)}")
        if watching.webhook is not None:
            stack.push_async_callback(watching.webhook.drain, limit_s=DRAIN_LIMIT_S)
            stack.push_async_callback(_ended, asyncio.create_task(watching.webhook.run()))
        await watching.rounds.run(addresses)
    return watching.last


async def _ended(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


class _Watching:
    """A watch while it goes on."""

    def __init__(self, plan: WatchPlan, *, tell: Tell, say: Callable[[str], None]) -> None:
        ask = plan.ask
        self.last: dict[str, Watched] = {}
        self._plan, self._tell, self._say = plan, tell, say
        self._settings, self._studied = watch_settings(ask)
        self.webhook = _webhook(ask, say)
        history = History(_history_file(ask)) if ask.listen is not None or ask.history is not None else None
        self._board = Board(history, recent_s=max(ask.window_s, 3 * ask.interval_s), say=say)
        self.rounds = Rounds(self._settings, for_s=ask.for_s, tell=self._hear)
        self._reading: set[asyncio.Task[None]] = set()

    def close(self) -> None:
        self._board.close()

    def read_anew(self, reread: Callable[[], WatchPlan]) -> None:
        """Reads the settings again beside the watch; wrong ones change nothing."""
        reading = asyncio.get_running_loop().create_task(self._take_over(reread))
        self._reading.add(reading)
        reading.add_done_callback(self._reading.discard)

    async def _take_over(self, reread: Callable[[], WatchPlan]) -> None:
        try:
            plan = reread()
            addresses = plan.addresses()
            settings, studied = await asyncio.to_thread(watch_settings, plan.ask)
            await self.rounds.begun.wait()
        except SpecliftError as error:
            self._say(f"settings not read anew, the old ones stay: {error}")
            return
        fixed = [name for name in FIXED if getattr(plan.ask, name) != getattr(self._plan.ask, name)]
        if fixed:
            self._say(f"only a new start changes {', '.join(name.removesuffix('_s') for name in fixed)}")
        self._plan, self._settings, self._studied = plan, settings, studied
        self.rounds.change(addresses, settings)
        urls = {address.url for address in addresses}
        self._board.keep_only(urls)
        self.last = {url: watched for url, watched in self.last.items() if url in urls}
        self._say(f"settings read anew: {len(urls)} servers")

    def _hear(self, watched: Watched) -> None:
        watched, is_news = self._board.take(watched)
        self.last[watched.url] = watched
        if is_news and self.webhook is not None:
            self.webhook.post(_encoded(watched))
        self._tell(watched)

    def routes(self) -> Mapping[str, Route]:
        return {
            "/": self._page,
            "/metrics": self._metrics,
            "/healthz": lambda _: WebAnswer(body=b"ok\n", kind=TEXT),
            "/api/now": self._now,
            "/api/history": self._history,
        }

    def _page(self, request: WebRequest) -> WebAnswer:
        frame = PageFrame(
            nonce=request.nonce,
            every_s=min(max(self._settings.interval_s, REFRESH_MIN_S), REFRESH_MAX_S),
            version=__version__,
        )
        servers = self._servers()
        wanted = request.query.get("server")
        chosen = [watched for watched in servers if watched.url == wanted]
        if wanted is None and len(servers) == 1:
            chosen = servers
        if not chosen:
            status = 200 if wanted is None else 404
            return WebAnswer(body=watch_list(servers, frame).encode(), kind=HTML, status=status)
        (watched,) = chosen
        hours = _hours(request, HOURS_SHOWN)
        shown_hours = int(hours) if hours in HOURS else HOURS_SHOWN
        to_s = max(time.time(), watched.at_s)
        from_s = to_s - shown_hours * 3600.0
        looks = self._board.looks(watched.url, from_s=from_s, to_s=to_s, points=PAGE_POINTS)
        # A watch that began lately fills its charts all the same.
        began_s = max(from_s, min(looks[0].at_s, to_s - SPAN_MIN_S)) if looks else from_s
        page = watch_page(
            watched,
            looks,
            frame,
            span=Scale(low=began_s, high=to_s),
            hours=shown_hours,
            baseline=None if self._studied is None else baseline_at(self._studied, watched.running),
            is_of_several=len(servers) > 1,
        )
        return WebAnswer(body=page.encode(), kind=HTML)

    def _metrics(self, _: WebRequest) -> WebAnswer:
        totals = [
            WatchedTotals(watched=entry.last, looks=entry.looks, events=entry.events, changes=entry.changes)
            for entry in self._board.entries()
            if entry.last is not None
        ]
        return WebAnswer(body=watch_exposition(totals, version=__version__).encode(), kind=CONTENT_TYPE)

    def _now(self, _: WebRequest) -> WebAnswer:
        return _json({"schema": 1, "servers": self._servers()})

    def _history(self, request: WebRequest) -> WebAnswer:
        url, hours = request.query.get("server", ""), _hours(request, 24.0)
        if self._board.entry(url) is None:
            return _json({"error": "server= must be one of those in /api/now"}, status=404)
        if hours is None:
            return _json({"error": f"hours= must be a number up to {HOURS_MAX:g}"}, status=400)
        now_s = time.time()
        looks = self._board.looks(url, from_s=now_s - hours * 3600.0, to_s=now_s, points=API_POINTS)
        return _json({"schema": 1, "url": url, "hours": hours, "looks": looks})

    def _servers(self) -> list[Watched]:
        return [entry.last for entry in self._board.entries() if entry.last is not None]


def baseline_at(studied: StudyBreakEvens, running: float | None) -> Baseline:
    """Baseline times at the load nearest to so many requests under way; the lightest if nobody says."""
    load = min(studied.loads, key=lambda each: abs(each.running - (running or 0.0)))
    unknown = Percentiles(p50=None, p95=None, p99=None)
    ttft, tpot = load.baseline_ttft_s or unknown, load.baseline_tpot_s or unknown
    return Baseline(
        ttft_p50_s=ttft.p50,
        ttft_p95_s=ttft.p95,
        tpot_p50_s=tpot.p50,
        tpot_p95_s=tpot.p95,
        load=f"{load.running:.3g} requests under way",
    )


def _hours(request: WebRequest, usual: float) -> float | None:
    """None where it is no number that is allowed."""
    try:
        hours = float(request.query.get("hours", usual))
    except ValueError:
        return None
    return hours if 0 < hours <= HOURS_MAX else None


def _json(document: Mapping[str, object], *, status: int = 200) -> WebAnswer:
    return WebAnswer(body=_encoded(document) + b"\n", status=status)


def _encoded(value: object) -> bytes:
    return json.dumps(plain(value), allow_nan=False).encode()


def _webhook(ask: WatchAsk, say: Callable[[str], None]) -> Webhook | None:
    if ask.webhook is None:
        return None
    key = None if ask.webhook_key_env is None else key_of(ask.webhook_key_env, "--webhook-key-env")
    return Webhook(ask.webhook, key, say=say)


def _history_file(ask: WatchAsk) -> Path:
    """There, and for the user alone."""
    path = ask.history
    if path is None:
        shared = Path(os.environ.get("XDG_STATE_HOME", ""))
        # The XDG specification has relative paths ignored.
        path = (
            (shared if shared.is_absolute() else Path.home() / ".local" / "state") / "speclift" / "watch.db"
        )
    if path.exists() and not path.is_file() and not path.is_dir():
        # A pipe would be waited for without an end.
        raise UsageError(f"--history must be a file, but {path} is a device or a pipe")
    try:
        private_folder(path.parent)
        private_file(path)
    except OSError as error:
        raise OperatingError(
            f"the history cannot be written to {path}: {error.strerror or error}",
            hint="give another file: --history FILE",
        ) from error
    return path
