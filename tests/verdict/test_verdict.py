"""design.md's Semantics, row by row: the first match wins."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from simulated import (
    ARM,
    DRAFTING,
    LOADS,
    ONE_STREAM,
    OTHER,
    QUIET,
    by_segment,
    cell,
    comparison,
    constant,
    drawn,
    estimate,
    evidence,
    judged,
    quiet_truth,
    study_places,
    verdict_on,
)
from speclift.core.arm import BASELINE
from speclift.core.goals import Goals, Slo
from speclift.core.results import (
    Acceptance,
    Completeness,
    Conditions,
    Decision,
    Finding,
    Level,
    Part,
    Percentiles,
    Reason,
    TailRatio,
    Verdict,
)
from speclift.core.traffic import Concurrency
from speclift.verdict.verdict import ADVICE_MAX

TPOT_P99 = Slo(metric="tpot", percentile="p99", limit_s=0.25)


def named(verdict: Verdict, rule: str) -> list[Reason]:
    return [reason for reason in verdict.reasons if reason.rule == rule]


def segment(low: float, value: float, high: float, label: str = "chat", **changes: Any) -> Any:
    return comparison(low, value, high, part=Part.SEGMENT, label=label, **changes)


def slow_tail() -> TailRatio:
    return TailRatio(
        arm=ARM.name,
        load=Concurrency(streams=1),
        metric="ttft",
        statistic="P95",
        ratio=estimate(0.8, 0.7, 0.9),
    )


class TestShip:
    def test_the_winner_is_the_arm_with_the_best_lower_bound(self) -> None:
        wide = evidence(overall=comparison(1.35, 1.9, 2.5))
        sure = evidence(arm=OTHER, overall=comparison(1.45, 1.5, 1.55, arm=OTHER.name))
        assert verdict_on(wide, sure).winner is OTHER

    def test_an_arm_that_fails_a_rule_cannot_win(self) -> None:
        faster = evidence(overall=comparison(1.9, 2.0, 2.1), tails=(slow_tail(),))
        sure = evidence(arm=OTHER, overall=comparison(1.4, 1.5, 1.6, arm=OTHER.name))
        verdict = verdict_on(faster, sure)
        assert (verdict.decision, verdict.winner) == (Decision.SHIP, OTHER)

    @pytest.mark.parametrize(
        ("changes", "goals", "rule"),
        [
            ({"overall": comparison(1.29, 1.5, 1.7)}, Goals(), "min-speedup"),
            ({"overall": None}, Goals(), "min-speedup"),
            ({"parts": (segment(0.96, 1.5, 2.0),)}, Goals(), "no-part-loses"),
            ({"parts": (comparison(0.9, 1.0, 1.4, part=Part.LOAD, label="c=16"),)}, Goals(), "no-part-loses"),
            (
                {"cells": (cell(tpot_s=Percentiles(p50=0.1, p95=0.2, p99=0.3)),),
                 "baseline_cells": (cell(arm=BASELINE, tpot_s=Percentiles(p50=0.1, p95=0.2, p99=0.2)),)},
                Goals(slos=(TPOT_P99,)),
                "slo",
            ),
            (
                {"cells": (cell(tpot_s=Percentiles(p50=0.1, p95=0.2, p99=None), requests=99),)},
                Goals(slos=(TPOT_P99,)),
                "slo",
            ),
            ({"tails": (slow_tail(),)}, Goals(), "tail"),
            ({"cells": (cell(failed=20),)}, Goals(), "failures"),
            (
                {"cells": (cell(acceptance_rate=None, accepted_length=estimate(1.0, 1.0, 1.0).interval),)},
                Goals(),
                "no-drafts",
            ),
        ],
        ids=["bar", "no pair", "segment", "load", "SLO missed", "SLO unknown", "P99", "failures", "no drafts"],
    )  # fmt: skip
    def test_each_rule_alone_blocks_it(self, changes: dict[str, Any], goals: Goals, rule: str) -> None:
        assert verdict_on(evidence(), goals=replace(goals, slos=())).decision is Decision.SHIP
        verdict = verdict_on(evidence(**changes), goals=goals)
        assert verdict.decision is Decision.INCONCLUSIVE
        failed = {reason.rule for reason in verdict.reasons if reason.level is Level.FAIL}
        assert rule in failed
        assert verdict.winner is None

    @pytest.mark.parametrize(
        "changes",
        [
            {"parts": (segment(0.5, 1.5, 2.0, prompts=9),)},
            {"cells": (cell(failed=10),)},
            {"tails": ()},
        ],
        ids=["a segment of 9 prompts", "1 % failed", "P99 not comparable"],
    )
    def test_what_cannot_veto_does_not(self, changes: dict[str, Any]) -> None:
        assert verdict_on(evidence(**changes)).decision is Decision.SHIP

    def test_rules_of_thumb_never_change_it(self) -> None:
        bleak = Acceptance(p10=0.05, p50=0.1, p90=0.2, mean=0.1, requests=9)
        waiting = Percentiles(p50=0.9, p95=0.9, p99=0.9)
        made = evidence(
            cells=(cell(acceptance_rate=bleak, output_tokens_mean=5.0, ttft_s=waiting),),
            overall=comparison(1.4, 1.5, 1.6, metric="tpot"),
            by_metric=(comparison(0.9, 1.0, 1.1),),
        )
        verdict = verdict_on(made)
        assert verdict.decision is Decision.SHIP
        fired = {"acceptance-low", "short-outputs", "ttft-bound", "e2e"}
        assert fired <= {reason.rule for reason in verdict.reasons}
        assert not any(reason.level is Level.FAIL for reason in verdict.reasons)

    def test_and_never_make_it(self) -> None:
        rosy = Acceptance(p10=0.9, p50=0.95, p90=1.0, mean=0.95, requests=9)
        made = evidence(cells=(cell(acceptance_rate=rosy),), overall=comparison(0.9, 1.0, 1.1))
        assert verdict_on(made).decision is Decision.DO_NOT_SHIP


class TestATailThatLosesOnAllTraffic:
    """Slow requests are spread over all of it, or all in one segment."""

    def decided(self, **slow: float) -> Verdict:
        truth = quiet_truth(
            constant(2.0),
            slow_share=lambda segment, _load, _temperature: slow.get(segment, slow.get("any", 0.0)),
            slow_times=12.0,
        )
        return judged(drawn(study_places(prompts=150, rounds=2), truth))

    def test_is_not_dodged_by_a_part_with_too_few_requests_to_show_it(self) -> None:
        assert self.decided(any=0.06).decision is Decision.INCONCLUSIVE

    def test_leaves_the_part_that_is_seen_to_be_without_it(self) -> None:
        verdict = self.decided(chat=0.2)
        assert verdict.decision is Decision.SHIP_ON_CONDITIONS
        assert verdict.conditions == Conditions(segments=("code", "copy"))


class TestShipOnConditions:
    def test_the_evidence_is_that_of_the_winners_scope(self) -> None:
        verdict = judged(drawn(study_places(), quiet_truth(by_segment(copy=1.5, chat=0.9, code=0.9))))
        assert verdict.conditions == Conditions(segments=("copy",))
        assert verdict.evidence is not None
        assert verdict.evidence.overall is not None
        assert verdict.evidence.overall.speedup.value == pytest.approx(1.5, rel=0.02)
        assert verdict.evidence.traffic_share == pytest.approx(1 / 3)

    def test_max_temperature_is_inclusive(self) -> None:
        truth = quiet_truth(lambda _s, _l, temperature: 1.6 if (temperature or 0.0) <= 0.7 else 0.7)
        records = drawn(study_places(temperatures=(0.0, 0.7, 1.0)), truth)
        verdict = judged(records, by_temperature=True)
        assert verdict.conditions == Conditions(max_temperature=0.7)
        assert verdict.evidence is not None
        assert verdict.evidence.traffic_share == pytest.approx(2 / 3)

    def test_conditions_are_anded(self) -> None:
        truth = quiet_truth(
            lambda segment, load, _t: 1.6 if segment == "copy" and load == ONE_STREAM[0] else 0.8
        )
        verdict = judged(drawn(study_places(loads=LOADS), truth))
        assert verdict.conditions == Conditions(segments=("copy",), max_concurrency=1)

    def test_an_slo_missed_only_at_high_load_becomes_a_ceiling(self) -> None:
        records = [
            replace(
                r, first_token_s=(r.first_token_s or 0.0) + 0.2, last_token_s=(r.last_token_s or 0.0) + 0.2
            )
            if r.place.arm == ARM.name and r.place.load == LOADS[2]
            else r
            for r in drawn(study_places(prompts=10, loads=LOADS), quiet_truth(constant(2.5)))
        ]
        # Under 100 requests over all loads: the tail cannot speak, the limit alone does.
        assert judged(records).decision is Decision.SHIP
        goals = Goals(slos=(Slo(metric="ttft", percentile="p95", limit_s=0.1),))
        verdict = judged(records, goals=goals)
        assert (verdict.decision, verdict.conditions) == (
            Decision.SHIP_ON_CONDITIONS,
            Conditions(max_concurrency=4),
        )

    def test_the_arm_with_the_larger_share_wins(self) -> None:
        arms = {
            ARM.name: replace(DRAFTING, speedup=by_segment(copy=2.0, chat=0.8, code=0.8)),
            OTHER.name: replace(DRAFTING, speedup=by_segment(copy=1.5, chat=1.5, code=0.8)),
        }
        records = drawn(study_places(arms=(ARM, OTHER)), replace(QUIET, arms=arms))
        verdict = judged(records, arms=(ARM, OTHER))
        assert verdict.winner == OTHER
        assert verdict.conditions is not None
        assert set(verdict.conditions.segments or ()) == {"copy", "chat"}

    def test_an_arm_that_ships_everywhere_beats_one_that_ships_faster_on_a_part(self) -> None:
        arms = {
            ARM.name: replace(DRAFTING, speedup=by_segment(copy=3.0, chat=0.8, code=0.8)),
            OTHER.name: replace(DRAFTING, speedup=constant(1.4)),
        }
        records = drawn(study_places(arms=(ARM, OTHER)), replace(QUIET, arms=arms))
        verdict = judged(records, arms=(ARM, OTHER))
        assert (verdict.decision, verdict.winner) == (Decision.SHIP, OTHER)


class TestDoNotShip:
    def test_every_upper_bound_lies_under_the_bar(self) -> None:
        made = evidence(overall=comparison(0.9, 1.0, 1.1), parts=(segment(0.9, 1.1, 1.29),))
        verdict = verdict_on(made)
        assert (verdict.decision, verdict.winner) == (Decision.DO_NOT_SHIP, None)
        assert verdict.evidence is not None

    @pytest.mark.parametrize(
        "made",
        [
            evidence(overall=comparison(0.9, 1.1, 1.3)),
            evidence(overall=None),
            evidence(
                overall=comparison(0.9, 1.0, 1.1),
                completeness=Completeness(asked=100, used=60, metric_asked="tpot", metric="tpot"),
            ),
        ],
        ids=[
            "overall reaches it",
            "nothing was compared",
            "two fifths of the pairs are left out",
        ],
    )
    def test_one_that_reaches_it_is_enough_to_leave_it_open(self, made: Any) -> None:
        """What is left out may have gained."""
        assert verdict_on(made).decision is Decision.INCONCLUSIVE

    @pytest.mark.parametrize(
        ("without_steps", "decision"),
        [(0, Decision.INCONCLUSIVE), (37, Decision.INCONCLUSIVE), (38, Decision.DO_NOT_SHIP)],
    )
    def test_answers_of_one_token_left_out_cannot_have_gained(
        self, without_steps: int, decision: Decision
    ) -> None:
        left_out = Completeness(
            asked=100, used=61, metric_asked="tpot", metric="tpot", without_steps=without_steps
        )
        for overall in (comparison(0.9, 1.0, 1.1), comparison(1.9, 2.0, 2.1)):
            verdict = verdict_on(evidence(overall=overall, completeness=left_out))
            if overall.speedup.value < 1.5:
                assert verdict.decision is decision
            else:  # nor do they show a gain
                assert verdict.decision is Decision.INCONCLUSIVE

    @pytest.mark.parametrize(
        "part",
        [segment(0.9, 1.1, 1.3), comparison(0.1, 1.0, 9.0, part=Part.TEMPERATURE, label="1")],
        ids=["a segment reaches it", "a temperature may reach it"],
    )
    def test_a_part_that_may_reach_it_is_open_and_leaves_the_verdict(self, part: Any) -> None:
        verdict = verdict_on(evidence(overall=comparison(0.9, 1.0, 1.1), parts=(part,)))
        assert verdict.decision is Decision.DO_NOT_SHIP
        assert [still_open.comparison for still_open in verdict.open] == [part]
        assert named(verdict, "open")[0].message == verdict.open[0].settle

    def test_it_takes_every_arm(self) -> None:
        hopeless = evidence(overall=comparison(0.9, 1.0, 1.1))
        open_still = evidence(arm=OTHER, overall=comparison(0.8, 0.95, 1.31, arm=OTHER.name))
        assert verdict_on(hopeless, open_still).decision is Decision.INCONCLUSIVE
        assert verdict_on(hopeless, replace(hopeless, arm=OTHER)).decision is Decision.DO_NOT_SHIP


class TestInconclusive:
    def test_says_how_many_more_prompts_or_launches_would_settle_it(self) -> None:
        made = evidence(overall=comparison(1.2, 1.35, 1.5, prompts_needed=90, launches_needed=7))
        assert [reason.message for reason in named(verdict_on(made), "more-data")] == [
            "arm overall: measure about 90 prompts (now 36) or about 7 launches (now 3) "
            "to decide whether it reaches 1.3x"
        ]

    def test_or_how_many_of_both_where_neither_alone_would(self) -> None:
        (reason,) = named(verdict_on(evidence(overall=comparison(1.2, 1.35, 1.5))), "more-data")
        # ln(1.5/1.2)/2 = 0.1116 against ln(1.35/1.3) = 0.0377: 8.74 times as much.
        assert "about 315 prompts and 27 launches to decide" in reason.message

    @pytest.mark.parametrize(
        "overall",
        [comparison(1.2, 1.301, 1.5), comparison(1.2, 1.3, 1.5)],
        ids=["close", "on it"],
    )
    def test_or_that_no_sample_would(self, overall: Any) -> None:
        (reason,) = named(verdict_on(evidence(overall=overall)), "more-data")
        assert "too close to 1.3x" in reason.message

    def test_a_part_that_straddles_the_bar_is_named(self) -> None:
        parts = (segment(1.1, 1.35, 1.6, prompts_needed=40),)
        made = evidence(overall=comparison(0.9, 1.0, 1.1), parts=parts)
        (reason,) = named(verdict_on(made), "open")
        assert reason.message.startswith("arm on chat: measure about 40 prompts")

    def test_a_part_too_uncertain_to_clear_its_floor_is_named(self) -> None:
        parts = (segment(0.90, 1.1, 1.25, prompts=12), segment(1.5, 1.6, 1.7, label="copy"))
        (reason,) = named(verdict_on(evidence(parts=parts)), "more-data")
        # (ln(1.25/0.9)/2 / ln(1.1/0.97))^2 = 1.71 times 12.
        assert (
            "arm on chat: measure about 21 prompts (now 12) to decide whether it stays above 0.97x"
            in reason.message
        )

    def test_an_arm_that_drafts_nothing_is_not_worth_more_prompts(self) -> None:
        idle = cell(acceptance_rate=None, accepted_length=estimate(1.0, 1.0, 1.0).interval)
        made = evidence(overall=comparison(0.98, 1.0, 1.02, prompts_needed=9999), cells=(idle,))
        (reason,) = named(verdict_on(made, goals=Goals(min_speedup=1.0)), "more-data")
        assert "no-drafts" in reason.message

    def test_the_arm_that_keeps_it_open_is_named_though_another_looks_better(self) -> None:
        hopeless = evidence(overall=comparison(1.1, 1.2, 1.29))
        wide = evidence(arm=OTHER, overall=comparison(0.7, 1.0, 1.4, arm=OTHER.name, prompts_needed=80))
        (reason,) = named(verdict_on(hopeless, wide), "more-data")
        assert reason.message.startswith("other overall: measure about 80 prompts")

    @pytest.mark.parametrize(
        ("finding", "decision"),
        [
            (Finding(check="client-lag", level=Level.FAIL, message="late"), Decision.INCONCLUSIVE),
            (Finding(check="drift", level=Level.WARN, message="drifts"), Decision.SHIP),
            (Finding(check="arm-failed", level=Level.FAIL, message="died", arm="x"), Decision.SHIP),
        ],
        ids=["the whole study", "a warning", "another arm"],
    )
    def test_a_failed_check_of_the_whole_study_blocks_every_verdict(
        self, finding: Finding, decision: Decision
    ) -> None:
        verdict = verdict_on(evidence(), findings=(finding,))
        assert verdict.decision is decision
        assert bool(named(verdict, finding.check)) is (decision is Decision.INCONCLUSIVE)


def test_where_the_other_arms_pay_is_said_too() -> None:
    parts = (segment(1.1, 1.2, 1.3), segment(0.7, 0.8, 0.9, label="poem"))
    verdict = verdict_on(evidence(parts=parts), replace(evidence(parts=parts), arm=OTHER))
    said = [reason.message for reason in named(verdict, "where-it-pays")]
    assert said == [f"{arm.name}: faster on chat 1.20x; slower on poem 0.80x" for arm in (ARM, OTHER)]


def test_what_is_open_beyond_the_first_few_is_counted() -> None:
    parts = tuple(
        comparison(1.0, 1.2, 1.5, part=Part.SEGMENT, label=f"segment-{number}")
        for number in range(ADVICE_MAX + 2)
    )
    verdict = verdict_on(evidence(overall=comparison(0.9, 1.0, 1.1), parts=parts))
    assert verdict.decision is Decision.DO_NOT_SHIP
    messages = [reason.message for reason in named(verdict, "open")]
    assert len(messages) == ADVICE_MAX + 1
    assert messages[-1].startswith("2 more parts are undecided")
