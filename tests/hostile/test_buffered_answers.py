"""Answers that came in one burst: they have no time per token, and the finding says how many and what to do."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from liar import TOKENS, Truth, liar

from running import Cli, records_of
from samples import NGRAM, record
from speclift.core.records import Phase, Record
from speclift.core.traffic import Concurrency
from speclift.statistics.bursts import BURST_TOKENS_MIN, mark_bursts
from speclift.statistics.cells import percentiles

SIZE = ("--segment", "chat", "--requests", 15, "--max-tokens", TOKENS, "--temperature", 0, "--verify", "off")


def answer(span_s: float, *, tokens: int = 64, accepted: int | None = None, **place: Any) -> Record:
    """Its tokens came within this span."""
    first_s = 100.2
    drafted = None if accepted is None else 2 * accepted
    return replace(
        record(**place),
        first_token_s=first_s,
        last_token_s=first_s + span_s,
        output_tokens=tokens,
        drafted=drafted,
        accepted=accepted,
    )


def steady(count: int, **place: Any) -> list[Record]:
    return [answer(0.63, **place) for _ in range(count)]


class TestOneAnswer:
    @pytest.mark.parametrize("tokens", [2, 3, 64])
    def test_of_no_span_at_all_has_no_time_per_token_rather_than_the_best_there_is(self, tokens: int) -> None:
        assert answer(0.0, tokens=tokens).tpot_s is None


class TestMarks:
    @pytest.mark.parametrize(
        ("burst", "why"),
        [
            (answer(0.0), "nothing between first and last"),
            (answer(0.0003), "a buffer that empties over loopback"),
            (answer(0.010), "a buffer that empties over a network, beside answers of 630 ms"),
        ],
        ids=lambda value: value if isinstance(value, str) else "",
    )
    def test_an_answer_far_below_the_others(self, burst: Record, why: str) -> None:
        marked = mark_bursts([*steady(9), burst])
        assert [each.is_in_one_burst for each in marked] == [False] * 9 + [True], why
        assert marked[-1].tpot_s is None

    @pytest.mark.parametrize(
        ("legitimate", "why"),
        [
            (answer(0.0, tokens=BURST_TOKENS_MIN - 1), "so few tokens that they may be one step"),
            (answer(0.0131), "drafts are not told, and 48 of 49 tokens may be drafted"),
            (answer(0.02, accepted=61), "two steps that took their time"),
            (answer(0.005, load=Concurrency(streams=8)), "alone at its load"),
        ],
        ids=lambda value: value if isinstance(value, str) else "",
    )
    def test_fast_for_a_reason_is_no_burst(self, legitimate: Record, why: str) -> None:
        assert not mark_bursts([*steady(9), legitimate])[-1].is_in_one_burst, why

    def test_drafts_that_were_accepted_do_not_hide_a_burst(self) -> None:
        assert mark_bursts([*steady(9), answer(0.002, accepted=40)])[-1].is_in_one_burst

    def test_an_arm_of_nothing_but_bursts_is_told_by_the_other(self) -> None:
        held = [answer(0.010, arm=NGRAM.name) for _ in range(9)]
        assert all(each.is_in_one_burst for each in mark_bursts([*steady(9), *held])[9:])

    def test_percentiles_are_of_what_was_streamed(self) -> None:
        found = percentiles(mark_bursts([*steady(6), *[answer(0.0)] * 4]), "tpot")
        assert found is not None
        assert found.p50 == pytest.approx(0.01)


@pytest.mark.alone
def test_a_server_behind_a_buffer_is_told_about_and_its_bursts_have_no_time_per_token(
    cli: Cli, tmp_path: Path
) -> None:
    held = Truth(tpot_s=0.004, is_held_back=lambda number: number % 5 in (0, 2))
    with liar(Truth(tpot_s=0.006)) as plain, liar(held) as fast:
        result = cli(
            *("decide", "--fixed", "--engine", "attach", "--baseline-url", plain, "--spec-url", fast, *SIZE),
            *("--json", "--study", "s"),
        )
    findings = {
        each["arm"]: each for each in result.document["findings"] if each["check"] == "buffered-answers"
    }
    assert set(findings) == {"spec"}
    assert findings["spec"]["level"] == "warn"
    measured = [r for r in records_of(tmp_path / "s") if r.place.phase is Phase.MEASURED]
    bursts = [r for r in mark_bursts(measured) if r.is_in_one_burst]
    assert len(bursts) == 6
    assert "6 of 15 answers" in findings["spec"]["message"]
    names = ("arm", "segment", "temperature")
    (cell,) = [c for c in result.document["cells"] if [c[name] for name in names] == ["spec", "all", None]]
    assert cell["tpot_s"]["p50"] > 0.003
