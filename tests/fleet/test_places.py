"""What `--on` says, and what is wrong with it: seen before any cluster is."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from running import Cli
from samples import NGRAM, launch, new_study, plan, record, request
from speclift.core.arm import BASELINE
from speclift.core.errors import UsageError
from speclift.core.fleet import FleetAddress, fleet_address
from speclift.core.records import Phase
from speclift.fleet import cluster
from speclift.fleet.cluster import Versions
from speclift.fleet.cost import fleet_cost
from speclift.fleet.run import Progress, next_round
from speclift.studies.study import Study
from speclift.workload.experiment import turns

OURS = Versions(speclift="1.0", ray="2.60.0", python="3.11.7")


@pytest.mark.parametrize(
    ("on", "head"),
    [("ray", None), ("ray:10.0.0.1:6379", ("10.0.0.1", 6379)), ("ray:[::1]:6379", ("::1", 6379))],
)
def test_a_cluster_is_named_by_its_head_or_not_at_all(on: str, head: tuple[str, int] | None) -> None:
    assert fleet_address(on) == FleetAddress(head=head)


@pytest.mark.parametrize(
    "on", ["", "dask", "ray:", "ray:host", "ray:host:0", "ray:host:99999", "ray:host:x", "ray:ray://h:10001"]
)
def test_whatever_else_is_wrong_usage(on: str) -> None:
    with pytest.raises(UsageError, match="--on"):
        fleet_address(on)


def test_no_cluster_at_the_address_is_said_at_once(cli: Cli, small: list[object]) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{closed.getsockname()[1]}"
        measured = cli("measure", *small, "--on", f"ray:{address}")
    assert measured.code == 1
    assert f"no Ray cluster answers at {address}" in measured.stderr


def test_a_head_that_takes_connections_and_hangs_is_not_waited_for(
    cli: Cli, small: list[object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster, "REACHED_WITHIN_S", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as hanging:
        address = f"127.0.0.1:{hanging.getsockname()[1]}"
        measured = cli("measure", *small, "--on", f"ray:{address}")
    assert measured.code == 1
    assert f"no Ray cluster answers at {address}: timed out" in measured.stderr


def test_servers_of_somebody_else_run_where_they_are(cli: Cli) -> None:
    measured = cli("measure", "--engine", "attach", "--baseline-url", "http://127.0.0.1:9", "--on", "ray")
    assert measured.code in {1, 2}


def test_a_study_goes_on_where_it_began(cli: Cli, small: list[object]) -> None:
    assert cli("measure", *small, "--study", "s").code == 0
    resumed = cli("measure", "--resume", "--study", "s", "--on", "ray")
    assert resumed.code == 2
    assert "was begun on one machine" in resumed.stderr


def test_another_version_on_a_node_is_named() -> None:
    assert OURS.differences(Versions(speclift="1.0", ray="2.60.0", python="3.11.9")) == []
    assert OURS.differences(Versions(speclift="", ray="2.50.0", python="3.12.1")) == [
        "speclift none instead of 1.0",
        "Ray 2.50.0 instead of 2.60.0",
        "Python 3.12 instead of 3.11",
    ]


def test_a_round_goes_to_the_node_that_began_it_and_else_to_whoever_is_free() -> None:
    working = {"ash", "birch"}
    homes = {0: "birch", 1: None, 2: "cedar"}
    assert next_round("birch", [0, 1, 2], homes, working) == 0
    assert next_round("ash", [0, 1, 2], homes, working) == 1
    assert next_round("ash", [0, 2], homes, working) == 2, "cedar is gone"
    assert next_round("ash", [0], homes, working) is None, "birch will come back to it"


@pytest.fixture
def half_done(tmp_path: Path) -> Study:
    """One round on ash: both arms of block 0, the baseline alone of block 1."""
    made = new_study(tmp_path / "s", plan=plan(requests=(request("p1"), request("p2")), rounds=1))
    for number, arm in enumerate((BASELINE, NGRAM.name), start=1):
        made.add_launch(launch(number, arm=arm, node="ash"))
    for number, arm, block in ((1, BASELINE, 0), (2, NGRAM.name, 0), (1, BASELINE, 1)):
        made.add_record(
            record(
                arm=arm, launch=number, block=block, request_id=f"p{block + 1}", node="ash", phase=Phase.MEASURED
            )
        )  # fmt: skip
    return made


def test_half_a_block_is_measured_anew_elsewhere_and_gone_on_with_at_home(half_done: Study) -> None:
    with half_done as study:
        progress, asked = Progress(study), turns(study.plan, 0)
        assert progress.home(0) == "ash"
        assert {(done.arm, done.block) for done in progress.known_to("birch", asked)} == {
            (BASELINE, 0),
            (NGRAM.name, 0),
        }
        assert len(progress.known_to("ash", asked)) == 3
        assert not progress.is_finished(asked)


def test_node_hours_are_launches_and_requests_and_never_more_than_the_budget() -> None:
    two = plan(requests=(request("p1", max_tokens=50), request("p2", max_tokens=100)), rounds=4)
    free = fleet_cost(two, nodes=8, launch_s=90.0, budget_s=None)
    assert (free.nodes, free.launches, free.requests) == (4, 8, 16)
    assert free.node_s == pytest.approx(8 * 90.0 + 8 * 150 / 50)
    assert fleet_cost(two, nodes=2, launch_s=90.0, budget_s=60.0).node_s == 120.0
    assert "node-hours on 4 nodes" in free.words
