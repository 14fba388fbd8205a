"""--help of every verb ends with an example to paste; completion knows verbs and flags."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from running import Cli

WIDTH = 100


def verbs_of(page: str) -> list[str]:
    return re.findall(
        r"^  ([a-z-]+) ", page.partition("Commands:")[2].partition("Example:")[0], flags=re.MULTILINE
    )


def test_every_page_of_help_ends_with_an_example_on_a_line_of_its_own(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    verbs = verbs_of(cli("--help").stdout)
    models = [f"models {verb}" for verb in verbs_of(cli("models", "--help").stdout)]
    assert {"decide", "doctor", "models", "models fetch"} <= {*verbs, *models}
    for verb in (*verbs, *models):
        *_, title, example = cli(*verb.split(), "--help").stdout.rstrip().splitlines()
        assert title.strip() == "Example:"
        assert re.fullmatch(rf"    speclift {verb}( .*)?", example)


def test_help_fits_100_columns_in_groups(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", str(WIDTH))
    page = cli("decide", "--help").stdout
    assert max(map(len, page.splitlines())) <= WIDTH
    titles = re.findall(r"^(\S.*):$", page, flags=re.MULTILINE)
    assert titles[:2] == ["Arguments", "Configurations to compare"]
    assert titles[-1] == "Options"
    assert len(titles) == len(set(titles)) >= 5


@pytest.mark.parametrize("verb", ["decide", "measure"])
def test_the_example_of_a_measuring_verb_is_one_it_accepts(verb: str, cli: Cli) -> None:
    example = cli(verb, "--help").stdout.rstrip().splitlines()[-1].split()
    result = cli(*example[1:], "--engine", "fake", "--dry-run", "--json")
    assert result.code == 0, result.stderr
    assert len(result.document["commands"]) > 1


@pytest.mark.slow
@pytest.mark.parametrize(
    ("typed", "position", "offered"),
    [("speclift d", 1, {"decide", "doctor"}), ("speclift doctor --q", 2, {"--quick"})],
)
def test_completion_knows_verbs_and_flags(
    typed: str, position: int, offered: set[str], tmp_path: Path
) -> None:
    asked = {"_SPECLIFT_COMPLETE": "complete_bash", "COMP_WORDS": typed, "COMP_CWORD": str(position)}
    assert set(as_the_shell(asked, tmp_path).split()) == offered


def as_the_shell(environment: dict[str, str], cwd: Path) -> str:
    """The program under its own name, asked as its completion script asks it."""
    program = Path(sys.executable).with_name("speclift")
    done = subprocess.run(
        [program], env={**os.environ, **environment}, cwd=cwd, capture_output=True, text=True, check=True
    )
    return done.stdout
