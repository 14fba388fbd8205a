"""What keeps a fast arm from shipping: too few prompts, pairs left out, answers that are loops."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from simulated import evidence
from speclift.core.results import Completeness, Level, Looping
from speclift.verdict import rules


class TestDistinctPrompts:
    @pytest.mark.parametrize(("prompts", "levels"), [(7, [Level.FAIL]), (8, [])])
    def test_fewer_than_eight_never_ship(self, prompts: int, levels: list[Level]) -> None:
        found = rules.enough_prompts(evidence(prompts=prompts))
        assert [reason.level for reason in found] == levels


class TestCompleteness:
    def found(self, **changes: Any) -> list[tuple[str, Level]]:
        whole = Completeness(asked=100, used=100, metric_asked="tpot", metric="tpot")
        made = evidence(completeness=replace(whole, **changes))
        return [(reason.rule, reason.level) for reason in rules.pairs_complete(made)]

    @pytest.mark.parametrize(
        ("asked", "used", "expected"),
        [
            (100, 100, []),
            (100, 97, [("left-out", Level.INFO)]),
            (100, 96, [("left-out", Level.FAIL)]),
            (24, 23, [("left-out", Level.INFO)]),
            (24, 22, [("left-out", Level.FAIL)]),
        ],
    )
    def test_what_is_left_out_is_counted_and_too_much_of_it_fails(
        self, asked: int, used: int, expected: list[tuple[str, Level]]
    ) -> None:
        assert self.found(asked=asked, used=used) == expected

    def test_another_metric_than_the_one_asked_for_is_said(self) -> None:
        assert self.found(metric="e2e") == [("metric", Level.WARN)]


class TestLoops:
    def test_a_segment_of_loops_ships_nowhere(self) -> None:
        made = evidence(degenerate=(Looping(segment="code-editing", looping=88, answers=168),))
        (found,) = rules.answers_are_real(made)
        assert found.level is Level.FAIL
        assert "88 of 168 answers in code-editing" in found.message
