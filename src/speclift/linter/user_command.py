"""One server of a pasted text, taken apart: what is speculation, what is the server's own. Pure.

A command that its engine takes is kept as it was written. One of another age, Python code or a config is read from its
translation.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from speclift.core.address import concealed_within, without_secrets
from speclift.core.errors import UsageError, WillNotRun
from speclift.core.user_command import CONTAINERS, HUB_TOKEN, HUB_TOKEN_FLAGS, OwnLine, hidden_words
from speclift.linter.command import Foreign, read_command
from speclift.linter.dialect import Dialect, Dialects
from speclift.linter.judge import lint_words, read_servers
from speclift.linter.pasted import Form, Pasted, Setting, TakenApart
from speclift.linter.report import LintReport
from speclift.linter.row_rules import shown
from speclift.linter.rows import LintFinding, Status

# So many findings say what is wrong; lint shows all.
FINDINGS_SHOWN = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnServer:
    """A pasted line as a verb that measures takes it."""

    engine: str
    title: str
    line: OwnLine
    parts: TakenApart
    program: tuple[str, ...]
    # What had to be translated or repaired, for the user to see.
    notes: tuple[str, ...]
    # Variables whose values nobody may read later.
    secrets: tuple[tuple[str, str], ...] = ()


def own_server(
    report: LintReport, dialects: Dialects, command: str | Sequence[str], *, version: str | None = None
) -> OwnServer:
    """`version` is the release that was judged; empty for the newest. UsageError where the text does not say which
    server is meant; WillNotRun where the engine would refuse it."""
    if report.others:
        servers = (report, *report.others)
        raise UsageError(
            f"this text starts {len(servers)} servers: {', '.join(server.title for server in servers)}",
            hint="give one of them: cut the text down, or put its command after --",
        )
    _require_whole(report)
    pasted = _accepted(report, dialects, command, version) or _today(report, dialects, version)
    dialect = dialects.of(report.engine)
    parts = dialect.taken_apart(_concealed(pasted))
    if parts.model is None:
        raise WillNotRun(
            f"this {report.title} command names no model", hint="put the model in, as the server takes it"
        )
    text = command if isinstance(command, str) else shlex.join(hidden_words(command))
    line = _line(_concealed(pasted), parts, dialect, report.environment, text)
    return OwnServer(
        engine=report.engine,
        title=report.title,
        line=line,
        parts=parts,
        program=report.program,
        notes=_notes(report),
        secrets=tuple(
            (name, value)
            for name, value in dict.fromkeys((*report.environment, *pasted.environment, *_hub_tokens(pasted)))
            if hidden_words([f"{name}={value}"]) != (f"{name}={value}",)
        ),
    )


def _line(
    pasted: Pasted,
    parts: TakenApart,
    dialect: Dialect,
    environment: Sequence[tuple[str, str]],
    text: str,
) -> OwnLine:
    kept = [setting for setting in pasted.settings if not dialect.is_speculation(setting.name)]
    asked = [setting for setting in pasted.settings if dialect.is_speculation(setting.name)]
    variables = hidden_words([f"{name}={value}" for name, value in environment])
    before = hidden_words(pasted.wrapper)
    at = next((index for index, word in enumerate(before) if (word,) in CONTAINERS), len(before))
    return OwnLine(
        wrapper=before[:at],
        start=(*before[at:], *pasted.program, *(() if pasted.model is None else (pasted.model,))),
        flags=tuple(hidden_words(_words(setting)) for setting in kept),
        names=tuple(_name(setting) for setting in kept),
        environment=tuple(_split(word) for word in variables),
        text=without_secrets(concealed_within(text)),
        speculation=tuple(word for setting in asked for word in _words(setting)),
        utilisation=parts.utilisation,
    )


def _concealed(pasted: Pasted) -> Pasted:
    """Without the passwords of addresses, wherever they stand."""
    return replace(
        pasted,
        model=None if pasted.model is None else concealed_within(pasted.model),
        settings=tuple(
            replace(setting, value=_concealed_value(setting.value)) for setting in pasted.settings
        ),
    )


def _concealed_value(value: object) -> object:
    match value:
        case str():
            return concealed_within(value)
        case list():
            return [_concealed_value(entry) for entry in value]
        case dict():
            return {key: _concealed_value(entry) for key, entry in value.items()}
    return value


def _accepted(
    report: LintReport, dialects: Dialects, command: str | Sequence[str], version: str | None
) -> Pasted | None:
    """The command as it was written, where its engine takes it so; None where it has to be translated."""
    if not report.ok:
        return None
    servers = read_servers(command, dialects, version=version)
    pasted = servers[0] if len(servers) == 1 else None
    return pasted if isinstance(pasted, Pasted) and pasted.form is Form.COMMAND else None


def _today(report: LintReport, dialects: Dialects, version: str | None) -> Pasted:
    """The command as its engine takes it today; WillNotRun with the findings where it does not."""
    errors = [finding for finding in report.findings if finding.is_error]
    translated = report.translated
    if translated is None or not translated.argv:
        raise _refused(report, errors)
    wrong = _unsettled(errors, lint_words(translated.argv, dialects, version=version))
    if wrong:
        raise _refused(report, wrong)
    pasted = read_command(translated.argv, dialects)
    if pasted is None or isinstance(pasted, Foreign):
        raise _refused(report, errors)
    return pasted


def _unsettled(errors: Sequence[LintFinding], again: LintReport) -> list[LintFinding]:
    """The errors that the translation leaves: what is unknown or clashes is not in it as it was meant, which nobody
    knows. `again` is the translation, read as the user's text was."""
    guessed = [
        finding
        for finding in errors
        if finding.status in (Status.UNKNOWN, Status.UNREAD)
        or (finding.status is Status.CONFLICT and finding.replacement is None)
    ]
    return [*guessed, *(finding for finding in again.findings if finding.is_error and finding not in guessed)]


def _require_whole(report: LintReport) -> None:
    """All that is needed to start it is in the text."""
    if report.unexpanded:
        raise UsageError(
            f"only a shell knows what {report.unexpanded[0]} stands for", hint="put the value in its place"
        )
    if not report.release:
        raise WillNotRun(
            f"this starts {report.title}, which speclift cannot launch",
            hint="start it with and without speculation, and compare: --engine attach --baseline-url … --spec-url …",
        )


def _refused(report: LintReport, errors: Sequence[LintFinding]) -> WillNotRun:
    said = [f"{finding.flag}: {finding.message}" for finding in errors[:FINDINGS_SHOWN]]
    if len(errors) > FINDINGS_SHOWN:
        said.append(f"and {len(errors) - FINDINGS_SHOWN} more")
    version = f" {report.version}" if report.version else ""
    head = f"{report.title}{version} would not run this"
    return WillNotRun(
        "\n  ".join([f"{head}:", *said] if said else [head]), hint="speclift lint shows all of it"
    )


def _notes(report: LintReport) -> tuple[str, ...]:
    changed = [
        f"{finding.flag}: {finding.message}" + (f" -> {finding.replacement}" if finding.replacement else "")
        for finding in report.findings
        if finding.status is not Status.OK
    ]
    translated = report.translated
    return tuple(
        dict.fromkeys([*report.notes, *changed, *(translated.notes if translated is not None else ())])
    )


def _words(setting: Setting) -> tuple[str, ...]:
    if setting.is_one_word:
        return (f"{setting.spelled}={shown(setting.value)}",)
    return (setting.spelled, *_values(setting.value))


def _hub_tokens(pasted: Pasted) -> Iterator[tuple[str, str]]:
    """Given by a flag; a launch of ours hands it on by the variable, which nobody reads in a list of processes."""
    token = pasted.last(*HUB_TOKEN_FLAGS)
    if isinstance(token, str):
        yield HUB_TOKEN, token


def _name(setting: Setting) -> str:
    return f"--no-{setting.name.removeprefix('--')}" if setting.is_off else setting.name


def _values(value: object) -> Iterator[str]:
    if isinstance(value, list):
        yield from (shown(entry) for entry in value)
    elif value is not None:
        yield shown(value)


def _split(assignment: str) -> tuple[str, str]:
    name, _, value = assignment.partition("=")
    return name, value
