"""One flag against its row: is it there in this release, does its value fit? The same for every engine. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping

from speclift.linter.findings import LintFinding, Release, Status, dotted, nearest
from speclift.linter.json_text import config_json, parse_json
from speclift.linter.pasted import Expression, Setting, ShellExpression
from speclift.linter.rows import FlagKind, FlagRow


def judge_flag(
    setting: Setting, row: FlagRow | None, *, release: Release, rows: Mapping[str, FlagRow], engine: str
) -> LintFinding:
    if row is None:
        return _unknown(setting, names_at(rows, release), engine)
    return (
        _lifetime_fault(setting, row, release, engine)
        or _value_fault(setting, row, release)
        or _fine(setting, row)
    )


def names_at(rows: Mapping[str, FlagRow], release: Release) -> tuple[str, ...]:
    return tuple(name for name, row in rows.items() if row.span.holds(release))


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


def _unknown(setting: Setting, names: Iterable[str], engine: str) -> LintFinding:
    near = nearest(setting.name, names)
    said = f"{engine} never had this flag" + (f"; did you mean {near}?" if near else "")
    return finding(setting, Status.UNKNOWN, said, replacement=near)


def _lifetime_fault(setting: Setting, row: FlagRow, release: Release, engine: str) -> LintFinding | None:
    tail = f"; {row.note}" if row.note else ""
    if release < row.span.since:
        said = f"came with {engine} {dotted(row.span.since)}"
        return finding(setting, Status.UNKNOWN, said, changed_in=row.span.since, source=row.source)
    if row.span.gone is not None and release >= row.span.gone:
        status = Status.RENAMED if row.renamed_to else Status.REMOVED
        return finding(
            setting,
            status,
            f"gone since {engine} {dotted(row.span.gone)}{tail}",
            replacement=instead(setting, row),
            changed_in=row.span.gone,
            source=row.source,
        )
    if row.dead_since is not None and release >= row.dead_since:
        return finding(
            setting,
            Status.DEAD,
            f"accepted, but does nothing since {engine} {dotted(row.dead_since)}{tail}",
            replacement=instead(setting, row),
            changed_in=row.dead_since,
            source=row.source,
        )
    return None


def instead(setting: Setting, row: FlagRow) -> str | None:
    """What to write in its place, with the value that was given."""
    if row.renamed_to is not None:
        return row.renamed_to if setting.value is None else f"{row.renamed_to} {shown(setting.value)}"
    if row.replacement is not None:
        return row.replacement
    if row.key is not None and not row.note:
        config = config_json({row.key: told(setting, row.kind)})
        is_flag = setting.spelled.startswith("-")
        return f"--speculative-config '{config}'" if is_flag else f"speculative_config: {config}"
    return None


def shown(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, default=str)


def told(setting: Setting, kind: FlagKind) -> object:
    """The value as the kind it stands for; what a shell will make a number of stays the shell's."""
    if setting.is_opaque and isinstance(setting.value, str) and kind not in (FlagKind.TEXT, FlagKind.CHOICE):
        return ShellExpression(setting.value)
    return converted(setting.value, kind)


def converted(value: object, kind: FlagKind) -> object:
    """A command line's text as the kind it stands for; unchanged where it does not fit."""
    if not isinstance(value, str):
        return True if value is None and kind is FlagKind.SWITCH else value
    try:
        match kind:
            case FlagKind.INT:
                return int(value)
            case FlagKind.FLOAT:
                return float(value)
            case FlagKind.SWITCH | FlagKind.BOOL if value.lower() in ("true", "false"):
                return value.lower() == "true"
            case FlagKind.OBJECT:
                return parse_json(value)
    except ValueError:
        pass
    return value


def _value_fault(setting: Setting, row: FlagRow, release: Release) -> LintFinding | None:
    said = _misfit(setting, row, release)
    if said is None:
        return None
    replacement = f"{setting.spelled} on" if setting.value is None and row.value_since else None
    return finding(
        setting,
        Status.CONFLICT,
        said,
        replacement=replacement,
        changed_in=row.value_since,
        source=row.source,
    )


def _misfit(setting: Setting, row: FlagRow, release: Release) -> str | None:
    value = setting.value
    if isinstance(value, Expression) or "." in setting.name or setting.is_opaque:
        return None
    if row.kind is FlagKind.SWITCH:
        return None
    if value is None and row.value_since is not None:
        if release < row.value_since:
            return None
        allowed = ", ".join(name for name, _, _ in row.choices)
        return f"no switch any more: one of {allowed} follows since {dotted(row.value_since)}"
    if value is None:
        return f"takes {row.kind}, and none follows"
    saw = f"saw {shown(value)!r}"
    number = converted(value, row.kind)
    if row.kind in (FlagKind.INT, FlagKind.FLOAT):
        if isinstance(number, bool) or not isinstance(number, (int, float)):
            return f"takes {row.kind}, {saw}"
        if row.low is not None and number < row.low:
            return f"is at least {row.low:g}, {saw}"
        if row.high is not None and number > row.high:
            return f"is at most {row.high:g}, {saw}"
    if row.choices:
        names = [
            name for name, since, gone in row.choices if since <= release and not (gone and release >= gone)
        ]
        if value not in names:
            near = nearest(shown(value), names)
            return f"is one of {', '.join(names)}, {saw}" + (f"; did you mean {near}?" if near else "")
    return None


def _fine(setting: Setting, row: FlagRow) -> LintFinding:
    if row.warning:
        return finding(setting, Status.RISKY, row.warning, source=row.source)
    name = setting.name.partition(".")[0]
    short = setting.spelled.startswith("--") and not setting.spelled.replace("_", "-").startswith(name)
    is_known = setting.spelled.replace("_", "-").partition(".")[0] in row.names or setting.is_off
    said = f"short for {name}" if short and not is_known else row.note if not row.span.gone else ""
    return finding(setting, Status.OK, said, source=row.source)
