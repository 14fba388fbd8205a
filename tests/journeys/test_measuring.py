"""From a command to a verdict on the fake engine: each verb that measures, its exit codes, going on after an end."""

from __future__ import annotations

import json
import signal
import sqlite3
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from running import Cli, Decided, fake_flags, finish, start

SIZE = "--segment chat --requests 10 --max-tokens 24 --launches 2 --k 4 --method ngram --fixed"
VERDICTS = {0: "ship", 3: "ship-on-conditions", 4: "do-not-ship", 5: "inconclusive", 6: "output-changed"}
WINS = fake_flags("tpot_s=0.004", "spec.acceptance=1", "spec.step_cost=0")
LOSES = fake_flags("tpot_s=0.001", "spec.acceptance=0.4", "spec.step_cost=1")
FIELDS = {
    *("schema", "verdict", "reasons", "conditions", "winner", "speedup", "cells", "crossover", "kv_tokens"),
    *("lossless", "provenance", "study", "answer"),
}


def measured(study: Path) -> list[tuple[object, ...]]:
    question = "SELECT arm, round, request_id, sent_s FROM records WHERE phase = 'measured' ORDER BY id"
    with closing(sqlite3.connect(study / "study.sqlite")) as database:
        return database.execute(question).fetchall()


def might_be(document: dict[str, Any], verdict: str) -> bool:
    """Noise of a busy machine leaves open what is true; it never turns it round."""
    return document["verdict"] in (verdict, "inconclusive")


def test_what_pays_ships_with_its_command(cli: Cli, tmp_path: Path) -> None:
    result = cli(
        "decide", *SIZE.split(), *WINS, "--verify", "off", "--study", "s", "--out", "r.html", "--json"
    )
    document = result.document
    assert might_be(document, "ship"), document["reasons"]
    assert document["speedup"]["value"] > 1.3
    assert VERDICTS[result.code] == document["verdict"]
    assert set(document) >= FIELDS
    if winner := document["winner"]:
        assert (winner["arm"], winner["k"], "--truth k=4" in winner["command"]) == ("ngram-k4", 4, True)
        assert document["answer"]["sentence"].startswith("Switch on ngram-k4")
    assert document["answer"]["sentence"] in (tmp_path / "r.html").read_text(encoding="utf-8")
    assert "launch 2: ngram-k4" in result.stderr
    compared = cli("compare", "s", "--json")
    assert (compared.code, compared.document) == (result.code, document)


def test_what_does_not_pay_is_left_off(cli: Cli) -> None:
    document = (result := cli("decide", *SIZE.split(), *LOSES, "--verify", "off", "--json")).document
    assert might_be(document, "do-not-ship"), document["reasons"]
    assert document["speedup"]["value"] < 1
    assert (VERDICTS[result.code], document["winner"]) == (document["verdict"], None)


def test_what_changes_the_output_never_ships(cli: Cli) -> None:
    wrong = fake_flags("spec.wrong_token_share=0.3", "spec.acceptance=1")
    size = "--segment verbatim-rewrite --requests 8 --max-tokens 24 --launches 1 --k 4 --method ngram"
    result = cli("decide", *size.split(), *wrong, "--json")
    assert (result.code, result.document["verdict"]) == (6, "output-changed")
    assert result.document["lossless"]["result"] == "fail"
    assert "changes what the model answers" in result.document["answer"]["sentence"]


def test_measure_gives_no_verdict(cli: Cli, small: list[object]) -> None:
    result = cli("measure", *small, "--study", "s", "--json")
    assert result.code == 0
    assert set(result.document) >= {"schema", "study", "cells", "resources", "findings"}
    assert "verdict" not in result.document
    assert {cell["arm"] for cell in result.document["cells"]} == {"baseline", "ngram-k4"}


def test_tune_finds_a_setting_and_confirms_it(cli: Cli) -> None:
    flags = fake_flags("tpot_s=0.003", "acceptance=0.8")
    size = "--segment chat --requests 12 --max-tokens 16 --launches 1 --method ngram --concurrency 2"
    result = cli("tune", *size.split(), *flags, "--verify", "off", "--json")
    assert result.code == 0
    assert set(result.document) >= {*FIELDS, "tuning"}
    assert result.document["tuning"]["cells"]


@pytest.mark.parametrize(
    ("truth", "code", "word"), [("seed=1", 0, "pass"), ("spec.wrong_token_share=0.3", 6, "fail")]
)
def test_verify_tells_changed_answers(truth: str, code: int, word: str, cli: Cli) -> None:
    size = "--segment verbatim-rewrite --requests 12 --max-tokens 48 --method ngram --k 4"
    result = cli("verify", *size.split(), *fake_flags(truth), "--json")
    document = result.document
    assert (result.code, document["result"]) == (code, word), document["greedy"]
    assert set(document) >= {"schema", "result", "greedy", "sampled", "control", "examples", "answer"}


def test_nothing_comes_of_an_engine_that_does_not_start(cli: Cli, small: list[object]) -> None:
    result = cli("decide", *small, *fake_flags("baseline.crash_on_start=1"))
    assert (result.code, result.stdout) == (1, "")
    assert "the baseline did not start" in result.stderr
    assert "told to crash on start" in result.stderr
    assert "--resume" in result.stderr


def test_an_arm_that_breaks_is_named_and_the_others_are_measured(cli: Cli, small: list[object]) -> None:
    flags = fake_flags("ngram-k2.silent_fallback=1")
    document = (result := cli("decide", *small, *flags, "--k", "2,4", "--json")).document
    assert result.code in VERDICTS
    assert document["failed_arms"] == ["ngram-k2"]
    (finding,) = [finding for finding in document["findings"] if finding["check"] == "arm-failed"]
    assert "runs without it" in finding["message"]


def test_without_any_arm_left_it_is_an_error(cli: Cli, small: list[object]) -> None:
    result = cli("decide", *small, *fake_flags("spec.silent_fallback=1"), "--k", "2,4")
    assert (result.code, "every speculative arm failed" in result.stderr) == (1, True)


def test_failing_requests_are_counted_and_said(cli: Cli, small: list[object]) -> None:
    flags = fake_flags("flavour=vllm", "spec.http_500_share=1")
    document = cli("decide", *small, *flags, "--json").document
    (cell,) = [c for c in document["cells"] if c["arm"] == "ngram-k4" and c["segment"] == "all"]
    assert (cell["requests"], cell["failed"]) == (4, 4)
    assert "failed-requests" in {finding["check"] for finding in document["findings"]}


def test_a_budget_ends_in_a_verdict_on_what_there_is(cli: Cli) -> None:
    flags = fake_flags("tpot_s=0.002", fast=True)
    size = "--requests 24 --max-tokens 32 --launches 3 --k 4 --method ngram --verify off"
    result = cli("decide", *size.split(), *flags, "--budget", "2s", "--json")
    assert result.code in VERDICTS
    assert "budget-spent" in {finding["check"] for finding in result.document["findings"]}


def test_a_study_without_text_holds_none(cli: Cli, small: list[object], tmp_path: Path) -> None:
    (tmp_path / "p.jsonl").write_text('{"prompt": "The secret is 4711.", "segment": "chat"}\n')
    result = cli("measure", *small, "--prompts", "p.jsonl", "--no-text", "--study", "s", "--json")
    assert "no-text" in {finding["check"] for finding in result.document["findings"]}
    assert b"4711" not in (tmp_path / "s" / "study.sqlite").read_bytes()
    assert cli("decide", "--resume", "--study", "s").code != 0


def test_a_study_file_says_the_same_as_flags(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "speclift.toml").write_text(
        'engine = "fake"\nengine_arg = ["ttft_s=0.002", "tpot_s=0.0005"]\nsegment = ["chat"]\nrequests = 4\n'
        'max_tokens = 12\nlaunches = 1\nmethod = ["ngram"]\nk = "2"\n'
    )
    assert {cell["arm"] for cell in cli("measure", "--json").document["cells"]} == {"baseline", "ngram-k2"}
    (tmp_path / "speclift.toml").write_text("enginee = 1\n")
    result = cli("measure")
    assert (result.code, "enginee" in result.stderr) == (2, True)


def test_a_dry_run_prints_commands_alone(cli: Cli, small: list[object], tmp_path: Path) -> None:
    result = cli("decide", *small, "--k", "2,4", "--dry-run")
    lines = result.stdout.splitlines()
    assert (result.code, lines[::2]) == (0, ["# baseline", "# ngram-k2", "# ngram-k4"])
    document = cli("decide", *small, "--k", "2", "--dry-run", "--json").document
    assert set(document["commands"]) == {"baseline", "ngram-k2"}
    assert list(tmp_path.iterdir()) == []


def test_a_pasted_line_is_measured_against_itself_without_speculation(cli: Cli) -> None:
    line = ["vllm", "serve", "m", "--api-key", "s3cret", "--speculative-config"]
    config = json.dumps({"method": "ngram", "num_speculative_tokens": 5, "prompt_lookup_max": 4})
    result = cli("decide", "--dry-run", "--json", "--", *line, config)
    commands = result.document["commands"]
    assert (result.code, set(commands) >= {"baseline", "yours"}) == (0, True)
    assert "--speculative-config" not in commands["baseline"]
    assert "s3cret" not in result.stdout + result.stderr


def test_pooled_studies_must_be_alike(
    decided: Decided, cli: Cli, small: list[object], tmp_path: Path
) -> None:
    (tmp_path / "p.jsonl").write_text('{"prompt": "Say hello.", "segment": "chat"}\n')
    assert cli("measure", *small, "--prompts", "p.jsonl", "--study", "other").code == 0
    result = cli("compare", decided.study, "other")
    assert (result.code, "prompts_sha256" in result.stderr) == (1, True)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL], ids=["Ctrl-C", "kill"])
def test_an_ended_study_goes_on_where_it_was(number: signal.Signals, cli: Cli, tmp_path: Path) -> None:
    flags = fake_flags("ttft_s=0.005", "tpot_s=0.002", fast=False)
    words = ["decide", *SIZE.split(), *flags, "--verify", "off", "--study", "s"]
    with start(words, cwd=tmp_path) as process:
        while not (tmp_path / "s" / "report.html").exists() and process.poll() is None:
            time.sleep(0.02)
            try:
                if len(measured(tmp_path / "s")) >= 6:
                    break
            except sqlite3.OperationalError:
                continue
        process.send_signal(number)
        ended = finish(process)
    assert ended.code == (130 if number is signal.SIGINT else -signal.SIGKILL)
    assert "Traceback" not in ended.stderr
    if number is signal.SIGINT:
        assert "speclift decide --resume --study s" in ended.stderr
    before = measured(tmp_path / "s")
    result = cli("decide", "--resume", "--study", "s", "--json")
    assert result.code in VERDICTS
    after = measured(tmp_path / "s")
    assert after[: len(before)] == before
    assert len({row[:3] for row in after}) == len(after) == 2 * 2 * 10
