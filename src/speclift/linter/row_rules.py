"""Judges a setting by its row in a release, and writes it as it is written today. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeGuard

from speclift.linter.pasted import Expression, Pasted, Setting, ShellExpression, config_json, parse_json
from speclift.linter.rows import (
    Life,
    LintFinding,
    NameTable,
    Release,
    Row,
    Status,
    ValueKind,
    dotted,
    nearest,
)
from speclift.linter.shell import quote


def judge_flag(setting: Setting, row: Row | None, table: NameTable, release: Release) -> LintFinding:
    if row is None:
        return unknown(setting, table, release)
    return fault(setting, row, table, release) or _fine(setting, row)


def fault(setting: Setting, row: Row, table: NameTable, release: Release) -> LintFinding | None:
    """The fault of a setting by itself, if any."""
    return lifetime_fault(setting, row, table, release) or _value_fault(setting, row, table, release)


def finding(
    setting: Setting,
    status: Status,
    message: str,
    *,
    replacement: str | None = None,
    changed_in: Release | None = None,
    source: str = "",
) -> LintFinding:
    return LintFinding(
        flag=setting.spelled,
        status=status,
        message=message,
        replacement=replacement,
        changed_in=None if changed_in is None else dotted(changed_in),
        source=source,
    )


def unknown(setting: Setting, table: NameTable, release: Release) -> LintFinding:
    near = nearest(setting.name, table.names_at(release))
    said = f"{table.engine} never had this {table.thing}" + (f"; did you mean {near}?" if near else "")
    return finding(setting, Status.UNKNOWN, said, replacement=near, source=table.source)


def lifetime_fault(setting: Setting, row: Row, table: NameTable, release: Release) -> LintFinding | None:
    """None where this release has it and reads it."""
    tail = f"; {row.note}" if row.note else ""
    match row.life(release):
        case Life.COMING:
            said = f"needs {table.engine} {dotted(row.since)} or newer"
            return finding(setting, Status.UNKNOWN, said, changed_in=row.since, source=row.source)
        case Life.GONE:
            status = Status.RENAMED if row.renamed_to else Status.REMOVED
            since, words = row.gone_by(release), table.gone_since
            if table.is_typed and row.dead_since is not None:
                tail = f", dead since {dotted(row.dead_since)}{tail}"
        case Life.DEAD:
            status, since, words = Status.DEAD, row.dead_since, table.dead_since
        case Life.THERE:
            return None
    return finding(
        setting,
        status,
        f"{words} {table.engine} {dotted(since or ())}{tail}",
        replacement=_instead(setting, row, table),
        changed_in=since,
        source=row.source,
    )


def _instead(setting: Setting, row: Row, table: NameTable) -> str | None:
    """The words to write in its place, with the value that was given where it is a flag's."""
    if row.renamed_to is not None:
        is_alone = setting.value is None or table.is_typed
        return row.renamed_to if is_alone else f"{row.renamed_to} {shown(setting.value)}"
    if row.replacement is not None:
        return row.replacement
    if row.key is not None and not row.note:
        config = config_json({row.key: told(setting, row.kind)})
        if setting.spelled.startswith("-"):
            return f"{table.config_flag} '{config}'"
        return f"{table.config_flag.removeprefix('--').replace('-', '_')}: {config}"
    return None


def shown(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, default=str)


def told(setting: Setting, kind: ValueKind) -> object:
    """The value as the kind it stands for; what a shell will make a number of stays the shell's."""
    if (
        setting.is_opaque
        and isinstance(setting.value, str)
        and kind not in (ValueKind.TEXT, ValueKind.CHOICE)
    ):
        return ShellExpression(setting.value)
    return converted(setting.value, kind)


def converted(value: object, kind: ValueKind) -> object:
    """A command line's text as the kind it stands for; unchanged where it does not fit."""
    if not isinstance(value, str):
        return True if value is None and kind is ValueKind.SWITCH else value
    try:
        match kind:
            case ValueKind.INT:
                return int(value)
            case ValueKind.FLOAT:
                return float(value)
            case ValueKind.SWITCH | ValueKind.BOOL if value.lower() in ("true", "false"):
                return value.lower() == "true"
            case ValueKind.OBJECT:
                return parse_json(value)
    except ValueError:
        pass
    return value


# Values


def _value_fault(setting: Setting, row: Row, table: NameTable, release: Release) -> LintFinding | None:
    if row.kind is ValueKind.INTERNAL:
        status = Status.RENAMED if row.renamed_to else Status.CONFLICT
        said = row.note or "the engine sets this itself"
        return finding(setting, status, said, replacement=_instead(setting, row, table), source=row.source)
    misfit = _misfit(setting, row, table, release)
    if misfit is None:
        return None
    replacement = f"{setting.spelled} on" if setting.value is None and row.value_since else None
    return finding(
        setting,
        Status.CONFLICT,
        misfit,
        replacement=replacement,
        changed_in=row.value_since,
        source=row.source,
    )


def _misfit(setting: Setting, row: Row, table: NameTable, release: Release) -> str | None:
    """The fault of the value in words; None where it fits."""
    value = setting.value
    is_untold = isinstance(value, Expression) or setting.is_opaque
    if is_untold:
        return None
    if not table.is_typed and "." in setting.name:
        return "takes a value, and none follows" if value is None else None
    if row.kind is ValueKind.SWITCH:
        return _no_switch(value)
    if value is None:
        return _missing_value(row, release)
    return _wrong_value(value, row, table, release)


def _no_switch(value: object) -> str | None:
    is_switched = value is None or isinstance(converted(value, ValueKind.SWITCH), bool)
    return None if is_switched else f"is a switch and takes no value, saw {shown(value)!r}"


def _wrong_value(value: object, row: Row, table: NameTable, release: Release) -> str | None:
    saw = f"saw {value if table.is_typed else shown(value)!r}"
    typed = value if table.is_typed else converted(value, row.kind)
    if not _fits(typed, row, table):
        return f"takes {row.kind.words}, {saw}"
    if row.choices and value not in (names := row.choices_at(release)):
        return _no_choice(shown(value), names, saw, row, table, release)
    bound = _broken_bound(typed, row)
    return None if bound is None else f"{bound}, {saw}"


def _fits(value: object, row: Row, table: NameTable) -> bool:
    # Anything can be written where a command line takes a text.
    is_checked = table.is_typed or row.kind in (ValueKind.INT, ValueKind.FLOAT)
    return not is_checked or row.kind not in FITS or FITS[row.kind](value)


def _no_choice(
    value: str, names: Sequence[str], saw: str, row: Row, table: NameTable, release: Release
) -> str:
    if table.is_typed:
        why = f"; {row.note}" if row.note else ""
        return f"must be one of {', '.join(names)} in {dotted(release)}, {saw}{why}"
    near = nearest(value, names)
    return f"must be one of {', '.join(names)}, {saw}" + (f"; did you mean {near}?" if near else "")


def _missing_value(row: Row, release: Release) -> str | None:
    if row.value_since is None:
        return f"needs a value: {row.kind.words}"
    if release < row.value_since:
        return None
    allowed = ", ".join(choice.name for choice in row.choices)
    return f"needs a value since {dotted(row.value_since)}: one of {allowed}"


def _broken_bound(value: object, row: Row) -> str | None:
    for number in value if isinstance(value, (list, tuple)) and row.kind is ValueKind.RATES else (value,):
        if is_number(number):
            if row.low is not None and number < row.low:
                return f"must be at least {row.low:g}"
            if row.high is not None and number > row.high:
                return f"must be at most {row.high:g}"
    return None


def is_whole(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool)


def is_number(value: object) -> TypeGuard[int | float]:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def are_numbers(value: object) -> TypeGuard[list[float] | tuple[float, ...]]:
    return isinstance(value, (list, tuple)) and all(map(is_number, value))


FITS: dict[ValueKind, Callable[[object], bool]] = {
    ValueKind.INT: is_whole,
    ValueKind.FLOAT: is_number,
    ValueKind.BOOL: lambda value: isinstance(value, bool),
    ValueKind.TEXT: lambda value: isinstance(value, str),
    ValueKind.OBJECT: lambda value: isinstance(value, Mapping),
    ValueKind.RATES: are_numbers,
}


def _fine(setting: Setting, row: Row) -> LintFinding:
    if row.warning:
        return finding(setting, Status.RISKY, row.warning, source=row.source)
    name = setting.name.partition(".")[0]
    short = setting.spelled.startswith("--") and not setting.spelled.replace("_", "-").startswith(name)
    is_known = setting.spelled.replace("_", "-").partition(".")[0] in row.names or setting.is_off
    said = f"short for {name}" if short and not is_known else row.note if not row.gone else ""
    return finding(setting, Status.OK, said, source=row.source)


# A pasted command of today, in every form its engine takes


# Keys that need no quotes, as long as they are no word that YAML takes for something else.
_PLAIN_KEY = re.compile(
    r"(?!(?:y|n|yes|no|on|off|true|false|null)$)[A-Za-z][\w.-]*", re.ASCII | re.IGNORECASE
)
_PAIR = re.compile(r"\\\\|\\u(d[89ab]..)\\u(d[c-f]..)|\x7f")


@dataclass(frozen=True, slots=True, kw_only=True)
class Translation:
    """`source` are the words of the command as a shell reads them. `notes` say which part has no equivalent and what
    comes closest. `yaml` is a file that the engine reads, or a container service where it reads none."""

    argv: tuple[str, ...]
    source: tuple[str, ...]
    python: str
    yaml: str
    # What the YAML is, as a title above it.
    yaml_is: str
    notes: tuple[str, ...] = ()

    @property
    def command(self) -> str:
        return " ".join(self.source)


def shell_source(
    pasted: Pasted, argv: Sequence[str], environment: Iterable[tuple[str, str]]
) -> tuple[str, ...]:
    """Variables, then the words. A variable that the words themselves use must be set by a command before them."""
    used = set(re.findall(r"\$\{?(\w+)", " ".join(pasted.expansions.pieces)))
    leading = []
    for name, value in environment:
        said = f"{name}={quote(value, pasted.expansions)}"
        leading.append(f"export {said};" if name in pasted.exported and name in used else said)
    return (*leading, *(quote(word, pasted.expansions) for word in argv))


def folded_command(words: Sequence[str]) -> str:
    """Words of shell source over several lines, one flag each, still one command for a shell."""
    lines: list[list[str]] = [[]]
    for word in words:
        if word.startswith("-") and not word[1:2].isdigit() and lines != [[]]:
            lines.append([])
        lines[-1].append(word)
    return " \\\n    ".join(" ".join(line) for line in lines)


def translate_by_rows(
    pasted: Pasted, program: Sequence[str], flags: NameTable, newest: Release
) -> Translation:
    """Each flag as its row says; for an engine in whose command line no two flags depend on each other."""
    notes: list[str] = []
    words: list[str] = []
    for setting in pasted.settings:
        row = flags.find(setting.name)
        if row is None:
            notes.append(f"{setting.spelled} was left out: {flags.engine} has no such flag")
        else:
            words += words_today(setting, row, row.renamed_to or setting.name, flags, newest, notes)
    model = () if pasted.model is None else (pasted.model,)
    argv = [*pasted.wrapper, *program, *model, *words, *pasted.carried]
    return as_service(pasted, argv, shell_environment(pasted), name=pasted.engine, notes=notes)


def as_service(
    pasted: Pasted,
    argv: Sequence[str],
    environment: Iterable[tuple[str, str]],
    *,
    name: str,
    notes: Iterable[str],
) -> Translation:
    """The translation of an engine that reads no file of its own: its YAML is a container service."""
    return Translation(
        argv=tuple(argv),
        source=shell_source(pasted, argv, environment),
        python=python_launch(argv),
        yaml=compose_service(argv, name=name),
        yaml_is="As a container service",
        notes=tuple(dict.fromkeys(notes)),
    )


def words_today(
    setting: Setting, row: Row, name: str, table: NameTable, newest: Release, notes: list[str]
) -> list[str]:
    """A flag under its name of today; what stands in for it where it is gone, and a note where nothing does."""
    if row.renamed_to is not None or row.holds(newest):
        if setting.value is None:
            return [name, "on"] if row.value_since is not None else [name]
        return [name, shown(setting.value)]
    if row.replacement is not None:
        return row.replacement.split()
    notes.append(f"{setting.spelled} was left out: {row.note or f'{table.engine} no longer has it'}")
    return []


def shell_environment(pasted: Pasted) -> list[tuple[str, str]]:
    """Variables of the shell; those inside docker run stay where they are."""
    return [(name, value) for name, value in pasted.environment if f"{name}={value}" not in pasted.wrapper]


def python_launch(argv: Sequence[str]) -> str:
    """The same server started from Python."""
    listed = "".join(f"    {json.dumps(word)},\n" for word in argv)
    return f"import subprocess\n\nserver = subprocess.Popen([\n{listed}])\n"


def compose_service(argv: Sequence[str], *, name: str) -> str:
    """The same server as a container service; JSON strings are YAML strings too."""
    listed = "".join(f"      - {json.dumps(word)}\n" for word in argv[1:])
    return f"services:\n  {name}:\n    entrypoint: [{json.dumps(argv[0])}]\n    command:\n{listed}"


def yaml_text(value: Mapping[str, object], *, indent: int = 0) -> str:
    """Block style with every text in double quotes, so that no value changes its type on the way back."""
    lines = []
    for key, each in value.items():
        name = key if _PLAIN_KEY.fullmatch(key) else _yaml_scalar(key)
        if isinstance(each, Mapping) and each:
            lines.append(f"{' ' * indent}{name}:\n{yaml_text(each, indent=indent + 2)}")
        else:
            lines.append(f"{' ' * indent}{name}: {_yaml_scalar(each)}\n")
    return "".join(lines)


def _yaml_scalar(value: object) -> str:
    """JSON is YAML, but for two escapes that stand for one character, and for DEL."""
    return _PAIR.sub(_yaml_escape, json.dumps(value))


def _yaml_escape(match: re.Match[str]) -> str:
    if match[1]:
        high, low = int(match[1], 16), int(match[2], 16)
        return f"\\U{0x10000 + ((high - 0xD800) << 10) + (low - 0xDC00):08x}"
    return match[0] if match[0] != "\x7f" else "\\x7f"
