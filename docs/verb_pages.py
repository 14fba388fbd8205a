"""One page per verb under docs/verbs/, written from the declarations that the command line itself is made of.

`make docs` writes them again; tests/docs/test_verb_pages.py fails where they differ from what would be written.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator
from pathlib import Path

from typer.core import TyperArgument, TyperCommand, TyperGroup, TyperOption
from typer.main import get_command

import speclift
from speclift.bench.ask import Ask, PlanAsk, ReplayAsk
from speclift.cli.help_page import OTHER_FLAGS
from speclift.cli.main import app
from speclift.cli.options import STUDY_SETTINGS
from speclift.core.flags import declared_flags
from speclift.core.goals import Goals

DOCS = Path(__file__).parent
VERBS = DOCS / "verbs"
NOTE = "Written by `make docs` from the command line's declarations: edits here are lost."
NONE = "–"
HEADS = ("name", "value", "default", "what it says", "speclift.toml", "Python")


def pages() -> dict[str, str]:
    """File name and text of each, in the order of `speclift --help`."""
    program = get_command(app)
    assert isinstance(program, TyperGroup)
    return {f"{verb}.md": "\n".join([*page(verb, command), NOTE, ""]) for verb, command in parts_of(program)}


def parts_of(group: TyperGroup) -> Iterator[tuple[str, TyperCommand | TyperGroup]]:
    for name, command in group.commands.items():
        assert isinstance(command, TyperCommand | TyperGroup)
        yield name, command


def page(verb: str, command: TyperCommand | TyperGroup, *, level: str = "#") -> Iterator[str]:
    example = (command.epilog or "").strip("\b\n").splitlines()[1:]
    yield from (f"{level} speclift {verb}", "", command.help or "", "")
    yield from ("```", *(line.strip() for line in example), "```", "")
    if (DOCS / f"{verb}.md").is_file():
        yield from (f"In depth: [{verb}](../{verb}.md)", "")
    if isinstance(command, TyperGroup):
        for name, part in parts_of(command):
            yield from page(f"{verb} {name}", part, level=f"{level}#")
        return
    asked = asked_type(command)
    if asked is not None:
        home = f"{asked.__module__}.{asked.__qualname__}"
        yield from (
            f"From Python: `speclift.{verb}(...)`; names in the column Python are fields of `{home}`.",
            "",
        )
    elif verb in speclift.__all__:
        yield from (f"From Python: `speclift.{verb}(...)`.", "")
    yield from flag_tables(command, asked, level=f"{level}#")


def asked_type(command: TyperCommand) -> type | None:
    """The value whose declared flags a command takes; an Ask comes first, for it has those of Goals as well."""
    names = {parameter.name for parameter in command.params}
    for asked in (Ask, PlanAsk, ReplayAsk, Goals):
        if names.issuperset(flag.key for flag in declared_flags(asked)):
            return asked
    return None


def flag_tables(command: TyperCommand, asked: type | None, *, level: str) -> Iterator[str]:
    """One per group of --help, in its order, the flags without a group last; columns that say nothing are left out."""
    fields = {} if asked is None else {flag.key: flag.field for flag in declared_flags(asked)}
    keys = STUDY_SETTINGS if asked is Ask else ()
    groups: dict[str, list[tuple[str, ...]]] = {}
    for parameter in command.params:
        assert isinstance(parameter, TyperOption | TyperArgument)
        usual = "Arguments" if isinstance(parameter, TyperArgument) else OTHER_FLAGS
        rows = groups.setdefault(parameter.rich_help_panel or usual, [])
        rows.append(flag_row(parameter, fields.get(parameter.name or ""), keys))
    for title in sorted(groups, key=lambda title: title == OTHER_FLAGS):
        columns = [(head, *cells) for head, *cells in zip(HEADS, *groups[title], strict=True)]
        head, *rows = zip(*(column for column in columns if {*column[1:]} != {NONE}), strict=True)
        yield from (f"{level} {title}", "", line(head), line("---" for _ in head), *map(line, rows), "")


def flag_row(
    parameter: TyperOption | TyperArgument, field: str | None, keys: Container[str]
) -> tuple[str, ...]:
    is_argument = isinstance(parameter, TyperArgument)
    names = [parameter.metavar or ""] if is_argument else parameter.opts
    key = names[0].removeprefix("--").replace("-", "_")
    has_default = parameter.default not in (None, "") and parameter.default is not False
    return (
        ", ".join(map(code, names)),
        NONE if is_argument else parameter.metavar or NONE,
        code(str(parameter.default)) if has_default else NONE,
        parameter.help or NONE,
        code(key) if key in keys else NONE,
        code(field) if field else NONE,
    )


def line(cells: Iterable[str]) -> str:
    return "| " + " | ".join(cell.replace("|", r"\|") for cell in cells) + " |"


def code(text: str) -> str:
    return f"`{text}`"


if __name__ == "__main__":
    VERBS.mkdir(exist_ok=True)
    for stale in VERBS.glob("*.md"):
        stale.unlink()
    for name, text in pages().items():
        (VERBS / name).write_text(text, encoding="utf-8")
