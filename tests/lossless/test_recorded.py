"""The gate from a study's own records."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest

from speclift.core.arm import BASELINE, Arm
from speclift.core.records import Outcome, Phase, Place, Record
from speclift.core.speculation import NGram, Synthetic
from speclift.core.traffic import Concurrency, Request
from speclift.lossless.answers import Alternative, Answer, Said
from speclift.lossless.gate import Gate, Hazard, Result
from speclift.lossless.greedy import TOGETHER
from speclift.lossless.judge import lossy_by_design
from speclift.lossless.recorded import Fresh, gate_from_records, needs_more_control, parted_requests

ARM = Arm(name="ngram", speculation=NGram(k=4))
REQUESTS = tuple(Request(id=f"r{i}", prompt=f"prompt {i}") for i in range(8))
WORDS = (
    "the",
    "old",
    "miller",
    "opened",
    "a",
    "gate",
    "at",
    "six",
    "every",
    "day",
    "and",
    "swept",
    "his",
    "floor",
)


def record(
    arm: str, request: str, text: str, *, round_index: int = 0, temperature: float | None = 0.0
) -> Record:
    place = Place(
        arm=arm,
        launch=1,
        round=round_index,
        block=0,
        load=Concurrency(streams=1),
        request_id=request,
        segment="s",
        temperature=temperature,
        phase=Phase.MEASURED,
    )
    return Record(
        place=place,
        outcome=Outcome.OK,
        intended_s=0.0,
        sent_s=0.0,
        end_s=1.0,
        text=text,
        output_tokens=len(text.split()),
        finish_reason="length",
    )


def text_of(request: Request, *, wrong: bool = False) -> str:
    words = [f"{request.id}-{word}" for word in WORDS]
    return " ".join([*words[:6], "WRONG", *words[7:]] if wrong else words)


def study(*, wrong: int = 0, rounds: int = 2, temperature: float | None = 0.0) -> list[Record]:
    found = []
    for index in range(rounds):
        for number, request in enumerate(REQUESTS):
            found.append(
                record(BASELINE, request.id, text_of(request), round_index=index, temperature=temperature)
            )
            text = text_of(request, wrong=number < wrong)
            found.append(record("ngram", request.id, text, round_index=index, temperature=temperature))
    return found


def together(control: Mapping[str, object]) -> Hazard:
    hazard = control[TOGETHER]
    assert isinstance(hazard, Hazard)
    return hazard


def gate(records: list[Record], fresh: Fresh | None = None) -> Gate:
    return gate_from_records(records, [ARM], REQUESTS, fresh=fresh)


def test_the_same_answers_pass() -> None:
    found = gate(study())
    assert found.result is Result.PASS
    # Two launches that repeat each other are one observation.
    assert found.arms[0].greedy.tokens == len(REQUESTS) * len(WORDS)


def test_a_few_differences_without_margins_are_not_settled_and_named_for_the_next_step() -> None:
    found = gate(study(wrong=2))
    assert found.result is Result.INCONCLUSIVE
    assert parted_requests(found) == ("r0", "r1")


def test_new_references_with_margins_settle_it() -> None:
    def said(word: str, rival: str, gap: float) -> Said:
        data = word.encode()
        return Said(
            data=data,
            logprob=-0.1,
            choices=(
                Alternative(data=data, logprob=-0.1),
                Alternative(data=rival.encode(), logprob=-0.1 - gap),
            ),
        )

    def fresh(gap: float) -> Fresh:
        references = {}
        for request in REQUESTS[:2]:
            first, *rest = text_of(request).split()
            words = [first, *(f" {word}" for word in rest)]
            tokens = tuple(said(word, " WRONG", gap) for word in words)
            references[request.id] = Answer(
                case=request.id, text="".join(words), finish_reason="length", tokens=len(words), said=tokens
            )
        return Fresh(references=references)

    assert gate(study(wrong=2), fresh(0.05)).result is Result.PASS
    assert gate(study(wrong=2), fresh(5.0)).result is Result.FAIL


def test_the_same_seed_and_text_settles_sampled_traffic() -> None:
    found = gate(study(temperature=0.8)).arms[0]
    assert found.greedy.result is Result.SKIPPED
    assert found.sampled.method == "same-seed"
    assert found.result is Result.PASS


def test_sampled_text_without_a_seed_is_inconclusive() -> None:
    records = []
    for request in REQUESTS:
        words = text_of(request).split()
        records.append(record(BASELINE, request.id, " ".join(words), temperature=1.0))
        records.append(record("ngram", request.id, " ".join(reversed(words)), temperature=1.0))
    found = gate(records).arms[0].sampled
    assert found.result is Result.INCONCLUSIVE
    assert "speclift verify" in found.message


@pytest.mark.parametrize(("cold", "hot"), [(0, 0), (0, 1), (1, 0), (3, 2)])
def test_greedy_and_sampled_traffic_of_one_study_are_judged_apart(cold: int, hot: int) -> None:
    found = gate(study(wrong=cold) + study(wrong=hot, temperature=0.8)).arms[0]
    assert found.greedy.unknown == cold
    assert found.greedy.prompts == len(REQUESTS)
    assert found.sampled.identity is not None
    assert found.sampled.identity.events == hot


def test_an_arm_that_left_a_part_of_the_traffic_out_has_not_passed_it() -> None:
    records = study() + [each for each in study(temperature=0.8) if each.place.arm == BASELINE]
    found = gate(records).arms[0]
    assert found.greedy.result is Result.PASS
    assert found.sampled.result is Result.INCONCLUSIVE


def test_drafts_that_are_all_accepted_are_odd_where_text_is_sampled_alone() -> None:
    """At temperature 0 a good draft may well be always right."""
    for temperature, is_odd in ((0.0, False), (0.8, True)):
        records = [replace(each, drafted=40, accepted=40) for each in study(temperature=temperature)]
        findings = gate(records).arms[0].findings
        assert any(each.check == "odd-acceptance" for each in findings) is is_odd


def test_a_temperature_that_nobody_knows_proves_nothing() -> None:
    assert gate(study(temperature=None)).result is Result.INCONCLUSIVE


@pytest.mark.parametrize(
    ("arm", "settings", "is_lossy"),
    [
        (ARM, (), False),
        (ARM, ("--temperature-check",), False),
        (Arm(name="s", speculation=Synthetic(inner=NGram(k=1), rates=(0.5,))), (), True),
        (ARM, ("--typical-acceptance-sampler-posterior-threshold=0.09",), True),
        (ARM, ("--speculative-accept-threshold-single", "0.5"), True),
        (
            Arm(name="v", speculation=NGram(k=4, extra=(("rejection_sample_method", '"synthetic"'),))),
            (),
            True,
        ),
    ],
)
def test_lossy_settings_are_known_by_name(arm: Arm, settings: tuple[str, ...], is_lossy: bool) -> None:
    assert bool(lossy_by_design(arm, settings)) is is_lossy


def failed(made: Record) -> Record:
    """Without a word about why."""
    return replace(made, outcome=Outcome.HTTP_ERROR, text="", output_tokens=None, finish_reason=None)


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_requests_that_failed_on_the_arm_alone_are_counted_and_are_no_empty_answers(
    temperature: float,
) -> None:
    records = study(rounds=1, temperature=temperature)
    lost = [place for place, made in enumerate(records) if made.place.arm == "ngram"][:3]
    (arm,) = gate([failed(made) if place in lost else made for place, made in enumerate(records)]).arms
    part = arm.sampled if temperature else arm.greedy
    assert part.result is Result.INCONCLUSIVE
    assert part.message.startswith(f"3 of {len(REQUESTS)} requests that the baseline answered")
    assert temperature or arm.greedy.refused == 3


def test_what_the_baseline_did_not_answer_in_a_round_is_compared_with_nothing() -> None:
    """Neither as a control of the first round nor as the arm's reference."""
    records = [
        made
        for made in study()
        if (made.place.arm, made.place.round, made.place.request_id) != (BASELINE, 1, "r0")
    ]
    greedy = gate(records).arms[0].greedy
    assert (greedy.result, greedy.refused) == (Result.PASS, 0)
    fewer = [failed(made) if made.place.request_id == "r0" else made for made in study()]
    control = gate(fewer).control
    assert together(control).tokens == (len(REQUESTS) - 1) * len(WORDS)


def test_sampled_texts_that_differ_are_as_long_as_the_engine_counted() -> None:
    records = [
        replace(made, text=f"{made.text} {number}")
        for number, made in enumerate(study(rounds=1, temperature=0.8))
    ]
    sampled = gate(records).arms[0].sampled
    assert sampled.tokens == len(REQUESTS) * len(WORDS)


def test_the_document_names_the_arm_that_decides_and_bounds_its_rate() -> None:
    document = gate(study())
    assert (document.arm, document.depth) == ("ngram", "records")
    control = document.control["c=1"]
    assert isinstance(control, Hazard)
    assert control.upper_per_1000_tokens == pytest.approx(1000 * 2.9957 / control.tokens, rel=1e-3)
    other = Arm(name="other", speculation=ARM.speculation)
    both = gate_from_records(study(wrong=len(REQUESTS)), [other, ARM], REQUESTS)
    assert both.arm == next(arm.arm for arm in both.arms if arm.result is both.result)
    assert gate(study(), fresh=Fresh(references={})).depth == "quick"


def at_load(records: list[Record], streams: int) -> list[Record]:
    return [replace(each, place=replace(each.place, load=Concurrency(streams=streams))) for each in records]


def listed(request: Request, *, gap: float) -> Answer:
    """A new reference, at every token of which WRONG is this much less likely."""
    first, *rest = text_of(request).split()
    words = [first, *(f" {word}" for word in rest)]
    tokens = tuple(
        Said(
            data=word.encode(),
            logprob=-0.1,
            choices=(
                Alternative(data=word.encode(), logprob=-0.1),
                Alternative(data=b" WRONG", logprob=-0.1 - gap),
            ),
        )
        for word in words
    )
    return Answer(
        case=request.id, text="".join(words), finish_reason="length", tokens=len(words), said=tokens
    )


def two_loads(*, natural: int, wrong: int) -> list[Record]:
    """One launch at two loads: at the second the baseline says `natural` answers otherwise, the arm the last ones."""
    alone, batched = at_load(study(rounds=1), 1), []
    for number, request in enumerate(REQUESTS):
        own = text_of(request, wrong=number < natural)
        batched.append(record(BASELINE, request.id, own))
        arms = text_of(request, wrong=number >= len(REQUESTS) - wrong)
        batched.append(record("ngram", request.id, arms))
    return [*alone, *at_load(batched, 16)]


def test_the_baseline_at_another_load_is_a_control_of_one_launch() -> None:
    control = gate(two_loads(natural=2, wrong=0)).control
    assert together(control).events == 2
    assert gate(study(rounds=1)).control == gate(study(rounds=1, wrong=3)).control
    alone = gate(study(rounds=1)).control
    assert together(alone).tokens == 0


def test_a_difference_that_the_baseline_has_between_loads_as_well_passes() -> None:
    references = {request.id: listed(request, gap=0.4) for request in REQUESTS}
    known = Fresh(references=references)
    found = gate(two_loads(natural=3, wrong=2), known)
    assert found.result is Result.PASS
    unlike = gate(two_loads(natural=0, wrong=2), known)
    assert unlike.result is Result.INCONCLUSIVE
    assert needs_more_control(unlike)
    assert not needs_more_control(found)
