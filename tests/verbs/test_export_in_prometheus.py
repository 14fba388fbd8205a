"""The exported rules and dashboard in a real Prometheus that scrapes the fake engine."""

from __future__ import annotations

import json
import time
import urllib.request
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from prometheus_server import (
    LIMIT_S,
    OPENER,
    panels_without_data,
    promtool,
    running_prometheus,
    wait_until,
)
from running import asked
from samples import HOSTILE
from simulated import ARM, by_streams, quiet_truth
from speclift.core.arm import Arm
from speclift.core.records import Counters
from speclift.core.speculation import NGram
from speclift.core.traffic import Concurrency
from speclift.testing.running import running
from speclift.verbs.export import Exported, export, write_exported
from written import write_study

pytestmark = [pytest.mark.prometheus, pytest.mark.slow]

VLLM = Counters(values={"vllm:generation_tokens_total": 1.0})
# 3.3 tokens a step against a step of so many of the baseline's: it breaks even at 1.9, 2.4 and 4.1.
SPEEDUPS = {1: 1.7, 4: 1.4, 16: 0.8}
WINDOW_S = 8.0
# What a file of SQLite and of YAML can hold of it.
INERT = HOSTILE.replace("\0", "").encode("utf-8", "ignore").decode()


def exported(folder: Path, to: str, *, window_s: float = WINDOW_S) -> Exported:
    path = folder / f"study-{to}"
    write_study(path, quiet_truth(by_streams(SPEEDUPS)), counters=VLLM)
    return export(path, to=to, window_s=window_s, memory_s=3600.0)


def post(url: str, body: object) -> None:
    request = urllib.request.Request(url, data=json.dumps(body).encode())
    with OPENER.open(request, timeout=LIMIT_S) as answer:
        answer.read()


def test_it_fires_on_the_drop_and_only_then_and_every_panel_has_data(tmp_path: Path) -> None:
    rules, _ = write_exported(exported(tmp_path, "prometheus-rules"), f"{tmp_path}/rules/")
    dashboard = json.loads(exported(tmp_path, "grafana").files[0].text)
    truth = ("flavour=vllm", "k=4", "acceptance=0.8", "tpot_s=0.002", "ttft_s=0.002", "slots=8")
    with (
        running(*truth) as url,
        asked(url, streams=2, max_tokens=60),
        running_prometheus(tmp_path, rules=rules, target=url.removeprefix("http://")) as prometheus,
    ):
        wait_until(lambda: prometheus.value("speclift:pays") == 1, "it pays")
        steady_s = time.monotonic() + 2.5 * WINDOW_S
        while time.monotonic() < steady_s:
            assert prometheus.firing() == set()
            time.sleep(0.5)
        length, even = (
            prometheus.value("speclift:accepted_length"),
            prometheus.value("speclift:break_even_accepted_length"),
        )
        # 1 + a + ... + a^4 with a = 0.8, less what the ends of answers cut off.
        assert length is not None
        assert 2.9 < length < 3.4
        assert even is not None
        assert 1.8 < even < 2.5
        assert panels_without_data(dashboard, prometheus) == []

        post(f"{url}/truth", {"acceptance": 0.3})
        fires = {"SpeculationDoesNotPay", "SpeculationAcceptanceCollapsed"}
        wait_until(lambda: prometheus.firing() == fires, "both fire", limit_s=4 * WINDOW_S)
        assert prometheus.value("speclift:pays") == 0

        post(f"{url}/truth", {"acceptance": 0.8})
        wait_until(lambda: prometheus.firing() == set(), "it pays again", limit_s=4 * WINDOW_S)


DESIGNS: dict[str, dict[str, Any]] = {
    "vllm": {"counters": VLLM},
    "llama.cpp": {"counters": Counters(values={"llamacpp:tokens_predicted_total": 1.0})},
    "one load": {"counters": VLLM, "loads": (Concurrency(streams=4),)},
    "hostile names": {
        "counters": VLLM,
        "arms": (Arm(name="{{ $value }} " + INERT, speculation=NGram(k=4)),),
    },
}


@pytest.mark.parametrize("design", DESIGNS)
def test_promtool_takes_the_rules_and_their_tests(tmp_path: Path, design: str) -> None:
    folder = ruled(tmp_path, design)

    checked = promtool("check", "rules", "speclift-rules.yml", cwd=folder)
    tested = promtool("test", "rules", "speclift-rules-test.yml", cwd=folder)

    assert checked.returncode == 0, checked.stderr
    assert tested.returncode == 0, tested.stdout + tested.stderr


@pytest.mark.parametrize(
    ("before", "after"),
    [
        pytest.param("(speclift:accepted_length <", "(speclift:accepted_length >", id="fires while it pays"),
        pytest.param("{{ printf", "never {{ printf", id="says something else"),
        pytest.param(
            "speclift:requests_under_way > ", "speclift:requests_under_way > 1000 + ", id="never crosses"
        ),
        pytest.param("[10m])) > 0)", "[10m])) > 1e12)", id="sees no drafts"),
        pytest.param("_accepted_tokens_total", "_draft_tokens_total", id="counts drafts as accepted"),
    ],
)
def test_the_exported_tests_notice_a_rule_that_is_wrong(tmp_path: Path, before: str, after: str) -> None:
    folder = ruled(tmp_path, "vllm")
    rules = folder / "speclift-rules.yml"
    text = " ".join(rules.read_text(encoding="utf-8").split("\n          "))
    assert before in text
    rules.write_text(text.replace(before, after), encoding="utf-8")

    tested = promtool("test", "rules", "speclift-rules-test.yml", cwd=folder)

    assert tested.returncode != 0


def ruled(folder: Path, design: str) -> Path:
    arms = DESIGNS[design].get("arms", (ARM,))
    speedups = by_streams(SPEEDUPS)
    truth = quiet_truth(speedups)
    truth = replace(truth, arms={arms[0].name: truth.arms[ARM.name]})
    path = write_study(folder / "study", truth, **DESIGNS[design])
    write_exported(export(path, to="prometheus-rules"), f"{folder}/rules/")
    return folder / "rules"
