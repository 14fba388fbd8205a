from __future__ import annotations

import math
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from samples import request
from speclift.core.traffic import Rate, Request
from speclift.workload.arrivals import arrival_offsets

rates = st.floats(0.01, 1000)


def requests(count: int) -> list[Request]:
    return [request(f"p{i}") for i in range(count)]


def recorded(*times: float | None) -> list[Request]:
    return [request(f"p{i}", arrival_s=time) for i, time in enumerate(times)]


class TestEveryPlan:
    @given(rates, st.integers(0, 50), st.integers(), st.sampled_from(["poisson", "constant"]))
    def test_starts_at_zero_never_goes_back_and_has_one_time_per_request(
        self, per_s: float, count: int, seed: int, arrivals: str
    ) -> None:
        load = Rate(per_s=per_s, arrivals=arrivals)  # type: ignore[arg-type]
        offsets = arrival_offsets(load, requests(count), seed=seed)

        assert len(offsets) == count
        assert offsets[:1] in ((), (0.0,))
        assert all(earlier <= later for earlier, later in pairwise(offsets))
        assert offsets == arrival_offsets(load, requests(count), seed=seed)


class TestConstant:
    @given(rates, st.integers(1, 50))
    def test_gaps_are_one_over_the_rate(self, per_s: float, count: int) -> None:
        offsets = arrival_offsets(Rate(per_s=per_s, arrivals="constant"), requests(count), seed=0)

        assert offsets == pytest.approx([i / per_s for i in range(count)])


class TestPoisson:
    COUNT = 20_000

    @pytest.mark.parametrize(("per_s", "seed"), [(0.5, 1), (4.0, 2), (250.0, 3)])
    def test_gaps_have_the_mean_and_spread_of_exponentials(self, per_s: float, seed: int) -> None:
        offsets = arrival_offsets(Rate(per_s=per_s), requests(self.COUNT + 1), seed=seed)
        gaps = [(later - earlier) * per_s for earlier, later in pairwise(offsets)]

        mean = math.fsum(gaps) / self.COUNT
        variance = math.fsum((gap - mean) ** 2 for gap in gaps) / self.COUNT
        # Standard errors of mean and variance of n unit exponentials: 1/sqrt(n) and sqrt(8/n); 5 of them.
        assert mean == pytest.approx(1.0, abs=5 / math.sqrt(self.COUNT))
        assert variance == pytest.approx(1.0, abs=5 * math.sqrt(8 / self.COUNT))


class TestReplay:
    def test_keeps_the_order_of_the_requests_and_the_shape_of_the_recording(self) -> None:
        offsets = arrival_offsets(
            Rate(per_s=2.0, arrivals="replay"), recorded(1004.0, 1000.0, 1001.0), seed=0
        )

        # Two gaps over 4 s become two gaps at 2 per second, 1 s in all.
        assert offsets == pytest.approx((1.0, 0.0, 0.25))

    @given(rates, st.lists(st.floats(0, 1e6), min_size=2, max_size=30), st.floats(0, 1e6))
    def test_only_the_differences_between_times_matter(
        self, per_s: float, times: list[float], shift: float
    ) -> None:
        load = Rate(per_s=per_s, arrivals="replay")
        offsets = arrival_offsets(load, recorded(*times), seed=0)

        assert min(offsets) == 0.0
        order = sorted(range(len(times)), key=lambda i: times[i])
        assert all(offsets[a] <= offsets[b] for a, b in pairwise(order))
        if max(times) - min(times) > 1e-3:  # below, rounding of the shifted times is all there is
            assert max(offsets) == pytest.approx((len(times) - 1) / per_s)
            shifted = arrival_offsets(load, recorded(*(time + shift for time in times)), seed=0)
            assert shifted == pytest.approx(offsets, abs=1e-5 * max(offsets))
