"""Studies on a real Ray cluster: three raylets on this machine, fake engines on each."""

from __future__ import annotations

import os
import random
import signal
import sqlite3
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path
from statistics import geometric_mean

import pytest

from processes import children, command_line, eventually, is_running, processes_with
from ray_nodes import STEP_COSTS, RayCluster, running_cluster
from running import fake_flags, finish, records_of, speclift, start
from speclift.core.records import Phase
from speclift.studies.study import DATABASE, Study

pytestmark = [pytest.mark.ray, pytest.mark.timeout(180)]
# Every draft is accepted: a step of 1 + 4 tokens.
CERTAIN = ("ttft_s=0.01", "tpot_s=0.01", "acceptance=1.0")
# Of the drafted tokens that the arm should not have accepted: for the gate.
WRONG = "spec.wrong_token_share=0.05"
SHAPE = ("--segment", "chat", "--max-tokens", 26, "--method", "ngram", "--k", 4)
# Three nodes start a Python each, on as few cores as this machine has.
STARTED_WITHIN_S = 60.0
SERVER = "speclift.testing.fake_server"
# More than two pulses of a worker.
SILENT_S = 6.0


@pytest.fixture
def mark() -> Iterator[str]:
    """A word on the command line of every engine of a test; what is left with it afterwards is ended."""
    word = f"stall_s={random.SystemRandom().randrange(10**9) / 10**9 + 1}"
    yield word
    for pid in processes_with(word):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def measured_count(study: Path, node: str = "%") -> int:
    """Records so far, read beside the process that writes them."""
    if not (study / DATABASE).exists():
        return 0
    with closing(sqlite3.connect(f"file:{study / DATABASE}?mode=ro", uri=True)) as database:
        with suppress(sqlite3.OperationalError):  # the study is not created yet
            row = database.execute(
                "SELECT count(*) FROM records WHERE phase = 'measured' AND node LIKE ?", (node,)
            ).fetchone()
            return int(row[0])
        return 0


def engines(mark: str) -> dict[int, tuple[str, ...]]:
    return {pid: line for pid, line in processes_with(mark).items() if SERVER in line}


def no_engine_is_left(mark: str) -> None:
    eventually(lambda: not engines(mark), what="no guardian and no engine is left")


def test_every_node_runs_every_arm_and_its_own_truth_is_found(
    cluster: RayCluster, tmp_path: Path, mark: str
) -> None:
    shape = (*SHAPE, "--requests", 10, "--launches", 3, "--temperature", 0, "--json")
    decided = speclift(
        "decide", *shape, *fake_flags(*CERTAIN, WRONG, mark, fast=False),
        "--on", f"ray:{cluster.address}", "--study", "s",
        cwd=tmp_path,
    )  # fmt: skip
    assert decided.code == 6, decided.stderr
    assert "asking the baseline again" in decided.stderr
    assert "no log-probabilities" not in decided.stdout
    measured = [record for record in records_of(tmp_path / "s") if record.place.phase is Phase.MEASURED]
    by_node = Counter((record.place.node, record.place.arm) for record in measured)
    assert by_node == {(node, arm): 10 for node in STEP_COSTS for arm in ("baseline", "ngram-k4")}
    truths = {node: 5 / (1 + 4 * cost) for node, cost in STEP_COSTS.items()}
    for node, truth in truths.items():
        tpot_s = {
            arm: geometric_mean(
                r.tpot_s for r in measured if (r.place.node, r.place.arm) == (node, arm) and r.tpot_s
            )
            for arm in ("baseline", "ngram-k4")
        }
        assert tpot_s["baseline"] / tpot_s["ngram-k4"] == pytest.approx(truth, rel=0.08)
    speedup = decided.document["speedups"][0]["by_metric"]["tpot"]
    assert speedup["value"] == pytest.approx(geometric_mean(truths.values()), rel=0.08)
    no_engine_is_left(mark)
    with Study.open(tmp_path / "s") as study:
        assert {launch.node for launch, _ in study.launches()} == set(STEP_COSTS)
        assert all(study.log_path(launch.id).exists() for launch, _ in study.launches())


def measuring(cluster: RayCluster, mark: str, *, requests: int, launches: int = 3) -> list[object]:
    """A study that takes a while: launches of two arms, a quarter of a second a request."""
    slow = fake_flags("ttft_s=0.01", "tpot_s=0.01", mark, fast=False)
    shape = (*SHAPE, "--requests", requests, "--launches", launches)
    return ["measure", *shape, *slow, "--on", f"ray:{cluster.address}", "--study", "s"]


def start_hasty(arguments: list[object], *, cwd: Path) -> subprocess.Popen[str]:
    """The command as it is, with less patience for nodes and heads that say nothing."""
    hasty = (
        f"from speclift.fleet import cluster; cluster.SILENT_LIMIT_S = {SILENT_S}; cluster.HEAD_LIMIT_S = 2.0"
    )
    return subprocess.Popen(
        [sys.executable, "-c", f"{hasty}; from speclift.cli.main import main; main()", *map(str, arguments)],
        cwd=cwd,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_ctrl_c_stops_every_node_and_keeps_what_was_measured(
    cluster: RayCluster, tmp_path: Path, mark: str
) -> None:
    with start(measuring(cluster, mark, requests=200), cwd=tmp_path) as process:
        eventually(
            lambda: measured_count(tmp_path / "s") > 6, what="nodes measure", patience_s=STARTED_WITHIN_S
        )
        assert len(engines(mark)) >= 6, "a server and its guardian for two arms on three nodes"
        process.send_signal(signal.SIGINT)
        process.send_signal(signal.SIGINT)
        stopped = finish(process)
    assert stopped.code == 130, stopped.stderr
    assert "continue with: speclift measure --resume" in stopped.stderr
    no_engine_is_left(mark)
    assert measured_count(tmp_path / "s") > 6


def test_a_driver_that_is_killed_leaves_no_process_on_any_node(
    cluster: RayCluster, tmp_path: Path, mark: str
) -> None:
    with start(measuring(cluster, mark, requests=200), cwd=tmp_path) as process:
        eventually(
            lambda: measured_count(tmp_path / "s") > 6, what="nodes measure", patience_s=STARTED_WITHIN_S
        )
        process.kill()
    no_engine_is_left(mark)


def test_a_search_runs_a_job_on_every_node_at_a_time(cluster: RayCluster, tmp_path: Path, mark: str) -> None:
    shape = ("--segment", "chat", "--max-tokens", 20, "--method", "ngram", "--k", "2,4,8", "--requests", 12)
    truths = fake_flags("ttft_s=0.005", "tpot_s=0.005", "acceptance=0.8", mark, fast=False)
    tuned = speclift(
        "tune", *shape, "--launches", 3, "--verify", "off", *truths, "--on", f"ray:{cluster.address}",
        "--study", "s", "--json",
        cwd=tmp_path,
        limit_s=STARTED_WITHIN_S * 2,
    )  # fmt: skip
    assert tuned.code == 0, tuned.stderr
    searched = records_of(tmp_path / "s" / "search")
    assert len({record.place.node for record in searched if record.place.phase is Phase.MEASURED}) > 1
    confirmed = [record for record in records_of(tmp_path / "s") if record.place.phase is Phase.MEASURED]
    assert {record.place.node for record in confirmed} == set(STEP_COSTS)
    assert tuned.document["tuning"]["best"]["arm"].startswith("ngram")
    no_engine_is_left(mark)


def has_every_pair_once(study: Path, *, launches: int) -> bool:
    """Both arms answered every prompt of every launch on one node, and on no other."""
    measured = [record.place for record in records_of(study) if record.place.phase is Phase.MEASURED]
    sides = defaultdict(set)
    for place in measured:
        sides[place.round, place.request_id, place.node].add(place.arm)
    paired = Counter((index, request) for (index, request, _), arms in sides.items() if len(arms) == 2)
    prompts = {place.request_id for place in measured}
    return paired == {(index, prompt): 1 for index in range(launches) for prompt in prompts}


def workers_of(raylet: int) -> list[int]:
    return [pid for pid in children(raylet) if any("NodeWorker" in word for word in command_line(pid))]


def test_nodes_that_are_killed_or_hang_lose_no_record_and_the_study_ends(
    cluster: RayCluster, tmp_path: Path, mark: str
) -> None:
    with start_hasty(measuring(cluster, mark, requests=8), cwd=tmp_path) as process:
        eventually(
            lambda: all(measured_count(tmp_path / "s", node) > 2 for node in ("birch", "cedar")),
            what="both nodes measure",
            patience_s=STARTED_WITHIN_S,
        )
        os.kill(cluster.raylets["birch"], signal.SIGKILL)
        (hanging,) = workers_of(cluster.raylets["cedar"])
        os.kill(hanging, signal.SIGSTOP)
        before = {record.place for record in records_of(tmp_path / "s")}
        ended = finish(process)
    assert ended.code == 0, ended.stderr
    with Study.open(tmp_path / "s") as study:
        lost = sorted(finding.message for finding in study.findings() if finding.check == "node-lost")
    assert len(lost) == 2
    assert lost[0].startswith("node birch was lost")
    assert lost[1].startswith("node cedar was lost: its worker said nothing for")
    assert before <= {record.place for record in records_of(tmp_path / "s")}
    assert has_every_pair_once(tmp_path / "s", launches=3)
    no_engine_is_left(mark)
    assert not is_running(hanging)


def test_a_lost_head_ends_the_study_which_goes_on_with_fewer_nodes_on_a_new_cluster(
    cluster: RayCluster, tmp_path: Path, mark: str
) -> None:
    """The last of these tests: it is the head of the cluster they share."""
    with start_hasty(measuring(cluster, mark, requests=8, launches=2), cwd=tmp_path) as process:
        eventually(
            lambda: measured_count(tmp_path / "s") > 4, what="nodes measure", patience_s=STARTED_WITHIN_S
        )
        os.kill(cluster.server, signal.SIGKILL)
        before = {record.place for record in records_of(tmp_path / "s")}
        ended = finish(process)
    assert ended.code == 1, ended.stderr
    assert f"the head node of the cluster at {cluster.address} was lost" in " ".join(ended.stderr.split())
    no_engine_is_left(mark)
    with running_cluster(nodes=("ash",)) as new:
        resumed = speclift(
            "measure", "--resume", "--study", "s", "--on", "ray",
            cwd=tmp_path,
            environment={"RAY_ADDRESS": new.address},
        )  # fmt: skip
    assert resumed.code == 0, resumed.stderr
    assert f"joined the Ray cluster at {new.address}: ash" in resumed.stderr
    assert before <= {record.place for record in records_of(tmp_path / "s")}
    assert has_every_pair_once(tmp_path / "s", launches=2)
    no_engine_is_left(mark)
