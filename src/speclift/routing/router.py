"""The pool that a request goes to, and the order of its servers. Pure: time comes in, and chance has a seed.

In this order: the switch, what the servers themselves say against speculation, the request's segment and what the
policy says of it, what live traffic taught, the load, the session, who is up, who has least to do.
"""

from __future__ import annotations

import math
import random
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, replace

from speclift.core.quantities import printable, seconds
from speclift.core.routing import (
    SEGMENT_FIELD,
    PoolStates,
    RequestEnd,
    RequestFeatures,
    Route,
    RoutedRequest,
    ServerPool,
    ServerState,
)
from speclift.core.units import Seconds
from speclift.routing.features import CHARACTERS_PER_TOKEN
from speclift.routing.learning import Learner
from speclift.routing.policy import (
    ELSEWHERE,
    KEEP_S,
    CountedLoad,
    LoadLimit,
    Policy,
    PolicySegment,
    PrefixWorth,
)

# Conversations that are remembered: some hundred bytes each, and more than servers keep prefixes of.
SESSIONS_MAX = 20_000
# Requests under way on two equally busy servers differ by chance; rarely by more standard deviations than these.
BUSIER_DEVIATIONS = 2.0
SHOWN_CHARACTERS = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class _Choice:
    """The choice so far, and why."""

    pool: ServerPool
    reasons: tuple[str, ...]
    is_canary: bool = False
    # A bound of the policy speaks against spec: whatever live traffic taught of the segment is not about this request.
    is_bound: bool = False

    def because(self, *reasons: str) -> _Choice:
        return replace(self, reasons=(*self.reasons, *reasons))

    def to(self, pool: ServerPool, reason: str) -> _Choice:
        return replace(self.because(reason), pool=pool, is_canary=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Kept:
    """The server whose cache has the beginning of a conversation."""

    server: str
    pool: ServerPool
    at_s: Seconds
    # Of prompt and answer.
    characters: int


class Router:
    """Routes requests by a policy; without one to spec, and to plain where that is down."""

    def __init__(
        self, policy: Policy | None = None, *, learning: Learner | None = None, seed: int = 0
    ) -> None:
        self._policy = policy
        self._learning = learning
        self._random = random.Random(seed)
        self._sessions: OrderedDict[str, _Kept] = OrderedDict()
        # What has left spec because of its load, until that has come back far enough.
        self._left: set[str] = set()
        self._routed = 0

    @property
    def policy(self) -> Policy | None:
        return self._policy

    def follow(self, policy: Policy | None) -> None:
        """Another policy from now on; sessions stay where they are."""
        self._policy = policy
        self._left.clear()

    def route(self, features: RequestFeatures, pools: PoolStates, *, now_s: Seconds) -> Route:
        segment, found_by = _segment_of(self._policy, features)
        home = self._kept(features, now_s)
        self._routed += 1
        if pools.is_plain_only:
            choice = _Choice(pool=ServerPool.PLAIN, reasons=("switched: everything goes to plain",))
        elif pools.against_spec:
            against = f"spec does not pay at present: {pools.against_spec}"
            choice = _Choice(pool=ServerPool.PLAIN, reasons=(against,))
        else:
            choice = _allowed(self._policy, segment, features, found_by)
            # Of what is no generation no time is taken: there is nothing to learn from it.
            choice = self._drawn(choice, segment) if features.is_generation else choice
            choice = self._within_load(choice, segment, pools)
            choice = self._with_session(choice, segment, features, home)
        choice = _who_is_up(choice, pools)
        choice, servers = self._ordered(choice, pools, home)
        return Route(
            pool=choice.pool,
            servers=servers,
            segment=ELSEWHERE if segment is None else segment.name,
            reasons=choice.reasons,
            is_canary=choice.is_canary,
        )

    def note(self, request: RoutedRequest, *, now_s: Seconds) -> None:
        session, is_read = request.features.session, request.end in (RequestEnd.OK, RequestEnd.LEFT)
        if session is not None and request.server is not None and request.pool is not None and is_read:
            # A canary's home stays where it is: it was away for one turn.
            if not (request.route.is_canary and session in self._sessions):
                answered = CHARACTERS_PER_TOKEN * (request.output_tokens or 0)
                self._sessions[session] = _Kept(
                    server=request.server,
                    pool=request.pool,
                    at_s=now_s,
                    characters=request.features.prompt_characters + answered,
                )
            self._sessions.move_to_end(session)
            while len(self._sessions) > SESSIONS_MAX:
                self._sessions.popitem(last=False)
        if self._learning is not None:
            self._learning.note(request, now_s=now_s)

    def _kept(self, features: RequestFeatures, now_s: Seconds) -> _Kept | None:
        if features.session is None:
            return None
        home = self._sessions.get(features.session)
        keep_s = KEEP_S if self._policy is None else self._policy.prefix.keep_s
        if home is not None and now_s - home.at_s > keep_s:
            del self._sessions[features.session]
            return None
        return home

    def _drawn(self, choice: _Choice, segment: PolicySegment | None) -> _Choice:
        """Between the pools, by the share that live traffic has come to."""
        if self._learning is None or choice.is_bound:
            return choice
        name = ELSEWHERE if segment is None else segment.name
        share = self._learning.share(name, choice.pool)
        usual = ServerPool.SPEC if share >= 0.5 else ServerPool.PLAIN
        drawn = ServerPool.SPEC if self._random.random() < share else ServerPool.PLAIN
        if drawn is not usual:
            words = f"canary: {share:.0%} of {name} go to spec, and this one goes to {drawn} to keep measuring both"
            return replace(choice.to(drawn, words), is_canary=True)
        return choice if drawn is choice.pool else choice.to(drawn, f"live traffic taught otherwise: {drawn}")

    def _within_load(self, choice: _Choice, segment: PolicySegment | None, pools: PoolStates) -> _Choice:
        if choice.pool is ServerPool.PLAIN or self._policy is None:
            return choice
        limit = self._policy.limit_of(segment)
        leave, back = limit.leave, limit.returns_at
        if leave is None or back is None:
            return choice
        # Segments without a limit of their own leave and come back together.
        shared = "" if segment is None or segment.leave is None else segment.name
        load = _load(limit, pools)
        if load > leave:
            self._left.add(shared)
        elif load <= back:
            self._left.discard(shared)
        words = f"{load} under way with this one"
        if shared not in self._left:
            return choice.because(f"load: {words}, at most {leave} pay")
        if load > leave:
            return choice.to(ServerPool.PLAIN, f"load: {words}, more than {leave}: plain")
        return choice.to(ServerPool.PLAIN, f"load: {words}, and spec was left until {back} are: plain")

    def _with_session(
        self, choice: _Choice, segment: PolicySegment | None, features: RequestFeatures, kept: _Kept | None
    ) -> _Choice:
        """Never to spec: what the policy and the load say against it holds for later turns too."""
        is_leaving_plain = (
            kept is not None and kept.pool is ServerPool.PLAIN and choice.pool is ServerPool.SPEC
        )
        if not is_leaving_plain or kept is None or choice.is_canary or self._policy is None:
            return choice
        worth_s = _worth_s(self._policy.prefix, min(kept.characters, features.prompt_characters))
        gain_s = None if segment is None else segment.gain_s
        if worth_s <= (gain_s or 0.0):
            return choice
        gained = "what spec gains is not known" if gain_s is None else f"spec would gain {seconds(gain_s)}"
        return choice.to(
            ServerPool.PLAIN, f"session: its prefix is at plain and saves {seconds(worth_s)}, {gained}: plain"
        )

    def _ordered(
        self, choice: _Choice, pools: PoolStates, kept: _Kept | None
    ) -> tuple[_Choice, tuple[str, ...]]:
        """Who is up before who is not, the chosen pool before the other; the switch leaves no other."""
        near = self._by_load(pools.of(choice.pool))
        far = () if pools.is_plain_only else self._by_load(pools.of(choice.pool.other))
        choice, first = _first(choice, _up(near), kept)
        everybody = (*near, *far)
        ordered = (*first, *_up(far), *(state for state in everybody if not state.is_up))
        return choice, tuple(state.url for state in ordered)

    def _by_load(self, states: Sequence[ServerState]) -> list[ServerState]:
        """The least busy first; those that are equally busy take turns at being first."""
        count = max(1, len(states))
        turned = [states[(place + self._routed) % count] for place in range(len(states))]
        return sorted(turned, key=lambda state: state.running)


def _segment_of(policy: Policy | None, features: RequestFeatures) -> tuple[PolicySegment | None, str]:
    """The header's word, else the first rule that holds; and how it was found."""
    if policy is None:
        return None, "there is no policy: everything goes to spec, and to plain where that does not answer"
    header = features.fields.get(SEGMENT_FIELD)
    named = None if header is None else policy.segment(header.strip())
    if named is not None:
        return named, f"segment {named.name}: named by the header {SEGMENT_FIELD}"
    unknown = ""
    if header is not None:
        unknown = (
            f"; the header {SEGMENT_FIELD} names {printable(header, limit=SHOWN_CHARACTERS)!r}, which is none"
        )
    if not features.is_generation:
        return None, f"no segment: nothing is known of this request{unknown}"
    for segment in policy.segments:
        rule = next((rule for rule in segment.when if rule.holds(features)), None)
        if rule is not None:
            return segment, f"segment {segment.name}: {rule.words()}{unknown}"
    return None, f"no segment: no rule holds{unknown}"


def _allowed(
    policy: Policy | None, segment: PolicySegment | None, features: RequestFeatures, found_by: str
) -> _Choice:
    if policy is None:
        return _Choice(pool=ServerPool.SPEC, reasons=(found_by,))
    if segment is None:
        return _Choice(pool=policy.elsewhere, reasons=(found_by, f"{ELSEWHERE}: {policy.elsewhere}"))
    highest, seen = segment.max_temperature, features.temperature
    if segment.pool is ServerPool.SPEC and highest is not None and (seen is None or seen > highest):
        asked_for = "no temperature is given" if seen is None else f"temperature {seen:g}"
        words = f"{segment.name} goes to plain: {asked_for}, and it was measured to pay up to {highest:g}"
        return _Choice(pool=ServerPool.PLAIN, reasons=(found_by, words), is_bound=True)
    words = f"{segment.name} goes to {segment.pool}: {_measured(segment)}"
    return _Choice(pool=segment.pool, reasons=(found_by, words))


def _measured(segment: PolicySegment) -> str:
    if segment.low is None or segment.high is None:
        return "so the policy says, which was not measured"
    value = "" if segment.speedup is None else f"{segment.speedup:.2f}x "
    return f"measured {value}[{segment.low:.2f}, {segment.high:.2f}]"


def _load(limit: LoadLimit, pools: PoolStates) -> int:
    """Requests under way where this one would go, itself included."""
    if limit.counted is CountedLoad.ALL:
        return 1 + sum(state.running for state in (*pools.spec, *pools.plain))
    return 1 + min((state.running for state in pools.spec if state.is_up), default=0)


def _worth_s(prefix: PrefixWorth, characters: int) -> Seconds:
    return prefix.saves_s_per_1000_tokens * characters / CHARACTERS_PER_TOKEN / 1000


def _is_much_busier(state: ServerState, least: ServerState) -> bool:
    spread = math.sqrt(state.running + least.running)
    return state.running - least.running > BUSIER_DEVIATIONS * spread


def _up(states: Sequence[ServerState]) -> list[ServerState]:
    return [state for state in states if state.is_up]


def _first(choice: _Choice, up: list[ServerState], kept: _Kept | None) -> tuple[_Choice, list[ServerState]]:
    """A session's own server before the least busy one."""
    home = next((state for state in up if kept is not None and state.url == kept.server), None)
    if home is None:
        few = f"least busy of {len(up)} servers: {up[0].running} under way" if len(up) > 1 else ""
        return (choice.because(few) if few else choice), up
    if _is_much_busier(home, up[0]):
        busy = f"its server has {home.running} under way, another {up[0].running}: it moves"
        return choice.because(f"session: {busy}"), up
    stays = "session: it stays at the server that has read its beginning"
    return choice.because(stays), [home, *(state for state in up if state is not home)]


def _who_is_up(choice: _Choice, pools: PoolStates) -> _Choice:
    if any(state.is_up for state in pools.of(choice.pool)):
        return choice
    other = choice.pool.other
    if pools.is_plain_only or not any(state.is_up for state in pools.of(other)):
        return choice.because(f"no server of {choice.pool} is up")
    return choice.to(other, f"no server of {choice.pool} is up: {other}")
