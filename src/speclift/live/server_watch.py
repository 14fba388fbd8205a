"""One server, page after page: does speculation pay there now, and since when? Pure: pages come with their times."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from msgspec.structs import replace

from speclift.core.answer import NextCommand
from speclift.core.live import (
    BreakEvenPoint,
    BreakEvenSource,
    Event,
    Increment,
    LiveEstimate,
    MetricsReading,
    Payoff,
    Watched,
    instant,
    rounded,
)
from speclift.core.results import CONFIDENCE
from speclift.core.units import Seconds
from speclift.live.findings import (
    break_even_findings,
    changed_finding,
    page_findings,
    speculates,
    watch_answer,
    what_changed,
)
from speclift.live.readings import (
    ENDINGS,
    Pages,
    percentiles_of,
    position_shares,
    ratio,
    since_start,
    summed,
    time_per_token,
)
from speclift.statistics.live import WATCH_LEVEL, Change, ChangeWatch, accepted_length

# Beyond this multiple of the largest measured load nobody knows what a step costs, only that it costs more.
BEYOND = 2.0
# What a guess knows: by how much of a plain step each drafted token lengthens one. Looked up on a CPU 0.02 (the demo:
# k=7 takes 1.15 plain steps), an EAGLE head on an H200 0.12, looked up there 0.25 (a model of 135M, k=5), a draft model
# of an eighth of its target's size there 0.5 (vLLM 0.26, docs/gpu.md); older versions and busy machines more.
GUESSED_COST_LOW, GUESSED_COST, GUESSED_COST_HIGH = 0.02, 0.15, 0.50


# From which accepted length on it pays, with so many requests under way and so many tokens drafted at a time; None is
# not known.
BreakEvenAt: TypeAlias = Callable[[float | None, int | None], BreakEvenPoint | None]


def given_break_even(value: float) -> BreakEvenAt:
    """A break-even that is the same at any load."""
    return lambda running, _k: _point(
        value, low=value, high=value, source=BreakEvenSource.GIVEN, running=running
    )


def studied_break_even(at: Callable[[float], float], loads: Sequence[float]) -> BreakEvenAt:
    """A break-even as a study measured it: `at` with so many requests under way, `loads` those that it had."""

    def point(running: float | None, _k: int | None) -> BreakEvenPoint:
        if running is None:
            # Which load it is nobody says: every one that was measured may be meant.
            values = [at(load) for load in loads]
            return _point(
                max(values), low=min(values), high=max(values), source=BreakEvenSource.STUDY, running=None
            )
        value = at(running)
        high = None if running > BEYOND * max(loads) else value
        return _point(value, low=value, high=high, source=BreakEvenSource.STUDY, running=running)

    return point


def planned_break_even(running: float | None, k: int | None) -> BreakEvenPoint | None:
    """A guess from the number of tokens drafted at a time."""
    if not k:
        return None
    low, value, high = (1 + cost * k for cost in (GUESSED_COST_LOW, GUESSED_COST, GUESSED_COST_HIGH))
    return _point(value, low=low, high=high, source=BreakEvenSource.PLANNED, running=running)


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchSettings:
    break_even: BreakEvenAt
    interval_s: Seconds = 15.0
    window_s: Seconds = 600.0
    # Looked at once, or for weeks on end: then a rare chance has many chances.
    is_single_look: bool = False
    # What to run where it no longer pays.
    again: NextCommand | None = None

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

    def adopt(self, settings: WatchSettings) -> None:
        """Other settings from now on; what was seen stays."""
        self.settings = settings
        self._pages.interval_s = settings.interval_s

    def read(self, page: MetricsReading) -> Watched:
        increment, events = self._pages.turn(page)
        self._take(increment, events, page.at_s)
        watched = self._watched(page, tuple(self._window), events)
        return self._worded(watched, changed_s=self._changed_s(page))

    def read_alone(self, page: MetricsReading) -> Watched:
        """One page and no other: what it counted since its server started."""
        return self._worded(self._watched(page, (since_start(page),), ()))

    def missed(self, why: str, *, wall_s: Seconds) -> Watched:
        """The server could not be read: what it did meanwhile is in its counters when it can."""
        last = self._last
        return self._worded(
            Watched(
                url=self.url,
                at=instant(wall_s),
                window_s=0.0,
                verdict=Payoff.UNSURE,
                since=instant(wall_s),
                engine=last.engine if last is not None else None,
                version=last.version if last is not None else None,
                model=last.model if last is not None else None,
                events=(Event.UNREACHABLE,),
                unreachable=why,
            )
        )

    def _take(self, increment: Increment | None, events: tuple[Event, ...], at_s: Seconds) -> None:
        # The first page of a second replica looks like traffic of the first.
        is_first_replica = Event.REPLICAS in events and not self._has_replicas
        self._has_replicas |= is_first_replica
        if is_first_replica or not ENDINGS.isdisjoint(events):
            self._window.clear()
            self._changes.forget()
            self._change = None
        if increment is not None:
            self._window.append(increment)
            self._change = self._changes.follow(increment) or self._change
        from_s = at_s - self.settings.window_s - self.settings.interval_s
        while self._window and self._window[0].from_s < from_s:
            self._window.popleft()

    def _watched(
        self, page: MetricsReading, increments: Sequence[Increment], events: tuple[Event, ...]
    ) -> Watched:
        window = summed(increments)
        totals, seconds = window.totals, window.seconds
        estimate = accepted_length(increments, level=self.settings.level, spread=self._changes.spread)
        k = page.k if page.k is not None else len(page.totals.accepted_at) or None
        point = self.settings.break_even(window.running, k)
        payoff = payoff_of(window, estimate, point) if speculates(page) and increments else Payoff.UNSURE
        return Watched(
            url=self.url,
            at=instant(page.wall_s),
            window_s=round(seconds, 3),
            verdict=payoff,
            since=instant(page.wall_s),
            engine=page.engine,
            version=page.version,
            model=page.model,
            accepted_length=estimate and _short(estimate),
            acceptance_rate=rounded(ratio(totals.accepted, totals.drafted)),
            per_position=position_shares(increments),
            drafts=totals.drafts,
            break_even=point,
            ttft_s=percentiles_of(totals.ttft),
            tpot_s=time_per_token(totals),
            tokens_s=rounded(ratio(totals.tokens, seconds)),
            requests_s=rounded(ratio(totals.requests, seconds)),
            prompt_tokens_per_request=rounded(ratio(totals.prompt_tokens, totals.requests)),
            tokens_per_request=rounded(ratio(totals.tokens, totals.requests)),
            # The load of the moment is the page's own.
            running=page.running,
            waiting=page.waiting,
            kv_used=rounded(page.kv_used),
            prefix_hit_rate=rounded(ratio(totals.prefix_hits, totals.prefix_queries)),
            events=events,
            findings=(*page_findings(page, window, events), *break_even_findings(point)),
        )

    def _changed_s(self, page: MetricsReading) -> Seconds | None:
        """When the accepted length last changed, on the wall's clock, where that is less than two windows ago."""
        if self._change is None or page.at_s - self._change.at_s > 2 * self.settings.window_s:
            return None
        return page.wall_s - (page.at_s - self._change.at_s)

    def _worded(self, watched: Watched, *, changed_s: Seconds | None = None) -> Watched:
        """The look with when its answer began, what changed where it no longer pays, and the answer."""
        last, began = self._last, watched.at
        findings = watched.findings
        if changed_s is not None and self._change is not None:
            findings = (changed_finding(self._change, changed_s), *findings)
        if watched.verdict is Payoff.DOES_NOT_PAY:
            if self._paid is not None:
                findings = (*findings, *what_changed(self._paid, watched))
            # It began with the change that it shows, not when there were enough pages to be sure of it.
            began = began if changed_s is None else instant(changed_s)
        if last is not None and last.verdict is watched.verdict and is_read(last) == is_read(watched):
            began = last.since
        worded = with_answer(replace(watched, since=began, findings=findings), following=self.settings.again)
        if worded.verdict is Payoff.PAYS:
            self._keep_paid(worded)
        self._last = worded
        return worded

    def _keep_paid(self, watched: Watched) -> None:
        lately = self._paid_lately
        if lately is None or watched.at_s - lately.at_s >= self.settings.window_s:
            self._paid, self._paid_lately = lately or watched, watched


def payoff_of(window: Increment, estimate: LiveEstimate | None, point: BreakEvenPoint | None) -> Payoff:
    if not window.totals.tokens:
        # Requests under way whose tokens are counted when they end (llama.cpp) are traffic.
        return Payoff.UNSURE if window.running else Payoff.NO_TRAFFIC
    if estimate is None or point is None:
        return Payoff.UNSURE
    if point.high is not None and estimate.low >= point.high:
        return Payoff.PAYS
    return Payoff.DOES_NOT_PAY if estimate.high < point.low else Payoff.UNSURE


def is_read(watched: Watched) -> bool:
    return watched.unreachable is None


def with_answer(watched: Watched, *, following: NextCommand | None) -> Watched:
    """`following` is what to run where it no longer pays."""
    return replace(watched, answer=watch_answer(watched, following))


def _short(estimate: LiveEstimate) -> LiveEstimate:
    return replace(
        estimate,
        value=round(estimate.value, 4),
        low=round(estimate.low, 4),
        high=round(estimate.high, 4),
    )


def _point(
    value: float, *, low: float, high: float | None, source: BreakEvenSource, running: float | None
) -> BreakEvenPoint:
    return BreakEvenPoint(
        accepted_length=round(value, 4),
        low=round(low, 6),
        high=rounded(high),
        source=source,
        running=running,
    )
