"""Known truth on two versions: which of acceptance and step cost moved, on designs of all kinds."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from samples import record
from simulated import ARM, LOADS, ONE_STREAM, constant, drawn, study_places
from speclift.core.results import Moved
from speclift.core.traffic import Rate
from speclift.statistics.pairs import ALL_DISTINCT
from speclift.statistics.upgrade import VersionStudy, upgrade_of
from speclift.testing.simulated_study import ArmTruth, StudyTruth

LENGTH = {0.6: 63 / 19, 0.4: 63 / 25}  # by acceptance of 4 drafted, in whole tokens of 63


def version(
    name: str,
    *,
    acceptance: float = 0.6,
    step_cost: float = 2.0,
    seed: int = 1,
    truth: StudyTruth | None = None,
    **design: Any,
) -> VersionStudy:
    arm = ArmTruth(
        speedup=constant(LENGTH[acceptance] / step_cost),
        prompt_sd=0.02,
        drafted_per_step=4,
        acceptance=acceptance,
    )
    truth = replace(truth or StudyTruth(launch_sd=0.005, residual_sd=0.03), arms={ARM.name: arm})
    places = study_places(**{"loads": LOADS, "prompts": 24, **design})
    return VersionStudy(
        version=name,
        records=drawn(places, truth, seed=seed),
        prompt_of=ALL_DISTINCT,
        by_temperature=len(design.get("temperatures", (None,))) > 1,
    )


@pytest.mark.parametrize(
    ("after", "moved"),
    [
        ({}, ()),
        ({"acceptance": 0.4}, (Moved.ACCEPTANCE,)),
        ({"step_cost": 2.4}, (Moved.STEP_COST,)),
        ({"acceptance": 0.4, "step_cost": 1.6}, (Moved.ACCEPTANCE, Moved.STEP_COST)),
        # The two cancel: the speedup is as before, and both moved.
        (
            {"acceptance": 0.4, "step_cost": 2.0 * LENGTH[0.4] / LENGTH[0.6]},
            (Moved.ACCEPTANCE, Moved.STEP_COST),
        ),
    ],
)
@pytest.mark.parametrize(
    "design",
    [
        pytest.param({}, id="three loads"),
        pytest.param({"loads": ONE_STREAM, "rounds": 4}, id="one load"),
        pytest.param({"loads": (Rate(per_s=1.0), Rate(per_s=4.0))}, id="rates"),
        pytest.param({"temperatures": (0.0, 1.0), "loads": ONE_STREAM}, id="temperatures"),
        pytest.param({"segments": ("chat",)}, id="one segment"),
    ],
)
def test_what_moved_is_found_and_nothing_else(
    after: dict[str, Any], moved: tuple[Moved, ...], design: dict[str, Any]
) -> None:
    before, new = version("1", **design), version("2", seed=2, **after, **design)

    found = upgrade_of(ARM.name, before, new)

    assert found is not None
    assert found.moved == moved
    assert found.accepted_length is not None
    assert found.step_cost is not None
    acceptance, cost = after.get("acceptance", 0.6), after.get("step_cost", 2.0)
    assert found.accepted_length.value == pytest.approx(LENGTH[acceptance] / LENGTH[0.6], rel=0.01)
    assert found.step_cost.value == pytest.approx(cost / 2.0, rel=0.04)
    assert found.step_cost.low is not None
    assert found.step_cost.high is not None
    assert found.step_cost.low < cost / 2.0 < found.step_cost.high
    # Nothing is lost in the split.
    assert found.speedup.value == pytest.approx(found.accepted_length.value / found.step_cost.value)
    assert found.after.speedup / found.before.speedup == pytest.approx(found.speedup.value, rel=0.01)


class TestDesigns:
    def test_unlike_numbers_of_launches_compare(self) -> None:
        found = upgrade_of(ARM.name, version("1", rounds=5), version("2", rounds=3, step_cost=2.4))

        assert found is not None
        assert found.moved == (Moved.STEP_COST,)

    def test_of_loads_and_prompts_what_both_have_counts(self) -> None:
        found = upgrade_of(
            ARM.name, version("1", prompts=30), version("2", loads=LOADS[:1], prompts=12, step_cost=2.4)
        )

        assert found is not None
        assert found.step_cost is not None
        assert found.step_cost.n == 12
        assert found.moved == (Moved.STEP_COST,)

    @pytest.mark.parametrize("rounds", [1, 2])
    def test_few_launches_are_taken_to_differ_as_launches_do(self, rounds: int) -> None:
        """A tenth more for a step may be the start of the server."""
        found = upgrade_of(ARM.name, version("1", rounds=rounds), version("2", rounds=rounds, step_cost=2.1))

        assert found is not None
        assert found.moved == ()
        assert found.step_cost is not None
        assert found.step_cost.high is not None
        assert found.step_cost.low is not None
        assert found.step_cost.high / found.step_cost.low > 1.2

    def test_one_prompt_shows_nothing(self) -> None:
        found = upgrade_of(ARM.name, version("1", prompts=1), version("2", prompts=1, acceptance=0.4))

        assert found is not None
        assert found.moved == ()

    def test_studies_that_are_the_same_have_not_moved(self) -> None:
        found = upgrade_of(ARM.name, version("1"), version("2"))

        assert found is not None
        assert found.moved == ()
        assert found.speedup.value == pytest.approx(1.0)

    def test_an_engine_that_counts_no_drafts_tells_the_speedup_alone(self) -> None:
        truth = StudyTruth(launch_sd=0.005, residual_sd=0.03, reports_drafts=False)

        found = upgrade_of(ARM.name, version("1", truth=truth), version("2", truth=truth, step_cost=2.4))

        assert found is not None
        assert (found.accepted_length, found.step_cost, found.moved) == (None, None, ())
        assert found.speedup.high is not None
        assert found.speedup.high < 1

    def test_nothing_in_common_is_none(self) -> None:
        before = version("1")
        others = VersionStudy(
            version="2", records=[record(request_id="q")], prompt_of=ALL_DISTINCT, by_temperature=False
        )

        assert upgrade_of(ARM.name, before, others) is None


@pytest.mark.slow
def test_two_studies_of_one_truth_are_seldom_told_apart() -> None:
    """By chance one part in twenty would be allowed to; starts differ by 2 %, prompts' gains by 2 %."""
    truth = StudyTruth(launch_sd=0.02, residual_sd=0.06)
    told = 0
    for seed in range(60):
        before = version("1", truth=truth, seed=2 * seed, prompts=12, loads=LOADS[:2])
        after = version("2", truth=truth, seed=2 * seed + 1, prompts=12, loads=LOADS[:2])
        found = upgrade_of(ARM.name, before, after)
        told += found is not None and bool(found.moved)

    assert told <= 8  # of 60 at 5 %: more than eight have a chance under 1 in 200
