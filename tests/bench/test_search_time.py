"""Whether to search, and for how long, by what launches take."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from running import Cli, fake_flags
from speclift.bench.search_plan import CONFIRMED_LAUNCHES, SHORTEST_LAUNCHES, SearchTime
from speclift.bench.study_paths import launch_seen_s
from speclift.core.arm import ServerSettings
from speclift.core.engine_spec import EngineSpec
from speclift.studies.study import Study


def time_of(
    budget_s: float | None, *, launch_s: float = 90.0, gate_share: float = 0.12, is_quick: bool = False
) -> SearchTime:
    return SearchTime(budget_s=budget_s, gate_share=gate_share, launch_s=launch_s, is_quick=is_quick)


@pytest.mark.parametrize(
    ("budget_s", "launch_s", "drafters", "arms", "is_named", "searches"),
    [
        pytest.param(None, 90.0, 3, 20, True, True, id="without a budget"),
        pytest.param(360.0, 2.0, 3, 11, False, True, id="launches that take no time"),
        pytest.param(480.0, 90.0, 2, 14, False, True, id="eight minutes on a GPU, nothing named"),
        pytest.param(480.0, 90.0, 2, 14, True, True, id="eight minutes on a GPU, fourteen arms named"),
        pytest.param(480.0, 90.0, 1, 3, True, False, id="three arms of one method are measured as quickly"),
        pytest.param(480.0, 90.0, 3, 3, True, False, id="a method each: a search would launch them all"),
        pytest.param(300.0, 90.0, 2, 14, True, False, id="too little for four launches"),
        pytest.param(300.0, 55.0, 2, 14, True, True, id="enough for four that were seen to be quicker"),
        pytest.param(3600.0, 90.0, 2, 14, True, True, id="an hour"),
    ],
)
def test_the_quicker_course_that_fits_is_taken(
    budget_s: float | None, launch_s: float, drafters: int, arms: int, is_named: bool, searches: bool
) -> None:
    course = time_of(budget_s, launch_s=launch_s).course(drafters=drafters, arms=arms, is_named=is_named)
    assert course.searches is searches
    assert searches or course.why


@pytest.mark.parametrize("gate_share", [0.0, 0.12, 0.4])
@pytest.mark.parametrize("launch_s", [0.5, 10.0, 60.0, 90.0])
@pytest.mark.parametrize("budget_s", [300.0, 480.0, 3600.0])
def test_search_confirmation_and_gate_share_the_budget(
    gate_share: float, launch_s: float, budget_s: float
) -> None:
    """Whatever the gate takes, the search leaves time to launch what it found."""
    there_is = time_of(budget_s, launch_s=launch_s, gate_share=gate_share)
    if not there_is.course(drafters=2, arms=14, is_named=True).searches:
        return
    search_s, cells_s = there_is.search_s(drafters=2), there_is.cells_s(drafters=2)
    assert search_s is not None
    assert cells_s is not None
    assert search_s + CONFIRMED_LAUNCHES * launch_s <= (1 - gate_share) * budget_s + 1e-6
    assert 0 < cells_s <= search_s
    launching_s = SHORTEST_LAUNCHES * launch_s
    assert cells_s <= max(budget_s * (1 - gate_share) - launching_s, 0.1 * budget_s)


@pytest.mark.slow
def test_a_launch_takes_what_it_took_in_the_latest_study_beside(cli: Cli, tmp_path: Path) -> None:
    spec = EngineSpec(kind="fake", settings=ServerSettings(model="other"))
    assert launch_seen_s(tmp_path, spec) is None
    (tmp_path / "notes").mkdir()
    cli("measure", *fake_flags(), "--k", 2, "--requests", 1, "--launches", 1, "--study", "s")
    with Study.open(tmp_path / "s") as study:
        alike = study.engine
    seen_s = launch_seen_s(tmp_path, alike)
    assert seen_s is not None
    assert 0 < seen_s < 30
    assert launch_seen_s(tmp_path, spec) is None


@pytest.mark.alone
def test_a_search_with_the_whole_gate_ends_within_its_budget(cli: Cli) -> None:
    """Search, confirmation and full gate: what the gate needs is not spent on the search. Other budgets are above, in
    figures."""
    budget_s, begun_s = 30, time.monotonic()
    result = cli(
        *("decide", "--method", "ngram", "--k", "2,4,6,8", "--verify", "full", "--budget", f"{budget_s}s"),
        *("--segment", "chat", "--max-tokens", 24, "--json", "--study", "s"),
        *fake_flags("ttft_s=0.01", "tpot_s=0.002", fast=False),
    )
    assert result.code in {0, 3, 4, 5, 6}, result.stderr
    document = result.document
    assert document["speedup"] is not None
    assert (
        time.monotonic() - begun_s <= budget_s + 20.0
    )  # the report is written after, on a machine that may be busy
    assert document["tuning"]["spent_s"] <= 0.5 * 0.6 * budget_s
