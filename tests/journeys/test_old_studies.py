"""Studies of every format that was ever written open, give the verdict they gave, and can go on."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from recorded import Typed, recorded_study
from running import Cli

# Format, verdict, speedup, and a word of the answer. Formats 1 to 4 hold the same first minutes of one study.
BEGUN = ("inconclusive", 2.118424115225742, "it may pay on code-editing (2.24x so far)")
STUDIES = {
    **{f"study-format-{number}": (number, *BEGUN) for number in (1, 2, 3, 4)},
    "decide": (3, "inconclusive", 1.8793893191253912, "the client read first tokens late"),
    "tune": (3, "inconclusive", 1.9745754801403805, "it may pay on chat (2.10x so far)"),
    "faster": (5, "ship", 1.606872628305233, "Switch on arm"),
}
# As quick as the fake engine can be.
QUICK = (
    "UPDATE meta SET value = replace(replace(value, 'tpot_s=0.004', 'tpot_s=0.0005'), 'ttft_s=0.01', 'ttft_s=0.002')"
    "; UPDATE requests SET body = replace(body, '\"max_tokens\":128', '\"max_tokens\":8')"
)


def content(study: Path) -> str:
    with closing(sqlite3.connect(study / "study.sqlite")) as database:
        return "\n".join(database.iterdump())


def asked(study: Path, question: str) -> list[tuple[object, ...]]:
    with closing(sqlite3.connect(study / "study.sqlite")) as database:
        return database.execute(question).fetchall()


@pytest.mark.parametrize("name", STUDIES)
def test_it_gives_the_verdict_it_gave_and_stays_as_it_was(name: str, cli: Cli, tmp_path: Path) -> None:
    number, verdict, speedup, words = STUDIES[name]
    study = recorded_study(name, tmp_path)
    before = content(study)
    assert asked(study, "PRAGMA user_version") == [(number,)]
    document = cli("compare", name, "--json").document
    assert document["verdict"] == verdict
    assert document["speedup"]["value"] == pytest.approx(speedup, rel=1e-9)
    assert words in document["answer"]["sentence"]
    assert cli("report", name).code == 0
    assert document["answer"]["sentence"].split(":")[0] in (study / "report.html").read_text(encoding="utf-8")
    assert cli("export", name, "--to", "prometheus-rules").stdout.startswith("# Written by speclift")
    assert content(study) == before


@pytest.mark.parametrize("number", [1, 2, 3, 4])
def test_it_goes_on_in_todays_format(number: int, cli: Cli, tmp_path: Path) -> None:
    name = f"study-format-{number}"
    study = recorded_study(name, tmp_path, QUICK)
    question = "SELECT request_id, sent_s, hex(text) FROM records ORDER BY id"
    before = asked(study, question)
    result = cli("decide", "--resume", "--study", name, "--budget", "2s", "--json")
    assert result.code in (0, 3, 4, 5)
    assert asked(study, "PRAGMA user_version") == [(5,)]
    after = asked(study, question)
    assert (after[: len(before)], len(after) > len(before)) == (before, True)
    assert result.document["speedup"]["n"] >= 2


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("PRAGMA user_version = 99", "has study format 99; this speclift reads up to 5"),
        ("PRAGMA application_id = 5", "no study at study-format-4"),
        ("DROP TABLE records", "damaged"),
        ("UPDATE meta SET value = '{' WHERE key = 'plan'", "damaged"),
        ("UPDATE records SET sent_s = 'soon'", "damaged"),
        ("DELETE FROM meta WHERE key = 'plan'", "is incomplete: it has no plan"),
    ],
)
def test_what_is_no_sound_study_is_refused(
    change: str, said: str, cli: Cli, typed: Typed, page: str, tmp_path: Path
) -> None:
    study = recorded_study("study-format-4", tmp_path, change)
    (tmp_path / "log").write_text('{"prompt": "a", "response": "b"}\n')
    typed(page)
    before = content(study)
    for words in (
        "compare {}",
        "report {}",
        "export {} --to vllm",
        "replay log --study {}",
        "watch - --study {}",
    ):
        result = cli(*words.format("study-format-4").split())
        assert (result.code, result.stdout) == (1, "")
        assert said in result.stderr
        assert "Traceback" not in result.stderr
    assert content(study) == before
