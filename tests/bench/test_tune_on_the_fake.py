"""tune from the command line on fake servers: search, confirmation on other prompts, kill and resume, a broken arm."""

from __future__ import annotations

import json
import random
import signal
from pathlib import Path

import jsonschema
import pytest

from processes import eventually, processes_with
from running import Cli, Result, fake_flags, finish, speclift, start
from speclift.bench.search_plan import SIZES, kept_plan
from speclift.bench.search_run import JobEntry, finished_jobs, replayed
from speclift.core.records import Phase
from speclift.studies.study import Study, is_study

# Its search is judged by times, and those that look at it share it.
alone = pytest.mark.alone

SCHEMA = Path(__file__).parents[2] / "docs" / "schema" / "verdict.schema.json"
# Two segments of 24 bundled prompts each.
SHAPE = (
    "--segment",
    "chat",
    "--segment",
    "creative",
    "--temperature",
    0,
    "--max-tokens",
    24,
    "--launches",
    1,
)
# Judged as the search looks: a first token of 2 ms before 24 of half a millisecond would level the arms.
ARMS = ("--method", "ngram", "--k", "1,4,8", "--verify", "off", "--study", "s", "--metric", "tpot")
# Drafts are cheap and mostly right: the longest pays most, 1.9x at k=1 and 4x at k=8.
PAYING = ("acceptance=0.95", "step_cost=0.02")
# Long enough that what a busy machine adds to it does not level them.
STEP = "tpot_s=0.005"


@pytest.fixture(scope="module")
def tuned(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Result]:
    folder = tmp_path_factory.mktemp("tuned")
    result = speclift("tune", *SHAPE, *ARMS, *fake_flags(*PAYING, STEP), "--json", cwd=folder)
    return folder / "s", result


@alone
def test_its_document_is_that_of_decide_with_the_search_in_it(tuned: tuple[Path, Result]) -> None:
    _, result = tuned
    assert result.code == 0, result.stderr
    document = result.document
    jsonschema.validate(document, json.loads(SCHEMA.read_text()))
    tuning = document["tuning"]
    assert tuning["confirmed"][0] == "baseline"
    assert {cell["arm"] for cell in tuning["cells"]} == {"baseline", "ngram-k1", "ngram-k4", "ngram-k8"}
    assert {cell["arm"] for cell in tuning["cells"] if cell["is_measured"]} == {
        job["arm"] for job in tuning["jobs"]
    }
    # Beside a busy machine the client reads too late for a verdict, and there is no winner.
    assert document["winner"] is None or document["winner"]["arm"] == tuning["best"]["arm"]


@alone
def test_it_finds_the_arm_that_is_fastest_by_the_fakes_own_truth(tuned: tuple[Path, Result]) -> None:
    assert tuned[1].document["tuning"]["best"]["arm"] == "ngram-k8"
    assert tuned[1].document["speedup"]["value"] > 2


@alone
def test_the_published_speedup_is_of_prompts_the_search_never_sent(tuned: tuple[Path, Result]) -> None:
    study, result = tuned
    with Study.open(study / "search") as searching, Study.open(study) as confirming:
        searched = {r.place.request_id for r in searching.records() if r.place.phase is Phase.MEASURED}
        confirmed = {r.place.request_id for r in confirming.records() if r.place.phase is Phase.MEASURED}
    assert searched
    assert confirmed
    assert not searched & confirmed
    assert 0 < result.document["speedup"]["n"] <= len(confirmed)


@alone
def test_a_search_is_rebuilt_from_what_its_study_holds(tuned: tuple[Path, Result]) -> None:
    study, result = tuned
    with Study.open(study / "search") as searching:
        search = replayed(kept_plan(searching).search, searching)
    assert search.finished
    assert [each.job.candidate for each in search.results] == [
        job["arm"] for job in result.document["tuning"]["jobs"]
    ]


@pytest.fixture
def mark() -> str:
    return f"seed={random.SystemRandom().randrange(10**9)}"


def stopped_by(sent: signal.Signals, folder: Path, mark: str) -> Result:
    """A tune ended by this signal once its first job was finished."""
    slow = fake_flags(*PAYING, STEP, mark)
    with start(["tune", *SHAPE, "--requests", 20, *ARMS, *slow], cwd=folder) as process:
        eventually(lambda: len(jobs_of(folder)) >= 1, what="one finished job")
        process.send_signal(sent)
        return finish(process)


@alone
def test_a_search_that_is_killed_goes_on_where_it_was(tmp_path: Path, mark: str) -> None:
    stopped_by(signal.SIGKILL, tmp_path, mark)
    eventually(lambda: not processes_with(mark), what="the end of every server")
    before = jobs_of(tmp_path)
    assert not is_study(tmp_path / "s")

    resumed = speclift("tune", "--resume", "--study", "s", "--verify", "off", "--json", cwd=tmp_path)
    assert resumed.code == 0, resumed.stderr
    assert resumed.document["winner"]["arm"] == "ngram-k8"
    after = jobs_of(tmp_path)
    assert after[: len(before)] == before  # nothing that was finished ran again
    assert len({entry.job for entry in after}) == len(after)


@pytest.mark.slow
def test_ctrl_c_during_a_search_stops_its_servers_and_says_how_to_go_on(tmp_path: Path, mark: str) -> None:
    stopped = stopped_by(signal.SIGINT, tmp_path, mark)
    assert stopped.code == 130
    assert "speclift tune --resume --study s" in stopped.stderr
    assert "Traceback" not in stopped.stderr
    eventually(lambda: not processes_with(mark), what="the end of every server")


def jobs_of(folder: Path) -> tuple[JobEntry, ...]:
    if not is_study(folder / "s" / "search"):
        return ()
    with Study.open(folder / "s" / "search") as searching:
        return finished_jobs(searching)


@alone
def test_a_broken_arm_too_few_prompts_and_little_time_are_said_and_the_rest_is_confirmed(
    cli: Cli, tmp_path: Path
) -> None:
    small = ("--segment", "chat", "--requests", 14, "--max-tokens", 24, "--launches", 1, "--temperature", 0)
    broken = fake_flags(*PAYING, "tpot_s=0.006", "ngram-k8.crash_on_start=1")
    result = cli("tune", *small, *ARMS, *broken, "--budget", "12s", "--json")
    assert result.code == 0, result.stderr
    document = result.document
    failed = [each for each in document["tuning"]["eliminated"] if each["stage"] == "failed"]
    assert [each["arm"] for each in failed] == ["ngram-k8"]
    assert "ngram-k8" not in document["tuning"]["confirmed"]
    assert {"no-hold-out", "arm-failed"} <= {finding["check"] for finding in document["findings"]}
    with Study.open(tmp_path / "s" / "search") as searching:
        # Fewer requests than there are prompts: the time of a cell is a sixth of the search's.
        size = (searching.kept(SIZES) or {})["c=1"]
        assert 4 <= size < 14
        done = [r.place.launch for r in searching.records() if r.place.phase is Phase.MEASURED]
    assert {done.count(number) for number in done} == {size}


@alone
def test_a_study_that_only_holds_a_search_is_not_overwritten(tuned: tuple[Path, Result], cli: Cli) -> None:
    result = cli("tune", *SHAPE, "--k", "1,4,8", *fake_flags(), "--study", tuned[0])
    assert result.code == 2
    assert "already holds a study" in result.stderr
