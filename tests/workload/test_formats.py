"""The request files people have: JSON lines, OpenAI batch files, ShareGPT, plain or gzipped."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from speclift.core.errors import UsageError
from speclift.core.traffic import Message, Request, Workload
from speclift.studies.prompt_files import read_workload
from speclift.workload.formats import read_entries
from speclift.workload.prompts import parse_workload

SOURCE = "file"
ASK = {"role": "user", "content": "How deep is Lake Baikal?"}


def parse(content: str | bytes) -> Workload:
    raw = content.encode() if isinstance(content, str) else content
    return parse_workload(raw.splitlines(keepends=True), source=SOURCE)


def json_lines(*entries: Any) -> str:
    return "".join(json.dumps(entry) + "\n" for entry in entries)


def only(content: str | bytes) -> Request:
    (request,) = parse(content).requests
    return request


def batch(body: Any, **around: Any) -> dict[str, Any]:
    return {"custom_id": "r1", "method": "POST", "url": "/v1/chat/completions", "body": body, **around}


def conversation(*turns: tuple[str, str], **around: Any) -> dict[str, Any]:
    return {"conversations": [{"from": who, "value": text} for who, text in turns], **around}


# OpenAI batch files


def test_a_batch_line_becomes_a_request_under_its_custom_id() -> None:
    body = {"model": "m", "messages": [ASK], "temperature": 0.4, "top_p": 0.9, "max_tokens": 40, "n": 1}
    assert only(json_lines(batch(body))) == Request(
        id="r1",
        messages=(Message(role="user", content="How deep is Lake Baikal?"),),
        temperature=0.4,
        top_p=0.9,
        max_tokens=40,
    )


# Content lists


# ShareGPT


def test_a_conversation_is_asked_up_to_its_last_human_turn() -> None:
    talk = conversation(
        ("system", "Be brief."),
        ("human", "Hi"),
        ("gpt", "Hello"),
        ("human", "And?"),
        ("gpt", "Well."),
        id="c7",
    )
    assert only(json.dumps([talk])) == Request(
        id="c7",
        messages=(
            Message(role="system", content="Be brief."),
            Message(role="user", content="Hi"),
            Message(role="assistant", content="Hello"),
            Message(role="user", content="And?"),
        ),
        response="Well.",
    )


@pytest.mark.parametrize(
    ("turns", "response"),
    [
        pytest.param((("user", "Hi"), ("chatgpt", "Hello")), "Hello", id="the other names"),
        pytest.param((("Human", "Hi"), ("GPT", "Hello")), "Hello", id="capitals"),
        pytest.param((("human", "Hi"),), None, id="nobody answered"),
        pytest.param((("human", "Hi"), ("system", "Stop.")), None, id="not the assistant"),
        pytest.param(
            (("human", "Hi"), ("gpt", "Hello"), ("gpt", "Still here?")), "Hello", id="answered twice"
        ),
    ],
)
def test_the_response_is_the_assistant_turn_that_follows(
    turns: tuple[tuple[str, str], ...], response: str | None
) -> None:
    assert only(json.dumps([conversation(*turns)])).response == response


# The array around them


@pytest.mark.parametrize("indent", [None, 2], ids=["one line", "pretty-printed"])
def test_an_array_reads_the_same_however_it_is_laid_out(indent: int | None) -> None:
    talks = [conversation(("human", "Größe 🙂"), id="a"), {"prompt": "Once"}, batch({"messages": [ASK]})]
    workload = parse("\n  " + json.dumps(talks, indent=indent, ensure_ascii=False) + "\n\n")
    assert [request.id for request in workload.requests] == ["a", "index-1", "r1"]
    assert workload.requests[0].messages[0].content == "Größe 🙂"


def test_a_byte_order_mark_is_no_part_of_the_first_request() -> None:
    line = json_lines({"prompt": "Once"})
    for content in (line, f"[{line}]"):
        assert parse(b"\xef\xbb\xbf" + content.encode()) == parse(content)


def test_an_array_above_the_limit_is_refused_before_it_is_parsed() -> None:
    lines = [b"[\n", b'{"prompt": "' + b"a" * 100, b'"}]']
    with pytest.raises(UsageError, match="one JSON array of more than 64 bytes") as caught:
        list(read_entries(lines, source=SOURCE, bytes_max=64))
    assert "jq -c '.[]'" in caught.value.hint


def test_a_line_above_the_limit_is_refused() -> None:
    with pytest.raises(UsageError, match="file line 2 is longer than 64 bytes"):
        list(read_entries([b"{}\n", b"a" * 65], source=SOURCE, bytes_max=64))


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        pytest.param("[1]", "file index 0: expected a JSON object, saw int", id="no object in an array"),
        pytest.param(
            '[{"prompt": "a"},\n {"prompt": }]',
            "file line 2, column 13: index 1 is not JSON",
            id="a syntax error in an entry",
        ),
        pytest.param(
            '[{"prompt": "a"}\n{"prompt": "b"}]', "line 2, column 1: expected ',' or ']' after index 0", id="no comma"
        ),
        pytest.param('[{"prompt": "a"}', "column 17: expected ',' or ']' after index 0", id="cut short"),
        pytest.param('[{"prompt": "a"}]\n[]', "line 2, column 1: the file goes on after", id="two arrays"),
        pytest.param("[]", "file holds no requests", id="an empty array"),
        pytest.param(b'[{"prompt": "\xff"}]', "file: not UTF-8 at byte 13", id="other bytes in an array"),
        pytest.param("[" * 100_000, "file index 0: JSON nested too deeply", id="a deep array"),
        pytest.param('[{"n": ' + "1" * 5000 + "}]", "file index 0: a number has too many digits", id="digits"),
        pytest.param(
            '[{"prompt": "a", "id": 1}, {"prompt": "b", "id": "1"}]',
            "file index 1: id '1' was used on index 0",
            id="an id twice",
        ),
        pytest.param('{"prompt": "a", "arrival_s": Infinity}', "'arrival_s' must be a number in", id="never"),
        pytest.param('{"text": "a"}', "file line 1: needs either 'messages' or 'prompt'", id="neither"),
    ],
)  # fmt: skip
def test_a_wrong_file_is_refused_with_the_place(content: str | bytes, complaint: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse(content)
    assert complaint in str(caught.value)


@pytest.mark.parametrize(
    ("entry", "complaint"),
    [
        pytest.param(batch("{}"), "'body' must be an object, saw str", id="a body as text"),
        pytest.param(batch({"messages": [ASK]}, url="/v1/embeddings"), "saw url '/v1/embeddings'", id="another url"),
        pytest.param(batch({"prompt": ["a", "b"]}), "'prompt' must be text, saw list", id="several prompts"),
        pytest.param(batch({"messages": [ASK], "temperature": "hot"}), "saw 'hot'", id="a temperature as text"),
        pytest.param(
            batch({"messages": [ASK], "max_completion_tokens": 0}), "'max_completion_tokens' must be", id="no tokens"
        ),
        pytest.param(
            {"conversations": [{"from": "human", "value": None}]}, "'value' must be text, saw NoneType", id="no value"
        ),
        pytest.param(
            conversation(("human", "Hi"), ("humna", "Ho")), "unknown speaker 'humna'. Did you mean 'human'?", id="slip"
        ),
    ],
)  # fmt: skip
@pytest.mark.parametrize("is_array", [False, True], ids=["line", "array"])
def test_a_wrong_entry_is_refused_with_the_place(entry: Any, complaint: str, *, is_array: bool) -> None:
    good = {"prompt": "Once"}
    content = json.dumps([good, entry]) if is_array else json_lines(good, entry)
    with pytest.raises(UsageError) as caught:
        parse(content)
    place = "file index 1: " if is_array else "file line 2: "
    assert str(caught.value).startswith(place)
    assert complaint in str(caught.value)


# Files


def test_a_gzipped_file_is_known_by_its_first_bytes(tmp_path: Path) -> None:
    content = json_lines({"prompt": "Once"}, {"prompt": "Twice"}).encode()
    plain, packed = tmp_path / "plain.gz", tmp_path / "packed.jsonl"
    plain.write_bytes(content)
    packed.write_bytes(gzip.compress(content))
    assert read_workload(packed).requests == read_workload(plain).requests
    assert len(read_workload(packed).requests) == 2


@pytest.mark.parametrize(
    ("damage", "complaint"),
    [
        pytest.param(lambda packed: packed[:-12], "end-of-stream", id="cut short"),
        pytest.param(lambda packed: packed[:-8] + b"\0" * 8, "CRC", id="a wrong checksum"),
        pytest.param(lambda packed: packed[:10] + b"\xff" * 40, "decompress", id="noise"),
    ],
)
def test_a_damaged_gzip_file_is_refused(tmp_path: Path, damage: Any, complaint: str) -> None:
    path = tmp_path / "requests.gz"
    path.write_bytes(damage(gzip.compress(json_lines({"prompt": "Once"}).encode())))
    with pytest.raises(UsageError, match=r"cannot read --prompts .*requests\.gz") as caught:
        read_workload(path)
    assert complaint.lower() in str(caught.value).lower()


def test_requests_are_read_from_a_pipe(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    feed = "import gzip, sys; open(sys.argv[1], 'wb').write(gzip.compress(b'{\"prompt\": \"Once\"}'))"
    with subprocess.Popen([sys.executable, "-c", feed, str(pipe)]):
        assert [request.prompt for request in read_workload(pipe).requests] == ["Once"]


@pytest.mark.slow
def test_a_file_beyond_memory_is_an_error_that_says_so(tmp_path: Path) -> None:
    path = tmp_path / "large.json"
    with path.open("wb") as file:
        file.write(b"[")
        file.truncate(300_000_000)  # sparse: nothing of it is written
    program = f"""
import resource
from pathlib import Path
from speclift.core.errors import UsageError
from speclift.studies.prompt_files import read_workload
resource.setrlimit(resource.RLIMIT_AS, (250_000_000, 250_000_000))
try:
    read_workload(Path({str(path)!r}))
except UsageError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == f"--prompts {path} does not fit into memory"
