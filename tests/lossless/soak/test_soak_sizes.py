"""How long a soak's requests are: enough of them for a result, and long ones among them on the slowest engine."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from soaked import simulated_soak
from speclift.lossless.gate import SoakFault, SoakResult
from speclift.lossless.soak.faults import SoakObservation
from speclift.lossless.soak.prompts import SoakDialect
from speclift.lossless.soak.rates import exposed_needed, judge_faults
from speclift.lossless.soak.traffic import (
    SCALES,
    TURNS_MIN,
    Pace,
    SoakKind,
    SoakTraffic,
    expected_work,
    scale_for,
    soak_traffic,
)
from speclift.lossless.soak.values import TURNS_MAX, SoakRequest
from speclift.testing.fake_corruption import Corruption, character_id
from speclift.testing.fake_truth import Truth

FULL = soak_traffic(seed=4, dialect=SoakDialect.LLAMACPP, banned=((1, "7"),))
LEAST = replace(FULL, scale=SCALES[-1])


def requests(traffic: SoakTraffic, *kinds: SoakKind) -> list[SoakRequest]:
    asked = (traffic.opening(slot) for slot in range(900))
    return [request for request in asked if not kinds or request.kind in kinds]


def tokens(asked: list[SoakRequest]) -> list[int]:
    return [json.loads(request.body)["max_tokens"] for request in asked]


def test_a_fast_engine_is_asked_at_full_length() -> None:
    assert scale_for(FULL, Pace(work=1e6, seconds=1.0), seconds=60) == 1.0


def test_a_slow_engine_is_asked_as_much_as_fits() -> None:
    """Twice as slow is never longer; between the ends the requests that are needed fit."""
    scales = [
        scale_for(FULL, Pace(work=1000.0 / 2**halving, seconds=1.0), seconds=60) for halving in range(8)
    ]

    assert scales == sorted(scales, reverse=True)
    assert scales[-1] == SCALES[-1]
    for halving, scale in enumerate(scales):
        if scale > SCALES[-1]:
            work = expected_work(replace(FULL, scale=scale))
            assert exposed_needed() * work < 60 * 1000 / 2**halving


def test_the_shortest_soak_has_long_copies_prompts_and_sessions() -> None:
    copies = tokens(requests(LEAST, SoakKind.COPY))
    assert max(copies) == FULL.tokens_max
    assert 0.05 < sum(limit == FULL.tokens_max for limit in copies) / len(copies) < 0.35
    assert max(len(request.body) for request in requests(LEAST)) > FULL.context_tokens
    assert {LEAST.turns(slot) for slot in range(200)} == set(range(TURNS_MIN, TURNS_MAX + 1))


def test_the_shortest_soak_asks_every_kind() -> None:
    assert {request.kind for request in requests(LEAST)} == set(LEAST.kinds)


@pytest.mark.parametrize("traffic", [FULL, LEAST])
def test_texts_come_to_their_stop_strings_within_their_limits(traffic: SoakTraffic) -> None:
    """A copy at four characters a token, nonces at less than two."""
    stops = requests(traffic, SoakKind.STOP)
    before = [request.copies.partition(request.promise.stops[0])[0] for request in stops]
    copied = [
        len(text) / 4 + 4 * text.count(request.nonce) for text, request in zip(before, stops, strict=True)
    ]

    reached = sum(took < limit for took, limit in zip(copied, tokens(stops), strict=True))
    assert reached > 0.9 * len(stops)


@pytest.mark.parametrize("scale", SCALES)
def test_whoever_asks_for_less_gets_less_at_any_scale(scale: float) -> None:
    short = replace(FULL, scale=scale, tokens_max=16)

    assert max(tokens(requests(short, SoakKind.COPY))) == 16


BROKEN = {
    Corruption.LEAKED_TOKEN: SoakFault.SPECIAL_TOKEN,
    Corruption.CROSS_TALK: SoakFault.CROSS_TALK,
    Corruption.TEXT_AFTER_STOP: SoakFault.AFTER_STOP,
    Corruption.INVALID_JSON: SoakFault.INVALID_JSON,
    Corruption.TRUNCATED: SoakFault.TRUNCATED,
    Corruption.BANNED_TOKEN: SoakFault.BANNED_TOKEN,
}


def simulated(corruption: str, share: float = 1.0) -> list[SoakObservation]:
    """The fake server has no grammars, and whoever leaves shows little."""
    left_out = [SoakKind.GRAMMAR, SoakKind.LEAVING, SoakKind.LATE]
    traffic = replace(LEAST, banned=((character_id("7"), "7"),)).without(left_out)
    return simulated_soak(Truth(k=4, corruption=corruption, corruption_share=share), traffic, slots=200)


def test_a_clean_server_shows_nothing_in_the_shortest_soak() -> None:
    assert [each for each in simulated("") if each.is_faulty] == []


@pytest.mark.parametrize(("corruption", "fault"), BROKEN.items())
def test_the_shortest_soak_finds_what_the_full_one_does(corruption: Corruption, fault: SoakFault) -> None:
    rates = judge_faults(simulated(corruption, share=0.5), simulated(""))

    assert fault in {rate.name for rate in rates if rate.result is SoakResult.FOUND}
