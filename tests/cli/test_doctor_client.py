"""doctor --client: the load generator measured on this machine, against a server that knows its own times."""

from __future__ import annotations

import io
from typing import Any

import pytest
from rich.console import Console

from running import Cli
from speclift.core.errors import EngineError
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
        lines = view(document, width).splitlines()
        assert any("c=64" in line and "%" in line for line in lines)
        assert "Load generator" in lines


@pytest.mark.parametrize(("error_ms", "is_late"), [(2.4, False), (2.6, True)])
def test_a_late_client_gets_a_next_step(error_ms: float, is_late: bool) -> None:
    level: Any = {"ttft_error_ms": {"p99": error_ms}}
    assert doctor.is_late([level]) is is_late
    level["ttft_error_ms"]["p99"] = None
    assert not doctor.is_late([level])


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
