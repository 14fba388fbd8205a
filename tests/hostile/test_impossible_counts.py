"""Numbers that cannot be true: named, not used, and nothing ships on the word of a server that reports them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from liar import TOKENS, Says, Truth, liar

from running import Cli, records_of
from samples import NGRAM, launch, new_study, place, record
from speclift.core.arm import BASELINE
from speclift.core.engine_totals import counted_between
from speclift.core.records import NO_TEXT_FOR_IT, AnswerRead, Counters, Outcome, Phase, Record, Refused, Step
from speclift.core.results import Finding, Level
from speclift.engines.metrics import parse_counters
from speclift.http import counts as possible
from speclift.http.answer import read_stream
from speclift.http.counts import Limits
from speclift.statistics.answer_checks import check_answers
from speclift.statistics.checks import check_records
from speclift.studies.study import Study

SIZE = ("--segment", "chat", "--requests", 12, "--max-tokens", TOKENS, "--temperature", 0, "--verify", "off")
NO_COUNTS = ("12", True, -1, 2.5, float("nan"), float("inf"), 1 << 24 | 1, 10**400, [3], {"n": 3})


AT_MOST_64 = Limits(tokens_max=64)


def answer(text: str, *, limits: Limits = AT_MOST_64, finish: str = "length", **beside: Any) -> AnswerRead:
    """A chunk of text, then one with the finish reason and what else the server says."""
    chunks = (
        {"choices": [{"delta": {"content": text}, "finish_reason": None}]},
        {"choices": [{"delta": {}, "finish_reason": finish}], **beside},
    )
    return read_stream([(1.0, _event(chunk)) for chunk in chunks], limits=limits)


def _event(payload: dict[str, Any]) -> bytes:
    return f"data: {json.dumps(payload)}\n\n".encode()


def usage(tokens: Any, prompt: Any = 5) -> dict[str, Any]:
    return {"prompt_tokens": prompt, "completion_tokens": tokens}


def vllm(drafted: Any, accepted: Any, **more: Any) -> dict[str, Any]:
    return {
        "speculative_decoding": {"num_draft_tokens": drafted, "num_accepted_draft_tokens": accepted, **more}
    }


def rules(result: AnswerRead) -> list[str]:
    return [refused.rule for refused in result.refused]


class TestTokensOfAnAnswer:
    @pytest.mark.parametrize("value", NO_COUNTS, ids=[str(value)[:20] for value in NO_COUNTS])
    def test_what_is_no_count_is_refused_with_what_was_said(self, value: Any) -> None:
        result = answer("some words", usage=usage(value, value))
        assert (result.outcome, result.output_tokens, result.prompt_tokens) == (Outcome.OK, None, None)
        assert rules(result) == [possible.NOT_A_COUNT] * 2
        assert [refused.said.split()[0] for refused in result.refused] == [
            "prompt_tokens",
            "completion_tokens",
        ]

    def test_what_was_not_said_is_unknown_and_not_refused(self) -> None:
        for beside in ({}, {"usage": None}, {"usage": usage(None, None)}, {"timings": {"predicted_n": None}}):
            result = answer("some words", **beside)
            assert (result.output_tokens, result.refused) == (None, ())

    def test_more_than_were_asked_for_are_impossible(self) -> None:
        result = answer("x" * 99, limits=Limits(tokens_max=8), usage=usage(9))
        assert (result.output_tokens, rules(result)) == (None, [possible.OVER_MAX_TOKENS])
        assert result.refused[0].said == "9 output tokens, but max_tokens was 8"
        assert answer("x" * 99, limits=Limits(tokens_max=8), usage=usage(8)).output_tokens == 8

    @pytest.mark.parametrize(
        ("text", "tokens"),
        [
            ("", 1),
            ("", 9),
            ("ok", 11),
            ("\U0001f6a2" * 4, 16),
            ("\ud800", 3),
            ("é" * 10, 20),
            ("=" * 512, 1),
        ],
        ids=[
            *("the end alone", "thinking marks and the end", "silent tokens around a word"),
            *("a token for each byte of an emoji", "a lone surrogate", "accents", "one very long token"),
        ],
    )
    def test_odd_but_possible_counts_are_taken(self, text: str, tokens: int) -> None:
        result = answer(text, usage=usage(tokens))
        assert (result.output_tokens, result.refused) == (tokens, ())

    def test_reasoning_is_text_that_tokens_may_be_for(self) -> None:
        thought = {"choices": [{"delta": {"reasoning_content": "h" * 40}, "finish_reason": "stop"}]}
        reads = [(1.0, _event({**thought, "usage": usage(40)}))]
        assert read_stream(reads, limits=Limits(tokens_max=64)).output_tokens == 40

    def test_counts_of_timings_are_held_to_the_same(self) -> None:
        result = answer("some words", timings={"predicted_n": 65})
        assert (result.output_tokens, rules(result)) == (None, [possible.OVER_MAX_TOKENS])


class TestDrafts:
    @pytest.mark.parametrize(
        ("metrics", "rule"),
        [
            (vllm(4, 5), possible.ACCEPTED_OVER_DRAFTED),
            (vllm(8, 4, per_step_drafted=[4, 4], per_step_accepted=[5, 0]), possible.ACCEPTED_OVER_DRAFTED),
            (vllm(4, 2, per_step_drafted=[1 << 24], per_step_accepted=[2]), possible.CONTRADICTION),
            (vllm(8, 2, per_step_drafted=[4, 4], per_step_accepted=[2, 1]), possible.CONTRADICTION),
            (vllm(9 * 5 + 1, 0), possible.DRAFTED_OVER_K),
            (vllm(40, 14), possible.ACCEPTED_OVER_TOKENS),
            (vllm("4", 1), possible.NOT_A_COUNT),
            (vllm(4, -1), possible.NOT_A_COUNT),
            (vllm(float("inf"), 1), possible.NOT_A_COUNT),
        ],
    )
    def test_of_vllm_that_cannot_be_are_refused(self, metrics: dict[str, Any], rule: str) -> None:
        limits = Limits(tokens_max=64, draft_max=5)
        result = answer("some words", limits=limits, usage=usage(8), metrics=metrics)
        assert (result.drafted, result.accepted, result.steps) == (None, None, None)
        assert rules(result) == [rule]
        assert result.output_tokens == 8

    def test_a_draft_that_the_end_cut_off_is_possible(self) -> None:
        limits = Limits(tokens_max=8, draft_max=5)
        result = answer("some words", limits=limits, usage=usage(8), metrics=vllm(15, 11))
        assert (result.drafted, result.accepted, result.refused) == (15, 11, ())

    @pytest.mark.parametrize(
        "counts",
        [
            [(1, 0, 0), (2, 4, 1), (3, 2, 1)],
            [(1, 0, 0), (2, 4, 5)],
            [(3, 4, 1), (2, 4, 1)],
            [(1, 0, 0), (1 << 24, 0, 0), (2, 0, 0)],
        ],
        ids=["drafted falls", "more accepted than drafted", "tokens fall", "a leap and back"],
    )
    def test_running_counts_that_contradict_themselves_are_refused(
        self, counts: Sequence[tuple[int, int, int]]
    ) -> None:
        names = ("predicted_n", "draft_n", "draft_n_accepted")
        chunks: list[dict[str, Any]] = [
            {
                "choices": [{"delta": {"content": "word "}, "finish_reason": None}],
                "timings": dict(zip(names, each, strict=True)),
            }
            for each in counts
        ]
        chunks[-1]["choices"][0]["finish_reason"] = "length"
        result = read_stream([(1.0, _event(chunk)) for chunk in chunks], limits=Limits(tokens_max=64))
        assert rules(result) == [possible.CONTRADICTION]
        assert (result.drafted, result.accepted, result.steps) == (None, None, None)

    def test_a_server_that_says_it_in_every_chunk_has_said_it_once(self) -> None:
        chunk = {"choices": [{"delta": {"content": "a"}}], "timings": {"predicted_n": "many"}}
        result = read_stream([(1.0, _event(chunk))] * 50)
        assert rules(result) == [possible.NOT_A_COUNT]


DRAFTED = "vllm:spec_decode_num_draft_tokens_total"
ACCEPTED = "vllm:spec_decode_num_accepted_tokens_total"
AT = "vllm:spec_decode_num_accepted_tokens_per_pos_total"


class TestTotalsOfAnEngine:
    @pytest.mark.parametrize(
        ("before", "after", "said"),
        [
            (f"{DRAFTED} 9", f"{DRAFTED} 4", f"{DRAFTED} fell from 9 to 4"),
            (f"{DRAFTED} 9", f"{DRAFTED} NaN", f"{DRAFTED} is nan"),
            (f"{DRAFTED} -Inf", f"{DRAFTED} 3", f"{DRAFTED} is -inf"),
            (f"{DRAFTED} 0", f"{DRAFTED} 1e400", f"{DRAFTED} is inf"),
            (f"{DRAFTED} 0", f"{DRAFTED} 1e300", f"{DRAFTED} is 1e+300"),
            (f"{DRAFTED} -4", f"{DRAFTED} -2", f"{DRAFTED} is -4"),
            (
                f"{DRAFTED} 0\n{ACCEPTED} 0",
                f"{DRAFTED} 5\n{ACCEPTED} 6",
                f"{ACCEPTED} rose by 6, {DRAFTED} by 5",
            ),
            (
                f'{AT}{{position="0"}} 0\n{AT}{{position="1"}} 0',
                f'{AT}{{position="0"}} 3\n{AT}{{position="1"}} 4',
                "more drafts accepted at a later position: 3, 4",
            ),
        ],
        ids=["fell", "NaN", "-Inf", "too large to read", "too large", "negative", "accepted", "by position"],
    )
    def test_what_cannot_be_is_refused_and_left_out(self, before: str, after: str, said: str) -> None:
        counted, refused = counted_between(parse_counters(before), parse_counters(f"{after}\nother 3\n"))
        assert counted.values == {}
        assert refused[0].said == said

    def test_honest_totals_are_counted_and_gauges_may_fall(self) -> None:
        before, after = f"{DRAFTED} 3\n{ACCEPTED} 2\nrunning 5", f"{DRAFTED} 7\n{ACCEPTED} 6\nrunning 1"
        counted, refused = counted_between(parse_counters(before), parse_counters(after))
        assert counted == Counters(values={DRAFTED: 4.0, ACCEPTED: 4.0, "running": -4.0})
        assert refused == ()


def refusing(*refused: Refused, arm: str = NGRAM.name) -> Record:
    return replace(record(arm=arm), output_tokens=None, refused=refused)


class TestFindings:
    def test_one_impossible_number_fails_the_study_as_a_whole(self) -> None:
        lie = Refused(rule=possible.OVER_MAX_TOKENS, said="9 output tokens, but max_tokens was 8")
        (finding,) = check_answers([record(), *[record(arm=NGRAM.name)] * 99, refusing(lie)])
        assert (finding.check, finding.level, finding.arm) == ("impossible-counts", Level.FAIL, None)
        assert f"{NGRAM.name}: 1 of 100 answers" in finding.message
        assert lie.said in finding.message

    @pytest.mark.parametrize(
        ("honest_count", "level", "arm"), [(99, Level.WARN, NGRAM.name), (9, Level.FAIL, None)]
    )
    def test_tokens_without_text_fail_it_where_they_are_a_habit(
        self, honest_count: int, level: Level, arm: str | None
    ) -> None:
        lie = Refused(rule=NO_TEXT_FOR_IT, said="12 output tokens in 2 bytes of text")
        (finding,) = check_answers([*[record(arm=NGRAM.name)] * honest_count, refusing(lie)])
        assert (finding.check, finding.level, finding.arm) == ("unseen-tokens", level, arm)

    def test_what_was_said_in_a_warm_up_was_said(self) -> None:
        lie = Refused(rule=possible.NOT_A_COUNT, said="completion_tokens 'many'")
        warm = replace(refusing(lie), place=place(arm=NGRAM.name, phase=Phase.WARMUP))
        assert [finding.check for finding in check_answers([record(), warm])] == ["impossible-counts"]

    def test_a_study_keeps_what_was_refused(self, tmp_path: Path) -> None:
        lie = Refused(rule=possible.NOT_A_COUNT, said="completion_tokens 'many \ud800'")
        with new_study(tmp_path / "s") as study:
            study.add_launch(launch())
            study.add_record(refusing(lie, arm=BASELINE))
        with Study.open(tmp_path / "s") as study:
            assert study.records()[0].refused == (lie,)


# From the command line


def claims(tokens: Any, **beside: Any) -> Says:
    return lambda _number, _tokens: {"usage": usage(tokens), **beside}


LIES: dict[str, tuple[Says, str]] = {
    "16,777,216 tokens": (claims(1 << 24), "16777216 output tokens, but max_tokens was 16"),
    "one token too many": (claims(TOKENS + 1), "17 output tokens, but max_tokens was 16"),
    "accepted above drafted": (claims(TOKENS, metrics=vllm(1, 10_000)), "10000 accepted of 1 draft tokens"),
    "endless": (claims(float("inf")), "completion_tokens inf"),
    "negative": (claims(-5), "completion_tokens -5"),
}


def decided(cli: Cli, baseline: Truth, spec: Truth) -> dict[str, Any]:
    with liar(baseline) as plain, liar(spec) as fast:
        result = cli(
            *("decide", "--engine", "attach", "--baseline-url", plain, "--spec-url", fast, *SIZE),
            *("--json", "--study", "s"),
        )
    assert "Traceback" not in result.stderr
    assert result.code in (0, 3, 4, 5), result.stderr
    return result.document


@pytest.mark.alone
def test_the_same_server_ships_on_the_truth(cli: Cli) -> None:
    document = decided(cli, Truth(), Truth(tpot_s=0.0005))
    assert document["verdict"] == "ship"
    assert document["speedup"]["value"] > 1.3


@pytest.mark.slow
@pytest.mark.parametrize(
    ("lie", "said"),
    [
        pytest.param(*LIES[name], id=name, marks=() if name == "one token too many" else pytest.mark.slow)
        for name in LIES
    ],
)
def test_a_server_that_reports_what_cannot_be_never_ships(
    lie: Says, said: str, cli: Cli, tmp_path: Path
) -> None:
    document = decided(cli, Truth(), Truth(tpot_s=0.0005, at_the_end=lie))
    assert document["verdict"] == "inconclusive"
    finding = next(each for each in document["findings"] if each["check"] == "impossible-counts")
    assert finding["level"] == "fail"
    assert said in finding["message"]
    own = [each for each in records_of(tmp_path / "s") if each.place.arm == "spec"]
    assert all(each.refused for each in own)
    assert all(each.accepted is None for each in own)


@pytest.mark.slow
def test_a_baseline_that_lies_is_no_better(cli: Cli) -> None:
    document = decided(cli, Truth(at_the_end=claims(1 << 24)), Truth(tpot_s=0.0005))
    assert document["verdict"] == "inconclusive"
    assert any("baseline: " in each["message"] for each in document["findings"] if each["level"] == "fail")


@pytest.mark.slow
def test_totals_that_fall_are_a_finding_of_the_study(cli: Cli) -> None:
    def falling(reading: int) -> str:
        return f"{DRAFTED} {1000 - reading}\n{ACCEPTED} {500 - reading}\n"

    document = decided(cli, Truth(), Truth(tpot_s=0.0005, metrics=falling))
    assert document["verdict"] == "inconclusive"
    (finding,) = [each for each in document["findings"] if each["check"] == "impossible-totals"]
    assert finding["level"] == "fail"
    assert "fell from" in finding["message"]
    assert {cell["acceptance_rate"] for cell in document["cells"]} == {None}


def finding_names(findings: Sequence[Finding]) -> set[str]:
    return {finding.check for finding in findings}


def test_honest_answers_have_no_such_finding() -> None:
    steps = (Step(drafted=4, accepted=2),)
    honest = replace(record(), drafted=4, accepted=2, steps=steps)
    assert not {"impossible-counts", "unseen-tokens"} & finding_names(check_records([honest]))
