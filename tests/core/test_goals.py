from __future__ import annotations

import math

import pytest

from speclift.core.errors import UsageError
from speclift.core.flags import read_duration_s
from speclift.core.goals import Goals, Slo, read_slos


class TestDurations:
    @pytest.mark.parametrize(
        ("text", "seconds"),
        [
            ("90", 90),
            ("90s", 90),
            ("250ms", 0.25),
            ("10m", 600),
            ("1.5h", 5400),
            (".5s", 0.5),
            ("1e2ms", 0.1),
        ],
    )
    def test_take_a_unit_or_mean_seconds(self, text: str, seconds: float) -> None:
        assert read_duration_s(text, flag="--budget") == pytest.approx(seconds)

    @pytest.mark.parametrize(
        "text", ["", "s", "-1s", "0", "0ms", "nan", "inf", "infs", "5 minutes", "1,5s", "5M"]
    )
    def test_anything_else_is_refused_with_the_flag_and_examples(self, text: str) -> None:
        with pytest.raises(UsageError) as caught:
            read_duration_s(text, flag="--budget")

        assert str(caught.value) == f"--budget takes a duration such as 50ms, 10s or 5m, saw {text!r}"


class TestSlos:
    def test_are_read_in_order(self) -> None:
        assert read_slos("ttft_p99=1s, tpot_p95=50ms,e2e_p50=2m", "--slo") == (
            Slo(metric="ttft", percentile="p99", limit_s=1.0),
            Slo(metric="tpot", percentile="p95", limit_s=0.05),
            Slo(metric="e2e", percentile="p50", limit_s=120.0),
        )

    @pytest.mark.parametrize(
        ("text", "message"),
        [
            ("ttft_p99", "--slo takes name=limit, saw 'ttft_p99'"),
            ("ttft_p90=1s", "unknown SLO 'ttft_p90'. Did you mean 'ttft_p9"),
            ("tftt_p99=1s", "unknown SLO 'tftt_p99'. Did you mean 'ttft_p99'?"),
            ("p99=1s", "unknown SLO 'p99'"),
            ("ttft_p99=fast", "--slo takes a duration such as 50ms, 10s or 5m, saw 'fast'"),
            ("ttft_p99=", "--slo takes a duration"),
        ],
    )
    def test_a_wrong_one_says_what_was_seen(self, text: str, message: str) -> None:
        with pytest.raises(UsageError) as caught:
            read_slos(f"tpot_p50=1s,{text}", "--slo")

        assert message in str(caught.value)


class TestGoals:
    @pytest.mark.parametrize("bar", [0.0, -1.0, 1e-320, 1e30, math.nan, math.inf])
    def test_the_bar_is_one_that_somebody_may_mean(self, bar: float) -> None:
        with pytest.raises(UsageError, match="--min-speedup takes"):
            Goals(min_speedup=bar)
