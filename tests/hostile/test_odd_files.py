"""Files that somebody edited, damaged or made to hurt: a message and an exit code, never a traceback."""

from __future__ import annotations

import json
import shutil
import sqlite3
import subprocess
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

import speclift.weights
from running import LIMIT_S, Cli, Decided, command, fake_flags
from speclift.core.errors import without_tracebacks

DEEP = "[" * 100_000 + "]" * 100_000
DEEP_OBJECT = '{"a":' * 100_000 + "1" + "}" * 100_000
DIGITS = "9" * 5_000
SMALL = ("--requests", 2, "--max-tokens", 4, "--launches", 1)

# What an editor, a damaged disk or another program may have left in a column.
VALUES: dict[str, object] = {
    "text": "neither",
    "null": None,
    "negative": -1,
    "float": 1.5,
    "huge": 2**62,
    "infinite": float("inf"),
    "bytes": b"\xff\x00",
    "empty": "",
    "a list": "[1, 2]",
    "an object": '{"a": 1}',
    "a string": '"words"',
    "deep": DEEP,
    "digits": DIGITS,
    "digits in a list": f"[{DIGITS}]",
    "not a number": '{"concurrency": NaN}',
}


def columns(study: Path) -> list[tuple[str, str]]:
    with closing(sqlite3.connect(study / "study.sqlite")) as database:
        tables = ("meta", "requests", "launches", "turns", "records", "findings")
        return [(t, row[1]) for t in tables for row in database.execute(f"PRAGMA table_info({t})")]


@pytest.fixture
def edited(decided: Decided, tmp_path: Path) -> Path:
    copy = tmp_path / "edited"
    shutil.copytree(decided.study, copy)
    return copy


@pytest.mark.timeout(300)
@pytest.mark.parametrize("every", [15, pytest.param(1, marks=pytest.mark.slow)], ids=["some", "all"])
@pytest.mark.parametrize("kind", VALUES)
def test_a_study_with_any_column_edited_gives_a_verdict_or_a_message(
    kind: str, every: int, decided: Decided, cli: Cli, tmp_path: Path
) -> None:
    """Some: every value and every column is met, though not each value in each column."""
    for table, column in columns(decided.study)[list(VALUES).index(kind) % every :: every]:
        study = tmp_path / f"{table}-{column}"
        shutil.copytree(decided.study, study)
        with closing(sqlite3.connect(study / "study.sqlite", isolation_level=None)) as database:
            keys = [None]
            if table == "meta" and column == "value":
                keys = [key for (key,) in database.execute("SELECT key FROM meta")]
            try:
                for key in keys:
                    where = "" if key is None else f" WHERE key = '{key}'"
                    before = None if key is None else _value(database, key)
                    database.execute(f'UPDATE {table} SET "{column}" = ?{where}', (VALUES[kind],))
                    _judge(cli, study, f"{table}.{column} {key or ''} = {kind}")
                    if key is not None:
                        database.execute("UPDATE meta SET value = ? WHERE key = ?", (before, key))
            except sqlite3.Error:
                continue  # the database itself refuses such a value
        shutil.rmtree(study)


def _value(database: sqlite3.Connection, key: str) -> object:
    return database.execute("SELECT value FROM meta WHERE key = ?", (key,)).fetchone()[0]


def _judge(cli: Cli, study: Path, what: str) -> None:
    try:
        result = cli("compare", study, "--json")
    except Exception as error:
        raise AssertionError(f"{what}: {type(error).__name__}: {error}"[:500]) from error
    assert result.code in {0, 1, 2, 3, 4, 5, 6}, what
    assert result.code not in {1, 2} or "error:" in result.stderr, what
    assert len(result.stderr) < 60_000, what


PROMPT_FILES = {
    "deep list": DEEP,
    "deep object": DEEP_OBJECT,
    "deep value": f'{{"prompt": "x", "id": {DEEP}}}',
    "digits": f'{{"prompt": "x", "max_tokens": {DIGITS}}}',
    "digits as temperature": f'{{"prompt": "x", "temperature": {DIGITS}}}',
    "digits alone": DIGITS,
    "infinite": '{"prompt": "x", "temperature": 1e999}',
    "not a number": '{"prompt": "x", "temperature": NaN}',
    "huge limit": '{"prompt": "x", "max_tokens": 1e30}',
    "huge whole limit": f'{{"prompt": "x", "max_tokens": {10**30}}}',
    "huge arrival": '{"prompt": "x", "arrival_s": 1e300}',
}


@pytest.mark.parametrize("content", PROMPT_FILES)
@pytest.mark.parametrize("verb", ["measure", "replay"])
def test_odd_prompt_files_are_named_with_their_line(
    verb: str, content: str, cli: Cli, tmp_path: Path
) -> None:
    path = tmp_path / "prompts.jsonl"
    path.write_text(PROMPT_FILES[content] + "\n")
    words = ("--prompts", path, *fake_flags(), *SMALL) if verb == "measure" else (path,)
    result = cli(verb, *words)
    assert result.code == 2 or (result.code, content) in {(0, "huge arrival"), (1, "huge arrival")}, (
        result.stderr
    )
    assert len(result.stderr) < 5_000


STUDY_FILES = {
    "deep": f"k = {DEEP}",
    "digits": f"requests = {DIGITS}",
    "digits as k": f"k = [{DIGITS}]",
    "deep tables": "[" + ".".join("a" * 1 for _ in range(20_000)) + "]",
    "infinite": "min_speedup = inf",
    "not a number": "min_speedup = nan",
    "huge": f"concurrency = [{10**18}]",
}


@pytest.mark.slow
@pytest.mark.parametrize("content", STUDY_FILES)
def test_odd_study_files_are_wrong_usage(content: str, cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "speclift.toml").write_text(STUDY_FILES[content] + "\n")
    result = cli("measure", *fake_flags(), *SMALL[2:])
    assert result.code == 2, result.stderr
    assert len(result.stderr) < 5_000


MODEL_FILES = {
    "deep": DEEP,
    "deep object": DEEP_OBJECT,
    "digits": f'{{"architectures": ["LlamaForCausalLM"], "hidden_size": {DIGITS}}}',
    "huge": '{"architectures": ["LlamaForCausalLM"], "hidden_size": 1e400}',
    "not an object": "[]",
}


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "tokenizer_config.json"])
@pytest.mark.parametrize("content", MODEL_FILES)
def test_odd_model_folders_are_said_so(name: str, content: str, cli: Cli, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    sound = {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 64, "intermediate_size": 128,
        "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 4, "vocab_size": 32,
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(sound))
    (folder / name).write_text(MODEL_FILES[content])
    result = cli("plan", "--target", folder, "--draft", folder, "--gpu", "h200")
    assert result.code in {0, 1, 2, 4}
    if name == "config.json":
        assert result.code in {1, 2}, result.stderr
    log = tmp_path / "log.jsonl"
    log.write_text(json.dumps({"prompt": "a b c", "response": "a b c d"}) + "\n")
    assert cli("replay", log, "--tokenizer", folder).code in {0, 1, 2}


def test_a_gguf_with_tensors_of_no_size_is_read_or_refused(cli: Cli, tmp_path: Path) -> None:
    import gguf
    import numpy as np

    path = tmp_path / "empty.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_tensor("token_embd.weight", np.zeros((0, 0), dtype=np.float32))
    writer.add_tensor("output.weight", np.zeros((0, 4), dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    for verb in (("plan", "--target", path, "--gpu", "h200"), ("decide", "--model", path, *SMALL)):
        result = cli(*verb, "--dry-run") if verb[0] == "decide" else cli(*verb)
        assert result.code in {0, 1, 2, 4}, result.stderr


@pytest.mark.parametrize(
    ("out", "code", "said"),
    [
        ("folder", 2, "is a directory"),
        ("/dev/full", 2, "is a device"),
        ("prompts.jsonl", 2, "the same file"),
        ("a-file/report.html", 1, "cannot be written"),
        ("/proc/nowhere/report.html", 1, "cannot be written"),
    ],
)
@pytest.mark.parametrize("verb", ["decide", "tune"])
def test_a_report_that_cannot_be_written_is_said_before_anything_is_measured(
    verb: str, out: str, code: int, said: str, cli: Cli, tmp_path: Path
) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "a-file").touch()
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text('{"prompt": "Say hello."}\n')
    result = cli(verb, *fake_flags(), *SMALL[2:], "--prompts", prompts, "--out", out, "--study", "s")
    assert result.code == code, result.stderr
    assert said in result.stderr
    assert not (tmp_path / "s").exists()
    assert prompts.read_text() == '{"prompt": "Say hello."}\n'
    assert sorted(each.name for each in tmp_path.iterdir()) == ["a-file", "folder", "prompts.jsonl"]


@pytest.mark.parametrize(
    ("study", "code", "said"),
    [("a-file", 2, "is a file"), ("a-file/s", 1, "is a file"), ("/proc/nowhere/s", 1, "/proc")],
)
def test_a_study_that_cannot_be_made_is_said_before_anything_is_measured(
    study: str, code: int, said: str, cli: Cli, tmp_path: Path
) -> None:
    (tmp_path / "a-file").touch()
    result = cli("measure", *fake_flags(), *SMALL, "--study", study)
    assert result.code == code, result.stderr
    assert said in result.stderr
    assert "launch" not in result.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    "arguments",
    [
        pytest.param(
            ["measure", *fake_flags(), "--requests", 1, "--max-tokens", 4, "--launches", 1, "--json"],
            marks=pytest.mark.slow,
        ),
        pytest.param(["plan", "--target", "llama-3.1-8b", "--gpu", "h200", "--json"], marks=pytest.mark.slow),
        pytest.param(["measure", *fake_flags(), "--dry-run"], marks=pytest.mark.slow),
        ["lint", "--json", "--", "vllm", "serve", "m"],
    ],
    ids=lambda words: " ".join(map(str, words[:1])) + (" dry" if "--dry-run" in words else ""),
)
def test_standard_output_on_a_full_disk_is_a_message(arguments: list[object], tmp_path: Path) -> None:
    with Path("/dev/full").open("w") as full:
        result = subprocess.run(
            command(arguments),
            cwd=tmp_path,
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            timeout=LIMIT_S,
            check=False,
        )
    assert result.returncode == 1, result.stderr
    assert "No space left" in result.stderr
    assert "Traceback" not in result.stderr


def test_a_dry_run_fetches_nothing_and_says_what_would_be(cli: Cli, tmp_path: Path) -> None:
    for verb in ("decide", "measure", "tune", "verify"):
        result = cli(verb, "--dry-run", "--method", "ngram,k=7,n=6")
        assert result.code == 0, result.stderr
        assert "would be fetched" in result.stderr
        assert "--spec-type ngram-simple" in result.stdout
    assert not any((tmp_path / "cache").rglob("*.gguf"))
    assert list(tmp_path.glob("studies")) == []


TRACE = """INFO loading
Traceback (most recent call last):
  File "/a.py", line 1, in <module>
    import b
ModuleNotFoundError: No module named 'b'

During handling of the above exception, another exception occurred:

Traceback (most recent call last):
  File "/a.py", line 3, in <module>
    main()
RuntimeError: the engine core did not start"""


@pytest.mark.parametrize(
    ("log", "shown"),
    [
        (TRACE, "INFO loading\nRuntimeError: the engine core did not start"),
        ('  File "/a.py", line 3, in f\n    g()\nValueError: no', "ValueError: no"),
        ("an ordinary line\n  and an indented one", "an ordinary line\n  and an indented one"),
        ("", ""),
    ],
    ids=["chained", "cut at its head", "none", "empty"],
)
def test_an_engine_s_traceback_becomes_its_last_line(log: str, shown: str) -> None:
    assert without_tracebacks(log) == shown


def test_a_server_that_fails_with_a_traceback_is_shown_by_its_last_line(cli: Cli, tmp_path: Path) -> None:
    binary = tmp_path / "llama-server"
    binary.write_text(
        "#!/bin/sh\ncase \"$*\" in *--version*) echo 'version: 1'; exit 0;; esac\n"
        f"cat >&2 <<'END'\n{TRACE}\nEND\nexit 1\n"
    )
    binary.chmod(0o755)
    (bundled,) = Path(speclift.weights.__file__).parent.glob("bundled/*.gguf")
    result = cli("measure", "--llama-server", binary, "--model", bundled, "--method", "off", *SMALL)
    assert result.code == 1
    assert "the engine core did not start" in result.stderr
    assert "Traceback" not in result.stderr


def test_every_value_is_tried() -> None:
    kinds: Iterator[type] = (type(value) for value in VALUES.values())
    assert {str, int, float, bytes} <= set(kinds)
