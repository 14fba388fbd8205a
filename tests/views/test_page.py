"""The report page: all it shows stands in the JSON, the JSON keeps its schema, and foreign text stays text."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from samples import NGRAM, launch, new_study, plan, record, request
from speclift.core.arm import BASELINE
from speclift.core.records import Outcome, Step
from speclift.core.traffic import Concurrency, Load
from speclift.verbs.compare import compare
from speclift.verbs.report import write_report
from speclift.views.document import verdict_document
from speclift.views.page import page

DOCS = Path(__file__).parents[2] / "docs" / "schema"
PAGE_BYTES_MAX = 6_000_000
ATTACK = (
    "<script>document.title='pwned'</script>\"'><img src=x onerror=\"document.title='pwned'\">"
    "{{ 7*7 }}{% raw %}</title></style><svg onload=\"document.title='pwned'\">\u202e\x1b[31m"
)


def measured(
    folder: Path, *, segments: tuple[str, ...] = ("copy", "talk"), loads: tuple[int, ...] = (1, 8)
) -> Any:
    """A study of 12 prompts per segment, 3 rounds, at each load; copying gains, talking does not."""
    requests = tuple(request(f"{s}-{i}", segment=s) for s in segments for i in range(12))
    all_loads: tuple[Load, ...] = tuple(Concurrency(streams=streams) for streams in loads)
    study = new_study(folder, plan=plan(requests=requests, loads=all_loads, rounds=3))
    number = 0
    for round_index in range(3):
        for arm in (BASELINE, NGRAM.name):
            number += 1
            study.add_launch(launch(id=number, arm=arm, round=round_index))
            for position, asked in enumerate(requests):
                for load in all_loads:
                    study.add_record(_record(arm, asked, load, number, round_index, position))
    study.close()
    return folder


def _record(arm: str, asked: Any, load: Any, number: int, round_index: int, position: int) -> Any:
    gain = 1.0 if arm == BASELINE else (1.8 if asked.segment == "copy" else 0.97) / (1 + 0.02 * load.streams)
    wobble = 1 + 0.01 * ((position * 7 + round_index * 3 + number) % 5)
    made = record(
        tpot_s=0.01 * wobble / gain,
        arm=arm,
        launch=number,
        round=round_index,
        load=load,
        request_id=asked.id,
        segment=asked.segment,
    )
    if arm == BASELINE:
        return made
    return replace(
        made, drafted=8, accepted=4, steps=(Step(drafted=8, accepted=4), *[Step(drafted=0, accepted=0)] * 5)
    )


class _Text(HTMLParser):
    """The text a reader sees, without style and script."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []
        self.titles: list[str] = []
        self._inside: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._inside.append(tag)

    def handle_endtag(self, tag: str) -> None:
        while self._inside and self._inside.pop() != tag:
            pass

    def handle_data(self, data: str) -> None:
        if not {"style", "script"} & set(self._inside[-1:]):
            self.seen.append(data)


def numbers_in(document: Any) -> set[float]:
    if isinstance(document, bool) or document is None:
        return set()
    if isinstance(document, (int, float)):
        return {float(document)}
    if isinstance(document, str):
        return {float(found) for found in re.findall(r"\d+(?:\.\d+)?", document)}
    entries = document.values() if isinstance(document, dict) else document
    return set().union(
        *(numbers_in(entry) for entry in entries),
        *(numbers_in(key) for key in document if isinstance(document, dict)),
    )


def test_the_json_of_a_study_keeps_the_published_schema(tmp_path: Path) -> None:
    document = verdict_document(compare([measured(tmp_path / "study")]))

    jsonschema.validate(
        json.loads(json.dumps(document)), json.loads((DOCS / "verdict.schema.json").read_text())
    )


def test_the_schema_refuses_a_document_without_a_contract_field(tmp_path: Path) -> None:
    document: dict[str, object] = {**verdict_document(compare([measured(tmp_path / "study")]))}
    del document["speedup"]

    with pytest.raises(jsonschema.ValidationError, match="speedup"):
        jsonschema.validate(document, json.loads((DOCS / "verdict.schema.json").read_text()))


def test_every_number_on_the_page_stands_in_the_json(tmp_path: Path) -> None:
    document = verdict_document(compare([measured(tmp_path / "study")]))
    reader = _Text()
    reader.feed(page(document))
    known = numbers_in(document)
    # Scales of values: milliseconds and percent; and axis ticks and bin edges, which measure nothing.
    shown = {
        round(value * factor, digits)
        for value in known
        for factor in (1, 100, 1000)
        for digits in (0, 1, 2, 3)
    }
    furniture = {float(tick) for tick in range(0, 101, 10)} | {
        0.25,
        0.33,
        0.67,
        0.8,
        0.9,
        1.1,
        1.2,
        1.3,
        1.5,
        1.75,
        2.5,
    }
    furniture |= {1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 95.0, 99.0}

    body = " ".join(reader.seen)
    found = [float(text) for text in re.findall(r"(?<![\w.])\d+(?:\.\d+)?(?![\w.]*[0-9a-f]{6})", body)]
    missing = sorted(
        {value for value in found if value not in shown and value not in furniture and value not in known}
    )

    assert len(found) > 200
    # Survival axis: half and all of the highest rate shown.
    assert len(missing) <= 2, missing


def test_foreign_text_cannot_act_on_its_reader(tmp_path: Path) -> None:
    html = page(verdict_document(compare([measured(tmp_path / "study", segments=(ATTACK, "talk"))])))

    assert "<script>document.title" not in html
    assert "<img" not in html
    assert "<svg onload" not in html
    assert "{{ 7*7 }}" in html  # shown as it is, not worked out
    assert "\x1b" not in html
    assert "\u202e" not in html
    assert html.count("<script>") == 1


@pytest.mark.parametrize("loads", [(1,), (1, 8)])
def test_the_page_is_whole_and_small(tmp_path: Path, loads: tuple[int, ...]) -> None:
    path = tmp_path / "out" / "report.html"
    write_report(verdict_document(compare([measured(tmp_path / "study", loads=loads)])), path)

    html = path.read_text(encoding="utf-8")
    assert html.rstrip().endswith("</html>")
    assert len(html.encode()) < PAGE_BYTES_MAX
    assert ("Speedup over load" in html) == (len(loads) > 1)
    assert not re.search(r"(src|href)=[\"']?(https?:)?//", html)


def test_a_study_whose_arms_all_failed_still_has_a_page(tmp_path: Path) -> None:
    study = new_study(tmp_path / "study", plan=plan(requests=(request("a"),), rounds=1))
    study.add_launch(launch(id=1, arm=BASELINE, round=0))
    study.add_record(record(arm=BASELINE, launch=1, request_id="a"))
    study.add_launch(launch(id=2, arm=NGRAM.name, round=0))
    study.add_record(record(arm=NGRAM.name, launch=2, request_id="a", outcome=Outcome.DISCONNECTED))
    study.launch_failed(2, failure="died", log_tail="boom")
    study.close()

    assert "Inconclusive" in page(verdict_document(compare([tmp_path / "study"])))


@pytest.mark.browser
def test_a_real_browser_opens_the_page_without_an_error_or_a_request(tmp_path: Path) -> None:
    chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if chromium is None:
        pytest.skip("no Chromium on this machine")
    path = tmp_path / "report.html"
    study = measured(tmp_path / "study", segments=(ATTACK, "copy"))
    write_report(verdict_document(compare([study])), path)
    net_log = tmp_path / "net.json"
    flags = [
        *("--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking"),
        *(
            "--disable-component-update",
            "--disable-sync",
            "--enable-logging=stderr",
            "--virtual-time-budget=3000",
        ),
    ]
    command = [
        chromium,
        *flags,
        f"--user-data-dir={tmp_path / 'profile'}",
        f"--log-net-log={net_log}",
        "--dump-dom",
    ]

    result = subprocess.run(
        [*command, path.as_uri()], capture_output=True, text=True, timeout=100, check=True
    )

    assert "CONSOLE" not in result.stderr, result.stderr
    assert re.search(r"<title>speclift: [A-Z][a-z ]+</title>", result.stdout)
    assert "<svg" in result.stdout
    asked = set(re.findall(r'"url":"([^"]+)"', net_log.read_text()))
    assert not {url for url in asked if url.startswith(("http", "ws", "ftp")) and "google" not in url}, asked
