"""Which of a study's baseline times a running server is drawn beside."""

from __future__ import annotations

import pytest

from speclift.core.arm import baseline_arm
from speclift.core.judged import LoadBreakEven, StudyBreakEvens
from speclift.core.results import Percentiles
from speclift.core.traffic import Concurrency
from speclift.verbs.watch import baseline_at


def load(streams: int, ttft_s: float | None) -> LoadBreakEven:
    times = None if ttft_s is None else Percentiles(p50=ttft_s, p95=2 * ttft_s, p99=None)
    return LoadBreakEven(
        load=Concurrency(streams=streams),
        running=float(streams),
        accepted_length=1.5,
        measured=None,
        baseline_ttft_s=times,
        baseline_tpot_s=None,
    )


def study(*loads: LoadBreakEven) -> StudyBreakEvens:
    return StudyBreakEvens(arm=baseline_arm(), engine="fake", engine_version="1", loads=loads, crossover=None)


@pytest.mark.parametrize(
    ("running", "ttft_s"), [(None, 0.1), (0.0, 0.1), (3.0, 0.1), (7.0, 0.3), (8.0, 0.3), (500.0, 0.3)]
)
def test_those_of_the_nearest_load(running: float | None, ttft_s: float) -> None:
    found = baseline_at(study(load(1, 0.1), load(8, 0.3)), running)
    assert (found.ttft_p50_s, found.ttft_p95_s) == (ttft_s, 2 * ttft_s)
    assert found.load.endswith("requests under way")


def test_what_was_not_measured_is_not_drawn() -> None:
    found = baseline_at(study(load(4, None)), 4.0)
    assert (found.ttft_p50_s, found.tpot_p95_s) == (None, None)
