"""The fake under the soak's traffic: nothing is wrong with a working one, and each corruption shows as its fault."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache

import pytest

from soaked import simulated_soak
from speclift.core.traffic import Message, Request
from speclift.lossless.gate import SoakFault
from speclift.lossless.soak.faults import SoakObservation
from speclift.lossless.soak.prompts import SoakDialect
from speclift.lossless.soak.traffic import SoakKind, SoakTraffic, soak_traffic
from speclift.testing.fake_corruption import Around, Corruption, character_id
from speclift.testing.fake_truth import FakeRequest, Truth, corruption_of, parse_truth
from speclift.testing.fake_words import AskedWords
from speclift.testing.simulated_server import simulated_answer

OWN = Request(id="p1", messages=(Message(role="user", content="What is a heron?"),), max_tokens=64)
CALM = Around(streams=1, before=0, joined=0)
# Which fault each corruption has to show as, in traffic of the kinds that are open to it.
SHOWN = {
    Corruption.LEAKED_TOKEN: SoakFault.SPECIAL_TOKEN,
    Corruption.TEXT_AFTER_STOP: SoakFault.AFTER_STOP,
    Corruption.CROSS_TALK: SoakFault.CROSS_TALK,
    Corruption.BUDGET_IGNORED: SoakFault.BUDGET,
    Corruption.INVALID_JSON: SoakFault.INVALID_JSON,
    Corruption.TRUNCATED: SoakFault.TRUNCATED,
    Corruption.BROKEN_OFF: SoakFault.BROKEN_OFF,
    Corruption.REPEATED_SPAN: SoakFault.REPEATED,
    Corruption.BROKEN_TEXT: SoakFault.BROKEN_TEXT,
    Corruption.BANNED_TOKEN: SoakFault.BANNED_TOKEN,
    Corruption.OTHER_WORDS: SoakFault.OTHER_TEXT,
}


@cache
def traffic() -> SoakTraffic:
    whole = soak_traffic(
        seed=3,
        dialect=SoakDialect.LLAMACPP,
        prompts=(OWN,),
        adapters=("tuned",),
        banned=((character_id("7"), "7"),),
        honours_seeds=True,
    )
    return whole.without([SoakKind.GRAMMAR])


def soaked(*pairs: str, slots: int = 80) -> list[SoakObservation]:
    return simulated_soak(parse_truth(pairs), traffic(), slots=slots)


def test_a_working_server_answers_every_kind_without_a_fault() -> None:
    seen = soaked("k=4", slots=200)

    assert [each for each in seen if each.is_faulty] == []
    # Every fault could have shown, but for that of tools which are not strict: only users ask for those.
    assert {each.fault for each in seen} == set(SoakFault) - {SoakFault.LOOSE_ARGUMENTS}


@pytest.mark.parametrize("kind", list(Corruption))
def test_a_corruption_shows_as_its_fault(kind: Corruption) -> None:
    seen = soaked(f"corruption={kind}")
    faulty = {each.fault for each in seen if each.is_faulty}

    assert SHOWN[kind] in faulty


def test_corrupted_json_breaks_calls_of_tools_too() -> None:
    seen = soaked("corruption=invalid-json")

    assert {each.fault for each in seen if each.is_faulty} >= {
        SoakFault.TOOL_ARGUMENTS,
        SoakFault.INVALID_JSON,
    }


@pytest.mark.parametrize(
    ("pair", "meets", "misses"),
    [
        ("corruption_above_streams=8", replace(CALM, streams=9), replace(CALM, streams=8)),
        ("corruption_after_requests=100", replace(CALM, before=100), replace(CALM, before=99)),
        ("corruption_on_join=yes", replace(CALM, joined=1), CALM),
    ],
)
def test_a_corruption_keeps_to_its_condition(pair: str, meets: Around, misses: Around) -> None:
    truth = parse_truth(["corruption=leaked-token", pair])
    ask = FakeRequest(prompt="hello", max_tokens=8)

    assert corruption_of(truth, ask, meets) is Corruption.LEAKED_TOKEN
    assert corruption_of(truth, ask, misses) is None


def test_a_corruption_of_one_launch_or_of_tools_leaves_the_others() -> None:
    plain = FakeRequest(prompt="hello", max_tokens=8)
    tools = FakeRequest(prompt="hello", max_tokens=8, words=AskedWords(tools=(("find", {}),)))
    second = ["corruption=leaked-token", "corruption_on_launch=2"]

    assert corruption_of(parse_truth(second), plain, CALM) is None
    assert corruption_of(parse_truth([*second, "launch=2"]), plain, CALM) is Corruption.LEAKED_TOKEN
    with_tools = parse_truth(["corruption=leaked-token", "corruption_with_tools=yes"])
    assert corruption_of(with_tools, plain, CALM) is None
    assert corruption_of(with_tools, tools, CALM) is Corruption.LEAKED_TOKEN


def test_more_choices_are_told_apart_and_counted_together() -> None:
    body = {"messages": [{"role": "user", "content": "hello"}], "n": 3, "max_tokens": 5}
    answer = json.loads(json.dumps(simulated_answer(Truth(), body, CALM)))

    assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2]
    assert len({choice["message"]["content"] for choice in answer["choices"]}) == 3
    assert answer["usage"]["completion_tokens"] == 15
