"""What goes where: answers and documents on stdout, progress on stderr, no terminal codes where no terminal is."""

from __future__ import annotations

import json
import os
import pty
import re
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from running import Cli, Decided, fake_flags, hosted, records_of, speclift
from speclift.cli.main import main

EXIT_CODES = {"ship": 0, "ship-on-conditions": 3, "do-not-ship": 4, "inconclusive": 5}
VERDICT_FIELDS = {
    *("schema", "verdict", "reasons", "conditions", "winner", "speedup", "cells", "crossover"),
    *("kv_tokens", "lossless", "provenance", "study"),
}
CELL_FIELDS = {
    *("arm", "load", "segment", "temperature", "ttft_s", "tpot_s", "e2e_s", "throughput_tok_s"),
    *("acceptance_rate", "accepted_length", "per_position", "requests", "failed"),
}
SPEEDUP_FIELDS = {"value", "low", "high", "metric", "design", "launches", "n"}
PROVENANCE_FIELDS = {"speclift", "engine", "engine_version", "host", "commands", "prompts_sha256"}
# Select Graphic Rendition sequences that set a colour: 30-49, 90-107 (ECMA-48).
COLOUR = re.compile(r"\x1b\[(?:\d+;)*(?:[34]\d|9\d|10[0-7])[;\dm]")


def test_decide_json_is_one_document_with_the_contracts_fields(decided: Decided) -> None:
    document = decided.result.document
    assert set(document) >= VERDICT_FIELDS
    assert (document["schema"], document["study"]) == (1, "s")
    assert decided.result.code == EXIT_CODES[document["verdict"]]
    assert [set(cell) >= CELL_FIELDS for cell in document["cells"]] == [True] * len(document["cells"])
    assert {(cell["arm"], cell["segment"]) for cell in document["cells"]} == {
        (arm, segment) for arm in ("baseline", "ngram-k4") for segment in ("all", "chat")
    }
    assert set(document["speedup"]) >= SPEEDUP_FIELDS
    assert set(document["provenance"]) >= PROVENANCE_FIELDS
    assert {"rule", "level", "message", "source"} == set(document["reasons"][0])
    assert set(document["kv_tokens"]) == {"baseline", "winner"}
    assert document["lossless"]["result"] in {"pass", "fail", "inconclusive", "skipped"}


def test_decide_json_leaves_the_narrative_to_stderr(decided: Decided) -> None:
    assert "launch 1: baseline" in decided.result.stderr
    assert "Speedup over the baseline" in decided.result.stderr


def test_output_that_is_not_a_terminal_has_no_escape_codes(decided: Decided, cli: Cli) -> None:
    plain = cli("compare", decided.study)
    assert "Speedup over the baseline" in plain.stdout
    for result in (decided.result, plain, cli("compare"), cli("decide", "--metric", "x"), cli("--help")):
        assert "\x1b" not in result.stdout + result.stderr


ANSWERS = {
    "compare": (["compare", "STUDY"], "Speedup over the baseline"),
    "plan": (
        ["plan", "--target", "llama-3.1-8b", "--draft", "llama-3.2-1b", "--gpu", "h100-80gb"],
        "It fits",
    ),
    "decide": (["decide", "SMALL"], "Speedup over the baseline"),
    "measure": (["measure", "SMALL"], "Measured cells"),
    "tune": (["tune", "SMALL"], "Speedup over the baseline"),
    "verify": (
        ["verify", "--method", "ngram", "--k", 4, "--segment", "chat", "--requests", 2, *fake_flags()],
        "Answers that differ",
    ),
    "replay": (["replay", "LOG"], "Accepted length"),
    "watch": (["watch", "PAGE", "--once", "--interval", "0.1s"], "http://127.0.0.1"),
}


@pytest.mark.parametrize(("arguments", "words"), ANSWERS.values(), ids=ANSWERS.keys())
def test_the_answer_goes_to_stdout_unpadded_and_progress_to_stderr(
    arguments: list[object], words: str, decided: Decided, cli: Cli, small: list[object], tmp_path: Path
) -> None:
    log = tmp_path / "log.jsonl"
    log.write_text(json.dumps({"prompt_token_ids": [1, 2, 3] * 9, "response_token_ids": [1, 2, 3] * 4}))
    with hosted() as url:
        placed = {"STUDY": [decided.study], "SMALL": small, "LOG": [log], "PAGE": [url]}
        words_typed = [word for each in arguments for word in placed.get(str(each), [each])]
        result = cli(*words_typed)
    assert words in result.stdout
    assert words not in result.stderr
    assert "launch 1" not in result.stdout
    assert [line for line in result.stdout.splitlines() if line != line.rstrip()] == []
    assert result.stdout[0] != "\n"


def test_an_answer_that_the_encoding_lacks_signs_for_is_still_given(decided: Decided) -> None:
    result = speclift(
        "compare", decided.study, cwd=decided.study.parent, environment={"PYTHONIOENCODING": "ascii"}
    )
    assert result.code == decided.result.code
    assert "Speedup over the baseline" in result.stdout


def test_a_cells_numbers_are_those_of_its_records(decided: Decided) -> None:
    records = [r for r in records_of(decided.study) if r.place.phase == "measured"]
    for cell in decided.result.document["cells"]:
        own = [r for r in records if r.place.arm == cell["arm"]]
        assert (cell["requests"], cell["failed"]) == (len(own), 0)
        assert cell["ttft_s"]["p99"] is None  # far fewer than 100 requests
        if cell["arm"] == "ngram-k4":
            drafted, accepted = sum(r.drafted or 0 for r in own), sum(r.accepted or 0 for r in own)
            assert cell["acceptance_rate"]["mean"] == pytest.approx(accepted / drafted)


def test_compare_gives_the_verdict_that_decide_gave(decided: Decided, cli: Cli) -> None:
    compared = cli("compare", decided.study, "--json")
    assert compared.code == decided.result.code
    assert {**compared.document, "study": "s"} == decided.result.document


@pytest.mark.slow
@pytest.mark.parametrize("metric", ["e2e", "tpot", "throughput"])
def test_the_metric_asked_for_is_the_headline_and_the_others_stand_beside_it(
    decided: Decided, cli: Cli, metric: str
) -> None:
    document = cli("compare", decided.study, "--metric", metric, "--json").document
    assert (document["goals"]["metric"], document["speedup"]["metric"]) == (metric, metric)
    beside = document["speedup_by_metric"]
    assert beside[metric] == document["speedup"]
    assert {name: found["metric"] for name, found in beside.items()} == {name: name for name in beside}
    assert set(beside) == {"e2e", "tpot", "ttft", "e2e_raw", "throughput"}


@pytest.mark.alone
def test_compare_takes_another_bar(decided: Decided, cli: Cli) -> None:
    result = cli("compare", decided.study, "--min-speedup", 50, "--json")
    assert (result.code, result.document["verdict"]) == (4, "do-not-ship")


@pytest.mark.alone
def test_a_winner_comes_with_its_command_and_settings(cli: Cli, small: list[object]) -> None:
    winning = fake_flags("spec.acceptance=1", "spec.step_cost=0")
    result = cli("decide", *small, *winning, "--requests", 12, "--max-tokens", 40, "--json")
    winner = result.document["winner"]
    assert (result.code, result.document["verdict"]) == (0, "ship")
    assert (winner["arm"], winner["method"], winner["k"]) == ("ngram-k4", "ngram", 4)
    assert "--truth k=4" in winner["command"]
    assert winner["config"] == {"method": "ngram", "k": 4}


@pytest.mark.slow
def test_measure_gives_no_verdict_and_its_prompts_keep_it_apart_from_other_studies(
    decided: Decided, cli: Cli, small: list[object], tmp_path: Path
) -> None:
    (tmp_path / "p.jsonl").write_text('{"prompt": "Say hello.", "segment": "chat"}\n')
    losing = fake_flags("spec.acceptance=0.15", "spec.step_cost=2")
    measured = cli("measure", *small, *losing, "--prompts", "p.jsonl", "--json", "--study", "other")
    assert measured.code == 0  # where decide would say: do not ship
    assert set(measured.document) == {"schema", "study", "cells", "resources", "findings"}
    pooled = cli("compare", decided.study, "other")
    assert pooled.code == 1
    assert "prompts_sha256" in pooled.stderr


def test_a_dry_run_prints_the_exact_commands_and_launches_nothing(
    cli: Cli, small: list[object], tmp_path: Path
) -> None:
    result = cli("decide", *small, "--k", "2,4", "--dry-run", "--study", "s")
    assert result.code == 0
    lines = result.stdout.splitlines()
    assert lines[::2] == ["# baseline", "# ngram-k2", "# ngram-k4"]
    drafts = [("k=2" in line.split(), "k=4" in line.split()) for line in lines[1::2]]
    assert drafts == [(False, False), (True, False), (False, True)]
    assert list(tmp_path.iterdir()) == []


def test_a_dry_run_as_json_lists_each_command_word_by_word(cli: Cli, small: list[object]) -> None:
    document = cli("decide", *small, "--dry-run", "--json").document
    assert list(document["commands"]) == ["baseline", "ngram-k4"]
    assert document["commands"]["ngram-k4"][1:3] == ["-m", "speclift.testing.fake_server"]


@pytest.mark.slow
@pytest.mark.parametrize("arguments", [["doctor"], ["models", "list"]], ids=" ".join)
def test_facts_as_json_are_one_document(arguments: list[str], cli: Cli) -> None:
    result = cli(*arguments, "--json")
    assert (result.code, result.document["schema"]) == (0, 1)


@pytest.mark.slow
def test_an_interval_without_bounds_is_null_not_infinity(cli: Cli, small: list[object]) -> None:
    def refuse(name: str) -> Any:
        raise AssertionError(f"{name} is not JSON")

    one_prompt = cli("decide", *small, "--requests", 1, "--concurrency", "1,2", "--json")
    document = json.loads(one_prompt.stdout, parse_constant=refuse)
    assert (one_prompt.code, document["verdict"]) == (5, "inconclusive")
    assert document["speedup"]["high"] is None


def shown_on_a_terminal(run: Callable[[], None], monkeypatch: pytest.MonkeyPatch) -> str:
    """Everything written to a stdout that is a terminal."""
    leader, follower = pty.openpty()
    shown: list[bytes] = []

    def read() -> None:
        try:
            while data := os.read(leader, 65536):
                shown.append(data)
        except OSError:
            pass  # Linux says EIO once the other side is closed

    reader = threading.Thread(target=read)
    reader.start()
    with open(follower, "w", encoding="utf-8") as terminal:  # noqa: PTH123 - a descriptor, not a path
        monkeypatch.setattr(sys, "stdout", terminal)
        run()
    reader.join()
    os.close(leader)
    return b"".join(shown).decode()


@pytest.mark.parametrize("value", [None, "1"], ids=["without NO_COLOR", "with NO_COLOR"])
def test_no_color_is_honoured_on_a_terminal(
    value: str | None, decided: Decided, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    if value is not None:
        monkeypatch.setenv("NO_COLOR", value)
    monkeypatch.setattr(sys, "argv", ["speclift", "compare", str(decided.study)])

    def run() -> None:
        with pytest.raises(SystemExit):
            main()

    shown = shown_on_a_terminal(run, monkeypatch)
    assert "Speedup over the baseline" in shown
    assert (COLOUR.search(shown) is None) is (value is not None)
