"""Logs read line by line: broken lines are entries too, and one endless line is not swallowed."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from speclift.core.errors import UsageError
from speclift.studies.log_files import LogEntry, log_shards, read_log


def entries(path: Path, content: bytes, **settings: int) -> list[LogEntry]:
    path.write_bytes(content)
    return list(read_log(path, **settings))


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "log.jsonl"


@pytest.mark.parametrize(
    "content",
    [
        b'{"a": 1}\n{"a": 2}\n',
        b'\xef\xbb\xbf{"a": 1}\r\n\r\n{"a": 2}',
        b'[{"a": 1},\n{"a": 2}]',
        gzip.compress(b'{"a": 1}\n{"a": 2}\n'),
    ],
    ids=["lines", "byte order mark, empty lines, no last newline", "array", "gzip"],
)
def test_every_format_gives_its_entries(log: Path, content: bytes) -> None:
    assert [entry.data for entry in entries(log, content)] == [{"a": 1}, {"a": 2}]


@pytest.mark.parametrize(
    ("line", "fault"),
    [
        (b"{broken", "not JSON"),
        (b"\x89PNG\x00\xff", "not UTF-8 at byte 0"),
        (b"[" * 100_000, "nested too deeply"),
        (b'{"a": ' + b"9" * 5000 + b"}", "too many digits"),
    ],
    ids=["cut off", "binary", "nested", "digits"],
)
def test_a_broken_line_is_an_entry_and_the_rest_is_read(log: Path, line: bytes, fault: str) -> None:
    first, second, third = entries(log, b'{"a": 1}\n' + line + b'\n{"a": 3}\n')

    assert fault in second.fault
    assert second.where == f"{log} line 2"
    assert (first.data, third.data) == ({"a": 1}, {"a": 3})


def test_a_line_beyond_the_limit_is_skipped_in_pieces(log: Path) -> None:
    long = json.dumps({"a": "x" * 500}).encode()
    found = entries(log, b'{"a": 1}\n' + long + b'\n{"a": 3}\n', line_bytes_max=64)

    assert [entry.data for entry in found] == [{"a": 1}, None, {"a": 3}]
    assert found[1].fault == "longer than 64 bytes"


@pytest.mark.slow
def test_entries_come_before_the_end_is_reached(tmp_path: Path) -> None:
    """Constant memory: the first entry is there although the file breaks off later."""
    path = tmp_path / "log.gz"
    path.write_bytes(gzip.compress(b'{"a": 1}\n' * 40_000)[:-50])
    reading = read_log(path)

    assert next(reading).data == {"a": 1}
    with pytest.raises(UsageError):
        list(reading)


class TestShards:
    def test_a_pattern_is_its_files_by_name(self, tmp_path: Path) -> None:
        for name in ("b.jsonl", "a.jsonl", ".hidden.jsonl", "c.txt"):
            (tmp_path / name).write_text("{}")
        (tmp_path / "d.jsonl").mkdir()

        found = log_shards([str(tmp_path / "*.jsonl"), tmp_path / "c.txt", tmp_path / "a.jsonl"])

        assert [Path(each).name for each in found] == ["a.jsonl", "b.jsonl", "c.txt"]

    def test_a_file_that_is_called_like_a_pattern_is_itself(self, tmp_path: Path) -> None:
        path = tmp_path / "log[1].jsonl"
        path.write_text("{}")

        assert log_shards([path]) == (str(path),)

    def test_an_object_store_is_read_through_fsspec(self) -> None:
        fsspec = pytest.importorskip("fsspec")
        with fsspec.open("memory://logs/b.jsonl", "wb") as file:
            file.write(b'{"b": 1}\n')
        with fsspec.open("memory://logs/a.jsonl.gz", "wb") as file:
            file.write(gzip.compress(b'{"a": 1}\n'))

        shards = log_shards(["memory://logs/*"])

        assert shards == ("memory:///logs/a.jsonl.gz", "memory:///logs/b.jsonl")
        assert [entry.data for shard in shards for entry in read_log(shard)] == [{"a": 1}, {"b": 1}]
