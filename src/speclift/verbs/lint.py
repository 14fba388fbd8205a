"""The verb lint: what became of a serving command, from words, a text or a file."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from speclift.core.errors import UsageError
from speclift.engines.named import known_dialects
from speclift.linter.dialect import Dialects
from speclift.linter.judge import TEXT_MAX, lint_text, lint_words, starts_something
from speclift.linter.report import LintReport
from speclift.studies.private import STDIN, read_named

_HUB_ID = re.compile(r"\w[\w.-]*/\w[\w.-]*")


def lint(
    command: str | Sequence[str], *, engine: str | None = None, engine_version: str | None = None
) -> LintReport:
    """Judge every flag and key of a serving command, Python code, YAML or JSON, and translate it to today's.

    `command` is its text, as in `speclift.lint("vllm serve m --speculative-model d")`, or its words as a shell
    has split them.
    """
    dialects = dialects_for(engine)
    if isinstance(command, str):
        report = lint_text(command, dialects, version=engine_version)
    else:
        report = lint_words(command, dialects, version=engine_version)
    others = tuple(_with_model_notes(other) for other in report.others)
    return replace(_with_model_notes(report), others=others)


def _with_model_notes(report: LintReport) -> LintReport:
    """Ids of the hub that the catalogue does not have are not wrong, and nobody vouches for them."""
    ids = [model for model in dict.fromkeys(report.models) if _HUB_ID.fullmatch(model)]
    if not ids:
        return report
    from speclift.weights.catalogue_files import find_model  # late: most lines are refused before

    notes = (
        f"{model} is not in the catalogue: whether there is such a model, and what it takes, was not checked"
        for model in ids
        if find_model(model) is None
    )
    return replace(report, notes=(*report.notes, *notes))


def dialects_for(engine: str | None) -> Dialects:
    """Those of every engine that has a command line, with the one that was asked for."""
    known = Dialects(known_dialects())
    return known if engine is None else Dialects(known.known, asked=known.of(engine))


def lint_arguments(
    words: Sequence[str], *, engine: str | None = None, engine_version: str | None = None
) -> LintReport:
    """What the command line was given: one file, - for standard input, or the words of a command."""
    if len(words) != 1:
        return lint(words, engine=engine, engine_version=engine_version)
    (word,) = words
    if word == STDIN:
        return lint(read_pasted(Path(word)), engine=engine, engine_version=engine_version)
    path = Path(word)
    if _is_there(path):
        return lint(read_pasted(path), engine=engine, engine_version=engine_version)
    # A file that is not there is told from a command in one word by what an engine makes of it.
    is_name = not any(character.isspace() for character in word)
    if is_name and (path.suffix or not starts_something(word, dialects_for(engine))):
        raise UsageError(
            f"there is no file {word[:80]!r}", hint="a command goes after --: speclift lint -- vllm serve …"
        )
    return lint([word], engine=engine, engine_version=engine_version)


def _is_there(path: Path) -> bool:
    """A pipe is as good as a file: lint <(cat run.sh)."""
    try:
        return path.exists()
    except (OSError, ValueError):  # a whole command in one word is too long for a name
        return False


def read_pasted(path: Path) -> str:
    if path.is_dir():
        raise UsageError(f"{path} is a folder", hint="give the script or the config in it")
    data = read_named(path, what="", limit_bytes=4 * TEXT_MAX)
    return _decoded(data, "standard input" if str(path) == STDIN else str(path))


def _decoded(data: bytes, where: str) -> str:
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise UsageError(f"{where} is not UTF-8 text; give a command, Python code or a config") from None
