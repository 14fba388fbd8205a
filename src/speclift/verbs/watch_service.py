"""What a watch serves while it goes on: its page, metrics for Prometheus, JSON."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping

from speclift import __version__
from speclift.core.answer import ShortAnswer
from speclift.core.live import Watched
from speclift.core.results import Percentiles
from speclift.core.units import Seconds
from speclift.live.board import Board, BoardEntry
from speclift.live.http_service import HTML, TEXT, Route, WebAnswer, WebRequest
from speclift.verdict.break_even import StudyBreakEvens
from speclift.views.prometheus_text import CONTENT_TYPE
from speclift.views.watch_charts import Baseline, Span
from speclift.views.watch_document import WatchDocument, history_document, watch_document
from speclift.views.watch_exposition import WatchedTotals, exposition
from speclift.views.watch_page import HOURS, PageFrame, ShownServer, watch_list, watch_page

SPAN_MIN_S = 120.0
PAGE_POINTS = 600
API_POINTS = 2000
HOURS_SHOWN = 1
HOURS_MAX = 720.0
REFRESH_MIN_S, REFRESH_MAX_S = 2.0, 60.0


class WatchPages:
    """The routes of the service."""

    def __init__(
        self,
        board: Board,
        *,
        answer: Callable[[Watched], ShortAnswer],
        studied: Callable[[], StudyBreakEvens | None],
        interval_s: Callable[[], Seconds],
    ) -> None:
        """What may be read anew on the way is asked for each time."""
        self._board, self._answer = board, answer
        self._studied, self._interval_s = studied, interval_s

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
            every_s=min(max(self._interval_s(), REFRESH_MIN_S), REFRESH_MAX_S),
            version=__version__,
        )
        entries = self._board.entries()
        wanted = request.query.get("server")
        chosen = [entry for entry in entries if entry.last is not None and entry.last.url == wanted]
        if wanted is None and len(entries) == 1:
            chosen = entries
        if not chosen:
            status = 200 if wanted is None else 404
            text = watch_list([self._document(entry) for entry in entries], frame)
            return WebAnswer(body=text.encode(), kind=HTML, status=status)
        hours = _hours(request, HOURS_SHOWN)
        shown = self._shown(chosen[0], int(hours) if hours in HOURS else HOURS_SHOWN)
        page = watch_page(shown, frame, is_of_several=len(entries) > 1)
        return WebAnswer(body=page.encode(), kind=HTML)

    def _shown(self, entry: BoardEntry, hours: int) -> ShownServer:
        assert entry.last is not None
        now_s = max(time.time(), entry.last.at_s)
        from_s = now_s - hours * 3600.0
        url = entry.last.url
        studied = self._studied()
        looks = self._board.looks(url, from_s=from_s, to_s=now_s, points=PAGE_POINTS)
        # A watch that began lately fills its charts all the same.
        began_s = max(from_s, min(looks[0].at_s, now_s - SPAN_MIN_S)) if looks else from_s
        return ShownServer(
            document=self._document(entry),
            looks=looks,
            span=Span(from_s=began_s, to_s=now_s),
            hours=hours,
            baseline=None if studied is None else baseline_at(studied, entry.last.running),
        )

    def _metrics(self, _: WebRequest) -> WebAnswer:
        totals = [
            WatchedTotals(watched=entry.last, looks=entry.looks, events=entry.events, changes=entry.changes)
            for entry in self._board.entries()
            if entry.last is not None
        ]
        return WebAnswer(body=exposition(totals, version=__version__).encode(), kind=CONTENT_TYPE)

    def _now(self, _: WebRequest) -> WebAnswer:
        return _json({"schema": 1, "servers": [self._document(entry) for entry in self._board.entries()]})

    def _history(self, request: WebRequest) -> WebAnswer:
        url, hours = request.query.get("server", ""), _hours(request, 24.0)
        if self._board.entry(url) is None:
            return _json({"error": "server= must be one of those in /api/now"}, status=404)
        if hours is None:
            return _json({"error": f"hours= must be a number up to {HOURS_MAX:g}"}, status=400)
        now_s = time.time()
        looks = self._board.looks(url, from_s=now_s - hours * 3600.0, to_s=now_s, points=API_POINTS)
        return _json(history_document(url, hours, looks))

    def _document(self, entry: BoardEntry) -> WatchDocument:
        assert entry.last is not None
        return watch_document(entry.last, self._answer(entry.last))


def baseline_at(studied: StudyBreakEvens, running: float | None) -> Baseline:
    """Of the load nearest to so many requests under way; the lightest where nobody says."""
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
    return WebAnswer(body=json.dumps(document, allow_nan=False).encode() + b"\n", status=status)
