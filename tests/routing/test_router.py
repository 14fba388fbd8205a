"""Which pool, which server, and why."""

from __future__ import annotations

import random
from dataclasses import replace as with_fields
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from policies import CHAT, COPY, PLAIN, POLICY, SPEC, chatting, copying, ended, policy, pools, servers

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
from speclift.routing.learning import Learner
from speclift.routing.policy import LoadLimit, Policy, PrefixWorth
from speclift.routing.router import Router

BOTH = ("http://spec0", "http://plain0")


def routed(
    router: Router, features: RequestFeatures, states: PoolStates | None = None, now_s: float = 0.0
) -> Route:
    return router.route(features, states or pools(), now_s=now_s)


def route(features: RequestFeatures, states: PoolStates | None = None, made: Policy | None = POLICY) -> Route:
    return routed(Router(made), features, states)


class FixedShare(Learner):
    """Learned from nobody."""

    def __init__(self, share: float) -> None:
        super().__init__(canary=0.0)
        self.fixed = share
        self.asked: list[tuple[str, ServerPool]] = []
        self.noted: list[RoutedRequest] = []

    def share(self, segment: str, pool: ServerPool) -> float:
        self.asked.append((segment, pool))
        return self.fixed

    def note(self, request: RoutedRequest, *, now_s: Seconds) -> None:
        self.noted.append(request)


class TestBySegment:
    def test_a_rule_that_holds(self) -> None:
        found = route(copying())

        assert (found.pool, found.segment, found.servers) == (SPEC, "copy", BOTH)
        assert found.reasons == (
            "segment copy: temperature_max = 0.3, prompt_characters_min = 400",
            "copy goes to spec: measured 1.40x [1.30, 1.50]",
            "load: 1 under way with this one, at most 8 pay",
        )

    def test_the_header_wins_over_rules(self) -> None:
        found = route(copying(fields={SEGMENT_FIELD: " chat "}))

        assert (found.pool, found.segment) == (PLAIN, "chat")
        assert found.reasons[0] == "segment chat: named by the header x-speclift-segment"

    def test_a_name_that_is_none_is_said_and_harmless(self) -> None:
        found = route(copying(fields={SEGMENT_FIELD: "\x1b[31mevil" + "x" * 500}))

        assert found.segment == "copy"
        assert "which is none" in found.reasons[0]
        assert "\x1b" not in found.reasons[0]
        assert len(found.reasons[0]) < 300

    @pytest.mark.parametrize(("temperature", "pool"), [(0.0, SPEC), (0.2, SPEC), (0.3, PLAIN), (None, PLAIN)])
    def test_above_the_temperature_that_was_measured_plain(
        self, temperature: float | None, pool: ServerPool
    ) -> None:
        bound = policy(segments=(replace(COPY, max_temperature=0.2),))

        named = copying(temperature=temperature, fields={SEGMENT_FIELD: "copy"})
        assert route(named, made=bound).pool is pool


class TestTheSwitch:
    def test_nothing_goes_to_spec_not_even_when_plain_is_down(self) -> None:
        states = pools(is_plain_only=True, plain=0)
        found = route(copying(fields={SEGMENT_FIELD: "copy"}), states)
        assert (found.pool, found.servers) == (PLAIN, ("http://plain0",))
        assert found.reasons[0] == "switched: everything goes to plain"

        down = PoolStates(spec=servers("spec", 0), plain=servers("plain", 0, down=(0,)), is_plain_only=True)
        assert route(copying(), down).servers == ("http://plain0",)

    def test_what_the_servers_say_stands_first(self) -> None:
        found = route(copying(), pools(against_spec="1.1 tokens a step, 1.4 break even"))

        assert found.pool is PLAIN
        assert found.reasons[0] == "spec does not pay at present: 1.1 tokens a step, 1.4 break even"


class TestLoad:
    def test_above_the_crossover_plain_and_back_only_well_below_it(self) -> None:
        router = Router(POLICY)
        running = [0, 6, 7, 8, 7, 5, 4, 7, 8, 4]

        seen = [routed(router, copying(), pools(spec=count)).pool for count in running]

        assert seen == [SPEC, SPEC, SPEC, PLAIN, PLAIN, PLAIN, SPEC, SPEC, PLAIN, SPEC]

    def test_a_chain_of_births_and_deaths_around_it_switches_rarely(self) -> None:
        """Requests come at random, so many that 8 are under way on average."""

        def switches(limit: LoadLimit) -> int:
            router, chance, running, seen = Router(policy(load=limit)), random.Random(2), 8, []
            for _ in range(2500):
                running += 1 if chance.random() < 8 / (8 + running) else -1
                seen.append(routed(router, copying(), pools(spec=running)).pool)
            return sum(before is not after for before, after in pairwise(seen))

        assert switches(LoadLimit(leave=8)) < switches(LoadLimit(leave=8, back=8)) / 3


class TestServers:
    def test_the_least_busy_first_then_the_other_pool_then_who_is_down(self) -> None:
        states = PoolStates(
            spec=servers("spec", 2, 1, 0, down=(2,)), plain=servers("plain", 3, 2, 0, down=(2,))
        )

        found = route(copying(), states)

        assert found.servers == (
            *("http://spec1", "http://spec0", "http://plain1", "http://plain0"),
            *("http://spec2", "http://plain2"),
        )
        assert found.reasons[-1] == "least busy of 2 servers: 1 under way"

    def test_with_everything_down_there_is_still_somebody_to_ask(self) -> None:
        down = PoolStates(spec=servers("spec", 0, down=(0,)), plain=servers("plain", 0, down=(0,)))

        assert route(copying(), down).servers == BOTH
        assert route(chatting(), down).servers == BOTH[::-1]
        assert route(chatting(), PoolStates(spec=(), plain=())).servers == ()


WORTH = PrefixWorth(saves_s_per_1000_tokens=1.0, keep_s=60.0)


class TestSessions:
    def test_a_conversation_stays_at_its_server(self) -> None:
        router = Router(POLICY)
        talk = copying(session="s")
        states = PoolStates(spec=servers("spec", 0, 0), plain=servers("plain", 0))
        first = routed(router, talk, states)
        router.note(ended(talk, first), now_s=1.0)

        later = [routed(router, talk, states, now_s=2.0) for _ in range(6)]

        assert {found.servers[0] for found in later} == {first.servers[0]}
        assert later[0].reasons[-1] == "session: it stays at the server that has read its beginning"
        assert {routed(router, copying(session="t"), states).servers[0] for _ in range(6)} == {
            "http://spec0",
            "http://spec1",
        }

    def _settled(
        self,
        talk: RequestFeatures,
        *,
        at: str,
        pool: ServerPool = SPEC,
        made: Policy = POLICY,
        **changes: Any,
    ) -> Router:
        """It has been there once."""
        router = Router(replace(made, **changes))
        answered = Route(pool=pool, servers=(at,), segment="copy", reasons=())
        router.note(ended(talk, answered), now_s=0.0)
        return router

    @pytest.mark.parametrize(("busy", "stays"), [(0, True), (4, True), (5, False), (40, False)])
    def test_not_at_a_server_that_is_much_busier(self, busy: int, stays: bool) -> None:
        talk = copying(session="s")
        router = self._settled(talk, at="http://spec1")
        states = PoolStates(spec=servers("spec", 0, busy), plain=servers("plain", 0))

        assert (routed(router, talk, states).servers[0] == "http://spec1") is stays

    @pytest.mark.parametrize(
        ("characters", "pool"), [(400, SPEC), (1500, SPEC), (1700, PLAIN), (100_000, PLAIN)]
    )
    def test_at_plain_while_its_prefix_is_worth_more_than_spec_gains(
        self, characters: int, pool: ServerPool
    ) -> None:
        """Copying gains 0.4 s: as much as a prefix of 400 tokens here saves."""
        talk = copying(session="s", prompt_characters=characters)
        router = self._settled(talk, at="http://plain0", pool=PLAIN, prefix=WORTH)

        found = routed(router, talk)

        assert found.pool is pool
        if pool is PLAIN:
            assert "its prefix is at plain and saves" in found.reasons[-2]

    def test_never_at_spec_against_the_policy_or_the_load(self) -> None:
        talk = copying(session="s", prompt_characters=100_000)
        router = self._settled(talk, at="http://spec0", prefix=WORTH)

        assert routed(router, with_fields(talk, temperature=0.9)).pool is PLAIN
        assert routed(router, talk, pools(spec=8)).pool is PLAIN
        assert routed(router, talk, pools(spec=0)).pool is SPEC

    @pytest.mark.parametrize(
        "changes", [{"end": RequestEnd.CUT}, {"end": RequestEnd.REFUSED}, {"server": None, "pool": None}]
    )
    def test_an_answer_that_failed_settles_nothing(self, changes: dict[str, Any]) -> None:
        router, talk = Router(POLICY), copying(session="s")
        answered = Route(pool=SPEC, servers=("http://spec1",), segment="copy", reasons=())
        router.note(ended(talk, answered, **changes), now_s=0.0)

        states = PoolStates(spec=servers("spec", 0, 1), plain=servers("plain", 0))
        assert routed(router, talk, states).servers[0] == "http://spec0"


class TestLearning:
    def drawn(self, share: float, features: RequestFeatures, count: int = 2000) -> list[Route]:
        router = Router(POLICY, learning=FixedShare(share), seed=3)
        return [routed(router, features) for _ in range(count)]

    def test_a_small_share_goes_to_the_other_pool_and_is_marked(self) -> None:
        found = self.drawn(0.95, copying())

        assert all(each.is_canary is (each.pool is PLAIN) for each in found)
        assert 60 < sum(each.is_canary for each in found) < 140
        assert any(
            "canary: 95% of copy go to spec, and this one goes to plain" in each.reasons[2]
            for each in found
            if each.is_canary
        )

    def test_load_and_switch_come_before_what_was_learned(self) -> None:
        router = Router(POLICY, learning=FixedShare(1.0))

        assert routed(router, copying(), pools(spec=8)).pool is PLAIN
        assert routed(router, copying(), pools(is_plain_only=True)).pool is PLAIN
        assert routed(router, copying(), pools(against_spec="slow")).pool is PLAIN

    def test_a_bound_of_the_policy_is_not_learned_away(self) -> None:
        learning = FixedShare(1.0)
        bound = policy(segments=(replace(COPY, max_temperature=0.0),))

        assert routed(Router(bound, learning=learning), copying(temperature=0.2)).pool is PLAIN
        assert learning.asked == []

    def test_a_canary_leaves_its_session_s_server_and_the_session_stays(self) -> None:
        learning = FixedShare(0.05)
        router = Router(policy(prefix=WORTH), learning=learning, seed=3)
        talk = copying(session="s", prompt_characters=100_000)
        home = Route(pool=PLAIN, servers=("http://plain0",), segment="copy", reasons=())
        router.note(ended(talk, home), now_s=0.0)

        canary = next(found for _ in range(200) if (found := routed(router, talk)).is_canary)
        router.note(ended(talk, canary), now_s=1.0)
        learning.fixed = 1.0

        assert canary.pool is SPEC
        assert routed(router, talk, now_s=2.0).pool is PLAIN


states = st.builds(
    lambda spec, plain, is_plain_only, against: PoolStates(
        spec=tuple(ServerState(url=f"s{at}", running=n, is_up=up) for at, (n, up) in enumerate(spec)),
        plain=tuple(ServerState(url=f"p{at}", running=n, is_up=up) for at, (n, up) in enumerate(plain)),
        is_plain_only=is_plain_only,
        against_spec=against,
    ),
    st.lists(st.tuples(st.integers(0, 20), st.booleans()), max_size=3),
    st.lists(st.tuples(st.integers(0, 20), st.booleans()), max_size=3),
    st.booleans(),
    st.sampled_from(["", "slow"]),
)
requests = st.builds(
    RequestFeatures,
    path=st.just("/v1/chat/completions"),
    fields=st.sampled_from([{}, {SEGMENT_FIELD: "copy"}, {SEGMENT_FIELD: "chat"}, {SEGMENT_FIELD: "?"}]),
    is_generation=st.booleans(),
    temperature=st.none() | st.floats(0, 2),
    prompt_characters=st.integers(0, 5000),
    session=st.sampled_from([None, "a", "b"]),
)


@given(
    st.lists(st.tuples(requests, states), max_size=12), st.sampled_from([None, 0.0, 0.3, 1.0]), st.booleans()
)
def test_whatever_happens(
    steps: list[tuple[RequestFeatures, PoolStates]], share: float | None, has_policy: bool
) -> None:
    learning = None if share is None else FixedShare(share)
    router = Router(
        replace(POLICY, prefix=WORTH, segments=(COPY, CHAT)) if has_policy else None, learning=learning
    )
    for now_s, (features, seen) in enumerate(steps):
        found = router.route(features, seen, now_s=float(now_s))
        all_of = [state.url for state in (*seen.spec, *seen.plain)]
        up = {state.url for state in (*seen.spec, *seen.plain) if state.is_up}
        assert len(set(found.servers)) == len(found.servers)
        assert found.reasons
        if seen.is_plain_only:
            assert found.pool is PLAIN
            assert set(found.servers) == {state.url for state in seen.plain}
        else:
            assert set(found.servers) == set(all_of)
            assert not up or found.servers[0] in up
        if found.servers and found.servers[0] in up:
            assert found.servers[0][0] == found.pool.value[0]
            router.note(ended(features, found), now_s=float(now_s))
