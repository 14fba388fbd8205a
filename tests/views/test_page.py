"""The report page: all it shows stands in the JSON, the JSON keeps its schema, and foreign text stays text."""

from __future__ import annotations

import json
import re
from collections import Counter
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from msgspec import structs

from page_samples import ARTICLES, DOCUMENTS, LINE
from samples import NGRAM, launch, new_study, plan, record, request
from speclift.core.arm import BASELINE
from speclift.core.document import plain_object, read
from speclift.core.records import Outcome, Step
from speclift.core.traffic import Concurrency, Load
from speclift.verbs.compare import compare
from speclift.verbs.judged import write_report
from speclift.verdict.document import VerdictDocument, verdict_document
from speclift.views.page import QUESTIONS, page
from speclift.views.page_templates import GLOSSARY

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs" / "schema"
PAGE_BYTES_MAX = 6_000_000
# Words of the documents that the program chooses among; all other text is somebody's.
CHOSEN = {
    *("verdict", "level", "result", "part", "outcome", "stage", "purpose", "metric", "source", "by", "axis"),
    *("design", "method", "mode"),
}
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
    """The text a reader sees, without style and script; and every tag with its attributes."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.seen: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self._inside: list[str] = []
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
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


def ratios_in(document: Any) -> set[float]:
    """What the page works out: medians over each other, and what a step costs by them."""
    cells = {
        (cell["arm"], str(cell["load"]), cell["segment"]): cell
        for cell in document["cells"]
        if cell["temperature"] is None
    }
    ratios = set()
    for (_, load, segment), cell in cells.items():
        base = cells[BASELINE, load, segment]
        ratio = base["tpot_s"]["p50"] / cell["tpot_s"]["p50"]
        ratios |= {
            base["e2e_s"]["p50"] / cell["e2e_s"]["p50"],
            (cell["accepted_length"] or {"value": 0})["value"] / ratio,
        }
        for field in ("ttft_s", "tpot_s", "e2e_s"):
            ratios |= {
                cell[field][name] / base[field][name] - 1
                for name in ("p50", "p95", "p99")
                if cell[field][name]
            }
    return ratios | {abs(ratio) for ratio in ratios}


@pytest.mark.slow
def test_the_json_of_a_study_keeps_the_published_schema(tmp_path: Path) -> None:
    document = verdict_document(compare([measured(tmp_path / "study")]))

    jsonschema.validate(plain_object(document), json.loads((DOCS / "verdict.schema.json").read_text()))


@pytest.mark.slow
def test_the_schema_refuses_a_document_without_a_contract_field(tmp_path: Path) -> None:
    document = plain_object(verdict_document(compare([measured(tmp_path / "study")])))
    del document["speedup"]

    with pytest.raises(jsonschema.ValidationError, match="speedup"):
        jsonschema.validate(document, json.loads((DOCS / "verdict.schema.json").read_text()))


def test_every_number_on_the_page_stands_in_the_json(tmp_path: Path) -> None:
    document = verdict_document(compare([measured(tmp_path / "study")]))
    reader = _Text(page(document))
    known = numbers_in(plain_object(document)) | ratios_in(plain_object(document))
    known |= {float(count) for count in Counter(article.outcome for article in document.articles).values()}
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
    assert missing == []


@pytest.mark.parametrize("loads", [(1,), (1, 8)])
def test_the_page_is_whole_and_small(tmp_path: Path, loads: tuple[int, ...]) -> None:
    path = tmp_path / "out" / "report.html"
    write_report(verdict_document(compare([measured(tmp_path / "study", loads=loads)])), path)

    html = path.read_text(encoding="utf-8")
    assert html.rstrip().endswith("</html>")
    assert len(html.encode()) < PAGE_BYTES_MAX
    assert ("Speedup over load" in html) == (len(loads) > 1)
    assert html.startswith("<!doctype html>")
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


def attacked(document: Any, key: str = "") -> Any:
    """With an attack in every text that is somebody's."""
    if isinstance(document, dict):
        return {name: attacked(value, name) for name, value in document.items()}
    if isinstance(document, list):
        return [attacked(value, key) for value in document]
    return f"{document}{ATTACK}" if isinstance(document, str) and key not in CHOSEN else document


@pytest.mark.parametrize("name", ["tune", "conditions", "output-changed", "all-failed"])
def test_no_text_of_the_document_can_act_on_its_reader(name: str) -> None:
    document = attacked(plain_object(structs.replace(DOCUMENTS[name], articles=ARTICLES, line=LINE)))
    document["configuration"] = {ATTACK: ATTACK}
    document["goals"]["slo"] = {ATTACK: 0.1}

    html = page(read(VerdictDocument, document))

    tags = _Text(html).tags
    assert not {"img", "onload", "onerror"} & {word for tag, found in tags for word in (tag, *found)}
    assert [found for tag, found in tags if tag == "script"] == [{}]
    assert html.count("</script>") == 1
    assert html.count("</style>") == 1
    assert not {"\x1b", "\u202e"} & set(html)
    assert "pwned" in html


@pytest.mark.parametrize("name", DOCUMENTS)
def test_every_state_answers_the_ten_questions_in_order(name: str) -> None:
    document = DOCUMENTS[name]
    html = page(document)

    headings = [
        html.index(f'<h2 id="{place}-question">{question}</h2>') for place, question in QUESTIONS.items()
    ]
    assert len(headings) == 10
    assert headings == sorted(headings)
    assert document.answer is not None
    assert document.answer.sentence in "".join(_Text(html).seen)
    assert "None" not in "".join(_Text(html).seen).replace("None:", "").replace("None of them", "")


@pytest.mark.parametrize("name", DOCUMENTS)
def test_every_state_can_be_read_without_seeing_it(name: str) -> None:
    tags = _Text(page(DOCUMENTS[name])).tags
    counted = Counter(tag for tag, _ in tags)

    assert counted["table"] == counted["caption"]
    assert counted["select"] + counted["input"] <= counted["label"]
    assert all("scope" in found for tag, found in tags if tag == "th")
    assert counted["h1"] == 1
    names = [found["id"] for _, found in tags if "id" in found]
    assert len(names) == len(set(names))
    targets = {found["href"] for tag, found in tags if tag == "a"}
    assert targets <= {f"#{name}" for name in names}
    plots = [found for _, found in tags if found.get("class") == "plot"]
    assert counted["details"] >= len(plots)


def test_every_word_of_the_field_is_linked_once_to_what_it_means() -> None:
    tags = _Text(page(DOCUMENTS["tune"])).tags
    linked = Counter(found["href"] for tag, found in tags if found.get("class") == "term")

    assert linked == dict.fromkeys((f"#term-{name}" for name in GLOSSARY), 1)
    documented = re.findall(r"^\*\*(.+?)\*\*:", (ROOT / "docs" / "glossary.md").read_text(), re.MULTILINE)
    assert {word for word, _ in GLOSSARY.values()} <= set(documented)


def test_commands_to_run_again_are_quoted_for_a_shell() -> None:
    argv = ("decide", "--engine-arg", "a b; rm c")
    document = structs.replace(
        DOCUMENTS["ship"],
        study="my study",
        provenance=structs.replace(DOCUMENTS["ship"].provenance, argv=argv),
    )

    text = "".join(_Text(page(document)).seen)

    assert "speclift decide --engine-arg 'a b; rm c'" in text
    assert "speclift report 'my study'" in text
