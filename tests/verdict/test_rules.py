from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from simulated import ARM, cell, comparison, estimate, evidence
from speclift.core.arm import BASELINE, Arm
from speclift.core.goals import Goals, Slo
from speclift.core.results import (
    Acceptance,
    Comparison,
    Evidence,
    Level,
    Part,
    Percentiles,
    Reason,
    TailRatio,
)
from speclift.core.speculation import DraftModel
from speclift.core.traffic import Concurrency
from speclift.verdict import rules

SIXTEEN = Concurrency(streams=16)
SLO = Slo(metric="tpot", percentile="p99", limit_s=0.25)


def baseline_cell(**changes: Any) -> Any:
    return cell(arm=BASELINE, acceptance_rate=None, **changes)


def segment(low: float, value: float, high: float, **changes: Any) -> Comparison:
    return comparison(low, value, high, **{"part": Part.SEGMENT, "label": "chat", **changes})


class TestMinSpeedup:
    @pytest.mark.parametrize(
        ("low", "bar", "level"),
        [
            (1.30, 1.3, Level.PASS),
            (1.29, 1.3, Level.FAIL),
            (1.01, 1.0, Level.PASS),
            (1.00, 1.0, Level.FAIL),  # equal speed is no gain
            (0.95, 0.9, Level.FAIL),
            (1.10, 0.9, Level.PASS),
        ],
    )
    def test_the_lower_bound_reaches_the_bar_and_exceeds_one(
        self, low: float, bar: float, level: Level
    ) -> None:
        found = rules.min_speedup(evidence(overall=comparison(low, 1.5, 1.6)), Goals(min_speedup=bar))
        assert (found.rule, found.level) == ("min-speedup", level)

    def test_the_bound_is_the_one_that_holds_for_all_arms_together(self) -> None:
        narrow = comparison(1.31, 1.4, 1.5, simultaneous=estimate(1.4, 1.29, 1.51))
        assert rules.min_speedup(evidence(overall=narrow), Goals()).level is Level.FAIL

    def test_an_unknown_interval_is_called_so(self) -> None:
        unknown = comparison(0.0, 1.5, 1e304)
        assert "1.50x (interval unknown)" in rules.min_speedup(evidence(overall=unknown), Goals()).message


class TestNoPartLoses:
    @pytest.mark.parametrize(
        ("part", "level"),
        [
            (segment(0.969, 1.2, 1.5), Level.FAIL),
            (segment(0.970, 1.2, 1.5), Level.PASS),
            (segment(0.5, 1.2, 2.0, prompts=10), Level.FAIL),
            (segment(0.5, 1.2, 2.0, prompts=9), Level.PASS),
            (segment(0.5, 1.2, 2.0, prompts=2, part=Part.LOAD, label="c=16"), Level.FAIL),
            (segment(0.5, 1.2, 2.0, part=Part.TEMPERATURE, label="0.7"), Level.PASS),
        ],
        ids=["below the floor", "on it", "10 prompts", "9 prompts", "a load however thin", "a temperature"],
    )
    def test_loads_and_segments_of_ten_prompts_keep_the_floor(self, part: Comparison, level: Level) -> None:
        found = rules.no_part_loses(evidence(parts=(segment(1.2, 1.3, 1.4, label="copy"), part)))
        assert (found.rule, found.level) == ("no-part-loses", level)

    def test_says_which_segments_had_too_few_prompts_to_judge(self) -> None:
        thin = segment(0.5, 1.2, 2.0, prompts=9, label="chat")
        fine = segment(1.2, 1.3, 1.4, prompts=9, label="copy")
        found = rules.no_part_loses(evidence(parts=(thin, fine)))
        assert found.message.endswith("on every part with 10 prompts; too few to judge: chat")

    def test_uses_the_plain_interval_because_every_part_must_hold(self) -> None:
        part = segment(1.0, 1.2, 1.5, simultaneous=estimate(1.2, 0.5, 2.0))
        assert rules.no_part_loses(evidence(parts=(part,))).level is Level.PASS


class TestSlo:
    def kept(self, arm_p99: float | None, baseline_p99: float | None, **slo: Any) -> Reason:
        def spread(p99: float | None) -> Percentiles:
            return Percentiles(p50=0.1, p95=0.2, p99=p99)

        made = evidence(
            cells=(cell(tpot_s=spread(arm_p99)),),
            baseline_cells=(baseline_cell(tpot_s=spread(baseline_p99)),),
        )
        (found,) = rules.slo_kept(made, Goals(slos=(replace(SLO, **slo),)))
        return found

    @pytest.mark.parametrize(
        ("arm_p99", "baseline_p99", "level"),
        [
            (0.25, 0.20, Level.PASS),
            (0.26, 0.20, Level.FAIL),
            (0.26, 0.25, Level.FAIL),
            (0.26, 0.30, Level.WARN),
            (0.20, 0.30, Level.PASS),
            (None, 0.20, Level.FAIL),
            (0.20, None, Level.FAIL),
        ],
        ids=[
            "kept",
            "missed",
            "missed, baseline just kept it",
            "missed, also by the baseline",
            "won",
            "unknown",
            "baseline unknown",
        ],
    )
    def test_is_not_missed_where_the_baseline_meets_it(
        self, arm_p99: float | None, baseline_p99: float | None, level: Level
    ) -> None:
        found = self.kept(arm_p99, baseline_p99)
        assert (found.rule, found.level) == ("slo", level)

    @pytest.mark.parametrize(("percentile", "limit_s"), [("p50", 0.1), ("p95", 0.2)])
    def test_takes_the_percentile_asked_for(self, percentile: str, limit_s: float) -> None:
        assert self.kept(None, None, percentile=percentile, limit_s=limit_s).level is Level.PASS
        assert self.kept(None, None, percentile=percentile, limit_s=limit_s - 0.01).level is Level.WARN

    def test_every_load_is_asked_against_its_own_baseline(self) -> None:
        slow = Percentiles(p50=0.1, p95=0.2, p99=0.9)
        made = evidence(
            cells=(cell(), cell(load=SIXTEEN, tpot_s=slow)),
            baseline_cells=(baseline_cell(), baseline_cell(load=SIXTEEN, tpot_s=slow)),
        )
        goals = Goals(slos=(replace(SLO, limit_s=0.5),))
        assert [reason.level for reason in rules.slo_kept(made, goals)] == [Level.PASS, Level.WARN]


class TestTails:
    def tail(self, low: float, high: float) -> TailRatio:
        return TailRatio(
            arm=ARM.name, load=SIXTEEN, metric="ttft", statistic="P95", ratio=estimate(0.9, low, high)
        )

    @pytest.mark.parametrize(
        ("low", "high", "level"),
        [
            (0.7, 0.99, Level.FAIL),
            (0.85, 0.99, Level.FAIL),
            (0.8, 1.0, Level.PASS),
            (0.8, 1.5, Level.PASS),
            (0.79, 1.5, Level.WARN),
        ],
    )
    def test_shown_slower_fails_and_shown_within_the_tolerance_passes(
        self, low: float, high: float, level: Level
    ) -> None:
        found = rules.tail_not_slower(evidence(tails=(self.tail(0.8, 1.2), self.tail(low, high))), Goals())
        assert (found.rule, found.level) == ("tail", level)

    @pytest.mark.parametrize(
        ("value", "low", "high", "prompts_min", "needed"),
        [
            # Half as far from the value to the tolerance as to the bound: four times as many prompts.
            (1.0, 0.64, 1.5, 0, "about 144 requests"),
            (1.0, 0.64, 1.5, 200, "about 200 requests"),
            # Nearer to being shown slower than to being shown within the tolerance.
            (0.81, 0.7, 1.1, 0, "about 76 requests"),
            # Under the tolerance only that it is slower can be shown.
            (0.7, 0.4, 1.2, 0, "about 83 requests"),
            # Where the lower bound is unknown the upper one says how wide the interval is.
            (1.6, 0.0, 2.0, 200, "about 200 requests"),
            (0.999, 0.5, 1.5, 0, "about 350 requests"),
            (0.8, 0.3, 1.9, 0, "about 541 requests"),
            (0.9, 0.1, 1.9, 0, "more than 720 requests"),
        ],
    )
    def test_says_how_many_requests_would_settle_it(
        self, value: float, low: float, high: float, prompts_min: int, needed: str
    ) -> None:
        tail = replace(self.tail(0.9, 1.1), ratio=estimate(value, low, high), prompts_min=prompts_min)
        found = rules.tail_not_slower(evidence(tails=(tail,)), Goals())
        # Below the tolerance by the best estimate nothing ships.
        assert found.level is (Level.FAIL if value < Goals().tail_tolerance else Level.WARN)
        assert needed in found.message

    def test_the_least_sure_says_it_for_all(self) -> None:
        tails = (self.tail(0.79, 1.01), self.tail(0.5, 1.2))
        message = rules.tail_not_slower(evidence(tails=tails), Goals()).message
        assert message == rules.tail_not_slower(evidence(tails=tails[::-1]), Goals()).message
        assert message.index("[0.50") < message.index("[0.79")


class TestFailures:
    @pytest.mark.parametrize(
        ("failed", "before", "level"),
        [
            (0, 0, Level.PASS),
            (10, 0, Level.PASS),
            (11, 0, Level.FAIL),
            (30, 25, Level.PASS),
            (30, 15, Level.FAIL),
        ],
    )
    def test_more_than_one_in_a_hundred_more_than_the_baseline_fails(
        self, failed: int, before: int, level: Level
    ) -> None:
        made = evidence(cells=(cell(failed=failed),), baseline_cells=(baseline_cell(failed=before),))
        found = rules.failures_not_more(made)
        assert (found.rule, found.level) == ("failures", level)
        assert f"{failed} of 1000 requests failed, baseline {before} of 1000" in found.message

    def test_all_loads_count_together(self) -> None:
        made = evidence(
            cells=(cell(), cell(load=SIXTEEN, requests=10, failed=10)),
            baseline_cells=(baseline_cell(), baseline_cell(load=SIXTEEN, requests=10)),
        )
        assert rules.failures_not_more(made).level is Level.PASS  # 10 of 1010


def said_by(made: Evidence) -> dict[str, Reason]:
    return {reason.rule: reason for rule in rules.INFORMING for reason in rule(made)}


class TestWhereItPays:
    def test_sorts_parts_by_what_holds_for_all_of_them_together(self) -> None:
        parts = (
            segment(1.1, 1.4, 1.8, label="copy"),
            segment(1.01, 1.1, 1.2, label="chat", simultaneous=estimate(1.1, 0.97, 1.25)),
            segment(0.9, 1.0, 1.1, label="code"),
            segment(0.7, 0.8, 0.9, label="creative"),
            segment(0.6, 0.7, 0.8, part=Part.TEMPERATURE, label="1"),
        )
        found = said_by(evidence(parts=parts))["where-it-pays"]
        assert found.level is Level.INFO
        assert found.message == (
            "arm: faster on copy 1.40x; slower on creative 0.80x, temperature 1 0.70x; "
            "likely faster on chat 1.10x; no clear difference on code 1.00x "
            "(likely: significant alone, but not when all parts are tested together)"
        )


class TestBreakEven:
    @pytest.mark.parametrize(
        ("step_s", "points", "said"),
        [
            (0.098, 1, "breaks even at an accepted length of 1.00 at c=1"),
            (0.063, 0, "a step takes the time of 0.63 plain tokens, and none is that cheap"),
        ],
    )
    def test_no_step_is_cheaper_than_a_plain_one(self, step_s: float, points: int, said: str) -> None:
        spread = Percentiles(p50=step_s, p95=1.0, p99=None)
        length = estimate(1.0, 1.0, 1.0)
        cells = (
            cell(segment="chat", tpot_s=spread, accepted_length=length),
            baseline_cell(segment="chat"),
        )
        assert len(rules.break_evens(cells)) == points
        assert said in said_by(evidence(segment_cells=cells))["break-even"].message


class TestRulesOfThumb:
    @pytest.mark.parametrize(
        ("mean", "rule", "level", "source"),
        [
            (0.39, "acceptance-low", Level.WARN, "S3"),
            (0.45, "acceptance-low", Level.WARN, "S4"),
            (0.60, "acceptance-middling", Level.INFO, "S4"),
            (0.65, "acceptance-good", Level.INFO, "S4"),
        ],
    )
    def test_acceptance_bands_have_a_source(self, mean: float, rule: str, level: Level, source: str) -> None:
        rate = Acceptance(p10=mean, p50=mean, p90=mean, mean=mean, requests=9)
        found = said_by(evidence(cells=(cell(acceptance_rate=rate),)))[rule]
        assert (found.level, found.source) == (level, source)

    @pytest.mark.parametrize(("tokens", "fires"), [(49.0, True), (50.0, False), (None, False)])
    def test_short_outputs(self, tokens: float | None, fires: bool) -> None:
        assert ("short-outputs" in said_by(evidence(cells=(cell(output_tokens_mean=tokens),)))) is fires

    @pytest.mark.parametrize(("k", "fires"), [(2, True), (3, False), (7, False), (8, True)])
    def test_k_outside_the_usual(self, k: int, fires: bool) -> None:
        arm = Arm(name="draft", speculation=DraftModel(model="small", k=k))
        assert ("k-range" in said_by(evidence(arm=arm))) is fires

    @pytest.mark.parametrize(("value", "level"), [(1.3, Level.INFO), (1.29, Level.WARN)])
    def test_the_end_to_end_speedup_is_shown_against_its_own_bar(self, value: float, level: Level) -> None:
        judged_by = comparison(1.4, 1.5, 1.6, metric="tpot")
        found = said_by(evidence(overall=judged_by, by_metric=(comparison(1.2, value, 1.4),)))["e2e"]
        assert (found.level, found.source) == (level, "S3")


class TestAtTheEdges:
    def test_a_tail_that_cannot_be_compared_counts_the_requests_of_whole_loads(self) -> None:
        cells = (cell(requests=40), cell(requests=30, load=SIXTEEN), cell(requests=3, temperature=0.7))
        assert (
            "this study has 30 requests per load"
            in rules.tail_not_slower(evidence(cells=cells), Goals()).message
        )

    @pytest.mark.parametrize(
        ("mean", "tenth", "warns"),
        [(0.5, 0.3, True), (0.5, 0.5, False), (0.45, 0.3, False), (0.7, None, False)],
    )
    def test_a_low_tenth_is_worth_a_word_only_beside_a_mean_that_looks_good(
        self, mean: float, tenth: float | None, warns: bool
    ) -> None:
        rate = Acceptance(p10=tenth, p50=mean, p90=mean, mean=mean, requests=9)
        assert ("acceptance-p10" in said_by(evidence(cells=(cell(acceptance_rate=rate),)))) is warns

    @pytest.mark.parametrize(
        "changes",
        [
            pytest.param({"e2e_s": None}, id="no time to the end"),
            pytest.param({"ttft_s": None}, id="no time to the first token"),
            pytest.param({"e2e_s": Percentiles(p50=0.0, p95=None, p99=None)}, id="no time at all"),
        ],
    )
    def test_waiting_is_not_judged_where_it_is_unknown(self, changes: dict[str, Any]) -> None:
        waiting = replace(cell(ttft_s=Percentiles(p50=0.9, p95=None, p99=None)), **changes)
        assert "ttft-bound" not in said_by(evidence(cells=(waiting,)))

    @pytest.mark.parametrize(("ttft_s", "said"), [(3.0, "TTFT is 75% of the end-to-end time"), (2.0, None)])
    def test_waiting_is_a_share_of_the_whole_time(self, ttft_s: float, said: str | None) -> None:
        waiting = cell(
            ttft_s=Percentiles(p50=ttft_s, p95=None, p99=None), e2e_s=Percentiles(p50=4.0, p95=None, p99=None)
        )
        reasons = said_by(evidence(cells=(waiting,)))
        assert ("ttft-bound" in reasons) is (said is not None)
        assert said is None or reasons["ttft-bound"].message.startswith(said)

    @pytest.mark.parametrize("silent", ["arm", "baseline"])
    def test_a_segment_without_times_on_one_side_has_no_break_even(self, silent: str) -> None:
        cells = [cell(segment="copy"), baseline_cell(segment="copy")]
        cells[silent == "baseline"] = replace(cells[silent == "baseline"], tpot_s=None)
        assert "break-even" not in said_by(evidence(segment_cells=tuple(cells)))
