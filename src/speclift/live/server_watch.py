"""One server, page after page: does speculation pay there now, and since when? Pure: pages come with their times."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace

from speclift.core.live import (
    BreakEvenPoint,
    Event,
    Increment,
    MetricsReading,
    Payoff,
    Watched,
)
from speclift.core.results import CONFIDENCE, Estimate
from speclift.core.units import Seconds
from speclift.live.break_even import BreakEvenAt, break_even_findings
from speclift.live.explanation import changed_finding, what_changed
from speclift.live.findings import page_findings, speculates
from speclift.live.pages import Pages, Turned, since_start
from speclift.live.window import LiveSums, sums_of
from speclift.statistics.change import Change, ChangeWatch
from speclift.statistics.live_window import WATCH_LEVEL, accepted_length


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchSettings:
    break_even: BreakEvenAt
    interval_s: Seconds = 15.0
    window_s: Seconds = 600.0
    # Looked at once, or for weeks on end: then a rare chance has many chances.
    is_single_look: bool = False

    @property
    def level(self) -> float:
        return CONFIDENCE if self.is_single_look else WATCH_LEVEL


class ServerWatch:
    def __init__(self, url: str, settings: WatchSettings) -> None:
        self.url = url
        self.settings = settings
        self._pages = Pages(interval_s=settings.interval_s)
        self._window: deque[Increment] = deque()
        self._changes = ChangeWatch()
        self._change: Change | None = None
        self._has_replicas = False
        self._last: Watched | None = None
        # What it was when it paid, a window ago and lately: what an end of that is held against. The last looks before
        # an end have the change in them already.
        self._paid: Watched | None = None
        self._paid_lately: Watched | None = None

    def read(self, page: MetricsReading) -> Watched:
        turned = self._pages.turn(page)
        self._take(turned, page.at_s)
        watched = self._watched(page, tuple(self._window), turned.events)
        return self._told(watched, changed_s=self._changed_s(page))

    def read_alone(self, page: MetricsReading) -> Watched:
        """One page and no other: what it counted since its server started."""
        return self._told(self._watched(page, (since_start(page),), ()))

    def missed(self, why: str, *, wall_s: Seconds) -> Watched:
        """The server could not be read: what it did meanwhile is in its counters when it can."""
        last = self._last
        return self._told(
            Watched(
                url=self.url,
                at_s=wall_s,
                window_s=0.0,
                payoff=Payoff.UNSURE,
                since_s=wall_s,
                engine=last.engine if last is not None else None,
                version=last.version if last is not None else None,
                model=last.model if last is not None else None,
                events=(Event.UNREACHABLE,),
                unreachable=why,
            )
        )

    def _take(self, turned: Turned, at_s: Seconds) -> None:
        # The first page of a second replica looks like traffic of the first.
        is_first_replica = Event.REPLICAS in turned.events and not self._has_replicas
        self._has_replicas |= is_first_replica
        if turned.begins_anew or is_first_replica:
            self._window.clear()
            self._changes.forget()
            self._change = None
        if turned.increment is not None:
            self._window.append(turned.increment)
            self._change = self._changes.follow(turned.increment) or self._change
        while (
            self._window and self._window[0].from_s < at_s - self.settings.window_s - self.settings.interval_s
        ):
            self._window.popleft()

    def _watched(
        self, page: MetricsReading, increments: Sequence[Increment], events: tuple[Event, ...]
    ) -> Watched:
        sums = sums_of(increments)
        estimate = accepted_length(increments, level=self.settings.level, spread=self._changes.spread)
        k = page.k if page.k is not None else len(page.totals.accepted_at) or None
        point = self.settings.break_even(sums.running, k)
        payoff = payoff_of(sums, estimate, point) if speculates(page) and increments else Payoff.UNSURE
        return Watched(
            url=self.url,
            at_s=page.wall_s,
            window_s=sums.seconds,
            payoff=payoff,
            since_s=page.wall_s,
            engine=page.engine,
            version=page.version,
            model=page.model,
            accepted_length=estimate,
            acceptance_rate=sums.acceptance_rate,
            per_position=sums.per_position,
            drafts=sums.drafts,
            break_even=point,
            ttft_s=sums.ttft_s,
            tpot_s=sums.tpot_s,
            tokens_s=_per(sums.tokens, sums.seconds),
            requests_s=_per(sums.requests, sums.seconds),
            prompt_tokens_per_request=_per(sums.prompt_tokens, sums.requests),
            tokens_per_request=_per(sums.tokens, sums.requests),
            # The load of the moment is the page's own.
            running=page.running,
            waiting=page.waiting,
            kv_used=page.kv_used,
            prefix_hit_rate=sums.prefix_hit_rate,
            events=events,
            findings=(*page_findings(page, sums, events), *break_even_findings(point)),
        )

    def _changed_s(self, page: MetricsReading) -> Seconds | None:
        """When the accepted length last changed, on the wall's clock, where that is less than two windows ago."""
        if self._change is None or page.at_s - self._change.at_s > 2 * self.settings.window_s:
            return None
        return page.wall_s - (page.at_s - self._change.at_s)

    def _told(self, watched: Watched, *, changed_s: Seconds | None = None) -> Watched:
        """With since when it is so, and what changed where it no longer pays."""
        last = self._last
        goes_on = (
            last is not None
            and last.payoff is watched.payoff
            and bool(last.unreachable) == bool(watched.unreachable)
        )
        findings = watched.findings
        if changed_s is not None and self._change is not None:
            findings = (changed_finding(self._change, changed_s), *findings)
        if watched.payoff is Payoff.DOES_NOT_PAY and self._paid is not None:
            findings = (*findings, *what_changed(self._paid, watched))
        # It began with the change that it shows, not when there were enough pages to be sure of it.
        began_s = (
            changed_s if changed_s is not None and watched.payoff is Payoff.DOES_NOT_PAY else watched.at_s
        )
        since_s = last.since_s if last is not None and goes_on else began_s
        told = replace(watched, since_s=since_s, findings=findings)
        if told.payoff is Payoff.PAYS:
            self._keep_paid(told)
        self._last = told
        return told

    def _keep_paid(self, told: Watched) -> None:
        lately = self._paid_lately
        if lately is None or told.at_s - lately.at_s >= self.settings.window_s:
            self._paid, self._paid_lately = lately or told, told


def payoff_of(sums: LiveSums, estimate: Estimate | None, point: BreakEvenPoint | None) -> Payoff:
    if not sums.has_traffic:
        # Requests under way whose tokens are counted when they end (llama.cpp) are traffic.
        return Payoff.UNSURE if sums.running else Payoff.NO_TRAFFIC
    if estimate is None or point is None:
        return Payoff.UNSURE
    if estimate.low >= point.high:
        return Payoff.PAYS
    return Payoff.DOES_NOT_PAY if estimate.high < point.low else Payoff.UNSURE


def _per(amount: float | None, whole: float | None) -> float | None:
    return amount / whole if amount is not None and whole else None
