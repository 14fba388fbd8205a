"""What a gateway shows of itself: its page, metrics for Prometheus, JSON."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping

from speclift import __version__
from speclift.core.document import plain
from speclift.core.routing import PoolStates, RoutedRequest
from speclift.core.units import Seconds
from speclift.http.pages import HTML, Route, WebAnswer, WebRequest
from speclift.routing.learning import Learner
from speclift.routing.tallies import Tallies
from speclift.views.exposition import CONTENT_TYPE, gateway_exposition
from speclift.views.gateway_page import GatewayBoard, gateway_document, gateway_page
from speclift.views.watch_page import PageFrame

REFRESH_S: Seconds = 5.0


class GatewayPages:
    """`note` counts what is shown, `routes` shows it."""

    def __init__(
        self,
        *,
        pools: Callable[[], PoolStates],
        policy: Callable[[], str | None],
        learner: Learner,
        wall_clock: Callable[[], Seconds] = time.time,
        clock: Callable[[], Seconds] = time.monotonic,
    ) -> None:
        """What may change on the way is asked for each time."""
        self._pools, self._policy, self._learner = pools, policy, learner
        self._wall_clock, self._clock = wall_clock, clock
        self._tallies = Tallies()
        self._since_s, self._began_s = wall_clock(), clock()

    def note(self, request: RoutedRequest) -> None:
        self._tallies.note(request, now_s=self._clock())

    def routes(self) -> Mapping[str, Route]:
        return {"/speclift/": self._page, "/speclift/api/now": self._now, "/metrics": self._metrics}

    def board(self) -> GatewayBoard:
        learner = self._learner
        return GatewayBoard(
            version=__version__,
            at_s=self._wall_clock(),
            since_s=self._since_s,
            now_s=self._clock(),
            tallies=self._tallies,
            pools=self._pools(),
            policy=self._policy(),
            canary=learner.canary,
            learns=learner.learns,
            segments=learner.segments(),
            shifts=tuple(learner.shifts),
            shift_counts=learner.shift_counts,
        )

    def _page(self, request: WebRequest) -> WebAnswer:
        frame = PageFrame(nonce=request.nonce, every_s=REFRESH_S, version=__version__)
        document = gateway_document(self.board())
        page = gateway_page(document, frame, up_s=self._clock() - self._began_s)
        return WebAnswer(body=page.encode(), kind=HTML)

    def _now(self, _: WebRequest) -> WebAnswer:
        return WebAnswer(body=json.dumps(plain(gateway_document(self.board()))).encode() + b"\n")

    def _metrics(self, _: WebRequest) -> WebAnswer:
        return WebAnswer(body=gateway_exposition(self.board()).encode(), kind=CONTENT_TYPE)
