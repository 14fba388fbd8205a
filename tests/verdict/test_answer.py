"""What is said first of a verdict: one sentence that can be acted on, in every state that a verdict can be in."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from answers import EFFORT, STATES, gate, judged, part
from samples import HOSTILE, provenance
from simulated import ARM, OTHER, cell, comparison, estimate, evidence
from speclift.core.answer import (
    BECAUSE_CHARACTERS_MAX,
    BECAUSE_MAX,
    SENTENCE_CHARACTERS_MAX,
    ShortAnswer,
    answered,
)
from speclift.core.arm import BASELINE
from speclift.core.goals import Goals
from speclift.core.results import Decision, Part, Percentiles, TailRatio
from speclift.lossless.gate import Result
from speclift.verdict.answer import answer_to

SENTENCES = {
    "ship": "Switch on arm: answers come 1.50x faster (95 % sure: 1.40 to 1.60).",
    "ship, tpot": "Switch on arm: tokens come 1.50x faster (95 % sure: 1.40 to 1.60).",
    "ship, throughput": "Switch on arm: the server gives 1.50x the tokens per second (95 % sure: 1.40 to 1.60).",
    "ship, two arms": "Switch on other: answers come 1.60x faster (95 % sure: 1.50 to 1.70).",
    "ship, the user's own line": (
        "Keep your line's speculation: answers come 1.50x faster (95 % sure: 1.40 to 1.60)."
    ),
    "ship, attach": "Switch on the server with speculation: answers come 1.50x faster (95 % sure: 1.40 to 1.60).",
    "conditions, segments": (
        "Switch on arm only for summarise: answers come 1.70x faster (95 % sure: 1.50 to 1.90)."
    ),
    "do not ship": "Leave it off: at most 1.18x of the 1.30x asked for.",
    "do not ship, just under": "Leave it off: at most 1.2999x of the 1.30x asked for.",
    "do not ship, slower": "Leave it off: answers come at 0.60x the speed (95 % sure: 0.50 to 0.70).",
    "do not ship, a part is open": (
        "Leave it off: at most 1.18x of the 1.30x asked for; it may pay on copy (1.45x so far)."
    ),
    "do not ship, a slow part is open": "Leave it off: at most 1.00x of the 1.30x asked for.",
    "open": "Faster for certain, but not yet shown to be 1.30x: arm lies between 1.10x and 1.45x.",
    "open, maybe no gain": (
        "Do not switch it on yet: arm lies between 0.90x and 1.40x, 1.30x was asked for."
    ),
    "open, a part may pay": (
        "Do not switch it on yet: arm lies between 0.90x and 1.40x, 1.30x was asked for; "
        "it may pay on copy (1.50x so far)."
    ),
    "open, fast but a part may lose": (
        "Not for all traffic yet: with arm answers come 1.50x faster (95 % sure: 1.40 to 1.60), "
        "but part of the traffic may get slower."
    ),
    "open, fast but the tail loses": (
        "Not for all traffic yet: with arm answers come 1.50x faster (95 % sure: 1.40 to 1.60), "
        "but the slowest requests get slower."
    ),
    "open, one prompt": (
        "Too early to tell: 1.50x so far, on 1 prompt, 1 launch, which is too little to say what the next "
        "requests will see."
    ),
    "open, invalid": "Do not act on these figures: at c=1 the client read first tokens late.",
    "open, proof wanted": (
        "Leave it off for now: the answers were not proven to stay the same. With arm answers come 1.50x faster "
        "(95 % sure: 1.40 to 1.60)."
    ),
    "all arms failed": "Nothing to switch on: draft-k4 did not run.",
    "nothing in common": "Nothing to switch on: no request succeeded both on arm and on the baseline.",
    "output changed": "Leave it off: arm changes what the model answers.",
}


def require_readable(answer: ShortAnswer) -> None:
    assert 0 < len(answer.sentence) <= SENTENCE_CHARACTERS_MAX
    assert answer.sentence.endswith((".", "…"))
    assert len(answer.because) <= BECAUSE_MAX
    assert len(set(answer.because)) == len(answer.because)
    for text in (answer.sentence, *answer.because):
        assert len(text) <= BECAUSE_CHARACTERS_MAX or text == answer.sentence
        assert "\n" not in text
        for word in ("nan", "None", "inf ", "inconclusive", "Decision", "Result"):
            assert word not in text
    assert "inconclusive" not in answer.sentence.lower()
    if answer.next is not None:
        assert 0 <= answer.next.seconds < math.inf


@pytest.mark.parametrize("state", SENTENCES)
def test_the_sentence_says_what_to_do(state: str) -> None:
    assert answer_to(STATES[state]).sentence == SENTENCES[state]


@pytest.mark.parametrize("state", STATES)
def test_it_is_readable_in_every_state(state: str) -> None:
    require_readable(answer_to(STATES[state]))


@pytest.mark.parametrize("state", [state for state in STATES if state != "nothing in common"])
def test_there_is_a_reason_in_every_state(state: str) -> None:
    because = answer_to(STATES[state]).because
    assert because
    assert any(character.isdigit() for reason in because for character in reason) or state in (
        "ship, not checked",
        "open, invalid",
    )


def test_every_decision_is_among_the_states() -> None:
    assert {state.verdict.decision for state in STATES.values()} == set(Decision)


def test_a_long_list_of_segments_is_counted() -> None:
    sentence = answer_to(STATES["conditions, many long segments"]).sentence
    assert "and 4 more, at most 64 requests at once, temperature up to 0.5" in sentence
    assert sentence.endswith("answers come 1.70x faster (95 % sure: 1.50 to 1.90).")


def test_what_an_arm_that_changes_the_answers_might_reach_is_not_held_out() -> None:
    same = gate(Result.PASS)
    (arm,) = same.arms
    other = structs.replace(arm, arm=OTHER.name, result=Result.FAIL)
    slow = judged(
        evidence(overall=comparison(1.0, 1.1, 1.18)),
        evidence(arm=OTHER, overall=comparison(1.0, 1.1, 1.25, arm=OTHER.name)),
        lossless=structs.replace(same, arms=(arm, other)),
    )
    assert answer_to(slow).sentence == "Leave it off: at most 1.18x of the 1.30x asked for."


class TestBecause:
    def test_what_a_step_costs_stands_beside_what_it_gives(self) -> None:
        def by_segment(arm: str, segment: str, tpot_s: float, length: float | None) -> Any:
            spread = Percentiles(p50=tpot_s, p95=tpot_s, p99=None)
            known = None if length is None else cell().accepted_length
            known = None if known is None or length is None else structs.replace(known, value=length)
            return cell(arm=arm, segment=segment, tpot_s=spread, accepted_length=known)

        slow = evidence(
            overall=comparison(0.5, 0.6, 0.7),
            segment_cells=(
                by_segment(BASELINE, "copy", 0.010, None),
                by_segment(ARM.name, "copy", 0.008, 2.5),
                by_segment(BASELINE, "chat", 0.010, None),
                by_segment(ARM.name, "chat", 0.020, 1.0),
            ),
        )
        assert (
            "a step takes the time of 2.00 plain tokens at c=1 and gives 2.50 on copy, 1.00 on chat"
            in answer_to(judged(slow)).because
        )

    def test_every_arm_is_weighed_where_none_pays(self) -> None:
        slow = (
            evidence(overall=comparison(1.0, 1.1, 1.2)),
            evidence(arm=OTHER, overall=comparison(0.5, 0.6, 0.7, arm=OTHER.name)),
        )
        assert answer_to(judged(*slow)).because[0] == (
            "arm 1.10x (1.00 to 1.20), other 0.60x (0.50 to 0.70); 36 prompts, 3 launches"
        )

    def test_more_than_two_arms_are_counted(self) -> None:
        arms = [replace(ARM, name=f"arm{number}") for number in range(4)]
        slow = (
            evidence(arm=arm, overall=comparison(0.5, 0.9 - 0.1 * number, 1.0, arm=arm.name))
            for number, arm in enumerate(arms)
        )
        assert answer_to(judged(*slow)).because[0] == (
            "arm0 0.90x (0.50 to 1.00), arm1 0.80x (0.50 to 1.00) and 2 slower ones; 36 prompts, 3 launches"
        )

    def test_the_only_arm_is_named_with_what_it_was_measured_on(self) -> None:
        assert answer_to(STATES["do not ship"]).because[0] == (
            "measured with arm on 36 prompts, 3 launches: 1.10x (1.00 to 1.18)"
        )

    def test_the_weakest_part_of_what_ships_is_named(self) -> None:
        ships = evidence(parts=(part(1.3, 1.4, 1.5), part(1.01, 1.06, 1.1, "chat")))
        assert "its weakest part is chat with 1.06x (1.01 to 1.10)" in answer_to(judged(ships)).because

    @pytest.mark.parametrize(
        ("result", "words"),
        [
            (Result.PASS, "the answers stay the same: greedy: 12 answers are the same"),
            (Result.SKIPPED, "whether the answers stay the same was not checked"),
            (Result.INCONCLUSIVE, "whether the answers stay the same was checked and is not certain"),
        ],
    )
    def test_what_ships_says_whether_the_answers_stay_the_same(self, result: Result, words: str) -> None:
        assert words in answer_to(judged(evidence(), lossless=gate(result))).because

    def test_only_the_three_strongest_are_kept_and_none_twice(self) -> None:
        assert answered("Yes.", ["a", "b", "a", "", "c", "d"]).because == ("a", "b", "c")

    def test_a_finding_that_makes_the_figures_worthless_says_what_to_put_right(self) -> None:
        answer = answer_to(STATES["open, invalid"])
        assert answer.because[0] == "free a core for the client"
        assert answer.next is None


ratios = st.floats(0.05, 20.0)
names = st.text("abc|`<>*_[]()$-.", min_size=1, max_size=90)


@st.composite
def comparisons(draw: st.DrawFn, fixed: dict[str, Any]) -> Any:
    low, value, high = sorted(draw(st.tuples(ratios, ratios, ratios)))
    if draw(st.booleans()):
        low, high = draw(st.sampled_from([(low, high), (0.0, math.inf)]))
    needed: dict[str, Any] = {
        "prompts_needed": draw(st.none() | st.integers(1, 5000)),
        "launches_needed": draw(st.none() | st.integers(2, 60)),
        "prompts": draw(st.integers(1, 400)),
        "launches": draw(st.integers(1, 9)),
    }
    return comparison(low, value, high, **needed, **fixed)


@st.composite
def arms(draw: st.DrawFn, arm: Any) -> Any:
    metric = draw(st.sampled_from(["tpot", "e2e", "throughput"]))
    overall = draw(st.none() | comparisons({"arm": arm.name, "metric": metric}))
    parts = draw(st.lists(names, max_size=3, unique=True))
    return evidence(
        arm=arm,
        overall=overall,
        parts=tuple(
            draw(comparisons({"arm": arm.name, "part": Part.SEGMENT, "label": name})) for name in parts
        ),
        prompts=draw(st.integers(1, 50)),
        cells=(cell(arm=arm.name, failed=draw(st.sampled_from([0, 900]))),),
    )


@given(st.data())
def test_whatever_was_measured_can_be_read(data: st.DataObject) -> None:
    first = replace(ARM, name=data.draw(names))
    second = replace(OTHER, name=f"{first.name}2")
    asked = data.draw(st.sampled_from([0, 1, 40, EFFORT.planned]))
    judgement = judged(
        data.draw(arms(first)),
        data.draw(arms(second)),
        goals=Goals(min_speedup=data.draw(st.sampled_from([0.9, 1.0, 1.3, 2.0]))),
        effort=replace(EFFORT, asked=asked),
        lossless=gate(data.draw(st.sampled_from([Result.PASS, Result.SKIPPED, Result.INCONCLUSIVE]))),
    )
    require_readable(answer_to(judgement))


def test_hostile_names_stay_on_one_line() -> None:
    arm = replace(ARM, name=HOSTILE)
    shown = judged(
        evidence(
            arm=arm, overall=comparison(1.4, 1.5, 1.6, arm=HOSTILE), parts=(part(1.3, 1.4, 1.5, HOSTILE),)
        ),
        provenance=provenance(argv=()),
    )
    answer = answer_to(shown)
    assert not {"\x1b", "\u202e", "\0", "\r", "\n"} & set(answer.sentence + "".join(answer.because))


class TestUnsettledTail:
    """An arm that ships while its slowest requests are not settled."""

    def because(self, *tails: TailRatio) -> tuple[str, ...]:
        return answer_to(judged(evidence(tails=tails))).because

    def tail(self, low: float, high: float) -> TailRatio:
        return TailRatio(
            arm=ARM.name, load=None, metric="e2e", statistic="P95", ratio=estimate(1.1, low, high)
        )

    def test_is_said_with_what_would_settle_it(self) -> None:
        assert (
            "slowest requests: e2e P95 over all loads 1.10x (0.70 to 1.40) is not settled; "
            "about 73 requests with different prompts would settle it (now 36)"
        ) in self.because(self.tail(0.7, 1.4))

    def test_is_said_where_nothing_was_compared(self) -> None:
        assert (
            "slowest requests were not compared; P90 needs about 50 requests with different prompts"
        ) in self.because()

    def test_is_not_said_of_a_tail_that_passed(self) -> None:
        assert not any("settle" in reason for reason in self.because(self.tail(0.9, 1.4)))
