"""Logs replayed on a real Ray cluster: what one machine counts, whatever happens to nodes and parts."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ray_nodes import RayCluster
from running import Result, speclift

pytestmark = [pytest.mark.ray, pytest.mark.timeout(180)]
FLAGS = ("--k", "2,5", "--ngram", "2..3", "--json")
PARTS = 6


def write_part(path: Path, number: int, *, answers: int = 60) -> None:
    chance = np.random.default_rng(number)
    with path.open("w", encoding="utf-8") as file:
        for index in range(answers):
            prompt = chance.integers(0, 50, 120)
            start = int(chance.integers(0, 60))
            entry: dict[str, Any] = {
                "prompt_token_ids": prompt.tolist(),
                "response_token_ids": [
                    *prompt[start : start + 40].tolist(),
                    *chance.integers(0, 50, 30).tolist(),
                ],
                "segment": ("chat", "code", "copy")[(number + index) % 3],
                "temperature": float(index % 2),
            }
            file.write(json.dumps(entry) + "\n")


@pytest.fixture
def logs(tmp_path: Path) -> Path:
    folder = tmp_path / "logs"
    folder.mkdir()
    for number in range(PARTS):
        write_part(folder / f"part-{number}.jsonl", number)
    return folder


def replayed(folder: Path, *words: object, environment: Mapping[str, str] | None = None) -> Result:
    return speclift(
        "replay", "logs/*.jsonl", *FLAGS, *words, cwd=folder.parent, environment=environment or {}
    )


def on(cluster: RayCluster) -> tuple[str, str]:
    return "--on", f"ray:{cluster.address}"


def test_nodes_count_what_one_machine_counts_bit_for_bit(cluster: RayCluster, logs: Path) -> None:
    methods = ("--method", "ngram", "--method", "ngram:map-k,n=2", "--method", "ngram:simple")
    here = replayed(logs, *methods)
    there = replayed(logs, *methods, "--on", "ray", environment={"RAY_ADDRESS": cluster.address})

    assert there.code == 0, there.stderr
    assert f"joined the Ray cluster at {cluster.address}: ash, birch, cedar" in there.stderr
    assert there.stdout == here.stdout
    assert there.document["requests"] == PARTS * 60


@pytest.mark.usefixtures("cluster")
def test_a_cluster_that_nobody_named_is_not_joined_and_one_is_started_instead(logs: Path) -> None:
    # Where `ray start` leaves addresses; Ray's sockets lie there too, and their names may not be long.
    with tempfile.TemporaryDirectory(prefix="ray") as nowhere:
        found = replayed(logs, "--on", "ray", environment={"RAY_TMPDIR": nowhere, "RAY_ADDRESS": ""})

    assert found.code == 0, found.stderr
    assert "started one here" in found.stderr
    assert "ash" not in found.stderr


def test_a_part_that_cannot_be_read_is_named_with_its_node_and_the_rest_is_counted(
    cluster: RayCluster, logs: Path
) -> None:
    (logs / "part-2.jsonl").unlink()
    rest = replayed(logs)
    (logs / "part-2.jsonl").symlink_to(logs / "gone")

    found = replayed(logs, *on(cluster))

    assert found.code == 1
    assert "part-2.jsonl: node " in found.stderr
    assert "3 tries" in found.stderr
    (unread,) = found.document["unread"]
    assert unread.startswith("logs/part-2.jsonl: node ")
    assert found.document == {**rest.document, "unread": [unread]}


def test_where_nothing_can_be_read_there_is_no_document(cluster: RayCluster, tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "a.jsonl").symlink_to(tmp_path / "gone")

    found = replayed(tmp_path / "logs", *on(cluster))

    assert found.code == 1
    assert found.stdout == ""
    assert "no part of the log could be read" in found.stderr


def test_no_such_cluster_exits_1(logs: Path) -> None:
    found = replayed(logs, "--on", "ray:127.0.0.1:9")

    assert found.code == 1
    assert "no Ray cluster answers at 127.0.0.1:9" in found.stderr


def test_no_such_place_is_wrong_usage(logs: Path) -> None:
    assert replayed(logs, "--on", "slurm").code == 2


def test_nothing_of_ray_is_imported_without_it(logs: Path) -> None:
    hidden = logs.parent / "hidden"
    for name in ("ray", "fsspec"):
        (hidden / name).mkdir(parents=True)
        (hidden / name / "__init__.py").write_text("raise ImportError('not installed')\n")
    environment = {**os.environ, "PYTHONPATH": str(hidden)}

    here = speclift("replay", "logs/*.jsonl", *FLAGS, cwd=logs.parent, environment=environment)
    there = speclift("replay", "logs/*.jsonl", "--on", "ray", cwd=logs.parent, environment=environment)

    assert here.code == 0, here.stderr
    assert there.code == 1
    assert "pip install 'speclift[ray]'" in there.stderr
