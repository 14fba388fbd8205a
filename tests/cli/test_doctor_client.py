"""doctor --client: the load generator measured on this machine, against a server that knows its own times."""

from __future__ import annotations

import io
from typing import Any

import pytest
from rich.console import Console

from running import Cli
from speclift.core.doctor import ClientLevel, Doctor, Milliseconds
from speclift.core.document import read
from speclift.core.errors import EngineError
from speclift.core.traffic import Concurrency
from speclift.verbs import doctor
from speclift.views.machine import machine_view


def view(facts: Any, width: int) -> str:
    console = Console(file=io.StringIO(), width=width, highlight=False)
    with console.capture() as capture:
        console.print(machine_view(facts))
    return capture.get()


@pytest.mark.slow
def test_gives_errors_at_each_level_and_what_one_process_can_do(cli: Cli) -> None:
    document = cli("doctor", "--client", "--json").document
    client = document["client"]

    assert client["measured"]
    assert [level["load"] for level in client["levels"]] == [
        {"concurrency": 1},
        {"concurrency": 64},
        {"qps": 1000.0, "arrivals": "constant"},
    ]
    assert [level["lost"] for level in client["levels"]] == [0, 0, 0]
    assert all(level["cpu_us_per_token"] > 0 for level in client["levels"])
    assert client["ceiling"]["tokens_per_s"] > 0
    assert client["ceiling"]["requests_per_s"] > 0
    assert document["noise"] == {
        "measured": False,
        "why": "skipped (--client)",
        "next_step": "speclift doctor",
    }
    for width in (80, 120):
        lines = view(read(Doctor, document), width).splitlines()
        assert any("c=64" in line and "%" in line for line in lines)
        assert "Load generator" in lines


def level(error_ms: float | None) -> ClientLevel:
    errors = Milliseconds(p50=0.0, p99=error_ms)
    return ClientLevel(
        load=Concurrency(streams=1), requests=1, lost=0, ttft_error_ms=errors, tpot_error_ms=errors,
        send_lag_ms=errors, read_lag_p99_ms=0.0, cpu_share=0.1, cpu_us_per_token=1.0, cpu_us_per_request=1.0,
    )  # fmt: skip


@pytest.mark.slow
def test_a_server_that_does_not_start_is_a_finding_and_no_error(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> dict[str, Any]:
        raise EngineError("it did not start")

    monkeypatch.setattr(doctor, "measure_client", fail)
    result = cli("doctor", "--client")

    assert result.code == 0
    assert "it did not start; run: speclift doctor --client" in result.stdout
