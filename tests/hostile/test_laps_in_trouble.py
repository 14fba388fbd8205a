"""Studies in laps whose engines die, and whose users are impatient."""

from __future__ import annotations

import signal
import subprocess
from contextlib import suppress
from pathlib import Path

import pytest

from processes import eventually
from running import Cli, fake_flags, finish, measured_places, planned_places, records_of, speclift, start
from speclift.bench.course import lap_rounds
from speclift.studies.study import Study, is_study
from speclift.verbs.study_data import interim_check

SHAPE = ("--segment", "chat", "--segment", "summarise", "--max-tokens", 24, "--verify", "off", "--study", "s")
PAYS = fake_flags("acceptance=1", "ttft_s=0.002", "tpot_s=0.003", fast=False)
RESUME = ("decide", "--resume", "--study", "s", "--verify", "off", "--json")
VERDICTS = {0, 3, 4, 5}

pytestmark = pytest.mark.slow


def laps_begun(study: Path) -> int:
    if not is_study(study):
        return 0
    with Study.open(study) as opened:
        return len(lap_rounds(opened))


@pytest.mark.parametrize("laps", [1, 2])
def test_ctrl_c_in_a_lap_and_again_while_resuming_ends_as_one_run_would(laps: int, tmp_path: Path) -> None:
    study = tmp_path / "s"
    arguments: tuple[object, ...] = ("decide", *SHAPE, *PAYS, "--json")
    for _ in range(2):
        with start(arguments, cwd=tmp_path) as process:
            eventually(lambda: process.poll() is not None or laps_begun(study) >= laps, what="a lap")
            with suppress(subprocess.TimeoutExpired):
                process.wait(0.3)
            if process.poll() is None:
                process.send_signal(signal.SIGINT)
            finish(process)
        arguments = RESUME
    result = speclift(*RESUME, cwd=tmp_path)
    assert result.code in VERDICTS, result.stderr
    places = measured_places(records_of(study))
    assert set(places) == planned_places(study)
    assert {place for place, times in places.items() if times > 1} == set()


def test_an_arm_that_failed_in_a_later_lap_is_wanted_on_resume_as_it_was(cli: Cli, tmp_path: Path) -> None:
    result = cli("decide", *SHAPE, *PAYS, "--json")
    assert result.code in VERDICTS, result.stderr
    with Study.open(tmp_path / "s", writing=True) as study:
        before = interim_check(study, 1)
        assert set(before.wanted) == {"ngram-k4"}
        last = max(launch.id for launch, _ in study.launches() if launch.arm == "ngram-k4")
        study.launch_failed(last, failure="died: exit code -9", log_tail="")
        assert interim_check(study, 1) == before


@pytest.mark.parametrize("requests", [1, 2, 3])
def test_one_two_or_three_prompts_are_judged_and_ship_nothing(
    requests: int, cli: Cli, tmp_path: Path
) -> None:
    result = cli(
        *("decide", "--segment", "chat", "--requests", requests, "--max-tokens", 8, "--verify", "off"),
        *(*PAYS, "--json", "--study", "s"),
    )
    assert result.code in {4, 5}, result.stderr
    assert set(measured_places(records_of(tmp_path / "s"))) == planned_places(tmp_path / "s")
