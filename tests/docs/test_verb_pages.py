"""docs/verbs/ says what the command line takes: the pages are those that would be written now."""

from __future__ import annotations

import re

import pytest

from running import Cli
from verb_pages import VERBS, pages

WRITTEN = pages()


def test_there_is_a_page_for_every_verb_and_no_other() -> None:
    assert {path.name for path in VERBS.iterdir()} == WRITTEN.keys()


@pytest.mark.parametrize("name", WRITTEN)
def test_a_page_is_as_it_would_be_written_now(name: str) -> None:
    assert (VERBS / name).read_text(encoding="utf-8") == WRITTEN[name], "make docs writes it again"


@pytest.mark.parametrize("verb", ["decide", "plan", "replay", "compare", "lint", "doctor", "models fetch"])
def test_a_page_names_every_flag_that_help_shows(verb: str, cli: Cli) -> None:
    shown = set(re.findall(r"^  (--[a-z-]+)", cli(*verb.split(), "--help").stdout, flags=re.MULTILINE))
    page = WRITTEN[f"{verb.split(maxsplit=1)[0]}.md"]
    assert shown - {"--help"} <= set(re.findall(r"--[a-z-]+", page))


def test_a_flag_is_shown_with_its_default_its_key_and_its_field() -> None:
    page = WRITTEN["decide.md"]
    assert re.search(r"^\| `--k` \| N,\.\.\. \| – \| Draft lengths.* \| `k` \| `ks` \|$", page, re.MULTILINE)
    assert re.search(r"^\| `--seed` \| N \| `0` \| .* \| `seed` \| `seed` \|$", page, re.MULTILINE)
    assert "`speclift.bench.ask.Ask`" in page


def test_a_verb_that_reads_no_study_file_shows_no_keys_of_one() -> None:
    assert "| speclift.toml |" in WRITTEN["verify.md"]
    assert "| speclift.toml |" not in WRITTEN["plan.md"]
