"""decide -- llama-server …, on the embedded pair: it ends with the user's line changed, and a server starts from it."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from running import Result, speclift
from speclift.core.errors import OperatingError
from speclift.core.user_command import OwnLine
from speclift.engines.llamacpp.server import knows
from speclift.engines.process import free_port
from speclift.http.client import fetch
from speclift.studies.study import Study
from speclift.verbs.user_command import brought
from speclift.weights import models
from speclift.weights.models import draft_for

pytestmark = [pytest.mark.llama, pytest.mark.timeout(300)]
PARSE = Path(__file__).with_name("parse_arguments.py")


@pytest.fixture(scope="module")
def pair() -> tuple[str, str]:
    bundled = draft_for("smollm2-135m")
    assert bundled is not None
    return str(models.resolve("smollm2-135m")), str(bundled.checked_path())


@pytest.fixture(scope="module")
def decided(pair: tuple[str, str], tmp_path_factory: pytest.TempPathFactory) -> tuple[Result, Path]:
    target, draft = pair
    study = tmp_path_factory.mktemp("own") / "study"
    line = ["llama-server", "-m", target, "-md", draft, "--draft-max", "16", "-t", "1", "-c", "2048"]
    result = speclift(
        *("decide", "--json", "--study", str(study), "--segment", "verbatim-rewrite", "--requests", "2"),
        *("--max-tokens", "12", "--launches", "1", "--method", "ngram,n=4", "--k", "15", "--verify", "off"),
        *("--", *line, "--port", "8123", "--api-key", "sk-not-for-you", "--no-webui"),
        cwd=study.parent,
    )
    return result, study


def test_the_embedded_engine_runs_it_and_says_so(decided: tuple[Result, Path]) -> None:
    result, study = decided
    assert result.code in (0, 3, 4, 5), result.stderr
    assert "the embedded llama.cpp runs it" in result.stderr
    assert "Your line" in result.stderr
    with Study.open(study) as opened:
        assert {arm.name for arm in opened.plan.arms} == {"baseline", "ngram-k15-n4", "yours"}


def test_the_changed_line_is_the_users_own(decided: tuple[Result, Path]) -> None:
    document = decided[0].document
    after = shlex.split(document["line"]["after"])
    for kept in (["-t", "1"], ["-c", "2048"], ["--port", "8123"]):
        assert " ".join(kept) in " ".join(after)
    assert "--draft-max" not in after
    assert document["line"]["diff"]


def test_no_secret_is_kept(decided: tuple[Result, Path]) -> None:
    result, study = decided
    assert "sk-not-for-you" not in result.stdout + result.stderr
    for path in study.rglob("*"):
        if path.is_file():
            assert b"sk-not-for-you" not in path.read_bytes(), path


def test_llama_servers_own_parser_takes_it(decided: tuple[Result, Path]) -> None:
    after = shlex.split(decided[0].document["line"]["after"])
    done = subprocess.run(
        [sys.executable, str(PARSE)],
        input=json.dumps([after[1:]]),
        capture_output=True,
        text=True,
        check=True,
    )
    (answer,) = json.loads(done.stdout)
    assert answer["ok"], answer["error"]


def test_a_server_starts_from_it(decided: tuple[Result, Path]) -> None:
    document: dict[str, Any] = decided[0].document
    again = brought(document["line"]["after"]).settings
    line = again["line"]
    assert isinstance(line, OwnLine)
    flags = [word for flag in line.flags if knows(flag) for word in flag]
    port = free_port()
    words = [*flags, *line.speculation, "--port", str(port), "--slots"]
    server = subprocess.Popen([sys.executable, "-m", "speclift.engines.llamacpp.server", *words])
    try:
        slots = json.loads(_asked(f"http://127.0.0.1:{port}/slots"))
    finally:
        server.kill()
        server.wait()
    assert bool(slots[0]["speculative"]) == ("yours" in again)


def _asked(url: str) -> str:
    for _ in range(300):
        try:
            return fetch(url)
        except OperatingError:
            time.sleep(0.1)
    raise AssertionError(f"{url} never answered")


DOCKER = '''#!{python}
"""Stands in for docker: what the image would start is the embedded server, at the port that was published."""
import os, sys
words = sys.argv[1:]
assert words[0] == "run" and "-d" not in words and "--name" not in words
host, port, inner = words[words.index("-p") + 1].split(":")
flags = words[words.index("ghcr.io/ggml-org/llama.cpp:server") + 1 :]
assert flags[flags.index("--port") + 1] == inner
flags[flags.index("--port") + 1] = port
flags[flags.index("--host") + 1] = host
flags = [{model!r} if word == "/models/t.gguf" else word for word in flags]
assert os.environ["HF_TOKEN"] == "hf_not_for_you"
os.execv(sys.executable, [sys.executable, "-m", "speclift.engines.llamacpp.server", *flags])
'''


def test_a_container_is_launched_with_docker_on_a_port_of_ours(pair: tuple[str, str], tmp_path: Path) -> None:
    docker = tmp_path / "bin" / "docker"
    docker.parent.mkdir()
    docker.write_text(DOCKER.format(python=sys.executable, model=pair[0]))
    docker.chmod(0o755)
    result = speclift(
        *("measure", "--json", "--study", "s", "--segment", "verbatim-rewrite", "--requests", "2"),
        *("--max-tokens", "12", "--launches", "1", "--"),
        *("docker", "run", "-d", "--name", "llm", "-p", "80:8080", "-v", "/data:/models"),
        *("-e", "HF_TOKEN=hf_not_for_you", "ghcr.io/ggml-org/llama.cpp:server"),
        *("-m", "/models/t.gguf", "-t", "1", "-c", "2048", "-np", "1", "--port", "8080"),
        *(
            "--spec-type",
            "ngram-simple",
            "--spec-ngram-simple-size-n",
            "4",
            "--spec-ngram-simple-size-m",
            "8",
        ),
        cwd=tmp_path,
        environment={"PATH": f"{docker.parent}:{os.environ['PATH']}"},
    )
    assert result.code == 0, result.stderr
    assert {cell["arm"] for cell in result.document["cells"]} == {"baseline", "yours"}
    assert {cell["failed"] for cell in result.document["cells"]} == {0}
    for path in (tmp_path / "s").rglob("*"):
        assert not path.is_file() or b"hf_not_for_you" not in path.read_bytes()
