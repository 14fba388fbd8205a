"""A real Prometheus takes the watch's own metrics."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import sys
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from processes import eventually
from running import hosted

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("prometheus") is None, reason="no Prometheus on this machine"),
]


@contextmanager
def prometheus(target: str, folder: Path) -> Iterator[str]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        place = f"127.0.0.1:{free.getsockname()[1]}"
    config = folder / "prometheus.yml"
    job = f"- job_name: speclift\n    static_configs: [{{targets: ['{target}']}}]"
    config.write_text(f"global: {{scrape_interval: 500ms}}\nscrape_configs:\n  {job}\n")
    command = ["prometheus", f"--config.file={config}", f"--web.listen-address={place}"]
    process = subprocess.Popen(
        [*command, f"--storage.tsdb.path={folder / 'data'}"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        yield f"http://{place}"
    finally:
        process.terminate()
        process.wait(timeout=30)


def values(server: str, query: str) -> list[tuple[dict[str, str], float]]:
    url = f"{server}/api/v1/query?{urllib.parse.urlencode({'query': query})}"
    try:
        with urllib.request.urlopen(url, timeout=5) as answer:
            found = json.loads(answer.read())["data"]["result"]
    except OSError:  # not up yet
        return []
    return [(each["metric"], float(each["value"][1])) for each in found]


def test_its_series_are_there(tmp_path: Path) -> None:
    with hosted("flavour=vllm", "k=4", "acceptance=0.8") as url:
        command = [
            sys.executable,
            "-m",
            "speclift",
            "watch",
            url,
            "http://127.0.0.1:9",
            "--interval",
            "300ms",
        ]
        options = ["--break-even", "2", "--listen", "127.0.0.1:0", "--history", str(tmp_path / "h.db")]
        watch = subprocess.Popen([*command, *options], stderr=subprocess.PIPE, text=True)
        try:
            assert watch.stderr is not None
            address = watch.stderr.readline().partition("http://")[2].strip().rstrip("/")
            with prometheus(address, tmp_path) as server:
                eventually(lambda: len(values(server, "speclift_up")) == 2, what="both servers")
                assert {labels["server"]: value for labels, value in values(server, "speclift_up")} == {
                    url: 1.0,
                    "http://127.0.0.1:9": 0.0,
                }
                assert values(server, 'up{job="speclift"}')[0][1] == 1
                assert values(server, "sum(speclift_verdict) by (server) != 1") == []
                assert values(server, "speclift_server_info{engine='vllm'}")
        finally:
            watch.terminate()
            watch.communicate(timeout=10)
