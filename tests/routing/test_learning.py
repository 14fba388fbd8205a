"""What live traffic teaches, and how far that may go."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from routed import PLAIN_URL, SPEC_URL, routed
from speclift.core.routing import (
    PoolStates,
    RequestEnd,
    RequestFeatures,
    RoutedRequest,
    ServerPool,
    ServerState,
)
from speclift.routing.learning import (
    HORIZONS_S,
    SEGMENTS_MAX,
    Learner,
    LiveSegment,
    shift_alpha,
)
from speclift.routing.router import Router

SPEC, PLAIN = ServerPool.SPEC, ServerPool.PLAIN
POOLS = PoolStates(spec=(ServerState(url=SPEC_URL),), plain=(ServerState(url=PLAIN_URL),))


class Traffic:
    """Requests one after the other on virtual time, each sent where the share says."""

    def __init__(self, learner: Learner, *, policy: ServerPool = SPEC, seed: int = 1) -> None:
        self.learner, self._policy = learner, policy
        self._random = random.Random(seed)
        self.now_s = 0.0
        self._count = 0

    def send(self, count: int, *, speedup: float, per_s: float = 5.0, spec_running: int = 1) -> None:
        for _ in range(count):
            self._count += 1
            self.now_s += 1 / per_s
            share = self.learner.share("chat", self._policy)
            usual = SPEC if share >= 0.5 else PLAIN
            pool = SPEC if self._random.random() < share else PLAIN
            tokens = self._random.choice((20, 200))
            taken_s = tokens / 100 * self._random.lognormvariate(0, 0.2) / (speedup if pool is SPEC else 1.0)
            request = replace(
                routed(pool=pool, e2e_s=taken_s),
                request_id=f"r-{self._count}",
                output_tokens=tokens,
                running=spec_running if pool is SPEC else 1,
            )
            request = replace(request, route=replace(request.route, is_canary=pool is not usual))
            self.learner.note(request, now_s=self.now_s)

    @property
    def share(self) -> float:
        return self.learner.share("chat", self._policy)


@pytest.mark.parametrize(
    ("canary", "learn", "policy", "share"),
    [
        *(
            (0.0, False, SPEC, 1.0),
            (0.0, True, SPEC, 1.0),
            (0.0, True, PLAIN, 0.0),
            (0.05, False, SPEC, 0.95),
        ),
        *((0.05, False, PLAIN, 0.0), (0.05, True, PLAIN, 0.05), (0.05, True, SPEC, 0.95)),
    ],
)
def test_it_begins_with_what_the_policy_allows(
    canary: float, learn: bool, policy: ServerPool, share: float
) -> None:
    assert Learner(canary=canary, learn=learn).share("chat", policy) == pytest.approx(share)


@pytest.mark.slow
def test_a_segment_that_is_slower_moves_to_plain_and_comes_back() -> None:
    traffic = Traffic(Learner(canary=0.05))
    traffic.send(5000, speedup=0.6, per_s=2.5)
    assert traffic.share == pytest.approx(0.05)
    (moved,) = traffic.learner.shifts
    assert (moved.to, moved.segment) == (PLAIN, "chat")
    assert moved.speedup.low < 0.6 < moved.speedup.high < 1
    assert "chat to plain: E2E of plain over spec 0.6" in moved.words
    traffic.send(5000, speedup=1.6, per_s=2.5)
    assert traffic.share == pytest.approx(0.95)
    assert [shift.to for shift in traffic.learner.shifts] == [PLAIN, SPEC]
    assert traffic.learner.shift_counts == {PLAIN: 1, SPEC: 1}


@pytest.mark.parametrize("speedup", [1.0, 1.4])
def test_what_is_not_slower_stays(speedup: float) -> None:
    traffic = Traffic(Learner(canary=0.05))
    traffic.send(5000, speedup=speedup)
    assert traffic.share == pytest.approx(0.95)


@pytest.mark.slow
def test_what_the_policy_keeps_off_spec_is_taken_over_only_where_that_is_allowed() -> None:
    bold, obedient = (Traffic(Learner(canary=0.05, learn=learn), policy=PLAIN) for learn in (True, False))
    for traffic in (bold, obedient):
        traffic.send(4000, speedup=1.6, per_s=2.5)
    assert bold.share == pytest.approx(0.95)
    assert obedient.share == 0.0
    assert not obedient.learner.shifts
    bold.send(4000, speedup=0.6, per_s=2.5)
    assert bold.share == pytest.approx(0.05)


def test_where_it_may_not_learn_nothing_moves() -> None:
    traffic = Traffic(Learner(canary=0.0))
    traffic.send(5000, speedup=0.5)
    assert traffic.share == 1.0


def test_pools_under_unlike_load_are_not_compared() -> None:
    """Speculation that looks slow because its servers have more to do."""
    traffic = Traffic(Learner(canary=0.05))
    traffic.send(5000, speedup=0.5, spec_running=16)
    assert traffic.share == pytest.approx(0.95)
    assert chat_of(traffic.learner).compared == 0


def chat_of(learner: Learner) -> LiveSegment:
    """What it knows of the one segment that there is."""
    (live,) = learner.segments()
    return live


def noted(learner: Learner, change: dict[str, object], *, count: int = 4000) -> None:
    """Slow ones on spec, fast ones on plain, each with this change."""
    for number in range(count):
        pool = PLAIN if number % 20 == 0 else SPEC
        request = replace(routed(pool=pool, e2e_s=1.0 if pool is PLAIN else 3.0 + number % 7 / 10))
        request = replace(request, request_id=f"r-{number}")
        request = replace(request, route=replace(request.route, is_canary=pool is PLAIN))
        learner.note(replace(request, **change), now_s=number * 0.5)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("change", "is_taken"),
    [
        ({}, True),
        ({"attempts": 2}, False),
        ({"end": RequestEnd.LEFT}, False),
        ({"end": RequestEnd.CUT}, False),
        ({"pool": None}, False),
        ({"pool": PLAIN}, False),
        ({"e2e_s": 0.0}, False),
        ({"features": RequestFeatures(path="/v1/embeddings")}, False),
        ({"ttft_s": None, "tpot_s": None, "output_tokens": None}, True),
    ],
)
def test_only_what_chance_sent_there_counts(change: dict[str, object], is_taken: bool) -> None:
    learner = Learner(canary=0.05)
    noted(learner, change)
    assert bool(learner.shifts) == is_taken


def test_those_that_load_or_a_session_sent_to_plain_are_no_evidence() -> None:
    learner = Learner(canary=0.05)
    request = routed(pool=PLAIN)
    noted(learner, {"route": replace(request.route, is_canary=False), "pool": PLAIN})
    assert not learner.shifts


def test_a_cold_canary_is_compared_with_cold_requests() -> None:
    """Conversations whose beginning only their own pool has read: the canary's turns there are slow for that alone."""
    learner, chance = Learner(canary=0.05), random.Random(3)
    has_read: set[tuple[int, ServerPool]] = set()
    for number in range(6000):
        conversation, turn = divmod(number, 4)
        pool = PLAIN if chance.random() < 0.05 else SPEC
        is_warm = (conversation, pool) in has_read
        has_read.add((conversation, pool))
        request = routed(pool=pool, e2e_s=chance.lognormvariate(0, 0.1) * (0.5 if is_warm else 1.0))
        request = replace(
            request, features=replace(request.features, session=f"s-{conversation}", turns=turn + 1)
        )
        request = replace(request, route=replace(request.route, is_canary=pool is PLAIN))
        learner.note(request, now_s=number * 0.2)
    learner.share("chat", SPEC)
    live = chat_of(learner)
    assert live.e2e is not None
    assert live.e2e.low < 1 < live.e2e.high < 1.3


def test_callers_cannot_make_it_remember_more() -> None:
    learner = Learner(canary=0.05)
    for number in range(SEGMENTS_MAX + 50):
        learner.share(f"s{number}", SPEC)
        learner.note(routed(segment=f"s{number}"), now_s=0.0)
        learner.share(f"s{number}", SPEC)
    assert len(learner.segments()) == SEGMENTS_MAX


def test_the_false_shifts_of_a_week_are_shared_out() -> None:
    weekly = [7 * 24 * 3600 / (horizon / 2) * shift_alpha(horizon) for horizon in HORIZONS_S]
    assert sum(weekly) == pytest.approx(0.1)


def test_a_router_on_live_traffic_leaves_what_does_not_pay() -> None:
    learner, chance = Learner(canary=0.1), random.Random(4)
    router = Router(learning=learner, seed=6)
    features = routed().features
    for number in range(6000):
        now_s = number * 0.5
        route = router.route(features, POOLS, now_s=now_s)
        taken_s = chance.lognormvariate(0, 0.3) / (0.7 if route.pool is SPEC else 1.0)
        request: RoutedRequest = replace(
            routed(pool=route.pool, e2e_s=taken_s), route=route, request_id=f"r{number}"
        )
        router.note(request, now_s=now_s)
    late = [router.route(features, POOLS, now_s=9e5).pool for _ in range(300)]
    assert late.count(SPEC) < 60
    assert chat_of(learner).spec_share == pytest.approx(0.1)
