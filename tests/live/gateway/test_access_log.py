"""The access log: what stands in it, that nothing waits for it, and that it is tomorrow's workload."""

from __future__ import annotations

import json
import os
import resource
import stat
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

from byte_tokenizer import write_byte_tokenizer
from processes import eventually
from routed import routed
from speclift.core.errors import UsageError
from speclift.core.routing import RequestEnd, RequestFeatures, RoutedRequest
from speclift.live.gateway.access_log import AccessLog, access_line
from speclift.studies.prompt_files import read_workload
from speclift.verbs.replay import replay

ODD_TEXTS = [
    "plain words that repeat, plain words that repeat",
    "ünïcode 🦊 漢字 \u2028\u0085\ufeff",
    'line\nbreaks\r\n"quotes" \\ and \x00 \x1b[31mred\x1b[0m \x9b31m',
    "lone \ud800 surrogate",
    "long " * 100_000,
]


class Said:
    def __init__(self) -> None:
        self.words: list[str] = []

    def __call__(self, text: str) -> None:
        self.words.append(text)


def with_text(prompt: str, answer: str | None, **body: object) -> RoutedRequest:
    asked = {"model": "smol", "messages": [{"role": "user", "content": prompt}], "stream": True, **body}
    return replace(routed(), request_body=json.dumps(asked).encode(), answer_text=answer)


def written(path: Path, *requests: RoutedRequest, keeps_text: bool = False) -> list[dict[str, object]]:
    said = Said()
    log = AccessLog(path, keeps_text=keeps_text, say=said)
    for request in requests:
        log.note(request)
    log.close()
    assert not said.words
    return [json.loads(line) for line in path.read_bytes().splitlines()]


def test_a_line_says_what_was_measured_and_holds_no_text(tmp_path: Path) -> None:
    secret = "what is my diagnosis"
    (line,) = written(tmp_path / "access.jsonl", with_text(secret, secret))
    assert secret not in json.dumps(line)
    assert "request" not in line
    expected = {
        **{"segment": "chat", "pool": "spec", "end": "ok", "status": 200, "temperature": 0.0},
        **{"ttft_s": 0.2, "e2e_s": 1.0, "output_tokens": 50, "drafted": 40, "accepted": 30, "max_tokens": 64},
        **{"at": "2025-11-16T13:33:20.250+00:00", "arrival_s": 1_763_300_000.25, "canary": False},
    }
    assert {key: line[key] for key in expected} == expected


def test_neither_keys_nor_people_stand_in_it(tmp_path: Path) -> None:
    features = RequestFeatures(
        path="/v1/x", fields={"authorization": "Bearer sk-1"}, session="alice@example.org"
    )
    request = replace(routed(features=features), server="http://user:pass@host:1/v1?key=abcd")
    raw = access_line(request, keeps_text=True).decode()
    assert all(secret not in raw for secret in ("sk-1", "alice", "pass", "abcd"))
    other = access_line(replace(request, features=replace(features, session="bob")), keeps_text=True)
    assert json.loads(raw)["session"] != json.loads(other)["session"]


@pytest.mark.parametrize("text", ODD_TEXTS)
def test_a_line_is_one_line_of_ascii(text: str) -> None:
    features = RequestFeatures(path=text, model=text, session=text, temperature=float("nan"))
    request = replace(with_text(text, text), request_id=text, features=features)
    raw = access_line(
        replace(request, route=replace(request.route, segment=text, reasons=(text,))), keeps_text=True
    )
    assert raw.isascii()
    assert raw.count(b"\n") == 1
    assert not any(byte < 32 for byte in raw[:-1])
    line = json.loads(raw, parse_constant=pytest.fail)
    assert line["response"] == text
    assert line["request"]["messages"][0]["content"] == text


def test_it_is_for_the_user_alone_and_goes_on_where_it_was(tmp_path: Path) -> None:
    path = tmp_path / "access.jsonl"
    written(path, routed())
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert len(written(path, routed(), routed())) == 3


@pytest.mark.parametrize(("mode", "warnings"), [(0o600, 0), (0o640, 1), (0o644, 1)])
def test_one_that_others_can_read_already_is_said(mode: int, warnings: int, tmp_path: Path) -> None:
    path, said = tmp_path / "access.jsonl", Said()
    path.touch()
    path.chmod(mode)
    AccessLog(path, keeps_text=True, say=said).close()
    assert [f"(mode {mode:o}): chmod 600" in words for words in said.words] == [True] * warnings


@pytest.mark.slow
def test_a_file_that_was_moved_is_begun_anew(tmp_path: Path) -> None:
    path, moved = tmp_path / "access.jsonl", tmp_path / "access.jsonl.1"
    log = AccessLog(path, keeps_text=False, say=Said())
    log.note(routed())
    eventually(lambda: path.stat().st_size > 0, what="the first line")
    path.rename(moved)
    log.reopen()
    eventually(path.exists, what="the new file")
    log.note(routed())
    log.close()
    assert [len(each.read_bytes().splitlines()) for each in (moved, path)] == [1, 1]


@pytest.mark.slow
def test_a_folder_that_is_gone_is_said_once_and_its_return_too(tmp_path: Path) -> None:
    folder, said = tmp_path / "logs", Said()
    folder.mkdir()
    path = folder / "access.jsonl"
    log = AccessLog(path, keeps_text=False, say=said)
    path.unlink()
    folder.rmdir()
    for _ in range(3):
        log.note(routed())
        log.reopen()
        eventually(lambda: bool(said.words), what="the complaint")
    folder.mkdir()
    log.note(routed())
    eventually(lambda: len(said.words) == 2, what="that it is written again")
    log.close()
    assert "No such file or directory; traffic goes on" in said.words[0]
    assert "written again" in said.words[1]


def test_a_full_disk_is_said_and_costs_one_line(tmp_path: Path) -> None:
    """A limit on the size of files stands for the disk."""
    path, said = tmp_path / "access.jsonl", Said()
    log = AccessLog(path, keeps_text=False, say=said)
    line = len(access_line(routed(), keeps_text=False))
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (line + line // 2, before[1]))
    try:
        log.note(routed())
        log.note(routed())
        eventually(lambda: bool(said.words), what="the complaint")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    log.note(routed())
    log.close()
    whole, cut, after = path.read_bytes().splitlines()
    assert json.loads(whole) == json.loads(after)
    with pytest.raises(json.JSONDecodeError):
        json.loads(cut)


@pytest.mark.slow
def test_a_disk_that_hangs_stops_no_traffic(tmp_path: Path) -> None:
    """A pipe that nobody reads stands for it."""
    path, said = tmp_path / "pipe", Said()
    os.mkfifo(path)
    reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    log = AccessLog(path, keeps_text=False, say=said)
    try:
        slowest = 0.0
        for _ in range(25_000):
            start = time.perf_counter()
            log.note(routed_once)
            slowest = max(slowest, time.perf_counter() - start)
        assert slowest < 5
        assert len(log._waiting) <= 20_000
    finally:
        emptied = threading.Thread(target=_read_all, args=(reader,))
        emptied.start()
        log.close()
        emptied.join(10)
    assert any("dropped" in words for words in said.words)


routed_once = routed()


def _read_all(reader: int) -> None:
    os.set_blocking(reader, True)
    while os.read(reader, 1 << 16):
        pass
    os.close(reader)


# Read back -----------------------------------------------------------------------------------------------------------


def unlike() -> list[RoutedRequest]:
    """What is no answer to replay."""
    embeddings = RequestFeatures(path="/v1/embeddings", is_generation=False)
    return [
        replace(with_text("x", None), end=RequestEnd.UNANSWERED, pool=None, server=None),
        replace(with_text("x", "half"), end=RequestEnd.CUT),
        replace(with_text("x", "half"), end=RequestEnd.LEFT),
        replace(with_text("x", None), end=RequestEnd.REFUSED, status=400),
        replace(with_text("x", None), features=embeddings),
        replace(routed(), request_body=b"no JSON"),
    ]


@pytest.mark.parametrize("text", ODD_TEXTS)
def test_decide_reads_back_what_was_asked(tmp_path: Path, text: str) -> None:
    path = tmp_path / "access.jsonl"
    asked = with_text(text, "yes", temperature=0.7, top_p=0.9, max_tokens=33)
    written(path, *unlike(), asked, keeps_text=True)
    workload = read_workload(path)
    (request,) = workload.requests
    assert request.messages[0].content == text
    assert (request.segment, request.temperature, request.top_p, request.max_tokens) == ("chat", 0.7, 0.9, 33)
    assert (request.arrival_s, request.response) == (1_763_300_000.25, "yes")
    assert workload.left_out == "failed or no generation: 6"


def test_what_the_answer_must_keep_to_is_asked_for_again(tmp_path: Path) -> None:
    path = tmp_path / "access.jsonl"
    tools = [{"type": "function", "function": {"name": "f", "parameters": {}}}]
    schema = {"type": "json_schema", "json_schema": {"name": "n", "schema": {}}}
    bodies: tuple[dict[str, object], ...] = (
        {"tools": tools, "tool_choice": "auto"},
        {"response_format": schema},
        {},
    )
    written(path, *(with_text("x", "y", **body) for body in bodies), keeps_text=True)
    formats = [request.answer_format for request in read_workload(path).requests]
    assert [{} if each is None else json.loads(each) for each in formats] == list(bodies)


def test_requests_for_more_than_text_are_left_out_and_counted(tmp_path: Path) -> None:
    path = tmp_path / "access.jsonl"
    picture = [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:x"}}]}]
    written(path, with_text("", "y", messages=picture), with_text("x", "y"), keeps_text=True)
    workload = read_workload(path)
    assert len(workload.requests) == 1
    assert workload.left_out == "more than text: 1"


@pytest.mark.parametrize("reads", [read_workload, lambda path: replay([path])])
def test_a_log_without_text_is_refused_with_what_to_do(tmp_path: Path, reads: object) -> None:
    path = tmp_path / "access.jsonl"
    written(path, routed())
    assert callable(reads)
    with pytest.raises(UsageError, match="access log without text") as refused:
        reads(path)
    assert "--log-text" in (refused.value.hint or "")


def test_replay_reads_back_what_was_answered(tmp_path: Path) -> None:
    path = tmp_path / "access.jsonl"
    tools = [{"type": "function", "function": {"name": "f", "parameters": {}}}]
    copied = with_text(
        "say: one two three four five six", "one two three four five six", temperature=0, tools=tools
    )
    called = replace(with_text("call", None), finish_reason="tool_calls")
    written(path, *unlike(), copied, called, with_text("two at once", "ab", n=2), keeps_text=True)
    found = replay([path], tokenizer=write_byte_tokenizer(tmp_path / "tokenizer"))
    log = found.log
    assert (log.requests, log.replayed, log.no_generation, log.no_response, log.unreadable) == (9, 1, 6, 2, 0)
    assert log.temperature.greedy == 1
    assert [finding.check for finding in found.findings][:2] == ["no-response", "no-generation"]
    assert {each.segment for each in found.segments} == {"all", "chat"}


def test_a_pipe_that_nobody_reads_is_not_waited_for(tmp_path: Path) -> None:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    with pytest.raises(UsageError, match="cannot be written"):
        AccessLog(path, keeps_text=False, say=Said())
