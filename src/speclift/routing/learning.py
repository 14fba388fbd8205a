"""Live traffic as a teacher: per segment, the share of requests that goes to the speculative pool. Pure.

A few requests (the canary) go to the other pool, so that both are measured on the same traffic. Where the interval of
plain over spec lies below 1, the segment moves to plain, and back where it lies above 1 again. What the policy keeps
off spec is tried there only where that was allowed.
"""

from __future__ import annotations

import hashlib
import math
from collections import OrderedDict, deque
from collections.abc import Hashable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Annotated

import msgspec

from speclift.core.document import Document
from speclift.core.errors import UsageError
from speclift.core.results import Estimate
from speclift.core.routing import RequestEnd, RoutedRequest, ServerPool
from speclift.core.units import Seconds
from speclift.statistics.pool_comparison import (
    GROUPS,
    FadingEvidence,
    PoolEvidence,
    anytime_speedup,
    no_evidence,
    pool_evidence,
)
from speclift.statistics.temperatures import temperature_bucket

WEEK_S: Seconds = 7 * 24 * 3600.0
# How old evidence may be: a turn of the traffic shows within the hour where it is large, and small effects within the
# day. Each horizon has the same share of the false shifts that are allowed.
HORIZONS_S: tuple[Seconds, ...] = (3600.0, 6 * 3600.0, 24 * 3600.0)
# Segments that move though nothing differs, all segments together.
FALSE_SHIFTS_A_WEEK = 0.1
# Requests are compared with those of the same few minutes, so that what changes over the day hits both pools alike.
BLOCK_S: Seconds = 600.0
# At 1,000 requests a second a block would be long: the comparison of so many takes two milliseconds.
BLOCK_ROWS = 2000
# The interval that is shown: at any time, 95 %.
SHOWN_ALPHA = 0.05
# More would be the usual pool, and not the other.
CANARY_MAX = 0.5
SEGMENTS_MAX = 100
SESSIONS_MAX = 20_000
SHIFTS_KEPT = 20


class Shift(Document, frozen=True, kw_only=True):
    """A segment that moved, and what showed it: time in plain over time in spec."""

    at: str
    segment: str
    to: ServerPool
    speedup: Estimate
    horizon_s: Seconds
    words: str


class LiveSegment(Document, frozen=True, kw_only=True):
    """One segment over the longest horizon, time in plain over time in spec at any time; null where too little is
    known."""

    segment: str
    # Of its requests, what goes to spec now.
    spec_share: Annotated[float, msgspec.Meta(ge=0, le=1)]
    e2e: Estimate | None = None
    ttft: Estimate | None = None
    tpot: Estimate | None = None
    # Requests that had a counterpart of their class in the other pool.
    compared: int = 0


@dataclass(slots=True)
class _Row:
    kind: Hashable
    group: int
    is_spec: bool
    # E2E, TTFT, TPOT.
    times: tuple[Seconds | None, ...]


class LearnedSegment:
    """The pool of one segment, as far as live traffic decides it."""

    def __init__(self, policy: ServerPool | None = None) -> None:
        # What the policy said last.
        self.policy = policy
        # Where live traffic moved it, against the policy; None where the policy holds.
        self.moved_to: ServerPool | None = None
        self.evidence = tuple(FadingEvidence(horizon_s=horizon) for horizon in HORIZONS_S)

    @property
    def usual(self) -> ServerPool:
        return self.moved_to or self.policy or ServerPool.SPEC

    def take(self, e2e: PoolEvidence, *, now_s: Seconds, among: int) -> tuple[Estimate, Seconds] | None:
        """A block of requests. Where it moves the segment: what showed it, and over which horizon.

        `among`: so many segments share the false shifts that are allowed.
        """
        for fading in self.evidence:
            fading.add(e2e, now_s=now_s)
        against = next(self._against(among), None)
        if against is not None:
            to = self.usual.other
            self.moved_to = None if to is self.policy else to
            for fading in self.evidence:
                fading.clear()  # it was of another mix of traffic
        return against

    def _against(self, among: int) -> Iterator[tuple[Estimate, Seconds]]:
        """The evidence against the segment's present pool, the shortest horizon that shows it first."""
        for horizon_s, fading in zip(HORIZONS_S, self.evidence, strict=True):
            for evidence in fading.newest_first:
                speedup = anytime_speedup(evidence, alpha=shift_alpha(horizon_s) / among)
                if speedup is None:
                    continue
                if speedup.high < 1 if self.usual is ServerPool.SPEC else speedup.low > 1:
                    yield speedup, horizon_s


@dataclass(slots=True)
class _Watched:
    """A segment with the requests of the present block."""

    began_s: Seconds
    segment: LearnedSegment = field(default_factory=LearnedSegment)
    rows: list[_Row] = field(default_factory=list)
    # Beside what decides, over the longest horizon.
    ttft: FadingEvidence = field(default_factory=lambda: FadingEvidence(horizon_s=HORIZONS_S[-1]))
    tpot: FadingEvidence = field(default_factory=lambda: FadingEvidence(horizon_s=HORIZONS_S[-1]))


class Learner:
    """`canary` is the share that goes to the other pool; 0 measures nothing and moves nothing."""

    def __init__(self, *, canary: float, learn: bool = False) -> None:
        if not 0 <= canary <= CANARY_MAX:
            raise UsageError(
                f"--canary is a share up to {CANARY_MAX:.0%}, saw {canary:.0%}", hint="--canary 5%"
            )
        self.canary, self.learns = canary, learn
        self._segments: dict[str, _Watched] = {}
        # Which pools have read a conversation's beginning.
        self._sessions: OrderedDict[str, frozenset[ServerPool]] = OrderedDict()
        self.shifts: deque[Shift] = deque(maxlen=SHIFTS_KEPT)
        self.shift_counts: dict[ServerPool, int] = dict.fromkeys(ServerPool, 0)

    def share(self, segment: str, pool: ServerPool) -> float:
        """Of this segment's requests, the share that is to go to spec now, where the policy says `pool`: 1 or 0 where
        it is followed, 0.95 or 0.05 where every twentieth goes to the other pool to keep measuring both.

        The router draws, and marks those that land on the smaller share as canaries. Load, sessions and health come
        after the draw: whoever they send elsewhere was not drawn for it, and is no canary."""
        watched = self._segments.get(segment)
        if watched is not None:
            watched.segment.policy = pool
        is_measured = self.canary > 0 and (pool is ServerPool.SPEC or self.learns)
        if not is_measured:
            return 1.0 if pool is ServerPool.SPEC else 0.0
        usual = pool if watched is None else watched.segment.usual
        return 1 - self.canary if usual is ServerPool.SPEC else self.canary

    def segments(self) -> tuple[LiveSegment, ...]:
        """Those that requests came for, once their policy is known."""
        return tuple(
            self._live(name, watched, self.share(name, policy))
            for name, watched in self._segments.items()
            if (policy := watched.segment.policy) is not None
        )

    def _live(self, name: str, watched: _Watched, share: float) -> LiveSegment:
        fading = (watched.segment.evidence[-1], watched.ttft, watched.tpot)
        oldest = [
            evidence.newest_first[-1] if evidence.newest_first else no_evidence() for evidence in fading
        ]
        e2e, ttft, tpot = (anytime_speedup(evidence, alpha=SHOWN_ALPHA) for evidence in oldest)
        return LiveSegment(
            segment=name, spec_share=share, e2e=e2e, ttft=ttft, tpot=tpot, compared=oldest[0].rows
        )

    def note(self, request: RoutedRequest, *, now_s: Seconds) -> None:
        name = request.route.segment
        watched = self._segments.get(name)
        if watched is None:
            if len(self._segments) >= SEGMENTS_MAX or not request.features.is_generation:
                return
            watched = self._segments[name] = _Watched(began_s=now_s)
        is_warm = self._is_warm(request)
        if self.canary > 0 and _is_drawn(request, watched.segment.usual):
            watched.rows.append(_row(request, is_warm=is_warm))
        if now_s - watched.began_s >= BLOCK_S or len(watched.rows) >= BLOCK_ROWS:
            self._close_block(name, watched, now_s=now_s, wall_s=request.arrived_s + request.e2e_s)

    def _is_warm(self, request: RoutedRequest) -> bool:
        """True if the pool that answered has read the conversation's beginning before."""
        session, pool = request.features.session, request.pool
        if session is None or pool is None:
            return False
        before = self._sessions.get(session, frozenset())
        self._sessions[session] = before | {pool}
        self._sessions.move_to_end(session)
        if len(self._sessions) > SESSIONS_MAX:
            self._sessions.popitem(last=False)
        return pool in before

    def _close_block(self, name: str, watched: _Watched, *, now_s: Seconds, wall_s: Seconds) -> None:
        rows, watched.rows, watched.began_s = watched.rows, [], now_s
        e2e, ttft, tpot = (_evidence(rows, place) for place in range(3))
        watched.ttft.add(ttft, now_s=now_s)
        watched.tpot.add(tpot, now_s=now_s)
        shown = watched.segment.take(e2e, now_s=now_s, among=len(self._segments))
        if shown is None:
            return
        watched.ttft.clear()
        watched.tpot.clear()
        speedup, horizon_s = shown
        to = watched.segment.usual
        self.shifts.append(shift_of(name, to, speedup, wall_s=wall_s, horizon_s=horizon_s))
        self.shift_counts[to] += 1


def shift_of(
    segment: str, to: ServerPool, speedup: Estimate, *, wall_s: Seconds, horizon_s: Seconds
) -> Shift:
    interval = f"{speedup.value:.2f}x [{speedup.low:.2f}, {speedup.high:.2f}]"
    return Shift(
        at=moment(wall_s),
        segment=segment,
        to=to,
        speedup=speedup,
        horizon_s=horizon_s,
        words=f"{segment} to {to}: E2E of plain over spec {interval}",
    )


def moment(wall_s: Seconds) -> str:
    """ISO 8601, UTC, to the second."""
    return datetime.fromtimestamp(wall_s, UTC).isoformat(timespec="seconds")


def shift_alpha(horizon_s: Seconds) -> float:
    """So many epochs of this horizon begin in a week: each may be wrong at any time with this probability."""
    return FALSE_SHIFTS_A_WEEK / len(HORIZONS_S) / (WEEK_S / (horizon_s / 2))


def _is_drawn(request: RoutedRequest, usual: ServerPool) -> bool:
    """True if chance alone decided between the pools: not load, health, a session's home or a second attempt."""
    is_measured = request.features.is_generation and request.end is RequestEnd.OK and request.e2e_s > 0
    if (
        not is_measured
        or request.pool is None
        or request.pool is not request.route.pool
        or request.attempts > 1
    ):
        return False
    return request.route.is_canary or request.pool is usual


def _row(request: RoutedRequest, *, is_warm: bool) -> _Row:
    features = request.features
    # Without losing text, speculation changes how fast an answer comes and not how long it is.
    length = request.output_tokens
    kind = (
        temperature_bucket(features.temperature),
        ("output", _octave(length)) if length is not None else ("limit", _octave(features.max_tokens)),
        # Of four: answers differ more by their own length than by the prompt's.
        _octave(features.prompt_characters) // 2,
        features.is_stream,
        features.response_format,
        features.has_tools,
        _octave(request.running),
        is_warm,
    )
    session = features.session if features.session is not None else request.request_id
    return _Row(
        kind=kind,
        group=_group(session),
        is_spec=request.pool is ServerPool.SPEC,
        times=(request.e2e_s, request.ttft_s, request.tpot_s),
    )


def _group(session: str) -> int:
    digest = hashlib.blake2b(session.encode("utf-8", "surrogatepass"), digest_size=4).digest()
    return int.from_bytes(digest, "big") % GROUPS


def _octave(count: int | None) -> int:
    """Doublings; -1 where nobody said."""
    return -1 if count is None else math.frexp(max(count, 0))[1]


def _evidence(rows: list[_Row], place: int) -> PoolEvidence:
    """Evidence by the metric at this place, from the rows that have it."""
    numbers: dict[Hashable, int] = {}
    timed = [(row, taken) for row in rows if (taken := row.times[place]) is not None and taken > 0]
    return pool_evidence(
        [numbers.setdefault(row.kind, len(numbers)) for row, _ in timed],
        [row.group for row, _ in timed],
        [row.is_spec for row, _ in timed],
        [taken for _, taken in timed],
    )
