"""Would vLLM take this speculative config, and would it mean what it says? Judged key by key from the table,
then as a whole. Pure: models are not looked at, so a size or a vocabulary that differs is not seen here."""

from __future__ import annotations

from collections.abc import Mapping

from speclift.linter.findings import LintFinding, Release, Status, dotted, nearest
from speclift.linter.pasted import Expression
from speclift.linter.rows import FlagKind, KeyRow
from speclift.linter.vllm_case import Case, about, are_numbers, method_of
from speclift.linter.vllm_keys import CONFIG_SINCE, KEY_ROWS
from speclift.linter.vllm_rules import RULES


def known_keys(release: Release) -> tuple[str, ...]:
    """The keys that this release accepts from a user."""
    return tuple(
        row.name for row in KEY_ROWS.values() if row.span.holds(release) and row.kind is not FlagKind.INTERNAL
    )


def check_speculative_config(
    config: Mapping[str, object],
    *,
    release: Release,
    is_cpu: bool = False,
    tensor_parallel: int | None = None,
    data_parallel: int | None = None,
    max_model_len: int | None = None,
    has_async_scheduling: bool | None = None,
) -> tuple[LintFinding, ...]:
    """One finding per key, then those about their combination; `is_error` tells the ones vLLM refuses or
    ignores from the rest."""
    # Dashes in keys are vLLM's to normalise, and a null is the same as an absent key.
    given = {name.replace("-", "_"): value for name, value in config.items() if value is not None}
    case = Case(
        config=given,
        method=method_of(given, release),
        release=release,
        is_cpu=is_cpu,
        tensor_parallel=tensor_parallel,
        data_parallel=data_parallel,
        max_model_len=max_model_len,
        has_async_scheduling=has_async_scheduling,
    )
    wholes = [found for rule in RULES for found in rule(case)]
    spoken_for = {found.flag for found in wholes}
    # A combination's fault says more about its key than that the key is fine or unread.
    keys = [
        found
        for found in (_judge_key(name, value, case) for name, value in given.items())
        if found.flag not in spoken_for or found.status not in (Status.OK, Status.DEAD)
    ]
    return (*keys, *wholes)


# One key


def _judge_key(name: str, value: object, case: Case) -> LintFinding:
    row = KEY_ROWS.get(name)
    if row is None:
        near = nearest(name, known_keys(case.release))
        return about(
            name,
            Status.UNKNOWN,
            "vLLM never had this key" + (f"; did you mean {near}?" if near else ""),
            replacement=near,
        )
    return _lifetime_fault(row, case) or _value_fault(row, value, case) or _use(row, case.method)


def _lifetime_fault(row: KeyRow, case: Case) -> LintFinding | None:
    release, span = case.release, row.span
    closest = row.renamed_to or row.replacement
    tail = f"; {row.note}" if row.note else ""
    if release < CONFIG_SINCE:
        return about(
            row.name,
            Status.UNKNOWN,
            f"speculative configs came with {dotted(CONFIG_SINCE)}; before, speculation was a set of flags",
            changed_in=CONFIG_SINCE,
            source=row.source,
        )
    if release < span.since:
        return about(
            row.name,
            Status.UNKNOWN,
            f"came with vLLM {dotted(span.since)}",
            changed_in=span.since,
            source=row.source,
        )
    if span.gone is not None and release >= span.gone:
        status = Status.RENAMED if row.renamed_to else Status.REMOVED
        dead = f", dead since {dotted(row.dead_since)}" if row.dead_since else ""
        return about(
            row.name,
            status,
            f"refused since vLLM {dotted(span.gone)}{dead}{tail}",
            replacement=closest,
            changed_in=span.gone,
            source=row.source,
        )
    if row.kind is FlagKind.INTERNAL:
        status = Status.RENAMED if row.renamed_to else Status.CONFLICT
        said = row.note or "the engine fills this in itself"
        return about(row.name, status, said, replacement=closest, source=row.source)
    if row.dead_since is not None and release >= row.dead_since:
        return about(
            row.name,
            Status.DEAD,
            f"accepted, but nothing reads it since vLLM {dotted(row.dead_since)}{tail}",
            replacement=closest,
            changed_in=row.dead_since,
            source=row.source,
        )
    return None


def _value_fault(row: KeyRow, value: object, case: Case) -> LintFinding | None:
    said = _misfit(row, value, case.release)
    if said is None:
        return None
    return about(row.name, Status.CONFLICT, said, source=row.source)


def _misfit(row: KeyRow, value: object, release: Release) -> str | None:
    """What is wrong with the value, in words; None where it fits."""
    if isinstance(value, Expression):
        return None
    saw = f"saw {value!r}"
    match row.kind:
        case FlagKind.INT if isinstance(value, bool) or not isinstance(value, int):
            return f"takes {FlagKind.INT}, {saw}"
        case FlagKind.FLOAT if isinstance(value, bool) or not isinstance(value, (int, float)):
            return f"takes {FlagKind.FLOAT}, {saw}"
        case FlagKind.BOOL if not isinstance(value, bool):
            return f"takes {FlagKind.BOOL}, {saw}"
        case FlagKind.TEXT if not isinstance(value, str):
            return f"takes {FlagKind.TEXT}, {saw}"
        case FlagKind.OBJECT if not isinstance(value, Mapping):
            return f"takes {FlagKind.OBJECT}, {saw}"
        case FlagKind.RATES if not are_numbers(value):
            return f"takes {FlagKind.RATES}, {saw}"
        case FlagKind.CHOICE:
            names = [
                name
                for name, since, gone in row.choices
                if since <= release and not (gone and release >= gone)
            ]
            if value not in names:
                return f"is one of {', '.join(names)} in {dotted(release)}, {saw}" + (
                    f"; {row.note}" * bool(row.note)
                )
    numbers = value if isinstance(value, (list, tuple)) and row.kind is FlagKind.RATES else (value,)
    for number in numbers:
        if isinstance(number, (int, float)) and not isinstance(number, bool):
            if row.low is not None and number < row.low:
                return f"is at least {row.low:g}, {saw}"
            if row.high is not None and number > row.high:
                return f"is at most {row.high:g}, {saw}"
    return None


def _use(row: KeyRow, method: str) -> LintFinding:
    if row.methods and method not in row.methods:
        return about(
            row.name,
            Status.DEAD,
            f"{method} does not read it; it is for {', '.join(row.methods)}",
            source=row.source,
        )
    return about(row.name, Status.OK, "", source=row.source)
