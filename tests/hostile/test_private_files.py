"""A study holds what people asked: it is for the user alone, and with --no-text it holds none of it."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from running import Cli, fake_flags, measured_places, planned_places, records_of
from samples import record
from speclift.core.records import Refused
from speclift.core.traffic import Message, Request
from speclift.statistics.loops import is_looping
from speclift.studies.study import Study
from speclift.studies.texts import error_stand_in, record_stand_in, request_stand_in, stand_in

# Words that stand in every prompt and nowhere else.
SECRET = "quetzalcoatlus"
# A search takes more servers than the others, and writes through the same functions.
VERBS = ("decide", "measure", pytest.param("tune", marks=pytest.mark.slow))


@pytest.fixture
def open_umask() -> Iterator[None]:
    before = os.umask(0o022)
    yield
    os.umask(before)


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    path = tmp_path / "prompts.jsonl"
    lines = (
        {"id": f"p{n}", "prompt": f"{SECRET} number {n}, said {n} times", "temperature": 0, "max_tokens": 8}
        for n in range(12)
    )
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def modes(folder: Path) -> dict[str, str]:
    everything = (folder, *folder.rglob("*"))
    return {str(each.relative_to(folder)): oct(stat.S_IMODE(each.stat().st_mode)) for each in everything}


@pytest.mark.slow
@pytest.mark.usefixtures("open_umask")
@pytest.mark.parametrize("verb", VERBS)
def test_what_a_command_writes_is_for_the_user_alone(verb: str, cli: Cli, tmp_path: Path) -> None:
    study = tmp_path / "deep" / "s"
    space = ("--k", "1,2,4") if verb == "tune" else ()
    extra = () if verb == "measure" else ("--out", tmp_path / "report.html")
    result = cli(
        *(verb, *fake_flags(), *space, "--requests", 8, "--max-tokens", 8, "--launches", 1),
        *("--study", study, *extra),
    )
    assert result.code in {0, 3, 4, 5}, result.stderr
    folders = {each for each in modes(study) if (study / each).is_dir()}
    assert {mode for name, mode in modes(study).items() if name in folders} == {"0o700"}
    assert {mode for name, mode in modes(study).items() if name not in folders} == {"0o600"}
    assert modes(tmp_path / "deep")["."] == "0o700"
    if extra:
        assert oct(stat.S_IMODE((tmp_path / "report.html").stat().st_mode)) == "0o600"


@pytest.mark.usefixtures("open_umask")
def test_what_sqlite_adds_while_it_writes_is_private_too(cli: Cli, tmp_path: Path) -> None:
    cli("measure", *fake_flags(), "--requests", 2, "--max-tokens", 4, "--launches", 1, "--study", "s")
    with Study.open(tmp_path / "s", writing=True) as study:
        study.keep("anything", {})
        beside = [each for each in (tmp_path / "s").iterdir() if "study.sqlite-" in each.name]
        assert beside
        assert {oct(stat.S_IMODE(each.stat().st_mode)) for each in beside} == {"0o600"}


def test_a_stricter_umask_stays_stricter(cli: Cli, tmp_path: Path) -> None:
    before = os.umask(0o277)
    try:
        (tmp_path / "verify").mkdir()
    finally:
        os.umask(before)
    os.umask(0o177)
    try:
        from speclift.studies.private import write_private

        write_private(tmp_path / "x", "text")
    finally:
        os.umask(before)
    assert oct(stat.S_IMODE((tmp_path / "x").stat().st_mode)) == "0o600"


def texts_of(study: Path) -> set[bytes]:
    """Every answer that the same command without --no-text keeps, where it is long enough to be told by."""
    return {record.text.encode() for record in records_of(study) if len(record.text) > 8}


def holding(folder: Path, words: set[bytes]) -> list[str]:
    files = [each for each in folder.rglob("*") if each.is_file()]
    return [f"{each.name}: {word!r}" for each in files for word in words if word in each.read_bytes()]


COMMON = ("--requests", 8, "--max-tokens", 8, "--launches", 1, "--seed", 3)


@pytest.mark.slow
@pytest.mark.parametrize("verb", VERBS)
def test_nothing_of_prompts_and_answers_is_left_in_the_study(
    verb: str, cli: Cli, prompts: Path, tmp_path: Path
) -> None:
    flags = (
        *fake_flags("spec.wrong_token_share=0.05", "baseline.http_500_share=0.05"),
        "--prompts",
        prompts,
        *COMMON,
    )
    space = ("--k", "1,2,4") if verb == "tune" else ()
    cli(verb, *flags, *space, "--study", "plain")
    words = {SECRET.encode(), *texts_of(tmp_path / "plain")}
    assert len(words) > 3
    assert holding(tmp_path / "plain", words)

    result = cli(verb, *flags, *space, "--no-text", "--study", "s", "--json")
    assert result.code in {0, 3, 4, 5, 6}, result.stderr
    assert holding(tmp_path / "s", words) == []
    assert not any(word.decode() in result.stdout for word in words)
    assert "no-text" in {finding["check"] for finding in result.document["findings"]}


@pytest.mark.slow
def test_the_key_of_a_study_file_says_the_same(cli: Cli, prompts: Path, tmp_path: Path) -> None:
    (tmp_path / "speclift.toml").write_text("no_text = true\n")
    cli("measure", *fake_flags(), "--prompts", prompts, *COMMON, "--study", "s")
    assert holding(tmp_path / "s", {SECRET.encode()}) == []


def test_error_bodies_are_not_kept_either() -> None:
    assert error_stand_in(f"400: cannot take {SECRET}") == "400: text not kept"
    assert error_stand_in(f"{SECRET} is too long") == "text not kept"
    assert error_stand_in("ConnectionResetError: [Errno 104]") == "ConnectionResetError: text not kept"
    assert error_stand_in("") == ""


@pytest.mark.slow
def test_the_gate_still_finds_changed_output_within_the_run(cli: Cli, prompts: Path, tmp_path: Path) -> None:
    flags = (*fake_flags("spec.wrong_token_share=0.05"), "--prompts", prompts, *COMMON)
    plain = cli("decide", *flags, "--study", "plain", "--json").document["lossless"]
    hashed = cli("decide", *flags, "--study", "s", "--no-text", "--json").document["lossless"]
    assert hashed["result"] == plain["result"]
    assert hashed["greedy"] == plain["greedy"]
    assert hashed["examples"] == []
    # Judged again, the same word stands, and it is said why nothing can be shown.
    again = cli("compare", "s", "--json").document
    assert again["lossless"]["result"] == hashed["result"]
    assert "no-text" in {finding["check"] for finding in again["findings"]}
    assert cli("report", "s").code == 0


@pytest.mark.slow
def test_a_study_without_text_resumes_with_the_same_prompts_and_no_others(
    cli: Cli, prompts: Path, tmp_path: Path
) -> None:
    flags = (*fake_flags(), "--prompts", prompts, *COMMON, "--launches", 2)
    cli("measure", *flags, "--no-text", "--study", "s")
    with Study.open(tmp_path / "s", writing=True) as study:
        study._db.execute("DELETE FROM records WHERE phase = 'measured' AND round = 1")
    resumed = cli("measure", "--resume", "--study", "s", "--json")
    assert resumed.code == 0, resumed.stderr
    places = measured_places(records_of(tmp_path / "s"))
    assert set(places) == planned_places(tmp_path / "s")
    assert holding(tmp_path / "s", {SECRET.encode()}) == []

    prompts.write_text(prompts.read_text().replace("number 3", "number 33"))
    refused = cli("measure", "--resume", "--study", "s")
    assert refused.code == 1
    assert "'p3' is not in the given prompts" in refused.stderr
    prompts.unlink()
    assert cli("measure", "--resume", "--study", "s").code == 2


@pytest.mark.slow
def test_verify_keeps_no_text_where_it_is_told_so(cli: Cli, prompts: Path, tmp_path: Path) -> None:
    flags = (
        *fake_flags("spec.wrong_token_share=0.05"),
        "--prompts",
        prompts,
        "--requests",
        4,
        "--max-tokens",
        8,
    )
    cli("verify", *flags, "--no-text", "--study", "s")
    assert (tmp_path / "s" / "verify.json").exists()
    assert holding(tmp_path / "s", {SECRET.encode()}) == []


def test_equal_texts_have_equal_stand_ins_and_loops_stay_loops() -> None:
    looping = "and so it goes " * 40
    assert stand_in("a") == stand_in("a") != stand_in("b")
    assert stand_in("") == ""
    assert is_looping(stand_in(looping))
    assert not is_looping(stand_in("a text that says something once"))
    asked = Request(id="a", messages=(Message(role="user", content=SECRET),), response=SECRET)
    assert SECRET not in str(request_stand_in(asked))


def test_a_number_that_a_server_says_in_words_is_not_kept_without_text() -> None:
    said = (Refused(rule="tokens", said="TOP SECRET"), Refused(rule="tokens", said="-5"))
    kept_of = record_stand_in(replace(record(), refused=said))
    assert [refused.said for refused in kept_of.refused] == ["text not kept", "-5"]
