"""decide -- vllm serve …, on the CPU build: it ends with the user's line changed, which vLLM's own parser takes."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import time
from pathlib import Path

import pytest

from running import Result, command
from speclift.core.errors import OperatingError
from speclift.engines.process import free_port
from speclift.http.client import fetch
from speclift.studies.study import Study

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(600)]
ACCEPT = Path(__file__).with_name("accept_commands.py")
LIMIT_S = 500.0
NGRAM = {"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_max": 3, "prompt_lookup_min": 2}


@pytest.fixture(scope="module")
def decided(
    vllm_python: str, hugging_face_model: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Result, Path]:
    study = tmp_path_factory.mktemp("own") / "study"
    line = [
        *("vllm", "serve", str(hugging_face_model), "--max-model-len", "1024", "--enforce-eager"),
        *("--served-model-name", "mine", "--port", "8123", "--speculative-config", json.dumps(NGRAM)),
    ]
    done = subprocess.run(
        command(
            [
                *("decide", "--json", "--study", study, "--vllm-python", vllm_python, "--threads", "1"),
                *("--method", "ngram,n=3,n_min=2", "--k", "4", "--temperature", "0", "--launches", "1"),
                *(
                    "--segment",
                    "verbatim-rewrite",
                    "--requests",
                    "2",
                    "--max-tokens",
                    "16",
                    "--verify",
                    "off",
                ),
                *("--", *line),
            ]
        ),
        cwd=study.parent,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    return Result(code=done.returncode, stdout=done.stdout, stderr=done.stderr), study


def test_the_users_own_server_is_measured_under_its_own_name(decided: tuple[Result, Path]) -> None:
    result, study = decided
    assert result.code in (0, 3, 4, 5), result.stderr
    with Study.open(study) as opened:
        assert {arm.name for arm in opened.plan.arms} == {"baseline", "yours"}
        assert all("--served-model-name mine" in " ".join(each) for each in opened.provenance.commands)
    cells = {cell["arm"]: cell for cell in result.document["cells"] if cell["segment"] == "all"}
    assert cells["yours"]["requests"] == cells["baseline"]["requests"] == 2


def test_vllms_own_parser_takes_the_changed_line(
    decided: tuple[Result, Path], vllm_python: str, hugging_face_model: Path
) -> None:
    after = shlex.split(decided[0].document["line"]["after"])
    assert after[:3] == ["vllm", "serve", str(hugging_face_model)]
    assert "--port 8123" in " ".join(after)
    commands = [{"arguments": after[2:]}]
    done = subprocess.run(
        [vllm_python, str(ACCEPT)], input=json.dumps(commands), capture_output=True, text=True, check=True
    )
    (answer,) = json.loads(done.stdout)
    assert answer["error"] is None
    is_kept = decided[0].document["winner"] is not None
    assert (answer["config"] is not None) == is_kept


def test_a_server_starts_from_the_changed_line(
    decided: tuple[Result, Path], vllm_python: str, tmp_path: Path
) -> None:
    after = shlex.split(decided[0].document["line"]["after"])
    port = free_port()
    # The console script of the CPU wheel does not start; its module takes the same words.
    words = ["--model", *after[2:], "--port", str(port), "--kv-cache-memory-bytes", "256M"]
    log = (tmp_path / "log").open("w")
    server = subprocess.Popen(
        [vllm_python, "-m", "vllm.entrypoints.openai.api_server", *words],
        stdout=log,
        stderr=subprocess.STDOUT,
        env={**os.environ, "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"},
        start_new_session=True,
    )
    try:
        models = _asked(f"http://127.0.0.1:{port}/v1/models", server)
    finally:
        os.killpg(server.pid, signal.SIGKILL)
        server.wait()
        log.close()
    assert [model["id"] for model in json.loads(models)["data"]] == ["mine"]


def _asked(url: str, server: subprocess.Popen[bytes]) -> str:
    for _ in range(600):
        assert server.poll() is None, "it ended before it was ready"
        try:
            return fetch(url)
        except OperatingError:
            time.sleep(0.5)
    raise AssertionError(f"{url} never answered")
