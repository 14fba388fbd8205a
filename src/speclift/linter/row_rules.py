"""One setting against its row: is it there in this release, does its value fit? The same for every table. Pure."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import TypeGuard

from speclift.linter.findings import LintFinding, Release, Status, dotted, nearest
from speclift.linter.json_text import config_json, parse_json
from speclift.linter.pasted import Expression, Setting, ShellExpression
from speclift.linter.rows import Life, NameTable, Row, ValueKind


def judge_flag(setting: Setting, row: Row | None, table: NameTable, release: Release) -> LintFinding:
    if row is None:
        return unknown(setting, table, release)
    return fault(setting, row, table, release) or _fine(setting, row)


def fault(setting: Setting, row: Row, table: NameTable, release: Release) -> LintFinding | None:
    """What is wrong with a setting by itself; None where nothing is."""
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
    """What to write in its place, with the value that was given where it is a flag's."""
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
    """What is wrong with the value, in words; None where it fits."""
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
