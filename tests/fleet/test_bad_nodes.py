"""What is wrong with a node of a real Ray cluster is named with the node, before anything is launched anywhere."""

from __future__ import annotations

import fcntl
import inspect
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import tiny_engine
from installing import leave_engine, leave_metadata
from ray_nodes import STEP_COSTS, RayCluster
from running import Result, command, fake_flags, speclift
from speclift import __version__

pytestmark = [pytest.mark.ray, pytest.mark.timeout(180)]
SHAPE = ("--segment", "chat", "--method", "ngram", "--k", 2, "--requests", 4, "--launches", 3)
TINY = inspect.getsource(tiny_engine)
ON_GPU = "\nTinyKind.is_on_gpu = lambda self, spec: True\n"
# Somebody else's work on the cluster.
HOLDER = """
import sys, ray
ray.init(sys.argv[1], logging_level="CRITICAL", log_to_driver=False)
holder = ray.remote(num_gpus=1)(type("Holder", (), {"here": lambda self: True})).remote()
print(ray.get(holder.here.remote()), flush=True)
sys.stdin.read()
"""


def refused(cluster: RayCluster, tmp_path: Path, *words: object, path: Path | None = None) -> Result:
    """Exit code 1, and a study that goes on as soon as the cluster is in order."""
    measured = speclift(
        "measure", *SHAPE, *words, "--on", f"ray:{cluster.address}", "--study", "s",
        cwd=tmp_path,
        environment={} if path is None else {"PYTHONPATH": str(path)},
    )  # fmt: skip
    assert measured.code == 1, measured.stderr
    assert "Traceback" not in measured.stderr
    return measured


def said(result: Result) -> str:
    return " ".join(result.stderr.split())


def test_other_versions_on_a_node(cluster: RayCluster, tmp_path: Path) -> None:
    other = tmp_path / "other"
    leave_metadata(other, "speclift", version="9.9")
    leave_metadata(other, "ray", version="1.2")
    with cluster.with_node("oak", PYTHONPATH=str(other)):
        found = refused(cluster, tmp_path, *fake_flags())
    assert f"node oak has speclift 9.9 instead of {__version__}, Ray 1.2 instead of" in said(found)
    assert "node ash" not in said(found)
    assert "install the same versions on every node" in said(found)


def test_nodes_without_the_engine(cluster: RayCluster, tmp_path: Path) -> None:
    here = tmp_path / "here"
    here.mkdir()
    leave_engine(here, TINY)
    found = said(refused(cluster, tmp_path, "--engine", "tiny", path=here))
    for node in STEP_COSTS:
        assert f"node {node} cannot run the engine: unknown engine" in found


def test_nodes_without_the_model(cluster: RayCluster, tmp_path: Path) -> None:
    """A file that only the command has open, under a number that no worker has reached: nodes share this disk."""
    (tmp_path / "model.bin").write_text("weights")
    with (tmp_path / "model.bin").open() as opened:
        number = fcntl.fcntl(opened, fcntl.F_DUPFD, 900)
    path = f"/proc/self/fd/{number}"
    words = [
        "measure",
        *SHAPE,
        *fake_flags(),
        "--model",
        path,
        "--on",
        f"ray:{cluster.address}",
        "--study",
        "s",
    ]
    try:
        found = subprocess.run(
            command(words), cwd=tmp_path, capture_output=True, text=True, check=False, pass_fds=[number]
        )
    finally:
        os.close(number)
    assert found.returncode == 1, found.stderr
    for node in STEP_COSTS:
        assert f"node {node} has no {path}" in " ".join(found.stderr.split())


def test_nodes_with_another_model(cluster: RayCluster, tmp_path: Path) -> None:
    """Under this name every process finds a file of its own."""
    path = "/proc/self/environ"
    found = said(refused(cluster, tmp_path, *fake_flags(), "--model", path))
    for node in STEP_COSTS:
        assert f"node {node} has another model than this machine under {path}" in found


def test_no_node_has_a_gpu(cluster: RayCluster, tmp_path: Path) -> None:
    leave_engine(tmp_path, TINY + ON_GPU)
    found = said(refused(cluster, tmp_path, "--engine", "tiny", path=tmp_path))
    assert (
        f"no node of the cluster at {cluster.address} has a CPU and 1 GPU to give (ash: 1 CPUs, 0 GPUs"
        in found
    )


@contextmanager
def held_gpu(cluster: RayCluster) -> Iterator[None]:
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, cluster.address],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=os.environ,
        text=True,
    ) as holder:
        assert holder.stdin is not None
        assert holder.stdout is not None
        try:
            assert holder.stdout.readline() == "True\n"
            yield
        finally:
            holder.stdin.close()


def test_a_gpu_that_other_work_holds(cluster: RayCluster, tmp_path: Path) -> None:
    leave_engine(tmp_path, TINY + ON_GPU)
    with cluster.with_node("elm", gpus=1), held_gpu(cluster):
        found = said(refused(cluster, tmp_path, "--engine", "tiny", path=tmp_path))
    assert "node elm has 0 of its 1 GPUs free, 1 are needed" in found
