"""Whatever a server sends, at the parsers: a value or a named error, never a traceback, and no impossible number.

About 200 answers by default; `--hypothesis-profile=night` draws 14,000.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from wild import (
    TEXT,
    as_json,
    choice,
    events,
    literal,
    metrics_page,
    or_wild,
    pieces,
    record_of,
    responses,
    wild,
)

from samples import launch, new_study, record, request
from speclift.bench.asking import read_answer
from speclift.core.engine_totals import USED, counted_between
from speclift.core.errors import EngineError
from speclift.core.foreign_text import error_text, parse_json
from speclift.core.records import AnswerRead, Outcome, Record
from speclift.engines.attach.detect import detect, facts, llamacpp_facts, sglang_facts, vllm_facts
from speclift.engines.metrics import parse_counters
from speclift.http.answer import read_stream
from speclift.http.counts import TOKEN_BYTES_MAX, Limits
from speclift.http.message import HttpError, ResponseReader
from speclift.lossless.questions import Question
from speclift.statistics.bursts import mark_bursts
from speclift.statistics.cells import cells
from speclift.statistics.checks import check_records
from speclift.studies.study import Study

LIMITS = Limits(tokens_max=16, draft_max=4)


def require_possible(result: AnswerRead) -> None:
    """What is not None can be true; what was refused says so."""
    text_bytes = len(result.text.encode("utf-8", "surrogatepass"))
    if result.output_tokens is not None:
        assert 0 <= result.output_tokens <= 16
        assert text_bytes <= result.output_tokens * TOKEN_BYTES_MAX
    assert result.prompt_tokens is None or result.prompt_tokens >= 0
    assert (result.drafted is None) == (result.accepted is None)
    if result.drafted is not None and result.accepted is not None:
        assert 0 <= result.accepted <= result.drafted <= 4 * 17
    for step in result.steps or ():
        assert 0 <= step.accepted <= step.drafted
    assert sum(step.drafted for step in result.steps or ()) <= (result.drafted or 0)
    for refused in result.refused:
        assert refused.rule
        assert len(refused.said) < 300


@given(pieces(events))
def test_streams(reads: list[bytes]) -> None:
    result = read_stream([(float(place), data) for place, data in enumerate(reads)], limits=LIMITS)
    require_possible(result)
    assert result.outcome is Outcome.OK or result.error


@given(pieces(responses()))
def test_whole_responses_with_their_heads(reads: list[bytes]) -> None:
    reader, bodies = ResponseReader(), []
    try:
        bodies = [(float(place), reader.feed(data)) for place, data in enumerate(reads)]
        reader.end()
    except HttpError:
        return
    assert 0 <= reader.status <= 999
    require_possible(read_stream(bodies, limits=LIMITS))


@pytest.mark.slow
@given(metrics_page, metrics_page)
def test_metrics_pages(before: str, after: str) -> None:
    first, second = parse_counters(before), parse_counters(after)
    counted, refused = counted_between(first, second)
    used = [value for key, value in counted.values.items() if key.partition("{")[0] in USED]
    assert all(math.isfinite(value) and value >= 0 for value in used)
    assert not (refused and used)
    told = vllm_facts(second, longest=None)
    assert told.kv_tokens is None or 0 <= told.kv_tokens < 1 << 63


@given(wild, wild)
def test_what_servers_say_about_themselves(slots: Any, info: Any) -> None:
    for page in (slots, info):
        with suppress(ValueError):
            read = parse_json(as_json(page).decode("utf-8", "replace"))
            told = [llamacpp_facts(read)] + ([sglang_facts(read)] if isinstance(read, dict) else [])
            for each in told:
                assert each.kv_tokens is None or 0 < each.kv_tokens < 1 << 63


@given(pieces(events | wild.map(as_json)))
def test_bodies_of_failed_answers(parts: list[bytes]) -> None:
    assert len(error_text(b"".join(parts), limit=100)) <= 100


QUESTION = Question(case="c", request=request(), temperature=0.0, seed=1)


@given(st.fixed_dictionaries({"choices": or_wild(st.lists(or_wild(choice), max_size=2))}) | wild, events)
def test_answers_to_the_lossless_gate(payload: Any, stream: bytes) -> None:
    for question, body in ((QUESTION, as_json(payload)), (replace(QUESTION, stream=True), stream)):
        answer = read_answer(question, body)
        assert answer.error or answer.finish_reason or not question.stream


@pytest.fixture(scope="module")
def pages() -> Iterator[tuple[str, dict[str, bytes]]]:
    """A server's address and what it shows at each path; tests change it as they go."""
    shown: dict[str, bytes] = {}

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200 if self.path in shown else 404)
            self.end_headers()
            self.wfile.write(shown.get(self.path, b""))

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}", shown
    server.shutdown()
    thread.join()
    server.server_close()


models = or_wild(
    record_of(data=st.lists(or_wild(record_of(id=TEXT, owned_by=TEXT, max_model_len=literal)), max_size=2))
)


@settings(max_examples=settings().max_examples // 2)
@given(models, wild, wild, metrics_page)
def test_servers_that_are_asked_who_they_are(
    pages: tuple[str, dict[str, bytes]], listed: Any, version: Any, props: Any, metrics: str
) -> None:
    url, shown = pages
    shown |= {"/v1/models": as_json(listed), "/version": as_json({"version": version})}
    shown |= {"/props": as_json(props), "/slots": as_json(props)}
    shown["/metrics"] = metrics.encode("utf-8", "replace")
    with suppress(EngineError):
        found = detect(url, None)
        assert all(isinstance(name, str) for name in found.models)
        told = facts(found, base=url, metrics_url=f"{url}/metrics", model="m", key=None)
        assert told.kv_tokens is None or 0 <= told.kv_tokens < 1 << 63


def records_from(results: list[AnswerRead]) -> list[Record]:
    usual = record()
    return [
        replace(
            usual,
            place=replace(usual.place, request_id=f"p{number}"),
            outcome=result.outcome,
            error=result.error,
            first_token_s=result.first_token_s,
            last_token_s=result.last_token_s,
            prompt_tokens=result.prompt_tokens,
            output_tokens=result.output_tokens,
            finish_reason=result.finish_reason,
            text=result.text,
            drafted=result.drafted,
            accepted=result.accepted,
            steps=result.steps,
            refused=result.refused,
        )
        for number, result in enumerate(results)
    ]


@settings(max_examples=settings().max_examples // 2)
@given(st.lists(pieces(events), min_size=1, max_size=8))
def test_records_of_them_are_kept_read_back_and_summarised(
    tmp_path_factory: pytest.TempPathFactory, answers: list[list[bytes]]
) -> None:
    results = [
        read_stream([(101.0 + place, data) for place, data in enumerate(reads)], limits=LIMITS)
        for reads in answers
    ]
    records = records_from(results)
    folder: Path = tmp_path_factory.mktemp("fuzz") / "s"
    with new_study(folder) as study:
        study.add_launch(launch())
        for each in records:
            study.add_record(each)
    with Study.open(folder) as study:
        kept = study.records()
    assert [each.refused for each in kept] == [each.refused for each in records]
    for cell in cells(mark_bursts(kept), by_temperature=False):
        assert cell.acceptance_rate is None or 0 <= cell.acceptance_rate.mean <= 1
        assert cell.accepted_length is None or 1 <= cell.accepted_length.value <= 16
        assert cell.per_position is None or list(cell.per_position) == sorted(cell.per_position, reverse=True)
    assert json.dumps([finding.message for finding in check_records(kept)])
