"""The fake under the soak's traffic: nothing is wrong with a working one, and each corruption shows as its fault."""

from __future__ import annotations

from functools import cache

import pytest

from soaked import simulated_soak
from speclift.core.traffic import Message, Request
from speclift.lossless.gate import SoakFault
from speclift.lossless.soak.faults import SoakObservation
from speclift.lossless.soak.prompts import SoakDialect
from speclift.lossless.soak.traffic import SoakKind, SoakTraffic, soak_traffic
from speclift.testing.fake_corruption import Corruption, character_id
from speclift.testing.fake_truth import parse_truth

OWN = Request(id="p1", messages=(Message(role="user", content="What is a heron?"),), max_tokens=64)
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
