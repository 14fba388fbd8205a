"""What a study, a command or a log was once said to mean it still means: documents kept from before the rooms moved.

A field may be added; none changes or goes. `tests/recorded/documents/` holds what went in beside what came out.
"""

from __future__ import annotations

import gzip
import json
import math
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from running import Cli

KEPT = Path(__file__).parent / "recorded" / "documents"
GATE = "--engine fake --method ngram --k 3 --requests 8 --max-tokens 16 --segment chat --segment verbatim-rewrite"
PLANNED = "--target llama-3.1-70b --draft llama-3.1-8b --gpu h100-80gb --gpus 4 --acceptance 0.6,0.8"
# How long the gate took; which speclift planned (a study keeps the one that measured it).
UNALIKE = (".wall_s", ".speclift")
# Where it lies differs from machine to machine.
FAKE_SERVER = "fake_server"
# A sum in another order is the same number.
ROUNDING = 1e-12


def kept(name: str) -> object:
    return json.loads((KEPT / f"{name}.json").read_text(encoding="utf-8"))


def differences(before: object, after: object, at: str = "") -> Iterator[str]:
    """Where a document says something else than it did; what it says beyond that is no difference."""
    if isinstance(before, dict) and isinstance(after, dict):
        for key, value in before.items():
            if (place := f"{at}.{key}") not in UNALIKE:
                yield from differences(value, after.get(key, "nothing"), place)
    elif isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        for index, value in enumerate(before):
            yield from differences(value, after[index], f"{at}[{index}]")
    elif (
        isinstance(before, float)
        and isinstance(after, float)
        and math.isclose(before, after, rel_tol=ROUNDING)
    ):
        return
    elif before != after and not all(FAKE_SERVER in str(each) for each in (before, after)):
        yield f"{at}: {before!r} -> {after!r}"


@pytest.mark.parametrize("name", ["decide", "tune"])
def test_a_study_is_judged_as_it_was(
    name: str, cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    study = tmp_path / name
    study.mkdir()
    with closing(sqlite3.connect(study / "study.sqlite")) as database:
        database.executescript(gzip.decompress((KEPT / f"{name}.sql.gz").read_bytes()).decode())
    assert list(differences(kept(name), cli("compare", name, "--json").document)) == []


@pytest.mark.slow
def test_the_gate_says_the_same_of_the_same_server(cli: Cli) -> None:
    assert list(differences(kept("verify"), cli("verify", *GATE.split(), "--json").document)) == []


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("plan", ["plan", *PLANNED.split()]),
        ("lint", ["lint", str(KEPT / "served.sh")]),
        ("replay", ["replay", str(KEPT / "log.jsonl"), "--k", "1..4", "--ngram", "2..3"]),
    ],
)
def test_a_document_without_a_server_is_the_same(name: str, words: list[str], cli: Cli) -> None:
    assert list(differences(kept(name), cli(*words, "--json").document)) == []


def test_a_change_is_seen_and_an_addition_is_not() -> None:
    before = {"a": [1, {"b": 2}], "wall_s": 3}
    assert list(differences(before, {"a": [1, {"b": 2, "c": 0}], "wall_s": 4, "new": 1})) == []
    assert list(differences(before, {"a": [1, {"b": 5}]})) == [".a[1].b: 2 -> 5"]
    assert list(differences(before, {})) == [".a: [1, {'b': 2}] -> 'nothing'"]
    assert list(differences({"a": 1.475}, {"a": 1.4749999999999999})) == []
    assert list(differences({"a": 1.475}, {"a": 1.4750001})) == [".a: 1.475 -> 1.4750001"]
