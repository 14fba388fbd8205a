"""doctor: facts, the noise of the machine and what to do next; never an error for what is missing."""

from __future__ import annotations

import asyncio
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from running import Cli, speclift
from speclift.bench.self_test import NOISE_PROMPTS, measure_noise, noise_requests
from speclift.core.arm import ServerSettings
from speclift.core.doctor import Doctor
from speclift.core.document import read
from speclift.core.errors import EngineError
from speclift.core.records import Phase, Record
from speclift.engines.fake.kind import Fake
from speclift.statistics.noise import PAIRS_MIN
from speclift.verbs.doctor import next_steps
from speclift.views.machine import machine_view

WIDTH = 100


def fake(*truths: str) -> Fake:
    return Fake(ServerSettings(model="fake-model", engine_args=("ttft_s=0.001", "tpot_s=0.0005", *truths)))


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> list[Record]:
    """As few pairs as there may be."""
    logs = tmp_path_factory.mktemp("logs")
    records = asyncio.run(measure_noise(fake(), noise_requests(), logs=logs, budget_s=0.0))
    return [record for record in records if record.place.phase is Phase.MEASURED]


def facts(**changes: Any) -> Doctor:
    found: Any = {
        "schema": 1,
        "programs": [],
        "speclift": "0.1.0",
        "engines": {"llamacpp": "xllamacpp 1", "llama_server": "not on PATH"},
        "host": {
            "cpu": "A CPU with a long name at 3.20GHz",
            "cores": 16,
            "memory_bytes": 137_438_953_472,
            "system": "Linux-6.1-x86_64-with-glibc2.36",
            "python": "3.11.7",
            "gpus": ["NVIDIA H200, 570.1, 143771 MiB, 1980 MHz, 700.00 W"] * 2,
            "governor": "performance",
            "load_average": [0.45556640625, 1.31201171875, 1.5],
        },
        "threads_for_the_engine": 15,
        "timer_late_ms": {"p50": 0.1034, "p99": 0.1942},
        "models": {"smollm2-135m": "cached"},
        "cache": "/var/cache/speclift/models",
        "cache_free_bytes": 82_235_043_840,
        "study_folder_free_bytes": 82_235_043_840,
        "noise": {
            "measured": True,
            "wall_s": 20.4,
            "tokens_per_answer": 32,
            "pairs": 19,
            "tpot_s_p50": 0.0077,
            "request_log_sd": 0.19,
            "paired_log_sd": 0.142,
            "servers_ratio": {"value": 0.98, "low": 0.92, "high": 1.05, "n": 4, "method": "paired-t"},
            "prompts_needed": [{"speedup": 1.3, "prompts": 10}, {"speedup": 1.1, "prompts": 18}],
        },
    }
    for path, value in changes.items():
        *outer, last = path.split("__")
        place = found
        for key in outer:
            place = place[key]
        place[last] = value
    whole = read(Doctor, {**found, "next_steps": []})
    is_cached = whole.models["smollm2-135m"] == "cached"
    steps = next_steps(is_cached=is_cached, host=whole.host, noise=whole.noise, client=whole.client)
    return structs.replace(whole, next_steps=steps)


def shown(found: Doctor) -> str:
    from rich.console import Console

    console = Console(width=WIDTH, highlight=False)
    with console.capture() as capture:
        console.print(machine_view(found))
    return capture.get()


# What is missing


@pytest.mark.slow
def test_without_the_model_doctor_says_how_to_get_it(cli: Cli) -> None:
    result = cli("doctor", "--json")
    assert result.code == 0
    assert result.document["noise"] == {
        "measured": False,
        "why": "smollm2-135m is not in the cache.",
        "next_step": "speclift models fetch smollm2-135m",
    }
    assert "speclift models fetch smollm2-135m" in commands(result.document)


@pytest.mark.slow
def test_without_the_engine_doctor_says_how_to_get_it(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "xllamacpp", None)
    result = cli("doctor", "--json")
    assert result.code == 0
    assert result.document["noise"]["next_step"] == "pip install 'speclift[llama]'"
    assert commands(result.document)[0] == "pip install 'speclift[llama]'"
    assert "speclift decide" not in commands(result.document)


def commands(document: dict[str, Any]) -> list[str]:
    return [step["command"] for step in document["next_steps"]]


# What comes next


@pytest.mark.parametrize(
    ("changes", "command"),
    [
        pytest.param({}, "speclift decide", id="a quiet machine"),
        pytest.param(
            {"noise__prompts_needed": [{"speedup": 1.1, "prompts": 200}]}, "speclift decide --requests 200", id="noisy"
        ),
        pytest.param(
            {"noise": {"measured": False, "why": "no model", "next_step": ""}}, "speclift decide", id="noise unknown"
        ),
        pytest.param({"host__load_average": [17.0, 1.0, 1.0]}, "top", id="busy"),
        pytest.param(
            {"host__governor": "powersave"}, "sudo cpupower frequency-set -g performance", id="a clock that changes"
        ),
    ],
)  # fmt: skip
def test_the_next_step_fits_what_was_found(changes: dict[str, Any], command: str) -> None:
    assert command in [step.command for step in facts(**changes).next_steps]


# The table


def test_hostile_text_from_the_machine_is_shown_inert() -> None:
    text = shown(facts(host__cpu="x\x1b[31m[bold]y[/bold]"))
    assert r"x\x1b[31m[bold]y[/bold], 16 cores" in text


# The measuring


@pytest.mark.slow
def test_two_identical_servers_take_turns_on_the_same_prompts(measured: list[Record]) -> None:
    assert Counter(r.place.arm for r in measured) == {"first": PAIRS_MIN, "second": PAIRS_MIN}
    asked = [{r.place.request_id for r in measured if r.place.block == block} for block in range(PAIRS_MIN)]
    assert all(len(ids) == 1 for ids in asked)
    assert len(set.union(*asked)) == NOISE_PROMPTS


@pytest.mark.slow
def test_a_failing_request_ends_the_measuring(tmp_path: Path) -> None:
    with pytest.raises(EngineError, match="a request failed: http-error"):
        asyncio.run(measure_noise(fake("http_500_share=1"), noise_requests(), logs=tmp_path))


@pytest.mark.llama
def test_the_noise_of_this_machine_on_the_embedded_engine(embedded_model: Path, tmp_path: Path) -> None:
    cache = {"SPECLIFT_CACHE": str(embedded_model.parent.parent)}
    result = speclift("doctor", "--json", cwd=tmp_path, environment=cache)
    assert result.code == 0, result.stderr
    noise = result.document["noise"]
    assert noise["measured"], noise
    assert noise["pairs"] >= PAIRS_MIN
    assert noise["paired_log_sd"] > 0
    assert noise["servers_ratio"]["low"] < noise["servers_ratio"]["value"] < noise["servers_ratio"]["high"]
    assert [entry["speedup"] for entry in noise["prompts_needed"]] == [1.3, 1.1, 1.05, 1.02]
    needed = [entry["prompts"] for entry in noise["prompts_needed"]]
    assert needed == sorted(needed)
    assert "measuring the noise" in result.stderr
    assert list(tmp_path.iterdir()) == []
