"""The summary for a pull request or a chat: what is in it, and that nobody's text can do anything there."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from hypothesis import given
from markdown_it import MarkdownIt
from msgspec import structs

from answers import ARGV, STATES, judged, part
from running import Cli
from samples import HOSTILE, hostile_text, provenance
from simulated import ARM, comparison, evidence
from speclift.core.answer import NextCommand, answered
from speclift.core.arm import Arm
from speclift.verbs.plan import plan
from speclift.verdict.document import verdict_document
from speclift.views.markdown import escaped, plan_markdown, verdict_markdown

ATTACK = "| a | b |\n| - | - |\n<img src=x onerror=alert(1)> [x](javascript:alert(1)) `code` **bold** @everyone #1 $x$"
ALLOWED = {
    *("paragraph", "inline", "text", "strong", "softbreak", "bullet_list", "list_item", "fence"),
    *("table", "thead", "tbody", "tr", "th", "td"),
}
READER = MarkdownIt("commonmark").enable(["table", "strikethrough"])


def kinds_in(text: str) -> set[str]:
    """What a reader of Markdown makes of it, without the comment that keeps a name from being a mention."""
    tokens = READER.parse(text)
    inner = [token for each in tokens for token in (each, *(each.children or ()))]
    return {
        re.sub("_(open|close)$", "", token.type)
        for token in inner
        if not (token.type == "html_inline" and token.content == "<!-- -->")
    }


def cells_of(text: str) -> list[int]:
    """How many cells each row of its tables has."""
    rows: list[int] = []
    for token in READER.parse(text):
        if token.type == "tr_open":
            rows.append(0)
        if token.type in ("td_open", "th_open"):
            rows[-1] += 1
    return rows


@pytest.mark.parametrize("state", STATES)
def test_every_state_has_its_answer_its_table_and_its_command(state: str) -> None:
    document = verdict_document(STATES[state])
    text = verdict_markdown(document)
    assert document.answer is not None
    assert kinds_in(text) <= ALLOWED
    assert escaped(document.answer.sentence) in text
    following = document.answer.next
    if following is not None:
        assert f"```sh\n{following.command}\n```" in text
    assert set(cells_of(text)) <= {3, 4}


def test_a_server_is_given_once() -> None:
    assert verdict_markdown(verdict_document(STATES["ship"])).count("llama-server") == 1


@given(hostile_text)
def test_whatever_a_name_is_it_stays_text(name: str) -> None:
    text = f"- {escaped(name)}\n\n| a | b |\n| --- | --- |\n| x {escaped(name)} | **{escaped(name)}.** |\n"
    assert kinds_in(text) <= ALLOWED
    assert set(cells_of(text)) == {2}


@pytest.mark.parametrize(
    "name", [ATTACK, HOSTILE, "a|b", "```", "1. x", "- x", "+ x", "\\", "\\|", "http://evil"]
)
def test_known_attacks_stay_text_in_a_whole_summary(name: str) -> None:
    arm = Arm(name=name, speculation=ARM.speculation)
    hostile = judged(
        evidence(arm=arm, overall=comparison(1.4, 1.5, 1.6, arm=name), parts=(part(1.3, 1.4, 1.5, name),)),
        provenance=provenance(argv=ARGV),
        study=name,
    )
    text = verdict_markdown(verdict_document(hostile))
    assert kinds_in(text) <= ALLOWED
    assert set(cells_of(text)) == {3, 4}
    assert "<img" not in text
    assert "@everyone" not in text
    assert "\x1b" not in text
    assert "http://" not in text


def test_a_command_full_of_backticks_stays_in_its_fence() -> None:
    answer = answered("Yes.", [], NextCommand(command="speclift decide --model '````'", seconds=3))
    document = structs.replace(verdict_document(STATES["ship"]), answer=answer, configuration=None)
    (fence,) = [token for token in READER.parse(verdict_markdown(document)) if token.type == "fence"]
    assert fence.content == "speclift decide --model '````'\n"


def test_a_plan_shows_its_prediction() -> None:
    text = plan_markdown(plan(target="llama-3.1-8b", drafts=("llama-3.2-1b",), gpu="h200"))
    assert kinds_in(text) <= ALLOWED
    assert len(set(cells_of(text))) == 1
    assert "**It fits" in text
    assert "speclift decide --engine vllm" in text


class TestTheFlag:
    @pytest.mark.slow
    def test_without_a_file_it_is_all_of_standard_output(self, cli: Cli, small: list[object]) -> None:
        result = cli("decide", *small, "--study", "s", "--markdown")
        assert result.stdout.startswith("**")
        assert kinds_in(result.stdout) <= ALLOWED
        for words in (("compare", "s", "--markdown"), ("compare", "s", "--markdown", "-")):
            assert cli(*words).stdout == result.stdout
        report = cli("report", "s", "--markdown")
        assert report.stdout == result.stdout
        assert "report.html" in report.stderr

    @pytest.mark.slow
    def test_a_file_leaves_standard_output_to_the_json(
        self, cli: Cli, small: list[object], tmp_path: Path
    ) -> None:
        result = cli("decide", *small, "--markdown", "out/summary.md", "--json")
        assert result.document["answer"]["sentence"]
        assert (tmp_path / "out" / "summary.md").read_text().startswith("**")

    @pytest.mark.parametrize("verb", ["decide", "tune", "verify", "plan", "compare"])
    def test_two_documents_on_standard_output_are_refused_before_anything_runs(
        self, verb: str, cli: Cli, small: list[object], tmp_path: Path
    ) -> None:
        words: dict[str, list[object]] = {
            "plan": ["--target", "llama-3.1-8b", "--gpu", "h200"],
            "compare": ["nowhere"],
        }
        for flags in (["--markdown", "--json"], ["--json", "--markdown"]):
            result = cli(verb, *words.get(verb, small), *flags)
            assert result.code == 2
            assert "both write to standard output" in result.stderr
            assert result.stdout == ""
        assert list(tmp_path.iterdir()) == []

    def test_a_place_that_is_no_file_is_refused_before_anything_runs(
        self, cli: Cli, small: list[object], tmp_path: Path
    ) -> None:
        for verb, flag, usual in (("decide", "--markdown", "summary.md"), ("verify", "--junit", "gate.xml")):
            result = cli(verb, *small, flag, ".")
            assert result.code == 2
            assert f"{flag} must be a file" in result.stderr
            assert usual in result.stderr
        assert list(tmp_path.iterdir()) == []

    @pytest.mark.slow
    def test_verify_and_plan_have_it_too(self, cli: Cli, small: list[object]) -> None:
        assert (
            "| ngram-k4 | alone |"
            in cli("verify", *small, "--method", "ngram", "--k", 4, "--markdown").stdout
        )
        asked = ("plan", "--target", "llama-3.1-8b", "--gpu", "h200")
        shown = cli(*asked, "--markdown")
        assert shown.stdout.startswith("**It fits")
        assert json.loads(cli(*asked, "--markdown", "p.md", "--json").stdout)["answer"]["sentence"]

    def test_the_word_of_another_program_is_left_alone(self, cli: Cli, small: list[object]) -> None:
        shown = cli("decide", *small, "--engine-arg", "--markdown", "--dry-run")
        assert "--markdown" in shown.stdout or "--markdown" in shown.stderr
