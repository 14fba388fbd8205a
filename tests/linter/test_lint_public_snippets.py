"""What tutorials, issues and manifests print is judged right: the engine, every finding, the exit code, the command."""

from __future__ import annotations

from pathlib import Path

import pytest

from public_snippets import SNIPPETS, Snippet
from running import Cli
from speclift.core.errors import UsageError
from speclift.linter.rows import Status
from speclift.verbs.lint import lint


def test_there_are_sixty_kinds() -> None:
    assert len({snippet.name for snippet in SNIPPETS}) == len(SNIPPETS) >= 60


@pytest.mark.parametrize("snippet", SNIPPETS, ids=lambda snippet: snippet.name)
def test_a_public_snippet_is_judged_right(snippet: Snippet) -> None:
    if snippet.exit_code == 2:
        with pytest.raises(UsageError):
            lint(snippet.text)
        return
    report = lint(snippet.text)
    seen = {found.flag: found.status.value for found in report.findings if found.status is not Status.OK}

    assert seen == snippet.findings
    assert (report.engine, *(other.engine for other in report.others)) == snippet.servers
    assert report.ok == (snippet.exit_code == 0)
    command = () if report.translated is None else report.translated.argv
    if snippet.has is None:
        assert command == ()
    else:
        remaining = iter(command)
        assert all(word in remaining for word in snippet.has), command


@pytest.mark.parametrize("snippet", SNIPPETS[::9], ids=lambda snippet: snippet.name)
def test_its_exit_code_is_the_programs(snippet: Snippet, cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "pasted").write_text(snippet.text, encoding="utf-8")
    result = cli("lint", "pasted")

    assert result.code == snippet.exit_code
    assert bool(result.stdout) == (snippet.exit_code != 2 and snippet.has is not None)
