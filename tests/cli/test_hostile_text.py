"""Prompt text of any kind through a whole study: sent and stored unharmed, shown without its claws."""

from __future__ import annotations

import json
import struct
import unicodedata
from pathlib import Path

import pytest

from running import Cli, Result, fake_flags
from speclift.core.records import Phase
from speclift.studies.study import Study
from speclift.testing.fake_truth import FakeRequest, Truth, script_for, token_text

MAX_TOKENS = 8
TEXTS = {
    "quotes": "It's \"quoted\" `twice` \\ and 'once'; DROP TABLE records; -- %s {0}",
    "nul": "before\0after",
    "escapes": "\x1b[31mred\x1b[0m \x1b]0;title\x07 \x1b[2J\x9b31m \r\b\x7f",
    "markup": "[bold red]not markup[/] [/segment] <b>&amp;</b>",
    "long": "x" * 100_000,
    "emoji": "👩‍👩‍👧‍👦 🏳️‍🌈 é ｆｕｌｌ",
    "right-to-left": "\u202eabc\u202c \u2066שלום\u2069 \u200f مرحبا",
    "lines": "one\r\ntwo\u2028three\u0085four\x0bfive",
    "lone surrogate": "\ud800 alone",
    "spaces": " \t\n ",
}
# Controls, bidirectional marks and separators: none of them may reach a terminal as themselves.
RAW = {"Cc", "Cf", "Cs", "Zl", "Zp"}
LAYOUT = {"\n", "\u200d"}  # line ends, and the joiner that holds emoji together


def hostile_file(path: Path) -> None:
    """Each text as a chat message, in its own id and segment, and as a plain prompt."""
    lines = [
        line
        for name, text in TEXTS.items()
        for line in (
            {
                "id": f"{name} {text[:40]}",
                "segment": text[:40],
                "messages": [{"role": "user", "content": text}],
            },
            {"id": f"plain {name}", "segment": "plain", "prompt": text},
        )
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


def raw_characters(text: str) -> set[str]:
    return {c for c in text if unicodedata.category(c) in RAW and c not in LAYOUT}


@pytest.fixture
def result(cli: Cli, tmp_path: Path) -> Result:
    hostile_file(tmp_path / "p.jsonl")
    size = ("--prompts", "p.jsonl", "--temperature", "0", "--max-tokens", MAX_TOKENS, "--launches", 1)
    return cli("decide", *size, *fake_flags(), "--study", "s")


@pytest.mark.slow
def test_every_text_is_sent_stored_and_shown_unharmed(result: Result, cli: Cli, tmp_path: Path) -> None:
    assert result.code in {0, 3, 4, 5}
    with Study.open(tmp_path / "s") as study:
        requests = {request.id: request for request in study.plan.requests}
        records = [record for record in study.records() if record.place.phase is Phase.MEASURED]
    kept = [r.prompt if r.prompt is not None else r.messages[0].content for r in requests.values()]
    assert sorted(kept) == sorted([*TEXTS.values()] * 2)

    # The fake engine's greedy words follow from the prompt alone: the right words prove the right prompt.
    assert len(records) == 2 * len(requests)
    for record in records:
        request = requests[record.place.request_id]
        prompt = request.prompt if request.prompt is not None else request.messages[0].content
        expected = script_for(Truth(), FakeRequest(prompt=prompt, max_tokens=MAX_TOKENS)).token_ids
        assert record.text == "".join(map(token_text, expected)), request.id

    shown = [
        result,
        cli("compare", "s"),
        cli("compare", "s", "--json"),
        cli("decide", "--segment", "\x1b[31m"),
    ]
    assert [raw_characters(each.stdout + each.stderr) for each in shown] == [set()] * len(shown)


def smallest_model(path: Path) -> None:
    """A GGUF file of one tensor: whole enough to be handed to an engine."""
    name = b"output.weight"
    header = b"GGUF" + struct.pack("<IQQ", 3, 1, 0)
    tensor = struct.pack("<Q", len(name)) + name + struct.pack("<IQIQ", 1, 1, 0, 0)
    start = -(-len(header + tensor) // 32) * 32
    path.write_bytes((header + tensor).ljust(start, b"\0") + bytes(32))


def test_a_hostile_file_name_and_an_engines_hostile_log_are_shown_without_their_claws(
    cli: Cli, tmp_path: Path
) -> None:
    model, program = tmp_path / "\x1b[31mmodel.gguf", tmp_path / "llama-server"
    smallest_model(model)
    program.write_text(
        "#!/bin/sh\nprintf 'bad\\033[2J\\033]0;owned\\007 \\342\\200\\256log\\n' >&2\nexit 3\n"
    )
    program.chmod(0o755)
    result = cli("decide", "--model", model, "--llama-server", program, "--segment", "chat")
    assert result.code == 1
    assert r"bad\x1b[2J\x1b]0;owned\x07 \u202elog" in result.stderr
    assert raw_characters(result.stderr) == set()
    missing = cli("models", "inspect", f"{model}x")
    assert missing.code == 1
    assert raw_characters(missing.stderr) == set()
