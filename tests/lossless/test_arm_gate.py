"""One arm's answer put together: which part fails it, which only finds something, and how that is said."""

from __future__ import annotations

import pytest

from samples import NGRAM
from speclift.lossless.answers import Answer
from speclift.lossless.gate import EdgeCheck, Greedy, Result, Sampled
from speclift.lossless.judge import (
    JudgedEdge,
    ServerAnswers,
    acceptance_findings,
    garbled_finding,
    judge_parts,
)

PLAIN = "The river runs past the town."
LOOP = "I am sorry, I cannot help with that. " * 12


def told(way: str = "alone", *, looping: int = 0, answers: int = 40) -> ServerAnswers:
    texts = [LOOP] * looping + [PLAIN] * (answers - looping)
    return ServerAnswers(
        answers={
            way: [
                Answer(case=f"p{number}", text=text, finish_reason="stop", tokens=9)
                for number, text in enumerate(texts)
            ]
        }
    )


def edge(result: Result) -> EdgeCheck:
    return EdgeCheck(name="stop string", result=result, message="said")


def result_of(*edges: EdgeCheck, looping: int = 0) -> tuple[Result, list[str]]:
    gate, _ = judge_parts(
        NGRAM,
        greedy=Greedy(),
        divergences=(),
        sampled=Sampled(),
        edges=[JudgedEdge(check) for check in edges],
        told=told(looping=looping),
        baseline=told(),
        prompts={},
    )
    return gate.result, [finding.check for finding in gate.findings]


def test_an_edge_that_fails_fails_the_arm_and_one_that_is_refused_is_found() -> None:
    assert result_of(edge(Result.FAIL)) == (Result.FAIL, [])
    assert result_of(edge(Result.PASS)) == (Result.INCONCLUSIVE, [])
    result, checks = result_of(edge(Result.INCONCLUSIVE))
    assert (result, len(checks)) == (Result.INCONCLUSIVE, 1)


def test_text_that_loops_fails_the_arm() -> None:
    assert result_of(looping=20) == (Result.FAIL, ["looping-text"])


def test_loops_are_held_against_the_baselines_in_the_same_way_of_asking_or_all_where_it_was_not_asked_so() -> (
    None
):
    beside = ServerAnswers(answers={**told("alone").answers, **told("batched", looping=20).answers})
    assert garbled_finding("arm", told("batched", looping=20), beside) is None
    assert garbled_finding("arm", told("alone", looping=20), beside) is not None
    assert garbled_finding("arm", told("streamed", looping=20), told("alone")) is not None
    assert garbled_finding("arm", told(looping=20), ServerAnswers()) is None


def test_a_baseline_that_loops_as_often_is_no_fault_of_the_arm() -> None:
    """39 of 40 on both sides: only what does not loop is left to compare."""
    assert garbled_finding("arm", told(looping=39), told(looping=39)) is None
    assert garbled_finding("arm", told(looping=39), told(looping=30)) is None


def test_the_more_ways_of_asking_the_surer_each_must_be() -> None:
    """Ten of 40 against none has p = 0.0005: a fault where there is one way of asking, none where there are ten."""
    once = told("alone", looping=10)
    many = ServerAnswers(
        answers={**once.answers, **{f"way-{number}": told().of("alone") for number in range(9)}}
    )
    assert garbled_finding("arm", once, told()) is not None
    assert garbled_finding("arm", many, told()) is None


@pytest.mark.parametrize(
    ("way", "drafted", "accepted", "said"),
    [
        pytest.param("alone", 100, 0, "almost none of 100 draft tokens were accepted (0.0%)", id="none"),
        pytest.param("alone", 100, 2, "almost none of 100 draft tokens were accepted (2.0%)", id="few"),
        pytest.param("alone", 100, 3, None, id="more than few"),
        pytest.param("alone", 49, 0, None, id="too few drafts to tell"),
        pytest.param("alone", 100, 100, None, id="all at temperature 0"),
        pytest.param(
            "sampled", 50, 50, "all of 50 draft tokens were accepted (100.0%)", id="all while sampling"
        ),
        pytest.param("sampled", 100, 99, None, id="nearly all while sampling"),
    ],
)
def test_acceptance_of_nothing_or_everything_is_odd(
    way: str, drafted: int, accepted: int, said: str | None
) -> None:
    answers = [
        Answer(case="p", text="a", finish_reason="stop", tokens=1, drafted=drafted, accepted=accepted),
        Answer(case="q", text="a", finish_reason="stop", tokens=1),
    ]
    messages = [
        finding.message for finding in acceptance_findings("arm", ServerAnswers(answers={way: answers}))
    ]
    assert len(messages) == (said is not None)
    assert said is None or said in messages[0]
