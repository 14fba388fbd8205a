"""A real Prometheus on this machine, and promtool."""

from __future__ import annotations

import json
import math
import shutil
import subprocess
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from speclift.engines.process import free_port

LIMIT_S = 30.0
OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def program(name: str) -> str:
    """Of Debian's package `prometheus`; skips where it is not installed."""
    found = shutil.which(name)
    if found is None:
        pytest.skip(f"{name} is not installed: apt-get install prometheus")
    return found


def promtool(*words: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [program("promtool"), *words], cwd=cwd, capture_output=True, text=True, timeout=LIMIT_S, check=False
    )


class Prometheus:
    def __init__(self, url: str) -> None:
        self.url = url

    def ask(self, path: str, **query: str) -> Any:
        words = urllib.parse.urlencode(query)
        with OPENER.open(f"{self.url}/api/v1/{path}?{words}", timeout=LIMIT_S) as answer:
            return json.loads(answer.read())["data"]

    def value(self, query: str) -> float | None:
        """Of one series; None where there is none, or it is no number."""
        found = self.ask("query", query=query)["result"]
        value = float(found[0]["value"][1]) if found else math.nan
        return None if math.isnan(value) else value

    def firing(self) -> set[str]:
        alerts = self.ask("alerts")["alerts"]
        return {alert["labels"]["alertname"] for alert in alerts if alert["state"] == "firing"}


@contextmanager
def running_prometheus(folder: Path, *, rules: Path, target: str) -> Iterator[Prometheus]:
    """Scrapes `target` and evaluates `rules` every second."""
    config = {
        "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
        "rule_files": [str(rules)],
        "scrape_configs": [{"job_name": "llm", "static_configs": [{"targets": [target]}]}],
    }
    (folder / "prometheus.yml").write_text(yaml.safe_dump(config), encoding="utf-8")
    port = free_port()
    command = [
        program("prometheus"),
        *(f"--config.file={folder / 'prometheus.yml'}", f"--storage.tsdb.path={folder / 'data'}"),
        *(f"--web.listen-address=127.0.0.1:{port}", "--log.level=warn"),
    ]
    server = subprocess.Popen(command, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        prometheus = Prometheus(f"http://127.0.0.1:{port}")
        wait_until(lambda: _is_ready(prometheus), "Prometheus is ready")
        yield prometheus
    finally:
        server.terminate()
        server.wait(timeout=LIMIT_S)


def _is_ready(prometheus: Prometheus) -> bool:
    try:
        with OPENER.open(f"{prometheus.url}/-/ready", timeout=1.0):
            return True
    except OSError:
        return False


def wait_until(holds: Callable[[], bool], what: str, *, limit_s: float = LIMIT_S) -> None:
    deadline_s = time.monotonic() + limit_s
    while not holds():
        assert time.monotonic() < deadline_s, f"not within {limit_s:g} s: {what}"
        time.sleep(0.2)


def panels_without_data(dashboard: Any, prometheus: Prometheus) -> list[str]:
    """Titles with the queries that no series answers."""
    return [
        f"{panel['title']}: {target['expr']}"
        for panel in dashboard["panels"]
        for target in panel["targets"]
        if prometheus.value(target["expr"].replace("$instance", ".*")) is None
    ]
