"""What a policy's rules take, and which policies must not be followed."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from policies import CHAT, COPY, PLAIN, SOURCE, SPEC, copying, policy

from speclift.core.results import Decision
from speclift.core.routing import RequestFeatures
from speclift.routing.policy import (
    CountedLoad,
    LoadLimit,
    Policy,
    PolicySegment,
    PrefixWorth,
    SegmentRule,
    faults,
)


class TestRules:
    @pytest.mark.parametrize(
        ("rule", "features", "holds"),
        [
            (SegmentRule(temperature_max=0.3), {"temperature": 0.3}, True),
            (SegmentRule(temperature_max=0.3), {"temperature": 0.31}, False),
            (SegmentRule(temperature_max=0.3), {"temperature": None}, False),
            (SegmentRule(temperature_min=0.3), {"temperature": None}, False),
            (SegmentRule(max_tokens_min=10, max_tokens_max=20), {"max_tokens": 15}, True),
            (SegmentRule(max_tokens_min=10, max_tokens_max=20), {"max_tokens": 21}, False),
            (SegmentRule(max_tokens_max=20), {"max_tokens": None}, False),
            (SegmentRule(prompt_characters_min=800), {}, True),
            (SegmentRule(prompt_characters_min=801), {}, False),
            (SegmentRule(repetition_min=0.2), {"repetition": 0.4}, True),
            (SegmentRule(repetition_min=0.2), {"repetition": None}, False),
            (SegmentRule(turns_max=2), {"turns": 3}, False),
            (SegmentRule(response_format="text"), {}, True),
            (SegmentRule(response_format="text"), {"response_format": "json_object"}, False),
            (SegmentRule(response_format="grammar"), {"response_format": "grammar"}, True),
            (SegmentRule(tools=False), {}, True),
            (SegmentRule(tools=True), {}, False),
            (SegmentRule(path="/v1/chat/completions"), {}, True),
            (SegmentRule(path="/v1/completions"), {}, False),
            (SegmentRule(model="m"), {"model": "m"}, True),
            (SegmentRule(model="m"), {}, False),
            (SegmentRule(header="X-Team: search"), {"fields": {"x-team": " search"}}, True),
            (SegmentRule(header="x-team: search"), {"fields": {"x-team": "mail"}}, False),
            (SegmentRule(header="x-team"), {"fields": {"x-team": ""}}, True),
            (SegmentRule(header="x-team"), {}, False),
            (SegmentRule(temperature_max=0.3, tools=True), {"temperature": 0.0}, False),
        ],
    )
    def test_all_conditions_have_to_hold(
        self, rule: SegmentRule, features: dict[str, Any], holds: bool
    ) -> None:
        assert rule.holds(copying(**features)) is holds


def texts(value: Policy) -> str:
    return "\n".join(faults(value))


def with_copy(**changes: Any) -> Policy:
    return policy(segments=(replace(COPY, **changes), CHAT))


class TestWhatIsRefused:
    @pytest.mark.parametrize(
        ("made", "says"),
        [
            (
                with_copy(speedup=0.8, low=0.7, high=0.9),
                "'copy': speculation is slower there (measured 0.70x to 0.90x)",
            ),
            (
                with_copy(speedup=1.0, low=0.96, high=1.1),
                "not shown to be no slower there (measured 0.96x to 1.10x",
            ),
            (with_copy(low=-1.0), "low <= speedup <= high does not hold"),
            (
                policy(load=LoadLimit(leave=9, pays_to=8.0)),
                "leave = 9, but speculation was measured to pay up to 8",
            ),
            (
                policy(load=LoadLimit(pays_to=8.0)),
                "there is no leave, but speculation was measured to pay up to 8",
            ),
            (with_copy(leave=64), "segment 'copy': leave = 64, but speculation was measured to pay up to 8"),
            (policy(prefix=PrefixWorth(keep_s=-1.0)), "prefix.keep_s = -1 is less than nothing"),
            (policy(load=LoadLimit(leave=4, back=5)), "back = 5 must lie in 1..leave = 4"),
            (policy(elsewhere=SPEC), "study is ship-on-conditions and does not ship on all traffic"),
            (
                policy(source=replace(SOURCE, verdict=Decision.OUTPUT_CHANGED)),
                "speculation changed the output",
            ),
            (
                policy(source=replace(SOURCE, verdict=Decision.DO_NOT_SHIP)),
                "is do-not-ship, so nothing may go to spec",
            ),
            (
                policy(source=replace(SOURCE, verdict=Decision.INCONCLUSIVE)),
                "--learn finds out on live traffic",
            ),
            (policy(segments=(COPY, replace(CHAT, name="copy"))), "'copy' stands there twice"),
            (with_copy(name="elsewhere"), "'elsewhere': this is no name for a segment"),
            (with_copy(when=(SegmentRule(),)), "a rule without conditions takes every request"),
            (with_copy(when=(SegmentRule(temperature_max=-0.1),)), "temperature_max = -0.1 can never hold"),
            (with_copy(when=(SegmentRule(repetition_min=1.5),)), "repetition_min = 1.5 can never hold"),
            (with_copy(when=(SegmentRule(header="X-Speclift-Segment: a"),)), "names segments by itself"),
        ],
    )
    def test_with_the_reason(self, made: Policy, says: str) -> None:
        assert says in texts(made)

    def test_a_rule_that_comes_too_late(self) -> None:
        late = replace(CHAT, when=(SegmentRule(temperature_max=0.2, prompt_characters_min=500),))
        wider = replace(CHAT, when=(SegmentRule(temperature_max=0.2),))

        assert "can never hold: 'copy' stands before it" in texts(policy(segments=(COPY, late)))
        assert texts(policy(segments=(late, COPY))) == ""
        assert texts(policy(segments=(COPY, wider))) == ""

    def test_what_was_not_measured_may_be_said(self) -> None:
        hand_written = Policy(
            schema=1,
            elsewhere=SPEC,
            load=LoadLimit(leave=100, counted=CountedLoad.ALL),
            segments=(PolicySegment(name="a", pool=SPEC), PolicySegment(name="b", pool=PLAIN)),
        )

        assert texts(hand_written) == ""
        assert not hand_written.is_measured


bounds = st.none() | st.integers(0, 4)
rules = st.builds(
    SegmentRule,
    turns_min=bounds,
    turns_max=bounds,
    max_tokens_min=bounds,
    max_tokens_max=bounds,
    tools=st.none() | st.booleans(),
)
requests = st.builds(
    RequestFeatures,
    path=st.just("/v1/completions"),
    turns=st.integers(1, 4),
    max_tokens=bounds,
    has_tools=st.booleans(),
)


@given(rules, rules, requests)
def test_what_takes_all_of_another_holds_wherever_that_does(
    wide: SegmentRule, narrow: SegmentRule, features: RequestFeatures
) -> None:
    if wide.takes_all_of(narrow) and narrow.holds(features):
        assert wide.holds(features)
