"""--budget: a verdict on what exists by then, from blocks that every arm finished."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from pathlib import Path

import pytest

from running import Cli, fake_flags, planned_places, records_of
from speclift.bench.ask import Ask
from speclift.bench.observer import Observer
from speclift.bench.opening import prepare_named
from speclift.bench.run import StudyRun
from speclift.core.deadline import Deadline
from speclift.core.records import Phase
from speclift.engines.build import build_engine

FAST = ("ttft_s=0.002", "tpot_s=0.0005")


def blocks_by_arm(study: Path) -> dict[tuple[int, str], list[int]]:
    """Blocks with a measured record, by round and arm."""
    blocks: dict[tuple[int, str], set[int]] = defaultdict(set)
    for record in records_of(study):
        if record.place.phase is Phase.MEASURED:
            blocks[(record.place.round, record.place.arm)].add(record.place.block)
    return {key: sorted(members) for key, members in blocks.items()}


@pytest.mark.alone
def test_a_spent_budget_gives_a_verdict_on_equal_blocks(cli: Cli, tmp_path: Path) -> None:
    slow = fake_flags("ttft_s=0.02", "tpot_s=0.006", fast=False)
    result = cli("decide", "--fixed", "--max-tokens", 24, *slow, "--budget", "8s", "--json", "--study", "s")
    assert result.code in {0, 3, 4, 5}
    assert result.document["speedup"] is not None
    blocks = blocks_by_arm(tmp_path / "s")
    first = blocks[(0, "baseline")]
    assert blocks[(0, "ngram-k4")] == first
    # Far more was planned than the budget allows, and later rounds repeat blocks of the first.
    assert len(first) < len({place.block for place in planned_places(tmp_path / "s")})
    assert {block for members in blocks.values() for block in members} == set(first)


@pytest.mark.alone
def test_laps_that_a_budget_cuts_hold_the_same_blocks_on_every_arm(cli: Cli, tmp_path: Path) -> None:
    slow = fake_flags("ttft_s=0.02", "tpot_s=0.006", fast=False)
    result = cli("decide", "--max-tokens", 24, *slow, "--budget", "8s", "--json", "--study", "s")
    assert result.code in {0, 3, 4, 5}
    blocks = blocks_by_arm(tmp_path / "s")
    rounds = {round_index for round_index, _ in blocks}
    for round_index in rounds:
        assert blocks[(round_index, "ngram-k4")] == blocks[(round_index, "baseline")]


@pytest.mark.slow
@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize(
    ("budget", "blocks"),
    [(8.5, [0, 1]), (9.5, [0, 1, 2])],
    ids=["too little for a third block", "just enough for a third block"],
)
def test_no_block_begins_that_cannot_end_in_time(
    budget: float, blocks: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Time that passes by one second per measured record, three records a block."""
    monkeypatch.chdir(tmp_path)
    ask = Ask.of(
        engine="fake",
        segments=("chat",),
        requests=6,
        max_tokens=4,
        launches=1,
        ks=(2, 4),
        engine_args=FAST,
        study=tmp_path / "s",
    )
    study = prepare_named(ask, Observer()).study

    def seconds() -> float:
        records = study.records()
        warm = 1.0 if records else 0.0  # launching alone takes a second
        return warm + sum(record.place.phase is Phase.MEASURED for record in records)

    with study:
        deadline = Deadline.after(budget + 1, clock=seconds)
        asyncio.run(StudyRun(study, build_engine(study.engine), observer=Observer(), deadline=deadline).run())
    assert blocks_by_arm(tmp_path / "s") == {(0, arm): blocks for arm in ("baseline", "ngram-k2", "ngram-k4")}
