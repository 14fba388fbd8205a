"""The gate on designs that carry no proof: what was not seen is inconclusive, and never a pass."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from speclift.core.arm import BASELINE, Arm
from speclift.core.records import Outcome, Phase, Place, Record
from speclift.core.speculation import NGram
from speclift.core.traffic import Concurrency, Request
from speclift.lossless.answers import (
    Alternative,
    Answer,
    Compared,
    Divergence,
    Kind,
    Said,
    compare,
    hazard,
    more_often,
)
from speclift.lossless.calibration import TokenScore, text_tests
from speclift.lossless.gate import (
    PROMPTS_MIN,
    ArmGate,
    Gate,
    Greedy,
    Hazard,
    Result,
    worst_gate,
)
from speclift.lossless.greedy import Control, control_of, judge_greedy
from speclift.lossless.judge import (
    ALONE,
    SAMPLED,
    QuestionSet,
    ServerAnswers,
    garbled_finding,
    judge_answers,
    judge_edge,
)
from speclift.lossless.questions import Edge, Question
from speclift.lossless.recorded import gate_from_records
from speclift.lossless.sampled import judge_scores, judge_texts
from speclift.verdict.verdict import gate_for_verdict

ARM = Arm(name="ngram", speculation=NGram(k=4))
ALL_ALIKE = control_of({}, ())


def same(case: str, *, tokens: float = 100.0) -> Compared:
    return Compared(case=case, tokens=tokens, divergence=None)


def parted(case: str, *, tokens: float = 5.0) -> Compared:
    divergence = Divergence(
        case=case,
        kind=Kind.TOKEN,
        position=5,
        margin=None,
        is_at_least=False,
        rank=None,
        reference="a",
        answer="b",
    )
    return Compared(case=case, tokens=tokens, divergence=divergence)


def greedy(*pairs: Compared, ways: Sequence[str] = ("alone",), control: Control = ALL_ALIKE) -> Greedy:
    """The same pairs in each way of asking."""
    return judge_greedy(dict.fromkeys(ways, pairs), {way: way for way in ways}, control, detect=0.02)


# Temperature 0


@pytest.mark.parametrize("prompts", [0, 1, 2, 3, PROMPTS_MIN - 1])
def test_fewer_prompts_than_ship_never_pass_however_long_their_answers(prompts: int) -> None:
    found = greedy(*(same(f"p{index}", tokens=10_000) for index in range(prompts)))
    assert found.result is Result.INCONCLUSIVE
    assert found.prompts == prompts


def test_as_many_prompts_as_may_ship_pass() -> None:
    assert greedy(*(same(f"p{index}") for index in range(PROMPTS_MIN))).result is Result.PASS


@pytest.mark.parametrize("ways", [("alone",), ("alone", "batched"), ("c=1", "c=8", "c=64")])
def test_one_prompt_asked_a_hundred_times_is_one_prompt(ways: tuple[str, ...]) -> None:
    found = greedy(*[same("p", tokens=200)] * 100, ways=ways)
    assert found.result is Result.INCONCLUSIVE
    assert found.prompts == 1
    assert found.tokens == 200 * len(ways)
    assert f"1 distinct prompt compared, {PROMPTS_MIN} needed" in found.message


def test_a_prompt_that_parts_alike_in_every_way_has_parted_once() -> None:
    """Five of 24 prompts, the same in both ways, and a control that says the same in both: five against none."""
    pairs = [parted(f"p{index}", tokens=100) if index < 5 else same(f"p{index}") for index in range(24)]
    alike = [same(f"p{index}") for index in range(24)]
    control = control_of({"alone": alike, "batched": alike}, ())
    found = greedy(*pairs, ways=("alone", "batched"), control=control)
    assert found.result is Result.INCONCLUSIVE, found.message


def test_partings_of_many_prompts_are_still_a_fault_without_margins() -> None:
    pairs = [parted(f"p{index}") if index < 12 else same(f"p{index}") for index in range(24)]
    control = control_of({"alone": [same(f"p{index}") for index in range(24)]}, ())
    assert greedy(*pairs, control=control).result is Result.FAIL


def test_a_rate_over_nothing_is_no_rate() -> None:
    nothing = Hazard(events=0, tokens=0.0)
    assert math.isinf(nothing.upper())
    assert more_often(nothing, Hazard(events=3, tokens=100.0)) == 1.0
    assert more_often(Hazard(events=3, tokens=100.0), nothing) == 1.0
    assert hazard([same("p")] * 5) == Hazard(events=0, tokens=100.0)


def answer(case: str, text: str, *, tokens: int | None = None, error: str = "") -> Answer:
    return Answer(case=case, text=text, finish_reason="length", tokens=tokens, error=error)


@pytest.mark.parametrize("tokens", [None, 0, 1, 64])
def test_empty_answers_show_no_token_whatever_the_server_counts(tokens: int | None) -> None:
    pairs = [
        compare(answer(f"p{i}", "", tokens=tokens), answer(f"p{i}", "", tokens=tokens)) for i in range(300)
    ]
    assert sum(pair.tokens for pair in pairs) == 0
    assert greedy(*pairs).result is Result.INCONCLUSIVE


@pytest.mark.parametrize(("baseline", "arm"), [("", "down"), ("down", ""), ("down", "down")])
def test_what_is_refused_by_one_or_both_never_passes(baseline: str, arm: str) -> None:
    pairs = [
        compare(
            answer(f"p{i}", "a b c", tokens=3, error=baseline), answer(f"p{i}", "a b c", tokens=3, error=arm)
        )
        for i in range(300)
    ]
    assert greedy(*pairs).result is Result.INCONCLUSIVE


def test_an_edge_that_differs_by_who_knows_how_much_is_not_called_a_tie() -> None:
    question = Question(case="e", request=Request(id="e", prompt="p"), temperature=0.0, seed=1)
    found = judge_edge(
        Edge(name="stop", question=question), answer("e", "a b"), answer("e", "a c"), fault_nats=1.0
    )
    assert "log-probabilities are unknown" in found.check.message


@pytest.mark.parametrize(
    ("baseline", "arm", "result"),
    [
        ("a b", "a b", Result.PASS),
        ("a b", "a STOP", Result.FAIL),
        ("a STOP", "a STOP", Result.PASS),
        ("a STOP", "a b", Result.PASS),
    ],
)
def test_an_edge_that_the_baseline_breaks_too_is_not_the_arms_fault(
    baseline: str, arm: str, result: Result
) -> None:
    question = Question(case="e", request=Request(id="e", prompt="p"), temperature=0.0, seed=1)
    edge = Edge(name="stop", question=question, forbidden="STOP")
    assert judge_edge(edge, answer("e", baseline), answer("e", arm), fault_nats=1.0).check.result is result


def test_an_edge_that_samples_may_say_something_else() -> None:
    question = Question(case="e", request=Request(id="e", prompt="p"), temperature=0.8, seed=1)
    edge = Edge(name="seed", question=question, is_sampled=True)
    found = judge_edge(edge, answer("e", "a b"), answer("e", "a c"), fault_nats=1.0)
    assert (found.check.message, found.divergence) == ("kept", None)


@pytest.mark.parametrize(
    ("gap", "result"), [(0.5, Result.PASS), (1.5, Result.PASS), (2.5, Result.FAIL), (8.0, Result.FAIL)]
)
def test_an_edge_fails_where_its_margin_is_beyond_that_of_a_fault(gap: float, result: Result) -> None:
    listed = (Alternative(data=b" b", logprob=-0.1), Alternative(data=b" c", logprob=-0.1 - gap))
    said = (Said(data=b"a", logprob=-0.1, choices=()), Said(data=b" b", logprob=-0.1, choices=listed))
    question = Question(case="e", request=Request(id="e", prompt="p"), temperature=0.0, seed=1)
    found = judge_edge(
        Edge(name="stop", question=question),
        replace(answer("e", "a b", tokens=2), said=said),
        answer("e", "a c", tokens=2),
        fault_nats=2.0,
    )
    assert found.check.result is result
    assert found.divergence is not None
    assert found.divergence.margin == pytest.approx(gap)


# Above temperature 0


def scores(count: int, *, mass: float = 0.6, seed: int = 0) -> list[TokenScore]:
    """Tokens of a law with two of them, drawn from it."""
    drawn = np.random.default_rng(seed).random(count) < mass
    top = ((1, mass), (2, 1.0 - mass)) if mass < 1 else ((1, 1.0),)
    return [
        TokenScore(chosen=1 if first else 2, top=top, tail_low=0.0, tail_high=0.0) for first in drawn.tolist()
    ]


GOOD = scores(4000, seed=1)


def test_a_design_that_carries_it_passes() -> None:
    assert judge_scores(GOOD, scores(800, seed=2), detect=0.05).result is Result.PASS


@pytest.mark.parametrize("control", [[], scores(1), scores(3), scores(500, mass=1.0)])
def test_without_scores_of_the_baseline_that_could_tell_nothing_passes(control: list[TokenScore]) -> None:
    found = judge_scores(GOOD, control, detect=0.05)
    assert found.result is Result.INCONCLUSIVE
    assert "baseline" in found.message


@pytest.mark.slow
@pytest.mark.parametrize("count", [0, 1, 2, 3, 20_000])
def test_a_target_that_is_sure_of_everything_proves_nothing(count: int) -> None:
    """No variance: no test can be made, and fewer tokens are not enough because of it."""
    found = judge_scores(scores(count, mass=1.0), scores(800, seed=2), detect=0.05)
    assert found.result is Result.INCONCLUSIVE


def test_nearly_no_variance_does_not_make_a_handful_of_tokens_enough() -> None:
    assert judge_scores(scores(20, mass=0.9999), scores(800, seed=2), detect=0.05).tokens_needed >= 59


@pytest.mark.parametrize("pairs", [0, 1, 2, 3, 7, 8, 40])
def test_texts_that_are_all_equal_are_no_proof_and_no_fault(pairs: int) -> None:
    tests = text_tests([("the same", "the same")] * pairs, seed=0)
    assert all(test.p_value == 1.0 for test in tests)
    assert judge_texts(tests, detect=0.02, identity=None, why_not_scored="").result is Result.INCONCLUSIVE


def asked(prompts: int, *, times: int = 1) -> tuple[Question, ...]:
    return tuple(
        Question(
            case=f"p{index % prompts} #{index}",
            request=Request(id=f"p{index % prompts}", prompt=f"prompt {index % prompts}"),
            temperature=1.0,
            seed=index,
        )
        for index in range(prompts * times)
    )


def sampled_gate(prompts: int, *, times: int = 1, refused: int = 0, changed: int = 0) -> ArmGate:
    """An arm that gives the baseline's text under the same seed, but for what it refuses or changes."""
    questions = asked(prompts, times=times)
    said = [answer(question.case, f"{question.case} says this", tokens=50) for question in questions]
    own = [
        replace(each, error="503")
        if i < refused
        else replace(each, text="x")
        if i < refused + changed
        else each
        for i, each in enumerate(said)
    ]
    script = QuestionSet(sampled=questions, told=ServerAnswers(answers={SAMPLED: said}))
    return judge_answers(
        ARM, script, ServerAnswers(answers={SAMPLED: own}), ALL_ALIKE, {}, detect=0.02, seed=0
    ).gate


def test_the_same_text_under_the_same_seed_passes() -> None:
    assert sampled_gate(24).result is Result.PASS


@pytest.mark.parametrize(("prompts", "times"), [(1, 1), (1, 100), (2, 50), (3, 30), (PROMPTS_MIN - 1, 20)])
def test_many_seeds_of_few_prompts_do_not_pass(prompts: int, times: int) -> None:
    assert sampled_gate(prompts, times=times).result is Result.INCONCLUSIVE


@pytest.mark.parametrize("refused", [4, 12, 23, 24])
def test_an_arm_that_answers_fewer_sampled_requests_than_the_baseline_does_not_pass(refused: int) -> None:
    found = sampled_gate(24, refused=refused)
    assert found.result is Result.INCONCLUSIVE


def test_one_text_under_every_seed_is_said_once() -> None:
    """A server that ignores the seed: 30 times the same two texts are one pair, and no proof of a fault."""
    questions = asked(1, times=30)
    script = QuestionSet(
        sampled=questions,
        told=ServerAnswers(answers={SAMPLED: [answer(q.case, "one two three", tokens=3) for q in questions]}),
    )
    told = ServerAnswers(
        answers={SAMPLED: [answer(q.case, "four five six seven", tokens=4) for q in questions]}
    )
    assert (
        judge_answers(ARM, script, told, ALL_ALIKE, {}, detect=0.02, seed=0).gate.result
        is Result.INCONCLUSIVE
    )


# Whole texts

LOOP = "round and round we go " * 20
PROSE = " ".join(f"word{chr(97 + i % 26)}{chr(97 + i // 26)}" for i in range(60))


def told(looping: int, ways: Sequence[str], *, prompts: int = 24) -> ServerAnswers:
    texts = [LOOP if index < looping else PROSE for index in range(prompts)]
    return ServerAnswers(
        answers={way: [answer(f"p{i}", text) for i, text in enumerate(texts)] for way in ways}
    )


def test_a_prompt_that_loops_at_every_load_loops_once() -> None:
    ways = ("c=1", "c=4", "c=16", "c=64")
    assert garbled_finding("ngram", told(4, ways), told(0, ways)) is None
    assert garbled_finding("ngram", told(20, ways), told(0, ways)) is not None


def test_texts_of_nobody_show_no_fault() -> None:
    assert garbled_finding("ngram", ServerAnswers(), ServerAnswers()) is None
    assert garbled_finding("ngram", told(24, (ALONE,)), ServerAnswers()) is None


# From a study's records


def record(arm: str, request: str, text: str, *, temperature: float, failed: bool, streams: int) -> Record:
    return Record(
        place=Place(
            arm=arm,
            launch=1,
            round=0,
            block=0,
            load=Concurrency(streams=streams),
            request_id=request,
            segment="s",
            temperature=temperature,
            phase=Phase.MEASURED,
        ),
        outcome=Outcome.HTTP_ERROR if failed else Outcome.OK,
        intended_s=0.0,
        sent_s=0.0,
        end_s=1.0,
        text="" if failed else text,
        output_tokens=None if failed else 40,
        finish_reason=None if failed else "length",
        error="500" if failed else "",
    )


def recorded(
    *,
    prompts: int = 24,
    failed: int = 0,
    temperatures: Sequence[float] = (0.0,),
    hot_arm: bool = True,
    alike: bool = False,
) -> Result:
    requests = [Request(id=f"p{i}", prompt="the same" if alike else f"prompt {i}") for i in range(prompts)]
    records = []
    for number, request in enumerate(requests):
        text = "the same words" if alike else f"{request.id} and some words"
        for temperature in temperatures:
            for streams in (1, 8):
                here = {"temperature": temperature, "streams": streams}
                records.append(record(BASELINE, request.id, text, failed=False, **here))  # type: ignore[arg-type]
                if hot_arm or temperature == 0:
                    records.append(
                        record(ARM.name, request.id, text, failed=number < failed, **here)  # type: ignore[arg-type]
                    )
    return gate_from_records(records, [ARM], requests).result


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_a_study_of_the_same_answers_passes_also_where_a_stray_request_failed(temperature: float) -> None:
    assert recorded(temperatures=(temperature,)) is Result.PASS
    assert recorded(prompts=60, failed=1, temperatures=(temperature,)) is Result.PASS


@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("failed", [3, 12, 24])
def test_a_study_whose_arm_failed_where_the_baseline_answered_does_not_pass(
    failed: int, temperature: float
) -> None:
    assert recorded(failed=failed, temperatures=(temperature,)) is Result.INCONCLUSIVE


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_a_file_that_holds_one_prompt_under_many_names_does_not_pass(temperature: float) -> None:
    assert recorded(prompts=60, alike=True, temperatures=(temperature,)) is Result.INCONCLUSIVE


@pytest.mark.parametrize("prompts", [1, 2, 3])
def test_a_study_of_few_prompts_does_not_pass(prompts: int) -> None:
    assert recorded(prompts=prompts) is Result.INCONCLUSIVE


def test_a_part_of_the_traffic_that_the_arm_never_answered_has_not_passed() -> None:
    assert recorded(temperatures=(0.0, 0.8)) is Result.PASS
    assert recorded(temperatures=(0.0, 0.8), hot_arm=False) is Result.INCONCLUSIVE


# What the verdict is told


def outcome(**results: Result) -> Gate:
    arms = tuple(ArmGate(arm=name, method="ngram", result=result) for name, result in results.items())
    return Gate(depth="quick", arms=arms, mode="quick")


def test_an_arm_that_no_gate_looked_at_is_not_covered_by_another_that_passed() -> None:
    arms = [Arm(name=name, speculation=NGram(k=4)) for name in ("a", "b")]
    assert gate_for_verdict(outcome(a=Result.PASS, b=Result.PASS), arms, arms).result is Result.PASS
    word = gate_for_verdict(outcome(a=Result.PASS), arms, arms)
    assert word.result is Result.INCONCLUSIVE
    assert "b" in word.note


def test_two_studies_bring_the_arms_of_both() -> None:
    arms = [Arm(name=name, speculation=NGram(k=4)) for name in ("a", "b")]
    both = worst_gate([outcome(a=Result.PASS), outcome(b=Result.PASS)])
    assert both is not None
    assert gate_for_verdict(both, arms, arms).result is Result.PASS
    mixed = worst_gate([outcome(a=Result.INCONCLUSIVE), outcome(a=Result.PASS, b=Result.PASS)])
    assert mixed is not None
    assert gate_for_verdict(mixed, arms, arms).result is Result.INCONCLUSIVE
