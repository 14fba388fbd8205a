"""Which texts the gate shows side by side."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest

from samples import NGRAM
from speclift.core.traffic import Request
from speclift.lossless.answers import Answer, Divergence, Kind, compare
from speclift.lossless.gate import EdgeCheck, Example, Greedy, Result, Sampled
from speclift.lossless.greedy import control_of, divergences
from speclift.lossless.judge import EXAMPLES_MAX, JudgedEdge, ServerAnswers, judge_parts

CASES = [f"p{number}" for number in range(8)]
PROMPTS = {case: Request(id=case, prompt=f"prompt of {case}") for case in CASES}


def answer(case: str, text: str = "a b", *, error: str = "") -> Answer:
    return Answer(case=case, text=text, finish_reason="length", tokens=2, error=error)


def parted_at(*parted: str) -> list[Divergence]:
    pairs = [compare(answer(case), answer(case, "a c" if case in parted else "a b")) for case in CASES]
    return divergences({"alone": pairs}, control_of({}, ()))


def edge_of(case: str) -> JudgedEdge:
    divergence = Divergence(
        case=case,
        kind=Kind.TOKEN,
        position=1,
        margin=3.0,
        is_at_least=False,
        rank=2,
        reference="b",
        answer="c",
    )
    return JudgedEdge(EdgeCheck(name="stop", result=Result.FAIL, message="differs"), divergence)


def shown(
    *,
    greedy: Sequence[Divergence] = (),
    sampled: Result = Result.SKIPPED,
    edges: tuple[JudgedEdge, ...] = (),
    told: dict[str, list[Answer]] | None = None,
    baseline: dict[str, list[Answer]] | None = None,
) -> tuple[Example, ...]:
    plain = {"alone": [answer(case) for case in CASES]}
    return judge_parts(
        NGRAM,
        greedy=Greedy(),
        divergences=greedy,
        sampled=Sampled(result=sampled),
        edges=edges,
        told=ServerAnswers(answers=told if told is not None else plain),
        baseline=ServerAnswers(answers=baseline if baseline is not None else plain),
        prompts=PROMPTS,
    ).examples


def test_where_nothing_parted_nothing_is_shown() -> None:
    assert shown(greedy=parted_at(), sampled=Result.PASS) == ()
    assert shown() == ()


@pytest.mark.parametrize(
    "texts",
    [
        ("a c",),
        ("a b", "a c"),
        ("a c", "a b"),
        ("a c", "a d"),
        ("a b", "a c", "a d"),
        ("a b", "a c", "a b"),
    ],
)
def test_of_several_ways_of_asking_the_first_that_differs_is_shown(texts: tuple[str, ...]) -> None:
    told = {f"way {number}": [answer("p0", text)] for number, text in enumerate(texts)}
    (example,) = shown(greedy=parted_at("p0"), told=told)
    assert (example.baseline, example.answer) == ("a b", "a c")
    assert example.prompt == "prompt of p0"


def test_a_case_that_the_baseline_never_answered_shows_the_arms_first_answer() -> None:
    told = {"alone": [answer("p0", "a c")], "batched": [answer("p0", "a d")]}
    (example,) = shown(greedy=parted_at("p0"), told=told, baseline={})
    assert (example.baseline, example.answer) == ("", "a c")


def test_greedy_ones_come_first_then_edges_then_sampled_texts() -> None:
    told = {"sampled": [answer("p3", "x y"), answer("p4", error="down"), answer("p5", "x y")]}
    silent = JudgedEdge(EdgeCheck(name="seed", result=Result.PASS, message="kept"))
    found = shown(greedy=parted_at("p1"), sampled=Result.FAIL, edges=(silent, edge_of("p2")), told=told)
    assert [(each.case, each.margin) for each in found] == [
        ("p1", None),
        ("p2", 3.0),
        ("p3", None),
        ("p5", None),
    ]
    assert "sampled" in found[-1].why


@pytest.mark.parametrize("result", [Result.PASS, Result.INCONCLUSIVE])
def test_sampled_texts_that_did_not_fail_are_not_shown(result: Result) -> None:
    assert shown(sampled=result, told={"sampled": [answer("p3", "x y")]}) == ()


@pytest.mark.parametrize("parted", range(len(CASES) + 1))
def test_there_are_never_more_than_a_handful(parted: int) -> None:
    told = {"sampled": [answer(case, "x y") for case in CASES]}
    found = shown(greedy=parted_at(*CASES[:parted]), sampled=Result.FAIL, told=told)
    assert len(found) == EXAMPLES_MAX
    assert sum("sampled" not in each.why for each in found) == min(parted, EXAMPLES_MAX)


def test_an_answer_cut_off_is_said_to_end_early() -> None:
    cut = Answer(case="p0", text="a", finish_reason="", tokens=1)
    parted = divergences({"alone": [compare(answer("p0"), cut)]}, control_of({}, ()))
    (example,) = shown(greedy=parted, told={"alone": [cut]})
    assert example.margin == math.inf
    assert "ends early" in example.why
