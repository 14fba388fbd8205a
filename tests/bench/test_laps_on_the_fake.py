"""Studies in laps on real processes: they stop when they are settled, and go on as they would have."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from running import Cli, fake_flags, hosted, measured_places, planned_places, records_of
from speclift.bench.course import lap_rounds
from speclift.core.arm import Arm
from speclift.core.records import Phase
from speclift.engines.fake.kind import Fake
from speclift.engines.process import LaunchedServer
from speclift.studies.study import Study
from speclift.verbs.study_data import interim_check

# Drafts that are always right and cost next to nothing, and drafts that cost as much as they save.
PAYS = fake_flags("acceptance=1", "ttft_s=0.002", "tpot_s=0.002", fast=False)
NEVER_PAYS = fake_flags("acceptance=0.5", "step_cost=0.3", "ttft_s=0.002", "tpot_s=0.002", fast=False)
SHAPE = ("--max-tokens", 24, "--verify", "off", "--json", "--study", "s")
TWO_SEGMENTS = ("--segment", "chat", "--segment", "summarise")

pytestmark = pytest.mark.slow


def sent(study: Path) -> int:
    return sum(record.place.phase is Phase.MEASURED for record in records_of(study))


def everything(study: Path) -> int:
    with Study.open(study) as opened:
        plan = opened.plan
    return 2 * plan.rounds * len(plan.loads) * len(plan.items)


def test_what_pays_ships_on_two_launches_and_a_part_of_the_requests(cli: Cli, tmp_path: Path) -> None:
    result = cli("decide", *TWO_SEGMENTS, *PAYS, *SHAPE)
    study = tmp_path / "s"
    assert result.document["verdict"] == "ship"
    assert result.document["speedup"]["launches"] >= 2
    assert sent(study) < everything(study) / 2
    (said,) = [f for f in result.document["findings"] if f["check"] == "measured-less"]
    assert said["arm"] == "ngram-k4"
    assert set(measured_places(records_of(study))) == planned_places(study)


def test_within_a_budget_the_second_launch_does_not_wait_until_there_is_no_time_for_it(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a GPU, where starting takes longer than a lap."""
    launch = Fake.launch

    async def slowly(self: Fake, arm: Arm, *, log: Path) -> LaunchedServer:
        await asyncio.sleep(2.0)
        return await launch(self, arm, log=log)

    monkeypatch.setattr(Fake, "launch", slowly)
    few = (*TWO_SEGMENTS, "--requests", 40, "--launches", 2, "--budget", "60s")
    result = cli("decide", *few, *PAYS, *SHAPE)
    assert result.document["speedup"]["launches"] == 2
    with Study.open(tmp_path / "s") as study:
        assert lap_rounds(study)[:2] == [0, 1]


def test_what_cannot_pay_is_not_measured_on(cli: Cli, tmp_path: Path) -> None:
    result = cli("decide", *TWO_SEGMENTS, *NEVER_PAYS, *SHAPE)
    assert result.document["verdict"] == "do-not-ship"
    assert sent(tmp_path / "s") < everything(tmp_path / "s") / 2


def test_the_same_records_give_the_same_looks_and_verdict_whatever_their_order(
    cli: Cli, tmp_path: Path
) -> None:
    cli("decide", *TWO_SEGMENTS, *PAYS, *SHAPE)
    with Study.open(tmp_path / "s") as study:
        rounds = lap_rounds(study)
        before = [interim_check(study, number + 1) for number in range(len(rounds))]
        again = [interim_check(study, number + 1) for number in reversed(range(len(rounds)))]
        assert before == again[::-1]
        assert before[-1].is_settled
        assert not any(look.is_settled for look in before[:-1])


def test_servers_that_are_there_are_looked_at_on_their_one_launch(cli: Cli, tmp_path: Path) -> None:
    with (
        hosted("tpot_s=0.002", "ttft_s=0.002", "k=0") as plain,
        hosted("tpot_s=0.002", "ttft_s=0.002", "acceptance=1", "k=4") as drafting,
    ):
        addresses = ("--engine", "attach", "--baseline-url", plain, "--spec-url", drafting)
        result = cli("decide", *TWO_SEGMENTS, *addresses, *SHAPE)
    assert result.document["verdict"] == "ship"
    assert result.document["speedup"]["launches"] == 1
    assert "single-launch" in {finding["check"] for finding in result.document["findings"]}
    with Study.open(tmp_path / "s") as study:
        assert set(lap_rounds(study)) == {0}
    assert sent(tmp_path / "s") < everything(tmp_path / "s")
