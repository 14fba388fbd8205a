"""The summary for a pull request or a chat: what is in it, and that nobody's text can do anything there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from markdown_it import MarkdownIt
from msgspec import structs

from answers import ARGV, STATES, judged, part
from running import Cli
from samples import HOSTILE, provenance
from simulated import ARM, comparison, evidence
from speclift.core.answer import NextCommand, answered
from speclift.core.arm import Arm
from speclift.verdict.document import verdict_document
from speclift.views.markdown import escaped, verdict_markdown

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


class TestTheFlag:
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
